"""Pools that lease their ids: what is shared, lost, taken in place of it, and recovered for others."""

# ruff: noqa: PT012 - what a transaction raises comes at the end of its block

import asyncio
import json
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import IO, Any

import pytest
from rocksdict import Rdict
from sqlalchemy import Engine, create_engine, make_url, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool
from tests.support.dual_world import Crash, Crashed, MakeWorld, World, worlds
from tests.support.raw_producer import committed_values
from tests.support.servers import PostgreSQL

from tallystick import Admin
from tallystick.cli.commands import resolve as command
from tallystick.cli.main import main
from tallystick.client.errors import IllegalState
from tallystick.dualwrite import (
    AsyncSqlStore,
    HeuristicMixed,
    Lease,
    NoFreeId,
    NotRecovered,
    SqlStore,
    WriterFenced,
    WriterPool,
    aio,
)
from tallystick.dualwrite.block.life import WriterState
from tallystick.dualwrite.block.steps import StepCallback
from tallystick.dualwrite.blocking import leases
from tallystick.dualwrite.blocking.leases import LeaseKeeper
from tallystick.dualwrite.rules.pooling import start_background
from tallystick.dualwrite.stores.sql import SqlTransaction
from tallystick.errors import TallystickError
from tallystick.testing import EmbeddedBroker, eventually

pytestmark = [pytest.mark.server, pytest.mark.broker(flush_policy="os")]

ROOT = Path(__file__).parents[3]
# So long that no heartbeat comes by itself: the test renews, keeps up, and lets leases expire.
LEASE = Lease(duration_ms=86_400_000)
Pool = WriterPool[SqlTransaction]


@pytest.fixture
def make_pool(world: World) -> Iterator[Callable[..., Pool]]:
    with ExitStack() as stack:

        def make(size: int = 1, watch: StepCallback | None = None) -> Pool:
            store = SqlStore(world.make_engine())
            pool = WriterPool(store, world.config, size, lease=LEASE, watch=watch, wait_s=0)
            return stack.enter_context(pool)

        yield make


def keeper_of(pool: Pool) -> LeaseKeeper[SqlTransaction]:
    assert pool._leases is not None
    return pool._leases


def ids_of(pool: Pool) -> list[str]:
    return sorted(keeper_of(pool)._held)


def holders(engine: Engine) -> dict[int, str]:
    """Return the holder of each number."""
    with engine.connect() as connection:
        asked = "SELECT id_number, holder FROM kafka_transactional_id_leases ORDER BY id_number"
        return {row.id_number: row.holder for row in connection.execute(text(asked))}


def expire(engine: Engine, *numbers: int) -> None:
    with engine.begin() as connection:
        for number in numbers:
            connection.execute(
                text(f"UPDATE kafka_transactional_id_leases SET expires_at_ms = 1 WHERE id_number = {number}")
            )


def pay(world: World, pool: Pool, n: int, what: str) -> None:
    with pool.transaction() as txn:
        txn.connection.execute(text(f"INSERT INTO {world.table} VALUES ({n}, '{what}')"))
        txn.send(world.topic, what.encode())


def decide_and_be_gone(world: World, make_pool: Callable[..., Pool], at: str) -> Pool:
    """A pool pays and stops at a step, as its process ends there; its lease expires."""
    crash = Crash(at=at)
    gone = make_pool(watch=crash)
    gone.recover()
    with suppress(Crashed):
        pay(world, gone, 1, "a")
    assert crash.struck
    (leased,) = keeper_of(gone)._held.values()
    crash.over = True
    if at != "commit":
        leased.writer._session._database.roll_back_open()
        for branch in leased.writer._session._branches_by_id:  # a process that is gone aborts nothing
            producer = branch.detach_producer()
            if producer is not None:
                producer.close(abort=False)
    expire(world.engine, 0)
    return gone


# ---- which ids


