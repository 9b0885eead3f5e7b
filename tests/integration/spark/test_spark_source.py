"""`spark.readStream.format("tallystick")` on our broker."""

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from tallystick import Admin, Producer, TopicPartition
from tallystick.admin.topics import NewTopic
from tallystick.testing import EmbeddedBroker

pytestmark = [pytest.mark.slow, pytest.mark.server, pytest.mark.broker(in_process=False)]

# What is away is asked for again over this time.
SHORT_TIMEOUTS = {"kafka__default__api__timeout__ms": 5000, "kafka__request__timeout__ms": 5000}


@pytest.fixture
def topic(admin: Admin, request: pytest.FixtureRequest) -> str:
    name = request.node.name.partition("[")[0]
    if name not in admin.list_topics():
        admin.create_topics([NewTopic(name=name, partitions=2)]).all()
    return name


def fill(broker: EmbeddedBroker, topic: str, **counts: int) -> None:
    """Records into partitions: `fill(broker, topic, p0=5)`."""
    with Producer({"bootstrap.servers": broker.bootstrap_servers}) as producer:
        for partition, count in counts.items():
            for _ in range(count):
                producer.send(topic, value=b"v", partition=int(partition.removeprefix("p")))


class Query:
    """A query that reads all there is at each `run`, as told by its checkpoint; and what it read.

    batches: number and rows (partition, offset) of every batch that ran, again or not
    """

    def __init__(self, spark: SparkSession, home: Path, broker: EmbeddedBroker, **options: object) -> None:
        self._spark, self._home = spark, home
        self._options = {
            "kafka.bootstrap.servers": broker.bootstrap_servers,
            "startingOffsets": "earliest",
            **{name.replace("__", "."): str(value) for name, value in options.items()},
        }
        self.batches: list[tuple[int, list[tuple[int, int]]]] = []

    def run(self) -> list[dict[str, Any]]:
        """Until everything is read; the progress of each batch."""
        rows = self._spark.readStream.format("tallystick").options(**self._options).load()
        query = (
            rows.select("partition", "offset")
            .writeStream.foreachBatch(self._keep)
            .option("checkpointLocation", str(self._home))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(100)
        return [json.loads(each.json) for each in query.recentProgress]

    def _keep(self, rows: DataFrame, number: int) -> None:
        found = sorted((row.partition, row.offset) for row in rows.collect())
        self.batches.append((number, found))

    @property
    def rows(self) -> list[tuple[int, int]]:
        return sorted(row for _, found in self.batches for row in found)

    @property
    def stopped_at(self) -> dict[str, dict[str, int]]:
        logs = sorted((self._home / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
        return json.loads(logs[-1].read_text().splitlines()[-1])

    def forget_the_last_commit(self) -> None:
        """As after a crash, or a stop, between a batch and Spark's record of it."""
        commits = sorted((self._home / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
        commits[-1].unlink()
        crc = commits[-1].with_name(f".{commits[-1].name}.crc")
        crc.unlink(missing_ok=True)


def test_every_record_once_over_restarts(
    spark: SparkSession, broker: EmbeddedBroker, admin: Admin, topic: str, tmp_path: Path
) -> None:
    """[SPK-2] A batch that is run again has the same rows; an added partition is read from its start."""
    query = Query(spark, tmp_path, broker, subscribe=topic, maxOffsetsPerTrigger=15)
    fill(broker, topic, p0=20, p1=10)
    first, _ = query.run()
    assert first["sources"][0]["latestOffset"] == {topic: {"0": 20, "1": 10}}, "what is behind can be seen"
    assert query.batches == [
        (0, [*((0, at) for at in range(10)), *((1, at) for at in range(5))]),
        (1, [*((0, at) for at in range(10, 20)), *((1, at) for at in range(5, 10))]),
    ]
    assert query.stopped_at == {topic: {"0": 20, "1": 10}}

    query.forget_the_last_commit()
    admin.create_partitions({topic: 3}).all()
    fill(broker, topic, p0=5, p2=4)
    query.run()
    assert query.batches[2] == query.batches[1]
    query.batches.pop(2)
    assert query.rows == [(part, at) for part, count in enumerate((25, 10, 4)) for at in range(count)]
    assert query.stopped_at == {topic: {"0": 25, "1": 10, "2": 4}}
    seen = len(query.batches)
    query.run()
    assert len(query.batches) == seen, "nothing new, no batch"


@pytest.mark.gate(0)
def test_nothing_undecided_and_nothing_aborted(
    spark: SparkSession, broker: EmbeddedBroker, topic: str, tmp_path: Path
) -> None:
    """Batches end at the last stable offset; what is aborted is no data loss, even if it is all there is."""
    query = Query(spark, tmp_path, broker, subscribe=topic)
    config = {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": topic}
    with Producer(config) as producer:
        producer.init_transactions()
        for commit in (False, True):
            producer.begin_transaction()
            for _ in range(5):
                producer.send(topic, value=b"v", partition=0)
            producer.flush()
            query.run()
            assert not query.rows, "the transaction is open"
            producer.commit_transaction() if commit else producer.abort_transaction()
            query.run()
            assert query.stopped_at[topic]["0"] == (12 if commit else 6), "past the marker"
    assert query.rows == [(0, at) for at in range(6, 11)]


@pytest.mark.gate(0)
def test_records_that_aged_out(
    spark: SparkSession, broker: EmbeddedBroker, admin: Admin, topic: str, tmp_path: Path
) -> None:
    query = Query(spark, tmp_path, broker, subscribe=topic)
    fill(broker, topic, p0=5)
    query.run()
    fill(broker, topic, p0=10)
    admin.delete_records({TopicPartition(topic, 0): 8}).all()
    with pytest.raises(StreamingQueryException, match="offset 5 cannot be read"):
        query.run()
    lenient = Query(spark, tmp_path, broker, subscribe=topic, failOnDataLoss="false")
    lenient.run()
    assert lenient.rows == [(0, at) for at in range(8, 15)]


@pytest.mark.gate(0)
def test_a_topic_made_anew(
    spark: SparkSession, broker: EmbeddedBroker, admin: Admin, topic: str, tmp_path: Path
) -> None:
    query = Query(spark, tmp_path, broker, subscribe=topic, **SHORT_TIMEOUTS)
    fill(broker, topic, p0=5)
    query.run()
    logged = query.stopped_at
    admin.delete_topics([topic]).all()
    with pytest.raises(StreamingQueryException, match=f"gone since they were last read: {topic}-0"):
        query.run()
    assert query.stopped_at == logged, "it goes on when the topic is back"
    admin.create_topics([NewTopic(name=topic, partitions=2)]).all()
    fill(broker, topic, p0=2)
    with pytest.raises(StreamingQueryException, match="was read up to offset 5 and ends at 2 now"):
        query.run()


@pytest.mark.gate(0)
def test_a_checkpoint_that_is_ahead_of_the_last_stable_offset(
    spark: SparkSession, broker: EmbeddedBroker, topic: str, tmp_path: Path
) -> None:
    """A query that went on from `read_uncommitted`, as Spark's own source reads, waits; nothing is lost."""
    config = {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": topic}
    with Producer(config) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, value=b"v", partition=0)
        producer.flush()
        before = Query(spark, tmp_path, broker, subscribe=topic, kafka__isolation__level="read_uncommitted")
        before.run()
        assert before.stopped_at[topic]["0"] == 1
        after = Query(spark, tmp_path, broker, subscribe=topic)
        after.run()
        assert not after.rows
        producer.send(topic, value=b"v", partition=0)
        producer.commit_transaction()
    after.run()
    assert (before.rows, after.rows) == ([(0, 0)], [(0, 1)])


@pytest.mark.parametrize("trigger", [{"continuous": "1 second"}, {"realTime": "5 minutes"}], ids=str)
def test_modes_without_batches_are_refused(
    spark: SparkSession, broker: EmbeddedBroker, topic: str, tmp_path: Path, trigger: dict[str, str]
) -> None:
    rows = spark.readStream.format("tallystick").option("subscribe", topic)
    stream = (
        rows.option("kafka.bootstrap.servers", broker.bootstrap_servers).load().writeStream.format("noop")
    )
    query = stream.option("checkpointLocation", str(tmp_path)).trigger(**trigger)
    with pytest.raises(PySparkException, match=r"(?i)continuous|real.?time"):
        query.start().awaitTermination(60)
