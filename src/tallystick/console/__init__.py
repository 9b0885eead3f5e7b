"""The operators' console: one picture of transactions in Kafka, the databases that decide them, and Spark.

    snapshot        values: what was seen of cluster, stores and decision logs at one time
    collect/        reads them: one collector for all pages, with a limit to what it costs the cluster
    joint, judge    pure: both halves of each transaction side by side, with the verdict and the command
    state, feed     the newest snapshot, joined, and those who follow it
    actions/        what may be done from a page: dry runs (pure), one attempt, the audit log
    views/          pure: a view model for each page, which the page, its JSON form and the terminal share
    web/            Starlette application, templates and vendored scripts
    terminal/       the same view models in a terminal: `tallystick top`

It works with any Kafka cluster and imports no broker. Verdicts come from `admin.hanging`,
`dualwrite.recovery` and `spark.protocol`; nothing here decides a second time. docs/adr/0058.
"""

from typing import TYPE_CHECKING

from tallystick import _lazy

if TYPE_CHECKING:
    from tallystick.console.web.serve import serve

__all__ = ["serve"]

if not TYPE_CHECKING:
    __getattr__ = _lazy.attributes(__name__, {"serve": "tallystick.console.web.serve:serve"})
