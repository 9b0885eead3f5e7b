"""Topic and lake table in one decision: a toy cluster and a toy table, a driver stopped at every effect.

The table is a list of versions with "create if absent", which is all that the rules ask of a table format;
tests/integration/lake/test_lake_delta.py shows that Delta has it. Answers get lost, commits arrive late, and
other writers commit in between.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count, product
from typing import Any

import pyarrow as pa
import pytest
from tests.support.effort import LONG
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

from tallystick.kernel.errors import InDoubt, TallystickError
from tallystick.lake.entries import CommitOutcome, LakeEntry
from tallystick.lake.names import format_data_file_name
from tallystick.lake.orphans import find_orphans
from tallystick.lake.ports import DataFile, ListedFile, TableFiles, TableState
from tallystick.lake.schema import TableDefinition
from tallystick.lake.sweeping import look_for_orphans, remove_orphans
from tallystick.spark.decisions.lake_row import LakeRow, encode_files
from tallystick.spark.decisions.store_log import DatabaseDecisionLog, DatabaseParticipants
from tallystick.spark.options.sinks import StagedMoves
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
from tallystick.spark.protocol.errors import DecisionsLost, PrefixTaken, SinkError
from tallystick.spark.sink.task.worker_ids import WorkerIdPool
from tallystick.testing import FakeClock

PREFIX = "p"
QUERY = "q"
LIMIT_MS = 1_000
DEFINITION = TableDefinition(identity="t", schema=pa.schema([("id", pa.int64())]))


class Crash(BaseException):
    """The driver is gone; BaseException, since nothing answers it."""


@dataclass
class Version:
    entry: LakeEntry | None = None
    files: tuple[str, ...] = ()


@dataclass
class World:
    """What survives: a cluster, a table with its files, a checkpoint; and where the next driver dies.

    fates    what happens to the n-th commit: its answer is "lost", or it is "late" or "never" there
    late     commits under way
    rivals   another writer commits before every n-th commit
    """

    cluster: ToyCluster = field(default_factory=ToyCluster)
    versions: list[Version] = field(default_factory=lambda: [Version()])
    files: dict[str, range] = field(default_factory=dict)
    committed_batch: int = -1
    note: DecisionNote | None = None
    completed: str | None = None
    effects: int = 0
    dies_after: int | None = None
    commits: int = 0
    fates: Mapping[int, str] = field(default_factory=dict)
    late: list[Callable[[], object]] = field(default_factory=list)
    rivals: int = 0

    def __post_init__(self) -> None:
        self.cluster.effect = self.awaited_effect  # type: ignore[method-assign]

    def effect(self) -> None:
        self.effects += 1
        if self.effects == self.dies_after:
            raise Crash

    async def awaited_effect(self) -> None:
        self.effect()

    def arrive(self) -> None:
        for commit in self.late:
            commit()
        self.late.clear()

    def rows(self) -> Counter[int]:
        return Counter(row for version in self.versions for name in version.files for row in self.files[name])


class ToyTable:
    """A table, as one process sees it; implements `ports.LakeTable`."""

    url = "toy:table"

    def __init__(self, world: World) -> None:
        self._world = world

    def read(self, key: str, *, accepts_loss: bool = False) -> TableState:
        self._world.effect()
        entry = next((each.entry for each in reversed(self._world.versions) if each.entry is not None), None)
        return TableState(version=len(self._world.versions) - 1, entry=entry, definition=DEFINITION)

    def read_definition(self) -> TableDefinition:
        return DEFINITION

    def check_fence(self) -> None:
        """Its versions are a list: none is written twice."""

    def commit(
        self, version: int, entry: LakeEntry, files: Sequence[DataFile], keys: Sequence[str] = ()
    ) -> CommitOutcome:
        world = self._world
        world.effect()
        world.commits += 1
        if world.rivals and world.commits % world.rivals == 0:
            world.versions.append(Version())
        fate = world.fates.get(world.commits, "")
        if fate in ("late", "never"):
            if fate == "late":
                world.late.append(lambda: self._put(version, entry, files))
            return CommitOutcome.UNKNOWN
        is_there = self._put(version, entry, files)
        world.effect()
        if fate == "lost":
            return CommitOutcome.UNKNOWN
        return CommitOutcome.COMMITTED if is_there else CommitOutcome.BEATEN

    def _put(self, version: int, entry: LakeEntry, files: Sequence[DataFile]) -> bool:
        """Create a version if it is absent; return whether it is this commit's."""
        if len(self._world.versions) == version + 1:
            self._world.versions.append(Version(entry, tuple(file.path for file in files)))
        at = self._world.versions[version + 1].entry
        return at is not None and at.commit == entry.commit

    def find_key_problem(self, files: Sequence[DataFile], keys: Sequence[str]) -> str | None:
        return None

    def find_missing(self, files: Sequence[DataFile]) -> Sequence[str]:
        return [file.path for file in files if file.path not in self._world.files]

    def add_columns(self, wanted: TableDefinition) -> None:
        raise NotImplementedError

    def list_data_files(self) -> Mapping[str, ListedFile]:
        return {name: ListedFile(len(rows)) for name, rows in self._world.files.items()}

    def read_files(self) -> TableFiles:
        names = {name for version in self._world.versions for name in version.files}
        owners = {each.entry.key: each.entry.owner for each in self._world.versions if each.entry is not None}
        return TableFiles(identity=DEFINITION.identity, referenced=names, owners=owners, past_owners={})

    def remove(self, path: str) -> None:
        del self._world.files[path]


