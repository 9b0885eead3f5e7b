# Generated from dualwrite/stores/sql_async.py by tools/async_to_sync.py. Do not edit it:
# change the source and run `make format`.
"""Store for PostgreSQL, MariaDB and MySQL (PyMySQL) and SQLite, through SQLAlchemy 2."""

import logging
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Concatenate, Final, ParamSpec, cast

from sqlalchemy import Connection, CursorResult, Engine, MetaData, Table
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import Session

from tallystick.dualwrite.errors import (
    BadStore,
    CommitUnknown,
    ManagedByWriter,
    NotCommitted,
    WriterFenced,
)
from tallystick.dualwrite.rules.idempotency import IdempotencyKey
from tallystick.dualwrite.rules.leases import LeaseList, LeaseTaking
from tallystick.dualwrite.rules.model import StoredState, from_columns
from tallystick.dualwrite.stores import lease_table, sql_table
from tallystick.dualwrite.stores.base import OffsetAdvance, check_key_row, select_keys
from tallystick.dualwrite.stores.durability import AllowUnsafe, parse_allowed
from tallystick.dualwrite.stores.idempotency_table import IdempotencyTable
from tallystick.dualwrite.stores.lease_table import LeaseTable
from tallystick.dualwrite.stores.sql_calls import (
    call_with_connection,
    call_with_session,
    derive_guarded_engine,
    get_connection,
    get_driver_connection,
    get_engine,
    get_session,
    roll_back_driver,
)
from tallystick.dualwrite.stores.sql_forks import PoolAcrossForks
from tallystick.dualwrite.stores.sql_guard import WRITER_COMMITS_TEXT, TransactionGuard
from tallystick.dualwrite.stores.sql_places import TablePlaces
from tallystick.dualwrite.stores.sql_table import DualWriteTables
from tallystick.kernel.check import require
from tallystick.kernel.ids import TopicPartition

A = ParamSpec("A")

_log = logging.getLogger(__name__)

OWNER_BYTES: Final = 16
MARK_BYTES: Final = 8


