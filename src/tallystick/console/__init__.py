"""The operators' console: one picture of transactions in Kafka, the databases that decide them, and Spark.

    snapshot        values: what was seen of cluster, stores and decision logs at one time
    collect/        reads them: one collector for all pages, with a limit to what it costs the cluster
    joint           pure: both halves of each transaction side by side, with the verdict and the command
    views/          pure: a view model for each page, which the page, its JSON form and the terminal share
    web/            Starlette application, templates and vendored scripts
    terminal/       the same view models in a terminal: `tallystick top`

It works with any Kafka cluster and imports no broker. Verdicts come from `admin.hanging`,
`dualwrite.recovery` and `spark.protocol`; nothing here decides a second time. docs/adr/0059.
"""
