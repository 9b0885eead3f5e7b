"""Guard of the SQL stores: listens to connection and session events and refuses what breaks a dual write.

Shared by the blocking and asyncio stores: SQLAlchemy's events come from the synchronous objects under both.
"""

from collections.abc import Callable
from typing import Any, Final

from sqlalchemy import Connection, event
from sqlalchemy.orm import Session, SessionTransaction

from tallystick.dualwrite.errors import NotYours
from tallystick.dualwrite.stores.refusals import SENT_IN_VAIN, savepoint_of

OURS: Final = "the writer commits and rolls back; inside its block use begin_nested() for a savepoint"


class Guard:
    """A listener on one connection, and on the session over it, for the duration of a transaction."""

    def __init__(self, connection: Connection) -> None:
        self.ending = False
        self._connection = connection
        self._sent = 0
        self._savepoints: dict[str, int] = {}
        self._nested: dict[SessionTransaction, int] = {}
        self._in_vain = False
        self._hooks: dict[str, Callable[..., None]] = {
            "commit": self._check_ours,
            "after_cursor_execute": self._on_statement,
        }
        for name, hook in self._hooks.items():
            event.listen(connection, name, hook)

    def watch(self, session: Session) -> None:
        """Refuse operations of the session that would end the transaction or write to another database."""
        event.listen(session, "before_commit", self._check_session)
        event.listen(session, "after_begin", self._check_bind)
        event.listen(session, "after_transaction_create", self._on_nested)
        event.listen(session, "after_soft_rollback", self._on_nested_rollback)

    def release(self) -> None:
        """Remove the listeners before the connection returns to the pool."""
        for name, hook in self._hooks.items():
            event.remove(self._connection, name, hook)

    def sent(self) -> None:
        """Count a sent record."""
        self._sent += 1

    def check_savepoints(self) -> None:
        """Raise NotYours if a record was sent whose rows were rolled back."""
        if self._in_vain:
            raise NotYours(SENT_IN_VAIN)

    def flush(self, session: Session) -> None:
        """Run the `before_commit` hooks and flush, before Kafka's half is prepared: hooks may still send."""
        self.ending = True
        try:
            session.dispatch.before_commit(session)
        finally:
            self.ending = False
        session.flush()

    def _check_ours(self, _: Connection) -> None:
        if not self.ending:
            raise NotYours(f"connection.commit(): {OURS}")

    def _check_session(self, session: Session) -> None:
        if not self.ending and not session.in_nested_transaction():
            raise NotYours(f"session.commit(): {OURS}")

    def _check_bind(self, _: Session, __: SessionTransaction, connection: Connection) -> None:
        if connection is not self._connection:
            raise NotYours(
                f"the session takes rows to {connection.engine.url!r}, which this transaction does not "
                "commit: they would be lost. A dual write has one database; give the store a "
                "session_factory without other binds"
            )

    def _on_statement(self, _: Connection, __: Any, statement: str, *___: Any) -> None:
        """Track savepoints, both SQLAlchemy's own and those in SQL text."""
        match savepoint_of(statement):
            case "SAVEPOINT", name:
                self._savepoints[name] = self._sent
            case "ROLLBACK TO", name:
                self._in_vain = self._in_vain or self._sent > self._savepoints.get(name, 0)

    def on_driver(self, logged: Any) -> None:
        """Track statements sent to asyncpg directly; its report is too late to order them against records."""
        if savepoint_of(logged.query) is not None and logged.query.startswith("ROLLBACK"):
            self._in_vain = self._in_vain or self._sent > 0

    def _on_nested(self, _: Session, made: SessionTransaction) -> None:
        if made.nested:
            self._nested[made] = self._sent

    def _on_nested_rollback(self, _: Session, ended: SessionTransaction) -> None:
        """Check a nested rollback: a session creates its savepoint lazily and may lose rows without one."""
        self._in_vain = self._in_vain or self._sent > self._nested.pop(ended, self._sent)
