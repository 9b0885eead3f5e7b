"""Avro through the Spark source and sink: what confluent's serializers write is read, and the reverse."""

import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from tests.support.dual_world import new_name
from tests.support.reading import committed_records

from tallystick import Admin, Consumer, Producer, TopicPartition
from tallystick.admin.topics import NewTopic
from tallystick.spark import foreach_batch, register, register_serializer, to_topic
from tallystick.testing import EmbeddedBroker, SchemaRegistry

pytestmark = [pytest.mark.slow, pytest.mark.server, pytest.mark.broker(in_process=False)]

FIELDS: list[dict[str, Any]] = [{"name": "id", "type": "string"}, {"name": "cents", "type": "int"}]


def schema(*more: dict[str, Any]) -> str:
    return json.dumps({"type": "record", "name": "Order", "namespace": "demo", "fields": [*FIELDS, *more]})


NOTE = {"name": "note", "type": ["null", "string"], "default": None}


class Place:
    """A topic to read, one to write, a registry, and the queries between them."""

    def __init__(
        self, spark: SparkSession, broker: EmbeddedBroker, registry: SchemaRegistry, folder: Path
    ) -> None:
        register(spark)
        self.spark, self.registry, self.folder = spark, registry, folder
        self.client = {"bootstrap.servers": broker.bootstrap_servers}
        self.source, self.target = new_name(), new_name()
        self.checkpoint = folder / "checkpoint"
        with Admin(self.client) as admin:
            admin.create_topics([NewTopic(name=name) for name in (self.source, self.target)]).all()

    def send(self, text: str, *orders: dict[str, Any]) -> None:
        with SchemaRegistryClient({"url": self.registry.url}) as client:
            settings = {**self.client, "value.serializer": AvroSerializer(client, text)}
            with Producer[bytes, Any](settings) as producer:
                for order in orders:
                    producer.send(self.source, order, order["id"].encode()).result(10)

    def send_bytes(self, *values: bytes | None) -> None:
        with Producer(self.client) as producer:
            for value in values:
                producer.send(self.source, value, b"raw").result(10)

    def options(self, **more: str) -> dict[str, str]:
        names = {name.replace("_", "."): text for name, text in more.items()}
        return {
            "kafka.bootstrap.servers": self.client["bootstrap.servers"],
            "value.format": "avro",
            "schema.registry.url": self.registry.url,
            **names,
        }

    def read(self, **more: str) -> DataFrame:
        options = self.options(subscribe=self.source, **more)
        return self.spark.read.format("tallystick").options(**options).load()

    def stream(self, **more: str) -> DataFrame:
        options = {"startingOffsets": "earliest", **self.options(subscribe=self.source, **more)}
        return self.spark.readStream.format("tallystick").options(**options).load()

    def run(self, frame: DataFrame, **more: str) -> None:
        options = {"transactional.id.prefix": self.target, "topic": self.target, **self.options(**more)}
        writer = frame.writeStream.format("tallystick").options(**options)
        self.finish(writer)

    def finish(self, writer: Any) -> None:
        writer.option("checkpointLocation", str(self.checkpoint)).trigger(
            availableNow=True
        ).start().awaitTermination()

    def written(self) -> list[Any]:
        """Return the committed values as confluent's deserializer reads them."""
        with SchemaRegistryClient({"url": self.registry.url}) as client:
            settings = {
                **self.client,
                "isolation.level": "read_committed",
                "value.deserializer": AvroDeserializer(client),
            }
            at = TopicPartition(self.target, 0)
            with Consumer[bytes, Any](settings) as consumer:
                consumer.assign([at])
                consumer.seek_to_beginning()
                end, records = consumer.end_offsets([at])[at], []
                while consumer.position(at) < end:
                    records += consumer.poll(1.0)
        return sorted((record.value for record in records), key=lambda value: str(value["id"]))


@pytest.fixture
def place(
    spark: SparkSession, broker: EmbeddedBroker, tallystick_schema_registry: SchemaRegistry, tmp_path: Path
) -> Place:
    return Place(spark, broker, tallystick_schema_registry, tmp_path)


ONE, TWO = {"id": "a", "cents": 1}, {"id": "b", "cents": 2}


