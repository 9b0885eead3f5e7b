"""Asyncio store for PostgreSQL (asyncpg, psycopg 3), MariaDB and MySQL (asyncmy) and SQLite (aiosqlite).

Tables, statements, checks and rows are those of SqlStore, so blocking and asyncio writers may take over an id
from each other. The difference is cancellation: a task cancelled in its COMMIT has sent it, so its connection
is discarded, and a claim determines the outcome of the commit.

Source: SQLAlchemy 2, "Asynchronous I/O (asyncio)".
"""

import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Concatenate, Final, ParamSpec, cast

from sqlalchemy import CursorResult, MetaData
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from tallystick.dualwrite.errors import (
    BadStore,
    CommitUnknown,
    Fenced,
    NotCommitted,
    NotYours,
)
from tallystick.dualwrite.model import StoredState, from_columns
from tallystick.dualwrite.rules.idempotency import IdempotencyKey
from tallystick.dualwrite.rules.lease_rules import LeaseList, LeaseTaking
from tallystick.dualwrite.stores import lease_table, sql_one_message, sql_table
from tallystick.dualwrite.stores.base import OffsetAdvance, check_key_row, select_keys
from tallystick.dualwrite.stores.commit_message_async import AsyncCommitMessage
from tallystick.dualwrite.stores.durability import AllowUnsafe, parse_allowed
from tallystick.dualwrite.stores.idempotency_table import IdempotencyTable
from tallystick.dualwrite.stores.lease_table import LeaseTable
from tallystick.dualwrite.stores.refusals import TRANSACTION_ENDED_TEXT
from tallystick.dualwrite.stores.sql_calls import (
    call_with_connection_async,
    call_with_session_async,
    derive_guarded_engine_async,
    get_connection_async,
    get_driver_connection_async,
    get_session_async,
    roll_back_driver,
)
from tallystick.dualwrite.stores.sql_guard import WRITER_COMMITS_TEXT, TransactionGuard
from tallystick.dualwrite.stores.sql_table import DualWriteTables
from tallystick.kernel.check import require
from tallystick.kernel.ids import TopicPartition

A = ParamSpec("A")

_log = logging.getLogger(__name__)

OWNER_BYTES: Final = 16
MARK_BYTES: Final = 8


