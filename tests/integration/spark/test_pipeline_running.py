"""A pipeline in a real Spark on our broker: from a file or from Python, to its end, again, and stopped."""

import json
import shutil
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool
from tests.support.reading import committed_records

from tallystick import Admin, Producer
from tallystick.admin.topics import NewTopic
from tallystick.kernel.settings import BadConfig
from tallystick.kernel.value import replace
from tallystick.pipeline import Definition, Pipeline
from tallystick.pipeline.definition import (
    OnMalformed,
    OutputDefinition,
    OwnBrokerDefinition,
    SourceDefinition,
    TableSink,
    TopicSink,
    Transform,
)
from tallystick.spark.options.sink_options import SinkOptions
from tallystick.spark.protocol.committable import MicroBatch
from tallystick.spark.protocol.decide import NewCheckpoint
from tallystick.spark.sink.driver.context import SinkContext
from tallystick.spark.sink.task.attempt import run_attempt
from tallystick.testing import EmbeddedBroker, eventually

pytestmark = [pytest.mark.slow, pytest.mark.server, pytest.mark.broker(in_process=False)]

ROWS = 60


def client(broker: EmbeddedBroker) -> dict[str, str]:
    return {"bootstrap.servers": broker.bootstrap_servers}


def send(servers: str, topic: str, numbers: range) -> None:
    with Producer({"bootstrap.servers": servers}) as producer:
        for number in numbers:
            producer.send(topic, json.dumps({"a": number}).encode(), partition=0)


def committed(servers: str, topic: str) -> Counter[int]:
    """How often each number is there for readers of committed records."""
    records = committed_records({"bootstrap.servers": servers}, topic)
    return Counter(json.loads(record.value or b"")["a"] for record in records)


def evens(views: Mapping[str, DataFrame]) -> DataFrame:
    return views["numbers"].where("a % 2 = 0").select("a")


def definition(broker: EmbeddedBroker, folder: Path, name: str) -> Definition:
    """The even numbers of a topic into another one."""
    return Definition(
        name=name,
        checkpoint=str(folder / "state"),
        kafka=client(broker),
        sources=(SourceDefinition(name="numbers", topics=(f"{name}.in",), schema="a INT"),),
        transforms=(Transform(name="evens", function=evens),),
        outputs=(OutputDefinition(name="all", view="evens", sinks=(TopicSink(topic=f"{name}.out"),)),),
    )


def make_topics(made: Definition) -> None:
    names = [*dict(made.topics_read()), *dict(made.topics_written())]
    with Admin(made.kafka or {}) as admin:
        admin.create_topics([NewTopic(name=name, partitions=1) for name in names]).all()


