"""What a transaction of the SQL stores notices on its connection and its session, and refuses.

Shared by the stores that wait and those that are awaited: SQLAlchemy's events come from the synchronous
objects under both.
"""

from collections.abc import Callable
from typing import Any, Final

from sqlalchemy import Connection, event
from sqlalchemy.orm import Session, SessionTransaction

from tallystick.dualwrite.errors import NotYours
from tallystick.dualwrite.stores.refusals import SENT_IN_VAIN, savepoint_of

OURS: Final = "the writer commits and rolls back; inside its block use begin_nested() for a savepoint"


class Guard:
    """Listens to one connection, and to the session on it, from the beginning of a transaction to its end."""

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
        """Refuse what would end the transaction, or take rows elsewhere."""
        event.listen(session, "before_commit", self._check_session)
        event.listen(session, "after_begin", self._check_bind)
        event.listen(session, "after_transaction_create", self._on_nested)
        event.listen(session, "after_soft_rollback", self._on_nested_rollback)

    def release(self) -> None:
        """The connection is given back."""
        for name, hook in self._hooks.items():
            event.remove(self._connection, name, hook)

    def sent(self) -> None:
        """A record is on its way."""
        self._sent += 1

    def check_savepoints(self) -> None:
        """Raises: NotYours when a record was sent whose rows were rolled back."""
        if self._in_vain:
            raise NotYours(SENT_IN_VAIN)

    def flush(self, session: Session) -> None:
        """As a Session's own commit does, before Kafka's half is prepared: its hooks may still send."""
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
        """SQLAlchemy's own savepoints pass here, and those in SQL text."""
        match savepoint_of(statement):
            case "SAVEPOINT", name:
                self._savepoints[name] = self._sent
            case "ROLLBACK TO", name:
                self._in_vain = self._in_vain or self._sent > self._savepoints.get(name, 0)

    def on_driver(self, logged: Any) -> None:
        """What asyncpg was told beside SQLAlchemy. It says so later: what was sent before is not known."""
        if savepoint_of(logged.query) is not None and logged.query.startswith("ROLLBACK"):
            self._in_vain = self._in_vain or self._sent > 0

    def _on_nested(self, _: Session, made: SessionTransaction) -> None:
        if made.nested:
            self._nested[made] = self._sent

    def _on_nested_rollback(self, _: Session, ended: SessionTransaction) -> None:
        """The session makes its savepoint with the first statement: before, rows are lost without one."""
        self._in_vain = self._in_vain or self._sent > self._nested.pop(ended, self._sent)
