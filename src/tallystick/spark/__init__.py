"""Spark source and sink: `register(spark)`, then `format("tallystick")` reads and writes batches and streams.

It needs PySpark 4.3 or later (`pip install tallystick[spark]`), and no jar. docs/spark.md has the options.
"""

from typing import TYPE_CHECKING

from tallystick import _lazy

if TYPE_CHECKING:
    from tallystick.spark.data_source import KafkaDataSource, register
    from tallystick.spark.options.sinks import to_table, to_topic
    from tallystick.spark.session import spark_session
    from tallystick.spark.sink.foreach_batch import foreach_batch
    from tallystick.spark.sink.recovery import resolve
    from tallystick.spark.sink.stores import resolve_rows

__all__ = [
    "KafkaDataSource",
    "foreach_batch",
    "register",
    "resolve",
    "resolve_rows",
    "spark_session",
    "to_table",
    "to_topic",
]

if not TYPE_CHECKING:
    __getattr__ = _lazy.attributes(
        __name__,
        {
            "KafkaDataSource": "tallystick.spark.data_source:KafkaDataSource",
            "foreach_batch": "tallystick.spark.sink.foreach_batch:foreach_batch",
            "register": "tallystick.spark.data_source:register",
            "resolve": "tallystick.spark.sink.recovery:resolve",
            "resolve_rows": "tallystick.spark.sink.stores:resolve_rows",
            "spark_session": "tallystick.spark.session:spark_session",
            "to_table": "tallystick.spark.options.sinks:to_table",
            "to_topic": "tallystick.spark.options.sinks:to_topic",
        },
    )
