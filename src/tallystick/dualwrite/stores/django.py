"""Store for Django's ORM: the row is written in the `atomic` block that the store opens and closes.

    with writer.transaction() as txn:
        Payment.objects.create(...)          # any model of that alias
        txn.send("payments", ...)

Fencing: the UPDATE that records compares the owner of the row; a claim replaces the owner in a transaction of
its own, for which it waits for the row's lock [DW-1], [DW-2].

The block must be the outermost one. Inside another block, of ATOMIC_REQUESTS or of a TestCase, leaving it
would commit nothing, and the rows would be committed after the Kafka transaction, or never; so that is
refused. Callbacks of `transaction.on_commit` run when the database transaction is committed, all of them as
if registered with `robust=True`: both sides are decided by then, so an exception in one is logged, and the
others run.

The tables are those of SqlStore. Source: Django, `django/db/transaction.py` `Atomic.__exit__`: it exits
silently, committing nothing, when the connection was closed or marked for rollback.
"""

import logging
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from django.db import DatabaseError, IntegrityError, ProgrammingError, connections, transaction
from django.db import OperationalError as DjangoOperationalError

from tallystick.dualwrite.errors import BadStore, CommitUnknown, ManagedByWriter, NotCommitted, WriterFenced
from tallystick.dualwrite.forks import leak_reference, watch_forks
from tallystick.dualwrite.rules.idempotency import IdempotencyKey
from tallystick.dualwrite.rules.leases import LeaseList, LeaseTaking
from tallystick.dualwrite.rules.model import (
    KEYS_TABLE,
    LEASE_TABLE,
    TABLE,
    StoredState,
    from_columns,
    to_columns,
)
from tallystick.dualwrite.rules.refusals import (
    ENDING_STATEMENT_TEXT,
    ORPHANED_RECORDS_TEXT,
    TRANSACTION_ENDED_TEXT,
    is_refusal,
    parse_savepoint,
)
from tallystick.dualwrite.stores import django_leases
from tallystick.dualwrite.stores.base import check_key_row, check_record, select_keys
from tallystick.dualwrite.stores.dialects import FIND_SCHEMA_SQL, NOW_MS_SQL
from tallystick.dualwrite.stores.django_leases import LEASE_COLUMNS
from tallystick.dualwrite.stores.durability import (
    AllowedRisks,
    AllowUnsafe,
    check_postgresql,
    check_sqlite,
    parse_allowed,
)
from tallystick.dualwrite.stores.ending import ends_transaction, is_outside_transaction

_LOG: Final = logging.getLogger(__name__)

COLUMNS: Final = {
    "transactional_id": "TEXT {collation} NOT NULL PRIMARY KEY",
    "owner": "VARCHAR(64) NOT NULL",
    "prepared_transaction_state": "VARCHAR(64) NOT NULL",
    "settled": "SMALLINT NOT NULL",
    "former_producer_ids": "TEXT NOT NULL",
    "cluster_id": "TEXT",
    "transaction_version": "INTEGER",
    "started_at": "BIGINT",
    "timeout_ms": "INTEGER",
    "schema_version": "INTEGER NOT NULL",
}
KEY_COLUMNS: Final = {
    "scope": "TEXT {collation} NOT NULL",
    "idempotency_key": "TEXT {collation} NOT NULL",
    "claim": "VARCHAR(64) NOT NULL",
    "result": "TEXT",
    "created_at": "BIGINT NOT NULL",
}
_KEY_CONSTRAINT: Final = ", PRIMARY KEY (scope, idempotency_key)"
# Ids are compared byte by byte: a collation that ignores case would merge two ids.
_COLLATION: Final = {"postgresql": 'COLLATE "C"', "sqlite": "COLLATE BINARY"}
CLAIM_LOCK_S: Final = 60
# Marks that distinguish a transaction from the next one on the same connection [DW-11]: both end with it.
_MARK_SETTING: Final = "tallystick.block"
_SAVEPOINT: Final = "tallystick_block"


