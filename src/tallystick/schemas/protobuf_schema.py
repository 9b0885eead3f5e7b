"""A Protobuf schema of a registry: its files in a descriptor pool, its messages, and where each is in it.

A registry keeps the text of a .proto file. Asked for `format=serialized` it gives the file's descriptor,
which is what a compiler makes of the text, so that none is needed here.

What the files import has to be among the schema's references, but for the files that come with protobuf and
with confluent-kafka: google/protobuf, google/type and confluent.

Source: Confluent Schema Registry API reference, GET /schemas/ids/{id}, `format`; "Wire format" (the message
indexes).
"""

import base64
import binascii
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from tallystick import _lazy
from tallystick.schemas.model import ResolvedSchema, SchemaError

MAIN_FILE: Final = "tallystick-schema.proto"
"""The name of the schema's own file: a registry's answer need not have one."""
_KNOWN_FILE: Final = re.compile(r"(?:google/(?:protobuf|type)|confluent(?:/types?)?)/[a-z_]+\.proto")
_INDEX_COUNT_MAX: Final = 100
_VARINT_BITS_MAX: Final = 31

Path = tuple[int, ...]


class ProtobufSchema:
    """The messages of a schema.

    Attributes: messages: the full name of each message by its path in the file; pool.
    """

    def __init__(self, schema: ResolvedSchema) -> None:
        """Load the descriptors. Raises: SchemaError for what is none, or lacks an import; MissingLibrary."""
        self._descriptors = _lazy.load("google.protobuf.descriptor_pb2")
        self.pool = _lazy.load("google.protobuf.descriptor_pool").DescriptorPool()
        self._added: set[str] = set()
        names = schema.reference_names or tuple(map(str, range(len(schema.references))))
        for name, text in zip(names, schema.references, strict=True):
            self._add(self._parse(text), name)
        file = self._parse(schema.text)
        self._add(file, MAIN_FILE)
        package = f"{file.package}." if file.package else ""
        self.messages: Mapping[Path, str] = dict(_walk(file.message_type, package, ()))
        if not self.messages:
            raise SchemaError("the Protobuf schema has no message")

    def find_name(self, message: str | None) -> str:
        """Return the full name of a message, or of the first one. Raises: SchemaError if there is none."""
        if message is None:
            return self.messages[(0,)]
        if message not in self.messages.values():
            raise SchemaError(
                f"the Protobuf schema has no message {message}, but {', '.join(self.messages.values())}"
            )
        return message

    def find_descriptor(self, message: str | None) -> Any:
        """Return the descriptor of a message, or of the first one. Raises: SchemaError if there is none."""
        return self.pool.FindMessageTypeByName(self.find_name(message))

    def find_path(self, name: str) -> Path:
        """Return the path of a message that the schema has."""
        return next(path for path, each in self.messages.items() if each == name)

    def _parse(self, text: str) -> Any:
        file = self._descriptors.FileDescriptorProto()
        try:
            file.ParseFromString(base64.b64decode(text, validate=True))
        except (binascii.Error, ValueError, _lazy.load("google.protobuf.message").DecodeError) as exc:
            raise SchemaError(
                f"not the descriptor of a Protobuf file: {text[:60]!r}. The registry has to answer with "
                "format=serialized, as Confluent's does, and Redpanda's from 25.2 on"
            ) from exc
        return file

    def _add(self, file: Any, name: str) -> None:
        """Add a file under the name by which others import it, and the known files that it imports."""
        if name in self._added:
            return
        self._added.add(name)
        for imported in file.dependency:
            if imported not in self._added and _KNOWN_FILE.fullmatch(imported):
                self._add(_load_known_file(imported, self._descriptors), imported)
        file.name = name
        try:
            self.pool.Add(file)
        except (TypeError, ValueError) as exc:  # an import is missing, or a name is there twice
            raise SchemaError(f"not a valid Protobuf schema: {exc}") from exc


def _load_known_file(name: str, descriptors: Any) -> Any:
    _lazy.load("confluent_kafka.schema_registry.protobuf")  # loads all of them into the default pool
    file = descriptors.FileDescriptorProto()
    try:
        known = _lazy.load("google.protobuf.descriptor_pool").Default().FindFileByName(name)
    except KeyError as exc:
        text = f"{name} is imported, and is not among the files of this confluent-kafka"
        raise SchemaError(text) from exc
    known.CopyToProto(file)
    return file


def _walk(messages: Any, prefix: str, path: Path) -> Iterator[tuple[Path, str]]:
    """Yield path and name of each message. The entries of maps have places, too, but no records."""
    for index, each in enumerate(messages):
        if not each.options.map_entry:
            yield (*path, index), f"{prefix}{each.name}"
            yield from _walk(each.nested_type, f"{prefix}{each.name}.", (*path, index))


def encode_path(path: Path) -> bytes:
    """Return the bytes of a message's path: the first message of a file is a single zero."""
    if path == (0,):
        return b"\0"
    return b"".join(_encode_varint(number << 1) for number in (len(path), *path))


def decode_path(data: bytes, at: int) -> tuple[Path, int]:
    """Return a message's path and where it ends. Raises: ValueError."""
    if data[at : at + 1] == b"\0":
        return (0,), at + 1
    count, at = _decode_varint(data, at)
    if not 0 < count <= _INDEX_COUNT_MAX:
        raise ValueError(f"a path of {count} message indexes")
    numbers = []
    for _ in range(count):
        number, at = _decode_varint(data, at)
        numbers.append(number)
    return tuple(numbers), at


def _encode_varint(number: int) -> bytes:
    data = bytearray()
    while number > 0x7F:
        data.append(number & 0x7F | 0x80)
        number >>= 7
    data.append(number)
    return bytes(data)


def _decode_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a zigzag varint and where it ends."""
    number = shift = 0
    while shift <= _VARINT_BITS_MAX:
        if at >= len(data):
            raise ValueError("the record ends within its message indexes")
        number |= (data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] < 0x80:
            return (number >> 1) ^ -(number & 1), at
        shift += 7
    raise ValueError("a message index that does not end")
