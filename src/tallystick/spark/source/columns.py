"""Spark schema of the source: the columns of Spark's own Kafka source.

The Arrow schema is apart, in `rows`: Spark asks for the schema in a process that reads nothing.
"""

from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

_COLUMNS: Final = (
    StructField("key", BinaryType()),
    StructField("value", BinaryType()),
    StructField("topic", StringType()),
    StructField("partition", IntegerType()),
    StructField("offset", LongType()),
    StructField("timestamp", TimestampType()),
    StructField("timestampType", IntegerType()),
)
_HEADER_TYPE: Final = StructType([StructField("key", StringType()), StructField("value", BinaryType())])


def spark_schema(*, headers: bool) -> StructType:
    """Return the schema. Source: Spark 4.3 KafkaRecordToRowConverter.kafkaSchema."""
    last = [StructField("headers", ArrayType(_HEADER_TYPE))] if headers else []
    return StructType([*_COLUMNS, *last])
