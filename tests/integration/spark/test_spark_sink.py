"""The sink under real Spark, on our broker with two-phase commit: every row once, whatever happens."""

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import TaskContext, cloudpickle
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from tests.support.effort import long_form
from tests.support.reading import committed_records
from tests.support.spark_deaf import DeafSource

from tallystick import Admin, Producer
from tallystick.admin.topics import NewTopic
from tallystick.spark.sink.driver.foreach_topic import foreach_batch
from tallystick.spark.sink.driver.recovery import resolve
from tallystick.testing import EmbeddedBroker, eventually

pytestmark = [pytest.mark.slow, pytest.mark.server, pytest.mark.broker(in_process=False)]

# Workers of Spark cannot import this file.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

ROWS = 40


class Place:
    """A topic, a prefix and a folder of one test, and a stream of one file a batch."""

    def __init__(self, spark: SparkSession, broker: EmbeddedBroker, folder: Path, name: str) -> None:
        self.spark, self.folder, self.topic = spark, folder, name
        self.client = {"bootstrap.servers": broker.bootstrap_servers}
        self.options = {
            "kafka.bootstrap.servers": broker.bootstrap_servers,
            "transactional.id.prefix": f"test/{name}",
            "topic": name,
        }
        self.checkpoint = folder / "checkpoint"
        (folder / "in").mkdir()
        with Admin(self.client) as admin:
            admin.create_topics([NewTopic(name=name, partitions=2)]).all()

    def add(self, batch: int, rows: int = ROWS) -> None:
        """The rows of one more batch."""
        lines = "".join(f"{batch}-{row}\n" for row in range(rows))
        (self.folder / "in" / f"{batch}.txt").write_text(lines)

    def stream(self) -> DataFrame:
        lines = self.spark.readStream.option("maxFilesPerTrigger", 1).text(str(self.folder / "in"))
        return lines.repartition(2).selectExpr("value", "value as key")

    def run(self, frame: DataFrame | None = None, sink_name: str = "tallystick", **more: str) -> None:
        """All that is there, and stop. Raises: what ended the query."""
        writer = (self.stream() if frame is None else frame).writeStream.format(sink_name)
        self.finish(writer.options(**self.options).options(**more))

    def finish(self, writer: object) -> None:
        checkpointed = writer.option("checkpointLocation", str(self.checkpoint))  # type: ignore[attr-defined]
        checkpointed.trigger(availableNow=True).start().awaitTermination()

    def lose_commit(self, batch: int) -> None:
        """As after an ordinary stop() while the sink commits."""
        for name in (str(batch), f".{batch}.crc"):
            (self.checkpoint / "commits" / name).unlink(missing_ok=True)

    def written(self) -> Counter[bytes]:
        """Every committed row of the topic, and how often it is there."""
        records = committed_records(self.client, self.topic, 2)
        return Counter(record.value for record in records if record.value is not None)

    def worker_ids(self) -> set[str]:
        """Return the transactional ids that tasks have used."""
        with Admin(self.client) as admin:
            listed = admin.list_transactions().all()
        names = {each.transactional_id for listings in listed.values() for each in listings}
        return {each for each in names if each.startswith(f"{self.options['transactional.id.prefix']}/w/")}

    def open_transactions(self) -> list[str]:
        with Admin(self.client) as admin:
            listed = admin.list_transactions(states=("Ongoing",)).all()
        return [each.transactional_id for found in listed.values() for each in found]


def rows_of(*batches: int) -> Counter[bytes]:
    return Counter(b"%d-%d" % (batch, row) for batch in batches for row in range(ROWS))


@pytest.fixture
def place(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path, request: pytest.FixtureRequest
) -> Place:
    return Place(spark, broker, tmp_path, request.node.name.removeprefix("test_")[:60])


# --------------------------------------------------------------------------------- a batch write


@pytest.mark.gate(0)
def test_a_write_with_a_name_is_done_once(place: Place) -> None:
    frame = place.spark.range(100).selectExpr("cast(id as string) as value")
    for _ in range(2):
        frame.write.format("tallystick").options(**place.options, **{"write.id": "a"}).mode("append").save()
    assert place.written() == Counter(b"%d" % number for number in range(100))
    more = place.spark.range(101).selectExpr("cast(id as string) as value")
    with pytest.raises(PySparkException, match=r"write 'a' came again with 101 rows"):
        more.write.format("tallystick").options(**place.options, **{"write.id": "a"}).mode("append").save()
    assert place.written().total() == 100
    elsewhere = {**place.options, "topic": f"{place.options['topic']}.other", "write.id": "a"}
    with pytest.raises(PySparkException, match=r"this prefix has decided write 'a' for topic"):
        frame.write.format("tallystick").options(**elsewhere).mode("append").save()
    assert place.open_transactions() == []


