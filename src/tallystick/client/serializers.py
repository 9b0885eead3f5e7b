"""Serializers and deserializers of keys and values, called as confluent-kafka calls its own.

A serializer is a function of an object and a context that returns bytes, or None for a record without a key
or value; a deserializer is the reverse. None is passed to them as well, since only they know what it means.
The key comes first. They are plain functions: what they wait for, such as the first look-up in a schema
registry, holds up the caller. The asyncio clients run them in a thread until they have succeeded once for a
topic and kind of object, which is when serializers of schema registries have what they need.

The context has what `confluent_kafka.serialization.SerializationContext` has, and its fields equal those of
`MessageField` there, so that the serializers of `confluent_kafka.schema_registry` work unchanged.

Source: confluent-kafka 2.16, SerializingProducer.produce and DeserializingConsumer.poll.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, NoReturn

from tallystick.client.errors import SerializationFailed

if TYPE_CHECKING:
    # PEP 696: without parameters, a client takes and returns bytes. Only a type checker reads the default.
    from typing_extensions import TypeVar

    K = TypeVar("K", default=bytes)
    V = TypeVar("V", default=bytes)
else:
    from typing import TypeVar

    K = TypeVar("K")
    V = TypeVar("V")

Header = tuple[str, bytes | None]
SerializedHeaders = tuple[Header, ...]
Serializer = Callable[[Any, "SerializationContext"], bytes | None]

SERIALIZER_NAMES: Final = ("key.serializer", "value.serializer")
DESERIALIZER_NAMES: Final = ("key.deserializer", "value.deserializer")

# A program that sends to ever new topics forgets which of them it has used before.
USES_MAX: Final = 10_000


class MessageField(StrEnum):
    """Part of a record that is serialized."""

    KEY = "key"
    VALUE = "value"


class SerializationContext:
    """Where a key or value goes to, or comes from.

    headers  of the record; what a serializer appends is sent with it
    """

    __slots__ = ("field", "headers", "topic")

    def __init__(self, topic: str, field: MessageField, headers: list[Header] | None = None) -> None:
        self.topic, self.field, self.headers = topic, field, headers


class SerializedBytes(bytes):
    """A key or value that a serializer has made already; it is sent as it is."""

    __slots__ = ()


class RecordSerializer:
    """The serializers of a producer. Stateless but for what it has used before; threads may share it."""

    def __init__(self, key: Serializer | None, value: Serializer | None) -> None:
        self._key, self._value = key, value
        self._uses: set[tuple[str, type, type]] = set()

    def is_first_use(self, topic: str, value: object, key: object) -> bool:
        """Return whether objects of these types were not yet serialized for `topic`."""
        return (topic, type(value), type(key)) not in self._uses

    def serialize(
        self, topic: str, value: object, key: object, headers: Iterable[Header]
    ) -> tuple[bytes | None, bytes | None, SerializedHeaders]:
        """Return value, key and headers of a record as they are sent.

        Raises: SerializationFailed; TypeError for a part without a serializer that is not bytes.
        """
        all_headers = list(headers or ())
        key_bytes = self._run(self._key, key, SerializationContext(topic, MessageField.KEY, all_headers))
        value_bytes = self._run(
            self._value, value, SerializationContext(topic, MessageField.VALUE, all_headers)
        )
        if len(self._uses) >= USES_MAX:
            self._uses.clear()
        self._uses.add((topic, type(value), type(key)))
        return value_bytes, key_bytes, tuple(all_headers)

    def serialize_rows(
        self,
        topic: str,
        values: Iterable[object],
        keys: Iterable[object] | None,
        headers: Iterable[Header],
    ) -> tuple[list[bytes | None], list[bytes | None] | None, SerializedHeaders]:
        """Return the columns and the headers of one `send_batch` as they are sent. Raises: as `serialize`."""
        own_headers = tuple(headers or ())
        pairs = zip(values, repeat(None) if keys is None else keys, strict=False)
        rows = [self.serialize(topic, value, key, own_headers) for value, key in pairs]
        all_headers = {row[2] for row in rows} or {own_headers}
        if len(all_headers) > 1:
            why = "it gives the records of one send_batch different headers; use send"
            raise SerializationFailed(topic, "headers", why)
        key_bytes = None if keys is None else [row[1] for row in rows]
        return [row[0] for row in rows], key_bytes, all_headers.pop()

    @staticmethod
    def _run(serializer: Serializer | None, obj: object, context: SerializationContext) -> bytes | None:
        if serializer is None or isinstance(obj, SerializedBytes):
            return obj  # type: ignore[return-value]  # the accumulator refuses anything but bytes
        try:
            result = serializer(obj, context)
        except Exception as exc:
            raise SerializationFailed(context.topic, str(context.field), describe_failure(exc)) from exc
        if result is not None and not isinstance(result, bytes):
            _refuse_result(result, context)
        return result


def build_record_serializer(functions: Mapping[str, object]) -> RecordSerializer | None:
    """Return the serializers among a producer's settings; None if it has none, and takes bytes."""
    key, value = (functions.get(name) for name in SERIALIZER_NAMES)
    return None if key is None and value is None else RecordSerializer(key, value)  # type: ignore[arg-type]


def _refuse_result(result: object, context: SerializationContext) -> NoReturn:
    if inspect.iscoroutine(result):
        result.close()
    raise SerializationFailed(
        context.topic,
        str(context.field),
        f"it returned {type(result).__name__}, and must return bytes or None",
    )


def _describe(exc: Exception) -> str:
    return f"{type(exc).__name__}: {exc}"


def mark_serialized(data: bytes | None) -> bytes | None:
    """Return bytes that a producer's serializers let pass."""
    return None if data is None else SerializedBytes(data)


def describe_failure(exc: Exception) -> str:
    """Return the text of an exception with its class, which is half of what it says."""
    return f"{type(exc).__name__}: {exc}"
