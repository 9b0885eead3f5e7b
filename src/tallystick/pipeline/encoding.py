"""Topic sinks whose keys and values are encoded with a schema registry's schemas.

A sink's expressions are wrapped in SQL functions that encode their results, so that records, dead letters and
tables go on together as before. The schemas are found before the query starts.
"""

from collections.abc import Iterator

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tallystick.kernel.settings import BadConfig
from tallystick.kernel.value import Value, replace
from tallystick.pipeline.clients import build_registry_options
from tallystick.pipeline.definition import (
    Definition,
    OutputDefinition,
    SinkDefinition,
    TopicSink,
    checkpoint_location,
)
from tallystick.schemas.model import FieldFormat, SchemaError
from tallystick.spark.options.format_options import parse_format_options
from tallystick.spark.options.sinks import quote_column
from tallystick.spark.sink.driver.schemas import SchemaPlace, build_serializer, resolve_writer


def encode_sinks(
    spark: SparkSession, definition: Definition, output: OutputDefinition
) -> tuple[SinkDefinition, ...]:
    """Return the sinks of an output, with expressions that give strings or bytes.

    Raises: BadConfig if a schema cannot be had, or the rows do not fit it; MissingLibrary.
    """
    return tuple(
        _encode_sink(spark, definition, output, number)
        if isinstance(sink, TopicSink) and sink.has_schemas
        else sink
        for number, sink in enumerate(output.sinks)
    )


class _Expression(Value):
    """An expression to encode, the function that does it, and the path of its key in the file."""

    sql: str
    function_name: str
    path: str


def _encode_sink(
    spark: SparkSession, definition: Definition, output: OutputDefinition, number: int
) -> SinkDefinition:
    sink = output.sinks[number]
    if not isinstance(sink, TopicSink):
        return sink
    rows = spark.table(output.view)
    whole_row = f"struct({', '.join(map(quote_column, rows.columns))})"
    expressions = {"key": sink.key, "value": sink.value}
    for field in _list_fields(sink):
        expression = _Expression(
            sql=expressions[field.field] or whole_row,
            function_name=f"tallystick_{output.name}_{number}_{field.field}",
            path=f"outputs.{output.name}.sinks[{number}].{field.field}",
        )
        _register(rows, _build_place(definition, output, sink), field, expression)
        expressions[field.field] = f"{expression.function_name}({expression.sql})"
    return replace(sink, key=expressions["key"], value=expressions["value"])


def _list_fields(sink: TopicSink) -> Iterator[FieldFormat]:
    for field, topic_format, schema, message in (
        ("key", sink.key_format, sink.key_schema, sink.key_message),
        ("value", sink.format, sink.schema, sink.message),
    ):
        if (column_format := topic_format.column_format) is not None:
            yield FieldFormat(field=field, format=column_format, schema=schema, message=message)


def _build_place(definition: Definition, output: OutputDefinition, sink: TopicSink) -> SchemaPlace:
    problems: list[str] = []
    options = {**build_registry_options(definition.schema_registry), "value.format": "avro"}
    formats = parse_format_options(options, problems)
    if problems:
        raise BadConfig("\n".join(problems))
    checkpoint = checkpoint_location(definition, output)
    return SchemaPlace(formats=formats, topic=sink.topic, checkpoint=checkpoint, create=True)


def _register(rows: DataFrame, place: SchemaPlace, field: FieldFormat, expression: _Expression) -> None:
    """Find the schema of an expression, and register the function. Raises: BadConfig; MissingLibrary."""
    try:
        data_type = rows.selectExpr(expression.sql).schema.fields[0].dataType
        writer = resolve_writer(place, field, data_type)
    except PySparkException as error:
        raise BadConfig(f"{expression.path}: {str(error).strip().splitlines()[0]}") from error
    except (BadConfig, SchemaError) as error:
        lines = str(error).splitlines()
        raise BadConfig("\n".join(f"{expression.path}: {line}" for line in lines)) from error
    rows.sparkSession.udf.register(expression.function_name, build_serializer(writer, field.field))
