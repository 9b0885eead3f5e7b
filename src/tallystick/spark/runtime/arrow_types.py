"""Arrow types of Spark's types, whatever the version of PySpark."""

from typing import Any

import pyarrow as pa
import pyspark
from pyspark.sql.pandas import types
from pyspark.sql.types import DataType, StructType

from tallystick.spark.runtime.versions import parse_version

_ZONE_SINCE = (4, 2)


def to_arrow_type(kind: DataType) -> pa.DataType:
    """Return the Arrow type of a Spark type. Timestamps are in UTC, as PySpark before 4.2 always has them."""
    zone: dict[str, Any] = {"timezone": "UTC"} if parse_version(pyspark.__version__) >= _ZONE_SINCE else {}
    return types.to_arrow_type(kind, **zone)


def to_arrow_schema(kind: StructType) -> pa.Schema:
    """Return the Arrow schema of a Spark row."""
    fields = [
        pa.field(field.name, to_arrow_type(field.dataType), nullable=field.nullable) for field in kind.fields
    ]
    return pa.schema(fields)
