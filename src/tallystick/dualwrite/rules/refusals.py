"""Database errors that prove a COMMIT did not happen [DW-3], and texts of the stores' refusals. Pure."""

from typing import Final

from tallystick.kernel.errors import Conflict

# PostgreSQL answers COMMIT with an error only if it did not commit. A lost connection is no answer, nor is a
# shutdown (57), an I/O error (58), an internal error (XX) or a full disk (53): a server that cannot write its
# commit record terminates with that code. 40003 means "statement completion unknown".
_POSTGRESQL_STATES: Final = ("22", "23", "25", "40001", "40002", "40P01", "P0")
_SQLITE_ERRORS: Final = (
    "SQLITE_BUSY",
    "SQLITE_LOCKED",
    "SQLITE_CONSTRAINT",
    "SQLITE_FULL",
    "SQLITE_READONLY",
)
# Lock wait, deadlock, table full, read only, timeout; a hook of replication failed before the commit, a
# plugin (Group Replication) rolled it back. Not 1180: an engine may fail when the binary log has the commit.
_MYSQL_ERRORS: Final = (1205, 1213, 1114, 1290, 3024, 3100, 3101)


def is_refusal(answer: object) -> bool:
    """Return whether a driver's exception is a refusal, by `sqlstate`, `sqlite_errorname` or number."""
    state = getattr(answer, "sqlstate", None) or getattr(answer, "pgcode", None)
    if isinstance(state, str):
        return state.startswith(_POSTGRESQL_STATES)
    name = getattr(answer, "sqlite_errorname", None)
    if isinstance(name, str):
        return name.startswith(_SQLITE_ERRORS)
    return next(iter(getattr(answer, "args", ())), None) in _MYSQL_ERRORS


_POSTGRESQL_CONFLICTS: Final = ("40001", "40P01", "55P03")  # serialization failure, deadlock, lock timeout
_SQLITE_CONFLICTS: Final = ("SQLITE_BUSY", "SQLITE_LOCKED")
_MYSQL_CONFLICTS: Final = (1205, 1213, 1020)  # lock wait, deadlock, snapshot isolation


def is_conflict(exc: BaseException | None) -> bool:
    """Return whether an error is a conflict with another transaction, and may not occur again.

    SQLAlchemy keeps the driver's exception in `orig`, Django as the cause.
    """
    while exc is not None:
        if isinstance(exc, Conflict):
            return True
        answer = getattr(exc, "orig", None) or exc
        state = getattr(answer, "sqlstate", None) or getattr(answer, "pgcode", None)
        name = getattr(answer, "sqlite_errorname", None)
        if isinstance(state, str) and state.startswith(_POSTGRESQL_CONFLICTS):
            return True
        if isinstance(name, str) and name.startswith(_SQLITE_CONFLICTS):
            return True
        kinds = {each.__name__ for each in type(answer).__mro__}  # PEP 249; KeyError(1213) is not a conflict
        if "DatabaseError" in kinds and next(iter(answer.args), None) in _MYSQL_CONFLICTS:
            return True
        exc = exc.__cause__
    return False


_POSTGRESQL_ENDS: Final = ("08", "57P01", "57P02", "57P03")  # connection exception, shutdown, restart


def is_connection_lost(exc: BaseException | None) -> bool:
    """Return whether an error is that of a connection that is lost, or was ended by the server.

    SQLAlchemy says so. Beneath Django, the error of a driver of PostgreSQL has a code of that class, or none,
    because the server has not given one.
    """
    while exc is not None:
        if getattr(exc, "connection_invalidated", False):
            return True
        kinds = {each.__name__ for each in type(exc).__mro__}
        code = getattr(exc, "sqlstate", getattr(exc, "pgcode", ""))
        if kinds & {"OperationalError", "InterfaceError"} and (
            code is None or code.startswith(_POSTGRESQL_ENDS)
        ):
            return True
        exc = exc.__cause__
    return False


TRANSACTION_ENDED_TEXT: Final = (
    "the database transaction was ended inside the block, by a COMMIT or ROLLBACK of its own or by a "
    "statement that commits by itself (DDL on MySQL and MariaDB). Rows written before that are gone after a "
    "ROLLBACK and committed after a COMMIT; nothing else of this block is, and no record. Leave both to the "
    "writer; a savepoint is yours"
)
ENDING_STATEMENT_TEXT: Final = (
    "it ends the database transaction, with its rows and without its records. It was not sent. Leave COMMIT "
    "and ROLLBACK to the writer; a savepoint is yours, and a statement that commits by itself belongs outside"
)
ORPHANED_RECORDS_TEXT: Final = (
    "records were sent inside a savepoint that was rolled back, and they would be committed without its "
    "rows: neither side is committed. Send after the savepoint, or use txn.savepoint(), which keeps records "
    "back until its end; if one is refused there, let its error end the transaction"
)


def parse_savepoint(statement: str) -> tuple[str, str] | None:
    """Parse a savepoint statement into SAVEPOINT or ROLLBACK TO and its name; None for all others."""
    if statement[:20].lstrip()[:8].upper() not in ("SAVEPOIN", "ROLLBACK"):
        return None
    words = statement.translate(_QUOTES_REMOVED).split()
    match [each.upper() for each in words[:-1]]:
        case ["SAVEPOINT"]:
            return "SAVEPOINT", words[-1].lower()
        case ["ROLLBACK", *between] if "TO" in between:
            return "ROLLBACK TO", words[-1].lower()
    return None


_QUOTES_REMOVED: Final = str.maketrans("", "", '"`;')
