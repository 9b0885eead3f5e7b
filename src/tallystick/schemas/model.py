"""Encoding of a key or value: its format, its schema's subject, and the bytes around it. Pure.

The wire format: a zero byte, the schema's id in four bytes (big-endian), and the encoded content.

Source: Confluent Schema Registry documentation, "Wire format" and "Subject name strategy".
"""

import json
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from hashlib import sha256
from typing import Final

from tallystick.kernel.errors import TallystickError
from tallystick.kernel.value import Value, replace

MAGIC: Final = 0
PREFIX_BYTES: Final = 5
_PREFIX: Final = struct.Struct(">bI")
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9_]")


class SchemaError(TallystickError):
    """A schema cannot be had or used. Nothing was read or written with it."""


class RegistryUnavailable(SchemaError):
    """The schema registry gave no usable answer. The same question may be answered later."""


class UnknownSchema(SchemaError):
    """The registry has no such schema, subject or version."""


class ColumnFormat(StrEnum):
    """Format of the bytes of a key or value."""

    BYTES = "bytes"  # unchanged
    STRING = "string"  # UTF-8
    AVRO = "avro"  # Avro with the registry's prefix
    JSON = "json"  # JSON with the registry's prefix, as a JSON Schema says
    PROTOBUF = "protobuf"  # a Protobuf message with the registry's prefix and the message's place in its file


SCHEMA_FORMATS: Final = (ColumnFormat.AVRO, ColumnFormat.JSON, ColumnFormat.PROTOBUF)
"""Formats whose schemas a registry has."""


class SubjectStrategy(StrEnum):
    """The subject under which a field's schema is registered."""

    TOPIC_NAME = "topic-name"  # `orders-value`
    RECORD_NAME = "record-name"  # `demo.Order`
    TOPIC_RECORD_NAME = "topic-record-name"  # `orders-demo.Order`

    def build_subject(self, topic: str, field: str, record_name: str) -> str:
        match self:
            case SubjectStrategy.TOPIC_NAME:
                return f"{topic}-{field}"
            case SubjectStrategy.RECORD_NAME:
                return record_name
            case SubjectStrategy.TOPIC_RECORD_NAME:
                return f"{topic}-{record_name}"


class RegistrySettings(dict[str, str]):
    """Settings of the registry's client, which print without what may be a secret: any value."""

    def __repr__(self) -> str:
        return f"RegistrySettings({', '.join(sorted(self))})"


class FieldFormat(Value, kw_only=True):
    """Encoding of the key or the value of a query's records.

    field     "key" or "value"
    schema    the reader's schema of a source, the writer's of a sink; None for the subject's latest version
    subject   instead of the one that the strategy gives
    message   full name of the Protobuf message; None for the first one of the schema
    """

    field: str
    format: ColumnFormat = ColumnFormat.BYTES
    schema: str | None = None
    subject: str | None = None
    strategy: SubjectStrategy = SubjectStrategy.TOPIC_NAME
    message: str | None = None

    @property
    def has_schema(self) -> bool:
        """Whether a registry is needed."""
        return self.format in SCHEMA_FORMATS

    def find_subject(self, topic: str | None, record_name: str | None) -> str:
        """Return the subject of the field's schema.

        Args:
            topic: None if the query reads several.
            record_name: full name of the record; None without a schema.
        Raises: SchemaError if the strategy needs what is not known.
        """
        if self.subject is not None:
            return self.subject
        if topic is None and self.strategy is not SubjectStrategy.RECORD_NAME:
            raise SchemaError(
                f"{self.field}.subject: required without one topic, since {self.strategy} gives each topic a "
                "subject of its own"
            )
        if record_name is None and self.strategy is not SubjectStrategy.TOPIC_NAME:
            raise SchemaError(
                f"{self.field}.{'message' if self.format is ColumnFormat.PROTOBUF else 'schema'} or "
                f"{self.field}.subject: required by {self.strategy}, which takes the name of the record "
                "from it"
            )
        return self.strategy.build_subject(topic or "", self.field, record_name or "")


class ResolvedSchema(Value):
    """A schema as the registry has it, or as a query's options give it.

    text             of Protobuf the base64 of its file's descriptor
    schema_id        its id; None for the reader's schema of a source, which needs none
    references       the schemas that it refers to, each after those it refers to itself
    reference_names  the names under which a Protobuf schema imports them
    message          full name of the message that a column holds; None for the first one of the schema
    """

    text: str
    schema_id: int | None = None
    references: tuple[str, ...] = ()
    format: ColumnFormat = ColumnFormat.AVRO
    reference_names: tuple[str, ...] = ()
    message: str | None = None


def fingerprint(schema: ResolvedSchema) -> str:
    """Return what tells a schema from others, in whatever registry it is and under whatever id."""
    texts = [_normalize(schema, text) for text in (schema.text, *schema.references)]
    return sha256(json.dumps([schema.format, *texts, *schema.reference_names]).encode()).hexdigest()


def _normalize(schema: ResolvedSchema, text: str) -> str:
    """Return the text of a schema without its spacing, which a registry may change."""
    if schema.format is ColumnFormat.PROTOBUF:
        return text
    try:
        return json.dumps(json.loads(text), sort_keys=True)
    except ValueError:
        return text


def check_format(schema: ResolvedSchema, field: FieldFormat) -> None:
    """Raise SchemaError for a schema of another format than the field's."""
    if schema.format is not field.format:
        raise SchemaError(
            f"schema {schema.schema_id} is of format {schema.format}, and {field.field}.format is "
            f"{field.format}"
        )


def name_message(schema: ResolvedSchema, field: FieldFormat) -> ResolvedSchema:
    """Return a schema of the field's format, with the message that the field holds. Raises: SchemaError."""
    check_format(schema, field)
    return schema if field.message is None else replace(schema, message=field.message)


def build_prefix(schema_id: int) -> bytes:
    """Return the bytes before a record's content."""
    return _PREFIX.pack(MAGIC, schema_id)


def read_schema_id(data: bytes) -> int | None:
    """Return the schema id of an encoded field; None for bytes that are not in the wire format."""
    if len(data) < PREFIX_BYTES or data[0] != MAGIC:
        return None
    schema_id: int = _PREFIX.unpack_from(data)[1]
    return schema_id


def build_record_name(topic: str, field: str) -> str:
    """Return the name of a record whose schema is made from a query's columns."""
    return f"{_NOT_IN_NAMES.sub('_', topic)}_{field}".lstrip("0123456789")


FindSchema = Callable[[int], ResolvedSchema]
"""Returns the schema of an id. Raises: UnknownSchema, RegistryUnavailable."""


def find_registry_problems(texts: Mapping[str, str]) -> Iterator[str]:
    """Yield the problems of the registry's settings together."""
    url = texts.get("url")
    if not url:
        yield "schema.registry.url: required by a format with schemas"
    elif not url.startswith(("http://", "https://")):
        yield "schema.registry.url: must be http://... or https://..."
