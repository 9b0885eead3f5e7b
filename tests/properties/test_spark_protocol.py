"""Spark's sink on a toy cluster: drivers, tasks and zombies stopped at every effect, and every row once."""

import json
from collections import Counter
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.effort import examples
from tests.support.toy_cluster import (
    ORDERS,
    Interleaving,
    Scheduler,
    ToyCluster,
    ToyLog,
    ToyParticipants,
    ToyWorker,
    run_alone,
)

from tallystick.client.errors import ClientError
from tallystick.kernel.clock import Clock
from tallystick.kernel.errors import InDoubt
from tallystick.spark.protocol.committable import BatchLease, MicroBatch, Participant, RowChecksum, Vote
from tallystick.spark.protocol.coordinator import SinkCoordinator
from tallystick.spark.protocol.decide import NewCheckpoint, QueryStart, TaskAction, plan_task
from tallystick.spark.protocol.decision_fold import DecisionState
from tallystick.spark.protocol.errors import CheckpointsDiffer, PrefixTaken, SinkError, UnknownCheckpoint
from tallystick.testing import FakeClock

PREFIX = "p"
QUERY = "q"
BATCHES = 6


class Crash(Exception):
    """A task raised."""


FAILURES = (SinkError, ClientError, InDoubt, Crash)


@dataclass
class Checkpoint:
    """Spark's: `offsets/N` is written before a batch, `commits/N` after it."""

    planned: dict[int, range] = field(default_factory=dict)
    committed: int = -1

    def next_batch(self, random: Random) -> tuple[int, range]:
        number = self.committed + 1
        if number not in self.planned:
            start = self.planned[number - 1].stop if number else 0
            self.planned[number] = range(start, start + random.randint(0, 6))
        return number, self.planned[number]


def tally_of(rows: Sequence[int]) -> RowChecksum:
    return RowChecksum(len(rows), sum(hash((row, "row")) for row in rows) % 2**64)