class SqlTransaction:
    """A transaction on a connection of its own, shared by `session` and `connection`."""

    def __init__(self, store: "SqlStore", connection: Connection, mark: str, places: TablePlaces) -> None:
        self._store = store
        self._places = places
        self._mark = mark
        self._connection = connection
        self._root = connection.get_transaction()
        self._session: Session | None = None
        self._guard = TransactionGuard(get_connection(connection))
        self._watched_driver: Any = None
        self._is_committed = False
        self._is_in_doubt = False

    def watch_driver(self) -> None:
        """Listen to statements sent to the driver directly, if it reports them (asyncpg 0.29 does)."""
        driver = get_driver_connection(self._connection)
        if hasattr(driver, "add_query_logger"):
            driver.add_query_logger(self._guard.on_driver_statement)
            self._watched_driver = driver

    @property
    def connection(self) -> Connection:
        """The SQLAlchemy connection of this transaction."""
        return self._connection

    @property
    def session(self) -> Session:
        """An ORM session on the same connection, in the same transaction."""
        if self._session is None:
            self._session = self._store.new_session(bind=self._connection)
            self._guard.watch(get_session(self._session))
        return self._session

    @property
    def handle(self) -> Session:
        return self.session

    def sent(self) -> None:
        """Count a record sent to Kafka."""
        self._guard.count_sent()

    @contextmanager
    def savepoint(self) -> Iterator[Callable[[], None]]:
        """Begin a savepoint of the session, for all rows of the connection. The value flushes the session.

        It ends through the session, which so knows what has become of its objects, and drops what is not
        flushed if the block raises: a later flush would write it [DW-2].
        """
        self._check_open()  # what was added before the block is not in it
        with self.session.begin_nested():
            self.session.connection()  # SQLAlchemy sends SAVEPOINT only when the session is used
            yield self._check_open

    def flush(self) -> None:
        """Flush the session and run its hooks at the end of the block, while records can still be sent."""
        self._check_open()
        if self._session is not None:
            call_with_session(self._session, self._guard.flush)

    def record(self, row: StoredState, before: StoredState | None = None) -> None:
        self._check_open()
        self._guard.check_savepoints()
        dialect = self._connection.dialect.name
        tables, values = self._store.tables, sql_table.record_parameters(row, before, dialect, self._mark)
        replaced = tables.record(dialect, compares=before is not None)
        options = self._places.options(tables.states)
        result = self._connection.execute(replaced, values, execution_options=options)
        if dialect == "postgresql":
            count = sql_table.count_recorded(result.all(), self._store.allowed_risks)
        else:
            count = cast(CursorResult[Any], result).rowcount
        if count != 1:
            self._check_mark(dialect)
            reading = tables.read_locked(row.transactional_id)
            result = self._connection.execute(reading, execution_options=options)
            now = result.mappings().first()
            sql_table.raise_not_recorded(cast("Mapping[str, object] | None", now), row, before)

    def move_offsets(self, group: str, moved: Mapping[TopicPartition, OffsetAdvance]) -> None:
        self._check_open()
        dialect = self._connection.dialect.name
        if self._connection.dialect.driver == "asyncpg":  # it does not begin another transaction by itself
            self._check_mark(dialect)
        options = self._places.options(self._store.tables.offsets)
        for at in sorted(moved, key=str):  # the same order everywhere prevents deadlocks
            statement = self._store.tables.move_offset(group, at, moved[at], dialect)
            try:
                result = self._connection.execute(statement, execution_options=options)
            except IntegrityError as exc:
                raise WriterFenced(f"{group} {at}", str(moved[at].before)) from exc
            if dialect == "postgresql":
                marks = result.scalars().all()
                if any(mark != self._mark for mark in marks):
                    raise self._guard.build_ended_error()
                count = len(marks)
            else:
                count = cast(CursorResult[Any], result).rowcount
            if count != 1:
                raise WriterFenced(f"{group} {at}", str(moved[at].before))

    def claim_key(self, key: IdempotencyKey) -> str | None:
        """Insert an idempotency key, after any other transaction that has inserted it.

        Returns: None if the key is this transaction's; the stored result if it was there.
        Raises: BadStore if the table is missing; CorruptRow; a conflict, after which this transaction is
            lost.
        """
        self._check_open()
        dialect, keys = self._connection.dialect.name, self._store.keys
        options = self._places.options(keys.keys)
        try:
            inserting = keys.claim(key, self._mark, dialect).execution_options(preserve_rowcount=True)
            inserted = self._connection.execute(inserting, execution_options=options)
            if cast(CursorResult[Any], inserted).rowcount == 1 and dialect not in sql_table.MYSQL:
                return None
            reading = keys.read_claim(key, dialect)
            claim_row = self._connection.execute(reading, execution_options=options).first()
        except DBAPIError as exc:
            if sql_table.is_missing_table(exc):
                raise BadStore(f"{exc.orig}; SqlStore.create() makes the tables") from exc
            raise
        return check_key_row(key, self._mark, claim_row)

    def store_result(self, key: IdempotencyKey, text: str) -> None:
        """Store the result of the work with the key that `claim_key` has inserted."""
        self._check_open()
        dialect = self._connection.dialect.name
        self._check_mark(dialect)
        keys = self._store.keys
        storing, options = keys.store_result(key, self._mark, text), self._places.options(keys.keys)
        self._connection.execute(storing, execution_options=options)

    def commit(self) -> None:
        try:
            self._check_open()
            self._release_mark()
        except Exception as exc:  # COMMIT was not sent
            raise NotCommitted(exc) from exc
        root = require(self._root, "a transaction that is open has its root")
        self._guard.is_ending = self._is_in_doubt = True
        try:
            root.commit()
        except Exception as exc:
            if sql_table.is_certainly_not_committed(exc):
                self._is_in_doubt = False
                raise NotCommitted(exc) from exc
            if not isinstance(exc, DBAPIError):  # not from the driver: a timeout raised by a signal handler
                self._connection.invalidate()
            raise CommitUnknown(sql_table.describe_driver_error(exc)) from exc
        except BaseException:  # Ctrl-C between COMMIT and its answer: later answers cannot be trusted
            self._connection.invalidate()
            raise
        self._is_committed = True
        if self._session is not None:
            _run_hooks(self._session, _after_commit)
        try:
            self._close()
        except Exception:
            _log.warning("a session failed after its transaction was committed", exc_info=True)

    def rollback(self) -> None:
        """Roll back through the session, which returns its objects to what they were [DW-27]."""
        session = self._session
        try:
            if session is not None and not (self._is_committed or self._is_in_doubt):
                _roll_back_session(session)
        finally:
            self._close()

    def abandon(self) -> None:
        """Detach the connection in a forked child, where it must be neither used nor closed."""
        get_connection(self._connection).detach()

    def _close(self) -> None:
        """Close the session and connection; the pool rolls back anything uncommitted.

        A connection whose block has ended the transaction may have other settings by now: it is dropped.
        """
        try:
            if self._session is not None:
                call_with_session(self._session, self._guard.close, is_kept=self._is_committed)
        finally:
            listened, self._watched_driver = self._watched_driver, None
            if listened is not None:
                listened.remove_query_logger(self._guard.on_driver_statement)
            if not self._connection.closed:
                self._guard.release()
                if self._guard.has_ended:
                    self._connection.invalidate()
                if not self._is_committed and not require(self._root, "begun").is_active:
                    call_with_connection(self._connection, roll_back_driver)
                self._connection.close()

    def _check_open(self) -> None:
        """Raise ManagedByWriter if the block has ended the transaction."""
        if self._root is not None and self._root.is_active:
            self._guard.check_in_transaction()
        if self._session is not None:
            self._session.flush()
        if self._root is None or not self._root.is_active:
            raise ManagedByWriter(
                f"the database transaction was ended inside the block: {WRITER_COMMITS_TEXT}"
            )

    def _check_mark(self, dialect: str) -> None:
        if dialect == "postgresql":
            result = self._connection.execute(sql_table.select_mark())
            if result.scalar_one() != self._mark:
                raise self._guard.build_ended_error()

    def _release_mark(self) -> None:
        """Raise ManagedByWriter if the transaction is not the one that was begun [DW-11]."""
        releasing = sql_table.unmark_statement(self._connection.dialect.name)
        if releasing is None:
            return
        try:
            self._connection.execute(releasing)
        except DBAPIError as exc:
            if sql_table.is_mark_missing(exc):
                raise self._guard.build_ended_error() from exc
            raise


