"""Queries that move: from Spark's own source and sink to ours, and with their cluster to two-phase commit."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from tests.support.reading import committed_records
from tests.support.spark_deaf import DeafSource

from tallystick import Admin, Producer
from tallystick.admin.topics import NewTopic
from tallystick.spark.sink.driver.recovery import resolve
from tallystick.testing import EmbeddedBroker

pytestmark = [pytest.mark.gate(0), pytest.mark.server]

PARTITIONS = 2


class Topics:
    """Two topics of a broker: numbers go into `in`, and a query writes them to `out`."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        self.client = {"bootstrap.servers": broker.bootstrap_servers}
        self.kafka = {"kafka.bootstrap.servers": broker.bootstrap_servers}
        self.sent = 0

    def create(self) -> None:
        with Admin(self.client) as admin:
            admin.create_topics(NewTopic(name=name, partitions=PARTITIONS) for name in ("in", "out")).all()

    def send(self, count: int) -> None:
        with Producer(self.client) as producer:
            for number in range(self.sent, self.sent + count):
                producer.send("in", b"%d" % number, partition=number % PARTITIONS)
        self.sent += count

    def run(self, spark: SparkSession, form: str, checkpoint: Path, **to_sink: str) -> None:
        """All that is there, from `in` to `out`; source and sink are of the same kind."""
        source = {**self.kafka, "subscribe": "in", "startingOffsets": "earliest"}
        rows = spark.readStream.format("kafka" if form == "kafka" else "tallystick").options(**source).load()
        writer = rows.select("key", "value").writeStream.format(form).options(**self.kafka, topic="out")
        writer = writer.options(**to_sink).option("checkpointLocation", str(checkpoint))
        writer.trigger(availableNow=True).start().awaitTermination()

    def written(self) -> Counter[bytes]:
        """What readers of committed records find in `out`."""
        records = committed_records(self.client, "out", PARTITIONS)
        return Counter(record.value for record in records if record.value is not None)

    @property
    def expected(self) -> Counter[bytes]:
        return Counter(b"%d" % number for number in range(self.sent))

    def open_transactions(self) -> int:
        with Admin(self.client) as admin:
            return sum(map(len, admin.list_transactions(states=("Ongoing",)).all().values()))


@pytest.mark.usefixtures("spark_kafka_jars")
def test_a_query_of_sparks_own_source_and_sink_moves_to_ours(spark: SparkSession, tmp_path: Path) -> None:
    """[SPK-2] With its checkpoint: the format's name is changed, and a prefix is given."""
    with EmbeddedBroker() as broker:
        topics = Topics(broker)
        topics.create()
        for _ in range(2):
            topics.send(10)
            topics.run(spark, "kafka", tmp_path)
        topics.send(10)
        for adopt in ({"onNewPrefix": "adopt"}, {}):
            topics.run(spark, "tallystick", tmp_path, **{"transactional.id.prefix": "moved"}, **adopt)
            assert topics.written() == topics.expected
            topics.send(5)


def test_two_phase_commit_is_enabled_under_a_batch_in_doubt(spark: SparkSession, tmp_path: Path) -> None:
    """The talk's way up: decided in `resume`, finished and gone on with in `2pc`, with the code unchanged."""
    options = {"transactional.id.prefix": "up", "tallystick.modes": "2pc,resume"}
    checkpoint, data = tmp_path / "checkpoint", tmp_path / "data"
    spark.dataSource.register(DeafSource)
    without: dict[str, Any] = {"transaction.two.phase.commit.enable": "false"}
    with EmbeddedBroker(data, config=without) as broker:
        topics = Topics(broker)
        topics.create()
        topics.send(10)
        with pytest.raises(StreamingQueryException):
            topics.run(spark, "deaf", checkpoint, **options)
        assert topics.open_transactions() == PARTITIONS
        assert mode_of_last(topics) == "resume"
        port = int(broker.bootstrap_servers.rpartition(":")[2])
    upgraded = {"listeners": f"PLAINTEXT://127.0.0.1:{port}"}
    with EmbeddedBroker(data, config=upgraded) as broker:
        assert topics.client["bootstrap.servers"] == broker.bootstrap_servers
        topics.send(10)
        topics.run(spark, "tallystick", checkpoint, **options)
        assert topics.written() == topics.expected
        assert mode_of_last(topics) == "2pc"
        assert topics.open_transactions() == 0


def mode_of_last(topics: Topics) -> str:
    decision = resolve("up", topics.client, dry_run=True).decision
    assert decision is not None
    return decision.mode
