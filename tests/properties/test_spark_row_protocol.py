"""Topic and table in one decision: a toy cluster, a real SQLite, a driver stopped at every effect of both."""

import asyncio
import gc
import shutil
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count, product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from sqlalchemy import Engine, create_engine, delete, event, text
from sqlalchemy.pool import NullPool
from tests.support.effort import LONG
from tests.support.servers import quick_place
from tests.support.stalling import (
    Doing,
    Gate,
    Gated,
    Point,
    aborts,
    begins,
    commits,
    stall_beside_a_newer_driver,
)
from tests.support.toy_cluster import ToyCluster, ToyParticipants

from tallystick.spark.decisions.row import DecisionRow
from tallystick.spark.decisions.staging import RowsRejected, StagingTable
from tallystick.spark.decisions.store_log import DatabaseDecisionLog, DatabaseParticipants
from tallystick.spark.options.sinks import StagedMoves, to_table
from tallystick.spark.protocol.committable import (
    BatchLease,
    DecisionNote,
    MicroBatch,
    Participant,
    RowChecksum,
    Vote,
)
from tallystick.spark.protocol.coordinator import SinkCoordinator
from tallystick.spark.protocol.decide import NewCheckpoint, TaskAction, plan_task
from tallystick.spark.protocol.decision_fold import DecisionState
from tallystick.spark.protocol.errors import (
    CheckpointsDiffer,
    DecisionsLost,
    PrefixTaken,
    SinkError,
    VoteLost,
)
from tallystick.spark.sink.task.worker_ids import WorkerIdPool
from tallystick.testing import FakeClock

PREFIX = "p"
QUERY = "q"
LIMIT_MS = 1_000
SINK = to_table("target", columns=["id"])


class Crash(BaseException):
    """The driver is gone; BaseException, since nothing answers it."""


@dataclass
class World:
    """What survives: a cluster, a database, a checkpoint; and where the next driver dies."""

    engine: Engine
    cluster: ToyCluster = field(default_factory=ToyCluster)
    committed_batch: int = -1
    noted: DecisionNote | None = None
    effects: int = 0
    dies_after: int | None = None
    connections: list[sqlite3.Connection] = field(default_factory=list)

    def __post_init__(self) -> None:
        with self.engine.begin() as connection:
            connection.execute(text("CREATE TABLE target (id INTEGER PRIMARY KEY)"))
        event.listen(self.engine, "connect", lambda raw, _: self.connections.append(raw))
        event.listen(self.engine, "after_cursor_execute", self.effect)
        event.listen(self.engine, "commit", self.effect)
        self.cluster.effect = self.awaited_effect  # type: ignore[method-assign]

    def effect(self, *_: Any) -> None:
        self.effects += 1
        if self.effects == self.dies_after:
            raise Crash

    async def awaited_effect(self) -> None:
        self.effect()

    def rows(self) -> Counter[int]:
        with self.engine.connect() as connection:
            return Counter(connection.execute(text("SELECT id FROM target")).scalars())


