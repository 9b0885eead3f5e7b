"""What a query says when it cannot go on, as its owner reads it: what happened, what is safe, what to do.

The rows of the topic `in` are numbers, 50 in each of two partitions; no test writes to it.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from tools.servers.broker_process import find_free_port

from tallystick import Admin, Producer, TopicPartition
from tallystick.admin.topics import NewTopic
from tallystick.testing import EmbeddedBroker

pytestmark = [pytest.mark.slow, pytest.mark.server]

HALF = 50


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(config={"auto.create.topics.enable": "false", "num.partitions": 2}) as running:
        with Admin({"bootstrap.servers": running.bootstrap_servers}) as admin:
            admin.create_topics([NewTopic(name=name) for name in ("in", "out", "trimmed")]).all()
        send(running, "in")
        send(running, "trimmed")
        yield running


def send(broker: EmbeddedBroker, topic: str) -> None:
    with Producer({"bootstrap.servers": broker.bootstrap_servers}) as producer:
        for number in range(2 * HALF):
            producer.send(topic, b"%d" % number, partition=number % 2)


class Query:
    """From the topic `in` to the topic `out`, under a prefix and with a checkpoint of the test's own."""

    def __init__(self, spark: SparkSession, broker: EmbeddedBroker, folder: Path, name: str) -> None:
        self.spark, self.checkpoint = spark, str(folder / "checkpoint")
        self.cluster = {"kafka.bootstrap.servers": broker.bootstrap_servers}
        self.sink = {"topic": "out", "transactional.id.prefix": name}

    def rows(self, *columns: str, **options: str) -> DataFrame:
        source = {"subscribe": "in", "startingOffsets": "earliest", **self.cluster, **options}
        return self.spark.readStream.format("tallystick").options(**source).load().selectExpr(*columns)

    def run(self, rows: DataFrame, **options: str) -> None:
        """All that is there."""
        writer = rows.writeStream.format("tallystick").options(**{**self.cluster, **self.sink, **options})
        checkpointed = writer.option("checkpointLocation", self.checkpoint)
        checkpointed.trigger(availableNow=True).start().awaitTermination()

    def says(self, rows: DataFrame, **options: str) -> str:
        """Why it ended."""
        with pytest.raises(StreamingQueryException) as raised:
            self.run(rows, **options)
        return str(raised.value)


@pytest.fixture
def query(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path, request: pytest.FixtureRequest
) -> Query:
    return Query(spark, broker, tmp_path, request.node.name)


def test_no_prefix(query: Query) -> None:
    del query.sink["transactional.id.prefix"]
    said = query.says(query.rows("value"))
    assert "transactional.id.prefix: is missing: a name for this query that stays over restarts" in said


@pytest.mark.gate(0)
def test_the_brokers_are_away_when_a_batch_begins(query: Query) -> None:
    away = {"kafka.bootstrap.servers": f"127.0.0.1:{find_free_port()}", "kafka.max.block.ms": "2000"}
    said = query.says(query.rows("value"), **away)
    assert "NotBegun: the batch has not begun, and nothing of it is written. TimedOut: " in said
    assert "Connection refused" in said
    assert "erialize" not in said


@pytest.mark.gate(0)
def test_the_topic_is_missing(query: Query) -> None:
    said = query.says(query.rows("value"), topic="nobody-made-it", **{"kafka.max.block.ms": "2000"})
    assert "UNKNOWN_TOPIC_OR_PARTITION" in said
    assert "nobody-made-it" in said


@pytest.mark.gate(0)
def test_rows_without_a_topic(query: Query) -> None:
    del query.sink["topic"]
    said = query.says(query.rows("value", "if(offset < 20, 'out', null) AS topic"))
    assert "InvalidRows: 30 of 50 rows have no topic" in said
    assert "nothing of this batch was decided" in said


@pytest.mark.gate(0)
def test_rows_that_aged_out(query: Query, broker: EmbeddedBroker) -> None:
    """The error says where the log begins now: 20 lost rows call for another decision than a million."""
    rows = query.rows("value", subscribe="trimmed")  # its own topic: the other tests count the rows of `in`
    query.run(rows)
    send(broker, "trimmed")
    with Admin({"bootstrap.servers": broker.bootstrap_servers}) as admin:
        admin.delete_records({TopicPartition("trimmed", 0): HALF + 20}).all()
    said = query.says(rows)
    assert "DataLoss: trimmed-0 [50, 100): " in said
    assert "it has offsets 70 to 100 now" in said
    assert "failOnDataLoss" in said