def test_pools_of_one_name_share_its_ids_and_give_them_back(
    world: World, make_pool: Callable[..., Pool]
) -> None:
    first, second = make_pool(2), make_pool(1)
    assert [each.transactional_id for each in first.recover().ids] == [f"{world.topic}-0", f"{world.topic}-1"]
    assert [each.transactional_id for each in second.recover().ids] == [f"{world.topic}-2"]
    with first.writer(), first.writer(), pytest.raises(NoFreeId), first.writer():
        pass
    pay(world, first, 1, "a")
    pay(world, second, 2, "b")
    first.close()
    assert {number for number, holder in holders(world.engine).items() if not holder} == {0, 1}
    third = make_pool(1)
    third.recover()
    assert ids_of(third) == [f"{world.topic}-0"], "the lowest that is free"
    pay(world, third, 3, "c")
    assert world.check() == ["a", "b", "c"]
    with pytest.raises(NotRecovered, match="closed"):
        first.recover()


def test_a_block_inside_a_block_does_not_wait_for_itself(
    world: World, make_pool: Callable[..., Pool]
) -> None:
    """With one id it waited for `wait_s`, and on SQLite for the lock that the block around it has."""
    pool = make_pool(2)
    pool.recover()
    with pool.transaction() as txn:
        with pytest.raises(IllegalState, match="a block of the pool open"), pool.transaction():
            pass
        with pytest.raises(IllegalState, match="a block of the pool open"):
            pool.run(lambda inner: inner.send(world.topic, b"inside"))
        txn.send(world.topic, b"around")
        txn.connection.execute(text(f"INSERT INTO {world.table} VALUES (1, 'around')"))
    pay(world, pool, 2, "after")
    world.check()
    assert committed_values(world.broker, world.topic, 0) == ["around", "after"]


def test_a_recovered_pool_may_be_recovered_again(world: World, make_pool: Callable[..., Pool]) -> None:
    pool = make_pool(2)
    pool.recover()
    assert len(pool.recover().ids) == 2
    assert len(ids_of(pool)) == 2
    with pool.writer(), pool.writer(), pytest.raises(NoFreeId), pool.writer():
        pass


