"""A driver that stalls, anywhere and for any time, while a newer one takes over: nothing decided is lost.

The old driver stalls before and after each effect of what it does; the newer one begins, writes one or two
batches with the same worker processes, so that ids are used again, and is itself at any effect of its last
commit when the old one wakes and goes on. Nothing crashes.
"""

from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from itertools import count, product
from typing import Any, Final

import pytest
from tests.support.effort import LONG
from tests.support.toy_cluster import (
    ORDERS,
    Interleaving,
    ToyCluster,
    ToyLog,
    ToyParticipants,
    ToyWorker,
    run_alone,
)

from tallystick.client.errors import ClientError
from tallystick.kernel.errors import InDoubt
from tallystick.spark.protocol.committable import (
    BatchLease,
    MicroBatch,
    Participant,
    RowChecksum,
    Vote,
    build_empty_vote,
)
from tallystick.spark.protocol.coordinator import SinkCoordinator
from tallystick.spark.protocol.decide import NewCheckpoint, NewPrefix, TaskAction, plan_task
from tallystick.spark.protocol.errors import SinkError
from tallystick.spark.protocol.transactional_ids import format_coordinator_id
from tallystick.testing import FakeClock

PREFIX: Final = "p"
QUERY: Final = "q"
ROWS: Final = 4
"""Without it, two batches are tried at every sixth effect of the newer driver's commit, one at each."""
FAILURES: Final = (SinkError, ClientError, InDoubt)
# What the protocol sees of a mode: whether there is KeepPreparedTxn, and whether an end moves the epoch.
MODES: Final[dict[str, dict[str, Any]]] = {
    "2pc": {},
    "keep": {"timeout_ms": 900_000},
    "resume": {"timeout_ms": 900_000, "keeps": False},
    "resume, transaction.version 0": {"timeout_ms": 900_000, "keeps": False, "version": 0},
}
# What happens at the same time in every order; and the next id that a worker initialises when its task is
# over: at once, only when it is used, or with a stall between taking the id and initialising it.
HOW: Final[tuple[dict[str, Any], ...]] = (
    {"order": "in turn", "initialises": 2},
    {"order": "the first first", "initialises": 0},
    {"order": "the second first", "initialises": 1},
    *({"order": order, "initialises": effects} for order in ORDERS for effects in range(3) if LONG),
)


@dataclass
class World:
    """A cluster, the workers of its tasks, and drivers that know of one another only through the cluster."""

    cluster: ToyCluster
    order: str = "in turn"
    initialises: int = 2
    """The effects of initialising the next id that happen when a task is over; the rest, when it is used."""
    workers: list[ToyWorker] = field(default_factory=list)

    def __post_init__(self) -> None:
        drawn = count()
        self.workers = [ToyWorker(self.cluster, PREFIX, lambda: f"{next(drawn):016x}") for _ in range(3)]

    def driver(self) -> SinkCoordinator:
        ports = ToyParticipants(self.cluster, PREFIX), ToyLog(self.cluster, PREFIX)
        run_both = Interleaving(ORDERS[self.order])
        return SinkCoordinator(PREFIX, *ports, clock=FakeClock(start_ms=0), run_both=run_both)

    async def tasks(self, lease: BatchLease, number: int) -> list[Vote | None]:
        """Two tasks with votes, and before them a third one that is lost when it has written."""
        rows = list(range(number * ROWS, (number + 1) * ROWS))
        await self.attempt(lease, number, rows[:1], self.workers[2])
        halves = zip((rows[:2], rows[2:]), self.workers, strict=False)
        return [await self.attempt(lease, number, half, worker) for half, worker in halves]

    async def attempt(self, lease: BatchLease, number: int, rows: list[int], worker: ToyWorker) -> Vote:
        job = MicroBatch(QUERY, number)
        way = plan_task(lease.last_decision, job, NewCheckpoint.REFUSE, NewPrefix.ADOPT)
        if isinstance(way, SinkError):
            raise way
        participant = None
        if way is TaskAction.WRITE:
            taken = worker.take(lease)
            name = str(worker.ids.acquire(lease)) if taken is None else taken[0]
            pair = self.cluster.initialise(name) if taken is None else taken[1]
            self.cluster.produce(name, pair, rows)
            participant = Participant(transactional_id=name, identity=pair)
            worker.initialise_next(lease)
            for _ in range(self.initialises):
                worker.advance()
        return Vote(
            nonce=lease.nonce,
            coordinator=lease.coordinator,
            transaction_version=lease.transaction_version,
            job=job,
            row_checksums=(RowChecksum(len(rows), sum(rows)),),
            participant=participant,
            is_skipped=way is TaskAction.SKIP,
            last_nonce=lease.last_nonce,
        )

    @property
    def owner(self) -> object:
        found = self.cluster.ids.get(format_coordinator_id(PREFIX))
        return None if found is None else found.pair


