"""The Spark sink: `task` writes and prepares in Spark's tasks, `driver` begins, decides and recovers.

The rules are in `spark.protocol`, the storage of decisions in `spark.decisions`. A task needs nothing of the
driver but its lease.
"""

from typing import TYPE_CHECKING

from tallystick import _lazy

if TYPE_CHECKING:
    from tallystick.spark.decisions import staging
    from tallystick.spark.sink.driver import database_context, lake, lake_context, recovery, schemas, writers
    from tallystick.spark.sink.task import encoding, table_rows

__all__ = [
    "database_context",
    "encoding",
    "lake",
    "lake_context",
    "recovery",
    "schemas",
    "staging",
    "table_rows",
    "writers",
]

if not TYPE_CHECKING:
    # Each of them needs libraries that not every process with this package has or should load.
    __getattr__ = _lazy.attributes(
        __name__,
        {
            "database_context": "tallystick.spark.sink.driver.database_context",
            "encoding": "tallystick.spark.sink.task.encoding",
            "lake": "tallystick.spark.sink.driver.lake",
            "lake_context": "tallystick.spark.sink.driver.lake_context",
            "recovery": "tallystick.spark.sink.driver.recovery",
            "schemas": "tallystick.spark.sink.driver.schemas",
            "staging": "tallystick.spark.decisions.staging",
            "table_rows": "tallystick.spark.sink.task.table_rows",
            "writers": "tallystick.spark.sink.driver.writers",
        },
    )