def test_a_start_that_fails_goes_on_with_the_ids_that_it_has(
    world: World, make_pool: Callable[..., Pool], monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = make_pool(2)
    with monkeypatch.context() as patch, pytest.raises(OperationalError):
        patch.setattr(keeper_of(pool)._store, "claim_leased", fail)
        pool.recover()
    with pytest.raises(NotRecovered), pool.writer():
        pass
    pool.recover()
    assert ids_of(pool) == [f"{world.topic}-0", f"{world.topic}-1"]
    assert list(holders(world.engine)) == [0, 1]


def fail(*_: object) -> Any:
    raise OperationalError("claim", None, Exception("the database is gone"))


def test_a_larger_size_or_a_wrong_duration_is_refused(world: World) -> None:
    with pytest.raises(TallystickError, match="duration_ms"):
        WriterPool(world.store, world.config, 1, lease=Lease(duration_ms=1))
    with pytest.raises(TallystickError, match="size"):
        WriterPool(world.store, world.config, 0, lease=LEASE)


# ---- leases that were lost, or may be


def test_a_pool_that_lost_a_lease_takes_another_id(world: World, make_pool: Callable[..., Pool]) -> None:
    first, second = make_pool(), make_pool()
    first.recover()
    pay(world, first, 1, "a")
    expire(world.engine, 0)
    second.recover()
    assert ids_of(second) == [f"{world.topic}-0"]
    keeper_of(first).renew()
    assert ids_of(first) == []
    keeper_of(first).keep_up()
    assert ids_of(first) == [f"{world.topic}-1"]
    pay(world, first, 2, "b")
    pay(world, second, 3, "c")
    assert world.check() == ["a", "b", "c"]


def test_a_pool_that_lost_a_lease_claims_nothing(world: World, make_pool: Callable[..., Pool]) -> None:
    """[DW-15] It is fenced, recovers, and is refused: the other pool is not disturbed."""
    first, second = make_pool(), make_pool()
    first.recover()
    pay(world, first, 1, "a")
    expire(world.engine, 0)
    second.recover()
    pay(world, second, 2, "b")
    with pytest.raises(TallystickError):
        pay(world, first, 3, "no")
    with suppress(TallystickError):  # the other id may not be there yet
        pay(world, first, 4, "c")
    pay(world, second, 5, "d")
    assert ids_of(second) == [f"{world.topic}-0"]
    assert f"{world.topic}-0" not in ids_of(first)


def test_a_writer_that_is_lent_while_its_lease_is_lost_does_not_come_back(
    world: World, make_pool: Callable[..., Pool]
) -> None:
    """[DW-15] Its transaction commits neither half, and the id is not claimed again."""
    first, second = make_pool(), make_pool()
    first.recover()
    with first.writer() as writer:
        expire(world.engine, 0)
        second.recover()
        keeper_of(first).renew()
        with pytest.raises(TallystickError), writer.transaction() as txn:
            txn.send(world.topic, b"no")
    pay(world, second, 1, "a")
    eventually(lambda: ids_of(first) == [f"{world.topic}-1"])  # the loss has woken the heartbeat
    eventually(lambda: can_pay(world, first, 2, "b"))
    assert world.check() == ["a", "b"]


def can_pay(world: World, pool: Pool, n: int, what: str) -> bool:
    with suppress(NoFreeId):
        pay(world, pool, n, what)
        return True
    return False


def test_nothing_is_lent_after_a_lease_may_have_expired_until_it_is_renewed(
    world: World, make_pool: Callable[..., Pool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database cannot be asked: the writer is usable for as long as its lease surely lasts."""
    pool = make_pool()
    pool.recover()
    keeper = keeper_of(pool)
    with monkeypatch.context() as patch:
        patch.setattr(keeper._store, "renew_leases", fail)
        assert not keeper.renew()
        pay(world, pool, 1, "a")
        (leased,) = keeper._held.values()
        leased.usable_until_ms = keeper._clock.monotonic_ms()
        with pytest.raises(NoFreeId):
            pay(world, pool, 2, "no")
        assert not keeper.renew()
        with pytest.raises(NoFreeId):
            pay(world, pool, 2, "no")
    assert keeper.renew()
    pay(world, pool, 2, "b")
    with pytest.raises(NoFreeId), pool.writer(), pool.writer():
        pass
    assert world.check() == ["a", "b"]


def test_an_operator_who_fences_a_writer_takes_no_lease_from_its_pool(
    world: World, make_pool: Callable[..., Pool]
) -> None:
    pool = make_pool()
    pool.recover()
    world.store.claim(f"{world.topic}-0")
    with pytest.raises(WriterFenced):
        pay(world, pool, 1, "no")
    pay(world, pool, 1, "a")
    assert ids_of(pool) == [f"{world.topic}-0"]
    assert world.check() == ["a"]


# ---- ids of processes that are gone


@pytest.mark.gate(1)
@pytest.mark.parametrize(("step", "has"), [("prepare", []), ("commit database", ["a"]), ("commit", ["a"])])
def test_a_live_pool_recovers_the_ids_of_one_that_is_gone(
    world: World, make_pool: Callable[..., Pool], step: str, has: list[str]
) -> None:
    live = make_pool()
    gone = decide_and_be_gone(world, make_pool, step)
    live.recover()  # it takes the id that has expired
    assert world.check() == has
    pay(world, live, 2, "b")
    assert not set(ids_of(live)) & set(ids_of(gone)) or ids_of(live) == ids_of(gone)
    assert world.check() == [*has, "b"]


@pytest.mark.parametrize(("step", "has"), [("prepare", []), ("commit database", ["a"])])
def test_upkeep_recovers_what_has_expired_and_gives_it_back(
    world: World, make_pool: Callable[..., Pool], step: str, has: list[str]
) -> None:
    gone = decide_and_be_gone(world, make_pool, step)
    with world.engine.begin() as connection:  # not expired yet when the other pool starts
        connection.execute(text("UPDATE kafka_transactional_id_leases SET expires_at_ms = 9e15"))
    live = make_pool()
    live.recover()
    assert ids_of(live) == [f"{world.topic}-1"]
    expire(world.engine, 0)
    keeper_of(live).keep_up()
    assert world.check() == has
    assert holders(world.engine)[0] == ""
    assert ids_of(live) == [f"{world.topic}-1"]
    keeper_of(gone).renew()
    assert ids_of(gone) == []


def test_upkeep_goes_on_although_it_ended_before_its_start_had_returned(
    make_pool: Callable[..., Pool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine a new thread may be done before the one that started it runs again."""
    live = make_pool()
    live.recover()
    ended: list[str] = []

    def start_and_lose_the_processor(name: str, drive: Callable[[], None]) -> Thread:
        thread = start_background(name, drive)
        thread.join(60)
        ended.append(name)
        return thread

    monkeypatch.setattr(leases, "start_background", start_and_lose_the_processor)
    for count in (1, 2, 3):
        keeper_of(live)._wake.set()
        eventually(lambda count=count: len(ended) >= count)


def test_what_people_must_settle_is_left_with_the_command_and_not_tried_again(
    world: World, make_pool: Callable[..., Pool], caplog: pytest.LogCaptureFixture
) -> None:
    decide_and_be_gone(world, make_pool, "commit database")
    with Admin({"bootstrap.servers": world.broker.bootstrap_servers}) as admin:
        admin.force_terminate_transaction(f"{world.topic}-0", force=True)
    live = make_pool()
    live.recover()
    assert ids_of(live) == [f"{world.topic}-1"]
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 1
    assert f"resolve --store URL --transactional-id {world.topic}-0 --dry-run" in errors[0].getMessage()
    owner = world.store.read_state(f"{world.topic}-0")
    expire(world.engine, 0)
    keeper_of(live).keep_up()
    assert world.store.read_state(f"{world.topic}-0") == owner
    pay(world, live, 2, "b")
    assert world.rows() == ["a", "b"]
    with pytest.raises(HeuristicMixed):
        make_plain(world).recover()


def make_plain(world: World) -> Any:
    writer = world.life()
    config = {**world.config, "transactional.id": f"{world.topic}-0"}
    return type(writer)(world.store, config, pooled=True)


def test_a_failure_of_upkeep_ends_nothing(
    world: World, make_pool: Callable[..., Pool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the id is tried again later, not at once."""
    decide_and_be_gone(world, make_pool, "commit database")
    live = make_pool()
    keeper = keeper_of(live)
    with world.engine.begin() as connection:
        connection.execute(text("UPDATE kafka_transactional_id_leases SET expires_at_ms = 9e15"))
    live.recover()
    expire(world.engine, 0)
    with monkeypatch.context() as patch:
        patch.setattr(keeper._store, "claim_leased", fail)
        keeper.keep_up()
    expire(world.engine, 0)
    keeper.keep_up()
    assert holders(world.engine)[0] != ""
    keeper._attempts.forget(f"{world.topic}-0")
    keeper.keep_up()
    assert holders(world.engine)[0] == ""
    pay(world, live, 2, "b")
    assert world.check() == ["a", "b"]


# ---- the end


def test_what_was_left_open_is_recovered_before_it_is_given_back(
    world: World, make_pool: Callable[..., Pool]
) -> None:
    pool = make_pool()
    pool.recover()
    keeper_of(pool)._held[f"{world.topic}-0"].writer._session.life.state = WriterState.UNSETTLED
    pool.close()
    assert holders(world.engine) == {0: ""}


def test_what_cannot_be_recovered_is_left_until_its_lease_expires(
    world: World, make_pool: Callable[..., Pool], monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = make_pool(2)
    pool.recover()
    keeper_of(pool)._held[f"{world.topic}-0"].writer._session.life.state = WriterState.UNSETTLED
    monkeypatch.setattr(keeper_of(pool)._store, "claim_leased", fail)
    pool.close()
    now = holders(world.engine)
    assert (now[0] != "", now[1]) == (True, "")


def test_what_a_caller_uses_is_not_given_back(world: World, make_pool: Callable[..., Pool]) -> None:
    pool = make_pool()
    pool.recover()
    with pool.writer():
        pool.close()
        assert holders(world.engine)[0] != ""


# ---- asyncio


def test_an_asyncio_pool_leases_recovers_and_gives_back(world: World, tmp_path: Path) -> None:
    async def run() -> None:
        url = world.engine.url.set(drivername="sqlite+aiosqlite")
        engines = [create_async_engine(url, poolclass=NullPool) for _ in range(2)]
        pools = [
            aio.WriterPool(AsyncSqlStore(engine), world.config, 1, lease=LEASE, wait_s=0)
            for engine in engines
        ]
        first, second = pools
        await first.recover()
        await second.recover()
        await pay_async(first, 1, "a")
        expire(world.engine, 0)
        assert second._leases is not None
        assert first._leases is not None
        await second._leases.keep_up()
        assert holders(world.engine)[0] == ""
        await first._leases.renew()
        await first._leases.keep_up()
        await pay_async(first, 2, "b")
        await pay_async(second, 3, "c")
        for pool in pools:
            await pool.close()
        for engine in engines:
            await engine.dispose()

    async def pay_async(pool: Any, n: int, what: str) -> None:
        async with pool.transaction() as txn:
            await txn.connection.execute(text(f"INSERT INTO {world.table} VALUES ({n}, '{what}')"))
            await txn.send(world.topic, what.encode())

    asyncio.run(run())
    assert world.check() == ["a", "b", "c"]
    assert set(holders(world.engine).values()) == {""}


# ---- processes


@contextmanager
def worker(*arguments: str) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-m", "tests.support.leased_child", *arguments]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            with suppress(BrokenPipeError):
                process.communicate()


def await_ready(process: "subprocess.Popen[str]") -> None:
    assert stream(process.stdout).readline() == "ready\n"


def stream(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


def tell(process: "subprocess.Popen[str]") -> None:
    stream(process.stdin).write("\n")
    stream(process.stdin).flush()


@pytest.fixture
def postgresql_url(postgresql: PostgreSQL) -> str:
    url = make_url(postgresql.url(postgresql.new_database())).set(drivername="postgresql+psycopg")
    return url.render_as_string(hide_password=False)


@pytest.fixture
def postgresql_world(broker: EmbeddedBroker, postgresql_url: str) -> Iterator[MakeWorld]:
    yield from worlds(broker, lambda _: create_engine(postgresql_url, poolclass=NullPool))


@pytest.mark.gate(0)
def test_processes_that_start_together_get_ids_of_their_own(
    postgresql_world: MakeWorld, postgresql_url: str
) -> None:
    """[DW-15]"""
    world = postgresql_world()
    arguments = (postgresql_url, world.broker.bootstrap_servers, world.topic, "2")
    with ExitStack() as stack:
        workers = [stack.enter_context(worker(*arguments)) for _ in range(4)]
        for each in workers:
            await_ready(each)
        for each in workers:
            tell(each)
        ids = [each for one in workers for each in json.loads(stream(one.stdout).readline())]
    assert sorted(ids) == [f"{world.topic}-{number}" for number in range(8)]


@pytest.mark.gate(1)
@pytest.mark.parametrize(
    ("step", "when", "has"),
    [("prepare", "after", []), ("commit database", "before", []), ("commit database", "after", ["1"])],
)
def test_a_live_process_finishes_what_a_killed_one_left(
    postgresql_world: MakeWorld, postgresql_url: str, step: str, when: str, has: list[str]
) -> None:
    """kill -9 around COMMIT; the heartbeat of another pool recovers the id, and readers get on."""
    world = postgresql_world()
    with world.engine.begin() as connection:
        connection.execute(text("CREATE TABLE paid (n INTEGER)"))
    arguments = (postgresql_url, world.broker.bootstrap_servers, world.topic, "1", step, when)
    with WriterPool(world.store, world.config, 1, lease=Lease(duration_ms=3_000)) as live:
        live.recover()
        with worker(*arguments) as process:
            await_ready(process)
            tell(process)
            assert json.loads(stream(process.stdout).readline()) == [f"{world.topic}-1"]
            tell(process)
            assert process.wait() == -9
        expire(world.engine, 1)
        eventually(lambda: holders(world.engine)[1] == "", 120)
        pay(world, live, 1, "after")
        eventually(lambda: committed_values(world.broker, world.topic, 0) == [*has, "after"])
    with world.engine.connect() as connection:
        assert [str(n) for n in connection.execute(text("SELECT n FROM paid")).scalars()] == has


# ---- an operator, or cron


def resolve(
    world: World, capsys: pytest.CaptureFixture[str], *words: str
) -> tuple[int, list[Mapping[str, str]], str]:
    servers = ("--bootstrap-server", world.broker.bootstrap_servers, "--output", "json")
    store = ("--store", world.engine.url.render_as_string(hide_password=False))
    capsys.readouterr()
    code = main(["transactions", "resolve", *words, *store, *servers])
    printed = capsys.readouterr()
    return code, json.loads(printed.out), printed.err


def test_only_expired_ids_are_resolved_and_no_live_writer_is_fenced(
    world: World, make_pool: Callable[..., Pool], capsys: pytest.CaptureFixture[str]
) -> None:
    decide_and_be_gone(world, make_pool, "commit database")
    with world.engine.begin() as connection:
        connection.execute(text("UPDATE kafka_transactional_id_leases SET expires_at_ms = 9e15"))
    live = make_pool()
    live.recover()
    single = world.life()  # an id of its own, without a lease
    single.recover()
    code, rows, said = resolve(world, capsys, "--only-expired", "--dry-run")
    assert (code, rows) == (0, [])
    assert said == "Expired: 0. Left alone: 2 held or given back, 1 without a lease.\n"
    expire(world.engine, 0)
    before = holders(world.engine)
    code, (row,), said = resolve(world, capsys, "--only-expired", "--dry-run")
    assert (code, row["TransactionalId"], row["Verdict"]) == (3, f"{world.topic}-0", "COMMIT")
    assert said.startswith("Expired: 1. Left alone: 1 held or given back, 1 without a lease.\n")
    assert holders(world.engine) == before
    code, (row,), _ = resolve(world, capsys, "--only-expired", "--yes")
    assert (code, row["Verdict"]) == (0, "COMMIT")
    assert holders(world.engine) == {0: "", 1: before[1]}
    pay(world, live, 2, "b")
    world.pay(single, 3, "c")
    assert world.check() == ["a", "b", "c"]
    code, rows, _ = resolve(world, capsys, "--only-expired", "--dry-run")
    assert (code, rows) == (0, [])


def test_an_id_whose_lease_was_taken_since_it_was_shown_is_left_alone_and_told(
    world: World,
    make_pool: Callable[..., Pool],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decide_and_be_gone(world, make_pool, "commit database")
    expire(world.engine, 0)
    pool = make_pool(size=1)
    monkeypatch.setattr(command, "confirm", lambda _question, *, yes: pool.recover())
    code, (row,), _ = resolve(world, capsys, "--only-expired")
    assert (code, row["Result"]) == (0, "left alone: its lease was taken, renewed or given back")
    pay(world, pool, 2, "b")
    assert world.check() == ["a", "b"]


def test_an_expired_id_that_cannot_be_resolved_is_a_failure(
    world: World, make_pool: Callable[..., Pool], capsys: pytest.CaptureFixture[str]
) -> None:
    decide_and_be_gone(world, make_pool, "commit database")
    with Admin({"bootstrap.servers": world.broker.bootstrap_servers}) as admin:
        admin.force_terminate_transaction(f"{world.topic}-0", force=True)
    code, (row,), said = resolve(world, capsys, "--only-expired", "--yes")
    assert (code, row["Verdict"]) == (3, "HALT")
    assert "has aborted it" in said


@pytest.mark.parametrize(
    ("words", "code", "why"),
    [
        (["--prefix", "p", "--only-expired"], 2, "--only-expired"),
        (["--store", "rocksdb:///{folder}/rocks", "--only-expired"], 2, "keeps no leases"),
        (["--store", "sqlite:///{folder}/none.db", "--only-expired"], 1, "kafka_transactional_id_leases"),
    ],
)
def test_a_store_that_keeps_no_leases_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], code: int, why: str
) -> None:
    Rdict(str(tmp_path / "rocks")).close()
    (tmp_path / "none.db").touch()
    given = [each.format(folder=tmp_path) for each in words]
    assert main(["transactions", "resolve", *given, "--dry-run", "--bootstrap-server", "localhost:1"]) == code
    assert why in capsys.readouterr().err