Stalling = Callable[[World], tuple[int, Coroutine[Any, Any, Any]]]
"""Prepare a world; the first batch that it lacks, and what the old driver does in it."""


def crashed(world: World) -> None:
    """A driver decides batch 0, and is gone before it completes anything; an attempt of it is left open."""
    driver = world.driver()
    lease = run_alone(driver.begin())
    commit = driver.commit(run_alone(world.tasks(lease, 0)))
    while PREFIX not in world.cluster.decisions:
        commit.send(None)
    commit.close()


def kept(world: World) -> tuple[int, Coroutine[Any, Any, Any]]:
    """A recovery made itself the client of the decided transactions (KIP-939), and came no further."""
    crashed(world)
    if world.cluster.keeps:
        decision = run_alone(ToyLog(world.cluster, PREFIX).read()).decision
        for each in decision.participants:
            world.cluster.keep(each.transactional_id)
    return 1, world.driver().begin()


def begins(world: World) -> tuple[int, Coroutine[Any, Any, Any]]:
    crashed(world)
    return 1, world.driver().begin()


def resolves(world: World) -> tuple[int, Coroutine[Any, Any, Any]]:
    crashed(world)
    driver = world.driver()

    async def resolve() -> None:
        await driver.inspect()
        await driver.begin()

    return 1, resolve()


def retires(world: World) -> tuple[int, Coroutine[Any, Any, Any]]:
    crashed(world)
    return 1, world.driver().retire()


def commits(world: World) -> tuple[int, Coroutine[Any, Any, Any]]:
    driver = world.driver()
    lease = run_alone(driver.begin())
    votes = run_alone(world.tasks(lease, 0))

    async def commit() -> None:
        try:
            await driver.commit(votes)
        except FAILURES:
            await driver.abort(votes)  # as Spark asks for

    return 0, commit()


def aborts(world: World) -> tuple[int, Coroutine[Any, Any, Any]]:
    driver = world.driver()
    lease = run_alone(driver.begin())
    votes = run_alone(world.tasks(lease, 0))
    return 0, driver.abort([votes[0], None])


def settles(world: World) -> tuple[int, Coroutine[Any, Any, Any]]:
    """A pipeline that is stopped in a batch: its driver has the lease, and no votes."""
    driver = world.driver()
    lease = run_alone(driver.begin())
    run_alone(world.tasks(lease, 0))
    return 0, driver.abort([build_empty_vote(lease)])


STALLING: Final[dict[str, Stalling]] = {
    each.__name__: each for each in (begins, kept, resolves, retires, commits, aborts, settles)
}


class Taker:
    """The newer driver. It begins, and writes, as soon as it is made; the last commit goes step by step."""

    def __init__(self, world: World, first: int, batches: int) -> None:
        self.failure: Exception | None = None
        self._more = True
        self._driver = world.driver()
        lease = run_alone(self._driver.begin())
        decided = lease.last_decision.batch_id if lease.last_decision is not None else None
        self.first = first if decided is None else decided + 1
        self.last = self.first + batches - 1
        for number in range(self.first, self.last):
            run_alone(self._driver.commit(run_alone(world.tasks(lease, number))))
            lease = run_alone(self._driver.begin())
        self._commit = self._driver.commit(run_alone(world.tasks(lease, self.last)))

    def advance(self, steps: int) -> bool:
        """Some effects of the last commit; is there more to come?"""
        for _ in range(steps):
            self._more = self._more and go(self._commit, self)
        return self._more

    def finish(self) -> None:
        self.advance(1_000)


def go(coroutine: Coroutine[Any, Any, Any], taker: Taker | None = None) -> bool:
    """One effect; is there more to come? The newer driver's failure is kept, the old one's expected."""
    try:
        coroutine.send(None)
    except StopIteration:
        return False
    except FAILURES as exc:
        if taker is not None:
            taker.failure = exc
        return False
    return True


