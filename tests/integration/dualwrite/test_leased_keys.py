"""Idempotency keys over a pool that leases its ids: each key is paid once, as over any other pool."""

import asyncio
from typing import Any

import pytest
from celery import Celery
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool
from tests.support.dual_world import World

from tallystick.client.errors import NotSupported
from tallystick.dualwrite import AsyncSqlStore, IdempotencyKey, Lease, SqlStore, WriterPool, aio
from tallystick.dualwrite.blocking.leases import LeasedStore
from tallystick.dualwrite.contrib import celery as contrib_celery
from tallystick.dualwrite.contrib.celery import DualWriteTask
from tallystick.dualwrite.rules.idempotency import check_keys_supported

pytestmark = [pytest.mark.server, pytest.mark.broker(flush_policy="os")]

LEASE = Lease(duration_ms=86_400_000)
KEY = IdempotencyKey("payments", "order-7")


def make_pool(world: World) -> Any:
    return WriterPool(SqlStore(world.make_engine()), world.config, 1, lease=LEASE, wait_s=0)


def insert(world: World, txn: Any, what: str) -> str:
    txn.connection.execute(text(f"INSERT INTO {world.table} VALUES (1, '{what}')"))
    txn.send(world.topic, what.encode())
    return what


def test_a_key_is_paid_once(world: World) -> None:
    """[DW-16]"""
    with make_pool(world) as pool:
        pool.recover()
        results = [
            pool.run(lambda txn, what=what: insert(world, txn, what), idempotency_key=KEY)
            for what in ("first", "second")
        ]

        @pool.transactional(idempotency_key="what")
        def pay(txn: Any, what: str) -> str:
            return insert(world, txn, what)

        results += [pay("third"), pay("third")]
    assert results == ["first", "first", "third", "third"]
    assert world.check() == ["first", "third"]


def test_a_key_is_paid_once_by_an_asyncio_pool(world: World) -> None:
    """[DW-16]"""

    async def pay_twice() -> list[str]:
        engine = create_async_engine(world.engine.url.set(drivername="sqlite+aiosqlite"), poolclass=NullPool)
        async with aio.WriterPool(AsyncSqlStore(engine), world.config, 1, lease=LEASE, wait_s=0) as pool:
            await pool.recover()
            results = [
                await pool.run(lambda txn, what=what: insert_async(txn, what), idempotency_key=KEY)
                for what in ("first", "second")
            ]
        await engine.dispose()
        return results

    async def insert_async(txn: Any, what: str) -> str:
        await txn.connection.execute(text(f"INSERT INTO {world.table} VALUES (1, '{what}')"))
        await txn.send(world.topic, what.encode())
        return what

    assert asyncio.run(pay_twice()) == ["first", "first"]
    assert world.check() == ["first"]


def test_a_celery_task_that_is_delivered_again_is_paid_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[DW-16] Its id is its key, so a task needs keys whatever its pool is."""

    class LeasedTask(DualWriteTask):
        abstract = True

        def make_writers(self, number: int) -> Any:
            return make_pool(world)

    monkeypatch.setattr(contrib_celery, "_of_this_process", contrib_celery._ProcessWriters())
    with Celery("shop", broker="memory://") as app:
        app.conf.task_always_eager = True

        @app.task(base=LeasedTask, name="shop.pay", shared=False)
        def pay(txn: Any, what: str) -> str:
            return insert(world, txn, what)

        results = [pay.apply_async([what], task_id="task-7").get() for what in ("first", "second")]
        contrib_celery._of_this_process.close()
    assert results == ["first", "first"]
    assert world.check() == ["first"]


def test_a_store_with_leases_and_without_keys_refuses_keys(world: World) -> None:
    class KeylessStore:
        claim_leased = world.store.claim_leased
        begin = world.store.begin

    store: Any = KeylessStore()
    with pytest.raises(NotSupported, match="table of keys in KeylessStore"):
        check_keys_supported(LeasedStore(store, "holder"))
