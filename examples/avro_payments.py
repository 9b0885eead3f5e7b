"""A payment is a row in a database and an Avro record in Kafka, or neither, with a schema registry between.

    $ python examples/avro_payments.py coffee tea

It brings what it needs along: a broker and a schema registry that live as long as the program, and SQLite. In
a service these three are addresses, and nothing else changes. It needs `pip install '.[schemas,sql]'`.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from sqlalchemy import Engine, create_engine, text

from tallystick import Consumer, TopicPartition
from tallystick.dualwrite import DualWriter, SqlStore
from tallystick.errors import SerializationFailed
from tallystick.testing import EmbeddedBroker, SchemaRegistry

PAYMENT = """{
  "type": "record", "name": "Payment", "namespace": "shop",
  "fields": [{"name": "what", "type": "string"}, {"name": "cents", "type": "int"}]
}"""


def pay(writer: DualWriter[Any], what: str, cents: object) -> None:
    """Make one payment in both, or in neither: a record that does not fit its schema takes the row back."""
    with writer.transaction() as txn:
        txn.connection.execute(text("INSERT INTO payments VALUES (:what)"), {"what": what})
        txn.send("payments", {"what": what, "cents": cents})


def read_rows(engine: Engine) -> list[str]:
    """Return what the database has."""
    with engine.connect() as connection:
        return list(connection.execute(text("SELECT what FROM payments")).scalars())


def read_records(servers: str, client: SchemaRegistryClient) -> list[dict[str, Any]]:
    """Return what a reader of committed records gets, as objects."""
    settings = {
        "bootstrap.servers": servers,
        "isolation.level": "read_committed",
        "value.deserializer": AvroDeserializer(client),
    }
    at = TopicPartition("payments", 0)
    with Consumer[bytes, dict[str, Any]](settings) as consumer:
        consumer.assign([at])
        consumer.seek_to_beginning()
        values = []
        while consumer.position(at) < consumer.end_offsets([at])[at]:
            values += [record.value for record in consumer.poll(1.0) if record.value is not None]
        return values


def run(servers: str, registry_url: str, engine: Engine, payments: list[str]) -> list[dict[str, Any]]:
    """Pay for everything, fail once, and return the records."""
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE payments (what TEXT)"))
    store = SqlStore(engine)
    store.create()
    with SchemaRegistryClient({"url": registry_url}) as client:
        config = {
            "bootstrap.servers": servers,
            "transactional.id": "payments-1",
            "value.serializer": AvroSerializer(client, PAYMENT),
        }
        with DualWriter(store, config) as writer:
            print(writer.recover())
            for what in payments:
                pay(writer, what, 350)
            try:
                pay(writer, "free lunch", "nothing")
            except SerializationFailed as exc:
                print(f"refused, in both: {exc}")
        return read_records(servers, client)


def main(*payments: str) -> None:
    """Print what both sides have."""
    with EmbeddedBroker() as broker, SchemaRegistry() as registry, tempfile.TemporaryDirectory() as folder:
        engine = create_engine(f"sqlite:///{Path(folder) / 'payments.db'}")
        records = run(broker.bootstrap_servers, registry.url, engine, list(payments))
        print("rows:", read_rows(engine))
        print("records:", records)
        engine.dispose()


if __name__ == "__main__":
    main(*sys.argv[1:])
