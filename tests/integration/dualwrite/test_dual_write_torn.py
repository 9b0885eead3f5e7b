"""What a torn write tells: its own caller, a call with its key, and the blocks that come after it."""

import asyncio
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool
from tests.support.dual_world import World

from tallystick.admin import Admin
from tallystick.dualwrite import (
    AsyncSqlStore,
    DualWriter,
    HeuristicMixed,
    IdempotencyKey,
    NotRecovered,
    WriterPool,
    aio,
)
from tallystick.dualwrite.block.steps import RecipeStep, Wait

pytestmark = pytest.mark.server

KEY = IdempotencyKey("pay", "order-7")


class Tear:
    """Aborts the transaction in the cluster when the database has committed it, once."""

    def __init__(self, world: World) -> None:
        self.admin_config = {"bootstrap.servers": world.broker.bootstrap_servers}
        self.is_armed = True

    def __call__(self, _number: int, step: RecipeStep, done: bool) -> None:
        if not done and step.name in ("commit", "start commit") and self.is_armed:
            self.is_armed = False
            with Admin(self.admin_config) as admin:
                admin.force_terminate_transaction(step.subject, force=True)


def insert(world: World, what: str) -> Any:
    def work(txn: Any) -> dict[str, str]:
        txn.connection.execute(text(f"INSERT INTO {world.table} VALUES (1, '{what}')"))
        txn.send(world.topic, what.encode())
        return {"paid": what}

    return work


@pytest.mark.gate(1)
@pytest.mark.parametrize("wait", ["committed", "decided"])
def test_a_key_does_not_answer_for_records_that_are_not_there(world: World, wait: Wait) -> None:
    """[DW-28] By another id of the pool, by one that is started later, until somebody accepts it."""
    pool = WriterPool(world.store, world.config, size=2, watch=Tear(world), wait=wait)
    with pool:
        pool.recover()
        if wait == "committed":
            with pytest.raises(
                HeuristicMixed, match=r"the database has committed .*Send its records again"
            ) as torn:
                pool.run(insert(world, "a"), idempotency_key=KEY)
            assert torn.value.is_of_this_block
            assert "nothing happened" not in str(torn.value)
            (torn_id,) = torn.value.states
        else:
            assert pool.run(insert(world, "a"), idempotency_key=KEY) == {"paid": "a"}
            torn_id = f"{world.topic}-0"
            with pytest.raises(NotRecovered, match="nothing of this block was begun"):
                pool.run(insert(world, "a"), idempotency_key=KEY)
        for _ in range(2):
            with pytest.raises(HeuristicMixed, match=r"'order-7' of pay.*records") as again:
                pool.run(insert(world, "a"), idempotency_key=KEY)
            assert again.value.is_of_this_block
            assert list(again.value.states) == [torn_id]
    config = {**world.config, "transactional.id": torn_id}
    with DualWriter(world.store, config) as writer:
        with pytest.raises(HeuristicMixed, match=r"Its idempotency keys: 'order-7' of pay") as found:
            writer.recover()
        assert not found.value.is_of_this_block
        writer.recover(accept_mixed=True)
        assert writer.run(insert(world, "a"), idempotency_key=KEY) == {"paid": "a"}
    assert world.rows() == ["a"]


def test_a_call_with_the_key_of_the_call_that_it_is_in_is_refused(world: World) -> None:
    """It would wait for its own end, also with a writer of its own."""
    with WriterPool(world.store, world.config, size=2) as pool:
        pool.recover()

        def outer(_txn: Any) -> None:
            with pool.writer() as another:
                another.run(insert(world, "inner"), idempotency_key=KEY)

        with pytest.raises(ValueError, match="'order-7' of pay"):
            pool.run(outer, idempotency_key=KEY)
        pool.run(insert(world, "a"), idempotency_key=KEY)
    assert world.check() == ["a"]


def test_nor_with_asyncio(world: World) -> None:
    """[DW-28]"""

    async def pay_twice() -> None:
        engine = create_async_engine(
            str(world.engine.url).replace("sqlite:", "sqlite+aiosqlite:"), poolclass=NullPool
        )
        tear = Tear(world)

        async def work(txn: Any) -> int:
            await txn.connection.execute(text(f"INSERT INTO {world.table} VALUES (1, 'a')"))
            await txn.send(world.topic, b"a")
            return 7

        async with aio.WriterPool(AsyncSqlStore(engine), world.config, size=2, watch=tear) as pool:
            await pool.recover()
            for _ in range(2):
                with pytest.raises(HeuristicMixed) as torn:
                    await pool.run(work, idempotency_key=KEY)
                assert torn.value.is_of_this_block
        await engine.dispose()

    asyncio.run(pay_twice())
    assert world.rows() == ["a"]


@pytest.mark.parametrize("wait", ["committed", "decided"])
def test_a_later_block_is_not_told_that_it_is_torn(world: World, wait: Wait) -> None:
    """Its own rows were never written: a handler that sends their records again would make them up."""
    with DualWriter(world.store, world.config, watch=Tear(world), wait=wait) as writer:
        writer.recover()
        if wait == "committed":
            with pytest.raises(HeuristicMixed):
                writer.run(insert(world, "a"))
        else:
            writer.run(insert(world, "a"))
        with pytest.raises(NotRecovered) as later:
            writer.run(insert(world, "b"))
        if wait == "decided":
            assert isinstance(later.value.__cause__, HeuristicMixed)
            assert not later.value.__cause__.is_of_this_block
    assert world.rows() == ["a"]


def test_a_pool_does_not_tell_it_to_a_later_caller_either(world: World) -> None:
    pool = WriterPool(world.store, world.config, size=1, watch=Tear(world))
    with pool:
        pool.recover()
        with pytest.raises(HeuristicMixed) as own:
            pool.run(insert(world, "a"))
        assert own.value.is_of_this_block
        with pytest.raises(NotRecovered, match="nothing of this block") as later:
            pool.run(insert(world, "b"))
        assert isinstance(later.value.__cause__, HeuristicMixed)
    assert world.rows() == ["a"]
