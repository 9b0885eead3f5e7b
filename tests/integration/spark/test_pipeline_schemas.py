"""Pipelines over Avro and JSON Schema: topics, a table, and what cannot be decoded, in one decision."""

import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pyspark.sql import SparkSession
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool
from tests.support.dual_world import new_name
from tests.support.reading import committed_records

from tallystick import Admin, Consumer, Producer, TopicPartition
from tallystick.admin.topics import NewTopic
from tallystick.kernel.settings import BadConfig
from tallystick.pipeline import Pipeline
from tallystick.pipeline.definition_toml import parse_definition
from tallystick.testing import EmbeddedBroker, SchemaRegistry

pytestmark = [pytest.mark.slow, pytest.mark.server, pytest.mark.broker(in_process=False)]


def schema(*fields: tuple[str, object]) -> str:
    named = [{"name": name, "type": kind} for name, kind in fields]
    return json.dumps({"type": "record", "name": "Order", "fields": named})


ORDER = schema(("id", "string"), ("cents", "int"))
PAID = schema(("id", ["null", "string"]), ("euros", ["null", "double"]))

TOPICS = """
name = "{name}"
checkpoint = "{folder}/state"
[kafka]
"bootstrap.servers" = "{servers}"
[schema-registry]
url = "{url}"
[sources.orders]
topics = ["{name}.in"]
format = "avro"
malformed = "dead-letter"
dead-letter = "{name}.dead"
[[transforms]]
name = "paid"
sql = "SELECT id, cents / 100 AS euros FROM orders"
[outputs.all]
from = "paid"
[[outputs.all.sinks]]
topic = "{name}.out"
format = "avro"
key = "id"
key-format = "avro"
key-schema = '"string"'
"""
TABLE = """
[[outputs.all.sinks]]
table = "paid"
database = "sqlite:///{folder}/paid.db"
"""


class Place:
    def __init__(self, broker: EmbeddedBroker, registry: SchemaRegistry, folder: Path) -> None:
        self.name = new_name().replace("-", "_")
        self.client = {"bootstrap.servers": broker.bootstrap_servers}
        self.registry, self.folder = registry, folder
        with Admin(self.client) as admin:
            names = [f"{self.name}.{each}" for each in ("in", "out", "dead")]
            admin.create_topics([NewTopic(name=name) for name in names]).all()

    def pipeline(self, text: str) -> Pipeline:
        filled = text.format(
            name=self.name,
            folder=self.folder,
            servers=self.client["bootstrap.servers"],
            url=self.registry.url,
        )
        return Pipeline(parse_definition(filled, "pipeline.toml"))

    def send(self) -> None:
        with SchemaRegistryClient({"url": self.registry.url}) as client:
            settings = {**self.client, "value.serializer": AvroSerializer(client, ORDER)}
            with Producer[bytes, Any](settings) as producer:
                producer.send(f"{self.name}.in", {"id": "a", "cents": 150}).result(10)
        with Producer(self.client) as producer:
            producer.send(f"{self.name}.in", b"junk", b"k").result(10)
            producer.send(f"{self.name}.in", None, b"none").result(10)

    def out(self) -> list[Any]:
        at = TopicPartition(f"{self.name}.out", 0)
        with SchemaRegistryClient({"url": self.registry.url}) as client:
            reader = AvroDeserializer(client)
            settings = {"key.deserializer": reader, "value.deserializer": reader}
            more = {**self.client, "isolation.level": "read_committed"}
            with Consumer[str, Any]({**more, **settings}) as consumer:
                consumer.assign([at])
                consumer.seek_to_beginning()
                end, records = consumer.end_offsets([at])[at], []
                while consumer.position(at) < end:
                    records += consumer.poll(1.0)
        return [(record.key, record.value) for record in records]

    def dead(self) -> list[tuple[bytes | None, bytes | None, str]]:
        records = committed_records(self.client, f"{self.name}.dead")
        return [
            (each.key, each.value, (dict(each.headers)["tallystick.reason"] or b"").decode())
            for each in records
        ]


