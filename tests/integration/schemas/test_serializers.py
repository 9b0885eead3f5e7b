"""Serializers in every client, confluent's schema registry serializers among them, on a real broker."""

# ruff: noqa: PT012 - what a transaction raises comes at the end of its block

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient, record_subject_name_strategy
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import StringDeserializer, StringSerializer
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool
from tests.support.reading import committed_records

import tallystick
from tallystick import Consumer, Producer, TopicPartition
from tallystick.client.serializers import SerializationContext
from tallystick.dualwrite import AsyncSqlStore, DualWriter, SqlStore
from tallystick.dualwrite import aio as dualwrite_aio
from tallystick.errors import DeserializationFailed, IllegalState, SerializationFailed
from tallystick.testing import EmbeddedBroker, SchemaRegistry

pytestmark = pytest.mark.server

AVRO = (
    '{"type":"record","name":"Order","fields":[{"name":"id","type":"string"},{"name":"cents","type":"int"}]}'
)
JSON = (
    '{"title":"Order","type":"object","properties":{"id":{"type":"string"},"cents":{"type":"integer"}},'
    '"required":["id"]}'
)
ORDER = {"id": "o-1", "cents": 350}


@pytest.fixture
def client(tallystick_schema_registry: SchemaRegistry) -> Iterator[SchemaRegistryClient]:
    with SchemaRegistryClient({"url": tallystick_schema_registry.url, "max.retries": 0}) as client:
        yield client


def config(broker: EmbeddedBroker, **functions: Any) -> dict[str, Any]:
    return {
        "bootstrap.servers": broker.bootstrap_servers,
        **{name.replace("_", "."): function for name, function in functions.items()},
    }


def read(consumer: "Consumer[Any, Any]", topic: str) -> list[Any]:
    at = TopicPartition(topic, 0)
    consumer.assign([at])
    consumer.seek_to_beginning()
    end, records = consumer.end_offsets([at])[at], []
    while consumer.position(at) < end:
        records += consumer.poll(1.0)
    return records


def make_order_message() -> Any:
    """Return a message class without generated code."""
    file = descriptor_pb2.FileDescriptorProto(name="order.proto", package="demo", syntax="proto3")
    message = file.message_type.add(name="Order")
    message.field.add(name="id", number=1, type=9, label=1)
    message.field.add(name="cents", number=2, type=5, label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("demo.Order"))


def avro_pair(client: SchemaRegistryClient) -> tuple[Any, Any, Any]:
    return AvroSerializer(client, AVRO), AvroDeserializer(client), ORDER


def json_pair(client: SchemaRegistryClient) -> tuple[Any, Any, Any]:
    return JSONSerializer(JSON, client), JSONDeserializer(JSON), ORDER


def protobuf_pair(client: SchemaRegistryClient) -> tuple[Any, Any, Any]:
    message = make_order_message()
    deserializer = ProtobufDeserializer(message, {"use.deprecated.format": False})
    return ProtobufSerializer(message, client), deserializer, message(**ORDER)


@pytest.mark.parametrize("pair", [avro_pair, json_pair, protobuf_pair])
def test_confluents_serializers_work_as_they_are(
    broker: EmbeddedBroker,
    topic: str,
    client: SchemaRegistryClient,
    pair: Callable[[SchemaRegistryClient], tuple[Any, Any, Any]],
) -> None:
    serializer, deserializer, order = pair(client)
    settings = config(broker, key_serializer=StringSerializer(), value_serializer=serializer)
    with Producer[str, Any](settings) as producer:
        producer.send(topic, order, "o-1", headers=[("h", b"1")]).result(10)
        producer.send_batch(topic, [order, None], ["o-2", "o-3"]).result(10)
    assert client.get_subjects() == [f"{topic}-value"]
    settings = config(broker, key_deserializer=StringDeserializer(), value_deserializer=deserializer)
    with Consumer[str, Any](settings) as consumer:
        records = read(consumer, topic)
    assert [(record.key, record.value) for record in records] == [
        ("o-1", order),
        ("o-2", order),
        ("o-3", None),
    ]
    assert records[0].headers == (("h", b"1"),)


