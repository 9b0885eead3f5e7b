"""Spark SQL views of a pipeline: its sources, lookups and transforms.

A source is a view with the columns of its format and the origin of each row: `_key`, `_topic`, `_partition`,
`_build_offset`, `_timestamp`. A value that does not fit its schema never becomes a row of nulls: it stops the
query, or becomes a row of the view `NAME_malformed`, for the dead-letter topic.
"""

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from tallystick.kernel.settings import BadConfig
from tallystick.pipeline.clients import build_source_options
from tallystick.pipeline.definition import (
    Definition,
    Lookup,
    OnMalformed,
    SourceDefinition,
    Transform,
    ValueFormat,
)
from tallystick.spark.source.decoding import MALFORMED_COLUMN

_ORIGIN_COLUMNS: Final = ("key", "topic", "partition", "offset", "timestamp")
_PARSED_COLUMN: Final = "_parsed"
_MALFORMED_COLUMN: Final = "_malformed"
_JSON_OPTIONS: Final = {"allowSingleQuotes": "false"}
_VALUE_SHOWN_MAX: Final = 200


def malformed_view_name(source: SourceDefinition) -> str:
    """Return the name of the view of malformed values, which has the record's columns unchanged."""
    return f"{source.name}_malformed"


def declare_views(
    spark: SparkSession,
    definition: Definition,
    client: Mapping[str, str],
    more: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Declare every view without reading records.

    Args:
        client: consumer settings, including `bootstrap.servers`.
        more: further options for every source.
    Raises: BadConfig with Spark's error for a schema or a SELECT, and the path of its key.
    """
    for source in definition.sources:
        options = build_source_options(source, client, definition.schema_registry)
        _declare_source(spark, source, {**options, **more})
    for lookup in definition.lookups:
        _declare(lookup.name, f"lookups.{lookup.name}", partial(_read_lookup, spark, lookup))
    for i, transform in enumerate(definition.transforms):
        _declare_transform(spark, definition, i, transform)


def _declare_transform(spark: SparkSession, definition: Definition, i: int, transform: Transform) -> None:
    match transform.sql, transform.function:
        case str(sql), None:
            _declare(transform.name, f"transforms[{i}].sql", partial(spark.sql, sql))
        case None, function if function is not None:
            views = {name: spark.table(name) for name in definition.view_names(i)}
            _declare(transform.name, f"transforms[{i}].function", partial(function, views))
        case _:
            raise BadConfig(f"transforms[{i}]: {transform.name} needs either sql or a function, and not both")


def _declare(name: str, path: str, make: Callable[[], DataFrame]) -> None:
    try:
        make().createOrReplaceTempView(name)
    except (PySparkException, Py4JJavaError) as error:
        # PySpark does not convert some of Spark's errors, such as the one for an unknown format.
        message = str(error.java_exception.getMessage() if isinstance(error, Py4JJavaError) else error)
        raise BadConfig(f"{path}: {message.strip().splitlines()[0]}") from error


def _read_lookup(spark: SparkSession, lookup: Lookup) -> DataFrame:
    reader = spark.read.format(lookup.format).options(**lookup.options)
    if lookup.schema is not None:
        reader = reader.schema(lookup.schema)
    return reader.load(lookup.path) if lookup.path is not None else reader.load()


def _declare_source(spark: SparkSession, source: SourceDefinition, options: Mapping[str, str]) -> None:
    reader = spark.readStream.format("tallystick").options(**options)
    path = f"sources.{source.name}"
    try:
        records = reader.load()
    except PySparkException as error:  # the schema of the values cannot be had
        raise BadConfig(f"{path}: {_find_cause(error)}") from error
    _declare(source.name, path, lambda: _add_watermark(_source_rows(records, source), source))
    if source.malformed is OnMalformed.DEAD_LETTER and source.format.column_format is not None:
        _select_undecoded(records).createOrReplaceTempView(malformed_view_name(source))
    elif source.malformed is OnMalformed.DEAD_LETTER:
        bad = (
            _parse_and_check(records, source)
            .where(f.col(_MALFORMED_COLUMN))
            .select("value", *_ORIGIN_COLUMNS)
        )
        bad.createOrReplaceTempView(malformed_view_name(source))


def _source_rows(records: DataFrame, source: SourceDefinition) -> DataFrame:
    match source.format:
        case ValueFormat.JSON:
            fitting = _parse_and_check(records, source).where(_fits_condition(source))
            return fitting.select(f"{_PARSED_COLUMN}.*", *_origin_columns()).drop(_MALFORMED_COLUMN)
        case ValueFormat.STRING:  # invalid UTF-8 stops the query
            text = f.validate_utf8(f.col("value").cast("string"))
            return records.select(text.alias("value"), *_origin_columns())
        case ValueFormat.BYTES:
            return records.select("value", *_origin_columns())
        case ValueFormat.AVRO | ValueFormat.JSON_SCHEMA | ValueFormat.PROTOBUF:
            is_record = isinstance(records.schema["value"].dataType, StructType)
            fitting = records.where(_decoded_condition(source))
            return fitting.select("value.*" if is_record else "value", *_origin_columns())


def _decoded_condition(source: SourceDefinition) -> Column:
    """Build the condition of a row with a value; the source itself stops at one that cannot be decoded."""
    if source.malformed is OnMalformed.DEAD_LETTER:
        return f.col("value").isNotNull()
    message = f.concat(
        f.lit(f"source {source.name}: the record at "),
        f.concat_ws("-", "topic", "partition"),
        f.lit(" offset "),
        f.col("offset").cast("string"),
        f.lit(" has no value"),
    )
    return f.when(f.col("value").isNull(), f.raise_error(message).cast("boolean")).otherwise(f.expr("true"))


def _select_undecoded(records: DataFrame) -> DataFrame:
    """Select the records that have no value, with the bytes that they came with and the reason."""
    reason = f.coalesce(f.col(f"{MALFORMED_COLUMN}.reason"), f.lit("value: there is none"))
    return records.where(f.col("value").isNull()).select(
        f.col(f"{MALFORMED_COLUMN}.value").alias("value"), *_ORIGIN_COLUMNS, reason.alias("reason")
    )


def _find_cause(error: PySparkException) -> str:
    """Return the problem that the source reported, without the trace of the process that asked it."""
    lines = str(error).strip().splitlines()
    own_lines = [line.partition(": ")[2] for line in lines if line.startswith("tallystick.")]
    return own_lines[-1] if own_lines else lines[0]


def _origin_columns() -> list[Column]:
    return [f.col(name).alias(f"_{name}") for name in _ORIGIN_COLUMNS]


def _parse_and_check(records: DataFrame, source: SourceDefinition) -> DataFrame:
    """Add columns with the parsed JSON and with whether it is malformed.

    A null value is not a JSON object, and Spark parses invalid UTF-8 leniently, so both count as malformed.
    Spark stops after the first value. What follows it shows in the length of an array around the text: a
    text that closes this array itself cannot be one value in the one, and the first of two in the other.
    """
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _MALFORMED_COLUMN, **_JSON_OPTIONS}
    text = f.col("value").cast("string")
    parsed = f.from_json(text, f"{source.schema}, {_MALFORMED_COLUMN} STRING", options)
    does_not_fit = (
        f.col(_PARSED_COLUMN).isNull()
        | f.col(f"{_PARSED_COLUMN}.{_MALFORMED_COLUMN}").isNotNull()
        | ~f.is_valid_utf8(text)
        | ~_count_items(f.concat(f.lit("["), text, f.lit("]"))).eqNullSafe(1)
        | ~_count_items(f.concat(f.lit("["), text, f.lit(", 0]"))).eqNullSafe(2)
    )
    return records.withColumn(_PARSED_COLUMN, parsed).withColumn(_MALFORMED_COLUMN, does_not_fit)


def _count_items(array: Column) -> Column:
    """Count the items of a JSON array, by the parser that reads the values; null for another text."""
    return f.size(f.from_json(array, "array<string>", _JSON_OPTIONS))


def _fits_condition(source: SourceDefinition) -> Column:
    """Build the condition of a valid row. It raises the error itself: Spark prunes unused columns."""
    if source.malformed is OnMalformed.DEAD_LETTER:
        return ~f.col(_MALFORMED_COLUMN)
    text = f.left(f.col("value").cast("string"), f.lit(_VALUE_SHOWN_MAX))
    message = f.concat(
        f.lit(f"source {source.name}: the value at "),
        f.concat_ws("-", "topic", "partition"),
        f.lit(" offset "),
        f.col("offset").cast("string"),
        f.lit(" does not fit the schema: "),
        f.coalesce(text, f.lit("no value")),
    )
    return f.when(f.col(_MALFORMED_COLUMN), f.raise_error(message).cast("boolean")).otherwise(f.expr("true"))


def _add_watermark(rows: DataFrame, source: SourceDefinition) -> DataFrame:
    if source.watermark is None:
        return rows
    return rows.withWatermark(source.watermark.column, source.watermark.delay)
