"""The codec of a field's columns, by the format of its schema."""

from typing import Protocol

import pyarrow as pa

from tallystick.schemas.avro import AvroDecoder, AvroEncoder, ParsedSchema, find_column_problems
from tallystick.schemas.avro_types import to_avro_schema
from tallystick.schemas.column_codec import ColumnDecoder
from tallystick.schemas.json_schema import (
    JsonColumnSchema,
    JsonDecoder,
    JsonEncoder,
    find_json_problems,
    to_json_schema,
)
from tallystick.schemas.model import ColumnFormat, FindSchema, ResolvedSchema


class ColumnEncoder(Protocol):
    """Encodes columns of one field."""

    def encode(self, column: pa.Array) -> pa.Array:
        """Encode a column. Raises: SchemaError, RowRefused."""


def build_decoder(reader: ResolvedSchema, find_schema: FindSchema) -> ColumnDecoder:
    """Return the decoder for a reader's schema. Raises: SchemaError; MissingLibrary."""
    if reader.format is ColumnFormat.JSON:
        return JsonDecoder(reader, find_schema)
    return AvroDecoder(reader, find_schema)


def build_encoder(writer: ResolvedSchema) -> ColumnEncoder:
    """Return the encoder for a writer's schema. Raises: SchemaError; MissingLibrary."""
    return JsonEncoder(writer) if writer.format is ColumnFormat.JSON else AvroEncoder(writer)


def find_writing_problems(writer: ResolvedSchema, column_type: pa.DataType, field: str) -> list[str]:
    """Return what keeps a column from being written with a schema. Raises: SchemaError; MissingLibrary."""
    if writer.format is ColumnFormat.JSON:
        return find_json_problems(writer, column_type, field)
    return find_column_problems(writer, column_type, field)


def find_record_name(schema: ResolvedSchema) -> str | None:
    """Return the name that subjects are made of: Avro's full name, or the title. Raises: SchemaError."""
    if schema.format is ColumnFormat.JSON:
        return JsonColumnSchema(schema).name
    return ParsedSchema(schema).name


def build_schema_text(column_format: ColumnFormat, column_type: pa.DataType, name: str) -> str:
    """Return the schema of a column. Raises: SchemaError for a type that the format does not have."""
    build = to_json_schema if column_format is ColumnFormat.JSON else to_avro_schema
    return build(column_type, name)
