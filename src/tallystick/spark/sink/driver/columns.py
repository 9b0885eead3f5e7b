"""Columns of the sink, by the rules of Spark's own; checked together with the options. Their Arrow types."""

from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
import pyspark
from pyspark.sql.pandas import types
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructField,
    StructType,
)

from tallystick.kernel.settings import BadConfig
from tallystick.schemas.model import SCHEMA_FORMATS
from tallystick.spark.options.format_options import FIELDS
from tallystick.spark.options.option_table import QueryType
from tallystick.spark.options.sink_options import SinkOptions, parse_sink_options
from tallystick.spark.runtime.versions import parse_version
from tallystick.spark.sink.task.attempt import ROW_COLUMN

_HEADER_TYPE: Final = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
_COLUMN_TYPES: Final[Mapping[str, tuple[type[DataType], ...]]] = {
    "key": (StringType, BinaryType),
    "value": (StringType, BinaryType),
    "topic": (StringType,),
    "partition": (IntegerType,),
    "headers": (ArrayType,),
}


def parse_checked_options(
    raw_options: Mapping[str, str], schema: StructType, query: QueryType, problems: Iterable[str] = ()
) -> SinkOptions:
    """Parse the options of a writer and check them and the schema. Raises: BadConfig with all problems."""
    problems = list(problems)
    options = None
    try:
        options = parse_sink_options(raw_options, query)
    except BadConfig as exc:
        problems += str(exc).splitlines()
    texts = {name.lower(): text for name, text in raw_options.items()}
    schema_columns = {name for name in FIELDS if texts.get(f"{name}.format", "").strip() in SCHEMA_FORMATS}
    if "table" in texts:
        problems += _find_row_problems(schema)
    if "table" not in texts or has_records(schema, texts.get("topic")):
        problems += _find_schema_problems(schema, texts.get("topic"), schema_columns)
    if problems or options is None:
        raise BadConfig("\n".join(problems))
    return options


def has_records(schema: StructType, topic: str | None) -> bool:
    """Return whether rows with a table are records as well: they have a column of records, or a topic."""
    return bool(topic) or any(field.name in _COLUMN_TYPES for field in schema.fields)


def _find_row_problems(schema: StructType) -> Iterator[str]:
    """Yield the problems of the column with the rows of a table."""
    columns = {field.name: field.dataType for field in schema.fields}
    data_type = columns.get(ROW_COLUMN)
    if data_type is None:
        yield f"column {ROW_COLUMN}: required by the option table, a struct of its columns, and missing"
    elif not isinstance(data_type, StructType):
        type_name = data_type.simpleString()
        yield f"column {ROW_COLUMN}: is {type_name}, and must be a struct of the table's columns"


def _find_schema_problems(
    schema: StructType, topic: str | None, schema_columns: Container[str]
) -> Iterator[str]:
    """Yield the problems of the columns, by the rules of Spark's own sink (KafkaWriter.validateQuery).

    Args:
        schema_columns: columns that are compared with a registered schema later.
    """
    columns: dict[str, Any] = {field.name: field.dataType for field in schema.fields}
    if "value" not in columns:
        yield "column value: required, and missing"
    if not topic and "topic" not in columns:
        yield "topic: required, as an option or as a column"
    for name, kinds in _COLUMN_TYPES.items():
        data_type = columns.get(name)
        if data_type is not None and not isinstance(data_type, kinds) and name not in schema_columns:
            type_names = " or ".join(kind.typeName() for kind in kinds)
            yield f"column {name}: is {data_type.simpleString()}, and must be {type_names}"
    headers = columns.get("headers")
    if isinstance(headers, ArrayType) and headers.elementType.simpleString() != _HEADER_TYPE.simpleString():
        yield f"column headers: is {headers.simpleString()}, and must be array<{_HEADER_TYPE.simpleString()}>"


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
