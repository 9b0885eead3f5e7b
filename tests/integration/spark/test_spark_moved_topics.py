"""The stream reader where topics are away for a moment, deleted, made anew, or cut: asked without Spark."""

import json
import logging
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from tests.support.metadata_proxy import MetadataProxy

from tallystick import Admin, Producer
from tallystick.admin.topics import NewTopic
from tallystick.spark.checkpoint import BadCheckpoint
from tallystick.spark.data_source import KafkaDataSource
from tallystick.spark.options.source_options import Edge, Subscribed
from tallystick.spark.source import task_reader
from tallystick.spark.source.batch_reader import BatchReader
from tallystick.spark.source.decoding import RecordUndecodable
from tallystick.spark.source.planner import OffsetRangePartition, SourceDataLoss, UnknownOffsets
from tallystick.spark.source.stream_reader import StreamReader
from tallystick.spark.source.task_reader import RecordsTimedOut
from tallystick.testing import EmbeddedBroker

pytestmark = pytest.mark.server

ALL = ReadAllAvailable()


@pytest.fixture
def topic(admin: Admin, request: pytest.FixtureRequest) -> str:
    name = "".join(c if c.isalnum() or c in "._-" else "-" for c in request.node.name)
    admin.create_topics([NewTopic(name=name, partitions=1)]).all()
    return name


@pytest.fixture
def proxy(broker: EmbeddedBroker) -> Iterator[MetadataProxy]:
    with MetadataProxy(broker.bootstrap_servers) as running:
        yield running


def fill(broker: EmbeddedBroker, topic: str, count: int) -> None:
    with Producer({"bootstrap.servers": broker.bootstrap_servers}) as producer:
        for _ in range(count):
            producer.send(topic, value=b"v", partition=0)


def make_anew(broker: EmbeddedBroker, admin: Admin, topic: str, count: int) -> None:
    admin.delete_topics([topic]).all()
    admin.create_topics([NewTopic(name=topic, partitions=1)]).all()
    fill(broker, topic, count)


class Query:
    """A query, as Spark runs one: end offsets are logged before the batch is planned.

    pauses  how often the reader has waited for what is away
    """

    def __init__(self, bootstrap_servers: str, **options: object) -> None:
        self.options = {
            "kafka.bootstrap.servers": bootstrap_servers,
            "startingOffsets": "earliest",
            **{name.replace("__", "."): str(value) for name, value in options.items()},
        }
        self.pauses: list[float] = []
        self.reader = StreamReader(self.options, sleep=self.pauses.append)
        self.at = self.reader.initialOffset()

    def plan(self) -> list[OffsetRangePartition]:
        start = self.at
        self.at = self.reader.latestOffset(start, ALL)
        return self.reader.partitions(start, self.at)

    def read(self, tasks: list[OffsetRangePartition]) -> int:
        return sum(rows.num_rows for task in tasks for rows in self.reader.read(task))

    def run(self) -> int:
        return self.read(self.plan())


LOSS_ALLOWED = pytest.mark.parametrize("strict", [True, False], ids=["strict", "lenient"])
BY = pytest.mark.parametrize("by", ["subscribe", "subscribePattern"])


@pytest.mark.gate(1)
@BY
@LOSS_ALLOWED
def test_a_topic_that_some_answers_lack_is_asked_for_again(
    broker: EmbeddedBroker, topic: str, proxy: MetadataProxy, by: str, strict: bool
) -> None:
    fill(broker, topic, 5)
    query = Query(proxy.bootstrap_servers, **{by: topic}, failOnDataLoss=strict)
    assert query.run() == 5
    fill(broker, topic, 1)
    proxy.hide(topic, answers=12)
    assert query.run() == 1
    assert query.pauses


