"""Schemas of a sink's keys and values.

The driver finds the writer's schema before a batch begins, and compares the columns with it, so that nothing
is written if they do not fit. Tasks get it with the writer, and ask no registry.

A query writes the version of a subject that it began with, noted in its checkpoint, until its options name
another [SPK-30].
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyspark
from pyspark.sql.pandas import functions
from pyspark.sql.types import DataType, StructType

from tallystick.kernel.settings import BadConfig
from tallystick.kernel.value import Value
from tallystick.schemas.columns import (
    ColumnEncoder,
    build_encoder,
    build_schema_text,
    find_record_name,
    find_writing_problems,
)
from tallystick.schemas.model import (
    ColumnFormat,
    FieldFormat,
    ResolvedSchema,
    SchemaError,
    UnknownSchema,
    build_record_name,
    fingerprint,
    name_message,
)
from tallystick.schemas.registry import Registry, get_registry
from tallystick.spark.checkpoint import SchemaNote, keep_schema
from tallystick.spark.options.format_options import FormatOptions, parse_format_options
from tallystick.spark.options.sink_options import SinkOptions
from tallystick.spark.runtime.versions import SparkFeature, check_feature
from tallystick.spark.sink.driver.columns import to_arrow_type
from tallystick.spark.sink.task.encoding import RecordEncoding, encode_column

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SchemaPlace(Value, kw_only=True):
    """The place of a sink's schemas.

    topic       None if rows name their topics
    checkpoint  the query's checkpoint, if known
    create      the folder is the checkpoint, even if the query has not begun
    """

    formats: FormatOptions
    topic: str | None = None
    checkpoint: str | None = None
    create: bool = False


def resolve_encoding(options: SinkOptions, columns: StructType) -> RecordEncoding | None:
    """Find the writer's schemas, on the driver; None if keys and values are strings or bytes.

    Raises: BadConfig with all problems at once; BadCheckpoint; MissingLibrary.
    """
    place = SchemaPlace(formats=options.formats, topic=options.topic, checkpoint=options.checkpoint)
    types = {field.name: field.dataType for field in columns.fields}
    problems: list[str] = []
    writers: dict[str, ResolvedSchema] = {}
    for each in options.formats.fields:
        if each.has_schema and each.field in types:
            try:
                writers[each.field] = resolve_writer(place, each, types[each.field])
            except (BadConfig, SchemaError) as exc:
                problems += [f"{each.field}.format={each.format}: {line}" for line in str(exc).splitlines()]
    if problems:
        raise BadConfig("\n".join(problems))
    return RecordEncoding(writers=writers) if writers else None


def resolve_writer(place: SchemaPlace, field: FieldFormat, data_type: DataType) -> ResolvedSchema:
    """Find the schema that a column is written with, and compare the column with it.

    Raises: SchemaError; BadConfig with all that does not fit; BadCheckpoint; MissingLibrary.
    """
    column_type = to_arrow_type(data_type)
    writer = _find_writer(place, field, column_type)
    problems = find_writing_problems(writer, column_type, field.field)
    if problems:
        raise BadConfig("\n".join(f"schema {writer.schema_id}: {problem}" for problem in problems))
    build_encoder(writer)
    return writer


def _find_writer(place: SchemaPlace, field: FieldFormat, column_type: pa.DataType | None) -> ResolvedSchema:
    registry = get_registry(place.formats.registry)
    if field.schema is not None:
        record_name = field.message
        if field.format is not ColumnFormat.PROTOBUF:
            record_name = find_record_name(ResolvedSchema(field.schema, format=field.format))
        subject = field.find_subject(place.topic, record_name)
        find = registry.register if place.formats.auto_register else registry.look_up
        return name_message(find(subject, field.schema, field.format), field)
    subject = field.find_subject(place.topic, field.message)

    def find_id() -> int:
        try:
            return require_id(registry.find_latest(subject))
        except UnknownSchema as exc:
            if column_type is None:
                raise
            name = build_record_name(place.topic or subject, field.field)
            text = build_schema_text(field.format, column_type, name)
            if place.formats.auto_register:
                return require_id(registry.register(subject, text, field.format))
            raise SchemaError(
                f"{exc}. Register a schema, or set auto.register.schemas to true. One for these columns is "
                f"{text}"
            ) from exc

    def settle(note: SchemaNote | None) -> SchemaNote:
        schema = registry.find_schema(find_id()) if note is None else _find_noted(registry, note)
        return SchemaNote(
            subject=subject,
            schema_id=require_id(schema),
            format=schema.format,
            fingerprint=fingerprint(schema),
            registry=registry.url,
        )

    note = keep_schema(place.checkpoint, subject, settle, create=place.create)
    return name_message(registry.find_schema(note.schema_id), field)


def _find_noted(registry: Registry, note: SchemaNote) -> ResolvedSchema:
    """Find the schema that a query began with in its registry, which may be another one by now.

    An id means something in one registry only, so the schema itself is compared. Raises: SchemaError.
    """
    try:
        schema = registry.find_schema(note.schema_id) if note.fingerprint else None
    except UnknownSchema:
        schema = None
    if schema is not None and fingerprint(schema) == note.fingerprint:
        return schema
    try:
        for version in registry.find_versions(note.subject):
            # A note of an earlier version has the id alone: it counts if it is one of the subject's.
            if (
                fingerprint(version) == note.fingerprint
                if note.fingerprint
                else version.schema_id == note.schema_id
            ):
                return version
    except UnknownSchema:
        pass  # the subject is not there
    where = f" in {note.registry}" if note.registry else ""
    raise SchemaError(
        f"the query began with schema {note.schema_id} of subject {note.subject!r}{where}, and the registry "
        f"at {registry.url} does not have that schema under this subject. Nothing was begun: a repeated "
        "batch would be written with another one. Register it there, or use the registry that the query had. "
        "To go on with another schema, set value.schema (or key.schema)"
    )


def require_id(schema: ResolvedSchema) -> int:
    """Return the id of a registered schema."""
    if schema.schema_id is None:
        raise SchemaError("the registry answered without an id")
    return schema.schema_id


def build_serializer(writer: ResolvedSchema, field: str) -> Callable[..., Any]:
    """Return a function of a column, for Spark's expressions, that returns the encoded column."""
    encoders: list[ColumnEncoder] = []

    def serialize(column: pa.Array) -> pa.Array:
        if not encoders:  # in the worker: the function is pickled
            encoders.append(build_encoder(writer))
        return encode_column(encoders[0], column, field)

    serialize.__annotations__ = {"column": pa.Array, "return": pa.Array}
    function: Callable[..., Any] = functions.arrow_udf(serialize, "binary")  # type: ignore[call-overload]
    return function