class ToyNotes:
    """What the cluster is told, and keeps."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def open(self) -> None:
        await self._world.cluster.effect()

    async def read(self) -> DecisionState:
        await self._world.cluster.effect()
        return DecisionState(note=self._world.note, completed_nonce=self._world.completed)

    async def write_note(self, note: DecisionNote | None) -> None:
        await self._world.cluster.effect()
        self._world.note = note

    async def mark_done(self, nonce: str) -> None:
        await self._world.cluster.effect()
        self._world.completed = nonce


class Driver:
    """One run of a query: its coordinator, and the tasks that it starts."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.participants = ToyParticipants(world.cluster, PREFIX)
        self.clock = FakeClock()
        self.row = LakeRow(ToyTable(world), PREFIX)
        self.log = DatabaseDecisionLog(self.row, LIMIT_MS, self.clock, ToyNotes(world))
        claiming = DatabaseParticipants(self.participants, self.row)
        self.coordinator = SinkCoordinator(PREFIX, claiming, self.log, clock=self.clock)
        self.ids = [WorkerIdPool(PREFIX) for _ in range(2)]
        self.attempts = 0

    async def run(self, until: int) -> None:
        while self.world.committed_batch + 1 < until:
            await self.batch(self.world.committed_batch + 1)

    async def batch(self, number: int) -> None:
        lease = await self.coordinator.begin()
        votes, moves = await self.tasks(lease, number)
        self.log.set_staged_moves(lease.nonce, moves)
        try:
            await self.coordinator.commit(votes)
        except TallystickError:
            await self.coordinator.abort(votes)
            raise
        self.world.committed_batch = number

    async def tasks(self, lease: BatchLease, number: int) -> tuple[list[Vote | None], StagedMoves]:
        """Two tasks; a third one writes a file and is never heard of."""
        rows = range(number * 4, number * 4 + 4)
        votes: list[Vote | None] = []
        names = []
        for task, share in enumerate((rows[:3], rows[3:])):
            vote, files = self.attempt(task, lease, number, share)
            votes.append(vote)
            names.append(encode_files(files))
        self.write(lease, rows)
        return votes, StagedMoves(attempts=tuple(names), rows=(len(rows),))

    def attempt(
        self, task: int, lease: BatchLease, number: int, rows: range
    ) -> tuple[Vote, Sequence[DataFile]]:
        job = MicroBatch(QUERY, number)
        way = plan_task(lease.last_decision, job, NewCheckpoint.REFUSE)
        if isinstance(way, SinkError):
            raise way
        participant, files = None, []
        if way is TaskAction.WRITE:
            name = str(self.ids[task].acquire(lease))
            pair = self.world.cluster.initialise(name)
            self.world.cluster.produce(name, pair, rows)
            files.append(self.write(lease, rows))
            participant = Participant(transactional_id=name, identity=pair)
        vote = Vote(
            nonce=lease.nonce,
            coordinator=lease.coordinator,
            transaction_version=lease.transaction_version,
            job=job,
            row_checksums=(RowChecksum(len(rows), sum(rows)),),
            participant=participant,
            is_skipped=way is TaskAction.SKIP,
        )
        return vote, files

    def write(self, lease: BatchLease, rows: range) -> DataFile:
        name = format_data_file_name(
            DEFINITION.identity, PREFIX, str(lease.coordinator), f"{len(self.world.files):x}", 0
        )
        self.world.files[name] = rows
        return DataFile(
            path=name,
            size_bytes=len(rows),
            row_count=len(rows),
            partition={},
            statistics="{}",
            written_ms=0,
        )


def live(world: World, dies_after: int | None, until: int) -> None:
    """One driver, until it is done, fails or dies."""
    world.effects, world.dies_after = 0, dies_after
    with suppress(Crash, TallystickError):
        asyncio.run(Driver(world).run(until))
    world.dies_after = None