class SqlStore:
    """A store in tables of an SQL database, next to the user's own.

        engine = create_engine("postgresql+psycopg://…")
        store = SqlStore(engine)
        store.create()

    Each transaction takes a connection from the engine's pool. The caller keeps ownership of the engine.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        metadata: MetaData | None = None,
        schema: str | None = None,
        session_factory: Callable[..., Session] = Session,
        allow_unsafe_durability: AllowUnsafe = False,
    ) -> None:
        """Configure the store without connecting.

        Args:
            metadata: MetaData in which the tables are declared, for migration tools.
            schema: database schema of the tables; None for the connection's default.
            session_factory: creates `txn.session`: a Session class or a sessionmaker.
            allow_unsafe_durability: names of settings that are accepted although a crash of the database may
                lose commits; True skips all durability checks.
        Raises: ValueError for an unknown setting name; BadStore for a driver that is not proved, or for a
            scoped_session.
        """
        sql_table.check_driver(get_engine(engine).dialect)
        sql_table.check_session_factory(session_factory)
        metadata = MetaData() if metadata is None else metadata
        self.tables = DualWriteTables(metadata, schema=schema)
        self.lease_table = LeaseTable(self.tables)
        self.keys = IdempotencyTable(metadata, schema=schema)
        self.allowed_risks = parse_allowed(allow_unsafe_durability)
        self._engine = derive_guarded_engine(engine)
        self._pool = PoolAcrossForks(get_engine(self._engine))
        self._places = TablePlaces.of_engine(get_engine(engine), _list_tables(self))
        self._session_factory = session_factory

    @property
    def database_system(self) -> str:
        """Name of the database, as OpenTelemetry writes it: postgresql, mariadb, mysql or sqlite."""
        return self._engine.dialect.name

    def create(self) -> None:
        """Create the tables if missing. Raises: BadStore for tables of another version."""
        with self._connect() as connection:
            call_with_connection(connection, sql_table.create_tables, _list_tables(self), self._places)
            connection.commit()

    def claim(self, transactional_id: str) -> StoredState:
        return self._claim(transactional_id)

    def claim_leased(self, transactional_id: str, holder: str) -> StoredState:
        return self._claim(transactional_id, holder)

    def _claim(self, transactional_id: str, holder: str | None = None) -> StoredState:
        new_row = StoredState(transactional_id=transactional_id, owner=secrets.token_hex(OWNER_BYTES))
        with self._claiming() as connection:
            claiming = self.tables.claim(new_row, connection.dialect.name)
            connection.execute(claiming, execution_options=self._places.options(self.tables.states))
            places = self._find_places(connection)
            row = self._read_row(connection, transactional_id)
            if holder is not None:
                locking = self.lease_table.read_holder_locked(transactional_id)
                result = connection.execute(locking, execution_options=self._lease_options)
                lease_table.check_holder(transactional_id, holder, result.first())
            connection.commit()
        if row is None or row.owner != new_row.owner:
            raise BadStore(f"the row of {transactional_id!r} is not what was written: is the id too long?")
        self._places = places
        return row

    def _find_places(self, connection: Connection) -> TablePlaces:
        """Return in which schema this connection finds the tables."""
        finding = self._places.find_statement(connection.dialect.name)
        if finding is None:
            return self._places
        return self._places.place(connection.execute(finding).one())

    @contextmanager
    def _claiming(self) -> Iterator[Connection]:
        """Begin a transaction that limits waits for locks. The block commits it, or it is rolled back."""
        connection: Connection | None = None
        try:
            connection = self._connect_and_begin(claiming=True)
            yield connection
        except DBAPIError as exc:
            if sql_table.is_missing_table(exc):
                raise BadStore(f"{exc.orig}; SqlStore.create() makes the tables") from exc
            raise
        finally:
            if connection is not None:
                connection.close()

    def read_leases(self, base: str | None = None) -> LeaseList:
        try:
            with self._connect() as connection:
                now = connection.execute(self.lease_table.read_now(connection.dialect.name))
                now_ms = now.scalar_one()
                reading = self.lease_table.read(base)
                result = connection.execute(reading, execution_options=self._lease_options)
                rows = result.mappings().all()
        except DBAPIError as exc:
            if sql_table.is_missing_table(exc):
                raise BadStore(f"{exc.orig}; SqlStore.create() makes the tables") from exc
            raise
        return lease_table.leases_from_rows(now_ms, cast(Iterable[Mapping[str, Any]], rows))

    def take_lease(self, taking: LeaseTaking) -> bool:
        try:
            with self._claiming() as connection:
                statement = self.lease_table.take(taking, connection.dialect.name)
                result = connection.execute(statement, execution_options=self._lease_options)
                connection.commit()
                return taking.former is None or cast(CursorResult[Any], result).rowcount == 1
        except IntegrityError:  # another process has inserted this number
            return False

    def renew_leases(self, ids: Iterable[str], holder: str, duration_ms: int) -> frozenset[str]:
        with self._claiming() as connection:
            dialect = connection.dialect.name
            renewing = self.lease_table.renew(ids, holder, duration_ms, dialect)
            connection.execute(renewing, execution_options=self._lease_options)
            reading = self.lease_table.read_held(holder)
            result = connection.execute(reading, execution_options=self._lease_options)
            held = result.scalars().all()
            connection.commit()
            return frozenset(held)

    def release_lease(self, transactional_id: str, holder: str) -> None:
        with self._claiming() as connection:
            statement = self.lease_table.release(transactional_id, holder)
            connection.execute(statement, execution_options=self._lease_options)
            connection.commit()

    def begin(self) -> SqlTransaction:
        connection: Connection | None = None
        mark = secrets.token_hex(MARK_BYTES)
        try:  # no gap between taking the connection and the handler that releases it
            connection = self._connect_and_begin()
            if connection.dialect.name == "postgresql":
                connection.exec_driver_sql(sql_table.mark_statement(mark))
            txn = SqlTransaction(self, connection, mark, self._places)
            txn.watch_driver()
            return txn
        except BaseException:
            if connection is not None:
                connection.close()
            raise

    def begin_briefly(self) -> SqlTransaction:
        """Begin like `begin`, with the claim's limit on lock waits."""
        txn = self.begin()
        try:
            for statement in sql_table.lock_limit_statements(txn.connection.dialect.name):
                txn.connection.execute(statement)
            return txn
        except BaseException:
            txn.rollback()
            raise

    def read_state(self, transactional_id: str) -> StoredState | None:
        with self._connect() as connection:
            return self._read_row(connection, transactional_id)

    def transactional_ids(self) -> Iterable[str]:
        with self._connect() as connection:
            options = self._places.options(self.tables.states)
            result = connection.execute(self.tables.ids(), execution_options=options)
            return result.scalars().all()

    def read_offsets(self, group: str) -> Mapping[TopicPartition, int]:
        with self._connect() as connection:
            reading, options = self.tables.read_offsets(group), self._places.options(self.tables.offsets)
            rows = connection.execute(reading, execution_options=options).mappings()
            return sql_table.offsets_from_rows(cast(Iterable[Mapping[str, Any]], rows))

    def find_idempotency_keys(self, row: StoredState) -> Sequence[IdempotencyKey]:
        with self._connect() as connection:
            finding, options = self.keys.find(row), self._places.options(self.keys.keys)
            stored = connection.execute(finding, execution_options=options)
            return select_keys(row, cast(Sequence[Sequence[Any]], stored.all()))

    def forget_idempotency_keys(self, older_than_ms: int) -> int:
        """Delete the keys that were inserted before that many milliseconds ago, by the database's clock.

        A call with a forgotten key does its work again. The table has no index on the time: one call reads
        all of it.
        Returns: the number of keys deleted.
        """
        connection = self._connect_and_begin(claiming=True)
        try:
            forgetting = self.keys.forget(older_than_ms, connection.dialect.name)
            options = self._places.options(self.keys.keys)
            result = connection.execute(forgetting, execution_options=options)
            connection.commit()
            return cast(CursorResult[Any], result).rowcount
        finally:
            connection.close()

    def close(self) -> None:
        """Do nothing: the caller owns the engine."""

    @property
    def _lease_options(self) -> Mapping[str, Any]:
        return self._places.options(self.lease_table.leases)

    def _connect(self) -> Connection:
        """Return a connection of this process [DW-11]."""
        self._pool.check_process()
        return self._engine.connect()

    def new_session(self, bind: Connection) -> Session:
        return self._session_factory(bind=bind, join_transaction_mode="rollback_only")

    def _read_row(self, connection: Connection, transactional_id: str) -> StoredState | None:
        reading, options = self.tables.read(transactional_id), self._places.options(self.tables.states)
        row = connection.execute(reading, execution_options=options).mappings().first()
        return None if row is None else from_columns(cast(Mapping[str, object], row))

    def _connect_and_begin(self, *, claiming: bool = False) -> Connection:
        """Return a connection that passed the durability checks, in a transaction."""
        connection: Connection | None = None
        try:
            connection = self._connect()
            dialect = connection.dialect.name
            call_with_connection(connection, sql_table.check_durable, self.allowed_risks)
            if claiming and dialect != "sqlite":
                connection.execution_options(isolation_level="READ COMMITTED")
            connection.begin()
            if dialect == "sqlite":
                options = self._places.options(self.tables.states)
                call_with_connection(connection, sql_table.begin_on_sqlite, self.tables.lock(), options)
            for statement in sql_table.first_statements(dialect, claiming=claiming):
                connection.execute(statement)
            return connection
        except BaseException:
            if connection is not None:
                connection.close()
            raise


def _list_tables(store: "SqlStore") -> Sequence[Table]:
    return store.tables.states, store.tables.offsets, store.lease_table.leases, store.keys.keys


def _run_hooks(
    session: Session,
    dispatch: Callable[Concatenate[Session, A], None],
    *args: A.args,
    **kwargs: A.kwargs,
) -> None:
    """Run the hooks of a session that has ended. An error of one no longer changes anything."""
    try:
        call_with_session(session, dispatch, *args, **kwargs)
    except Exception:
        _log.warning("a hook of a session failed after its transaction had ended", exc_info=True)


def _after_commit(session: Session) -> None:
    session.dispatch.after_commit(session)


def _roll_back_session(session: Session) -> None:
    """Roll back a session. An error of its hooks, or of a lost connection, no longer changes anything."""
    while session.in_transaction():  # a hook of a savepoint that raises leaves the transaction around it
        try:
            session.rollback()
        except Exception:
            _log.warning("a hook of a session failed after its transaction had ended", exc_info=True)
