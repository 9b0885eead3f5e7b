"""A doubt of another writer, raised where it could be taken for this one's: by a hook, or by the commit."""

import asyncio
from typing import Any

import pytest
from sqlalchemy import event, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool
from tests.support.dual_world import World

from tallystick.dualwrite import AsyncSqlStore, Outcome, WriteInDoubt, aio

pytestmark = [pytest.mark.server, pytest.mark.broker(flush_policy="os")]

RETRIES = 2


@pytest.fixture(params=Outcome)
def doubt(request: pytest.FixtureRequest) -> WriteInDoubt:
    """The doubt of a writer that the work, or a hook of its session, has used."""
    doubt = WriteInDoubt("audit-1: the answer was lost", {})
    doubt.set_outcome(request.param)
    return doubt


def insert(world: World) -> Any:
    return text(f"INSERT INTO {world.table} VALUES (1, 'mine')")


def raise_at_flush(session: Any, doubt: WriteInDoubt) -> None:
    def fail(_: object) -> None:
        raise doubt

    event.listen(session, "before_commit", fail)


def test_a_run_is_not_committed_by_the_doubt_of_another_writer(world: World, doubt: WriteInDoubt) -> None:
    """[DW-3] Nor is it run again: what the other writer has done may be committed."""
    runs: list[int] = []

    def pay(txn: Any) -> str:
        runs.append(1)
        txn.session.execute(insert(world))
        txn.send(world.topic, b"mine")
        raise_at_flush(txn.session, doubt)
        return "paid"

    writer = world.life()
    writer.recover()
    with pytest.raises(WriteInDoubt) as raised:
        writer.run(pay, retries=RETRIES)
    assert raised.value is doubt
    assert len(runs) == 1
    assert world.check() == []


def test_nor_is_a_run_of_an_asyncio_writer(world: World, doubt: WriteInDoubt) -> None:
    """[DW-3]"""

    async def pay(txn: Any) -> str:
        await txn.session.execute(insert(world))
        await txn.send(world.topic, b"mine")
        raise_at_flush(txn.session.sync_session, doubt)
        return "paid"

    async def run() -> None:
        engine = create_async_engine(world.engine.url.set(drivername="sqlite+aiosqlite"), poolclass=NullPool)
        async with aio.DualWriter(AsyncSqlStore(engine), world.config) as writer:
            await writer.recover()
            with pytest.raises(WriteInDoubt) as raised:
                await writer.run(pay, retries=RETRIES)
            assert raised.value is doubt
        await engine.dispose()

    asyncio.run(run())
    assert world.check() == []
