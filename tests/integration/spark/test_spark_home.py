"""A query whose settings changed between two runs, or whose decisions were lost: nothing is written again."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest
from tests.support.spark_queries import Interrupted, Mute

from tallystick import Admin
from tallystick.client.net.cluster import Cluster
from tallystick.spark.checkpoint import BadCheckpoint
from tallystick.spark.decisions.database import resolve_database
from tallystick.spark.options.option_table import QueryType
from tallystick.spark.options.sink_options import parse_sink_options, with_database_suffix
from tallystick.spark.options.sinks import StagedMoves
from tallystick.spark.protocol.committable import MicroBatch
from tallystick.spark.protocol.errors import DecisionsMissing
from tallystick.spark.protocol.ports import DecisionLogPort, ParticipantsPort
from tallystick.spark.sink.driver.context import SinkContext
from tallystick.spark.sink.driver.database_context import DatabaseSinkContext
from tallystick.spark.sink.task.attempt import run_attempt
from tallystick.testing import EmbeddedBroker

pytestmark = [pytest.mark.server]

_NAMES = count()


class MuteStation(SinkContext):
    def create_ports(self, cluster: Cluster) -> tuple[ParticipantsPort, DecisionLogPort]:
        _, decisions = super().create_ports(cluster)
        return Mute(cluster, self.options, 10_000), decisions


@dataclass
class Run:
    """A query as it is started: every run is a process of its own. Batch 0 comes again in each."""

    bootstrap: str
    checkpoint: Path
    database: Path | None = None
    options: dict[str, str] = field(default_factory=dict)

    def __call__(self, number: int = 0, make: type[SinkContext] = SinkContext) -> str:
        given = {
            "kafka.bootstrap.servers": self.bootstrap,
            "topic": f"out-{self.options['transactional.id.prefix']}",
            "checkpointLocation": str(self.checkpoint),
            **self.options,
        }
        options = parse_sink_options(given, QueryType.STREAM)
        if self.database is None:
            station = make(options)
        else:
            self.database.touch()
            station = DatabaseSinkContext(
                with_database_suffix(options), resolve_database(f"sqlite:///{self.database}"), ()
            )
        try:
            lease = station.begin(query_id="q")
            vote = run_attempt(
                station, lease, MicroBatch("q", number), [pa.record_batch({"value": ["a", "b"]})]
            )
            if isinstance(station, DatabaseSinkContext):
                station.decision_log.set_staged_moves(lease.nonce, StagedMoves(attempts=(), rows=()))
            decision = station.commit([vote])
        finally:
            station.close()
        return "skipped" if decision is None else "written"


@pytest.fixture
def run(broker: EmbeddedBroker, tmp_path: Path) -> Run:
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    (checkpoint / "metadata").write_text(json.dumps({"id": "q"}))
    name = f"query{next(_NAMES)}"
    return Run(
        broker.bootstrap_servers,
        checkpoint,
        options={"transactional.id.prefix": name, "decisions.topic": f"{name}-decisions"},
    )


def other_topic(run: Run) -> None:
    run.options["decisions.topic"] = "others"


def other_prefix(run: Run) -> None:
    run.options["transactional.id.prefix"] += "-v2"


def topic_deleted(run: Run) -> None:
    with Admin({"bootstrap.servers": run.bootstrap}) as admin:
        admin.delete_topics([run.options["decisions.topic"]]).all()


def topic_made_again(run: Run) -> None:
    """As by another query that begins."""
    topic_deleted(run)
    name = run.options["transactional.id.prefix"]
    checkpoint = run.checkpoint.with_name("another")
    checkpoint.mkdir()
    (checkpoint / "metadata").write_text(json.dumps({"id": "another"}))
    Run(run.bootstrap, checkpoint, options={**run.options, "transactional.id.prefix": f"{name}-another"})()


def other_database(run: Run) -> None:
    assert run.database is not None
    run.database = run.database.with_name("other.db")


def database_taken_away(run: Run) -> None:
    run.database = None


def database_added(run: Run) -> None:
    run.database = run.checkpoint.with_name("one.db")


IN_TOPIC = (other_topic, other_prefix, topic_deleted, topic_made_again, database_added)
IN_DATABASE = (other_prefix, other_database, database_taken_away)


@pytest.mark.gate(1)
@pytest.mark.parametrize(
    ("change", "in_database"),
    [*((each, False) for each in IN_TOPIC), *((each, True) for each in IN_DATABASE)],
    ids=lambda each: each.__name__ if callable(each) else "database" if each else "topic",
)
def test_a_decided_batch_is_not_written_again_where_its_decision_is_not_known(
    run: Run, change: Callable[[Run], None], in_database: bool
) -> None:
    """[SPK-29] It was decided, and is not in Spark's commits/: an ordinary stop does that."""
    run.database = run.checkpoint.with_name("one.db") if in_database else None
    assert run() == "written"
    assert run() == "skipped"
    change(run)
    for _ in range(2):
        with pytest.raises(DecisionsMissing, match=r"the checkpoint belongs to .*adopt"):
            run()
    run.options["onNewPrefix"] = "adopt"
    assert run(number=1) == "written"
    del run.options["onNewPrefix"]
    assert run(number=1) == "skipped"


def test_a_batch_that_is_half_completed_keeps_its_decided_half(run: Run) -> None:
    """[SPK-21] [SPK-29] Under another topic of decisions what was decided would look like an orphan."""
    with pytest.raises(Interrupted):
        run(make=MuteStation)
    topic = run.options["decisions.topic"]
    run.options["decisions.topic"] = "others"
    with pytest.raises(DecisionsMissing):
        run()
    run.options["decisions.topic"] = topic
    assert run() == "skipped"


def test_without_a_checkpoint_to_read_a_later_batch_without_decision_is_refused(run: Run) -> None:
    """[SPK-29] In an object store there is no note; the tasks know the number of their batch."""
    run.options["checkpointLocation"] = "s3a://bucket/query"
    assert [run(number) for number in range(3)] == ["written"] * 3
    topic_deleted(run)
    with pytest.raises(DecisionsMissing, match="batch 2 of query q is not its first"):
        run(number=2)


def test_a_note_that_cannot_be_read_is_said(run: Run) -> None:
    assert run() == "written"
    (run.checkpoint / "tallystick" / "decisions.json").write_text("{")
    with pytest.raises(BadCheckpoint, match=r"decisions\.json cannot be read"):
        run()


def test_a_database_that_was_moved_is_known_by_its_name(run: Run) -> None:
    """[SPK-29] The address is no part of the note: a server gets another one, a replica is promoted."""
    run.database = run.checkpoint.with_name("one.db")
    assert run() == "written"
    run.database = run.database.rename(run.database.with_name("elsewhere.db"))
    assert run() == "skipped"
