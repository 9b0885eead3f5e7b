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
from tallystick.schemas.protobuf import ProtobufDecoder, ProtobufEncoder, find_protobuf_problems
from tallystick.schemas.protobuf_schema import ProtobufSchema
from tallystick.schemas.protobuf_types import to_proto_text


class ColumnEncoder(Protocol):
    """Encodes columns of one field."""

    def encode(self, column: pa.Array) -> pa.Array:
        """Encode a column. Raises: SchemaError, RowRefused."""


def build_decoder(reader: ResolvedSchema, find_schema: FindSchema) -> ColumnDecoder:
    """Return the decoder for a reader's schema. Raises: SchemaError; MissingLibrary."""
    if reader.format is ColumnFormat.PROTOBUF:
        return ProtobufDecoder(reader, find_schema)
    return (JsonDecoder if reader.format is ColumnFormat.JSON else AvroDecoder)(reader, find_schema)


def build_encoder(writer: ResolvedSchema) -> ColumnEncoder:
    """Return the encoder for a writer's schema. Raises: SchemaError; MissingLibrary."""
    if writer.format is ColumnFormat.PROTOBUF:
        return ProtobufEncoder(writer)
    return JsonEncoder(writer) if writer.format is ColumnFormat.JSON else AvroEncoder(writer)


def find_writing_problems(writer: ResolvedSchema, column_type: pa.DataType, field: str) -> list[str]:
    """Return what keeps a column from being written with a schema. Raises: SchemaError; MissingLibrary."""
    if writer.format is ColumnFormat.JSON:
        return find_json_problems(writer, column_type, field)
    if writer.format is ColumnFormat.PROTOBUF:
        return find_protobuf_problems(writer, column_type, field)
    return find_column_problems(writer, column_type, field)


def find_record_name(schema: ResolvedSchema) -> str | None:
    """Return the name that subjects are made of: the record's or message's full name, or the title.

    Raises: SchemaError.
    """
    if schema.format is ColumnFormat.PROTOBUF:
        return ProtobufSchema(schema).find_name(schema.message)
    if schema.format is ColumnFormat.JSON:
        return JsonColumnSchema(schema).name
    return ParsedSchema(schema).name


def build_schema_text(column_format: ColumnFormat, column_type: pa.DataType, name: str) -> str:
    """Return the schema of a column. Raises: SchemaError for a type that the format does not have."""
    builders = {ColumnFormat.JSON: to_json_schema, ColumnFormat.PROTOBUF: to_proto_text}
    return builders.get(column_format, to_avro_schema)(column_type, name)
