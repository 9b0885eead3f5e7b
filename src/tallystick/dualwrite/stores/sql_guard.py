"""Guard of the SQL stores: listens to connection and session events and refuses what breaks a dual write.

Shared by the blocking and asyncio stores: SQLAlchemy's events come from the synchronous objects under both.
The listeners of connections are registered once for each store, on an engine of its own over the same pool:
to register them for each transaction costs more than to begin it.
"""

from typing import Any, Final
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine, event
from sqlalchemy.orm import Session, SessionTransaction

from tallystick.dualwrite.errors import NotYours
from tallystick.dualwrite.stores.refusals import (
    ORPHANED_RECORDS_TEXT,
    TRANSACTION_ENDED_TEXT,
    parse_savepoint,
)

WRITER_COMMITS_TEXT: Final = (
    "the writer commits and rolls back; inside its block use begin_nested() for a savepoint"
)


class TransactionGuard:
    """A listener on one connection, and on the session over it, for the duration of a transaction."""

    def __init__(self, connection: Connection) -> None:
        self.is_ending = False
        self.has_ended = False
        self._connection = connection
        self._sent_count = 0
        self._sent_at_savepoint: dict[str, int] = {}
        self._sent_at_nested: dict[SessionTransaction, int] = {}
        self._has_orphaned_records = False
        _guards[connection] = self

    def watch(self, session: Session) -> None:
        """Refuse operations of the session that would end the transaction or write to another database."""
        event.listen(session, "before_commit", self._refuse_session_commit)
        event.listen(session, "after_begin", self._check_bind)
        event.listen(session, "after_transaction_create", self._on_nested)
        event.listen(session, "after_soft_rollback", self._on_nested_rollback)

    def release(self) -> None:
        """Let go of the connection before it returns to the pool."""
        _guards.pop(self._connection, None)

    def count_sent(self) -> None:
        """Count a sent record."""
        self._sent_count += 1

    def check_savepoints(self) -> None:
        """Raise NotYours if a record was sent whose rows were rolled back."""
        if self._has_orphaned_records:
            raise NotYours(ORPHANED_RECORDS_TEXT)

    def check_in_transaction(self) -> None:
        """Raise NotYours if the driver knows that the next statement would commit by itself [DW-11].

        The record would then decide for rows that are gone. SQLite is outside of a transaction if the driver
        begins none (`isolation_level=None`), MySQL after SET autocommit. Costs no round trip.
        """
        if self._connection.invalidated:
            return
        driver: Any = self._connection.connection.driver_connection
        match self._connection.dialect.name:
            case "sqlite":
                commits_each = not driver.in_transaction
            case "postgresql":  # its statements check the mark
                return
            case _:
                commits_each = driver.get_autocommit()
        if commits_each:
            raise self.build_ended_error()

    def build_ended_error(self) -> NotYours:
        """Return the error for a transaction that the block has ended, and note that it has [DW-11]."""
        self.has_ended = True
        return NotYours(TRANSACTION_ENDED_TEXT)

    def flush(self, session: Session) -> None:
        """Run the `before_commit` hooks and flush, before Kafka's half is prepared: hooks may still send."""
        self.is_ending = True
        try:
            session.dispatch.before_commit(session)
        finally:
            self.is_ending = False
        session.flush()

    def check_commit(self) -> None:
        """Raise NotYours unless the writer itself commits."""
        if not self.is_ending:
            raise NotYours(f"connection.commit(): {WRITER_COMMITS_TEXT}")

    def _refuse_session_commit(self, session: Session) -> None:
        if not self.is_ending and not session.in_nested_transaction():
            raise NotYours(f"session.commit(): {WRITER_COMMITS_TEXT}")

    def _check_bind(self, _: Session, __: SessionTransaction, connection: Connection) -> None:
        if connection is not self._connection:
            raise NotYours(
                f"the session takes rows to {connection.engine.url!r}, which this transaction does not "
                "commit: they would be lost. A dual write has one database; give the store a "
                "session_factory without other binds"
            )

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
    """Let the guards of connections of `engine` know of their statements and commits."""
    event.listen(engine, "commit", _before_commit)
    event.listen(engine, "after_cursor_execute", _after_statement)


def _before_commit(connection: Connection) -> None:
    guard = _guards.get(connection)
    if guard is not None:
        guard.check_commit()


def _after_statement(connection: Connection, _: Any, statement: str, *__: Any) -> None:
    guard = _guards.get(connection)
    if guard is not None:
        guard.on_statement(statement)
