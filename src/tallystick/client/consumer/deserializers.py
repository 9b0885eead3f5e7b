"""The deserializers of a consumer, applied to the records that a poll returns. Pure, if they are.

Records before one that cannot be deserialized are returned; the next poll raises its error, and every poll
after it, until `seek` skips the record. Nothing is skipped unasked: the caller decides what an unreadable
record means.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from tallystick.client.consumer.decode import ConsumerRecord
from tallystick.client.errors import DeserializationFailed, IllegalState
from tallystick.client.serializers import (
    DESERIALIZER_NAMES,
    USES_MAX,
    MessageField,
    SerializationContext,
    describe_failure,
)
from tallystick.kernel.ids import TopicPartition

Deserializer = Callable[[bytes | None, SerializationContext], Any]

# Magic byte and schema id: with another id a deserializer looks another schema up.
_SCHEMA_ID_BYTES = 5


class DeserializedRecords(NamedTuple):
    """Records up to the first that cannot be deserialized.

    failure        its error
    first_offsets  the first offset not returned of every partition, where its reading continues
    """

    records: list[ConsumerRecord[Any, Any]]
    failure: DeserializationFailed | None = None
    first_offsets: Mapping[TopicPartition, int] = {}


class RecordDeserializer:
    """The deserializers of a consumer."""

    def __init__(self, key: Deserializer | None, value: Deserializer | None) -> None:
        self._key, self._value = key, value
        self._uses: set[tuple[str, bytes, bytes]] = set()

    def has_first_use(self, records: Sequence[ConsumerRecord]) -> bool:
        """Return whether a record has a schema id that was not seen in its topic yet."""
        return not self._uses.issuperset(map(_name_use, records))

    def deserialize(self, records: Sequence[ConsumerRecord]) -> DeserializedRecords:
        """Return the records with objects for bytes, and where that ended."""
        results: list[ConsumerRecord[Any, Any]] = []
        for record in records:
            try:
                results.append(self._deserialize(record))
            except DeserializationFailed as exc:
                return DeserializedRecords(results, exc, find_first_offsets(records[len(results) :]))
        if len(self._uses) > USES_MAX:
            self._uses.clear()
        self._uses.update(map(_name_use, records))
        return DeserializedRecords(results)

    def _deserialize(self, record: ConsumerRecord) -> ConsumerRecord[Any, Any]:
        headers = list(record.headers)
        key = _run(self._key, record, record.key, MessageField.KEY, headers)
        value = _run(self._value, record, record.value, MessageField.VALUE, headers)
        return record._replace(key=key, value=value)


def find_first_offsets(records: Iterable[ConsumerRecord]) -> dict[TopicPartition, int]:
    """Return the offset of each partition's first record."""
    first_offsets: dict[TopicPartition, int] = {}
    for record in records:
        first_offsets.setdefault(TopicPartition(record.topic, record.partition), record.offset)
    return first_offsets


def build_record_deserializer(functions: Mapping[str, object]) -> RecordDeserializer | None:
    """Return the deserializers among a consumer's settings; None if it has none, and returns bytes."""
    key, value = (functions.get(name) for name in DESERIALIZER_NAMES)
    return None if key is None and value is None else RecordDeserializer(key, value)  # type: ignore[arg-type]


def refuse_columns(deserializer: RecordDeserializer | None) -> None:
    """Raise IllegalState for a consumer with deserializers, which has no columns of bytes to return."""
    if deserializer is not None:
        raise IllegalState("poll_arrow: deserializers make objects: use poll, or a consumer without them")


def _run(
    deserializer: Deserializer | None,
    record: ConsumerRecord,
    data: bytes | None,
    field: MessageField,
    headers: list[tuple[str, bytes | None]],
) -> Any:
    if deserializer is None:
        return data
    try:
        return deserializer(data, SerializationContext(record.topic, field, headers))
    except Exception as exc:
        at = record.topic, record.partition, record.offset
        raise DeserializationFailed(*at, str(field), describe_failure(exc)) from exc


def _name_use(record: ConsumerRecord) -> tuple[str, bytes, bytes]:
    return record.topic, _take_schema_id(record.key), _take_schema_id(record.value)


def _take_schema_id(data: bytes | None) -> bytes:
    return data[:_SCHEMA_ID_BYTES] if data is not None and data[:1] == b"\0" else b""
