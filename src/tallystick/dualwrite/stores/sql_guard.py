"""Guard of the SQL stores: listens to connection and session events and refuses what breaks a dual write.

Shared by the blocking and asyncio stores: SQLAlchemy's events come from the synchronous objects under both.
The listeners of connections are registered once for each store, on an engine of its own over the same pool:
to register them for each transaction costs more than to begin it.
"""

from contextlib import suppress
from typing import Any, Final
from weakref import WeakKeyDictionary, WeakSet

from sqlalchemy import Connection, Engine, event, inspect
from sqlalchemy.exc import InvalidRequestError
from sqlalchemy.orm import (
    InstanceState,
    Session,
    SessionTransaction,
    UOWTransaction,
    make_transient,
    make_transient_to_detached,
)

from tallystick.dualwrite.errors import ManagedByWriter
from tallystick.dualwrite.rules.refusals import (
    ENDING_STATEMENT_TEXT,
    ORPHANED_RECORDS_TEXT,
    TRANSACTION_ENDED_TEXT,
    parse_savepoint,
)
from tallystick.dualwrite.stores.ending import ends_transaction, is_outside_transaction

WRITER_COMMITS_TEXT: Final = (
    "the writer commits and rolls back; inside its block use begin_nested() for a savepoint"
)


class TransactionGuard:
    """A listener on one connection, and on the session over it, for the duration of a transaction."""

    def __init__(self, connection: Connection) -> None:
        self.is_ending = False
        self.has_ended = False
        self._connection = connection
        self._root = connection.get_transaction()
        self._sent_count = 0
        self._sent_at_savepoint: dict[str, int] = {}
        self._sent_at_nested: dict[SessionTransaction, int] = {}
        self._has_orphaned_records = False
        self._inserted: WeakSet[InstanceState[Any]] = WeakSet()
        self._changed: WeakSet[InstanceState[Any]] = WeakSet()
        _guards[connection] = self

    def watch(self, session: Session) -> None:
        """Refuse operations of the session that would end the transaction or write to another database."""
        event.listen(session, "before_commit", self._refuse_session_commit)
        event.listen(session, "after_begin", self._check_bind)
        event.listen(session, "after_transaction_create", self._on_nested)
        event.listen(session, "after_soft_rollback", self._on_nested_rollback)
        event.listen(session, "after_flush", self._note_flushed)

    def close(self, session: Session, *, is_kept: bool) -> None:
        """Close a session, whose rows are committed, or are taken for rolled back [DW-27].

        SQLAlchemy takes an object that was flushed for one that is in the database: added once more, it is
        not inserted. Where no rollback of the session has told it otherwise, because the outcome is in doubt
        or the user has closed the session before, the objects are returned here to what they were.
        """
        if not is_kept:
            for state in (*self._inserted, *self._changed):
                self._restore(session, state)
            session.expire_all()
        session.close()

    def _restore(self, session: Session, state: InstanceState[Any]) -> None:
        instance = state.obj()
        if instance is None or state.session not in (session, None) or state.transient or state.pending:
            return
        if state in self._inserted:
            make_transient(instance)
            return
        if state.deleted or state.was_deleted:
            make_transient(instance)
            make_transient_to_detached(instance)
        if state.detached:
            with suppress(InvalidRequestError):  # the session has another object of that row
                session.add(instance)

    def release(self) -> None:
        """Let go of the connection before it returns to the pool."""
        _guards.pop(self._connection, None)

    def count_sent(self) -> None:
        """Count a sent record."""
        self._sent_count += 1

    def check_savepoints(self) -> None:
        """Raise ManagedByWriter if a record was sent whose rows were rolled back."""
        if self._has_orphaned_records:
            raise ManagedByWriter(ORPHANED_RECORDS_TEXT)

    def check_in_transaction(self) -> None:
        """Raise ManagedByWriter if the driver knows that the next statement would commit by itself [DW-11].

        The record would then decide for rows that are gone. A driver may know that it is in no transaction,
        or be told so by SET autocommit of MySQL. Costs no round trip.
        """
        if self._connection.invalidated:
            return
        driver: Any = self._connection.connection.driver_connection
        # A block may set the autocommit of MySQL's drivers; PostgreSQL's statements check the mark as well.
        commits_each = self._connection.dialect.name in ("mysql", "mariadb") and driver.get_autocommit()
        if commits_each or is_outside_transaction(driver):
            raise self.build_ended_error()

    def build_ended_error(self) -> ManagedByWriter:
        """Return the error for a transaction that the block has ended, and note that it has [DW-11]."""
        self.has_ended = True
        return ManagedByWriter(TRANSACTION_ENDED_TEXT)

    def flush(self, session: Session) -> None:
        """Run the `before_commit` hooks and flush, before Kafka is prepared: hooks may still send."""
        self.is_ending = True
        try:
            session.dispatch.before_commit(session)
        finally:
            self.is_ending = False
        session.flush()

    def check_commit(self) -> None:
        """Raise ManagedByWriter unless the writer itself commits."""
        if not self.is_ending:
            raise ManagedByWriter(f"connection.commit(): {WRITER_COMMITS_TEXT}")

    def _refuse_session_commit(self, session: Session) -> None:
        if not self.is_ending and not session.in_nested_transaction():
            raise ManagedByWriter(f"session.commit(): {WRITER_COMMITS_TEXT}")

    def _check_bind(self, _: Session, __: SessionTransaction, connection: Connection) -> None:
        if connection is not self._connection:
            raise ManagedByWriter(
                f"the session takes rows to {connection.engine.url!r}, which this transaction does not "
                "commit: they would be lost. A dual write has one database; give the store a "
                "session_factory without other binds"
            )

    def check_statement(self, statement: str) -> None:
        """Raise ManagedByWriter before a statement that ends the transaction, or is outside of it by now."""
        if self._connection.get_transaction() is not self._root:  # SQLAlchemy has ended it, and knows
            return
        self.check_in_transaction()
        if ends_transaction(statement, self._connection.dialect.name):
            raise ManagedByWriter(f"{' '.join(statement.split())[:40]!r}: {ENDING_STATEMENT_TEXT}")

    def on_statement(self, statement: str) -> None:
        """Track savepoints, both SQLAlchemy's own and those in SQL text."""
        match parse_savepoint(statement):
            case "SAVEPOINT", name:
                self._sent_at_savepoint[name] = self._sent_count
            case "ROLLBACK TO", name:
                self._has_orphaned_records = (
                    self._has_orphaned_records or self._sent_count > self._sent_at_savepoint.get(name, 0)
                )

    def on_driver_statement(self, logged: Any) -> None:
        """Track statements sent to asyncpg directly; its report is too late to order them against records."""
        if parse_savepoint(logged.query) is not None and logged.query.startswith("ROLLBACK"):
            self._has_orphaned_records = self._has_orphaned_records or self._sent_count > 0

    def _note_flushed(self, session: Session, _: UOWTransaction) -> None:
        self._inserted.update(map(inspect, session.new))
        self._changed.update(map(inspect, (*session.dirty, *session.deleted)))

    def _on_nested(self, _: Session, nested_txn: SessionTransaction) -> None:
        if nested_txn.nested:
            self._sent_at_nested[nested_txn] = self._sent_count

    def _on_nested_rollback(self, _: Session, ended: SessionTransaction) -> None:
        """Check a nested rollback: a session creates its savepoint lazily and may lose rows without one."""
        self._has_orphaned_records = (
            self._has_orphaned_records or self._sent_count > self._sent_at_nested.pop(ended, self._sent_count)
        )


_guards: WeakKeyDictionary[Connection, TransactionGuard] = WeakKeyDictionary()
"""The guard of each connection with an open dual write."""


def watch_engine(engine: Engine) -> None:
    """Inform the guards of connections of `engine` of their statements and commits."""
    event.listen(engine, "commit", _before_commit)
    event.listen(engine, "before_cursor_execute", _before_statement)
    event.listen(engine, "after_cursor_execute", _after_statement)


def _before_commit(connection: Connection) -> None:
    guard = _guards.get(connection)
    if guard is not None:
        guard.check_commit()


def _before_statement(connection: Connection, _: Any, statement: str, *__: Any) -> None:
    guard = _guards.get(connection)
    if guard is not None:
        guard.check_statement(statement)


def _after_statement(connection: Connection, _: Any, statement: str, *__: Any) -> None:
    guard = _guards.get(connection)
    if guard is not None:
        guard.on_statement(statement)