def register_serializer(
    spark: "SparkSession", name: str, options: Mapping[str, str], topic: str, field: str = "value"
) -> None:
    """Register a SQL function that encodes a column, for the expressions of `to_topic`.

        options = {"schema.registry.url": url, "value.format": "avro"}
        register_serializer(spark, "order_value", options, topic="orders")
        to_topic("orders", value="order_value(struct(id, cents))")

    The schema is found now, and written by every query that uses the function. Columns are compared with it
    when their rows are encoded.

    Args:
        options: those of the sink that concern formats; others are ignored.
        topic: the topic that the subject is named after.
        field: "key" or "value".
    Raises: BadConfig with all problems at once; SchemaError; MissingLibrary; UnsupportedSpark.
    """
    check_feature(SparkFeature.REGISTER_SERIALIZER, pyspark.__version__)
    problems: list[str] = []
    formats = parse_format_options({name.lower(): text for name, text in options.items()}, problems)
    format_of_field = formats.key if field == "key" else formats.value
    if not format_of_field.has_schema:
        problems.append(f"{field}.format: must be avro, json or protobuf")
    if problems:
        raise BadConfig("\n".join(problems))
    writer = _find_writer(SchemaPlace(formats=formats, topic=topic), format_of_field, None)
    spark.udf.register(name, build_serializer(writer, field))
