"""SqlStore: PostgreSQL (psycopg 3), MariaDB and MySQL (PyMySQL), SQLite, through SQLAlchemy 2."""

import logging
import secrets
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, cast

from sqlalchemy import Connection, CursorResult, Engine, MetaData, event
from sqlalchemy.exc import DBAPIError, IntegrityError
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


class SqlTransaction:
    """A database transaction on a connection of its own: `session` and `connection` are the same one."""

    def __init__(self, store: "SqlStore", connection: Connection) -> None:
        self._store = store
        self._connection = connection
        self._root = connection.get_transaction()
        self._session: Session | None = None
        self._committing = False
        event.listen(connection, "commit", self._check_ours)

    @property
    def connection(self) -> Connection:
        """Where statements are executed."""
        return self._connection

    @property
    def session(self) -> Session:
        """An ORM session on the same connection and in the same transaction."""
        if self._session is None:
            self._session = self._store.new_session(bind=self._connection)
            event.listen(self._session, "before_commit", self._check_session)
        return self._session

    @property
    def handle(self) -> Session:
        return self.session

    def record(self, row: StoredState) -> None:
        self._check_open()
        dialect = self._connection.dialect.name
        replaced = self._store.tables.record(dialect)
        result = self._connection.execute(replaced, sql_table.to_record(row))
        if dialect == "postgresql":
            answers = result.scalars().all()
            found = len(answers)
            if found and not self._store.allow_unsafe_durability:
                sql_table.judge_postgresql(str(answers[0]))
        else:
            found = cast(CursorResult[Any], result).rowcount
        if found != 1:
            raise Fenced(row.transactional_id, row.owner)

    def move_offsets(self, group: str, moved: Mapping[TopicPartition, OffsetMoved]) -> None:
        self._check_open()
        for at in sorted(moved, key=str):  # in one order everywhere: no deadlock
            try:
                done = self._connection.execute(self._store.tables.move_offset(group, at, moved[at]))
            except IntegrityError as exc:
                raise Fenced(f"{group} {at}", str(moved[at].before)) from exc
            if cast(CursorResult[Any], done).rowcount != 1:
                raise Fenced(f"{group} {at}", str(moved[at].before))

    def commit(self) -> None:
        self._check_open()
        assert self._root is not None
        self._committing = True
        try:
            self._root.commit()
        except Exception as exc:
            if sql_table.certainly_not_committed(exc):
                raise
            if not isinstance(exc, DBAPIError):  # not the driver's: a time limit's, out of a signal's handler
                self._connection.invalidate()
            raise CommitUnknown(sql_table.told_of(exc)) from exc
        except BaseException:  # Ctrl-C between COMMIT and its answer: nothing that follows could be trusted
            self._connection.invalidate()
            raise
        try:
            self._close()
        except Exception:
            _log.warning("a session failed after its transaction was committed", exc_info=True)

    def rollback(self) -> None:
        self._close()

    def _close(self) -> None:
        """Whatever was not committed is rolled back with the connection's return to the pool."""
        try:
            if self._session is not None:
                self._session.close()
        finally:
            if not self._connection.closed:
                event.remove(self._connection, "commit", self._check_ours)
                self._connection.close()

    def _check_open(self) -> None:
        """Raises: NotYours if somebody else has ended the transaction."""
        if self._session is not None:
            self._session.flush()
        if self._root is None or not self._root.is_active:
            raise NotYours(f"the database transaction was ended inside the block: {_OURS}")

    def _check_ours(self, _: Connection) -> None:
        if not self._committing:
            raise NotYours(f"connection.commit(): {_OURS}")

    def _check_session(self, session: Session) -> None:
        if not session.in_nested_transaction():
            raise NotYours(f"session.commit(): {_OURS}")


class SqlStore:
    """Rows in tables of an SQL database, beside the user's own.

        engine = create_engine("postgresql+psycopg://…")
        store = SqlStore(engine)
        store.create()

    Each transaction takes a connection from the engine's pool. The engine stays the caller's.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        metadata: MetaData | None = None,
        schema: str | None = None,
        session_factory: Callable[..., Session] = Session,
        allow_unsafe_durability: bool = False,
    ) -> None:
        """Connects to nothing yet.

        Args:
            metadata: where the tables are declared, for tools that compare it with the database.
            schema: the database schema of the tables; None for the connection's own.
            session_factory: makes `txn.session`: a Session class or a sessionmaker of the user's.
            allow_unsafe_durability: go on although a crash of the database may take back what it committed.
        """
        self.tables = Tables(metadata, schema=schema)
        self.allow_unsafe_durability = allow_unsafe_durability
        self._engine = engine
        self._session_factory = session_factory

    def create(self) -> None:
        """Make the tables if they are not there. Raises: BadStore for tables of another version."""
        with self._engine.begin() as connection:
            self.tables.create(connection)

    def claim(self, transactional_id: str) -> StoredState:
        fresh = StoredState(transactional_id=transactional_id, owner=secrets.token_hex(OWNER_BYTES))
        dialect = self._engine.dialect.name
        connection = self._begun(claiming=True)
        try:
            with connection:
                try:
                    connection.execute(self.tables.claim(fresh, dialect))
                except DBAPIError as exc:
                    if sql_table.is_missing_table(exc):
                        raise BadStore(f"{exc.orig}; SqlStore.create() makes the tables") from exc
                    raise
                row = self._read(connection, transactional_id)
                connection.commit()
        finally:
            connection.close()
        if row is None or row.owner != fresh.owner:
            raise BadStore(f"the row of {transactional_id!r} is not what was written: is the id too long?")
        return row

    def begin(self) -> SqlTransaction:
        return SqlTransaction(self, self._begun())

    def read_state(self, transactional_id: str) -> StoredState | None:
        with self._engine.connect() as connection:
            return self._read(connection, transactional_id)

    def transactional_ids(self) -> Iterable[str]:
        with self._engine.connect() as connection:
            return connection.execute(self.tables.ids()).scalars().all()

    def read_offsets(self, group: str) -> Mapping[TopicPartition, int]:
        with self._engine.connect() as connection:
            found = connection.execute(self.tables.read_offsets(group)).mappings()
            return sql_table.offsets_of(cast(Iterable[Mapping[str, Any]], found))

    def close(self) -> None:
        """The engine is the caller's."""

    def new_session(self, bind: Connection) -> Session:
        return self._session_factory(bind=bind, join_transaction_mode="rollback_only")

    def _read(self, connection: Connection, transactional_id: str) -> StoredState | None:
        found = connection.execute(self.tables.read(transactional_id)).mappings().first()
        return None if found is None else from_columns(cast(Mapping[str, object], found))

    def _begun(self, *, claiming: bool = False) -> Connection:
        """A connection that was asked what it promises, in a transaction."""
        connection = self._engine.connect()
        dialect = connection.dialect.name
        try:
            if not self.allow_unsafe_durability:
                sql_table.check_durable(connection)
            if claiming and dialect != "sqlite":
                connection.execution_options(isolation_level="READ COMMITTED")
            connection.begin()
            for statement in sql_table.first_statements(dialect, claiming=claiming):
                connection.execute(statement)
        except BaseException:
            connection.close()
            raise
        return connection
