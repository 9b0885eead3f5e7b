"""Decoding of a source's keys and values, column by column.

The driver finds the reader's schemas when Spark asks for the columns, and again when the query starts; they
must be the same, since the plan was made for them. Tasks get them with the reader, and look up the writers'
schemas by id.

A task cannot write to the sink's transaction: a value that it cannot decode becomes a null, and the column
`malformed` has the record's bytes and the reason, for the query to write where it wants.
"""

from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import DataType, StructType

from tallystick.kernel.errors import TallystickError
from tallystick.kernel.settings import BadConfig
from tallystick.kernel.value import Value
from tallystick.schemas.column_codec import DecodedColumn
from tallystick.schemas.columns import build_decoder
from tallystick.schemas.model import (
    ColumnFormat,
    FieldFormat,
    ResolvedSchema,
    SchemaError,
    name_message,
)
from tallystick.schemas.registry import get_registry
from tallystick.spark.options.format_options import FormatOptions
from tallystick.spark.options.source_options import Assigned, SourceOptions, Subscribed
from tallystick.spark.source.timestamps import drop_unfit_times, find_unfit_times

MALFORMED_COLUMN: Final = "malformed"
_MALFORMED_TYPE: Final = pa.struct([("key", pa.binary()), ("value", pa.binary()), ("reason", pa.string())])


class RecordUndecodable(TallystickError):
    """A record cannot be decoded, and onMalformed is fail. Attributes: topic, partition, offset, reason."""

    def __init__(self, topic: str, partition: int, offset: int, reason: str) -> None:
        super().__init__(topic, partition, offset, reason)
        self.topic, self.partition, self.offset, self.reason = topic, partition, offset, reason

    def __str__(self) -> str:
        return (
            f"the record at {self.topic}-{self.partition} offset {self.offset} cannot be decoded: "
            f"{self.reason}. Nothing of this batch was decided. To go on without such records, set "
            "onMalformed to null"
        )


class RecordDecoding(Value, kw_only=True):
    """The formats and schemas by which a query's tasks decode records.

    readers  the reader's schema of each field that has one
    """

    formats: FormatOptions
    readers: Mapping[str, ResolvedSchema]


def resolve_decoding(options: SourceOptions) -> RecordDecoding | None:
    """Find the reader's schemas, on the driver; None if there is nothing to decode. Raises: BadConfig."""
    formats = options.formats
    if not formats.changes_columns:
        return None
    problems: list[str] = []
    readers: dict[str, ResolvedSchema] = {}
    for each in formats.fields:
        try:
            if each.has_schema:
                readers[each.field] = _resolve_reader(each, options)
        except SchemaError as exc:
            problems.append(f"{each.field}.format={each.format}: {exc}")
    if problems:
        raise BadConfig("\n".join(problems))
    return RecordDecoding(formats=formats, readers=readers)


def resolve_column_types(options: SourceOptions) -> dict[str, DataType]:
    """Return the types of the columns that decoding changes or adds. Raises: BadConfig; MissingLibrary."""
    decoding = resolve_decoding(options)
    return {} if decoding is None else _build_column_types(decoding)


def resolve_checked_decoding(options: SourceOptions, columns: StructType) -> RecordDecoding | None:
    """Find the reader's schemas of a query that starts, and compare them with those it was planned with.

    Args:
        columns: those that Spark was told.
    Raises: BadConfig if a subject has another version by now, with other columns; MissingLibrary.
    """
    decoding = resolve_decoding(options)
    if decoding is not None:
        spark_types = {field.name: field.dataType for field in columns.fields}
        for name, each in _build_column_types(decoding).items():
            if spark_types.get(name) != each:
                raise BadConfig(
                    f"column {name}: the query was planned with {spark_types.get(name)}, and the subject's "
                    f"latest schema is {each} by now. Nothing was read. Load the source again, or set "
                    f"{name}.schema"
                )
    return decoding


def _build_column_types(decoding: RecordDecoding) -> dict[str, DataType]:
    return {name: from_arrow_type(each) for name, each in RecordDecoder(decoding).types.items()}