def test_values_of_confluents_serializer_are_columns(place: Place) -> None:
    place.send(schema(), ONE, TWO)
    place.send_bytes(None)
    rows = place.read(key_format="string")
    assert rows.schema["value"].dataType.simpleString() == "struct<id:string,cents:int>"
    found = rows.selectExpr("key", "value.*", "offset").orderBy("offset").collect()
    assert [tuple(row) for row in found] == [("a", "a", 1, 0), ("b", "b", 2, 1), ("raw", None, None, 2)]


@pytest.mark.gate(0)
def test_the_readers_schema_decides_the_columns_of_every_writers_record(place: Place) -> None:
    place.send(schema(), ONE)
    place.send(schema(NOTE), {**TWO, "note": "x"})
    latest = place.read().selectExpr("value.*").collect()
    assert [tuple(row) for row in latest] == [("a", 1, None), ("b", 2, "x")]
    fields = [{"name": "cents", "type": "long"}, {"name": "n", "type": "int", "default": 7}]
    own = json.dumps({"type": "record", "name": "Order", "fields": fields})
    rows = place.read(value_schema=own).selectExpr("value.*")
    assert rows.schema.simpleString() == "struct<cents:bigint,n:int>"
    assert [tuple(row) for row in rows.collect()] == [(1, 7), (2, 7)]


@pytest.mark.gate(0)
def test_a_record_that_cannot_be_decoded_stops_the_query_which_names_it(place: Place) -> None:
    place.send(schema(), ONE)
    place.send_bytes(b'{"id": "json"}')
    with pytest.raises(
        PySparkException, match=f"record at {place.source}-0 offset 1 cannot be decoded: value: no"
    ):
        place.read().collect()
    place.registry.register(f"{place.target}-value", schema())
    with pytest.raises(StreamingQueryException, match="offset 1 cannot be decoded"):
        place.run(place.stream().select("value"))
    assert place.written() == []


@pytest.mark.gate(0)
def test_it_becomes_a_null_with_its_bytes_and_the_reason(place: Place) -> None:
    place.send(schema(), ONE)
    place.send_bytes(b"junk", None, b"\0\0\0\0\x63junk")
    rows = place.read(onMalformed="null").orderBy("offset").collect()
    assert [row.value and row.value.id for row in rows] == ["a", None, None, None]
    assert rows[0].malformed is None
    assert rows[2].malformed is None
    assert bytes(rows[1].malformed.value) == b"junk"
    assert bytes(rows[1].malformed.key) == b"raw"
    assert "value: no schema id" in rows[1].malformed.reason
    assert "schema 99" in rows[3].malformed.reason


@pytest.mark.gate(0)
def test_it_goes_to_a_topic_of_its_own_in_the_decision_of_its_batch(place: Place) -> None:
    place.send(schema(), ONE)
    place.send_bytes(b"junk")
    dead = new_name()
    with Admin(place.client) as admin:
        admin.create_topics([NewTopic(name=dead)]).all()
    options = {name: place.options()[name] for name in ("schema.registry.url", "value.format")}
    place.registry.register(f"{place.target}-value", schema())
    register_serializer(place.spark, "order_value", options, topic=place.target)
    writer = place.stream(onMalformed="null").writeStream.foreachBatch(
        foreach_batch(
            {
                "kafka.bootstrap.servers": place.client["bootstrap.servers"],
                "transactional.id.prefix": place.target,
            },
            to_topic(place.target, value="order_value(value)", where="malformed is null"),
            to_topic(dead, key="malformed.key", value="malformed.value", where="malformed is not null"),
        )
    )
    place.finish(writer)
    assert place.written() == [ONE]
    assert [(each.key, each.value) for each in committed_records(place.client, dead)] == [(b"raw", b"junk")]


@pytest.mark.gate(0)
def test_an_unavailable_registry_fails_the_query_and_spoils_no_record(place: Place) -> None:
    place.send(schema(), ONE)
    rows = place.read(onMalformed="null", schema_registry_max_retries="0", value_schema=schema())
    place.registry.set_status(503)
    with pytest.raises(PySparkException, match="answered 503 about schema 1"):
        rows.collect()
    place.registry.set_status(None)
    assert rows.count() == 1


@pytest.mark.gate(0)
def test_a_query_writes_what_confluents_deserializer_reads(place: Place) -> None:
    place.send(schema(), ONE, TWO)
    place.registry.register(f"{place.target}-value", schema(NOTE))
    place.run(place.stream().select("key", "value"))
    assert place.written() == [{**ONE, "note": None}, {**TWO, "note": None}]