@dataclass
class Query:
    """One run of a query: Spark as far as the sink sees it."""

    cluster: ToyCluster
    checkpoint: Checkpoint
    random: Random
    scheduler: Scheduler | None = None
    fault_chance: float = 0.0
    until: int = BATCHES
    query_id: str = QUERY
    on_new: NewCheckpoint = NewCheckpoint.REFUSE
    resuming: QueryStart | None = None
    clock: Clock = field(default_factory=FakeClock)
    order: str | None = None

    def __post_init__(self) -> None:
        self.participants = ToyParticipants(self.cluster, PREFIX)
        self.processes = [self.worker() for _ in range(2)]
        self._commits = self.coordinator()

    def worker(self) -> ToyWorker:
        return ToyWorker(self.cluster, PREFIX, lambda: f"{self.random.getrandbits(64):016x}")

    def coordinator(self) -> SinkCoordinator:
        """Begin and commit run in different processes: nothing is shared between them."""
        choose = (lambda _: self.random.randrange(2)) if self.order is None else ORDERS[self.order]
        return SinkCoordinator(
            PREFIX,
            self.participants,
            ToyLog(self.cluster, PREFIX),
            clock=self.clock,
            run_both=Interleaving(choose),
        )

    def committer(self) -> SinkCoordinator:
        """The process that commits may be another one at any batch; it remembers what it has decided."""
        if self.random.random() < self.fault_chance:
            self._commits = self.coordinator()
        return self._commits

    async def run(self) -> None:
        """Batches until the end, or until something is raised; a dead query tells nobody."""
        try:
            while self.checkpoint.committed + 1 < self.until:
                await self.batch(*self.checkpoint.next_batch(self.random))
        except FAILURES:
            pass

    async def batch(self, number: int, rows: range) -> None:
        lease = await self.coordinator().begin(resuming=self.resuming)
        votes: list[Vote | None] = []
        try:
            votes = await self.tasks(lease, number, list(rows))
            self.time_some_out(votes)
            await self.committer().commit(votes, f'{{"a":{{"0":{rows.stop}}}}}')
        except FAILURES:
            if self.random.random() < 0.5:
                votes = [vote if self.random.random() < 0.7 else None for vote in votes]
            await self.coordinator().abort(votes)
            raise
        if self.random.random() < self.fault_chance:
            raise Crash("stopped before commits/N was written")
        self.checkpoint.committed = max(self.checkpoint.committed, number)

    def time_some_out(self, votes: list[Vote | None]) -> None:
        for vote in votes:
            name = vote.participant.transactional_id if vote and vote.participant else ""
            if name in self.cluster.open_ids() and self.random.random() < self.fault_chance / 4:
                self.cluster.time_out(name)

    async def tasks(self, lease: BatchLease, number: int, rows: list[int]) -> list[Vote | None]:
        """Rows in any order over two tasks; some attempts fail, and some are left to the scheduler."""
        self.random.shuffle(rows)
        cut = self.random.randint(0, len(rows))
        votes: list[Vote | None] = []
        for index, part in enumerate((rows[:cut], rows[cut:])):
            if self.scheduler is not None and self.random.random() < self.fault_chance:
                self.scheduler.add(self.never_reports(lease, number, part, self.worker()))
            if self.random.random() < self.fault_chance:
                await self.fails(lease, number, part, self.processes[index])
            votes.append(await self.attempt(lease, number, part, self.processes[index]))
        await self.between_tasks()
        return votes

    async def between_tasks(self) -> None:
        """The workers initialise their next ids, or have not come to that when they are asked again."""
        for each in self.processes:
            while self.random.random() < 0.8 and each.advance():
                await self.cluster.effect()

    async def never_reports(self, lease: BatchLease, number: int, rows: list[int], ids: ToyWorker) -> None:
        """The loser of a speculation: it may live through later batches."""
        try:
            await self.attempt(lease, number, rows, ids)
        except (SinkError, ClientError):
            pass

    async def fails(self, lease: BatchLease, number: int, rows: list[int], ids: ToyWorker) -> None:
        """An attempt that gets anywhere, and is lost; the next one may run in the same process."""
        attempt = self.attempt(lease, number, rows, ids)
        for _ in range(self.random.randint(1, 7)):
            try:
                attempt.send(None)
            except (StopIteration, SinkError, ClientError):
                return
        attempt.close()

    async def attempt(self, lease: BatchLease, number: int, rows: list[int], ids: ToyWorker) -> Vote:
        """What `attempt.Attempt` does, effect by effect."""
        job = MicroBatch(self.query_id, number)
        way = plan_task(lease.last_decision, job, self.on_new)
        if isinstance(way, SinkError):
            raise way
        participant = None
        if way is TaskAction.WRITE and rows:
            taken = ids.take(lease)
            if taken is None:
                if not await self.participants.owns_prefix(lease.coordinator):
                    raise PrefixTaken(PREFIX, "before")
                name = str(ids.ids.acquire(lease))
                await self.cluster.effect()
                pair = self.cluster.initialise(name)
            else:
                name, pair = taken
            for row in rows:
                await self.cluster.effect()
                self.cluster.produce(name, pair, [row])
            if not await self.participants.owns_prefix(lease.coordinator):
                raise PrefixTaken(PREFIX, "after")
            participant = Participant(transactional_id=name, identity=pair)
            ids.initialise_next(lease)
        return Vote(
            nonce=lease.nonce,
            coordinator=lease.coordinator,
            transaction_version=lease.transaction_version,
            job=job,
            row_checksums=(tally_of(rows),),
            participant=participant,
            is_skipped=way is TaskAction.SKIP,
            last_nonce=lease.last_nonce,
        )


def settle(cluster: ToyCluster, checkpoint: Checkpoint, random: Random) -> None:
    """After all that, a query that nothing disturbs; then every row is there once, and nothing is open."""
    for _ in range(3):
        run_alone(Query(cluster, checkpoint, random, until=BATCHES + 1).run())
    assert checkpoint.committed == BATCHES, "an undisturbed query comes to its end"
    rows = range(checkpoint.planned[BATCHES].stop)
    assert cluster.committed == Counter(rows)
    assert cluster.open_ids() == []