class DjangoTransaction:
    """An outermost `atomic` block of the store's alias. Used by one thread, like Django's connections."""

    def __init__(self, store: "DjangoStore") -> None:
        """Prepare the block without opening it. Raises: ManagedByWriter inside another block."""
        self._alias = store.using
        self._store = store
        self._allowed = store.allowed_risks
        self._committed = False
        self._connection = store.get_connection()
        _check_outermost(self._connection)
        # durable: Django itself raises if another block is opened around this one after all.
        self._atomic: Any = transaction.atomic(using=store.using, durable=True)
        self._mark = secrets.token_hex(8)
        self._sent_count = 0
        self._savepoints: dict[str, int] = {}
        self._has_orphaned_records = False

    @property
    def connection(self) -> Any:
        """Django's connection of the alias, which models use automatically."""
        return self._connection

    @property
    def handle(self) -> Any:
        return self._connection

    def begin(self) -> None:
        """Open the block, mark the transaction, and check that its commit would be durable.

        Raises: UnsafeDurability. After that, or an interrupt, call `rollback` to leave the block.
        """
        self._atomic.__enter__()
        transaction.on_commit(self._set_committed, using=self._alias)
        with self._connection.cursor() as cursor:
            if self._connection.vendor == "postgresql":
                cursor.execute("SELECT set_config(%s, %s, true)", [_MARK_SETTING, self._mark])
            else:
                # Django begins without the write lock, and a transaction that has read may not get it later.
                cursor.execute(f"UPDATE {TABLE} SET owner = owner WHERE 1 = 0")
                cursor.execute(f"SAVEPOINT {_SAVEPOINT}")
            self._connection.execute_wrappers.append(self._track_statement)
            _check_durable(self._connection.vendor, cursor, self._allowed)

    def sent(self) -> None:
        """Count a record sent to Kafka."""
        self._sent_count += 1

    def savepoint(self) -> Any:
        """Begin a savepoint, as a context manager: an inner `atomic`."""
        return transaction.atomic(using=self._alias)

    def record(self, row: StoredState, before: StoredState | None = None) -> None:
        """Write the row if its owner is unchanged."""
        self._check_open()
        if self._has_orphaned_records:
            raise ManagedByWriter(ORPHANED_RECORDS_TEXT)
        values = to_columns(row)
        transactional_id, owner = values.pop("transactional_id"), values.pop("owner")
        assignments = ", ".join(f"{name} = %s" for name in values)
        table = self._store.name_of(TABLE)
        statement = f"UPDATE {table} SET {assignments} WHERE transactional_id = %s AND owner = %s"
        compared = [] if before is None else [str(before.state)]
        if compared:
            statement += " AND prepared_transaction_state = %s"
        with self._connection.cursor() as cursor:
            # First: if its transaction has ended, SQLite would autocommit the row, which decides the outcome.
            self._check_mark(cursor)
            cursor.execute(statement, [*values.values(), transactional_id, owner, *compared])
            if cursor.rowcount != 1:
                check_record(_read_row(cursor, table, row.transactional_id), row, before)
                raise WriterFenced(row.transactional_id, row.owner)
            # A transaction can weaken its durability (SET LOCAL), so check right before the commit.
            _check_durable(self._connection.vendor, cursor, self._allowed)

    def claim_key(self, key: IdempotencyKey) -> str | None:
        """Insert an idempotency key, after any other transaction that has inserted it.

        Returns: None if the key is this transaction's; the stored result if it was there.
        Raises: BadStore if the table is missing; CorruptRow; a conflict, after which this transaction is
            lost.
        """
        self._check_open()
        keys = self._store.name_of(KEYS_TABLE)
        inserting = (
            f"INSERT INTO {keys} (scope, idempotency_key, claim, created_at) "
            f"VALUES (%s, %s, %s, {NOW_MS_SQL[self._connection.vendor]}) ON CONFLICT DO NOTHING"
        )
        reading = f"SELECT claim, result FROM {keys} WHERE scope = %s AND idempotency_key = %s"
        try:
            with self._connection.cursor() as cursor:
                cursor.execute(inserting, [key.scope, key.key, self._mark])
                if cursor.rowcount == 1:
                    return None
                cursor.execute(reading, [key.scope, key.key])
                row = cursor.fetchone()
        except (ProgrammingError, DjangoOperationalError) as exc:
            if _is_missing_table(exc):
                raise BadStore(f"{exc}; DjangoStore.create() makes the tables") from exc
            raise
        return check_key_row(key, self._mark, row)

    def store_result(self, key: IdempotencyKey, text: str) -> None:
        """Store the result of the work with the key that `claim_key` has inserted."""
        self._check_open()
        with self._connection.cursor() as cursor:
            self._check_mark(cursor)
            cursor.execute(
                f"UPDATE {self._store.name_of(KEYS_TABLE)} SET result = %s "
                "WHERE scope = %s AND idempotency_key = %s AND claim = %s",
                [text, key.scope, key.key, self._mark],
            )

    def _check_mark(self, cursor: Any) -> None:
        """Raise ManagedByWriter if the transaction is not the one that was begun [DW-11]."""
        if self._connection.vendor == "postgresql":
            cursor.execute("SELECT current_setting(%s, true)", [_MARK_SETTING])
            if cursor.fetchone() != (self._mark,):
                raise ManagedByWriter(TRANSACTION_ENDED_TEXT)
            return
        try:
            # Release and create it again: a writer of several clusters records several rows.
            cursor.execute(f"RELEASE SAVEPOINT {_SAVEPOINT}")
            cursor.execute(f"SAVEPOINT {_SAVEPOINT}")
        except DatabaseError as exc:
            if "no such savepoint" in str(exc):
                raise ManagedByWriter(TRANSACTION_ENDED_TEXT) from exc
            raise

    def commit(self) -> None:
        """Leave the block, which commits.

        Raises: NotCommitted, caused by ManagedByWriter if the block can only be rolled back, or by the
            database's refusal. CommitUnknown.
        """
        try:
            self._check_open()
        except ManagedByWriter as exc:
            raise NotCommitted(exc) from exc
        atomic = self._detach_block()
        if self._connection.needs_rollback or self._connection.closed_in_transaction:
            _exit_block(atomic, ManagedByWriter("rollback"))
            raise NotCommitted(
                ManagedByWriter(
                    "the block was marked for rollback, or its connection closed; it did not commit"
                )
            )
        _make_robust(self._connection)
        try:
            atomic.__exit__(None, None, None)
        except Exception as exc:
            if self._committed:
                _LOG.exception("a callback of on_commit failed; the transaction is committed")
                return
            if isinstance(exc, IntegrityError) or (
                isinstance(exc, DatabaseError) and is_refusal(exc.__cause__)
            ):
                raise NotCommitted(exc) from exc
            raise CommitUnknown(f"{type(exc).__name__}: {exc}") from exc
        except BaseException:  # Ctrl-C between COMMIT and its answer: later answers cannot be trusted
            self._connection.close()
            raise
        if not self._committed:
            raise CommitUnknown(f"Django left the block of {self._alias!r} and did not say that it committed")

    def rollback(self) -> None:
        """Leave the block without effect."""
        atomic = self._detach_block()
        if atomic is not None and self._connection.atomic_blocks[-1:] == [atomic]:
            _exit_block(atomic, ManagedByWriter("rollback"))

    def abandon(self) -> None:
        """Drop the connection in a forked child, where Django opens another one."""
        del connections[self._alias]

    def _detach_block(self) -> Any:
        """Detach and return the block; None if already detached."""
        atomic, self._atomic = self._atomic, None
        if self._track_statement in self._connection.execute_wrappers:
            self._connection.execute_wrappers.remove(self._track_statement)
        return atomic

    def _track_statement(self, execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        """Execute a statement and track savepoints, including those of inner `atomic` blocks.

        Raises: ManagedByWriter before a statement that ends the transaction, or is outside of it by now.
        """
        if is_outside_transaction(self._connection.connection):
            raise ManagedByWriter(TRANSACTION_ENDED_TEXT)
        if ends_transaction(str(sql), self._connection.vendor):
            raise ManagedByWriter(f"{' '.join(str(sql).split())[:40]!r}: {ENDING_STATEMENT_TEXT}")
        result = execute(sql, params, many, context)
        match parse_savepoint(str(sql)):
            case "SAVEPOINT", name:
                self._savepoints[name] = self._sent_count
            case "ROLLBACK TO", name:
                self._has_orphaned_records = (
                    self._has_orphaned_records or self._sent_count > self._savepoints.get(name, 0)
                )
        return result

    def _set_committed(self) -> None:
        """Record the commit, as the block's first callback: a later exception did not prevent the commit."""
        self._committed = True

    def _check_open(self) -> None:
        if self._atomic is None:
            raise ManagedByWriter("this transaction has ended")
        if self._connection.atomic_blocks != [self._atomic]:
            raise ManagedByWriter("an atomic block was opened inside the writer's block and not left")


class DjangoStore:
    """A store in the table `kafka_transaction_state` of a Django database alias: PostgreSQL or SQLite."""

    def __init__(self, using: str = "default", *, allow_unsafe_durability: AllowUnsafe = False) -> None:
        """Configure the store without connecting.

        Args:
            using: the alias in DATABASES; the user's models must be on the same one.
            allow_unsafe_durability: names of settings that are accepted although a crash of the database may
                lose commits; True skips all durability checks.
        Raises: BadStore for a database other than PostgreSQL or SQLite. ValueError for an unknown setting.
        """
        self.using = using
        self.allowed_risks = parse_allowed(allow_unsafe_durability)
        vendor = connections[using].vendor
        if vendor not in _COLLATION:
            raise BadStore(f"{using!r} is {vendor}; DjangoStore knows {' and '.join(_COLLATION)}")
        self.database_system = vendor
        self._why_refused = ""
        self._names = {name: name for name in (TABLE, KEYS_TABLE)}
        watch_forks(self)

    def leave_to_parent(self) -> None:
        """Drop the connection of the thread that forks, so that Django opens another one in this process.

        It is not closed, since that would be sent to the parent's server. No other thread exists here.
        """
        connection = connections[self.using]
        if connection.connection is None:
            return
        leak_reference(connection.connection)
        if connection.in_atomic_block:
            self._why_refused = "was in a transaction of {alias}, which is the parent's"
        elif connection.vendor == "sqlite":
            self._why_refused = "had {alias} open, and SQLite cannot be used across a fork"
        elif connection.settings_dict["OPTIONS"].get("pool"):
            self._why_refused = "had a connection of {alias}'s pool, which cannot be used across a fork"
        else:
            del connections[self.using]

    def get_connection(self) -> Any:
        """Return the connection of this thread. Raises: ManagedByWriter if it is the parent's [DW-11]."""
        if self._why_refused:
            raise ManagedByWriter(
                f"process {os.getppid()} {self._why_refused.format(alias=repr(self.using))}, when it forked "
                "this one: nothing was done here. Before the fork, leave the transaction and close the "
                f"connection: connections[{self.using!r}].close(), and .close_pool() if it has a pool"
            )
        return connections[self.using]

    def create(self) -> None:
        """Create the tables if missing, for example from a migration's RunPython. Raises: BadStore."""
        connection = self.get_connection()
        with transaction.atomic(using=self.using), connection.cursor() as cursor:
            if connection.vendor == "postgresql":
                # Under concurrent creation, IF NOT EXISTS lets one of them fail.
                cursor.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", [TABLE])
            _create_table(connection, cursor, TABLE, COLUMNS)
            _create_table(connection, cursor, KEYS_TABLE, KEY_COLUMNS, _KEY_CONSTRAINT)
            _create_table(connection, cursor, LEASE_TABLE, LEASE_COLUMNS)

    def claim(self, transactional_id: str) -> StoredState:
        """Take over the row, after any open transaction that has recorded it.

        Raises:
            ManagedByWriter: inside an atomic block, because a claim commits by itself.
            BadStore: the table is missing.
        """
        return self._claim(transactional_id)

    def claim_leased(self, transactional_id: str, holder: str) -> StoredState:
        """Claim as `claim` does, if the lease is the holder's when the claim commits [DW-15]."""
        return self._claim(transactional_id, holder)

    def _claim(self, transactional_id: str, holder: str | None = None) -> StoredState:
        values = to_columns(StoredState(transactional_id=transactional_id, owner=secrets.token_hex(16)))
        table = self.name_of(TABLE)
        statement = (
            f"INSERT INTO {table} ({', '.join(values)}) VALUES ({', '.join(['%s'] * len(values))}) "
            "ON CONFLICT (transactional_id) DO UPDATE SET owner = excluded.owner"
        )
        with self._claiming() as (connection, cursor):
            cursor.execute(statement, list(values.values()))
            row = _read_row(cursor, table, transactional_id)
            names = _find_names(connection, cursor, self._names)
            if holder is not None:
                django_leases.check_lease(cursor, connection.vendor, transactional_id, holder)
        if row is None:
            raise BadStore(f"the row of {transactional_id!r} is not there after it was written")
        self._names = names
        return row

    def name_of(self, table: str) -> str:
        """Return a table's name, with the schema that it had at the first claim: a block may set the path."""
        return self._names[table]

    @contextmanager
    def _claiming(self) -> Iterator[tuple[Any, Any]]:
        """Open a transaction with a limited wait for locks, which the end of the block commits."""
        connection = self.get_connection()
        _check_outermost(connection)
        try:
            with transaction.atomic(using=self.using, durable=True), connection.cursor() as cursor:
                _limit_lock_wait(connection)
                yield connection, cursor
        except (ProgrammingError, DjangoOperationalError) as exc:
            names = connection.introspection.table_names()
            missing = [table for table in (TABLE, LEASE_TABLE) if table not in names]
            if missing:
                raise BadStore(
                    f"there is no table {' and no '.join(missing)}; DjangoStore.create() makes it"
                ) from exc
            raise

    def read_leases(self, base: str | None = None) -> LeaseList:
        """Return the leases of a base name, of every one if None, and the database's time."""
        with self._claiming() as (connection, cursor):
            return django_leases.read_leases(cursor, connection.vendor, base)

    def take_lease(self, taking: LeaseTaking) -> bool:
        """Acquire a lease if its row is unchanged since it was read, and return whether it was."""
        with self._claiming() as (connection, cursor):
            return django_leases.take_lease(cursor, connection.vendor, taking)

    def renew_leases(self, ids: Iterable[str], holder: str, duration_ms: int) -> frozenset[str]:
        """Renew those leases of `ids` that are still the holder's, and return the ids that it holds."""
        with self._claiming() as (connection, cursor):
            return django_leases.renew_leases(cursor, connection.vendor, ids, holder, duration_ms)

    def release_lease(self, transactional_id: str, holder: str) -> None:
        """Return a lease if it is still the holder's."""
        with self._claiming() as (_, cursor):
            django_leases.release_lease(cursor, transactional_id, holder)

    def release_thread(self) -> None:
        """Close the connection of a background thread, which no end of a request closes."""
        self.get_connection().close()

    def begin(self) -> DjangoTransaction:
        """Open the block. Raises: ManagedByWriter inside another block; UnsafeDurability."""
        opened = DjangoTransaction(self)
        try:
            opened.begin()
            return opened
        except BaseException:
            opened.rollback()
            raise

    def begin_briefly(self) -> DjangoTransaction:
        """Begin like `begin`, with the claim's limit on lock waits."""
        opened = self.begin()
        try:
            _limit_lock_wait(opened.connection)
            return opened
        except BaseException:
            opened.rollback()
            raise

    def read_state(self, transactional_id: str) -> StoredState | None:
        """Return the committed row."""
        with self.get_connection().cursor() as cursor:
            return _read_row(cursor, self.name_of(TABLE), transactional_id)

    def transactional_ids(self) -> Iterable[str]:
        """Return every id that has a row, in order."""
        with self.get_connection().cursor() as cursor:
            cursor.execute(f"SELECT transactional_id FROM {self.name_of(TABLE)} ORDER BY transactional_id")
            return [str(row[0]) for row in cursor.fetchall()]

    def forget_idempotency_keys(self, older_than_ms: int) -> int:
        """Delete the keys that were inserted before that many milliseconds ago, by the database's clock.

        A call with a forgotten key does its work again. The table has no index on the time: one call reads
        all of it.
        Returns: the number of keys deleted.
        """
        connection = self.get_connection()
        now = NOW_MS_SQL[connection.vendor]
        with connection.cursor() as cursor:
            keys = self.name_of(KEYS_TABLE)
            cursor.execute(f"DELETE FROM {keys} WHERE created_at < {now} - %s", [older_than_ms])
            return int(cursor.rowcount)

    def find_idempotency_keys(self, row: StoredState) -> Sequence[IdempotencyKey]:
        """Return the keys that were committed with the transaction that a row names. Reads all keys."""
        keys = self.name_of(KEYS_TABLE)
        reading = f"SELECT scope, idempotency_key, result FROM {keys} WHERE result LIKE %s"
        with self.get_connection().cursor() as cursor:
            cursor.execute(reading, [f'%"{row.state}"%'])
            return select_keys(row, cursor.fetchall())

    def close(self) -> None:
        """Do nothing: Django owns its connections."""


def _create_table(
    connection: Any, cursor: Any, table: str, columns: Mapping[str, str], constraint: str = ""
) -> None:
    """Create a table if it is missing, and check an existing one. Raises: BadStore."""
    texts = ", ".join(f"{name} {kind}" for name, kind in columns.items())
    texts = texts.format(collation=_COLLATION[connection.vendor])
    cursor.execute(f"CREATE TABLE IF NOT EXISTS {table} ({texts}{constraint})")
    description = connection.introspection.get_table_description(cursor, table)
    column_names = {column.name for column in description}
    if missing := [name for name in columns if name not in column_names]:
        raise BadStore(f"table {table} is of another version: it has no {', '.join(missing)}")


def _is_missing_table(exc: Exception) -> bool:
    """Return whether a statement failed because a table is missing."""
    state = getattr(exc.__cause__, "sqlstate", None)
    return state == "42P01" or str(exc).startswith("no such table")


def _check_outermost(connection: Any) -> None:
    """Raise ManagedByWriter inside a transaction that the store does not control."""
    if connection.in_atomic_block:
        raise ManagedByWriter(
            f"{connection.alias!r} is in an atomic block already, and that one commits later, or never. With "
            "ATOMIC_REQUESTS, put @transaction.non_atomic_requests on the view; test with TransactionTestCase"
        )
    if not connection.get_autocommit():
        raise ManagedByWriter(f"the autocommit of {connection.alias!r} is off: whose transaction is open?")


def _limit_lock_wait(connection: Any) -> None:
    """Limit lock waits: the server keeps the locks of a lost client until TCP keepalive notices."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute(f"SET LOCAL lock_timeout = '{CLAIM_LOCK_S}s'")


def _check_durable(vendor: str, cursor: Any, allowed: AllowedRisks) -> None:
    """Check that a commit would survive a crash of the database [DW-8]. Raises: UnsafeDurability."""
    if allowed.allows_all:
        return
    if vendor == "postgresql":
        cursor.execute("SELECT current_setting('synchronous_commit'), current_setting('fsync')")
        synchronous, fsync = cursor.fetchone()
        check_postgresql(synchronous, allowed)
        allowed.require("fsync", fsync, safe=fsync == "on", required="on")
        return
    cursor.execute("PRAGMA synchronous")
    (synchronous,) = cursor.fetchone()
    cursor.execute("PRAGMA journal_mode")
    (journal,) = cursor.fetchone()
    check_sqlite(str(synchronous), journal, allowed)


def _find_names(connection: Any, cursor: Any, names: Mapping[str, str]) -> dict[str, str]:
    """Return the names with the schema in which PostgreSQL finds each table, unless they have it."""
    if connection.vendor != "postgresql":
        return dict(names)
    with_schemas = {}
    for table, name in names.items():
        cursor.execute(f"SELECT {FIND_SCHEMA_SQL[connection.vendor].format(name=name)}")
        (schema,) = cursor.fetchone()
        with_schemas[table] = name if schema is None else f"{connection.ops.quote_name(schema)}.{table}"
    return with_schemas


def _read_row(cursor: Any, table: str, transactional_id: str) -> StoredState | None:
    cursor.execute(
        f"SELECT {', '.join(COLUMNS)} FROM {table} WHERE transactional_id = %s", [transactional_id]
    )
    row = cursor.fetchone()
    return None if row is None else from_columns(dict(zip(COLUMNS, row, strict=True)))


def _make_robust(connection: Any) -> None:
    """Let each callback of `on_commit` run, whatever those before it raise.

    Django's own `robust` does the same, but for a `functools.partial`, whose name it cannot log. Source:
    `BaseDatabaseWrapper.on_commit`; the second item of each entry is the callback.
    """
    connection.run_on_commit = [
        (savepoints, partial(_call_robustly, callback), *rest)
        for savepoints, callback, *rest in connection.run_on_commit
    ]


def _call_robustly(callback: Callable[[], object]) -> None:
    try:
        callback()
    except Exception:
        _LOG.exception("a callback of on_commit failed; the transaction is committed")


def _exit_block(atomic: Any, because: BaseException) -> None:
    """Leave a block as if by an exception. If its connection is lost, the server has rolled it back."""
    try:
        atomic.__exit__(type(because), because, None)
    except DatabaseError:
        _LOG.info("the connection was lost before the rollback", exc_info=True)