@pytest.mark.gate(1)
@BY
def test_what_stays_away_stops_a_query_before_anything_is_logged(
    broker: EmbeddedBroker, topic: str, proxy: MetadataProxy, by: str
) -> None:
    """[SPK-2] So that it goes on when the topic is back."""
    fill(broker, topic, 5)
    query = Query(proxy.bootstrap_servers, **{by: topic})
    assert query.run() == 5
    at = query.at
    proxy.hide(topic, answers=1000)
    with pytest.raises((SourceDataLoss, UnknownOffsets), match=topic):
        query.run()
    assert query.at == at
    assert sum(query.pauses) == pytest.approx(30)
    proxy.hide(topic, answers=0)
    fill(broker, topic, 1)
    assert query.run() == 1


@pytest.mark.gate(1)
@BY
def test_what_stays_away_goes_on_where_it_was(
    broker: EmbeddedBroker, topic: str, proxy: MetadataProxy, by: str, caplog: pytest.LogCaptureFixture
) -> None:
    """failOnDataLoss=false passes over what is lost; it reads nothing twice."""
    fill(broker, topic, 5)
    query = Query(proxy.bootstrap_servers, **{by: topic}, failOnDataLoss=False)
    assert query.run() == 5
    proxy.hide(topic, answers=1000)
    with caplog.at_level(logging.WARNING, "tallystick.spark"):
        for _ in range(3):
            assert query.run() == 0
    assert [each.getMessage().partition(";")[2] for each in caplog.records] == [
        " continuing without them, since failOnDataLoss is false, and where they were if they come back"
    ]
    assert sum(query.pauses) == pytest.approx(30), "it is waited for once"
    proxy.hide(topic, answers=0)
    fill(broker, topic, 1)
    assert query.run() == 1


@LOSS_ALLOWED
def test_a_topic_made_anew_in_a_run_is_known_by_its_id(
    broker: EmbeddedBroker, admin: Admin, topic: str, strict: bool
) -> None:
    fill(broker, topic, 5)
    query = Query(broker.bootstrap_servers, subscribe=topic, failOnDataLoss=strict)
    assert query.run() == 5
    at = query.at
    make_anew(broker, admin, topic, 9)
    if strict:
        for _ in range(2):
            with pytest.raises(
                SourceDataLoss, match=f"{topic} was deleted and made anew.*{topic}-0 before 5"
            ):
                query.run()
        assert query.at == at
    else:
        assert query.run() == 4, "the offsets go on, and none is read twice"
        assert query.run() == 0
    assert not query.pauses


@LOSS_ALLOWED
def test_a_task_does_not_read_another_topic_than_it_was_planned_for(
    broker: EmbeddedBroker, admin: Admin, topic: str, strict: bool
) -> None:
    """[SPK-1]"""
    fill(broker, topic, 5)
    query = Query(broker.bootstrap_servers, subscribe=topic, failOnDataLoss=strict)
    tasks = query.plan()
    make_anew(broker, admin, topic, 9)
    if strict:
        with pytest.raises(SourceDataLoss, match="deleted and made anew"):
            query.read(tasks)
    else:
        assert query.read(tasks) == 0


@pytest.mark.gate(1)
@LOSS_ALLOWED
def test_a_batch_that_is_run_again_asks_for_the_topics(
    broker: EmbeddedBroker, admin: Admin, topic: str, strict: bool
) -> None:
    fill(broker, topic, 5)
    options = {"subscribePattern": topic, "failOnDataLoss": strict}
    first = Query(broker.bootstrap_servers, **options)
    start = first.at
    (task,) = first.plan()
    again = Query(broker.bootstrap_servers, **options)
    assert [each.topic_id for each in again.reader.partitions(start, first.at)] == [task.topic_id]
    admin.delete_topics([topic]).all()
    pauses: list[float] = []
    later = StreamReader(again.options, sleep=pauses.append)
    if strict:
        with pytest.raises(SourceDataLoss, match="is gone"):
            later.partitions(start, first.at)
    else:
        assert later.partitions(start, first.at) == []
    assert pauses


