"""AsyncSqlStore: PostgreSQL (asyncpg, psycopg 3), MariaDB and MySQL (asyncmy), SQLite (aiosqlite), awaited.

The tables, the statements and the judgements are those of SqlStore; so are the rows: writers of both kinds
may take one id over from each other. What is different is cancellation. A task cancelled in its COMMIT has
sent it, and its connection is of no further use: it is thrown away, and a claim tells what became of the
commit.

Source: SQLAlchemy 2, "Asynchronous I/O (asyncio)".
"""

import logging
import secrets
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, cast

from sqlalchemy import Connection, CursorResult, MetaData
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, AsyncTransaction
from sqlalchemy.orm import Session

from tallystick.dualwrite.errors import BadStore, CommitUnknown, Fenced, NotCommitted, NotYours
from tallystick.dualwrite.model import StoredState, from_columns
from tallystick.dualwrite.stores import sql_table
from tallystick.dualwrite.stores.base import OffsetMoved
from tallystick.dualwrite.stores.durability import AllowUnsafe, allowed_of
from tallystick.dualwrite.stores.refusals import ENDED
from tallystick.dualwrite.stores.sql_guard import OURS, Guard
from tallystick.dualwrite.stores.sql_table import Tables
from tallystick.kernel.check import check
from tallystick.kernel.ids import TopicPartition

_log = logging.getLogger(__name__)

OWNER_BYTES: Final = 16
MARK_BYTES: Final = 8