class ToyNotes:
    """What the cluster is told, and keeps."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def open(self) -> None:
        await self._world.cluster.effect()

    async def read(self) -> DecisionState:
        await self._world.cluster.effect()
        return DecisionState(note=self._world.noted)

    async def write_note(self, noted: DecisionNote | None) -> None:
        await self._world.cluster.effect()
        self._world.noted = noted


class Driver:
    """One run of a query: its coordinator, and the tasks that it starts."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.staged = StagingTable(world.engine, PREFIX, SINK)
        self.participants = ToyParticipants(world.cluster, PREFIX)
        clock = self.clock = FakeClock()
        self.row = DecisionRow(world.engine, PREFIX, [self.staged])
        self.log = DatabaseDecisionLog(self.row, LIMIT_MS, clock, ToyNotes(world))
        claimed = DatabaseParticipants(self.participants, self.row)
        self.coordinator = SinkCoordinator(PREFIX, claimed, self.log, clock=clock)
        self.ids = [WorkerIdPool(PREFIX) for _ in range(2)]

    async def run(self, until: int) -> None:
        while self.world.committed_batch + 1 < until:
            await self.batch(self.world.committed_batch + 1)

    async def batch(self, number: int) -> None:
        lease = await self.coordinator.begin()
        votes, moves = await self.tasks(lease, number)
        self.log.set_staged_moves(lease.nonce, moves)
        await self.coordinator.commit(votes)
        self.world.committed_batch = number

    async def tasks(
        self, lease: BatchLease, number: int, many: int = 4
    ) -> tuple[list[Vote | None], StagedMoves]:
        """Two tasks; a third one stages and is never heard of."""
        rows = range(number * 4, number * 4 + many)
        votes: list[Vote | None] = []
        for task, share in enumerate((rows[:3], rows[3:])):
            votes.append(await self.attempt(task, lease, number, share))
        self.stage(f"{lease.nonce}zombie", rows)
        attempts = tuple(f"{lease.nonce}{task}" for task in range(2))
        return votes, StagedMoves(attempts=attempts, rows=(len(rows),))

    async def attempt(self, task: int, lease: BatchLease, number: int, rows: range) -> Vote:
        job = MicroBatch(QUERY, number)
        way = plan_task(lease.last_decision, job, NewCheckpoint.REFUSE)
        if isinstance(way, SinkError):
            raise way
        participant = None
        if way is TaskAction.WRITE and rows:
            name = str(self.ids[task].acquire(lease))
            pair = self.world.cluster.initialise(name)
            self.world.cluster.produce(name, pair, rows)
            self.stage(f"{lease.nonce}{task}", rows)
            participant = Participant(transactional_id=name, identity=pair)
        return Vote(
            nonce=lease.nonce,
            coordinator=lease.coordinator,
            transaction_version=lease.transaction_version,
            job=job,
            row_checksums=(RowChecksum(len(rows), sum(rows)),),
            participant=participant,
            is_skipped=way is TaskAction.SKIP,
        )

    def stage(self, attempt: str, rows: range) -> None:
        self.staged.stage(attempt, 0, pa.record_batch([pa.array(rows)], names=["id"]))


NewWorld = Callable[[], World]


@pytest.fixture
def new_world(tmp_path: Path) -> Iterator[NewWorld]:
    numbers = count()
    # Each life ends with a collection; what the tests before this one have left is not searched every time.
    gc.freeze()
    with tempfile.TemporaryDirectory(dir=quick_place() or tmp_path) as folder:
        yield lambda: World(create_engine(f"sqlite:///{folder}/{next(numbers)}.db", poolclass=NullPool))
    gc.unfreeze()


def live(world: World, dies_after: int | None, until: int) -> None:
    """One driver, until it is done or dies."""
    driver = Driver(world)
    world.effects, world.dies_after = 0, dies_after
    with suppress(Crash):
        asyncio.run(driver.run(until))
    world.dies_after = None
    for connection in world.connections:  # as the system does when a process ends
        connection.close()
    gc.collect()  # a cursor in a traceback still has its lock
    world.connections.clear()


def settle(world: World, batches: int) -> None:
    """After all that, a driver that nothing disturbs: every row is in both places, once; nothing is left."""
    live(world, None, batches + 1)
    assert world.committed_batch == batches
    assert world.rows() == world.cluster.committed == Counter(range(4 * (batches + 1)))
    assert world.cluster.open_ids() == []


@pytest.mark.gate(0)
def test_a_crash_after_any_effect_leaves_topic_and_table_agreeing(new_world: NewWorld) -> None:
    """[SPK-40] [SPK-41] [SPK-42] Two batches, stopped after the n-th effect; the next driver is, too."""
    world = new_world()
    live(world, None, 2)
    for effect in range(1, world.effects + 1):
        world = new_world()
        live(world, effect, 2)
        live(world, effect * 7 % 30 + 1, 2)
        settle(world, 2)


