"""Serializers and deserializers: what they are given, what they may return, and whose error it is."""

import pytest

from tallystick.client.consumer.decode import ConsumerRecord
from tallystick.client.consumer.deserializers import RecordDeserializer
from tallystick.client.serializers import (
    MessageField,
    RecordSerializer,
    SerializationContext,
    mark_serialized,
)
from tallystick.client.settings.config import AdminConfig, ConsumerConfig, ProducerConfig
from tallystick.errors import BadConfig, DeserializationFailed, SerializationFailed
from tallystick.kernel.ids import TopicPartition
from tallystick.protocol.records import TimestampType

BROKER = {"bootstrap.servers": "b:1"}


def upper(obj: str | None, context: SerializationContext) -> bytes | None:
    return None if obj is None else f"{context.topic}/{context.field}/{obj}".encode()


def add_header(obj: str, context: SerializationContext) -> bytes:
    assert context.headers is not None
    context.headers.append((f"of-{context.field}", obj.encode()))
    return obj.encode()


def record(offset: int, value: bytes | None, partition: int = 0) -> ConsumerRecord:
    return ConsumerRecord(
        "t", partition, offset, 0, TimestampType.CREATE_TIME, b"k", value, (("h", b"1"),), None
    )


def test_both_parts_are_serialized_with_their_context_and_the_key_comes_first() -> None:
    calls: list[MessageField] = []

    def note(obj: object, context: SerializationContext) -> bytes:
        calls.append(context.field)
        return b"x"

    RecordSerializer(note, note).serialize("t", 1, 2, ())
    assert calls == [MessageField.KEY, MessageField.VALUE]
    assert RecordSerializer(upper, upper).serialize("t", "v", "k", ()) == (b"t/value/v", b"t/key/k", ())


def test_the_fields_equal_those_of_confluent_kafka() -> None:
    theirs = pytest.importorskip("confluent_kafka.serialization").MessageField
    assert theirs.KEY == MessageField.KEY
    assert theirs.VALUE == MessageField.VALUE
    assert theirs.KEY != MessageField.VALUE
    assert "t-" + MessageField.VALUE == "t-" + theirs.VALUE


def test_none_is_passed_to_a_serializer_which_decides_what_it_means() -> None:
    assert RecordSerializer(None, upper).serialize("t", None, None, ())[0] is None
    assert RecordSerializer(None, lambda obj, _: b"null").serialize("t", None, None, ())[0] == b"null"


def test_headers_that_a_serializer_appends_are_sent_and_the_callers_list_stays() -> None:
    given = [("mine", b"0")]
    _, _, headers = RecordSerializer(add_header, add_header).serialize("t", "v", "k", given)
    assert headers == (("mine", b"0"), ("of-key", b"k"), ("of-value", b"v"))
    assert given == [("mine", b"0")]