@settings(max_examples=examples(quick=40, gate=80, full=400), deadline=None)
@given(st.randoms(use_true_random=False), st.floats(0, 0.4), st.floats(0, 0.02))
def test_every_row_is_written_once(random: Random, fault_chance: float, kill_chance: float) -> None:
    """[SPK-20] [SPK-21] [SPK-22] [SPK-23] Drivers stopped anywhere, two at a time, tasks lost, zombies."""
    cluster = ToyCluster(flaky=lambda: random.random() < fault_chance / 20)
    checkpoint = Checkpoint()
    scheduler = Scheduler(random, kill_chance)
    for _ in range(12):
        drivers = 2 if random.random() < 0.3 else 1
        for _ in range(drivers):
            own = Checkpoint(checkpoint.planned, checkpoint.committed) if drivers == 2 else checkpoint
            scheduler.add(Query(cluster, own, random, scheduler, fault_chance).run())
        for _ in range(random.randint(1, 150)):
            if scheduler.live:
                scheduler.step()
        if random.random() < 0.7:
            for coroutine in scheduler.live:
                coroutine.close()
            scheduler.live.clear()
    cluster.flaky = lambda: False
    settle(cluster, checkpoint, random)


def crash_after(effects: int, order: str = "in turn") -> tuple[ToyCluster, Checkpoint, Random]:
    """One driver, undisturbed for so many steps, and then gone."""
    random = Random(7)
    cluster, checkpoint = ToyCluster(), Checkpoint({0: range(4), 1: range(4, 9), 2: range(9, 12)})
    run = Query(cluster, checkpoint, random, until=3, order=order).run()
    for _ in range(effects):
        try:
            run.send(None)
        except StopIteration:
            break
    run.close()
    return cluster, checkpoint, random


def effects_of_three_batches() -> int:
    cluster, _, _ = crash_after(10_000)
    return cluster.effects


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("effect", range(effects_of_three_batches() + 1))
def test_a_crash_after_any_effect_costs_no_row_and_doubles_none(effect: int, order: str) -> None:
    """[SPK-21] Three batches, stopped after the n-th effect."""
    cluster, checkpoint, random = crash_after(effect, order)
    settle(cluster, checkpoint, random)


# ------------------------------------------------- two mistakes that a crash test found in an earlier version


def decided_but_not_done() -> tuple[ToyCluster, Query]:
    """Batch 0 decided, nothing completed, the driver gone."""
    cluster = ToyCluster()
    query = Query(cluster, Checkpoint({0: range(4)}), Random(1), until=1)
    run = query.run()
    while PREFIX not in cluster.decisions:
        run.send(None)
    run.close()
    assert cluster.committed == Counter()
    return cluster, query


def test_ids_of_the_last_decision_are_not_initialised_before_the_next_one() -> None:
    """[SPK-23] Else recovery of batch 0 finds ids that moved on, and can never tell that it was complete."""
    cluster = ToyCluster()
    query = Query(cluster, Checkpoint({0: range(4), 1: range(4, 8)}), Random(1), until=2)
    run = query.run()
    while query.checkpoint.committed < 0:
        run.send(None)
    decided = {
        each.transactional_id: cluster.ids[each.transactional_id].pair
        for each in run_alone(ToyLog(cluster, PREFIX).read()).decision.participants
    }
    run.close()
    lease = run_alone(query.coordinator().begin())
    for row, process in zip((4, 5), query.processes, strict=True):  # the tasks of batch 1
        run_alone(query.attempt(lease, 1, [row], process))
        while process.advance():  # and the ids that are initialised after them
            pass
    assert len(cluster.open_ids()) == 2
    assert {name: cluster.ids[name].pair for name in decided} == decided
    cluster.done.clear()  # the note that it was completed is lost as well
    run_alone(query.coordinator().begin())
    assert cluster.committed == Counter(range(4))