@pytest.mark.gate(1)
@LOSS_ALLOWED
def test_a_batch_that_is_run_again_asks_again_for_a_new_topic(
    broker: EmbeddedBroker, admin: Admin, topic: str, proxy: MetadataProxy, strict: bool
) -> None:
    """[SPK-2] Its end is in Spark's log: what is passed over now is never read."""
    options = {"subscribePattern": f"{topic}.*", "failOnDataLoss": strict}
    first = Query(proxy.bootstrap_servers, **options)
    start, new = first.at, f"{topic}-new"
    admin.create_topics([NewTopic(name=new, partitions=1)]).all()
    fill(broker, new, 3)
    first.plan()
    pauses: list[float] = []
    again = StreamReader(first.options, sleep=pauses.append)
    proxy.hide(new, answers=12)
    assert first.read(again.partitions(start, first.at)) == 3
    assert pauses


def test_a_task_whose_topic_is_hidden_for_a_moment_reads_it(
    broker: EmbeddedBroker, topic: str, proxy: MetadataProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[SPK-1]"""
    fill(broker, topic, 5)
    query = Query(proxy.bootstrap_servers, subscribe=topic, failOnDataLoss=False, kafka__client__id="hidden")
    tasks = query.plan()
    monkeypatch.setattr(task_reader, "_FIRST_LOOK_MS", 1)
    proxy.hide(topic, answers=40)
    assert query.read(tasks) == 5


def test_a_pattern_leaves_out_internal_topics(broker: EmbeddedBroker, admin: Admin, topic: str) -> None:
    """A query that read its own decisions would never be idle."""
    admin.create_topics([NewTopic(name="__tallystick_decisions", partitions=1)])
    fill(broker, topic, 1)
    assert topic in Query(broker.bootstrap_servers, subscribePattern=".*").at
    for pattern in (".*", "__.*"):
        query = StreamReader(
            {"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribePattern": pattern}
        )
        assert not [name for name in query.initialOffset() if name.startswith("__")]
    assert Query(broker.bootstrap_servers, subscribe="__tallystick_decisions").at


NANOSECONDS = 1_732_700_000_000_000_000


@pytest.mark.parametrize("time_ms", [NANOSECONDS, 9_223_372_036_854_776])
def test_a_timestamp_that_spark_cannot_hold(
    broker: EmbeddedBroker, admin: Admin, topic: str, time_ms: int
) -> None:
    """Said with the record's place, or passed over."""
    admin.delete_topics([topic]).all()
    config = {"message.timestamp.after.max.ms": str(2**63 - 1)}
    admin.create_topics([NewTopic(name=topic, partitions=1, config=config)]).all()
    with Producer({"bootstrap.servers": broker.bootstrap_servers}) as producer:
        for each_ms in (1, time_ms, 9_223_372_036_854_775):
            producer.send(topic, value=b"v", partition=0, timestamp_ms=each_ms)
    query = Query(broker.bootstrap_servers, subscribe=topic)
    with pytest.raises(
        RecordUndecodable, match=f"{topic}-0 offset 1 .*{time_ms} ms .*set onMalformed to null"
    ):
        query.run()
    for formats in ({}, {"value__format": "string"}):
        options = {"subscribe": topic, "onMalformed": "null", **formats}
        texts = Query(broker.bootstrap_servers, **options).options
        reader = StreamReader(texts, schema=KafkaDataSource(texts).schema())
        (task,) = reader.partitions({topic: {"0": 0}}, {topic: {"0": 3}})
        (rows,) = reader.read(task)
        assert rows.column("timestamp").is_null().to_pylist() == [False, True, False]
        assert [each and each["reason"][:9] for each in rows.column("malformed").to_pylist()] == [
            None,
            "timestamp",
            None,
        ]


@LOSS_ALLOWED
@pytest.mark.parametrize("span", [(0, 100), (20, 40)])
def test_a_range_past_the_end_of_its_log_is_a_loss(
    broker: EmbeddedBroker, topic: str, strict: bool, span: tuple[int, int]
) -> None:
    """A log that was cut after the batch was logged: a failover, or a backup."""
    fill(broker, topic, 10)
    options = {"failOnDataLoss": strict, "kafkaConsumer__pollTimeoutMs": 300}
    query = Query(broker.bootstrap_servers, subscribe=topic, **options)
    start, end = ({topic: {"0": offset}} for offset in span)
    tasks = query.reader.partitions(start, end)
    if strict:
        with pytest.raises(SourceDataLoss, match=r"the log ends at 10|has offsets 0 to 10"):
            query.read(tasks)
    else:
        assert query.read(tasks) == (10 if span == (0, 100) else 0)


def test_a_wait_for_a_transaction_names_it(broker: EmbeddedBroker, topic: str) -> None:
    with Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": topic}) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, value=b"v", partition=0)
        producer.flush()
        query = Query(broker.bootstrap_servers, subscribe=topic, kafkaConsumer__pollTimeoutMs=300)
        tasks = query.reader.partitions({topic: {"0": 0}}, {topic: {"0": 1}})
        with pytest.raises(
            RecordsTimedOut, match=f"open transaction holds them back: {topic}\\. The log ends at 1"
        ):
            query.read(tasks)
        producer.abort_transaction()


def read_batch(broker: EmbeddedBroker, **options: object) -> int:
    texts = {name: str(value) for name, value in options.items()}
    reader = BatchReader({"kafka.bootstrap.servers": broker.bootstrap_servers, **texts})
    return sum(rows.num_rows for task in reader.partitions() for rows in reader.read(task))


def test_a_batch_that_starts_past_the_end_is_a_loss(broker: EmbeddedBroker, topic: str) -> None:
    """As in a stream: a job that keeps its position must hear of a topic that was made anew."""
    fill(broker, topic, 10)
    beyond = {"subscribe": topic, "startingOffsets": json.dumps({topic: {"0": 300}})}
    with pytest.raises(SourceDataLoss, match="the log ends at 10"):
        read_batch(broker, **beyond)
    assert read_batch(broker, **beyond, failOnDataLoss=False) == 0
    assert read_batch(broker, **{**beyond, "startingOffsets": json.dumps({topic: {"0": 10}})}) == 0


def test_a_batch_waits_for_open_transactions_and_loses_nothing(broker: EmbeddedBroker, topic: str) -> None:
    """Offsets past the last stable one are in the log: they are not decided, and not lost."""
    with Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": topic}) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        for _ in range(3):
            producer.send(topic, value=b"v", partition=0)
        producer.flush()
        assert read_batch(broker, subscribe=topic, startingOffsets=json.dumps({topic: {"0": 2}})) == 0
        ending = {"endingOffsets": json.dumps({topic: {"0": 3}}), "kafkaConsumer.pollTimeoutMs": 300}
        with pytest.raises(RecordsTimedOut, match="open transaction"):
            read_batch(broker, subscribe=topic, **ending)
        producer.commit_transaction()
        assert read_batch(broker, subscribe=topic, **ending) == 3


def test_a_batch_that_ends_before_it_starts_is_refused(broker: EmbeddedBroker, topic: str) -> None:
    with Producer({"bootstrap.servers": broker.bootstrap_servers}) as producer:
        for number in range(10):
            producer.send(topic, value=b"v", partition=0, timestamp_ms=1000 * number)
    start = {"subscribe": topic, "startingOffsets": json.dumps({topic: {"0": 8}})}
    with pytest.raises(UnknownOffsets, match="starts at 8, behind its end 3"):
        read_batch(broker, **start, endingTimestamp=3000)


def test_sources_of_one_name_on_two_clusters_begin_apart(
    broker: EmbeddedBroker, topic: str, tmp_path: Path
) -> None:
    """[SPK-3]"""
    (tmp_path / "metadata").write_text('{"id":"q"}')
    with (
        EmbeddedBroker(in_process=True) as other,
        Admin({"bootstrap.servers": other.bootstrap_servers}) as admin,
    ):
        admin.create_topics([NewTopic(name=topic, partitions=1)]).all()
        fill(broker, topic, 3)
        fill(other, topic, 7)
        options = {"subscribe": topic, "startingOffsets": "latest", "checkpointLocation": tmp_path}
        for _ in range(2):
            starts = [Query(each.bootstrap_servers, **options).at for each in (broker, other)]
            assert starts == [{topic: {"0": 3}}, {topic: {"0": 7}}]
            fill(broker, topic, 1)
        with Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": topic}) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send(topic, value=b"v", partition=0)
            producer.flush()
            uncommitted = Query(
                broker.bootstrap_servers, **options, kafka__isolation__level="read_uncommitted"
            )
            assert uncommitted.at == {topic: {"0": 6}}
            producer.abort_transaction()
        assert len(list((tmp_path / "tallystick").glob("start-*.json"))) == 3


def test_a_first_batch_that_is_run_again_knows_its_topics(
    broker: EmbeddedBroker, admin: Admin, topic: str, tmp_path: Path
) -> None:
    """[SPK-3] The note has their ids."""
    (tmp_path / "metadata").write_text('{"id":"q"}')
    fill(broker, topic, 5)
    options = {"subscribe": topic, "checkpointLocation": tmp_path}
    first = Query(broker.bootstrap_servers, **options)
    start = first.at
    first.plan()
    make_anew(broker, admin, topic, 9)
    again = Query(broker.bootstrap_servers, **options)
    assert again.at == start
    for _ in range(2):
        later = StreamReader(again.options)
        with pytest.raises(SourceDataLoss, match="was deleted and made anew"):
            later.latestOffset(first.at, ALL)
    with pytest.raises(SourceDataLoss, match="deleted and made anew"):
        again.read(again.reader.partitions(start, first.at))


@LOSS_ALLOWED
def test_a_topic_made_anew_that_was_passed_over_is_known_after_a_restart(
    broker: EmbeddedBroker, admin: Admin, topic: str, tmp_path: Path, strict: bool
) -> None:
    """[SPK-3] Its records are read, and its loss is told once."""
    (tmp_path / "metadata").write_text('{"id":"q"}')
    fill(broker, topic, 5)
    options = {"subscribe": topic, "checkpointLocation": tmp_path}
    query = Query(broker.bootstrap_servers, **options, failOnDataLoss=False)
    start = query.at
    assert query.run() == 5
    make_anew(broker, admin, topic, 3)
    assert query.run() == 0
    fill(broker, topic, 4)
    at = query.at
    assert len(query.plan()) == 1
    again = Query(broker.bootstrap_servers, **options, failOnDataLoss=strict)
    assert again.at == start, "the note of where it began stays"
    assert again.read(again.reader.partitions(at, query.at)) == 4
    fill(broker, topic, 1)
    again.at = query.at
    assert again.run() == 1


@pytest.mark.parametrize(
    ("lines", "is_taken"),
    [(['{"TOPIC":{"0":5}}', '{"logOffset":3}'], True), (['{"TOPIC":{"0":5}}'] * 2, False), ([], False)],
    ids=["one source", "two sources", "no batch"],
)
def test_a_note_without_its_cluster_is_taken_where_it_can_only_be_this_one(
    broker: EmbeddedBroker, topic: str, tmp_path: Path, lines: list[str], is_taken: bool
) -> None:
    (tmp_path / "metadata").write_text('{"id":"q"}')
    fill(broker, topic, 5)
    options = {"subscribe": topic, "checkpointLocation": tmp_path}
    Query(broker.bootstrap_servers, **options)
    (note,) = (tmp_path / "tallystick").glob("start-*.json")
    note.unlink()
    key = f"{Subscribed((topic,))} {Edge.EARLIEST}"
    former = note.with_name(f"start-{sha256(key.encode()).hexdigest()[:16]}.json")
    former.write_text(json.dumps({topic: {"0": 2}}))
    if lines:
        (tmp_path / "offsets").mkdir()
        (tmp_path / "offsets" / "0").write_text("\n".join(["v1", "{}", *lines]).replace("TOPIC", topic))
    if is_taken:
        for _ in range(2):
            assert Query(broker.bootstrap_servers, **options).at == {topic: {"0": 2}}
    else:
        with pytest.raises(BadCheckpoint, match=r"does not say in which cluster.*Delete the file"):
            Query(broker.bootstrap_servers, **options)
