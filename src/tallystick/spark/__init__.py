"""Spark source and sink: `register(spark)`, then `format("tallystick")` reads and writes batches and streams.

It needs PySpark 4.2 (`pip install '.[spark]'`), or 3.5 for `foreach_batch` alone, and no jar.
docs/spark.md has the options, and what works in which version.
"""

from typing import TYPE_CHECKING

from tallystick import _lazy

if TYPE_CHECKING:
    from tallystick.spark.data_source import KafkaDataSource
    from tallystick.spark.options.sinks import to_table, to_topic
    from tallystick.spark.query_metrics import QueryMetrics
    from tallystick.spark.runtime.versions import UnsupportedSpark
    from tallystick.spark.session import register, spark_session
    from tallystick.spark.sink.driver.foreach_batch import foreach_batch
    from tallystick.spark.sink.driver.recovery import resolve, resolve_rows
    from tallystick.spark.sink.driver.schemas import register_serializer

__all__ = [
    "KafkaDataSource",
    "QueryMetrics",
    "UnsupportedSpark",
    "foreach_batch",
    "register",
    "register_serializer",
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
            "UnsupportedSpark": "tallystick.spark.runtime.versions:UnsupportedSpark",
            "QueryMetrics": "tallystick.spark.query_metrics:QueryMetrics",
            "foreach_batch": "tallystick.spark.sink.driver.foreach_batch:foreach_batch",
            "register": "tallystick.spark.session:register",
            "register_serializer": "tallystick.spark.sink.driver.schemas:register_serializer",
            "resolve": "tallystick.spark.sink.driver.recovery:resolve",
            "resolve_rows": "tallystick.spark.sink.driver.recovery:resolve_rows",
            "spark_session": "tallystick.spark.session:spark_session",
            "to_table": "tallystick.spark.options.sinks:to_table",
            "to_topic": "tallystick.spark.options.sinks:to_topic",
        },
    )