@pytest.mark.gate(0)
def test_once_reads_what_is_there_and_again_what_came_since(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    made = definition(broker, tmp_path, "once")
    make_topics(made)
    for numbers in (range(ROWS), range(ROWS, 2 * ROWS)):
        send(broker.bootstrap_servers, "once.in", numbers)
        with Pipeline(made).start(once=True, spark=spark) as running:
            assert running.wait(timeout_s=120)
            seen = list(running.progress())
        assert [(each.output, each.rows, each.lag) for each in seen] == [("all", ROWS, 0)]
    assert committed(broker.bootstrap_servers, "once.out") == Counter(range(0, 2 * ROWS, 2))


@pytest.mark.gate(0)
def test_stopped_in_a_batch_it_leaves_nothing_undecided_and_goes_on(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """[PIP-1]"""
    made = definition(broker, tmp_path, "stopped")
    make_topics(made)
    send(broker.bootstrap_servers, "stopped.in", range(ROWS))
    with Pipeline(made).start(spark=spark) as running:
        watch = running.watch(made.outputs[0])
        eventually(
            lambda: (found := watch.read_status()) is not None and found.in_doubt_count > 0, deadline_s=60
        )
    left = watch.read_status()
    watch.close()
    assert left is not None
    assert left.in_doubt_count == 0
    with Pipeline(made).start(once=True, spark=spark) as running:
        assert running.wait(timeout_s=120)
    assert committed(broker.bootstrap_servers, "stopped.out") == Counter(range(0, ROWS, 2))


@pytest.mark.gate(0)
def test_stopped_when_it_is_idle_it_leaves_the_instance_that_follows_alone(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """[PIP-1] [SPK-25] A rolling deployment: the new one is in a batch when the old one is told to stop."""
    made = definition(broker, tmp_path, "rolling")
    make_topics(made)
    send(broker.bootstrap_servers, "rolling.in", range(ROWS))
    with Pipeline(made).start(spark=spark) as running:
        watch = running.watch(made.outputs[0])
        eventually(
            lambda: (found := watch.read_status()) is not None and found.last_batch == 0, deadline_s=60
        )
        watch.close()
        query = running.queries["all"]
        eventually(lambda: not query.status["isTriggerActive"], deadline_s=60)
        options = SinkOptions(prefix="rolling.all", client=client(broker), topic="rolling.out")
        newer = SinkContext(options)
        lease = newer.begin()
        vote = run_attempt(newer, lease, MicroBatch(query.id, 1), [pa.record_batch({"value": ['{"a": -1}']})])
    assert newer.commit([vote]) is not None
    newer.close()
    assert committed(broker.bootstrap_servers, "rolling.out") == Counter([-1, *range(0, ROWS, 2)])


@pytest.mark.gate(0)
def test_a_pipeline_without_a_cluster_has_a_broker_of_its_own(spark: SparkSession, tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text(
        """
        name = "own"
        checkpoint = "state"
        [broker]
        data-dir = "data"
        [sources.numbers]
        topics = ["in"]
        schema = "a INT"
        [[transforms]]
        name = "evens"
        sql = "SELECT a FROM numbers WHERE a % 2 = 0"
        [outputs.all]
        from = "evens"
        [[outputs.all.sinks]]
        topic = "out"
        """
    )
    with Pipeline.from_file(file).start(spark=spark) as running:
        servers = running.bootstrap_servers
        send(servers, "in", range(ROWS))
        eventually(lambda: sum(each.rows for each in running.progress()) > 0, deadline_s=60)
        assert committed(servers, "out") == Counter(range(0, ROWS, 2))
    assert (tmp_path / "data").is_dir()


def test_a_topic_and_a_table_are_decided_together_dead_letters_too(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/rows.db", poolclass=NullPool)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE evens (a INTEGER PRIMARY KEY)"))
    plain = definition(broker, tmp_path, "both")
    sinks = (TopicSink(topic="both.out"), TableSink(table="evens", database=str(engine.url)))
    source = replace(plain.sources[0], malformed=OnMalformed.DEAD_LETTER, dead_letter="both.bad")
    made = replace(plain, sources=(source,), outputs=(replace(plain.outputs[0], sinks=sinks),))
    make_topics(made)
    send(broker.bootstrap_servers, "both.in", range(ROWS))
    with Producer(client(broker)) as producer:
        producer.send("both.in", b'{"a": "no"}', partition=0)
    with Pipeline(made).start(once=True, spark=spark) as running:
        assert running.wait(timeout_s=120)
    assert committed(broker.bootstrap_servers, "both.out") == Counter(range(0, ROWS, 2))
    assert committed(broker.bootstrap_servers, "both.bad") == Counter(["no"])
    with engine.connect() as connection:
        assert [row.a for row in connection.execute(text("SELECT a FROM evens ORDER BY a"))] == [
            *range(0, ROWS, 2)
        ]


@pytest.mark.gate(0)
def test_deleted_checkpoints_are_resumed_each_output_where_it_ended(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """[SPK-27] One output's decisions are in a topic, the other one's in a database."""
    engine = create_engine(f"sqlite:///{tmp_path}/rows.db", poolclass=NullPool)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE evens (a INTEGER)"))
    plain = definition(broker, tmp_path, "resumed")
    table = TableSink(table="evens", database=str(engine.url))
    outputs = (*plain.outputs, OutputDefinition(name="rows", view="evens", sinks=(table,)))
    made = replace(plain, outputs=outputs)
    make_topics(made)
    for numbers in (range(ROWS), range(ROWS, 2 * ROWS)):
        send(broker.bootstrap_servers, "resumed.in", numbers)
        shutil.rmtree(tmp_path / "state", ignore_errors=True)
        with Pipeline(made).start(once=True, on_new=NewCheckpoint.RESUME, spark=spark) as running:
            assert running.wait(timeout_s=120)
    assert committed(broker.bootstrap_servers, "resumed.out") == Counter(range(0, 2 * ROWS, 2))
    with engine.connect() as connection:
        found = [row.a for row in connection.execute(text("SELECT a FROM evens ORDER BY a"))]
    assert found == [*range(0, 2 * ROWS, 2)]


def test_topics_that_are_missing_on_a_cluster_are_all_named(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    with pytest.raises(BadConfig) as refused:
        Pipeline(definition(broker, tmp_path, "missing")).start(spark=spark)
    said = str(refused.value)
    assert "sources.numbers.topics: there is no topic 'missing.in'" in said
    assert "outputs.all.sinks[0].topic: there is no topic 'missing.out'" in said
    assert "tallystick topics create --topic missing.out --bootstrap-server" in said


def test_everything_wrong_is_told_before_anything_is_started() -> None:
    wrong = Definition(
        name="wrong",
        checkpoint="state",
        broker=OwnBrokerDefinition(data_dir="data"),
        sources=(
            SourceDefinition(name="s", topics=("t",), schema="a INT", options={"maxOffsetPerTrigger": "5"}),
        ),
        transforms=(Transform(name="v"), Transform(name="w", sql="SELECT 1", function=evens)),
        outputs=(OutputDefinition(name="o", view="s", sinks=(TopicSink(topic="t"),)),),
        modes=("2pc",),
    )
    with pytest.raises(BadConfig) as refused:
        Pipeline(wrong)
    assert str(refused.value).splitlines() == [
        "sources.s.options: maxoffsetpertrigger: unknown option; did you mean maxOffsetsPerTrigger?",
        "sources.s.topics: reads t, which this pipeline writes from it, and would never end",
        "transforms[0]: v needs either sql or a function, and not both",
        "transforms[1]: w needs either sql or a function, and not both",
    ]
    with pytest.raises(BadConfig, match=r"kafka\.linger\.ms"):
        Pipeline(replace(wrong, kafka={"bootstrap.servers": "h:1", "linger.ms": "soon"}))
