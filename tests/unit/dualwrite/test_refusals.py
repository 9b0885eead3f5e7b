"""[DW-3] Which answers to COMMIT say that it did not happen; after any other the outcome is unknown."""

import sqlite3

import psycopg.errors
import pymysql.err
import pytest

from tallystick.dualwrite.rules.refusals import is_conflict, is_refusal
from tallystick.lake.errors import TableBusy


def sqlite(name: str) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("…")
    error.sqlite_errorname = name
    return error


@pytest.mark.parametrize(
    "answer",
    [
        psycopg.errors.SerializationFailure(),
        psycopg.errors.UniqueViolation(),
        psycopg.errors.DeadlockDetected(),
        psycopg.errors.RaiseException(),
        pymysql.err.OperationalError(1213, "Deadlock found"),
        pymysql.err.OperationalError(1114, "The table is full"),
        pymysql.err.OperationalError(
            3100, "Error on observer while running replication hook 'before_commit'"
        ),
        pymysql.err.OperationalError(3101, "Plugin instructed the server to rollback the transaction"),
        sqlite("SQLITE_BUSY_SNAPSHOT"),
        sqlite("SQLITE_FULL"),
    ],
)
def test_a_refusal_is_certain(answer: Exception) -> None:
    assert is_refusal(answer)


@pytest.mark.parametrize(
    "answer",
    [
        psycopg.errors.StatementCompletionUnknown(),
        psycopg.errors.AdminShutdown(),
        psycopg.errors.CrashShutdown(),
        psycopg.errors.DiskFull(),
        psycopg.errors.ConnectionFailure(),
        psycopg.errors.IoError(),
        psycopg.errors.InternalError_(),
        psycopg.OperationalError("server closed the connection unexpectedly"),
        pymysql.err.OperationalError(1180, "Got error 149 during COMMIT"),
        pymysql.err.OperationalError(2013, "Lost connection to MySQL server during query"),
        sqlite("SQLITE_IOERR_FSYNC"),
        ConnectionResetError(104, "reset by peer"),
        TimeoutError(),
        None,
    ],
)
def test_everything_else_is_unknown(answer: object) -> None:
    assert not is_refusal(answer)


def test_a_conflict_is_an_error_of_the_database() -> None:
    assert is_conflict(pymysql.err.OperationalError(1213, "Deadlock found"))
    assert is_conflict(psycopg.errors.SerializationFailure())
    assert not is_conflict(KeyError(1213))
    assert is_conflict(TableBusy("others have committed first"))
    assert not is_conflict(pymysql.err.OperationalError(1062, "Duplicate entry"))
