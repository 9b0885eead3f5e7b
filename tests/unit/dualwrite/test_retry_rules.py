"""[DW-3] Work is repeated only if neither side can be committed: every class of error, one row each."""

import sqlite3
from collections.abc import Iterator
from itertools import product

import psycopg.errors
import pymysql.err
import pytest
import sqlalchemy.exc

from tallystick.client import errors as client
from tallystick.dualwrite import errors as own
from tallystick.dualwrite.rules.retries import (
    Failure,
    NextStep,
    Retry,
    classify_failure,
    decide_next_step,
    is_outage,
    to_retry,
)
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import InDoubt
from tallystick.kernel.settings import BadConfig

REPEATED, RAISED = NextStep.RUN_AGAIN, NextStep.RAISE


def refused(code: ErrorCode) -> client.BrokerRefused:
    return client.build_broker_error("Produce", "payments-0", code)


def caused(exc: Exception, cause: BaseException) -> Exception:
    exc.__cause__ = cause
    return exc


def while_handling(exc: Exception, context: BaseException) -> Exception:
    exc.__context__ = context
    return exc


def stale_connection() -> Exception:
    """An error of a pooled connection that the server has ended meanwhile, as SQLAlchemy raises it."""
    lost = pymysql.err.OperationalError(2013, "Lost connection to MySQL server during query")
    return sqlalchemy.exc.OperationalError("BEGIN", {}, lost, connection_invalidated=True)


def in_doubt(outcome: own.Outcome = own.Outcome.UNKNOWN) -> own.WriteInDoubt:
    doubt = own.WriteInDoubt("the answer was lost", {})
    doubt.set_outcome(outcome)
    return doubt


def locked() -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("database is locked")
    error.sqlite_errorname = "SQLITE_BUSY"
    return error


DEADLOCK = psycopg.errors.DeadlockDetected()
TORN = own.HeuristicMixed("the rows are committed")

# One for each class of ours and of the client, and what follows while runs are left.
OF_EACH_CLASS: list[tuple[Exception, NextStep]] = [
    (own.DualWriteError("…"), RAISED),
    (own.WriterFenced("pay-1", "a", "b"), RAISED),
    (own.LeaseLost("pay-1", ""), RAISED),
    (own.NotRecovered("…"), RAISED),
    (own.TransactionTooOld("pay-1", 50, 60), RAISED),
    (own.ManagedByWriter("…"), RAISED),
    (own.UnsafeDurability("fsync", "off", "on"), RAISED),
    (own.BadStore("…"), RAISED),
    (own.CorruptRow("pay-1", "…"), RAISED),
    (own.BadResult("…"), RAISED),
    (own.NotCommitted(DEADLOCK), RAISED),  # a writer raises its cause
    (own.CommitUnknown("…"), RAISED),
    (own.RecoveryHalted("…"), RAISED),
    (own.LogBehind("…"), RAISED),
    (own.ForeignCluster("…"), RAISED),
    (own.DatabaseBehind("…"), RAISED),
    (TORN, RAISED),
    (own.NotVisible("…"), RAISED),
    (own.DataLoss("group", "payments-0", 1, 2, 3), RAISED),
    (own.NoFreeId("…"), RAISED),
    (InDoubt("…"), RAISED),
    (client.ClientError("…"), RAISED),
    (refused(ErrorCode.INVALID_RECORD), RAISED),
    (refused(ErrorCode.PRODUCER_FENCED), RAISED),
    (refused(ErrorCode.INVALID_PRODUCER_ID_MAPPING), RAISED),
    (refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED), RAISED),
    (refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), REPEATED),  # by its rule: the metadata may be old
    (refused(ErrorCode.MESSAGE_TOO_LARGE), RAISED),
    (client.SerializationFailed("payments", "value", "…"), RAISED),
    (client.Unreachable("host:9092", "refused"), REPEATED),
    (client.NotKafka("host:9092", "refused"), REPEATED),
    (client.WrongBroker("host:9092", "it is another"), REPEATED),
    (client.AuthenticationFailed("host:9092", "…"), RAISED),
    (client.TlsFailed("host:9092", "…"), RAISED),
    (client.ConnectionLost("host:9092", "Produce", "…"), REPEATED),
    (client.TimedOut("delivery.timeout.ms", 120_000, "Produce"), REPEATED),
    (client.BadAnswer("host:9092", "Produce", "…"), RAISED),
    (client.NotSupported("…", "…"), RAISED),
    (client.AbortRequired("…"), RAISED),
    (client.IllegalState("…"), RAISED),
    (client.InvalidTxnState("…"), RAISED),
    (client.DecisionExpired("…"), RAISED),
    (client.Closed("…"), RAISED),
    (client.PositionUnknown("payments", 0, "…"), RAISED),
    (client.TopicRecreated("payments", 0, "…"), RAISED),
    (client.WokenUp("…"), RAISED),
    (client.CommitRefused("…"), RAISED),
    (client.RecordUnreadable("payments", 0, 7, "…"), RAISED),
    (client.DeserializationFailed("payments", 0, 7, "value", "…"), RAISED),
]


