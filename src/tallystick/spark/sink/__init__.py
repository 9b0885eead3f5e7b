"""The Spark sink: Spark's writer hooks, a task's attempt, the driver's context, and recovery.

The rules are in `spark.protocol`, the storage of decisions in `spark.decisions`. Nothing here belongs to the
source.
"""

from typing import TYPE_CHECKING

from tallystick import _lazy

if TYPE_CHECKING:
    from tallystick.spark.sink import database_context, encoding, recovery, stores, table_rows, writers

__all__ = ["database_context", "encoding", "recovery", "stores", "table_rows", "writers"]

if not TYPE_CHECKING:
    # Each of them needs libraries that not every process with this package has or should load.
    __getattr__ = _lazy.attributes(__name__, {name: f"{__name__}.{name}" for name in __all__})