@pytest.fixture
def place(broker: EmbeddedBroker, tallystick_schema_registry: SchemaRegistry, tmp_path: Path) -> Place:
    return Place(broker, tallystick_schema_registry, tmp_path)


@pytest.mark.gate(0)
@pytest.mark.parametrize("more", ["", TABLE], ids=["topics", "topics and a table"])
def test_what_is_decoded_and_what_is_not_are_one_decision(
    spark: SparkSession, place: Place, more: str
) -> None:
    place.send()
    place.registry.register(f"{place.name}.out-key", '"string"')
    place.registry.register(f"{place.name}.out-value", PAID)
    engine = create_engine(f"sqlite:///{place.folder}/paid.db", poolclass=NullPool)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE paid (id TEXT, euros DOUBLE)"))
    with place.pipeline(TOPICS + more).start(once=True, spark=spark) as running:
        running.wait()
    assert place.out() == [("a", {"id": "a", "euros": 1.5})]
    dead = sorted(place.dead(), key=str)
    assert [each[:2] for each in dead] == [(b"k", b"junk"), (b"none", None)]
    assert "no schema id" in dead[0][2]
    assert dead[1][2] == "value: there is none"
    with engine.connect() as connection:
        rows = list(connection.execute(text("SELECT id, euros FROM paid")))
    assert rows == ([("a", 1.5)] if more else [])
    engine.dispose()


@pytest.mark.gate(0)
def test_schemas_that_are_missing_or_do_not_fit_are_said_with_their_path(
    spark: SparkSession, place: Place
) -> None:
    with pytest.raises(BadConfig, match=r"sources\.orders: value\.format=avro: .*Subject .* not found"):
        place.pipeline(TOPICS).start(once=True, spark=spark)
    place.send()
    with pytest.raises(BadConfig, match=r"outputs\.all\.sinks\[0\]\.key: .*this schema under subject"):
        place.pipeline(TOPICS).start(once=True, spark=spark)
    place.registry.register(f"{place.name}.out-key", '"string"')
    place.registry.register(f"{place.name}.out-value", ORDER)
    with pytest.raises(BadConfig, match=r"sinks\[0\]\.value: schema 1: value\.euros: the schema has no such"):
        place.pipeline(TOPICS).start(once=True, spark=spark)


@pytest.mark.gate(0)
def test_json_with_a_registered_schema_is_a_format_of_its_own(spark: SparkSession, place: Place) -> None:
    properties = {"id": {"type": "string"}, "cents": {"type": "integer"}}
    order = json.dumps({"title": "Order", "type": "object", "properties": properties, "required": ["id"]})
    paid = order.replace("cents", "euros").replace("integer", "number")
    with SchemaRegistryClient({"url": place.registry.url}) as client:
        settings = {**place.client, "value.serializer": JSONSerializer(order, client)}
        with Producer[bytes, Any](settings) as producer:
            producer.send(f"{place.name}.in", {"id": "a", "cents": 150}).result(10)
    with Producer(place.client) as producer:
        producer.send(f"{place.name}.in", b'{"id": "without a schema"}').result(10)
    place.registry.register(f"{place.name}.out-value", paid, "JSON")
    changed = TOPICS.replace('"avro"', '"json-schema"').replace(
        """'"string"'""", """'{{"type": "string"}}'"""
    )
    place.registry.register(f"{place.name}.out-key", '{"type": "string"}', "JSON")
    with place.pipeline(changed).start(once=True, spark=spark) as running:
        running.wait()
    (record,) = committed_records(place.client, f"{place.name}.out")
    assert record.value is not None
    read = JSONDeserializer(paid)
    context = SerializationContext(f"{place.name}.out", MessageField.VALUE)
    assert read(record.value, context) == {"id": "a", "euros": 1.5}
    ((_, dead, reason),) = place.dead()
    assert dead == b'{"id": "without a schema"}'
    assert "no schema id" in reason
