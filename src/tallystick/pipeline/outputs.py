"""Records of an output: the rows of its view for each topic sink, and the dead letters of its sources.

All sinks of an output form one query, so each row becomes one record for each topic sink. The dead letters of
a source belong to the first output by name that reads it, wherever it is in the file, and are decided with
the batch they came in.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import BinaryType, DataType, StringType

from tallystick.kernel.settings import BadConfig
from tallystick.pipeline.definition import (
    Definition,
    OnMalformed,
    OutputDefinition,
    SourceDefinition,
    TopicSink,
)
from tallystick.pipeline.encoding import encode_sinks
from tallystick.pipeline.views import malformed_view_name

_WORD: Final = re.compile(r"\w+")
# Spark's own parser of JSON gives no reason.
_REASON_COLUMNS: Final = ("reason",)
_HEADERS: Final = "array<struct<key:string,value:binary>>"


def dead_letter_sources(definition: Definition, output: OutputDefinition) -> tuple[SourceDefinition, ...]:
    """Return the sources whose malformed values are written with this output."""
    earlier = [other for other in definition.outputs if other.name < output.name]
    sources_of_earlier = {source.name for other in earlier for source in _sources_read_by(definition, other)}
    return tuple(
        source
        for source in _sources_read_by(definition, output)
        if source.malformed is OnMalformed.DEAD_LETTER and source.name not in sources_of_earlier
    )


def _sources_read_by(definition: Definition, output: OutputDefinition) -> Iterator[SourceDefinition]:
    """Find the sources of an output's view from the words of the SELECTs; a function may read all.

    A column named like a source is harmless: the dead letters carry their source with them.
    """
    words = {output.view.lower()}
    views = {name.lower() for name in definition.view_names()}
    for transform in reversed(definition.transforms):
        if transform.name.lower() in words:
            words |= views if transform.sql is None else set(_WORD.findall(transform.sql.lower()))
    return (source for source in definition.sources if source.name.lower() in words)


def build_records(spark: SparkSession, definition: Definition, output: OutputDefinition) -> DataFrame:
    """Build the records of an output's topic sinks: topic, key, value, in the sink's types.

    They have headers if there may be dead letters among them.

    Raises: BadConfig with Spark's error for a key or value expression, and its path.
    """
    rows = spark.table(output.view)
    sinks = encode_sinks(spark, definition, output)
    topics = [(i, sink) for i, sink in enumerate(sinks) if isinstance(sink, TopicSink)]
    dead = dead_letter_sources(definition, output)
    record_columns = [
        _build_record(rows, sink, f"outputs.{output.name}.sinks[{i}]", has_headers=bool(dead))
        for i, sink in topics
    ]
    records = _inline_records(rows, record_columns)
    for source in dead:
        records = records.unionByName(dead_letter_records(spark, source))
    return records


def _inline_records(rows: DataFrame, record_columns: Sequence[Column]) -> DataFrame:
    return rows.select(f.inline(f.array(*record_columns)))


def _build_record(rows: DataFrame, sink: TopicSink, path: str, *, has_headers: bool) -> Column:
    """Build a record as a struct; see `project_sinks` for what a column of headers costs."""
    row_as_json = f.to_json(f.struct("*"), {"ignoreNullFields": "false"}).cast("binary")
    key = f.lit(None).cast("binary") if sink.key is None else _cast_to_binary(rows, sink.key, f"{path}.key")
    value = row_as_json if sink.value is None else _cast_to_binary(rows, sink.value, f"{path}.value")
    headers = [f.array().cast(_HEADERS).alias("headers")] if has_headers else []
    return f.struct(f.lit(sink.topic).alias("topic"), key.alias("key"), value.alias("value"), *headers)


def _cast_to_binary(rows: DataFrame, expression: str, path: str) -> Column:
    """Cast a user's expression to binary. Raises: BadConfig."""
    try:
        data_type: DataType = rows.select(f.expr(expression)).schema.fields[0].dataType
    except PySparkException as error:
        raise BadConfig(f"{path}: {str(error).strip().splitlines()[0]}") from error
    if not isinstance(data_type, StringType | BinaryType):
        raise BadConfig(
            f"{path}: {expression!r} is {data_type.simpleString()}, and must be string or binary: cast it"
        )
    return f.expr(expression).cast("binary")


def dead_letter_records(spark: SparkSession, source: SourceDefinition) -> DataFrame:
    """Build records of a source's malformed values, unchanged, with their origin in the headers."""
    rows = spark.table(malformed_view_name(source))
    headers = [
        f.struct(
            f.lit(f"tallystick.{name}").alias("key"), f.col(name).cast("string").cast("binary").alias("value")
        )
        for name in ("topic", "partition", "offset", *_REASON_COLUMNS)
        if name in rows.columns
    ]
    return rows.select(
        f.lit(source.dead_letter).alias("topic"), "key", "value", f.array(*headers).alias("headers")
    )