def test_a_decision_and_its_rows_are_one_transaction(new_world: NewWorld) -> None:
    """[SPK-40] Stopped between the decision in the row and the database's commit: neither is there."""
    world = new_world()
    live(world, None, 1)

    async def dies(driver: Driver) -> None:
        lease = await driver.coordinator.begin()
        votes, moves = await driver.tasks(lease, 1)
        driver.log.set_staged_moves(lease.nonce, moves)
        world.effects, world.dies_after = 0, 7  # note, row, describe, update, count, insert, commit
        await driver.coordinator.commit(votes)

    with suppress(Crash):
        asyncio.run(dies(Driver(world)))
    world.dies_after = None
    assert world.rows() == Counter(range(4))
    assert asyncio.run(Driver(world).log.read()).decision.batch_id == 0  # type: ignore[union-attr]
    settle(world, 1)


def test_rows_that_were_lost_are_not_decided_on(new_world: NewWorld) -> None:
    """[SPK-41] What is staged need not survive a crash of the database; the vote says how much there was."""
    world = new_world()

    async def loses(driver: Driver) -> None:
        lease = await driver.coordinator.begin()
        votes, moves = await driver.tasks(lease, 0)
        with world.engine.begin() as connection:
            connection.execute(delete(driver.staged.table).where(driver.staged.table.c.id == 2))
        driver.log.set_staged_moves(lease.nonce, moves)
        with pytest.raises(VoteLost, match="4 rows were staged, but 3 are there"):
            await driver.coordinator.commit(votes)
        await driver.coordinator.abort(votes)

    asyncio.run(loses(Driver(world)))
    assert world.rows() == world.cluster.committed == Counter()
    settle(world, 1)


def test_a_move_that_takes_too_long_is_not_decided_on(new_world: NewWorld) -> None:
    """The votes were sound when it began; without two-phase commit the cluster would abort them meanwhile."""
    world = new_world()

    async def slow(driver: Driver) -> None:
        lease = await driver.coordinator.begin()
        votes, moves = await driver.tasks(lease, 0)
        driver.log.set_staged_moves(lease.nonce, moves)
        event.listen(world.engine, "after_cursor_execute", lambda *_: driver.clock.advance(LIMIT_MS))
        with pytest.raises(VoteLost, match="moving the rows took so long"):
            await driver.coordinator.commit(votes)
        await driver.coordinator.abort(votes)

    asyncio.run(slow(Driver(world)))
    assert world.rows() == world.cluster.committed == Counter()


def test_rows_that_the_table_refuses_are_not_decided_on(new_world: NewWorld) -> None:
    """[SPK-40] And the records of the topic are aborted with them."""
    world = new_world()
    with world.engine.begin() as connection:
        connection.execute(text("INSERT INTO target VALUES (3)"))

    async def refused(driver: Driver) -> None:
        lease = await driver.coordinator.begin()
        votes, moves = await driver.tasks(lease, 0)
        driver.log.set_staged_moves(lease.nonce, moves)
        with pytest.raises(RowsRejected, match=r"table target does not take .*UNIQUE.*Nothing was decided"):
            await driver.coordinator.commit(votes)
        await driver.coordinator.abort(votes)

    asyncio.run(refused(Driver(world)))
    assert world.rows() == Counter([3])
    assert world.cluster.committed == Counter()
    assert world.cluster.open_ids() == []


def test_a_driver_that_was_replaced_decides_nothing(new_world: NewWorld) -> None:
    """[SPK-43] Its row has another owner, its staged rows are swept; its abort leaves the newer one alone."""
    world = new_world()

    async def replaced() -> None:
        old, new = Driver(world), Driver(world)
        lease = await old.coordinator.begin()
        votes, moves = await old.tasks(lease, 0)
        newer = await new.coordinator.begin()
        new_votes, new_moves = await new.tasks(newer, 0)
        old.log.set_staged_moves(lease.nonce, moves)
        with pytest.raises((PrefixTaken, VoteLost)):
            await old.coordinator.commit(votes)
        await old.coordinator.abort(votes)
        with pytest.raises(PrefixTaken):
            await old.log.forget(lease.coordinator, 2)
        new.log.set_staged_moves(newer.nonce, new_moves)
        await new.coordinator.commit(new_votes)
        world.committed_batch = 0

    asyncio.run(replaced())
    assert world.rows() == world.cluster.committed == Counter(range(4))
    settle(world, 1)