def settle(world: World, batches: int) -> None:
    """After all that, a driver that nothing disturbs: every row is in both places, once; nothing is left."""
    world.fates, world.rivals = {}, 0
    live(world, None, batches + 1)
    world.arrive()
    assert world.committed_batch == batches
    assert world.rows() == world.cluster.committed == Counter(range(4 * (batches + 1)))
    assert world.cluster.open_ids() == []


@pytest.mark.parametrize("rivals", [0, 1, 3] if LONG else [3])
def test_a_crash_after_any_effect_leaves_topic_and_table_agreeing(rivals: int) -> None:
    """[LAK-1] [LAK-4] Two batches, stopped after the n-th effect; the next driver is, too."""
    world = World(rivals=rivals)
    live(world, None, 2)
    for effect in range(1, world.effects + 1):
        for second in range(1, 45) if LONG else (effect * 7 % 30 + 1,):
            world = World(rivals=rivals)
            live(world, effect, 2)
            live(world, second, 2)
            settle(world, 2)


@pytest.mark.parametrize("fate", ["lost", "late", "never"])
def test_an_answer_that_is_lost_leaves_topic_and_table_agreeing(fate: str) -> None:
    """[LAK-1] Each commit in turn; what is late arrives when the next driver works, or after it."""
    for first, more, arrives in product(range(1, 6), range(3), (1, 2)):
        world = World(fates=dict.fromkeys(range(first, first + more + 1), fate))
        live(world, None, 2)
        for life in range(1, 3):
            if life == arrives:
                world.arrive()
            live(world, None, 2)
        settle(world, 2)


def test_a_commit_that_arrives_behind_a_claim_is_nothing() -> None:
    """[LAK-1] Its version is taken, and it is in no other."""
    world = World()
    live(world, None, 1)

    async def decide_late() -> None:
        driver = Driver(world)
        lease = await driver.coordinator.begin()
        votes, moves = await driver.tasks(lease, 1)
        driver.log.set_staged_moves(lease.nonce, moves)
        world.fates = dict.fromkeys(range(world.commits + 1, world.commits + 100), "late")
        with pytest.raises(InDoubt):
            await driver.coordinator.commit(votes)
        world.fates = {}

    asyncio.run(decide_late())
    assert asyncio.run(Driver(world).coordinator.begin()).last_decision is not None
    world.arrive()
    assert world.rows() == Counter(range(4))
    settle(world, 1)


def test_a_driver_that_was_replaced_decides_nothing() -> None:
    """[SPK-43] The entry has another owner; its abort leaves the newer one alone."""
    world = World()

    async def replace_driver() -> None:
        old, new = Driver(world), Driver(world)
        lease = await old.coordinator.begin()
        votes, moves = await old.tasks(lease, 0)
        newer = await new.coordinator.begin()
        new_votes, new_moves = await new.tasks(newer, 0)
        old.log.set_staged_moves(lease.nonce, moves)
        with pytest.raises(SinkError):
            await old.coordinator.commit(votes)
        await old.coordinator.abort(votes)
        with pytest.raises(PrefixTaken):
            await old.log.forget(lease.coordinator, 2)
        new.log.set_staged_moves(newer.nonce, new_moves)
        await new.coordinator.commit(new_votes)
        world.committed_batch = 0

    asyncio.run(replace_driver())
    settle(world, 1)


def test_of_two_claims_the_clusters_last_one_has_the_table() -> None:
    """[SPK-43] The one that claimed the cluster first comes to the table last: it must not take it back."""
    world = World()

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


def test_a_storage_that_fails_after_the_decision_fails_no_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """[SPK-26] What attempts without a vote left open is aborted by the next batch then."""
    world = World()

    def fail(*_: object) -> bool:
        raise OSError("the storage is away")

    async def decide() -> None:
        driver = Driver(world)
        lease = await driver.coordinator.begin()
        votes, moves = await driver.tasks(lease, 0)
        driver.log.set_staged_moves(lease.nonce, moves)
        stray = str(WorkerIdPool(PREFIX).acquire(lease))
        world.cluster.produce(stray, world.cluster.initialise(stray), range(900, 901))
        with monkeypatch.context() as patch:
            patch.setattr(driver.row, "claim", fail)
            assert await driver.coordinator.commit(votes) is not None
        assert world.cluster.open_ids() == [stray]
        world.committed_batch = 0

    asyncio.run(decide())
    settle(world, 1)


def test_a_table_that_lost_what_it_acknowledged_stops_the_query() -> None:
    """[SPK-44] The table was put back to a copy: its batch is in the topics already."""
    world = World()
    live(world, None, 1)
    copy = list(world.versions)
    live(world, None, 2)
    world.versions[:] = copy
    world.committed_batch = 0
    with pytest.raises(DecisionsLost, match="batch 1 of query q"):
        asyncio.run(Driver(world).run(2))
    assert world.cluster.committed == Counter(range(8))


