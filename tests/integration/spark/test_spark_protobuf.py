"""Protobuf through the Spark source and sink, and pipelines: beside confluent's serializers, both ways."""

from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import message_factory
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession
from tests.integration.spark.test_spark_schemas import Place
from tests.support.effort import long_form
from tests.support.reading import committed_records

from tallystick import Admin, Producer
from tallystick.admin.topics import NewTopic
from tallystick.kernel.settings import BadConfig
from tallystick.pipeline import Pipeline
from tallystick.pipeline.definition_toml import parse_definition
from tallystick.spark import foreach_batch, register_serializer, to_topic
from tallystick.testing import EmbeddedBroker, SchemaRegistry
from tallystick.testing.proto_files import compile_proto, read_descriptor

pytestmark = [pytest.mark.slow, pytest.mark.server, pytest.mark.broker(in_process=False)]

REFUND_FIRST = 'syntax = "proto3"; package demo; message Refund { string id = 1; } '
ORDER = REFUND_FIRST + "message Order { string id = 1; int32 cents = 2; MORE}"
FIRST = ORDER.replace("MORE", "")
NEXT = ORDER.replace("MORE", "optional string note = 3; ")
ONE, TWO = {"id": "a", "cents": 1}, {"id": "b", "cents": 2}


def build_class(text: str, message: str = "demo.Order") -> Any:
    return message_factory.GetMessages([read_descriptor(compile_proto(text, {}), "orders.proto")])[message]


class ProtobufPlace(Place):
    """As for Avro, with messages."""

    def options(self, **more: str) -> dict[str, str]:
        return super().options(**{"value_format": "protobuf", "value_message": "demo.Order", **more})

    def send(self, text: str, *orders: dict[str, Any], message: str = "demo.Order") -> None:
        order_class = build_class(text, message)
        with SchemaRegistryClient({"url": self.registry.url}) as client:
            settings = {**self.client, "value.serializer": ProtobufSerializer(order_class, client)}
            with Producer[bytes, Any](settings) as producer:
                for order in orders:
                    producer.send(self.source, order_class(**order), order["id"].encode()).result(10)

    def written(self) -> list[Any]:
        """Return the committed values as confluent's deserializer reads them."""
        return [(order.id, order.cents) for order in self.written_as(FIRST)]

    def written_as(self, text: str, topic: str | None = None) -> list[Any]:
        topic = topic or self.target
        with SchemaRegistryClient({"url": self.registry.url}) as client:
            read = ProtobufDeserializer(build_class(text), {}, client)
            context = SerializationContext(topic, MessageField.VALUE)
            return [read(record.value, context) for record in committed_records(self.client, topic)]

    def register(self, text: str, subject: str | None = None) -> int:
        return self.registry.register(subject or f"{self.target}-value", text, "PROTOBUF")


@pytest.fixture
def place(
    spark: SparkSession, broker: EmbeddedBroker, tallystick_schema_registry: SchemaRegistry, tmp_path: Path
) -> ProtobufPlace:
    return ProtobufPlace(spark, broker, tallystick_schema_registry, tmp_path)


def test_messages_of_confluents_serializer_are_columns(place: ProtobufPlace) -> None:
    place.send(FIRST, ONE, TWO)
    place.send_bytes(None)
    rows = place.read(key_format="string")
    assert rows.schema["value"].dataType.simpleString() == "struct<id:string,cents:int>"
    found = rows.selectExpr("key", "value.*", "offset").orderBy("offset").collect()
    assert [tuple(row) for row in found] == [("a", "a", 1, 0), ("b", "b", 2, 1), ("raw", None, None, 2)]


@long_form
def test_the_readers_message_decides_the_columns_of_every_writers_record(place: ProtobufPlace) -> None:
    place.send(FIRST, ONE)
    place.send(NEXT, {**TWO, "note": "x"})
    place.send(FIRST, {"id": "r"}, message="demo.Refund")
    latest = place.read(onMalformed="null").orderBy("offset").selectExpr("value.*", "malformed.reason")
    rows = [tuple(row) for row in latest.collect()]
    assert rows[:2] == [("a", 1, None, None), ("b", 2, "x", None)]
    assert "the record is demo.Refund, and not demo.Order" in rows[2][3]
    with pytest.raises(PySparkException, match=r"offset 0 cannot be decoded.*is demo\.Order, and not demo"):
        place.read(value_message="demo.Refund").collect()
    with pytest.raises(PySparkException, match=r"has no message demo\.Payment, but demo\.Refund"):
        place.read(value_message="demo.Payment")
    # A file is looked up under the subject; the record's name is the message's.
    place.register(FIRST, "demo.Order")
    options = {"value_schema": FIRST, "value_subject_strategy": "record-name", "onMalformed": "null"}
    first = place.read(**options).selectExpr("value.*").orderBy("id")
    assert [tuple(row) for row in first.collect()][1:] == [("a", 1), ("b", 2)]


@long_form
def test_a_record_that_cannot_be_decoded_stops_the_query_which_names_it(place: ProtobufPlace) -> None:
    place.send(FIRST, ONE)
    place.send_bytes(b"\0\0\0\0\1\x02\x02\x0a\x7f")
    place.register(FIRST)
    with pytest.raises(StreamingQueryException, match="offset 1 cannot be decoded: value: schema 1: Dec"):
        place.run(place.stream().select("value"))
    assert place.written() == []


