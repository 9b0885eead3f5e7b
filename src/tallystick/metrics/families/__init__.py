"""The table of metrics: every family once, by the program that exports it.

    broker        a broker, by `metrics.listener`
    console       the console, of any cluster
    applications  `ClientMetrics`, for clients and dual writes, and `QueryMetrics`, for queries of Spark

Exporters read their families here, and so do OpenTelemetry's instruments where they show the same; tests hold
the reference pages, the alerts and the dashboard against them.
"""