def test_a_decision_that_is_known_to_be_complete_asks_about_no_transaction() -> None:
    """The note is the cluster's: a driver that starts after a week finds no ids, and needs none."""
    world = World()
    live(world, None, 1)
    for name in list(world.cluster.ids):
        if "/w/" in name:
            del world.cluster.ids[name]
    settle(world, 1)


def test_a_sweep_takes_every_orphan_and_nothing_else() -> None:
    """[LAK-3] Drivers died at every effect, each with files; what is committed stays."""
    for effect in range(1, 40):
        world = World()
        live(world, effect, 2)
        live(world, None, 2)
        table = ToyTable(world)
        remove_orphans(table, look_for_orphans(table))
        assert set(look_for_orphans(table).live) <= set(world.files)
        assert world.rows() == Counter(range(8))
        settle(world, 2)
        asyncio.run(Driver(world).coordinator.retire())
        remove_orphans(table, look_for_orphans(table))
        assert set(world.files) == {name for version in world.versions for name in version.files}


def test_a_sweep_beside_a_batch_keeps_its_files() -> None:
    """[LAK-3] The files are listed, then a newer driver begins and writes; or it began before."""
    world = World()
    live(world, 20, 2)

    async def sweep_beside() -> None:
        driver, table = Driver(world), ToyTable(world)
        before = table.list_data_files()
        lease = await driver.coordinator.begin()
        votes, moves = await driver.tasks(lease, world.committed_batch + 1)
        assert not set(find_orphans(before, table.read_files()).orphans) - set(before)
        remove_orphans(table, find_orphans(before, table.read_files()))
        remove_orphans(table, look_for_orphans(table))
        driver.log.set_staged_moves(lease.nonce, moves)
        await driver.coordinator.commit(votes)
        world.committed_batch += 1

    asyncio.run(sweep_beside())
    settle(world, 2)


def test_a_sweep_beside_a_driver_that_begins_keeps_its_files() -> None:
    """[LAK-3] It begins and writes between the two looks of the sweep: at the files, and at the table."""
    world = World()
    live(world, None, 1)

    async def sweep_while_a_batch_begins() -> None:
        driver, table = Driver(world), ToyTable(world)
        tasks: list[Any] = []

        async def begin() -> None:
            lease = await driver.coordinator.begin()
            tasks.extend((lease, *await driver.tasks(lease, 1)))

        class BegunBetween(ToyTable):
            looks = 0

            def look(self) -> None:
                self.looks += 1
                if self.looks == 2:
                    run_in_thread(begin())

            def list_data_files(self) -> Mapping[str, ListedFile]:
                self.look()
                return super().list_data_files()

            def read_files(self) -> TableFiles:
                self.look()
                return super().read_files()

        remove_orphans(table, look_for_orphans(BegunBetween(world)))
        lease, votes, moves = tasks
        driver.log.set_staged_moves(lease.nonce, moves)
        await driver.coordinator.commit(votes)
        world.committed_batch = 1

    asyncio.run(sweep_while_a_batch_begins())
    settle(world, 2)


def run_in_thread(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine to its end, from code that is called by another event loop's."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, coroutine).result()


class StallingDriver(Driver):
    def __init__(self, world: World, at: int | Point | None) -> None:
        super().__init__(world)
        self.gate = Gate(at)
        # `owns_prefix` below the entry is where the fence is: between the reading and the commit.
        cluster = Gated(
            self.participants,
            self.gate,
            {"claim", "reclaim", "owns_prefix", "describe", "end", "recover", "list_open_ids"},
        )
        claiming = DatabaseParticipants(cluster, self.row)
        log = Gated(self.log, self.gate, {"read", "append", "note", "mark_done", "forget"})
        self.coordinator = SinkCoordinator(PREFIX, claiming, log, clock=self.clock)


@pytest.mark.gate(0)
@pytest.mark.parametrize("doing", [begins, commits, aborts])
def test_a_driver_that_stalls_and_wakes_leaves_topic_and_table_agreeing(doing: Doing) -> None:
    """[SPK-28] [SPK-43] [LAK-1] Before and after each effect, while a newer one commits."""
    others: Any = product(("append", "end"), (0, 1))
    for other in others:
        for at in count(1):
            world = World()
            if not asyncio.run(stall_beside_a_newer_driver(partial(StallingDriver, world), doing, at, other)):
                assert at > 8, "the enumeration has its points"
                break
            settle(world, world.committed_batch + 1)