@pytest.mark.gate(0)
def test_a_write_that_fails_leaves_nothing(place: Place) -> None:
    """All or nothing: one task of two has written when the other one fails for good."""
    frame = place.spark.range(0, 100, 1, 2).selectExpr(
        "if(id = 99, raise_error('no'), cast(id as string)) as value"
    )
    with pytest.raises(PySparkException, match="no"):
        frame.write.format("tallystick").options(**place.options).mode("append").save()
    assert place.written() == Counter()


@pytest.mark.parametrize(
    ("expression", "options", "problem"),
    [
        ("cast(id as string) as key", {}, "column value: required, and missing"),
        ("id as value", {}, "column value: is bigint, and must be string or binary"),
        ("cast(id as string) as value", {"onNewCheckpoint": "restart"}, "only in a streaming query"),
        ("cast(id as string) as value", {"transactional.id.prefix": ""}, "prefix: is missing"),
        ("cast(id as string) as value", {"kafka.acks": "1"}, "kafka.acks: cannot be set"),
        (
            "cast(id as string) as value",
            {"transactional.id.prefx": "p"},
            "did you mean transactional.id.prefix",
        ),
    ],
)
def test_what_is_wrong_is_said_before_anything_begins(
    spark: SparkSession, expression: str, options: dict[str, str], problem: str
) -> None:
    given = {
        "kafka.bootstrap.servers": "localhost:1",
        "topic": "t",
        "transactional.id.prefix": "p",
        **options,
    }
    with pytest.raises(PySparkException, match=problem):
        spark.range(1).selectExpr(expression).write.format("tallystick").options(**given).mode(
            "append"
        ).save()


# ---------------------------------------------------------------------------------------- a stream


def test_a_stream_goes_on_from_its_checkpoint(place: Place) -> None:
    place.add(0)
    place.add(1)
    place.run()
    place.add(2)
    place.run()
    assert place.written() == rows_of(0, 1, 2)
    assert place.open_transactions() == []


