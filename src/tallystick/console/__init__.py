"""The operators' console: one picture of transactions in Kafka, the databases that decide them, and Spark.

    model/          pure: a snapshot of cluster, stores and decision logs, and each transaction assessed
    collect/        reads snapshots: one collector for all pages, with a limit to what it costs the cluster
    lookup/         reads what one page asks for: a history, the records of a partition
    actions/        what may be done from a page: dry runs (pure), one attempt, the audit log
    views/          pure: a view model for each page, which the page, its JSON form and the terminal share
    web/            Starlette application, templates and vendored scripts
    terminal/       the same view models in a terminal: `tallystick top`

It works with any Kafka cluster and imports no broker. Verdicts come from `admin.txn.hanging`,
`dualwrite.rules.recovery` and `spark.protocol`; nothing here decides a second time. docs/adr/0058.
"""

from typing import TYPE_CHECKING

from tallystick import _lazy

if TYPE_CHECKING:
    from tallystick.console.actions.service import ActionService
    from tallystick.console.collect.collector import Collector
    from tallystick.console.lookup.lookups import ClusterLookups
    from tallystick.console.terminal.app import TopServices
    from tallystick.console.terminal.run import find_console, hold_log, run_top
    from tallystick.console.web.serve import ConsoleThread, Services, open_feed, serve

__all__ = [
    "ActionService",
    "ClusterLookups",
    "Collector",
    "ConsoleThread",
    "Services",
    "TopServices",
    "find_console",
    "hold_log",
    "open_feed",
    "run_top",
    "serve",
]

if not TYPE_CHECKING:  # loaded once the console listens: its address does not wait for them
    __getattr__ = _lazy.attributes(
        __name__,
        {
            "ActionService": "tallystick.console.actions.service:ActionService",
            "Services": "tallystick.console.web.serve:Services",
            "ClusterLookups": "tallystick.console.lookup.lookups:ClusterLookups",
            "Collector": "tallystick.console.collect.collector:Collector",
            "ConsoleThread": "tallystick.console.web.serve:ConsoleThread",
            "open_feed": "tallystick.console.web.serve:open_feed",
            "TopServices": "tallystick.console.terminal.app:TopServices",
            "find_console": "tallystick.console.terminal.run:find_console",
            "hold_log": "tallystick.console.terminal.run:hold_log",
            "run_top": "tallystick.console.terminal.run:run_top",
            "serve": "tallystick.console.web.serve:serve",
        },
    )