class AsyncSqlTransaction:
    """A transaction on a connection of its own, shared by `session` and `connection`."""

    def __init__(self, store: "AsyncSqlStore", connection: AsyncConnection, mark: str) -> None:
        self._store = store
        self._mark = mark
        self._connection = connection
        self._root = connection.get_transaction()
        self._session: AsyncSession | None = None
        self._guard = TransactionGuard(get_connection_async(connection))
        self._watched_driver: Any = None
        self._is_committed = False
        self._is_in_doubt = False
        self._commit_message = AsyncCommitMessage(
            connection, store.tables, store.commit_texts, store.allowed_risks, mark
        )

    async def watch_driver(self) -> None:
        """Listen to statements sent to the driver directly, if it reports them (asyncpg 0.29 does)."""
        driver = await get_driver_connection_async(self._connection)
        if hasattr(driver, "add_query_logger"):
            driver.add_query_logger(self._guard.on_driver_statement)
            self._watched_driver = driver

    @property
    def connection(self) -> AsyncConnection:
        """The SQLAlchemy connection of this transaction."""
        return self._connection

    @property
    def session(self) -> AsyncSession:
        """An ORM session on the same connection, in the same transaction."""
        if self._session is None:
            self._session = self._store.new_session(bind=self._connection)
            self._guard.watch(get_session_async(self._session))
        return self._session

    @property
    def handle(self) -> AsyncSession:
        return self.session

    def sent(self) -> None:
        """Count a record sent to Kafka."""
        self._guard.count_sent()

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[Callable[[], Awaitable[None]]]:
        """Begin a savepoint of the session, for all rows of the connection. The value flushes the session.

        It ends through the session, which so knows what has become of its objects, and drops what is not
        flushed if the block raises: a later flush would write it [DW-2].
        """
        await self._check_open()  # what was added before the block is not in it
        async with self.session.begin_nested():
            await self.session.connection()  # SQLAlchemy sends SAVEPOINT only when the session is used
            yield self._check_open

    async def flush(self) -> None:
        """Flush the session and run its hooks at the end of the block, while records can still be sent."""
        await self._check_open()
        if self._session is not None:
            await call_with_session_async(self._session, self._guard.flush)

    async def record(self, row: StoredState, before: StoredState | None = None) -> None:
        await self._check_open()
        self._guard.check_savepoints()
        dialect = self._connection.dialect.name
        tables, values = self._store.tables, sql_table.record_parameters(row, before, dialect, self._mark)
        replaced = tables.record(dialect, compares=before is not None)
        result = await self._connection.execute(replaced, values)
        if dialect == "postgresql":
            count = sql_table.count_recorded(result.all(), self._store.allowed_risks)
        else:
            count = cast(CursorResult[Any], result).rowcount
        if count != 1:
            await self._check_mark(dialect)
            result = await self._connection.execute(tables.read_locked(row.transactional_id))
            now = result.mappings().first()
            sql_table.raise_not_recorded(cast("Mapping[str, object] | None", now), row, before)

    async def record_at_commit(self, row: StoredState, before: StoredState) -> None:
        """Record as part of `commit`, in one message with COMMIT, where the driver can; else at once.

        Raises: as `record`, or `commit` raises NotCommitted with that as its cause.
        """
        if not await self._commit_message.is_possible():
            await self.record(row, before)
            return
        await self._check_open()
        self._guard.check_savepoints()
        self._commit_message.add(row, before)

    async def move_offsets(self, group: str, moved: Mapping[TopicPartition, OffsetAdvance]) -> None:
        await self._check_open()
        dialect = self._connection.dialect.name
        if self._connection.dialect.driver == "asyncpg":  # it does not begin another transaction by itself
            await self._check_mark(dialect)
        for at in sorted(moved, key=str):  # the same order everywhere prevents deadlocks
            statement = self._store.tables.move_offset(group, at, moved[at], dialect)
            try:
                result = await self._connection.execute(statement)
            except IntegrityError as exc:
                raise Fenced(f"{group} {at}", str(moved[at].before)) from exc
            if dialect == "postgresql":
                marks = result.scalars().all()
                for mark in marks:
                    sql_table.check_mark(mark, self._mark)
                count = len(marks)
            else:
                count = cast(CursorResult[Any], result).rowcount
            if count != 1:
                raise Fenced(f"{group} {at}", str(moved[at].before))

    async def claim_key(self, key: IdempotencyKey) -> str | None:
        """Insert an idempotency key, after any other transaction that has inserted it.

        Returns: None if the key is this transaction's; the stored result if it was there.
        Raises: BadStore if the table is missing; BadRow; a conflict, after which this transaction is lost.
        """
        await self._check_open()
        dialect, keys = self._connection.dialect.name, self._store.keys
        try:
            inserting = keys.claim(key, self._mark, dialect).execution_options(preserve_rowcount=True)
            result = cast(CursorResult[Any], await self._connection.execute(inserting))
            if result.rowcount == 1 and dialect not in sql_table.MYSQL:
                return None
            claim_row = (await self._connection.execute(keys.read_claim(key, dialect))).first()
        except DBAPIError as exc:
            if sql_table.is_missing_table(exc):
                raise BadStore(f"{exc.orig}; AsyncSqlStore.create() makes the tables") from exc
            raise
        return check_key_row(key, self._mark, claim_row)

    async def store_result(self, key: IdempotencyKey, text: str) -> None:
        """Store the result of the work with the key that `claim_key` has inserted."""
        await self._check_open()
        dialect = self._connection.dialect.name
        await self._check_mark(dialect)
        await self._connection.execute(self._store.keys.store_result(key, self._mark, text))

    async def commit(self) -> None:
        try:
            await self._check_open()
            await _release_mark(self._connection)
        except Exception as exc:  # COMMIT was not sent
            raise NotCommitted(exc) from exc
        root = require(self._root, "a transaction that is open has its root")
        self._guard.is_ending = self._is_in_doubt = True
        try:
            if self._commit_message.has_records:
                await self._commit_message.send()
            await root.commit()  # sends nothing after that
        except NotCommitted:
            self._is_in_doubt = False
            raise
        except Exception as exc:
            if sql_table.is_certainly_not_committed(exc):
                self._is_in_doubt = False
                raise NotCommitted(exc) from exc
            if not isinstance(exc, DBAPIError):  # not from the driver: a timeout raised by a signal handler
                await self._connection.invalidate()
            raise CommitUnknown(sql_table.describe_driver_error(exc)) from exc
        except BaseException:  # Ctrl-C between COMMIT and its answer: later answers cannot be trusted
            await self._connection.invalidate()
            raise
        self._is_committed = True
        if self._session is not None:
            await _run_hooks(self._session, _after_commit)
        try:
            await self._close()
        except Exception:
            _log.warning("a session failed after its transaction was committed", exc_info=True)

    async def rollback(self) -> None:
        """Roll back through the session, which returns its objects to what they were [DW-27]."""
        session = self._session
        try:
            if session is not None and not (self._is_committed or self._is_in_doubt):
                await _roll_back_session(session)
        finally:
            await self._close()

    def abandon(self) -> None:
        """Detach the connection in a forked child, where it must be neither used nor closed."""
        get_connection_async(self._connection).detach()

    async def _close(self) -> None:
        """Close the session and connection; the pool rolls back anything uncommitted."""
        try:
            if self._session is not None:
                await call_with_session_async(self._session, self._guard.close, is_kept=self._is_committed)
        finally:
            listened, self._watched_driver = self._watched_driver, None
            if listened is not None:
                listened.remove_query_logger(self._guard.on_driver_statement)
            if not self._connection.closed:
                self._guard.release()
                if not self._is_committed and not require(self._root, "begun").is_active:
                    await call_with_connection_async(self._connection, roll_back_driver)
                await self._connection.close()

    async def _check_open(self) -> None:
        """Raise NotYours if the block has ended the transaction."""
        if self._root is not None and self._root.is_active:
            self._guard.check_in_transaction()
        if self._session is not None:
            await self._session.flush()
        if self._root is None or not self._root.is_active:
            raise NotYours(f"the database transaction was ended inside the block: {WRITER_COMMITS_TEXT}")

    async def _check_mark(self, dialect: str) -> None:
        if dialect == "postgresql":
            result = await self._connection.execute(sql_table.select_mark())
            sql_table.check_mark(result.scalar_one(), self._mark)


