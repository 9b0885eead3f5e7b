"""What only the awaited store does, with every driver: lost answers, locks, cancellation."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, make_url, text
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine
from tests.support.cutting_proxy import CuttingProxy
from tests.support.servers import MariaDB, PostgreSQL

from tallystick import PreparedTxnState
from tallystick.dualwrite.errors import BadStore, CommitUnknown, ManagedByWriter, UnsafeDurability
from tallystick.dualwrite.stores.base import OffsetAdvance
from tallystick.dualwrite.stores.sql_async import AsyncSqlStore, AsyncSqlTransaction
from tallystick.kernel.ids import TopicPartition
from tallystick.kernel.value import replace

pytestmark = [pytest.mark.server, pytest.mark.slow]

STATE = PreparedTxnState("7:0")
DRIVERS = ["postgresql+asyncpg", "postgresql+psycopg", "mysql+asyncmy", "sqlite+aiosqlite"]
SERVED = DRIVERS[:3]


@dataclass
class Database:
    """A fresh database, reached with one driver."""

    driver: str
    server: PostgreSQL | MariaDB | None
    name: str

    def url(self, port: int | None = None) -> str:
        if self.server is None:
            return f"{self.driver}:///{self.name}"
        plain = make_url(self.server.url(self.name, port=port))
        return plain.set(drivername=self.driver).render_as_string()

    @asynccontextmanager
    async def store(self, port: int | None = None, **options: object) -> AsyncIterator[AsyncSqlStore]:
        engine = create_async_engine(self.url(port), **options)
        try:
            yield AsyncSqlStore(engine)
        finally:
            await engine.dispose()


@pytest.fixture
def database(driver: str, tmp_path: Path, request: pytest.FixtureRequest) -> Database:
    if driver.startswith("sqlite"):
        return Database(driver, None, str(tmp_path / "rows.db"))
    server = request.getfixturevalue("postgresql" if driver.startswith("postgresql") else "mariadb")
    return Database(driver, server, server.new_database())


def every(drivers: list[str]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("driver", drivers)


@every(DRIVERS)
def test_without_its_table_and_after_a_commit(database: Database) -> None:
    async def story() -> None:
        async with database.store() as store:
            with pytest.raises(BadStore):
                await store.claim("id")
            await store.create()
            row = await store.claim("id")
            transaction = await store.begin()
            await transaction.record(replace(row, state=STATE))
            await transaction.commit()
            await transaction.rollback()
            assert await store.read_state("id") == replace(row, state=STATE)

    asyncio.run(story())


@every(SERVED)
def test_a_claim_waits_for_a_commit_whose_client_is_gone(database: Database) -> None:
    """[DW-1] The answer is lost and the server has committed: the claim returns what was recorded.

    [DW-3] The writer is told that it cannot know.
    """

    async def story() -> None:
        assert database.server is not None
        with CuttingProxy(database.server.port) as proxy:
            async with database.store() as store, database.store(proxy.port) as behind_proxy:
                await store.create()
                row = await store.claim("id")
                transaction = await behind_proxy.begin()
                await transaction.record(replace(row, state=STATE))
                proxy.lose_answer(lambda data: b"COMMIT" in data.upper())
                with pytest.raises(CommitUnknown):
                    await transaction.commit()
                await transaction.rollback()
                assert proxy.cuts == 1
                assert (await store.claim("id")).state == STATE

    asyncio.run(story())


@every(SERVED)
def test_a_commit_that_never_arrived_is_rolled_back_before_the_claim_returns(database: Database) -> None:
    """[DW-1] [DW-3] The same to its client; the claim tells them apart."""

    async def story() -> None:
        assert database.server is not None
        with CuttingProxy(database.server.port) as proxy:
            async with database.store() as store, database.store(proxy.port) as behind_proxy:
                await store.create()
                row = await store.claim("id")
                transaction = await behind_proxy.begin()
                await transaction.record(replace(row, state=STATE))
                proxy.lose_request(lambda data: b"COMMIT" in data.upper())
                with pytest.raises(CommitUnknown):
                    await transaction.commit()
                await transaction.rollback()
                assert (await store.claim("id")).state == PreparedTxnState()

    asyncio.run(story())


@every(DRIVERS[:2])
def test_a_claim_waits_while_the_commit_runs_in_the_server(database: Database) -> None:
    """[DW-1] A deferred trigger holds the COMMIT in the server; its client is cut off meanwhile."""

    async def story() -> None:
        assert database.server is not None
        with CuttingProxy(database.server.port) as proxy:
            async with database.store() as store, database.store(proxy.port) as behind_proxy:
                await store.create()
                row = await store.claim("id")
                gate = await _commits_wait_for_a_gate(store)
                transaction = await behind_proxy.begin()
                await transaction.session.execute(text("INSERT INTO slow VALUES (1)"))
                await transaction.record(replace(row, state=STATE))
                commit = asyncio.ensure_future(transaction.commit())
                await _until_a_caller_waits(gate.connection)
                proxy.cut()
                with pytest.raises(CommitUnknown):
                    await commit
                await transaction.rollback()

                claim = asyncio.ensure_future(store.claim("id"))
                await _until_a_caller_waits(gate.connection, 2)
                assert not claim.done()
                await gate.rollback()  # opens it
                assert (await claim).state == STATE

    asyncio.run(story())


async def _commits_wait_for_a_gate(store: AsyncSqlStore) -> AsyncSqlTransaction:
    """After this, a transaction that writes `slow` commits when the returned transaction has ended."""
    made = await store.begin()
    for statement in (
        "CREATE TABLE slow (n INTEGER)",
        """CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS
           'BEGIN PERFORM pg_advisory_xact_lock(939); RETURN NULL; END'""",
        """CREATE CONSTRAINT TRIGGER waits AFTER INSERT ON slow DEFERRABLE INITIALLY DEFERRED
           FOR EACH ROW EXECUTE FUNCTION wait()""",
    ):
        await made.connection.execute(text(statement))
    await made.commit()
    gate = await store.begin()
    await gate.connection.execute(text("SELECT pg_advisory_xact_lock(939)"))
    return gate


async def _until_a_caller_waits(connection: AsyncConnection, waiting: int = 1) -> None:
    question = text("SELECT count(*) FROM pg_locks WHERE NOT granted")
    while True:
        if (await connection.execute(question)).scalar_one() >= waiting:
            return


@every(DRIVERS)
def test_a_cancelled_commit_leaves_a_store_that_works(database: Database) -> None:
    """[DW-3] Cancelled in its COMMIT: whatever came of it, a claim sees it whole."""

    async def story() -> None:
        async with database.store() as store:
            await store.create()
            row = await store.claim("id")
            transaction = await store.begin()
            await transaction.record(replace(row, state=STATE))
            commit = asyncio.ensure_future(transaction.commit())
            await asyncio.sleep(0)
            commit.cancel()
            done = (await asyncio.gather(commit, return_exceptions=True))[0]
            await transaction.rollback()
            now = await store.claim("id")
            assert now.state in (STATE, PreparedTxnState())
            assert done is not None or now.state == STATE
            again = await store.begin()
            await again.record(replace(now, state=PreparedTxnState("7:1")))
            await again.commit()
            assert (await store.claim("id")).state == PreparedTxnState("7:1")

    asyncio.run(story())


@every(DRIVERS)
def test_what_the_user_must_not_do(database: Database) -> None:
    async def story() -> None:
        async with database.store() as store:
            await store.create()
            row = await store.claim("id")
            transaction = await store.begin()
            with pytest.raises(ManagedByWriter):
                await transaction.session.commit()
            with pytest.raises(ManagedByWriter):
                await transaction.connection.commit()
            await transaction.connection.rollback()
            with pytest.raises(ManagedByWriter):
                await transaction.record(replace(row, state=STATE))
            await transaction.rollback()

    asyncio.run(story())


def _execute_by_driver(connection: Connection, *, statement: str) -> None:
    driver: Any = connection.connection.dbapi_connection
    driver.cursor().execute(statement)


@pytest.mark.parametrize("what", ["the record", "the offsets"])
@every(["mysql+asyncmy", "sqlite+aiosqlite"])
def test_nothing_is_written_where_it_would_commit_by_itself(database: Database, what: str) -> None:
    """[DW-2, DW-4, DW-11] The transaction was ended behind the store's back."""
    is_sqlite = database.server is None
    options: dict[str, Any] = {"connect_args": {"isolation_level": None}} if is_sqlite else {}
    endings = ["ROLLBACK"] if is_sqlite else ["ROLLBACK", "SET autocommit = 1"]

    async def story() -> None:
        async with database.store(**options) as store:
            await store.create()
            row = await store.claim("id")
            txn = await store.begin()
            for each in endings:  # by the driver: the store would not send them
                await txn.connection.run_sync(partial(_execute_by_driver, statement=each))
            write = partial(txn.record, replace(row, state=STATE), row)
            if what == "the offsets":
                moved = {TopicPartition("a", 0): OffsetAdvance(before=None, after=5)}
                write = partial(txn.move_offsets, "g", moved)
            with pytest.raises(ManagedByWriter, match="ended inside"):
                await write()
            await txn.rollback()
            assert await store.read_state("id") == row
            assert await store.read_offsets("g") == {}

    asyncio.run(story())


@every(SERVED)
def test_a_connection_where_every_statement_commits_is_refused(database: Database) -> None:
    """[DW-8] No server calls that an isolation level: each is asked whether a transaction is open."""

    async def story() -> None:
        async with database.store() as store, database.store(isolation_level="AUTOCOMMIT") as careless:
            await store.create()
            with pytest.raises(UnsafeDurability):
                await careless.begin()
            with pytest.raises(UnsafeDurability):
                await careless.claim("id")
            assert await store.read_state("id") is None

    asyncio.run(story())


@every(DRIVERS[:2])
def test_an_unsynced_commit_is_refused(database: Database) -> None:
    """[DW-8]"""

    async def story() -> None:
        async with database.store() as store:
            await store.create()
            transaction = await store.begin()
            await transaction.connection.execute(text("SET synchronous_commit = off"))
            row = await store.claim("id")
            with pytest.raises(UnsafeDurability):
                await transaction.record(replace(row, state=STATE))
            await transaction.rollback()
            assert await store.read_state("id") == row

    asyncio.run(story())