class AsyncSqlTransaction:
    """A database transaction on a connection of its own: `session` and `connection` are the same one."""

    def __init__(self, store: "AsyncSqlStore", connection: AsyncConnection, mark: str) -> None:
        self._store = store
        self._mark = mark
        self._connection = connection
        self._root = connection.get_transaction()
        self._session: AsyncSession | None = None
        self._guard = Guard(_sync(connection))
        self._listened: Any = None

    async def listen(self) -> None:
        """Hear of what the driver is told beside SQLAlchemy, where it says so: asyncpg from 0.29 on."""
        driver: Any = (await self._connection.get_raw_connection()).driver_connection
        if hasattr(driver, "add_query_logger"):
            driver.add_query_logger(self._guard.on_driver)
            self._listened = driver

    @property
    def connection(self) -> AsyncConnection:
        """Where statements are executed."""
        return self._connection

    @property
    def session(self) -> AsyncSession:
        """An ORM session on the same connection and in the same transaction."""
        if self._session is None:
            self._session = self._store.new_session(bind=self._connection)
            self._guard.watch(self._session.sync_session)
        return self._session

    @property
    def handle(self) -> AsyncSession:
        return self.session

    def sent(self) -> None:
        """A record is on its way to Kafka."""
        self._guard.sent()

    def savepoint(self) -> AsyncTransaction:
        """A savepoint, as a context manager."""
        return self._connection.begin_nested()

    async def flush(self) -> None:
        """The block is over: the session's rows and hooks, while records can still be sent."""
        await self._check_open()
        if self._session is not None:
            await self._session.run_sync(self._guard.flush)

    async def record(self, row: StoredState, before: StoredState | None = None) -> None:
        await self._check_open()
        self._guard.check_savepoints()
        dialect = self._connection.dialect.name
        tables, values = self._store.tables, sql_table.to_record(row, before, dialect, self._mark)
        replaced = tables.record(dialect, compares=before is not None)
        result = await self._connection.execute(replaced, values)
        if dialect == "postgresql":
            found = sql_table.judge_record(result.all(), self._store.allowed)
        else:
            found = cast(CursorResult[Any], result).rowcount
        if found != 1:
            await self._check_marked(dialect)
            there = await self._connection.execute(tables.read_locked(row.transactional_id))
            now = there.mappings().first()
            sql_table.check_missed(cast("Mapping[str, object] | None", now), row, before)

    async def move_offsets(self, group: str, moved: Mapping[TopicPartition, OffsetMoved]) -> None:
        await self._check_open()
        dialect = self._connection.dialect.name
        await self._check_marked(dialect)  # first: asyncpg begins no other transaction by itself
        for at in sorted(moved, key=str):  # in one order everywhere: no deadlock
            statement = self._store.tables.move_offset(group, at, moved[at], dialect)
            try:
                done = await self._connection.execute(statement)
            except IntegrityError as exc:
                raise Fenced(f"{group} {at}", str(moved[at].before)) from exc
            if dialect == "postgresql":
                marks = done.scalars().all()
                for mark in marks:
                    sql_table.check_mark(mark, self._mark)
                found = len(marks)
            else:
                found = cast(CursorResult[Any], done).rowcount
            if found != 1:
                raise Fenced(f"{group} {at}", str(moved[at].before))

    async def commit(self) -> None:
        try:
            await self._check_open()
            await self._unmark()
        except Exception as exc:  # COMMIT was not sent
            raise NotCommitted(exc) from exc
        assert self._root is not None
        self._guard.ending = True
        try:
            await self._root.commit()
        except Exception as exc:
            if sql_table.certainly_not_committed(exc):
                raise NotCommitted(exc) from exc
            if not isinstance(exc, DBAPIError):  # not the driver's: a time limit's, out of a signal's handler
                await self._connection.invalidate()
            raise CommitUnknown(sql_table.told_of(exc)) from exc
        except BaseException:  # Ctrl-C between COMMIT and its answer: nothing that follows could be trusted
            await self._connection.invalidate()
            raise
        try:
            if self._session is not None:
                await self._session.run_sync(_after_commit)
            await self._close()
        except Exception:
            _log.warning("a session failed after its transaction was committed", exc_info=True)

    async def rollback(self) -> None:
        await self._close()

    def abandon(self) -> None:
        """This process is a fork of the one that began: neither use nor close the connection here."""
        _sync(self._connection).detach()

    async def _close(self) -> None:
        """Whatever was not committed is rolled back with the connection's return to the pool."""
        try:
            if self._session is not None:
                await self._session.close()
        finally:
            listened, self._listened = self._listened, None
            if listened is not None:
                listened.remove_query_logger(self._guard.on_driver)
            if not self._connection.closed:
                self._guard.release()
                await self._connection.close()

    async def _check_open(self) -> None:
        """Raises: NotYours if somebody else has ended the transaction."""
        if self._session is not None:
            await self._session.flush()
        if self._root is None or not self._root.is_active:
            raise NotYours(f"the database transaction was ended inside the block: {OURS}")

    async def _check_marked(self, dialect: str) -> None:
        if dialect == "postgresql":
            found = await self._connection.execute(sql_table.marks())
            sql_table.check_mark(found.scalar_one(), self._mark)

    async def _unmark(self) -> None:
        """Raises: NotYours if the transaction is not the one that was begun [DW-11]."""
        releasing = sql_table.unmarking(self._connection.dialect.name)
        if releasing is None:
            return
        try:
            await self._connection.execute(releasing)
        except DBAPIError as exc:
            if sql_table.is_unmarked(exc):
                raise NotYours(ENDED) from exc
            raise