def test_an_error_names_topic_and_field_and_keeps_its_cause() -> None:
    with pytest.raises(
        SerializationFailed, match=r"the value of a record for topic 'orders'.*ZeroDivision"
    ) as info:
        RecordSerializer(None, lambda obj, _: 1 // 0).serialize("orders", 1, None, ())  # type: ignore[arg-type, return-value]
    assert (info.value.topic, info.value.field) == ("orders", "value")
    assert isinstance(info.value.__cause__, ZeroDivisionError)
    assert "nothing happened" in str(info.value)


@pytest.mark.parametrize("result", ["text", 7, bytearray(b"x")])
def test_anything_but_bytes_is_refused(result: object) -> None:
    with pytest.raises(SerializationFailed, match="must return bytes or None"):
        RecordSerializer(lambda obj, _: result, None).serialize("t", None, 1, ())  # type: ignore[arg-type, return-value]


def test_a_coroutine_is_refused_and_closed() -> None:
    async def later(obj: object, context: SerializationContext) -> bytes:
        return b""

    with pytest.raises(SerializationFailed, match="returned coroutine"):
        RecordSerializer(None, lambda obj, context: later(obj, context)).serialize("t", 1, None, ())  # type: ignore[arg-type, return-value]


def test_bytes_that_were_serialized_before_pass() -> None:
    data = mark_serialized(b"done")
    assert RecordSerializer(None, upper).serialize("t", data, None, ())[0] == b"done"


def test_the_first_use_is_one_that_has_succeeded_for_topic_and_types() -> None:
    serializer = RecordSerializer(None, upper)
    assert serializer.is_first_use("t", "v", None)
    serializer.serialize("t", "v", None, ())
    assert not serializer.is_first_use("t", "w", None)
    assert serializer.is_first_use("u", "v", None)
    assert serializer.is_first_use("t", 1, None)
    failing = RecordSerializer(None, lambda obj, _: 1 // 0)  # type: ignore[arg-type, return-value]
    with pytest.raises(SerializationFailed):
        failing.serialize("t", "v", None, ())
    assert failing.is_first_use("t", "v", None)


def test_rows_of_a_batch_share_their_headers_or_are_refused() -> None:
    rows = RecordSerializer(None, upper).serialize_rows("t", ["a", None], None, [("h", b"")])
    assert rows == ([b"t/value/a", None], None, (("h", b""),))
    same = RecordSerializer(None, add_header).serialize_rows("t", ["a", "a"], None, ())
    assert same == ([b"a", b"a"], None, (("of-value", b"a"),))
    with pytest.raises(SerializationFailed, match="different headers"):
        RecordSerializer(None, add_header).serialize_rows("t", ["a", "b"], None, ())


def test_records_before_one_that_cannot_be_deserialized_are_returned() -> None:
    def read(data: bytes | None, context: SerializationContext) -> int:
        assert context.headers == [("h", b"1")]
        return int(data or b"")

    records = [record(5, b"1"), record(6, b"x"), record(9, b"3", partition=1), record(7, b"4")]
    result = RecordDeserializer(None, read).deserialize(records)
    assert [each.value for each in result.records] == [1]
    assert isinstance(result.failure, DeserializationFailed)
    assert (result.failure.partition, result.failure.offset, result.failure.field) == (0, 6, "value")
    assert result.first_offsets == {TopicPartition("t", 0): 6, TopicPartition("t", 1): 9}
    assert RecordDeserializer(None, read).deserialize(records[:1]).failure is None


def test_a_new_schema_id_is_a_first_use_of_a_deserializer() -> None:
    deserializer = RecordDeserializer(None, lambda data, _: data)
    first, other = record(0, b"\0\0\0\0\1abc"), record(1, b"\0\0\0\0\2abc")
    assert deserializer.has_first_use([first])
    deserializer.deserialize([first])
    assert not deserializer.has_first_use([first, first])
    assert deserializer.has_first_use([first, other])


def test_a_client_takes_its_own_functions_and_no_others() -> None:
    assert ProducerConfig.parse({**BROKER, "key.serializer": upper}).functions == {"key.serializer": upper}
    assert ConsumerConfig.parse(BROKER).functions == {}
    with pytest.raises(BadConfig, match=r"value\.serializer: a setting of producer, this is consumer"):
        ConsumerConfig.parse({**BROKER, "value.serializer": upper})
    with pytest.raises(BadConfig, match=r"key\.deserializer: a setting of consumer, this is admin"):
        AdminConfig.parse({**BROKER, "key.deserializer": upper})
    with pytest.raises(
        BadConfig, match=r"key\.serializer: 'org\.example\.S' is not supported: pass a function"
    ):
        ProducerConfig.parse({**BROKER, "key.serializer": "org.example.S"})
    with pytest.raises(BadConfig, match=r"value\.serializer\.builder: .*without \.builder"):
        ProducerConfig.parse({**BROKER, "value.serializer.builder": object()})


def test_coroutine_functions_are_refused_before_a_record_is_sent() -> None:
    async def function(obj: object, context: SerializationContext) -> bytes:
        return b""

    class Awaited:
        async def __call__(self, obj: object, context: SerializationContext) -> bytes:
            return b""

    for each in (function, Awaited()):
        with pytest.raises(BadConfig, match="must be a plain one"):
            ProducerConfig.parse({**BROKER, "value.serializer": each})