def stalled(
    stalling: Stalling, mode: dict[str, Any], effects: int, how: dict[str, Any]
) -> tuple[World, int, Any] | None:
    """The old driver after so many effects; None when it has come to its end before."""
    world = World(ToyCluster(**mode), **how)
    first, doing = stalling(world)
    alive = all(go(doing) for _ in range(effects))
    return (world, first, doing) if alive else None


def runs(stalling: Stalling, mode: dict[str, Any], batches: int, how: dict[str, Any]) -> Iterator[str | None]:
    """What went wrong in each: the old driver at any effect, the newer one at any of its last commit."""
    for effects in count():
        for steps in count(0, 1 if LONG or batches == 1 else 6):
            found = stalled(stalling, mode, effects, how)
            if found is None:
                return
            world, first, old = found
            newer = Taker(world, first, batches)
            more = newer.advance(steps)
            owner = world.owner
            while go(old):
                pass
            undisturbed = world.owner == owner
            newer.finish()
            if wrong := verdict(world, newer, undisturbed):
                yield f"stalled after {effects} effects, woken after {steps} of the newer commit: {wrong}"
            else:
                yield None
            if not more:
                break


def verdict(world: World, newer: Taker, undisturbed: bool) -> str | None:
    if undisturbed and newer.failure is not None:
        return f"the newer driver ended with {newer.failure!r}"
    driver = world.driver()
    try:
        lease = run_alone(driver.begin())
        given_up = newer.first > 0 and lease.last_decision is None
        decided = lease.last_decision.batch_id if lease.last_decision is not None else None
        for number in range(newer.first if decided is None else decided + 1, newer.last + 1):
            if given_up:  # `retire` came after a decision, completed that, and forgot it
                break
            run_alone(driver.commit(run_alone(world.tasks(lease, number))))
            lease = run_alone(driver.begin())
    except FAILURES as exc:
        return f"the next start ended with {exc!r}"
    committed = world.cluster.committed
    whole = [Counter(range((batch + 1) * ROWS)) for batch in range(newer.first - 1, newer.last + 1)]
    if committed not in (whole if given_up and newer.failure else whole[-1:]):
        return f"committed is {sorted(committed.elements())}"
    return f"left open: {world.cluster.open_ids()}" if world.cluster.open_ids() else None


@pytest.mark.gate(2)
@pytest.mark.parametrize("how", HOW, ids=str)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("batches", [1, 2])
@pytest.mark.parametrize("doing", STALLING)
def test_a_driver_that_stalls_and_wakes_loses_nothing_that_was_decided(
    doing: str, batches: int, mode: str, how: dict[str, Any]
) -> None:
    """[SPK-21] [SPK-25] [SPK-28] Every effect of begin, commit, abort, retire, resolve, before and after."""
    found = list(runs(STALLING[doing], MODES[mode], batches, how))
    bad = [each for each in found if each is not None]
    assert len(found) > 20, "the enumeration has its points"
    assert not bad, f"{len(bad)} of {len(found)}: {bad[:3]}"


@pytest.mark.parametrize("order", ORDERS)
def test_a_driver_that_begins_while_an_older_one_commits_takes_nothing_back(order: str) -> None:
    """[SPK-21] [SPK-28] The old driver decides, completes and notes, between any two effects of the begin.

    What the newer one saw open may be committed, and noted as complete, before it reads the decisions.
    """
    points = 0
    for before, during in product(range(40), range(12)):
        world = World(ToyCluster(), order=order)
        _, old = commits(world)
        if not all(go(old) for _ in range(before)):
            break
        newer = world.driver().begin()
        if not all(go(newer) for _ in range(during)):
            old.close()
            continue
        while go(old):
            pass
        driver, lease = world.driver(), run_alone(newer)
        first = 0 if lease.last_decision is None else 1
        for number in range(first, 2):
            run_alone(driver.commit(run_alone(world.tasks(lease, number))))
            lease = run_alone(driver.begin())
        assert world.cluster.committed == Counter(range(2 * ROWS)), (before, during)
        assert not world.cluster.open_ids(), (before, during)
        points += 1
    assert points > 100