def test_of_two_claims_the_clusters_last_one_has_the_row(new_world: NewWorld) -> None:
    """[SPK-43] The one that claimed the cluster first comes to the row last: it must not take it back."""
    world = new_world()

    async def race() -> None:
        old, new = Driver(world), Driver(world)
        held, _ = await old.participants.claim()
        lease = await new.coordinator.begin()
        assert not await DatabaseParticipants(old.participants, old.row)._claim_row(held)
        votes, moves = await new.tasks(lease, 0)
        new.log.set_staged_moves(lease.nonce, moves)
        await new.coordinator.commit(votes)
        world.committed_batch = 0

    asyncio.run(race())
    settle(world, 1)


def test_a_replayed_batch_with_other_rows_stops(new_world: NewWorld) -> None:
    """[SPK-22] The row keeps counts and checksums as the topic does."""
    world = new_world()
    live(world, None, 1)

    async def replay(driver: Driver) -> None:
        lease = await driver.coordinator.begin()
        votes, _ = await driver.tasks(lease, 0, many=3)
        with pytest.raises(CheckpointsDiffer, match="batch 0"):
            await driver.coordinator.commit(votes)

    asyncio.run(replay(Driver(world)))
    assert world.rows() == Counter(range(4))


@pytest.mark.parametrize("decided", [0, 1])
def test_a_database_that_lost_what_it_acknowledged_stops_the_query(
    new_world: NewWorld, tmp_path: Path, decided: int
) -> None:
    """[SPK-44] A replica that lagged was promoted, a backup restored: the batch would be there twice."""
    world = new_world()
    file, backup = world.engine.url.database or "", tmp_path / "backup"
    live(world, None, decided)
    Driver(world).row.create_table()
    shutil.copy(file, backup)
    live(world, None, decided + 1)
    shutil.copy(backup, file)
    world.committed_batch = decided - 1  # commits/N is missing, as after an ordinary stop
    for _ in range(2):
        with pytest.raises(DecisionsLost, match=f"batch {decided} of query q"):
            asyncio.run(Driver(world).run(decided + 2))
    assert world.cluster.committed == Counter(range(4 * (decided + 1)))
    asyncio.run(Driver(world).coordinator.retire())
    assert asyncio.run(Driver(world).coordinator.begin()).last_decision is None


def test_a_prefix_that_was_given_up_has_no_decision(new_world: NewWorld) -> None:
    world = new_world()
    live(world, None, 1)
    found = asyncio.run(Driver(world).coordinator.retire())
    assert found.decision is not None
    assert asyncio.run(Driver(world).log.read()).decision is None


# ------------------------------------------------------- a driver that stalls while a newer one takes over


class StallingDriver(Driver):
    def __init__(self, world: World, at: int | Point | None) -> None:
        super().__init__(world)
        self.gate = Gate(at)
        # Not in `holds` below the row: there a transaction of the database waits for the answer.
        cluster = Gated(
            self.participants, self.gate, {"claim", "reclaim", "describe", "end", "recover", "open_ids"}
        )
        claimed = Gated(DatabaseParticipants(cluster, self.row), self.gate, {"claim", "reclaim", "holds"})
        log = Gated(self.log, self.gate, {"read", "append", "note", "mark_done", "forget"})
        self.coordinator = SinkCoordinator(PREFIX, claimed, log, clock=self.clock)


@pytest.mark.gate(0)
@pytest.mark.parametrize("doing", [begins, commits, aborts])
def test_a_driver_that_stalls_and_wakes_leaves_topic_and_table_agreeing(
    new_world: NewWorld, doing: Doing
) -> None:
    """[SPK-28] [SPK-40] [SPK-43] Before and after each effect, while a newer one commits."""
    others = product(("append", "end"), (0, 1)) if LONG else [("append", 1)]
    for other in others:
        for at in count(1):
            world = new_world()
            if not asyncio.run(stall_beside_a_newer_driver(partial(StallingDriver, world), doing, at, other)):
                assert at > 8, "the enumeration has its points"
                break
            settle(world, world.committed_batch + 1)