def test_a_refused_record_raises_before_anything_is_sent(
    broker: EmbeddedBroker, topic: str, client: SchemaRegistryClient
) -> None:
    with Producer[bytes, Any](config(broker, value_serializer=AvroSerializer(client, AVRO))) as producer:
        with pytest.raises(SerializationFailed, match=f"the value of a record for topic '{topic}'.*cents"):
            producer.send(topic, {"id": "o-1", "cents": "many"})
        with pytest.raises(SerializationFailed, match="cents"):
            producer.send_batch(topic, [ORDER, {"id": "o-1", "cents": "many"}])
        with pytest.raises(IllegalState, match="Arrow columns are not serialized"):
            producer.send_batch(topic, pa.array([b"x"]))
        with pytest.raises(IllegalState, match="Arrow columns are not serialized"):
            producer.send_arrow(pa.record_batch([pa.array([b"x"])], ["value"]), topic)
        producer.flush()
    assert committed_records(config(broker), topic) == []


def test_a_record_that_cannot_be_read_is_raised_until_it_is_skipped(
    broker: EmbeddedBroker, topic: str
) -> None:
    def number(data: bytes | None, context: SerializationContext) -> int:
        return int(data or b"")

    with Producer(config(broker)) as producer:
        producer.send_batch(topic, [b"1", b"2", b"three", b"4"]).result(10)
    at = TopicPartition(topic, 0)
    with Consumer[bytes, int](config(broker, value_deserializer=number)) as consumer:
        consumer.assign([at])
        consumer.seek_to_beginning()
        assert [record.value for record in consumer.poll(10.0)] == [1, 2]
        assert consumer.position(at) == 2
        for _ in range(2):
            with pytest.raises(
                DeserializationFailed, match=r"-0 offset 2 cannot be deserialized: ValueError"
            ) as info:
                consumer.poll(10.0)
        consumer.seek(at, info.value.offset + 1)
        assert [record.value for record in consumer.poll(10.0)] == [4]
        with pytest.raises(IllegalState, match="deserializers make objects"):
            consumer.poll_arrow(0)


def test_the_loop_goes_on_while_a_serializer_waits_for_its_registry(
    broker: EmbeddedBroker, topic: str
) -> None:
    begun, loop_went_on = threading.Event(), threading.Event()
    threads: list[str] = []

    def wait_for_registry() -> None:
        """Return when the loop has gone on, as the answer of a registry would come then."""
        threads.append(threading.current_thread().name)
        begun.set()
        if not loop_went_on.wait(60):
            raise TimeoutError

    def write(obj: str | None, context: SerializationContext) -> bytes | None:
        wait_for_registry()
        return None if obj is None else obj.encode()

    def read_text(data: bytes | None, context: SerializationContext) -> str:
        wait_for_registry()
        return (data or b"").decode()

    async def release() -> None:
        await asyncio.to_thread(begun.wait, 60)
        loop_went_on.set()

    async def story() -> list[Any]:
        async with tallystick.aio.Producer[bytes, str](config(broker, value_serializer=write)) as producer:
            delivery, _ = await asyncio.gather(producer.send(topic, "a"), release())
            await delivery
            await (await producer.send(topic, "b"))
            await (await producer.send_batch(topic, ["c"]))
        begun.clear()
        loop_went_on.clear()
        consumer = tallystick.aio.Consumer[bytes, str](config(broker, value_deserializer=read_text))
        async with consumer:
            consumer.assign([TopicPartition(topic, 0)])
            consumer.seek_to_beginning()
            records, _ = await asyncio.gather(consumer.poll(10.0), release())
            return [record.value for record in records]

    assert asyncio.run(story()) == ["a", "b", "c"]
    here = threading.current_thread().name
    assert [name == here for name in threads[:4]] == [False, True, False, False]


class Shop:
    def __init__(self, broker: EmbeddedBroker, folder: Path, topic: str, serializer: Any) -> None:
        self.topic, self.broker = topic, broker
        self.engine = create_engine(f"sqlite:///{folder / 'shop.db'}", poolclass=NullPool)
        self.config = {**config(broker, value_serializer=serializer), "transactional.id": topic}
        with self.engine.begin() as connection:
            connection.execute(text("CREATE TABLE paid (id TEXT)"))
        self.store = SqlStore(self.engine)
        self.store.create()

    def rows(self) -> list[str]:
        with self.engine.connect() as connection:
            return list(connection.execute(text("SELECT id FROM paid ORDER BY id")).scalars())

    def pay(self, txn: Any, order: dict[str, Any]) -> None:
        txn.connection.execute(text("INSERT INTO paid VALUES (:id)"), {"id": order["id"]})
        txn.send(self.topic, order)

    def sent(self) -> int:
        return len(committed_records(config(self.broker), self.topic))