def fail_first(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches
    context = TaskContext.get()
    if context is not None and context.attemptNumber() == 0:
        raise RuntimeError("the first attempt of every task")


def test_an_attempt_that_fails_after_its_last_row_is_in_no_decision(place: Place) -> None:
    """[SPK-20] Its transaction is aborted, or swept by the next begin."""
    place.add(0)
    place.add(1)
    place.run(place.stream().mapInArrow(fail_first, "value string, key string"))
    assert place.written() == rows_of(0, 1)


@pytest.mark.gate(0)
def test_a_batch_that_spark_forgot_is_skipped(place: Place) -> None:
    """[SPK-22] The sink committed, and Spark does not know."""
    place.add(0)
    place.add(1)
    place.run()
    place.lose_commit(1)
    place.run()
    place.add(2)
    place.run()
    assert place.written() == rows_of(0, 1, 2)


@pytest.mark.gate(0)
def test_a_forgotten_batch_that_has_become_another_stops_the_query(place: Place) -> None:
    """[SPK-22] The skip rule must not eat rows."""
    place.add(0)
    place.run()
    place.lose_commit(0)
    place.add(0, ROWS + 1)
    with pytest.raises(StreamingQueryException, match="checkpoint and decisions differ: batch 0"):
        place.run(None, onChangedRows="fail")
    assert place.written() == rows_of(0)
    with pytest.raises(StreamingQueryException, match="are counts, which another copy of it may have"):
        place.run()
    place.run(None, onChangedRows="skip")
    assert place.written() == rows_of(0)


@pytest.mark.gate(0)
def test_another_checkpoint_is_refused_until_an_operator_chooses(place: Place) -> None:
    place.add(0)
    place.run()
    place.checkpoint = place.folder / "new"
    with pytest.raises(StreamingQueryException, match="onNewCheckpoint=restart"):
        place.run()
    with pytest.raises(StreamingQueryException, match="unreported offsets"):
        place.run(onNewCheckpoint="resume")
    assert place.written() == rows_of(0)
    place.run(onNewCheckpoint="restart")
    assert place.written() == rows_of(0, 0)


# ----------------------------------------------------------------------------- a deleted checkpoint


class Records:
    """Records of a topic as the input of a place, in a query that may be resumed."""

    def __init__(self, place: Place) -> None:
        self.place, self.topic = place, f"{place.topic}.in"
        with Admin(place.client) as admin:
            admin.create_topics([NewTopic(name=self.topic, partitions=2)]).all()

    def add(self, batch: int) -> None:
        with Producer(self.place.client) as producer:
            for row in range(ROWS):
                producer.send(self.topic, b"%d-%d" % (batch, row), partition=row % 2)

    def frame(self, **more: str) -> DataFrame:
        options = {
            "kafka.bootstrap.servers": self.place.client["bootstrap.servers"],
            "subscribe": self.topic,
            "startingOffsets": "earliest",
            **more,
        }
        return self.place.spark.readStream.format("tallystick").options(**options).load().select("value")

    def run(self, checkpoint: str, source: Mapping[str, str] | None = None) -> None:
        """All that is there, on this checkpoint, resuming."""
        self.place.checkpoint = self.place.folder / checkpoint
        told = self.resuming() if source is None else source
        self.place.run(self.frame(**told), onNewCheckpoint="resume")

    def resuming(self) -> dict[str, str]:
        prefix = self.place.options["transactional.id.prefix"]
        return {"resume.from.prefix": prefix, "checkpointLocation": f"file:{self.place.checkpoint}"}


@pytest.mark.gate(0)
def test_a_deleted_checkpoint_is_resumed(place: Place) -> None:
    """[SPK-27] Every row once, over two checkpoints that are gone; the first start has nothing to resume."""
    records = Records(place)
    records.add(0)
    records.run("a")
    records.add(1)
    records.run("a")
    records.add(2)
    records.run("b")
    records.add(3)
    records.run("c")
    records.run("c")
    assert place.written() == rows_of(0, 1, 2, 3)


@pytest.mark.gate(0)
def test_a_query_that_resumes_may_die_in_its_first_batch(place: Place) -> None:
    """[SPK-3] [SPK-27] Decided, and Spark does not know: it begins the batch again where it began it."""
    records = Records(place)
    records.add(0)
    records.run("a")
    records.add(1)
    records.run("b")
    place.lose_commit(0)
    records.add(2)
    records.run("b")
    assert place.written() == rows_of(0, 1, 2)


@pytest.mark.gate(0)
def test_a_first_batch_begins_where_it_began(place: Place) -> None:
    """[SPK-3] `latest` is another place by the time that the batch comes again."""
    records = Records(place)
    records.add(0)
    told = {"startingOffsets": "latest", "checkpointLocation": str(place.checkpoint)}
    place.run(records.frame(**told))
    place.lose_commit(0)
    records.add(1)
    place.run(records.frame(**told))
    records.add(2)
    place.run(records.frame(**told))
    assert place.written() == rows_of(1, 2)


@pytest.mark.gate(0)
def test_what_begins_elsewhere_does_not_resume(place: Place) -> None:
    """[SPK-27] A source that is not told, one that begins at other offsets, a state that is gone."""
    records = Records(place)
    records.add(0)
    records.run("a")
    records.add(1)
    with pytest.raises(StreamingQueryException, match="unreported offsets"):
        records.run("b", source={})
    place.checkpoint = place.folder / "c"
    with pytest.raises(StreamingQueryException, match=r"began at \{.*: 0"):
        records.run("c", source={"checkpointLocation": str(place.checkpoint)})
    place.checkpoint = place.folder / "d"
    distinct = records.frame(**records.resuming()).dropDuplicates(["value"])
    with pytest.raises(StreamingQueryException, match="was in its checkpoint"):
        place.run(distinct, onNewCheckpoint="resume")
    assert place.written() == rows_of(0)
    records.run("e")
    assert place.written() == rows_of(0, 1)


@pytest.mark.gate(0)
def test_foreach_batch_resumes_as_well(place: Place) -> None:
    """[SPK-27] It is not told the checkpoint by Spark, so the options say it."""
    records = Records(place)
    for batch, name in enumerate(("a", "a", "b")):
        records.add(batch)
        place.checkpoint = place.folder / name
        options = {
            **place.options,
            "onNewCheckpoint": "resume",
            "checkpointLocation": str(place.checkpoint),
        }
        place.finish(records.frame(**records.resuming()).writeStream.foreachBatch(foreach_batch(options)))
    assert place.written() == rows_of(0, 1, 2)


def hold_back(folder: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Rows that go on when somebody makes the file `go`, or after the query is stopped never."""

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        Path(folder, f"here-{os.getpid()}").touch()
        eventually(Path(folder, "go").exists, deadline_s=120)

    return rows


@pytest.mark.gate(0)
def test_what_a_query_that_is_stopped_in_a_batch_has_open_is_ended(place: Place) -> None:
    """No task has voted, and under two-phase commit no timeout would end their transactions.

    Usually Spark's abort does it. But stopping interrupts the thread that runs it, and may so end the Python
    that it waits for: then the next start does it, as after a crash.
    """
    place.add(0, 200_000)
    held = place.stream().mapInArrow(hold_back(str(place.folder)), "value string, key string")
    writer = held.writeStream.format("tallystick").options(**place.options)
    query = writer.option("checkpointLocation", str(place.checkpoint)).start()
    eventually(lambda: place.open_transactions() and [*place.folder.glob("here-*")], deadline_s=100)
    query.stop()
    place.run()
    assert place.open_transactions() == []
    assert place.written().total() == 200_000


# -------------------------------------------------------------------------------- the driver's hooks


def decide_and_complete_nothing(place: Place) -> None:
    place.spark.dataSource.register(DeafSource)
    place.add(0)
    with pytest.raises(StreamingQueryException):
        place.run(sink_name="deaf")
    assert place.written() == Counter()
    assert len(place.open_transactions()) == 2


def test_a_restart_completes_what_was_decided(place: Place) -> None:
    """[SPK-21] commit() raised after the decision, and so abort() was called: neither may destroy it."""
    decide_and_complete_nothing(place)
    place.add(1)
    place.run()
    assert place.written() == rows_of(0, 1)
    assert place.open_transactions() == []


@pytest.mark.gate(0)
def test_a_query_that_is_not_restarted_is_resolved(place: Place) -> None:
    """`tallystick transactions resolve --prefix`: look, complete, and give the prefix up."""
    decide_and_complete_nothing(place)
    prefix = place.options["transactional.id.prefix"]
    looked = resolve(prefix, place.client, dry_run=True)
    assert [found.name for found in looked.outcomes.values()] == ["OPEN", "OPEN"]
    assert len(place.open_transactions()) == 2
    assert resolve(prefix, place.client).outcomes == looked.outcomes
    assert place.written() == rows_of(0)
    assert resolve(prefix, place.client, retire=True).decision == looked.decision
    assert resolve(prefix, place.client, dry_run=True).decision is None


# ------------------------------------------------------------------------------------ foreachBatch


def test_foreach_batch_is_the_same_sink(place: Place) -> None:
    """One core: what one surface decided the other one skips."""
    place.add(0)
    place.add(1)
    place.finish(place.stream().writeStream.foreachBatch(foreach_batch(place.options)))
    place.lose_commit(1)
    place.finish(place.stream().writeStream.foreachBatch(foreach_batch(place.options)))
    place.lose_commit(1)
    place.add(2)
    place.run()
    assert place.written() == rows_of(0, 1, 2)


def test_foreach_batch_that_fails_leaves_nothing_open(place: Place) -> None:
    """The lease is at hand here, so that even a batch without any vote is given up at once."""
    place.add(0)
    broken = place.stream().selectExpr("if(value = '0-7', raise_error('no'), value) as value")
    with pytest.raises(StreamingQueryException, match="no"):
        place.finish(broken.writeStream.foreachBatch(foreach_batch(place.options)))
    assert place.written() == Counter()
    assert place.open_transactions() == []


@pytest.mark.gate(0)
def test_foreach_batch_decides_a_batch_that_has_no_tasks(place: Place) -> None:
    """An empty frame may have no partition at all, and so no task to say so; the next batch follows it."""
    write = foreach_batch(place.options, query_id="q")
    nothing = place.spark.createDataFrame(place.spark.sparkContext.emptyRDD(), "value string")
    assert nothing.rdd.getNumPartitions() == 0
    write(nothing, 0)
    write(place.spark.createDataFrame([("0-0",)], "value string"), 1)
    assert place.written() == Counter([b"0-0"])


@pytest.fixture
def short_lived_workers(spark: SparkSession) -> Iterator[None]:
    """Let Spark end each Python worker with its task."""
    conf = spark.sparkContext._jsc.sc().conf()  # of the context itself, not a copy
    conf.set("spark.python.worker.reuse", "false")
    yield
    conf.set("spark.python.worker.reuse", "true")


@long_form
def test_ids_do_not_grow_with_batches_where_workers_live_for_one_task(
    place: Place, short_lived_workers: None
) -> None:
    """[SPK-20] [SPK-23] Six batches of two tasks; the ids of one batch are held back for the next."""
    for batch in range(6):
        place.add(batch)
    place.run()
    assert place.written().total() == 6 * ROWS
    assert len(place.worker_ids()) <= 6