class AsyncSqlStore:
    """An asyncio store in tables of an SQL database, beside the user's own.

        engine = create_async_engine("postgresql+asyncpg://…")
        store = AsyncSqlStore(engine)
        await store.create()

    Each transaction takes a connection from the engine's pool. The caller keeps ownership of the engine.
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
        """Configure the store without connecting.

        Args:
            metadata: MetaData in which the tables are declared, for migration tools.
            schema: database schema of the tables; None for the connection's default.
            session_factory: creates `txn.session`: an AsyncSession class or an async_sessionmaker.
            allow_unsafe_durability: names of settings that are accepted although a crash of the database may
                lose commits; True skips all durability checks.
        Raises: ValueError for an unknown setting name.
        """
        metadata = MetaData() if metadata is None else metadata
        self.tables = DualWriteTables(metadata, schema=schema)
        self.lease_table = LeaseTable(self.tables)
        self.keys = IdempotencyTable(metadata, schema=schema)
        self.allowed_risks = parse_allowed(allow_unsafe_durability)
        record = self.tables.record("postgresql", compares=True)
        self.commit_texts = sql_one_message.CommitTexts(record, self.allowed_risks)
        self._engine = derive_guarded_engine_async(engine)
        self._session_factory = session_factory

    @property
    def database_system(self) -> str:
        """Name of the database, as OpenTelemetry writes it: postgresql, mariadb, mysql or sqlite."""
        return self._engine.dialect.name

    async def create(self) -> None:
        """Create the tables if missing. Raises: BadStore for tables of another version."""
        async with self._engine.begin() as connection:
            await call_with_connection_async(connection, self.tables.create)
            await call_with_connection_async(connection, self.lease_table.create)
            await call_with_connection_async(connection, sql_table.create_table, self.keys.keys)

    async def claim(self, transactional_id: str) -> StoredState:
        return await self._claim(transactional_id)

    async def claim_leased(self, transactional_id: str, holder: str) -> StoredState:
        return await self._claim(transactional_id, holder)

    async def _claim(self, transactional_id: str, holder: str | None = None) -> StoredState:
        new_row = StoredState(transactional_id=transactional_id, owner=secrets.token_hex(OWNER_BYTES))
        async with self._claiming() as connection:
            await connection.execute(self.tables.claim(new_row, connection.dialect.name))
            row = await self._read_row(connection, transactional_id)
            if holder is not None:
                result = await connection.execute(self.lease_table.read_holder_locked(transactional_id))
                lease_table.check_holder(transactional_id, holder, result.first())
            await connection.commit()
        if row is None or row.owner != new_row.owner:
            raise BadStore(f"the row of {transactional_id!r} is not what was written: is the id too long?")
        return row

    @asynccontextmanager
    async def _claiming(self) -> AsyncIterator[AsyncConnection]:
        """Begin a transaction that limits waits for locks. The block commits it, or it is rolled back."""
        connection: AsyncConnection | None = None
        try:
            connection = await self._connect_and_begin(claiming=True)
            yield connection
        except DBAPIError as exc:
            if sql_table.is_missing_table(exc):
                raise BadStore(f"{exc.orig}; AsyncSqlStore.create() makes the tables") from exc
            raise
        finally:
            if connection is not None:
                await connection.close()

    async def read_leases(self, base: str | None = None) -> LeaseList:
        try:
            async with self._engine.connect() as connection:
                now = await connection.execute(self.lease_table.read_now(connection.dialect.name))
                now_ms = now.scalar_one()
                rows = (await connection.execute(self.lease_table.read(base))).mappings().all()
        except DBAPIError as exc:
            if sql_table.is_missing_table(exc):
                raise BadStore(f"{exc.orig}; AsyncSqlStore.create() makes the tables") from exc
            raise
        return lease_table.leases_from_rows(now_ms, cast(Iterable[Mapping[str, Any]], rows))

    async def take_lease(self, taking: LeaseTaking) -> bool:
        try:
            async with self._claiming() as connection:
                result = await connection.execute(self.lease_table.take(taking, connection.dialect.name))
                await connection.commit()
                return taking.former is None or cast(CursorResult[Any], result).rowcount == 1
        except IntegrityError:  # another process has inserted this number
            return False

    async def renew_leases(self, ids: Iterable[str], holder: str, duration_ms: int) -> frozenset[str]:
        async with self._claiming() as connection:
            dialect = connection.dialect.name
            await connection.execute(self.lease_table.renew(ids, holder, duration_ms, dialect))
            held = (await connection.execute(self.lease_table.read_held(holder))).scalars().all()
            await connection.commit()
            return frozenset(held)

    async def release_lease(self, transactional_id: str, holder: str) -> None:
        async with self._claiming() as connection:
            await connection.execute(self.lease_table.release(transactional_id, holder))
            await connection.commit()

    async def begin(self) -> AsyncSqlTransaction:
        connection: AsyncConnection | None = None
        mark = secrets.token_hex(MARK_BYTES)
        try:  # no gap between taking the connection and the handler that releases it
            connection = await self._connect_and_begin()
            if connection.dialect.name == "postgresql":
                await _set_mark(connection, mark)
            txn = AsyncSqlTransaction(self, connection, mark)
            await txn.watch_driver()
            return txn
        except BaseException:
            if connection is not None:
                await connection.close()
            raise

    async def begin_briefly(self) -> AsyncSqlTransaction:
        """Begin like `begin`, with the claim's limit on lock waits."""
        txn = await self.begin()
        try:
            for statement in sql_table.lock_limit_statements(txn.connection.dialect.name):
                await txn.connection.execute(statement)
            return txn
        except BaseException:
            await txn.rollback()
            raise

    async def read_state(self, transactional_id: str) -> StoredState | None:
        async with self._engine.connect() as connection:
            return await self._read_row(connection, transactional_id)

    async def transactional_ids(self) -> Iterable[str]:
        async with self._engine.connect() as connection:
            return (await connection.execute(self.tables.ids())).scalars().all()

    async def read_offsets(self, group: str) -> Mapping[TopicPartition, int]:
        async with self._engine.connect() as connection:
            rows = (await connection.execute(self.tables.read_offsets(group))).mappings()
            return sql_table.offsets_from_rows(cast(Iterable[Mapping[str, Any]], rows))

    async def find_idempotency_keys(self, row: StoredState) -> Sequence[IdempotencyKey]:
        async with self._engine.connect() as connection:
            stored = await connection.execute(self.keys.find(row))
            return select_keys(row, cast(Sequence[Sequence[Any]], stored.all()))

    async def forget_idempotency_keys(self, older_than_ms: int) -> int:
        """Delete the keys that were inserted before that many milliseconds ago, by the database's clock.

        A call with a forgotten key does its work again. The table has no index on the time: one call reads
        all of it.
        Returns: the number of keys deleted.
        """
        connection = await self._connect_and_begin(claiming=True)
        try:
            result = await connection.execute(self.keys.forget(older_than_ms, connection.dialect.name))
            await connection.commit()
            return cast(CursorResult[Any], result).rowcount
        finally:
            await connection.close()

    async def close(self) -> None:
        """Do nothing: the caller owns the engine."""

    def new_session(self, bind: AsyncConnection) -> AsyncSession:
        return self._session_factory(bind=bind, join_transaction_mode="rollback_only")

    async def _read_row(self, connection: AsyncConnection, transactional_id: str) -> StoredState | None:
        row = (await connection.execute(self.tables.read(transactional_id))).mappings().first()
        return None if row is None else from_columns(cast(Mapping[str, object], row))

    async def _connect_and_begin(self, *, claiming: bool = False) -> AsyncConnection:
        """Return a connection that passed the durability checks, in a transaction."""
        connection: AsyncConnection | None = None
        try:
            connection = await self._engine.connect()
            dialect = connection.dialect.name
            await call_with_connection_async(connection, sql_table.check_durable, self.allowed_risks)
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