@pytest.mark.gate(0)
def test_a_query_goes_on_with_the_version_that_it_began_with(place: Place) -> None:
    """[SPK-30] A batch that was decided comes again, and has the bytes that it had."""
    first = place.registry.register(f"{place.target}-value", schema())
    place.send(schema(), ONE)
    place.run(place.stream().select("key", "value"))
    second = place.registry.register(f"{place.target}-value", schema(NOTE))
    # As after a crash between the decision and Spark's own log: the batch comes again, and is compared.
    for name in ("0", ".0.crc"):
        (place.checkpoint / "commits" / name).unlink(missing_ok=True)
    place.send(schema(), TWO)
    place.run(place.stream().select("key", "value"))
    assert place.written() == [ONE, TWO]
    values = [each.value for each in committed_records(place.client, place.target)]
    assert {int.from_bytes(value[1:5], "big") for value in values if value} == {first}
    place.send(schema(), {"id": "c", "cents": 3})
    place.run(place.stream().select("key", "value"), value_schema=schema(NOTE))
    values = [each.value for each in committed_records(place.client, place.target)]
    assert {int.from_bytes(value[1:5], "big") for value in values if value} == {first, second}


@pytest.mark.gate(0)
def test_nothing_is_registered_unasked(place: Place) -> None:
    place.send(schema(), ONE)
    with pytest.raises(
        StreamingQueryException, match=r"(?s)not found.*auto\.register\.schemas.*One for these"
    ):
        place.run(place.stream().select("value"))
    assert place.written() == []
    place.run(place.stream().select("value"), auto_register_schemas="true")
    assert place.written() == [ONE]


@pytest.mark.gate(0)
def test_columns_that_do_not_fit_stop_the_query_before_anything_is_written(place: Place) -> None:
    place.send(schema(), ONE)
    place.registry.register(f"{place.target}-value", schema())
    frame = place.stream().selectExpr("named_struct('id', 1, 'more', value.cents) as value")
    with pytest.raises(
        StreamingQueryException, match=r"(?s)value\.id: is int32.*value\.more.*value\.cents"
    ) as info:
        place.run(frame)
    assert "nothing of it is written" in str(info.value)
    assert place.written() == []


@pytest.mark.gate(0)
def test_a_row_that_does_not_fit_takes_back_its_batch(place: Place) -> None:
    place.send(schema(), ONE, TWO)
    place.registry.register(f"{place.target}-value", schema())
    frame = place.stream().selectExpr(
        "named_struct('id', nullif(value.id, 'b'), 'cents', value.cents) as value"
    )
    with pytest.raises(StreamingQueryException, match="column value: row 1 of the column cannot be encoded"):
        place.run(frame)
    assert place.written() == []


@pytest.mark.gate(0)
def test_a_batch_write_encodes_keys_and_values(place: Place) -> None:
    rows = place.spark.createDataFrame([("k", ("a", 1))], "key string, value struct<id:string,cents:int>")
    options = {"transactional.id.prefix": place.target, "topic": place.target}
    options |= place.options(key_format="avro", key_schema='"string"', auto_register_schemas="true")
    rows.write.format("tallystick").mode("append").options(**options).save()
    assert place.written() == [ONE]
    (record,) = committed_records(place.client, place.target)
    assert record.key is not None
    assert record.key[5:] == b"\x02k"


def test_json_with_a_schema_is_read_and_written(place: Place) -> None:
    properties = {"id": {"type": "string"}, "cents": {"type": "integer"}}
    text = json.dumps({"title": "Order", "type": "object", "properties": properties, "required": ["id"]})
    with SchemaRegistryClient({"url": place.registry.url}) as client:
        settings = {**place.client, "value.serializer": JSONSerializer(text, client)}
        with Producer[bytes, Any](settings) as producer:
            producer.send(place.source, ONE).result(10)
    place.send_bytes(b"junk")
    place.registry.register(f"{place.target}-value", text, "JSON")
    rows = place.read(value_format="json", onMalformed="null")
    assert [row.value and tuple(row.value) for row in rows.orderBy("offset").collect()] == [("a", 1), None]
    frame = place.stream(value_format="json", onMalformed="null").where("malformed is null")
    place.run(frame.select("value"), value_format="json")
    (record,) = committed_records(place.client, place.target)
    assert record.value is not None
    read = JSONDeserializer(text)
    assert read(record.value, SerializationContext(place.target, MessageField.VALUE)) == ONE
    with pytest.raises(PySparkException, match=r"schema 1 is of format json, and value\.format is avro"):
        place.read()