def classes(base: type[Exception]) -> Iterator[type[Exception]]:
    yield base
    for each in base.__subclasses__():
        if each.__module__ in (own.__name__, client.__name__):
            yield from classes(each)


@pytest.mark.parametrize(("failure", "expected"), OF_EACH_CLASS, ids=lambda each: type(each).__name__)
def test_what_follows_each_class_of_error(failure: Exception, expected: NextStep) -> None:
    step = decide_next_step(failure, is_own_doubt=False, is_recovered=False, is_last=False)
    assert step is expected
    if expected is REPEATED:
        last = decide_next_step(failure, is_own_doubt=False, is_recovered=False, is_last=True)
        assert last is RAISED


def test_no_class_of_error_is_left_out() -> None:
    listed = {type(failure) for failure, _ in OF_EACH_CLASS} | {own.WriteInDoubt}
    assert (
        set(classes(own.DualWriteError)) | set(classes(client.ClientError)) | set(classes(InDoubt)) == listed
    )


def test_which_classes_are_an_outage() -> None:
    """Of each of these neither side is committed, and it is not the work that caused it."""
    outages = {type(failure) for failure, _ in OF_EACH_CLASS if is_outage(failure)}
    assert outages == {
        own.WriterFenced,
        own.LeaseLost,
        own.NoFreeId,
        own.NotRecovered,
        own.TransactionTooOld,
        client.Fenced,
        client.UnknownTopic,
        client.Unreachable,
        client.NotKafka,
        client.WrongBroker,
        client.ConnectionLost,
        client.TimedOut,
    }


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (DEADLOCK, True),
        (psycopg.errors.AdminShutdown(), True),
        (sqlalchemy.exc.OperationalError("INSERT", {}, psycopg.OperationalError("no connection")), True),
        (sqlalchemy.exc.InterfaceError("INSERT", {}, psycopg.InterfaceError("closed")), True),
        (psycopg.errors.UniqueViolation(), False),
        (ValueError("no such order"), False),
        (while_handling(psycopg.OperationalError("no connection"), in_doubt()), False),
        (caused(client.Unreachable("host:9092", "refused"), TORN), False),
    ],
    ids=lambda each: type(each).__name__,
)
def test_an_outage_is_told_by_its_cause(failure: Exception, expected: bool) -> None:
    assert is_outage(failure) is expected


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (DEADLOCK, Failure.CONFLICT),
        (psycopg.errors.SerializationFailure(), Failure.CONFLICT),
        (pymysql.err.OperationalError(1213, "Deadlock found"), Failure.CONFLICT),
        (sqlalchemy.exc.OperationalError("INSERT", {}, DEADLOCK), Failure.CONFLICT),
        (sqlalchemy.exc.OperationalError("BEGIN IMMEDIATE", {}, locked()), Failure.CONFLICT),
        (psycopg.errors.UniqueViolation(), Failure.OTHER),
        (psycopg.errors.AdminShutdown(), Failure.LOST_CONNECTION),
        (psycopg.OperationalError("the connection is closed"), Failure.LOST_CONNECTION),
        (stale_connection(), Failure.LOST_CONNECTION),
        (sqlite3.OperationalError("no such table: payments"), Failure.OTHER),
        (sqlalchemy.exc.OperationalError("SELECT", {}, pymysql.err.OperationalError(1054)), Failure.OTHER),
        (ValueError("no such order"), Failure.OTHER),
        (refused(ErrorCode.TRANSACTION_ABORTABLE), Failure.REFUSED_BY_KAFKA),
        (refused(ErrorCode.NOT_ENOUGH_REPLICAS), Failure.REFUSED_BY_KAFKA),
        (refused(ErrorCode.REQUEST_TIMED_OUT), Failure.REFUSED_BY_KAFKA),
        (
            caused(client.AbortRequired("a record failed"), refused(ErrorCode.NOT_LEADER_OR_FOLLOWER)),
            Failure.REFUSED_BY_KAFKA,
        ),
        (
            caused(client.AbortRequired("a record failed"), refused(ErrorCode.MESSAGE_TOO_LARGE)),
            Failure.OTHER,
        ),
        (
            caused(refused(ErrorCode.PRODUCER_FENCED), client.ConnectionLost("host:9092", "Produce", "…")),
            Failure.OTHER,
        ),
        # What the work made of an error of another writer, whose half is committed or may be.
        (caused(psycopg.errors.DeadlockDetected(), TORN), Failure.OTHER),
        (caused(ValueError("payment failed"), in_doubt()), Failure.OTHER),
        (while_handling(psycopg.errors.DeadlockDetected(), in_doubt()), Failure.OTHER),
        (while_handling(client.Unreachable("host:9092", "refused"), own.NotVisible("…")), Failure.OTHER),
    ],
    ids=repr,
)
def test_reasons_are_looked_for_behind_an_error(failure: Exception, expected: Failure) -> None:
    for is_own_doubt, is_recovered in product((False, True), repeat=2):
        assert classify_failure(failure, is_own_doubt=is_own_doubt, is_recovered=is_recovered) is expected