def test_a_batch_before_the_last_decided_one_is_skipped() -> None:
    """[SPK-22] `<=` and not `==`: a driver that lags behind repeats batch 0 after batch 1 was decided."""
    cluster, checkpoint = ToyCluster(), Checkpoint({0: range(4), 1: range(4, 8)})
    run_alone(Query(cluster, checkpoint, Random(1), until=2).run())
    lagging = Checkpoint(checkpoint.planned, committed=-1)
    run_alone(Query(cluster, lagging, Random(2), until=2).run())
    assert lagging.committed == 1
    assert cluster.committed == Counter(range(8))


# ------------------------------------------------------------------------------------- a deleted checkpoint


class Source:
    """Of a query on a new checkpoint: it begins where the last decision ended, and keeps that."""

    def __init__(self, cluster: ToyCluster, name: str) -> None:
        self._cluster, self._name = cluster, name
        self.checkpoint = Checkpoint()
        self._start: int | None = None

    def start(self) -> int:
        if self._start is None:
            last = run_alone(ToyLog(self._cluster, PREFIX).read()).decision
            self._start = 0 if last is None else json.loads(last.offsets)["a"]["0"]
        return self._start

    def query(self, random: Random, until: int) -> Query:
        """One run: its first batch begins where it did before."""
        start = self.start()
        self.checkpoint.planned.setdefault(0, range(start, start + 3))
        beginning = QueryStart(
            query_id=self._name, start_offsets=(f'{{"a": {{"0": {start}}}}}',), source_count=1
        )
        return Query(
            self._cluster,
            self.checkpoint,
            random,
            until=until,
            query_id=self._name,
            on_new=NewCheckpoint.RESUME,
            resuming=beginning,
        )


def resumed_and_crashed(effects: int) -> tuple[ToyCluster, Source, Random]:
    """Two batches of one query, then another one on a new checkpoint, gone after so many steps."""
    cluster, random = ToyCluster(), Random(7)
    run_alone(Query(cluster, Checkpoint({0: range(4), 1: range(4, 9)}), random, until=2).run())
    source = Source(cluster, "new")
    run = source.query(random, until=2).run()
    ended = advance(run, effects)
    if not ended:
        run.close()
    return cluster, source, random


@pytest.mark.parametrize("effects", range(80))
def test_a_query_that_resumes_costs_no_row_and_doubles_none(effects: int) -> None:
    """[SPK-27] [SPK-3] Whenever it crashes: before its first batch is decided, and after it."""
    cluster, source, random = resumed_and_crashed(effects)
    for _ in range(3):
        run_alone(source.query(random, until=3).run())
    assert source.checkpoint.committed == 2
    assert cluster.committed == Counter(range(source.checkpoint.planned[2].stop))
    assert cluster.open_ids() == []


def test_a_query_resumes_where_the_last_decision_is_once_the_prefix_is_claimed() -> None:
    """[SPK-27] The old query decides one more batch after the new one's source has looked."""
    cluster, random = ToyCluster(), Random(7)
    checkpoint = Checkpoint({0: range(4), 1: range(4, 9)})
    run_alone(Query(cluster, checkpoint, random, until=1).run())
    source = Source(cluster, "new")
    late = source.query(random, until=2)
    run_alone(Query(cluster, checkpoint, random, until=2).run())
    with pytest.raises(UnknownCheckpoint, match=r"ended at \{.a.:\{.0.:9\}\}"):
        run_alone(late.batch(0, range(4, 7)))
    assert cluster.committed == Counter(range(9))


# ------------------------------------------------------------------------------------- what a batch waits for


def test_a_process_reads_the_decisions_only_when_it_did_not_make_the_last_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """[SPK-25] Its own decision is the lease's last one, so no other driver can have decided since."""
    reads: list[ToyLog] = []
    read = ToyLog.read

    async def counted(log: ToyLog) -> DecisionState:
        reads.append(log)
        return await read(log)

    monkeypatch.setattr(ToyLog, "read", counted)
    cluster = ToyCluster()
    query = Query(cluster, Checkpoint(), Random(1))
    commits, other = query.coordinator(), query.coordinator()

    def batch(number: int, by: SinkCoordinator) -> int:
        lease = run_alone(query.coordinator().begin())
        votes = run_alone(query.tasks(lease, number, [number]))
        before = len(reads)
        run_alone(by.commit(votes))
        return len(reads) - before

    assert [batch(number, commits) for number in range(3)] == [1, 0, 0]
    assert batch(3, other) == 1
    assert [batch(number, commits) for number in (4, 5)] == [1, 0]
    assert cluster.committed == Counter(range(6))