@pytest.mark.gate(0)
def test_it_goes_to_a_topic_of_its_own_in_the_decision_of_its_batch(place: ProtobufPlace) -> None:
    place.send(FIRST, ONE)
    place.send_bytes(b"junk")
    dead = f"{place.target}.dead"
    with Admin(place.client) as admin:
        admin.create_topics([NewTopic(name=dead)]).all()
    names = ("schema.registry.url", "value.format", "value.message")
    options = {name: place.options()[name] for name in names}
    place.register(FIRST)
    register_serializer(place.spark, "order_message", options, topic=place.target)
    writer = place.stream(onMalformed="null").writeStream.foreachBatch(
        foreach_batch(
            {
                "kafka.bootstrap.servers": place.client["bootstrap.servers"],
                "transactional.id.prefix": place.target,
            },
            to_topic(place.target, value="order_message(value)", where="malformed is null"),
            to_topic(dead, key="malformed.key", value="malformed.value", where="malformed is not null"),
        )
    )
    place.finish(writer)
    assert place.written() == [("a", 1)]
    assert [(each.key, each.value) for each in committed_records(place.client, dead)] == [(b"raw", b"junk")]


@pytest.mark.gate(0)
def test_a_query_writes_what_confluents_deserializer_reads(place: ProtobufPlace) -> None:
    place.send(FIRST, ONE, TWO)
    place.register(NEXT)
    place.run(place.stream().select("key", "value"))
    assert sorted((each.id, each.cents, each.HasField("note")) for each in place.written_as(NEXT)) == [
        ("a", 1, False),
        ("b", 2, False),
    ]


@long_form
def test_a_query_goes_on_with_the_version_that_it_began_with(place: ProtobufPlace) -> None:
    """[SPK-30] A batch that was decided comes again, and has the bytes that it had."""
    first = place.register(FIRST)
    place.send(FIRST, ONE)
    place.run(place.stream().select("key", "value"))
    place.register(NEXT)
    for name in ("0", ".0.crc"):
        (place.checkpoint / "commits" / name).unlink(missing_ok=True)
    place.send(FIRST, TWO)
    place.run(place.stream().select("key", "value"))
    assert sorted(place.written()) == [("a", 1), ("b", 2)]
    values = [each.value for each in committed_records(place.client, place.target)]
    assert {int.from_bytes(value[1:5], "big") for value in values if value} == {first}


@long_form
def test_columns_and_rows_that_do_not_fit_take_back_their_batch(place: ProtobufPlace) -> None:
    place.send(FIRST, ONE, TWO)
    place.register(FIRST)
    frame = place.stream().selectExpr("named_struct('id', 1, 'more', value.cents) as value")
    with pytest.raises(StreamingQueryException, match=r"(?s)value\.id: is int32.*value\.more: message"):
        place.run(frame)
    frame = place.stream().selectExpr("named_struct('id', nullif(value.id, 'b')) as value")
    with pytest.raises(StreamingQueryException, match="row 1 of the column cannot be encoded: id is null"):
        place.run(frame)
    assert place.written() == []


@long_form
def test_a_schema_is_made_of_the_columns_if_that_is_asked_for(place: ProtobufPlace) -> None:
    rows = place.spark.createDataFrame([("k", ("a", None))], "key string, value struct<id:string,cents:int>")
    options = {"transactional.id.prefix": place.target, "topic": place.target}
    options |= place.options(auto_register_schemas="true")
    del options["value.message"]
    rows.write.format("tallystick").mode("append").options(**options).save()
    subject = f"{place.target}-value"
    with SchemaRegistryClient({"url": place.registry.url}) as client:
        text = client.get_latest_version(subject).schema.schema_str
    assert text is not None
    assert "optional int32 cents = 2;" in text
    (value,) = (each.value for each in committed_records(place.client, place.target))
    assert value == b"\0\0\0\0\1\0\x0a\1a"


PIPELINE = """
name = "{name}"
checkpoint = "{folder}/state"
[kafka]
"bootstrap.servers" = "{servers}"
[schema-registry]
url = "{url}"
[sources.orders]
topics = ["{source}"]
format = "protobuf"
message = "demo.Order"
malformed = "dead-letter"
dead-letter = "{name}.dead"
[outputs.all]
from = "orders"
[[outputs.all.sinks]]
topic = "{target}"
format = "protobuf"
message = "demo.Order"
value = "struct(id, cents)"
"""


@pytest.mark.gate(0)
def test_a_pipeline_reads_and_writes_messages_and_dead_letters_in_one_decision(
    spark: SparkSession, place: ProtobufPlace
) -> None:
    place.send(FIRST, ONE)
    place.send_bytes(b"junk")
    place.register(FIRST)
    name = place.target.replace("-", "_")
    with Admin(place.client) as admin:
        admin.create_topics([NewTopic(name=f"{name}.dead")]).all()
    text = PIPELINE.format(
        name=name,
        folder=place.folder,
        servers=place.client["bootstrap.servers"],
        url=place.registry.url,
        source=place.source,
        target=place.target,
    )
    with Pipeline(parse_definition(text, "pipeline.toml")).start(once=True, spark=spark) as running:
        running.wait()
    assert place.written() == [("a", 1)]
    (dead,) = committed_records(place.client, f"{name}.dead")
    assert dead.value == b"junk"
    wrong = text.replace('format = "protobuf"\nmessage', 'format = "avro"\nmessage')
    with pytest.raises(BadConfig, match=r'message: goes with format = "protobuf"'):
        parse_definition(wrong, "pipeline.toml")