@pytest.mark.parametrize("is_last", [False, True])
def test_a_doubt_is_recovered_first(is_last: bool) -> None:
    for outcome in own.Outcome:
        step = decide_next_step(in_doubt(outcome), is_own_doubt=True, is_recovered=False, is_last=is_last)
        assert step is NextStep.RECOVER


@pytest.mark.parametrize(
    ("outcome", "while_runs_are_left", "at_the_last"),
    [
        (own.Outcome.COMMITTED, NextStep.RETURN, NextStep.RETURN),
        (own.Outcome.NOT_COMMITTED, REPEATED, RAISED),
        (own.Outcome.UNKNOWN, RAISED, RAISED),
    ],
)
def test_after_a_recovery_the_outcome_decides(
    outcome: own.Outcome, while_runs_are_left: NextStep, at_the_last: NextStep
) -> None:
    steps = [
        decide_next_step(in_doubt(outcome), is_own_doubt=True, is_recovered=True, is_last=is_last)
        for is_last in (False, True)
    ]
    assert steps == [while_runs_are_left, at_the_last]


def test_the_doubt_of_another_writer_is_not_ours_to_recover() -> None:
    for outcome in own.Outcome:
        step = decide_next_step(in_doubt(outcome), is_own_doubt=False, is_recovered=False, is_last=False)
        assert step is RAISED


def test_pauses_double_up_to_the_longest_and_are_drawn_from_zero() -> None:
    retry = Retry(attempts=9, backoff_ms=20, backoff_max_ms=100)
    assert [retry.pause_ms(run, 1.0) for run in range(1, 6)] == [20, 40, 80, 100, 100]
    assert retry.pause_ms(3, 0.5) == 40
    assert retry.pause_ms(3, 0.0) == 0
    assert retry.pause_ms(100_000, 1.0) == 100


def test_a_number_is_that_of_the_repetitions() -> None:
    assert [to_retry(number).attempts for number in (0, 1, 3)] == [1, 2, 4]
    assert to_retry(Retry(attempts=3)).attempts == 3


@pytest.mark.parametrize(
    ("retry", "problem"),
    [
        (Retry(attempts=0), "attempts: 0"),
        (Retry(attempts=1001), "attempts: 1001"),
        (Retry(backoff_ms=-1), "backoff_ms: -1"),
        (Retry(backoff_ms=50, backoff_max_ms=49), "backoff_max_ms: 49"),
    ],
)
def test_rules_that_cannot_hold_are_refused(retry: Retry, problem: str) -> None:
    with pytest.raises(BadConfig, match=problem):
        to_retry(retry)


def test_a_negative_number_of_repetitions_is_refused() -> None:
    with pytest.raises(ValueError, match="-1"):
        to_retry(-1)