def _resolve_reader(field: FieldFormat, options: SourceOptions) -> ResolvedSchema:
    registry = get_registry(options.formats.registry)
    if field.schema is not None and field.format is not ColumnFormat.PROTOBUF:
        reader = ResolvedSchema(field.schema, format=field.format)
    else:
        subject = field.find_subject(_find_only_topic(options), field.message)
        # The text of a .proto file is no use without a compiler: the registry has its descriptor.
        reader = (
            registry.find_latest(subject)
            if field.schema is None
            else registry.look_up(subject, field.schema, field.format)
        )
    reader = name_message(reader, field)
    build_decoder(reader, registry.find_schema)
    return reader


def _find_only_topic(options: SourceOptions) -> str | None:
    match options.topics:
        case Subscribed(topics=(topic,)):
            return topic
        case Assigned(partitions=partitions) if len({at.topic for at in partitions}) == 1:
            return partitions[0].topic
    return None


class RecordDecoder:
    """Decodes the batches of one task."""

    def __init__(self, decoding: RecordDecoding) -> None:
        """Parse the reader's schemas, without asking a registry. Raises: SchemaError; MissingLibrary."""
        self._decoding = decoding
        formats = decoding.formats
        self._decoders: dict[str, Any] = {
            name: build_decoder(
                reader, lambda schema_id: get_registry(formats.registry).find_schema(schema_id)
            )
            for name, reader in decoding.readers.items()
        }
        self._decoders |= {
            each.field: TextDecoder() for each in formats.fields if each.format is ColumnFormat.STRING
        }
        self.types = {name: decoder.type for name, decoder in self._decoders.items()}
        if formats.has_malformed_column:
            self.types[MALFORMED_COLUMN] = _MALFORMED_TYPE

    def decode(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """Decode a consumer's batch. Raises: RecordUndecodable; RegistryUnavailable."""
        columns = {name: records.column(name) for name in records.schema.names}
        reasons = find_unfit_times(columns["timestamp"])
        if reasons:
            columns["timestamp"] = drop_unfit_times(columns["timestamp"], reasons)
        for name, decoder in self._decoders.items():
            result: DecodedColumn = decoder.decode(records.column(name))
            columns[name] = result.array
            for row, reason in result.failures.items():
                reasons[row] = "; ".join(filter(None, (reasons.get(row), f"{name}: {reason}")))
        if self._decoding.formats.has_malformed_column:
            columns[MALFORMED_COLUMN] = _build_malformed_column(records, reasons)
        elif reasons:
            raise build_undecodable(records, reasons)
        return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def build_undecodable(records: pa.RecordBatch, reasons: Mapping[int, str]) -> RecordUndecodable:
    """Return the error about the first of these rows."""
    row = min(reasons)
    topic, partition, offset = (
        records.column(name)[row].as_py() for name in ("topic", "partition", "offset")
    )
    return RecordUndecodable(topic, partition, offset, reasons[row])


class TextDecoder:
    """Decodes UTF-8."""

    type = pa.string()

    def decode(self, column: pa.Array) -> DecodedColumn:
        """Decode a column of bytes."""
        try:
            return DecodedColumn(column.cast(pa.string()), {})
        except pa.ArrowInvalid:  # a row is not UTF-8
            texts: list[str | None] = []
            failures: dict[int, str] = {}
            for row, data in enumerate(column.to_pylist()):
                try:
                    texts.append(None if data is None else data.decode())
                except UnicodeDecodeError as exc:
                    texts.append(None)
                    failures[row] = str(exc)
            return DecodedColumn(pa.array(texts, pa.string()), failures)


def _build_malformed_column(records: pa.RecordBatch, reasons: Mapping[int, str]) -> pa.Array:
    if not reasons:
        return pa.nulls(records.num_rows, _MALFORMED_TYPE)
    rows: list[dict[str, object] | None] = [None] * records.num_rows
    for row, reason in reasons.items():
        rows[row] = {
            "key": records.column("key")[row].as_py(),
            "value": records.column("value")[row].as_py(),
            "reason": reason,
        }
    return pa.array(rows, _MALFORMED_TYPE)
