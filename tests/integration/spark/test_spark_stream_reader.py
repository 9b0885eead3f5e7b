"""What Spark asks of a stream's reader, asked without Spark."""

import json
import pickle
from collections.abc import Iterator

import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

from tallystick import Admin, Producer
from tallystick.admin.topics import NewTopic
from tallystick.kernel.ids import TopicPartition
from tallystick.spark.data_source import build_spark_schema
from tallystick.spark.protocol.offsets import OffsetRange
from tallystick.spark.source.planner import OffsetRangePartition, SourceDataLoss, UnknownOffsets
from tallystick.spark.source.stream_reader import StreamReader
from tallystick.spark.source.task_reader import build_arrow_schema
from tallystick.testing import EmbeddedBroker

pytestmark = pytest.mark.server


@pytest.fixture
def topic(admin: Admin, request: pytest.FixtureRequest) -> str:
    name = request.node.name
    admin.create_topics([NewTopic(name=name, partitions=2)]).all()
    return name


class Clock:
    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def readers(broker: EmbeddedBroker) -> Iterator["Readers"]:
    made = Readers(broker)
    yield made
    for reader in made.open:
        reader.stop()


class Readers:
    def __init__(self, broker: EmbeddedBroker) -> None:
        self.cluster = {"kafka.bootstrap.servers": broker.bootstrap_servers}
        self.clock = Clock()
        self.open: list[StreamReader] = []

    def make(self, **options: object) -> StreamReader:
        texts = {name: str(value) for name, value in options.items()}
        options = {**self.cluster, "startingOffsets": "earliest", **texts}
        reader = StreamReader(options, self.clock, sleep=lambda seconds: None)
        self.open.append(reader)
        return reader


def fill(broker: EmbeddedBroker, topic: str, partition: int, count: int) -> None:
    with Producer({"bootstrap.servers": broker.bootstrap_servers}) as producer:
        for _ in range(count):
            producer.send(topic, value=b"v", partition=partition)


def ranges(tasks: list[OffsetRangePartition]) -> list[OffsetRange]:
    return [task.range for task in tasks]


@pytest.mark.parametrize("headers", [False, True])
def test_the_arrow_schema_is_what_spark_compares_with(headers: bool) -> None:
    """plan_data_source_read: `pa_schema.equals(first_element.schema)`."""
    assert to_arrow_schema(build_spark_schema(headers=headers), timezone="UTC").equals(
        build_arrow_schema(headers=headers)
    )


def test_a_run(broker: EmbeddedBroker, topic: str, readers: Readers) -> None:
    reader = readers.make(subscribe=topic)
    assert reader.getDefaultReadLimit() == ReadAllAvailable()
    start = reader.initialOffset()
    assert start == {topic: {"0": 0, "1": 0}}
    assert reader.reportLatestOffset() is None
    fill(broker, topic, 1, 3)
    end = reader.latestOffset(start, ReadAllAvailable())
    assert end == reader.reportLatestOffset() == {topic: {"0": 0, "1": 3}}
    assert ranges(reader.partitions(start, end)) == [OffsetRange(TopicPartition(topic, 1), 0, 3)]
    assert reader.partitions(end, end) == []
    assert reader.latestOffset(end, ReadAllAvailable()) == end


def test_both_limits(broker: EmbeddedBroker, topic: str, readers: Readers) -> None:
    """KafkaMicroBatchStream.latestOffset: the lower limit first, then the upper one."""
    reader = readers.make(
        subscribe=topic, minOffsetsPerTrigger=10, maxOffsetsPerTrigger=12, maxTriggerDelay="60s"
    )
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(12)
    start = reader.initialOffset()
    fill(broker, topic, 0, 5)
    first = reader.latestOffset(start, limit)
    assert first == {topic: {"0": 5, "1": 0}}, "the first batch of a run does not wait"
    fill(broker, topic, 0, 9)
    readers.clock.seconds += 59
    assert reader.latestOffset(first, limit) == first, "nine are not ten"
    assert reader.latestOffset(first, ReadAllAvailable()) == {topic: {"0": 14, "1": 0}}, (
        "Spark may ask for all"
    )
    fill(broker, topic, 1, 11)
    assert reader.latestOffset(first, limit) == {topic: {"0": 10, "1": 6}}, "twelve of twenty, in proportion"
    readers.clock.seconds += 60
    rest = {topic: {"0": 14, "1": 10}}
    assert reader.latestOffset(rest, limit) == {topic: {"0": 14, "1": 11}}, "one, after a minute"
    assert readers.make(subscribe=topic, minOffsetsPerTrigger=10).getDefaultReadLimit() == ReadMinRows(10)


