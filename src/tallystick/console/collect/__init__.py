"""Reads what the console shows: one collector for all pages and streams, with a limit to what it costs.

    config              what to read, how often, for how long
    collector           runs the readings, keeps what failed, publishes snapshots
    cluster_reader      brokers, features, topics and offsets         transaction_reader  open transactions
    store_reader        rows of one store, in a thread of its own     store_thread
    sql_rows            SQL, Django's tables, and decisions           rocksdb_rows, zookeeper_rows, lake_rows
    decision_reader     decision topics                               group_reader        groups and their lag
    record_counter      fetches batches in order to count records
    failures, lag_counts                                              pure rules

It imports no broker, no command line, and nothing of PySpark.
"""

from typing import TYPE_CHECKING

from tallystick import _lazy

if TYPE_CHECKING:
    from tallystick.console.collect.lake_rows import open_lake_rows
    from tallystick.console.collect.rocksdb_rows import open_rocksdb_rows
    from tallystick.console.collect.sql_rows import open_sql_rows
    from tallystick.console.collect.zookeeper_rows import open_zookeeper_rows

__all__ = ["open_lake_rows", "open_rocksdb_rows", "open_sql_rows", "open_zookeeper_rows"]

if not TYPE_CHECKING:  # each needs a library of its own
    __getattr__ = _lazy.attributes(
        __name__,
        {
            "open_lake_rows": "tallystick.console.collect.lake_rows:open_lake_rows",
            "open_rocksdb_rows": "tallystick.console.collect.rocksdb_rows:open_rocksdb_rows",
            "open_sql_rows": "tallystick.console.collect.sql_rows:open_sql_rows",
            "open_zookeeper_rows": "tallystick.console.collect.zookeeper_rows:open_zookeeper_rows",
        },
    )
