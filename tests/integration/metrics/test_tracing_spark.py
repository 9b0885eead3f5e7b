"""A Spark batch is one trace: the driver's part, and the tasks in Spark's own Python processes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from sqlalchemy import create_engine, text
from tests.support.dual_world import new_name
from tests.support.reading import committed_records
from tests.support.traces import Traces, attributes_of, context_of

from tallystick import Admin
from tallystick.admin.topics import NewTopic
from tallystick.spark import foreach_batch, to_table, to_topic
from tallystick.testing import EmbeddedBroker

pytestmark = [pytest.mark.slow, pytest.mark.server, pytest.mark.broker(in_process=False)]

# What a user writes, but for the exporter: one line of JSON for each span.
SETUP = """
import json
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from tallystick.otel import TallystickInstrumentor


class ToFile(SpanExporter):
    def export(self, spans):
        lines = [
            json.dumps({{
                "name": span.name,
                "trace": span.context.trace_id,
                "span": span.context.span_id,
                "parent": span.parent and span.parent.span_id,
                "attributes": dict(span.attributes),
            }})
            for span in spans
        ]
        try:
            with open({path!r}, "a") as file:
                file.write("".join(line + chr(10) for line in lines))
        except OSError:  # the test that wanted them is over, and its workers live on
            pass
        return SpanExportResult.SUCCESS


def set_up():
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(ToFile()))
    TallystickInstrumentor().instrument(tracer_provider=provider)


def fail():
    raise RuntimeError("the setup is broken")
"""

Span = dict[str, Any]


@pytest.fixture(scope="module")
def spans_path(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file to which Spark's Python processes export, which set tracing up once and are used again."""
    folder = tmp_path_factory.mktemp("traced")
    (folder / "traced_setup.py").write_text(SETUP.format(path=str(folder / "spans")))
    spark.sparkContext.addPyFile(str(folder / "traced_setup.py"))
    return folder / "spans"


class Place:
    """A topic and a query's folder."""

    def __init__(self, spark: SparkSession, broker: EmbeddedBroker, folder: Path, spans_path: Path) -> None:
        self.spark, self.folder, self.spans_path, self.topic = spark, folder, spans_path, new_name()
        self.client = {"bootstrap.servers": broker.bootstrap_servers}
        self.prefix = f"test/{self.topic}.q"
        self.options = {
            "kafka.bootstrap.servers": broker.bootstrap_servers,
            "transactional.id.prefix": self.prefix,
            "tracing.setup": "traced_setup:set_up",
        }
        (folder / "in").mkdir()
        (folder / "in" / "rows.txt").write_text("".join(f"{row}\n" for row in range(40)))
        with Admin(self.client) as admin:
            admin.create_topics([NewTopic(name=self.topic, partitions=2)]).all()

    def lines(self) -> DataFrame:
        return self.spark.readStream.format("text").load(str(self.folder / "in")).repartition(2)

    def run(self, write: Callable[[DataFrame, int], None], rows: DataFrame | None = None) -> None:
        writer = (self.lines() if rows is None else rows).writeStream.foreachBatch(write)
        checkpointed = writer.option("checkpointLocation", str(self.folder / "checkpoint"))
        checkpointed.trigger(availableNow=True).start().awaitTermination()

    def written(self) -> int:
        return len(committed_records(self.client, self.topic, 2))

    def spans(self) -> list[Span]:
        """Return what Spark's processes have exported in the traces of this query."""
        spans = [json.loads(line) for line in self.spans_path.read_text().splitlines()]
        ids = [(span["trace"], span["attributes"].get("tallystick.transaction.id", "")) for span in spans]
        own = {trace for trace, prefix in ids if prefix.startswith(self.prefix)}
        return [span for span in spans if span["trace"] in own]


@pytest.fixture
def place(spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path, spans_path: Path) -> Place:
    return Place(spark, broker, tmp_path, spans_path)