def test_available_now_ends_where_it_began_to_look(
    broker: EmbeddedBroker, topic: str, readers: Readers
) -> None:
    """SupportsTriggerAvailableNow: "must not return an offset higher than the target offset"."""
    reader = readers.make(subscribe=topic, maxOffsetsPerTrigger=4, minOffsetsPerTrigger=3)
    fill(broker, topic, 0, 9)
    reader.prepareForTriggerAvailableNow()
    at, ends = reader.initialOffset(), []
    for _ in range(4):
        at = reader.latestOffset(at, reader.getDefaultReadLimit())
        fill(broker, topic, 0, 1)
        ends.append(at[topic]["0"])
    assert ends == [4, 8, 9, 9]


def test_topics_that_come_and_go(broker: EmbeddedBroker, admin: Admin, topic: str, readers: Readers) -> None:
    pattern = {"subscribePattern": f"{topic}.*"}
    reader, lenient = readers.make(**pattern), readers.make(**pattern, failOnDataLoss=False)
    start = reader.initialOffset()
    admin.create_topics([NewTopic(name=f"{topic}-b", partitions=1)]).all()
    fill(broker, f"{topic}-b", 0, 2)
    end = reader.latestOffset(start, ReadAllAvailable())
    assert end == {topic: {"0": 0, "1": 0}, f"{topic}-b": {"0": 2}}
    assert ranges(reader.partitions(start, end)) == [OffsetRange(TopicPartition(f"{topic}-b", 0), 0, 2)]
    admin.delete_topics([f"{topic}-b"]).all()
    with pytest.raises(SourceDataLoss, match=f"gone since they were last read: {topic}-b-0"):
        reader.latestOffset(end, ReadAllAvailable())
    assert lenient.latestOffset(end, ReadAllAvailable()) == end, "nothing of it is read again if it returns"
    assert lenient.partitions(end, end) == []
    with pytest.raises(SourceDataLoss, match=f"gone since they were last read: {topic}-b-0"):
        reader.partitions(end, start)  # as another version may have logged it


def test_a_partition_that_begins_later(
    broker: EmbeddedBroker, admin: Admin, topic: str, readers: Readers
) -> None:
    reader, lenient = readers.make(subscribe=topic), readers.make(subscribe=topic, failOnDataLoss=False)
    fill(broker, topic, 1, 5)
    admin.delete_records({TopicPartition(topic, 1): 3}).all()
    start, end = {topic: {"0": 0}}, {topic: {"0": 0, "1": 5}}
    for ask in (
        lambda: reader.latestOffset(start, ReadAllAvailable()),
        lambda: reader.partitions(start, end),
    ):
        with pytest.raises(SourceDataLoss, match="begins at offset 3, not 0"):
            ask()
    assert ranges(lenient.partitions(start, end)) == [OffsetRange(TopicPartition(topic, 1), 3, 5)]


def test_what_is_not_there(topic: str, readers: Readers) -> None:
    with pytest.raises(UnknownOffsets, match=r"not in the cluster at .*: no-topic"):
        readers.make(subscribe=f"{topic},no-topic").initialOffset()
    with pytest.raises(UnknownOffsets, match=f"{topic}-7"):
        readers.make(assign=json.dumps({topic: [0, 7]})).initialOffset()
    with pytest.raises(UnknownOffsets, match=f"{topic}-1 not named"):
        readers.make(subscribe=topic, startingOffsets=json.dumps({topic: {"0": 0}})).initialOffset()


def test_tasks_and_readers_travel(broker: EmbeddedBroker, topic: str, readers: Readers) -> None:
    """Spark pickles a reader when the query starts, and a task whenever it runs."""
    fill(broker, topic, 0, 3)
    reader = pickle.loads(pickle.dumps(StreamReader(readers.cluster | {"subscribe": topic})))
    task = pickle.loads(pickle.dumps(OffsetRangePartition(OffsetRange(TopicPartition(topic, 0), 1, 3))))
    rows = reader.read(task)
    assert next(rows).column("offset").to_pylist() == [1, 2]
    rows.close()  # a task that is given up closes its process's consumer