class Depth:
    """A `BothRunner` that counts the effects that the shorter of both has beside the longer one."""

    def __init__(self, cluster: ToyCluster) -> None:
        self._cluster, self.hidden = cluster, 0

    async def __call__(self, first: Coroutine[Any, Any, Any], second: Coroutine[Any, Any, Any]) -> Any:
        before = self._cluster.effects
        one = await first
        middle = self._cluster.effects
        other = await second
        self.hidden += min(middle - before, self._cluster.effects - middle)
        return one, other


def test_a_batch_waits_for_as_many_requests_as_the_protocol_needs() -> None:
    """Begin: the claim, then two beside each other. Commit: votes, decision, end, note, without a read."""
    cluster = ToyCluster()
    query = Query(cluster, Checkpoint(), Random(1))
    depth = Depth(cluster)
    coordinator = SinkCoordinator(
        PREFIX, query.participants, ToyLog(cluster, PREFIX), clock=query.clock, run_both=depth
    )
    waited: list[tuple[int, int]] = []
    for number in range(3):
        counts = [cluster.effects - depth.hidden]
        lease = run_alone(coordinator.begin())
        counts.append(cluster.effects - depth.hidden)
        votes = [run_alone(query.attempt(lease, number, [number], query.processes[0]))]
        voted = cluster.effects - depth.hidden
        run_alone(coordinator.commit(votes))
        waited.append((counts[1] - counts[0], cluster.effects - depth.hidden - voted))
    # A claim, a decision, an end and a note are two effects here, or three: before, within, and after.
    assert waited[1:] == [(3, 7), (3, 7)]


# --------------------------------------------------------------------------------------- what stops a query


def test_a_replayed_batch_with_other_rows_stops() -> None:
    """[SPK-22] Neither written again nor skipped: nobody would hear of the difference."""
    cluster, checkpoint = ToyCluster(), Checkpoint({0: range(4)})
    run_alone(Query(cluster, checkpoint, Random(1), until=1).run())
    other = Query(cluster, Checkpoint({0: range(5)}), Random(1), until=1)
    with pytest.raises(CheckpointsDiffer, match="checkpoint and decisions differ: batch 0"):
        run_alone(other.batch(0, range(5)))
    assert cluster.committed == Counter(range(4))


def test_a_batch_beyond_the_next_one_stops() -> None:
    """[SPK-22]"""
    cluster, checkpoint = ToyCluster(), Checkpoint({0: range(4)})
    run_alone(Query(cluster, checkpoint, Random(1), until=1).run())
    with pytest.raises(CheckpointsDiffer, match="does not follow the last decided batch, which is 0"):
        run_alone(Query(cluster, checkpoint, Random(1)).batch(2, range(8, 9)))


def test_a_decision_that_the_cluster_contradicts_stops_every_start() -> None:
    """The timeout hole of modes without two-phase commit: reported, and reported again, never hidden."""
    cluster, query = decided_but_not_done()
    lost = next(name for name in cluster.open_ids())
    cluster.time_out(lost)
    for _ in range(2):
        with pytest.raises(SinkError, match=f"cannot be completed: {lost}: aborted by the cluster"):
            run_alone(query.coordinator().begin())
    assert lost not in cluster.open_ids()