def named(spans: list[Span], name: str) -> list[Span]:
    return [span for span in spans if span["name"] == name]


def below(spans: list[Span], parent: Span) -> list[str]:
    return sorted(span["name"] for span in spans if span["parent"] == parent["span"])


def assert_tasks_are_below(place: Place, traces: Traces, *, rows: int = 40) -> list[Span]:
    batch = traces.one("spark batch")
    spans = place.spans()
    tasks = named(spans, "spark task")
    assert len(tasks) == 2
    assert {task["trace"] for task in tasks} == {context_of(batch).trace_id}
    assert {task["parent"] for task in tasks} == {context_of(batch).span_id}
    assert sum(task["attributes"]["tallystick.spark.rows"] for task in tasks) == rows
    assert attributes_of(batch)["tallystick.spark.rows"] == rows
    assert attributes_of(batch)["tallystick.spark.transactions"] == 2
    assert {task["attributes"]["tallystick.spark.batch_id"] for task in tasks} == {0}
    assert {task["attributes"]["tallystick.spark.query_id"] for task in tasks} == {
        attributes_of(batch)["tallystick.spark.query_id"]
    }
    return tasks


def test_a_batch_of_foreach_batch_is_one_trace_with_its_tasks(place: Place, traces: Traces) -> None:
    place.run(foreach_batch({**place.options, "topic": place.topic}))
    assert traces.tree() == "spark batch\n  begin batch\n  commit batch"
    assert place.written() == 40
    for task in assert_tasks_are_below(place, traces):
        assert below(place.spans(), task)[-2:] == ["prepare_transaction", f"send {place.topic}"]


@pytest.mark.gate(0)
def test_a_batch_of_several_sinks_is_one_trace_with_its_tasks(place: Place, traces: Traces) -> None:
    url = f"sqlite:///{place.folder / 'rows.db'}"
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE lines (value VARCHAR(40) PRIMARY KEY)"))
    engine.dispose()
    sinks = (to_topic(place.topic, value="value"), to_table("lines", columns=["value"]))
    place.run(foreach_batch(place.options, *sinks, database=url))
    assert traces.tree() == "spark batch\n  begin batch\n  commit batch"
    assert place.written() == 40
    assert_tasks_are_below(place, traces, rows=80)  # counted for each sink


@pytest.mark.gate(0)
def test_a_batch_that_fails_is_aborted_in_its_trace(place: Place, traces: Traces) -> None:
    write = foreach_batch({**place.options, "topic": place.topic})
    broken = "if(value = '7', raise_error('this row is broken'), value) AS value"
    with pytest.raises(StreamingQueryException, match="this row is broken"):
        place.run(write, place.lines().selectExpr(broken))
    assert place.written() == 0
    assert traces.tree() == "spark batch\n  begin batch\n  abort batch"
    assert "error.type" in attributes_of(traces.one("spark batch"))


def test_the_data_sources_processes_share_one_trace(place: Place) -> None:
    """Spark begins, writes and decides a batch in different processes, none of which is the program's."""
    stream = place.lines().writeStream.format("tallystick").options(**place.options)
    checkpointed = stream.option("topic", place.topic).option(
        "checkpointLocation", str(place.folder / "checkpoint")
    )
    checkpointed.trigger(availableNow=True).start().awaitTermination()
    assert place.written() == 40
    spans = place.spans()
    (batch,) = named(spans, "spark batch")
    assert batch["parent"] is None
    assert below(spans, batch) == ["begin batch", "commit batch", "spark task", "spark task"]


@pytest.mark.gate(0)
def test_a_broken_setup_costs_the_trace_and_not_the_rows(place: Place, traces: Traces) -> None:
    setup = place.options["tracing.setup"].replace("set_up", "fail")
    place.run(foreach_batch({**place.options, "tracing.setup": setup, "topic": place.topic}))
    assert place.written() == 40
    assert len(traces.named("spark batch")) == 1