async def _run_hooks(
    session: AsyncSession,
    dispatch: Callable[Concatenate[Session, A], None],
    *args: A.args,
    **kwargs: A.kwargs,
) -> None:
    """Run the hooks of a session that has ended. An error of one can change nothing any more."""
    try:
        await call_with_session_async(session, dispatch, *args, **kwargs)
    except Exception:
        _log.warning("a hook of a session failed after its transaction had ended", exc_info=True)


def _after_commit(session: Session) -> None:
    session.dispatch.after_commit(session)


async def _roll_back_session(session: AsyncSession) -> None:
    """Roll back a session. An error of its hooks, or of a lost connection, changes nothing any more."""
    while session.in_transaction():  # a hook of a savepoint that raises leaves the transaction around it
        try:
            await session.rollback()
        except Exception:
            _log.warning("a hook of a session failed after its transaction had ended", exc_info=True)


async def _release_mark(connection: AsyncConnection) -> None:
    """Raise NotYours if the transaction is not the one that was begun [DW-11]."""
    releasing = sql_table.unmark_statement(connection.dialect.name)
    if releasing is None:
        return
    try:
        await connection.execute(releasing)
    except DBAPIError as exc:
        if sql_table.is_mark_missing(exc):
            raise NotYours(TRANSACTION_ENDED_TEXT) from exc
        raise


async def _set_mark(connection: AsyncConnection, mark: str) -> None:
    """Mark the transaction. psycopg sends BEGIN and the mark in one message, asyncpg in two."""
    marking, driver = sql_table.mark_statement(mark), await get_driver_connection_async(connection)
    dbapi: Any = connection.dialect.loaded_dbapi
    if not sql_one_message.can_begin_in_one(driver, dbapi):
        await connection.exec_driver_sql(marking)
        return
    try:
        async with driver.lock:
            driver.pgconn.send_query(sql_one_message.build_begin(driver, marking))
            results = await driver.wait(dbapi.generators.execute(driver.pgconn))
        sql_one_message.check_begun(results, dbapi)
    except dbapi.Error as exc:
        raise sql_table.begin_error(get_connection_async(connection), exc) from exc
