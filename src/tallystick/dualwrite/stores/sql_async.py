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

from sqlalchemy import Connection, CursorResult, MetaData, event
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from tallystick.dualwrite.errors import BadStore, CommitUnknown, Fenced, NotYours
from tallystick.dualwrite.model import StoredState, from_columns
from tallystick.dualwrite.stores import sql_table
from tallystick.dualwrite.stores.base import OffsetMoved
from tallystick.dualwrite.stores.sql_table import Tables
from tallystick.kernel.ids import TopicPartition

_log = logging.getLogger(__name__)

OWNER_BYTES: Final = 16
_OURS: Final = "the writer commits and rolls back; inside its block use begin_nested() for a savepoint"


class AsyncSqlTransaction:
    """A database transaction on a connection of its own: `session` and `connection` are the same one."""

    def __init__(self, store: "AsyncSqlStore", connection: AsyncConnection) -> None:
        self._store = store
        self._connection = connection
        self._root = connection.get_transaction()
        self._session: AsyncSession | None = None
        self._committing = False
        event.listen(connection.sync_connection, "commit", self._check_ours)

    @property
    def connection(self) -> AsyncConnection:
        """Where statements are executed."""
        return self._connection

    @property
    def session(self) -> AsyncSession:
        """An ORM session on the same connection and in the same transaction."""
        if self._session is None:
            self._session = self._store.new_session(bind=self._connection)
            event.listen(self._session.sync_session, "before_commit", self._check_session)
        return self._session

    @property
    def handle(self) -> AsyncSession:
        return self.session

    async def record(self, row: StoredState) -> None:
        await self._check_open()
        dialect = self._connection.dialect.name
        replaced = self._store.tables.record(dialect)
        result = await self._connection.execute(replaced, sql_table.to_record(row))
        if dialect == "postgresql":
            answers = result.scalars().all()
            found = len(answers)
            if found and not self._store.allow_unsafe_durability:
                sql_table.judge_postgresql(str(answers[0]))
        else:
            found = cast(CursorResult[Any], result).rowcount
        if found != 1:
            raise Fenced(row.transactional_id, row.owner)

    async def move_offsets(self, group: str, moved: Mapping[TopicPartition, OffsetMoved]) -> None:
        await self._check_open()
        for at in sorted(moved, key=str):  # in one order everywhere: no deadlock
            try:
                done = await self._connection.execute(self._store.tables.move_offset(group, at, moved[at]))
            except IntegrityError as exc:
                raise Fenced(f"{group} {at}", str(moved[at].before)) from exc
            if cast(CursorResult[Any], done).rowcount != 1:
                raise Fenced(f"{group} {at}", str(moved[at].before))

    async def commit(self) -> None:
        await self._check_open()
        assert self._root is not None
        self._committing = True
        try:
            await self._root.commit()
        except Exception as exc:
            if sql_table.certainly_not_committed(exc):
                raise
            if not isinstance(exc, DBAPIError):
                await self._connection.invalidate()
            raise CommitUnknown(sql_table.told_of(exc)) from exc
        except BaseException:
            await self._connection.invalidate()
            raise
        try:
            await self._close()
        except Exception:
            _log.warning("a session failed after its transaction was committed", exc_info=True)

    async def rollback(self) -> None:
        await self._close()

    async def _close(self) -> None:
        """Whatever was not committed is rolled back with the connection's return to the pool."""
        try:
            if self._session is not None:
                await self._session.close()
        finally:
            if not self._connection.closed:
                event.remove(self._connection.sync_connection, "commit", self._check_ours)
                await self._connection.close()

    async def _check_open(self) -> None:
        """Raises: NotYours if somebody else has ended the transaction."""
        if self._session is not None:
            await self._session.flush()
        if self._root is None or not self._root.is_active:
            raise NotYours(f"the database transaction was ended inside the block: {_OURS}")

    def _check_ours(self, _: Connection) -> None:
        if not self._committing:
            raise NotYours(f"connection.commit(): {_OURS}")

    def _check_session(self, session: Session) -> None:
        if not session.in_nested_transaction():
            raise NotYours(f"session.commit(): {_OURS}")


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
        allow_unsafe_durability: bool = False,
    ) -> None:
        """Connects to nothing yet.

        Args:
            metadata: where the tables are declared, for tools that compare it with the database.
            schema: the database schema of the tables; None for the connection's own.
            session_factory: makes `txn.session`: an AsyncSession class or an async_sessionmaker.
            allow_unsafe_durability: go on although a crash of the database may take back what it committed.
        """
        self.tables = Tables(metadata, schema=schema)
        self.allow_unsafe_durability = allow_unsafe_durability
        self._engine = engine
        self._session_factory = session_factory

    async def create(self) -> None:
        """Make the tables if they are not there. Raises: BadStore for tables of another version."""
        async with self._engine.begin() as connection:
            await connection.run_sync(self.tables.create)

    async def claim(self, transactional_id: str) -> StoredState:
        fresh = StoredState(transactional_id=transactional_id, owner=secrets.token_hex(OWNER_BYTES))
        connection = await self._begun(claiming=True)
        try:
            await connection.execute(self.tables.claim(fresh, connection.dialect.name))
            row = await self._read(connection, transactional_id)
            await connection.commit()
        except DBAPIError as exc:
            if sql_table.is_missing_table(exc):
                raise BadStore(f"{exc.orig}; AsyncSqlStore.create() makes the tables") from exc
            raise
        finally:
            await connection.close()
        if row is None or row.owner != fresh.owner:
            raise BadStore(f"the row of {transactional_id!r} is not what was written: is the id too long?")
        return row

    async def begin(self) -> AsyncSqlTransaction:
        return AsyncSqlTransaction(self, await self._begun())

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
        connection = await self._engine.connect()
        dialect = connection.dialect.name
        try:
            if not self.allow_unsafe_durability:
                await connection.run_sync(sql_table.check_durable)
            if claiming and dialect != "sqlite":
                await connection.execution_options(isolation_level="READ COMMITTED")
            await connection.begin()
            for statement in sql_table.first_statements(dialect, claiming=claiming):
                await connection.execute(statement)
        except BaseException:
            await connection.close()
            raise
        return connection
