"""Spark queries whose driver dies in a chosen phase of a batch: without Java, and without a clock.

Each of driver and tasks has a station of its own, as in processes of their own. A batch has two tasks, in
every place of decisions: a topic, a database, a lake table.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from sqlalchemy import create_engine, text
from tests.support.spark_queries import Interrupted, Query

from tallystick.client.errors import ClientError
from tallystick.client.net.cluster import Cluster
from tallystick.client.transactions.modes import TxnDecision
from tallystick.lake.names import parse_table_url
from tallystick.lake.opening import LakeLocation, open_table
from tallystick.spark.decisions.database import resolve_database
from tallystick.spark.options.sink_options import SinkOptions, with_database_suffix
from tallystick.spark.options.sinks import Sink, StagedMoves, to_table, to_topic
from tallystick.spark.protocol.committable import BatchLease, MicroBatch, Participant, Vote
from tallystick.spark.protocol.ports import DecisionLogPort, ParticipantsPort
from tallystick.spark.sink.driver.context import SinkContext
from tallystick.spark.sink.driver.database_context import DatabaseSinkContext
from tallystick.spark.sink.driver.lake_context import LakeSinkContext
from tallystick.spark.sink.task.attempt import open_producer
from tallystick.spark.sink.task.combined_attempt import HASH_COLUMN, CombinedTask, LakeTarget

TASKS = 2


class Phase(Enum):
    """When a driver dies."""

    BEFORE_VOTES = "before any task has voted"
    BEFORE_DECISION = "after the votes"
    AFTER_DECISION = "after the decision"
    PARTLY_COMMITTED = "after one of two commits"
    BEFORE_NOTE = "after both commits, before it has noted that"


class _DyingParticipants:
    """Ends as many transactions as the phase lets it."""

    def __init__(self, inner: ParticipantsPort, phase: Phase) -> None:
        self._inner, self._phase = inner, phase

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def end(
        self, participants: Collection[Participant], transaction_version: int, wish: TxnDecision
    ) -> Mapping[str, ClientError]:
        if self._phase is Phase.AFTER_DECISION:
            raise Interrupted
        if self._phase is Phase.PARTLY_COMMITTED:
            assert await self._inner.end(list(participants)[:1], transaction_version, wish) == {}
            raise Interrupted
        return await self._inner.end(participants, transaction_version, wish)


class _DyingLog:
    """Takes the decision, and notes its end unless the phase is before that."""

    def __init__(self, inner: DecisionLogPort, phase: Phase) -> None:
        self._inner, self._phase = inner, phase

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def mark_done(self, nonce: str) -> None:
        if self._phase is Phase.BEFORE_NOTE:
            raise Interrupted
        await self._inner.mark_done(nonce)


def dying(station: type[SinkContext], phase: Phase) -> type[SinkContext]:
    """Return the station of a driver that dies in a phase."""

    class DyingStation(station):  # type: ignore[valid-type, misc]
        def create_ports(self, cluster: Cluster) -> tuple[Any, Any]:
            participants, decisions = super().create_ports(cluster)
            return _DyingParticipants(participants, phase), _DyingLog(decisions, phase)

    return DyingStation


class PhasedQuery(Query):
    """A query that decides in a topic."""

    store: str | None = None

    def make_driver(self, phase: Phase | None) -> SinkContext:
        return self.station(SinkContext if phase is None else dying(SinkContext, phase))

    def run_batch(self, batch_id: int, phase: Phase | None = None) -> None:
        """Run a batch of two tasks; its driver dies in `phase`."""
        driver = self.make_driver(phase)
        lease = driver.begin()
        if phase is Phase.BEFORE_VOTES:
            for _ in range(TASKS):
                self.begin_task(lease)
            return
        votes = self.run_tasks(driver, lease, batch_id)
        if phase is Phase.BEFORE_DECISION:
            return
        if phase is None:
            assert driver.commit(votes) is not None
            return
        with pytest.raises(Interrupted):
            driver.commit(votes)

    def begin_task(self, lease: BatchLease) -> None:
        """Write a row in a task that is killed before it prepares."""
        producer = open_producer(self.make_task_station(), lease).producer
        producer.begin_transaction()
        producer.send(self.topic, b"v")
        producer.flush()
        self.closers.append(producer.close)

    def make_task_station(self) -> SinkContext:
        return self.station()

    def run_tasks(self, driver: SinkContext, lease: BatchLease, batch_id: int) -> Sequence[Vote]:
        return [self.write(lease, batch_id) for _ in range(TASKS)]

    @property
    def closers(self) -> list[Callable[[], object]]:
        return self.__dict__.setdefault("_closers", [])

    def close(self) -> None:
        for close in self.closers:
            close()
        super().close()


class DatabaseQuery(PhasedQuery):
    """A query that decides in an SQLite database, together with the rows of a table."""

    def use(self, file: Path) -> "DatabaseQuery":
        """Make the database with its table."""
        self.store = f"sqlite:///{file}"
        engine = create_engine(self.store)
        with engine.begin() as connection:
            connection.execute(text("CREATE TABLE rows_of_the_query (id TEXT)"))
        engine.dispose()
        return self

    @property
    def target(self) -> Any:
        return resolve_database(self.store or "")

    @property
    def sinks(self) -> tuple[Sink, ...]:
        table = to_table("rows_of_the_query", columns={"id": "value"})
        return to_topic(self.topic, key="value", value="value"), table

    def make_driver(self, phase: Phase | None) -> SinkContext:
        station = DatabaseSinkContext if phase is None else dying(DatabaseSinkContext, phase)
        return self.open(lambda options: station(options, self.target, self.sinks[1:]))  # type: ignore[call-arg]

    def open(self, make: Callable[[SinkOptions], SinkContext]) -> SinkContext:
        """Return a new station under the prefix of queries whose decisions are beside their tables."""
        return self.station(lambda options: make(with_database_suffix(options)))

    def make_task_station(self) -> SinkContext:
        return self.open(SinkContext)

    def run_tasks(self, driver: SinkContext, lease: BatchLease, batch_id: int) -> Sequence[Vote]:
        told = [self.run_task(lease, batch_id, task) for task in range(TASKS)]
        rows = sum(vote.row_checksums[1].rows for vote, _ in told)
        moves = StagedMoves(attempts=tuple(name for _, name in told), rows=(rows,))
        driver.decision_log.set_staged_moves(lease.nonce, moves)  # type: ignore[attr-defined]
        return [vote for vote, _ in told]

    def run_task(self, lease: BatchLease, batch_id: int, task: int) -> tuple[Vote, str]:
        station = self.make_task_station()
        work = CombinedTask(
            options=station.options,
            lease=lease,
            job=MicroBatch("q", batch_id),
            sinks=self.sinks,
            store=self.target,
            open_context=lambda _: station,
        )
        return work.run([build_rows([f"{batch_id}-{task}-{row}" for row in range(10)])])


class LakeQuery(DatabaseQuery):
    """A query that decides in a Delta table, together with its rows."""

    def use(self, file: Path) -> "LakeQuery":
        """Make the table."""
        DeltaTable.create(file, schema=pa.schema([("id", pa.string())]))
        self.store = f"delta:{file}"
        return self

    @property
    def target(self) -> LakeTarget:
        location = LakeLocation(url=parse_table_url(self.store or ""))
        return LakeTarget(location=location, definition=open_table(location).read_definition())

    @property
    def sinks(self) -> tuple[Sink, ...]:
        table = to_table(self.store or "", columns={"id": "value"})
        return to_topic(self.topic, key="value", value="value"), table

    def make_driver(self, phase: Phase | None) -> SinkContext:
        station: Any = LakeSinkContext if phase is None else dying(LakeSinkContext, phase)
        return self.open(lambda options: station(options, self.target.location))


def build_rows(values: Sequence[str]) -> pa.RecordBatch:
    """Return rows for a topic and a table, as `project_sinks` makes them."""
    column = pa.array(values)
    hashes = pa.array([hash(each) for each in values], pa.int64())
    none = pa.nulls(len(values), pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()})))
    binary = column.cast(pa.binary())
    record = {"key": binary, "value": binary, "headers": none, HASH_COLUMN: hashes}
    row = {"id": column, HASH_COLUMN: hashes}
    structs = [pa.StructArray.from_arrays(list(each.values()), list(each)) for each in (record, row)]
    return pa.record_batch(structs, names=["sink_0", "sink_1"])
