"""Statements that psycopg 3 sends to PostgreSQL in one message, for one round trip instead of two.

Two places of a dual write have them: BEGIN with the mark of the transaction, and its record with COMMIT.
PostgreSQL executes the statements of such a message one after the other, and none after one that fails
("Multiple Statements in a Simple Query"). Hence a record that finds no row must be an error: an UPDATE of no
rows is none, and its COMMIT would follow. psycopg's pipeline has other limits: it waits for the answer to
its own BEGIN, and once more at its end.

Other drivers and databases send one statement at a time. Nothing here waits or connects.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from sqlalchemy import Connection, Dialect, Update
from sqlalchemy.exc import DBAPIError

from tallystick.dualwrite.stores.durability import AllowedRisks, check_postgresql

_MISSED_TEXT: Final = "tallystick: not recorded"
_NOT_DURABLE_TEXT: Final = "tallystick: not durable"
_PARAMETER: Final = re.compile(r"%\((\w+)\)s")
_BAD_CAST: Final = "22P02"
_FIRST_OF_ALL: Final = "IDLE"
_ABORTED: Final = "INERROR"


def can_begin_in_one(driver: Any, dbapi: Any) -> bool:
    """Return whether this is an idle connection of psycopg 3 that begins transactions by itself."""
    return (
        hasattr(driver, "pgconn")
        and hasattr(getattr(dbapi, "generators", None), "execute")
        and not getattr(driver, "autocommit", True)
        and driver.info.transaction_status.name == _FIRST_OF_ALL
    )


def build_begin(driver: Any, marking: str) -> bytes:
    """Return BEGIN as psycopg would send it, with the statement that sets the mark."""
    parts = ["BEGIN"]
    if driver.isolation_level is not None:
        parts.append(f"ISOLATION LEVEL {driver.isolation_level.name.replace('_', ' ')}")
    if driver.read_only is not None:
        parts.append("READ ONLY" if driver.read_only else "READ WRITE")
    if driver.deferrable is not None:
        parts.append("DEFERRABLE" if driver.deferrable else "NOT DEFERRABLE")
    return f"{' '.join(parts)}; {marking}".encode()


def check_begun(results: Sequence[Any], dbapi: Any) -> None:
    """Raise the driver's error for a result that is one."""
    for each in results:
        if each.status == dbapi.pq.ExecStatus.FATAL_ERROR:
            raise dbapi.errors.error_from_result(each)


def can_commit_in_one(connection: Connection, driver: Any, dbapi: Any) -> bool:
    """Return whether the record can go with COMMIT.

    Not where others listen to SQLAlchemy's `commit` event: they may write rows, which belong before COMMIT.
    """
    return (
        connection.dialect.name == "postgresql"
        and hasattr(driver, "pgconn")
        and hasattr(dbapi, "ClientCursor")
        and len(connection.dispatch.commit) == 1
    )


class CommitTexts:
    """Texts of one statement with COMMIT, kept for a store: to compile costs more than to execute."""

    def __init__(self, statement: Update, allowed: AllowedRisks) -> None:
        self._statement = statement
        self._checks_durability = not allowed.covers("synchronous_commit")
        self._template = ""
        self._constants: Mapping[str, object] = {}
        self._texts: dict[int, str] = {}

    def build(
        self, dialect: Dialect, records: Sequence[Mapping[str, object]]
    ) -> tuple[str, Mapping[str, object]]:
        """Return the text and the parameters of the statement for each of `records`, and COMMIT."""
        if len(records) not in self._texts:
            self._texts[len(records)] = self._build_text(dialect, records)
        values = dict[str, object]()
        for number, record in enumerate(records):
            values.update((f"{name}_{number}", value) for name, value in self._constants.items())
            values.update((f"{name}_{number}", value) for name, value in record.items())
        return self._texts[len(records)], values

    def _build_text(self, dialect: Dialect, records: Sequence[Mapping[str, object]]) -> str:
        if not self._template:
            names = list(records[0])
            compiled = self._statement.compile(dialect=dialect, column_keys=names)
            self._constants = {name: value for name, value in compiled.params.items() if name not in names}
            self._template = _build_record(str(compiled), checks_durability=self._checks_durability)
        numbers = range(len(records))
        texts = [_PARAMETER.sub(rf"%(\1_{number})s", self._template) for number in numbers]
        return "; ".join([*texts, "COMMIT"])


def _build_record(update: str, *, checks_durability: bool) -> str:
    """Wrap an UPDATE that returns `synchronous_commit`, so that it fails unless it changes a row durably.

    The text that is no number is in the error's message in every language. It is made of what the row has,
    because the planner would evaluate a constant.
    """
    missed = f"CASE WHEN count(*) = 0 THEN ('{_MISSED_TEXT} ' || count(*))::int END"
    unsafe = f"min(CASE WHEN setting = 'off' THEN ('{_NOT_DURABLE_TEXT} ' || setting)::int END)"
    checks = f"{missed}, {unsafe}" if checks_durability else missed
    return f"WITH recorded (setting) AS ({update}) SELECT {checks} FROM recorded"


def to_sqlalchemy_error(connection: Connection, exc: Exception) -> DBAPIError:
    """Return what SQLAlchemy would raise for the driver's error, and invalidate a connection that is lost."""
    dialect = connection.dialect
    base = dialect.loaded_dbapi.Error
    is_lost = dialect.is_disconnect(exc, connection.connection, None)  # type: ignore[arg-type]
    if is_lost:
        connection.invalidate(exc)
    failure = DBAPIError.instance("COMMIT", None, exc, base, connection_invalidated=is_lost, dialect=dialect)
    assert isinstance(failure, DBAPIError)
    return failure


def is_still_open(driver: Any) -> bool:
    """Return whether the transaction has failed and not ended, which proves that COMMIT was not executed."""
    return bool(driver.info.transaction_status.name == _ABORTED)


def is_missed(exc: DBAPIError) -> bool:
    """Return whether the record has found no row."""
    return _has_text(exc, _MISSED_TEXT)


def check_durable(exc: DBAPIError, allowed: AllowedRisks) -> None:
    """Raise UnsafeStore if the record has found that COMMIT would not be durable [DW-8]."""
    if _has_text(exc, _NOT_DURABLE_TEXT):
        check_postgresql("off", allowed)


def _has_text(exc: DBAPIError, text: str) -> bool:
    return getattr(exc.orig, "sqlstate", None) == _BAD_CAST and text in str(exc.orig)
