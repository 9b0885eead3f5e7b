"""`spark.read.format("tallystick")` on our broker."""

import datetime as dt
import json

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tallystick import Admin, Producer, TopicPartition
from tallystick.admin.topics import NewTopic
from tallystick.testing import EmbeddedBroker

pytestmark = [pytest.mark.slow, pytest.mark.server, pytest.mark.broker(in_process=False)]


@pytest.fixture
def topic(broker: EmbeddedBroker, request: pytest.FixtureRequest) -> str:
    name = request.node.name.partition("[")[0]
    make(broker, name, 2)
    return name


def make(broker: EmbeddedBroker, name: str, partitions: int) -> None:
    with Admin({"bootstrap.servers": broker.bootstrap_servers}) as admin:
        admin.create_topics([NewTopic(name=name, partitions=partitions)]).all()


def fill(broker: EmbeddedBroker, topic: str, count: int, partition: int = 0, *, first: int = 0) -> None:
    with Producer({"bootstrap.servers": broker.bootstrap_servers}) as producer:
        for number in range(first, first + count):
            producer.send(topic, value=b"%d" % number, partition=partition, timestamp_ms=1_000 * number)


def transact(broker: EmbeddedBroker, topic: str, count: int, *, commit: bool) -> None:
    config = {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": f"t-{topic}"}
    with Producer(config) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        for number in range(count):
            producer.send(topic, value=b"%d" % number, partition=0)
        producer.flush()  # what is aborted before it was sent leaves no trace in the log
        producer.commit_transaction() if commit else producer.abort_transaction()


def read(spark: SparkSession, broker: EmbeddedBroker, **options: object) -> DataFrame:
    reader = spark.read.format("tallystick").option("kafka.bootstrap.servers", broker.bootstrap_servers)
    for name, value in options.items():
        reader = reader.option(name.replace("__", "."), value)
    return reader.load()


def offsets(frame: DataFrame) -> list[tuple[int, int]]:
    return sorted((row.partition, row.offset) for row in frame.select("partition", "offset").collect())


def test_a_topic_is_a_table(spark: SparkSession, broker: EmbeddedBroker, topic: str) -> None:
    with Producer({"bootstrap.servers": broker.bootstrap_servers}) as producer:
        producer.send(topic, value=b"v", key=b"k", partition=1, timestamp_ms=1_500, headers=[("h", b"1")])
        producer.send(topic, value=None, partition=1, timestamp_ms=2_000)
    frame = read(spark, broker, subscribe=topic, includeHeaders=True)
    first, second = frame.orderBy("offset").collect()
    assert (bytes(first.key), bytes(first.value), first.topic, first.partition) == (b"k", b"v", topic, 1)
    assert first.timestamp == dt.datetime(1970, 1, 1, 0, 0, 1, 500_000)  # noqa: DTZ001 -- Spark has no zone there
    assert first.timestampType == 0
    assert [(header.key, bytes(header.value)) for header in first.headers] == [("h", b"1")]
    assert second.key is None
    assert second.value is None
    assert second.headers == []
    assert read(spark, broker, subscribe=topic).columns == frame.columns[:-1]


def test_all_visible_records_of_a_range_and_no_others(
    spark: SparkSession, broker: EmbeddedBroker, topic: str
) -> None:
    """[SPK-1] Markers and aborted records are stepped over, at the end of the range, too."""
    fill(broker, topic, 5)
    transact(broker, topic, 5, commit=False)  # 5..9, and its marker at 10
    transact(broker, topic, 5, commit=True)  # 11..15, marker 16
    transact(broker, topic, 5, commit=False)  # 17..21, marker 22
    seen = [*range(5), *range(11, 16)]
    assert offsets(read(spark, broker, subscribe=topic)) == [(0, at) for at in seen]
    everything = read(spark, broker, subscribe=topic, kafka__isolation__level="read_uncommitted")
    assert offsets(everything) == [(0, at) for at in range(22) if at not in (10, 16)]
    cut = read(spark, broker, subscribe=topic, minPartitions=11)
    assert cut.rdd.getNumPartitions() == 11
    assert offsets(cut) == [(0, at) for at in seen]


@pytest.mark.gate(0)
def test_a_topic_of_many_batches(spark: SparkSession, broker: EmbeddedBroker, topic: str) -> None:
    with Producer({"bootstrap.servers": broker.bootstrap_servers}) as producer:
        for partition in (0, 1):
            for number in range(30_000):
                producer.send(topic, value=b"%0100d" % number, partition=partition)
    frame = read(spark, broker, subscribe=topic, maxRecordsPerPartition=25_000)
    assert frame.rdd.getNumPartitions() == 4
    assert offsets(frame) == [(partition, at) for partition in (0, 1) for at in range(30_000)]


@pytest.mark.gate(0)
def test_where_to_begin_and_to_end(spark: SparkSession, broker: EmbeddedBroker, topic: str) -> None:
    fill(broker, topic, 10)
    fill(broker, topic, 10, partition=1)
    both = offsets(
        read(
            spark,
            broker,
            subscribe=topic,
            startingOffsets=json.dumps({topic: {"0": 3, "1": -2}}),
            endingOffsets=json.dumps({topic: {"0": -1, "1": 4}}),
        )
    )
    assert both == [*((0, at) for at in range(3, 10)), *((1, at) for at in range(4))]
    timed = read(spark, broker, subscribe=topic, startingTimestamp=2_500, endingTimestamp=5_000)
    assert offsets(timed) == [(partition, at) for partition in (0, 1) for at in (3, 4)]
    alone = read(spark, broker, assign=json.dumps({topic: [1]}))
    assert offsets(alone) == [(1, at) for at in range(10)]
    matched = read(spark, broker, subscribePattern=f"{topic[:-1]}.")
    assert matched.count() == 20
    with pytest.raises(PySparkException, match="no record has the requested start time"):
        read(spark, broker, subscribe=topic, startingTimestamp=99_000).count()
    late = read(
        spark, broker, subscribe=topic, startingTimestamp=99_000, startingOffsetsByTimestampStrategy="latest"
    )
    assert late.count() == 0


@pytest.mark.gate(0)
def test_what_is_wrong_is_said_at_once(spark: SparkSession, broker: EmbeddedBroker) -> None:
    with pytest.raises(PySparkException) as caught:
        read(spark, broker, subscribe="a", assign='{"a":[0]}', startingOfsets="earliest", minPartitions=0)
    said = str(caught.value)
    assert "did you mean startingOffsets?" in said
    assert "minPartitions: '0' is not a whole number" in said
    assert "exactly one" in said
    with pytest.raises(PySparkException, match="a batch cannot start at latest"):
        read(spark, broker, subscribe="a", startingOffsets="latest").count()
    with pytest.raises(PySparkException, match=r"not in the cluster at .*: no-such-topic"):
        read(spark, broker, subscribe="no-such-topic").count()


@pytest.mark.gate(0)
def test_records_that_are_gone(spark: SparkSession, broker: EmbeddedBroker, topic: str) -> None:
    fill(broker, topic, 10)
    with Admin({"bootstrap.servers": broker.bootstrap_servers}) as admin:
        admin.delete_records({TopicPartition(topic, 0): 6}).all()
    start = json.dumps({topic: {"0": 2, "1": 0}})
    with pytest.raises(PySparkException, match=r"offset 2 cannot be read .*failOnDataLoss"):
        read(spark, broker, subscribe=topic, startingOffsets=start).count()
    left = read(spark, broker, subscribe=topic, startingOffsets=start, failOnDataLoss=False)
    assert offsets(left) == [(0, at) for at in range(6, 10)]
    end = json.dumps({topic: {"0": 20, "1": 0}})
    with pytest.raises(PySparkException, match="the log ends at 10"):
        read(spark, broker, subscribe=topic, endingOffsets=end).count()