def test_a_driver_that_was_replaced_decides_nothing_and_aborts_nothing() -> None:
    """[SPK-25] Its votes are swept, its decision is fenced, and its abort finds a newer driver."""
    cluster = ToyCluster()
    query = Query(cluster, Checkpoint({0: range(4)}), Random(1))
    lease = run_alone(query.coordinator().begin())
    votes = run_alone(query.tasks(lease, 0, list(range(4))))
    newer = run_alone(query.coordinator().begin())
    new_votes = run_alone(query.tasks(newer, 0, list(range(4))))
    with pytest.raises(SinkError):
        run_alone(query.coordinator().commit(votes))
    run_alone(query.coordinator().abort(votes))
    run_alone(query.coordinator().commit(new_votes))
    assert cluster.committed == Counter(range(4))


def test_an_abort_settles_a_decision_that_is_on_its_way() -> None:
    """Spark gives no hint how far commit() came, and the log alone cannot tell."""
    for steps in range(30):
        cluster = ToyCluster()
        query = Query(cluster, Checkpoint({0: range(4)}), Random(1))
        lease = run_alone(query.coordinator().begin())
        votes = run_alone(query.tasks(lease, 0, list(range(4))))
        commit = query.coordinator().commit(votes)
        ended = advance(commit, steps)
        abort = query.coordinator().abort(votes)
        advance(abort, 30)
        if not ended:
            with suppress(SinkError):
                advance(commit, 30)  # what was on its way arrives
        decided = run_alone(ToyLog(cluster, PREFIX).read()).decision is not None
        assert cluster.committed == (Counter(range(4)) if decided else Counter()), steps
        assert cluster.open_ids() == []


def test_an_abort_leaves_a_newer_drivers_transactions_alone() -> None:
    """[SPK-25] Wherever in the abort the newer driver begins and writes."""
    for steps in range(12):
        cluster = ToyCluster()
        query = Query(cluster, Checkpoint({0: range(4)}), Random(1))
        lease = run_alone(query.coordinator().begin())
        votes = run_alone(query.tasks(lease, 0, list(range(4))))
        abort = query.coordinator().abort([*votes, None])
        ended = advance(abort, steps)
        newer = run_alone(query.coordinator().begin())
        new_votes = run_alone(query.tasks(newer, 0, list(range(4))))
        if not ended:
            advance(abort, 30)
        run_alone(query.coordinator().commit(new_votes))
        assert cluster.committed == Counter(range(4)), steps


def test_the_last_commit_leaves_no_lost_attempt_open() -> None:
    """[SPK-26] A task killed once it had written, a loser of speculation: no begin may ever follow.

    A batch write has none, and a query that reads what it writes does not see that there is more.
    """
    cluster = ToyCluster()
    query = Query(cluster, Checkpoint({0: range(4)}), Random(1))
    lease = run_alone(query.coordinator().begin())
    run_alone(query.attempt(lease, 0, list(range(4)), query.processes[0]))  # whose vote is lost
    votes = run_alone(query.tasks(lease, 0, list(range(4))))
    run_alone(query.coordinator().commit(votes))
    assert cluster.open_ids() == []
    assert cluster.committed == Counter(range(4))


def test_a_commit_leaves_a_newer_drivers_transactions_alone() -> None:
    """[SPK-25] Wherever in the commit the newer driver begins and writes."""
    for steps in range(24):
        cluster = ToyCluster()
        query = Query(cluster, Checkpoint({0: range(4), 1: range(4, 6)}), Random(1))
        lease = run_alone(query.coordinator().begin())
        run_alone(query.attempt(lease, 0, list(range(4)), query.processes[0]))
        votes = run_alone(query.tasks(lease, 0, list(range(4))))
        commit = query.coordinator().commit(votes)
        ended = advance(commit, steps)
        newer = run_alone(query.coordinator().begin())
        number = 0 if newer.last_decision is None else 1
        new_votes = run_alone(query.tasks(newer, number, list(query.checkpoint.planned[number])))
        if not ended:
            with suppress(SinkError):
                advance(commit, 40)
        run_alone(query.coordinator().commit(new_votes))
        assert cluster.committed == Counter(range(6 if number else 4)), steps


def advance(coroutine: Coroutine[Any, Any, Any], steps: int) -> bool:
    """Some steps of it; has it come to its end?"""
    for _ in range(steps):
        try:
            coroutine.send(None)
        except StopIteration:
            return True
    return False
