"""The leases of a pool over a store and writers that are made up: what is closed, when, and who waits."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import pytest

from tallystick.dualwrite import HeuristicMixed, Lease, LeaseLost, NoFreeId, WriteInDoubt, aio
from tallystick.dualwrite.aio.leases import AsyncLeaseKeeper
from tallystick.dualwrite.rules.leases import LeaseList, LeaseTaking
from tallystick.dualwrite.rules.recovery import Report

CONFIG = {"bootstrap.servers": "127.0.0.1:1", "transactional.id": "pay"}
# So long that no heartbeat comes by itself.
LEASE = Lease(duration_ms=86_400_000)


class LeaseTable:
    """A store of leases, all of them free, and of nothing else."""

    def __init__(self) -> None:
        self.holders: dict[str, str] = {}

    async def read_leases(self, base: str | None = None) -> LeaseList:
        return LeaseList(0, ())

    async def take_lease(self, taking: LeaseTaking) -> bool:
        self.holders[taking.row.transactional_id] = taking.row.holder
        return True

    async def renew_leases(self, ids: Iterable[str], holder: str, duration_ms: int) -> frozenset[str]:
        return frozenset(each for each in ids if self.holders.get(each) == holder)

    async def release_lease(self, transactional_id: str, holder: str) -> None:
        self.holders[transactional_id] = ""

    async def claim_leased(self, transactional_id: str, holder: str) -> Any: ...


class MadeUpWriter:
    """A writer that fails as it is told to, and may stop in its close."""

    def __init__(self, transactional_id: str) -> None:
        self.id = transactional_id
        self.ready = True
        self.fails_to_recover: Exception | None = None
        self.fails_to_close: Exception | None = None
        self.is_closing, self.may_close = asyncio.Event(), asyncio.Event()
        self.may_close.set()
        self.is_closed = False

    async def recover(self, *, accept_mixed: bool = False) -> Report:
        if self.fails_to_recover is not None:
            raise self.fails_to_recover
        return Report(())

    async def close(self) -> None:
        self.is_closing.set()
        await self.may_close.wait()
        self.is_closed = True
        failure, self.fails_to_close = self.fails_to_close, None
        if failure is not None:
            raise failure


class MadeUpPool:
    """A recovered pool of such writers, whose upkeep takes no other ids."""

    def __init__(self, size: int) -> None:
        self.table = LeaseTable()
        store: Any = self.table
        self.pool: aio.WriterPool[Any] = aio.WriterPool(store, CONFIG, size, lease=LEASE, wait_s=0)
        assert self.pool._leases is not None
        self.keeper: AsyncLeaseKeeper[Any] = self.pool._leases
        create: Any = lambda _, transactional_id: MadeUpWriter(transactional_id)  # noqa: E731
        self.keeper._create_writer = create

    async def recover(self) -> list[Any]:
        """Recover, and return the writers in the order in which they are lent."""
        await self.pool.recover()
        self.keeper._is_filled = False
        return [leased.writer for leased in reversed(self.keeper._held.values())]

    @property
    def free_count(self) -> int:
        return int(self.pool.metrics()["pool-free"])


def tell(story: Callable[[MadeUpPool, list[Any]], Awaitable[None]], size: int) -> None:
    async def told() -> None:
        pool = MadeUpPool(size)
        await story(pool, await pool.recover())

    asyncio.run(told())


def lose(writer: MadeUpWriter) -> None:
    """Let a writer find out that the lease of its id is another pool's."""
    writer.ready, writer.fails_to_recover = False, LeaseLost(writer.id, "other")


def test_a_caller_that_is_cancelled_while_a_lost_id_is_closed_gives_back_the_other() -> None:
    """Otherwise the id would count as lent for ever, and the pool would be smaller by one each time."""

    async def story(made: MadeUpPool, writers: list[Any]) -> None:
        *lost, last = writers
        for each in lost:
            lose(each)
            each.may_close.clear()
        is_lent = asyncio.Event()

        async def use() -> None:
            async with made.pool.writer() as writer:
                assert writer is last
                is_lent.set()
                await asyncio.Event().wait()

        user = asyncio.create_task(use())
        await is_lent.wait()
        user.cancel()
        for each in reversed(lost):
            await each.is_closing.wait()
            assert made.free_count == 1
            user.cancel()
        with pytest.raises(asyncio.CancelledError):
            await user
        async with made.pool.writer() as writer:
            assert writer is last
        with pytest.raises(NoFreeId):
            async with made.pool.writer(), made.pool.writer():
                pass
        await made.pool.close()

    tell(story, 3)


def test_the_heartbeat_does_not_wait_for_a_lost_writer_to_close() -> None:
    """Meanwhile it would renew nothing, and the pool would lose its other ids as well."""

    async def story(made: MadeUpPool, writers: list[Any]) -> None:
        kept, lost = writers
        made.table.holders[lost.id] = "other"
        held = made.keeper._held[kept.id]
        held.usable_until_ms = 0
        assert await made.keeper.renew()
        assert list(made.keeper._held) == [kept.id]
        assert held.usable_until_ms > 0
        assert not lost.is_closing.is_set()
        await made.keeper._run_upkeep()
        assert lost.is_closed
        await made.pool.close()

    tell(story, 2)


def test_a_lost_writer_is_closed_with_its_pool() -> None:
    async def story(made: MadeUpPool, writers: list[Any]) -> None:
        kept, lost = writers
        made.table.holders[lost.id] = "other"
        assert await made.keeper.renew()
        await made.pool.close()
        assert (kept.is_closed, lost.is_closed) == (True, True)
        assert made.table.holders == {kept.id: "", lost.id: "other"}

    tell(story, 2)


def test_a_lost_writer_that_is_lent_is_closed_by_its_borrower() -> None:
    async def story(made: MadeUpPool, writers: list[Any]) -> None:
        (lost,) = writers
        async with made.pool.writer():
            made.table.holders[lost.id] = "other"
            assert await made.keeper.renew()
            await made.keeper._run_upkeep()
            assert not lost.is_closed
        assert lost.is_closed
        await made.pool.close()

    tell(story, 1)


@pytest.mark.parametrize(
    "failure", [HeuristicMixed("the cluster has aborted"), WriteInDoubt("not finished", {})]
)
def test_closing_tells_of_a_half_that_failed_once_everything_is_closed(failure: Exception) -> None:
    """[DW-17] And leaves its id to be recovered by another process."""

    async def story(made: MadeUpPool, writers: list[Any]) -> None:
        first, second, third = writers
        first.fails_to_close, second.fails_to_close = ConnectionError("gone"), failure
        with pytest.raises(type(failure)) as raised:
            await made.pool.close()
        assert raised.value is failure
        assert all(each.is_closed for each in writers)
        assert [made.table.holders[each.id] == "" for each in (first, second, third)] == [False, False, True]
        await made.pool.close()

    tell(story, 3)