@pytest.fixture
def shop(broker: EmbeddedBroker, tmp_path: Path, topic: str, client: SchemaRegistryClient) -> Iterator[Shop]:
    shop = Shop(broker, tmp_path, topic, AvroSerializer(client, AVRO))
    yield shop
    shop.engine.dispose()


BAD = {"id": "o-2", "cents": "many"}


def test_a_serializer_that_fails_takes_back_both_halves_of_a_dual_write(shop: Shop) -> None:
    with DualWriter(shop.store, shop.config) as writer:
        writer.recover()
        with pytest.raises(SerializationFailed, match="cents"), writer.transaction() as txn:
            shop.pay(txn, ORDER)
            shop.pay(txn, BAD)
        assert (shop.rows(), shop.sent()) == ([], 0)
        with writer.transaction() as txn:
            shop.pay(txn, ORDER)
    assert (shop.rows(), shop.sent()) == (["o-1"], 1)


def test_a_serializer_that_fails_in_a_savepoint_takes_back_its_rows(shop: Shop) -> None:
    with DualWriter(shop.store, shop.config) as writer:
        writer.recover()
        with writer.transaction() as txn:
            shop.pay(txn, ORDER)
            for queue in ("send", "send_batch"):
                with pytest.raises(SerializationFailed, match="cents"), txn.savepoint() as part:
                    txn.connection.execute(text("INSERT INTO paid VALUES ('o-2')"))
                    part.send(shop.topic, {"id": "o-2", "cents": 1})
                    getattr(part, queue)(shop.topic, BAD if queue == "send" else [BAD])
            with txn.savepoint() as part:
                txn.connection.execute(text("INSERT INTO paid VALUES ('o-3')"))
                part.send(shop.topic, {"id": "o-3", "cents": 1})
                part.send_batch(shop.topic, [{"id": "o-3", "cents": 2}])
    assert (shop.rows(), shop.sent()) == (["o-1", "o-3"], 3)


def test_the_same_is_true_of_an_awaited_writer(
    broker: EmbeddedBroker, tmp_path: Path, topic: str, client: SchemaRegistryClient
) -> None:
    async def story() -> list[str]:
        engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'shop.db'}", poolclass=NullPool)
        async with engine.begin() as connection:
            await connection.execute(text("CREATE TABLE paid (id TEXT)"))
        store = AsyncSqlStore(engine)
        await store.create()
        insert = text("INSERT INTO paid VALUES (:id)")
        settings = {
            **config(broker, value_serializer=AvroSerializer(client, AVRO)),
            "transactional.id": topic,
        }
        async with dualwrite_aio.DualWriter(store, settings) as writer:
            await writer.recover()
            with pytest.raises(SerializationFailed, match="cents"):
                async with writer.transaction() as txn:
                    await txn.connection.execute(insert, {"id": "o-0"})
                    await txn.send(topic, ORDER)
                    await txn.send(topic, BAD)
            async with writer.transaction() as txn:
                with pytest.raises(SerializationFailed, match="cents"):
                    async with txn.savepoint() as part:
                        await txn.connection.execute(insert, {"id": "o-2"})
                        part.send(topic, BAD)
                async with txn.savepoint() as part:
                    await txn.connection.execute(insert, {"id": "o-1"})
                    part.send(topic, ORDER)
        async with engine.connect() as connection:
            rows = list((await connection.execute(text("SELECT id FROM paid"))).scalars())
        await engine.dispose()
        return rows

    assert asyncio.run(story()) == ["o-1"]
    assert len(committed_records(config(broker), topic)) == 1


def test_a_subject_strategy_of_confluents_is_followed(
    broker: EmbeddedBroker, topic: str, client: SchemaRegistryClient
) -> None:
    settings = {"subject.name.strategy": record_subject_name_strategy}
    serializer = AvroSerializer(client, AVRO, conf=settings)
    with Producer[bytes, Any](config(broker, value_serializer=serializer)) as producer:
        producer.send(topic, ORDER).result(10)
    assert client.get_subjects() == ["Order"]
