"""A driver that stalls at any effect while a newer one takes over, for protocols of Spark's sink.

A driver of a test has `world` (with the toy `cluster` and `committed_batch`), `coordinator`, `log`, `tasks`
and a `gate`, which its ports pass.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from tallystick.client.errors import ClientError
from tallystick.kernel.errors import InDoubt
from tallystick.spark.protocol.errors import SinkError

FAILURES: Final = (SinkError, ClientError, InDoubt)
Point = tuple[str, int]
"""Before (0) or after (1) an effect."""


class Gate:
    """Holds a driver up at one effect: the n-th that it comes to, or the first of a name."""

    def __init__(self, at: int | Point | None) -> None:
        self._at, self._passed = at, 0
        self.stalled, self.go = asyncio.Event(), asyncio.Event()

    async def pass_by(self, point: Point) -> None:
        self._passed += 1
        if not self.stalled.is_set() and self._at in (self._passed, point):
            self.stalled.set()
            await self.go.wait()

    async def reached(self, doing: "asyncio.Task[Any]") -> bool:
        """Wait until the driver stalls, or has come to its end; does it stall?"""
        here = asyncio.ensure_future(self.stalled.wait())
        await asyncio.wait({here, doing}, return_when=asyncio.FIRST_COMPLETED)
        here.cancel()
        return self.stalled.is_set()


class Gated:
    """Ports, with a gate before and after each of these effects."""

    def __init__(self, inner: Any, gate: Gate, names: set[str]) -> None:
        self._inner, self._gate, self._names = inner, gate, names

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name not in self._names:
            return found

        async def gated(*args: Any) -> Any:
            await self._gate.pass_by((name, 0))
            answer = await found(*args)
            await self._gate.pass_by((name, 1))
            return answer

        return gated


MakeDriver = Callable[[int | Point | None], Any]
"""Makes a driver that stalls at an effect: the n-th that it comes to, or the first of a name."""
Doing = Callable[[MakeDriver, Any], Awaitable[Awaitable[object]]]


async def decide_and_die(make: MakeDriver) -> None:
    driver = make(("append", 1))
    lease = await driver.coordinator.begin()
    votes, moves = await driver.tasks(lease, 0)
    driver.log.set_staged_moves(lease.nonce, moves)
    commit = asyncio.ensure_future(driver.coordinator.commit(votes))
    assert await driver.gate.reached(commit)
    commit.cancel()


async def begins(make: MakeDriver, old: Any) -> Awaitable[object]:
    await decide_and_die(make)
    return old.coordinator.begin()


async def commits(_: MakeDriver, old: Any) -> Awaitable[object]:
    lease, gate = await old.coordinator.begin(), old.gate
    votes, moves = await old.tasks(lease, 0)
    old.log.set_staged_moves(lease.nonce, moves)
    gate._passed = 0

    async def commit() -> None:
        try:
            await old.coordinator.commit(votes)
        except FAILURES:
            await old.coordinator.abort(votes)

    return commit()


async def aborts(_: MakeDriver, old: Any) -> Awaitable[object]:
    lease = await old.coordinator.begin()
    votes, _moves = await old.tasks(lease, 0)
    old.gate._passed = 0
    return old.coordinator.abort([votes[0], None])


async def stall_beside_a_newer_driver(
    make: MakeDriver,
    doing: Doing,
    at: int,
    other: Point,
) -> bool:
    """One run. The newer driver is at `other` in its commit when the old one wakes. Did that stall at all?"""
    old, newer = make(None), make(None)
    world = old.world
    waking = asyncio.ensure_future(await doing(make, old))
    old.gate._at = at
    if not await old.gate.reached(waking):
        await asyncio.gather(waking, return_exceptions=True)
        return False
    lease = await newer.coordinator.begin()
    newer.gate._at = other  # of its commit: its begin passes the same effects where it completes a decision
    number = 0 if lease.last_decision is None else (lease.last_decision.batch_id or 0) + 1
    votes, moves = await newer.tasks(lease, number)
    newer.log.set_staged_moves(lease.nonce, moves)
    owner = world.cluster.ids[f"{old.coordinator.prefix}/coordinator"].pair
    commit = asyncio.ensure_future(newer.coordinator.commit(votes))
    await newer.gate.reached(commit)
    old.gate.go.set()
    (found,) = await asyncio.gather(waking, return_exceptions=True)
    assert not isinstance(found, Exception) or isinstance(found, FAILURES), found
    newer.gate.go.set()
    (failure,) = await asyncio.gather(commit, return_exceptions=True)
    if isinstance(failure, Exception):
        # Only an old driver that claims when it wakes, and is the newer one then, may stop the other.
        assert isinstance(failure, FAILURES), failure
        assert owner != world.cluster.ids[f"{old.coordinator.prefix}/coordinator"].pair, failure
        await newer.coordinator.abort(votes)
    last = (await newer.log.read()).decision
    world.committed_batch = -1 if last is None else last.batch_id or 0
    return True