class AsyncSqlStore:
    """Rows in tables of an SQL database, beside the user's own.

        engine = create_async_engine("postgresql+asyncpg://…")
        store = AsyncSqlStore(engine)
        await store.create()

    Each transaction takes a connection from the engine's pool. The engine stays the caller's.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        *,
        metadata: MetaData | None = None,
        schema: str | None = None,
        session_factory: Callable[..., AsyncSession] = AsyncSession,
        allow_unsafe_durability: AllowUnsafe = False,
    ) -> None:
        """Connects to nothing yet.

        Args:
            metadata: where the tables are declared, for tools that compare it with the database.
            schema: the database schema of the tables; None for the connection's own.
            session_factory: makes `txn.session`: an AsyncSession class or an async_sessionmaker.
            allow_unsafe_durability: go on although a crash of the database may take back what it committed:
                the settings for which that is all right, or True for all of them, and none is looked at.
        Raises: ValueError for a setting that is not looked at.
        """
        self.tables = Tables(metadata, schema=schema)
        self.allowed = allowed_of(allow_unsafe_durability)
        self._engine = engine
        self._session_factory = session_factory

    async def create(self) -> None:
        """Make the tables if they are not there. Raises: BadStore for tables of another version."""
        async with self._engine.begin() as connection:
            await connection.run_sync(self.tables.create)

    async def claim(self, transactional_id: str) -> StoredState:
        fresh = StoredState(transactional_id=transactional_id, owner=secrets.token_hex(OWNER_BYTES))
        connection: AsyncConnection | None = None
        try:
            connection = await self._begun(claiming=True)
            await connection.execute(self.tables.claim(fresh, connection.dialect.name))
            row = await self._read(connection, transactional_id)
            await connection.commit()
        except DBAPIError as exc:
            if sql_table.is_missing_table(exc):
                raise BadStore(f"{exc.orig}; AsyncSqlStore.create() makes the tables") from exc
            raise
        finally:
            if connection is not None:
                await connection.close()
        if row is None or row.owner != fresh.owner:
            raise BadStore(f"the row of {transactional_id!r} is not what was written: is the id too long?")
        return row

    async def begin(self) -> AsyncSqlTransaction:
        connection: AsyncConnection | None = None
        mark = secrets.token_hex(MARK_BYTES)
        try:  # nothing comes between the connection and what gives it back
            connection = await self._begun()
            if connection.dialect.name == "postgresql":
                await _mark(connection, mark)
            txn = AsyncSqlTransaction(self, connection, mark)
            await txn.listen()
            return txn
        except BaseException:
            if connection is not None:
                await connection.close()
            raise

    async def begin_briefly(self) -> AsyncSqlTransaction:
        """As `begin`, with the claim's limit on waits for locks."""
        txn = await self.begin()
        try:
            for statement in sql_table.briefly(txn.connection.dialect.name):
                await txn.connection.execute(statement)
            return txn
        except BaseException:
            await txn.rollback()
            raise

    async def read_state(self, transactional_id: str) -> StoredState | None:
        async with self._engine.connect() as connection:
            return await self._read(connection, transactional_id)

    async def transactional_ids(self) -> Iterable[str]:
        async with self._engine.connect() as connection:
            return (await connection.execute(self.tables.ids())).scalars().all()

    async def read_offsets(self, group: str) -> Mapping[TopicPartition, int]:
        async with self._engine.connect() as connection:
            found = (await connection.execute(self.tables.read_offsets(group))).mappings()
            return sql_table.offsets_of(cast(Iterable[Mapping[str, Any]], found))

    async def close(self) -> None:
        """The engine is the caller's."""

    def new_session(self, bind: AsyncConnection) -> AsyncSession:
        return self._session_factory(bind=bind, join_transaction_mode="rollback_only")

    async def _read(self, connection: AsyncConnection, transactional_id: str) -> StoredState | None:
        found = (await connection.execute(self.tables.read(transactional_id))).mappings().first()
        return None if found is None else from_columns(cast(Mapping[str, object], found))

    async def _begun(self, *, claiming: bool = False) -> AsyncConnection:
        """A connection that was asked what it promises, in a transaction."""
        connection: AsyncConnection | None = None
        try:
            connection = await self._engine.connect()
            dialect = connection.dialect.name
            await connection.run_sync(sql_table.check_durable, self.allowed)
            if claiming and dialect != "sqlite":
                await connection.execution_options(isolation_level="READ COMMITTED")
            await connection.begin()
            for statement in sql_table.first_statements(dialect, claiming=claiming):
                await connection.execute(statement)
            return connection
        except BaseException:
            if connection is not None:
                await connection.close()
            raise


def _sync(connection: AsyncConnection) -> Connection:
    sync = connection.sync_connection
    check(sync is not None, "a connection that was begun")
    assert sync is not None
    return sync


def _after_commit(session: Session) -> None:
    session.dispatch.after_commit(session)


async def _mark(connection: AsyncConnection, mark: str) -> None:
    """Mark the transaction. psycopg sends BEGIN and this in one message; asyncpg in two."""
    marking = sql_table.marking(mark)
    driver = cast(Any, (await connection.get_raw_connection()).driver_connection)
    if not sql_table.has_pipeline(driver):
        await connection.exec_driver_sql(marking)
        return
    dbapi = connection.dialect.loaded_dbapi
    try:
        async with driver.pipeline():
            await driver.execute(marking)
    except dbapi.Error as exc:
        raise sql_table.not_begun(_sync(connection), exc) from exc
