"""Done, refused, outcome unknown: what an error says of an action."""

import pytest

from tallystick._lazy import MissingLibrary
from tallystick.admin.errors import NothingOpen, NotSafe
from tallystick.client.errors import (
    ClientError,
    ConnectionLost,
    NotSupported,
    TimedOut,
    Unreachable,
    build_broker_error,
)
from tallystick.console.actions.plan import ActionPlan, LookUp
from tallystick.console.actions.results import (
    ActionOutcome,
    classify_error,
    describe_exception,
    report_done,
    report_refusal,
)
from tallystick.dualwrite.errors import BadStore, CommitUnknown, HeuristicMixed, LogBehind, UnsafeDurability
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Effect, InDoubt
from tallystick.spark.protocol.errors import DecisionBroken, SinkError

LOOK_UP = LookUp(command="tallystick transactions describe", meaning="CompleteAbort: it was done.")
PLAN = ActionPlan(kind="abort", title="t", subject="s", confirmation="s", sides=(), look_ups=(LOOK_UP,))
TIMED_OUT: ClientError = TimedOut("default.api.timeout.ms", 1, "InitProducerId").after(Effect.UNKNOWN)


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (NotSafe("a", "it is in doubt"), ActionOutcome.REFUSED),
        (NothingOpen("orders-0", "at offset 3", "nothing is open there"), ActionOutcome.REFUSED),
        (NothingOpen("orders-0", "at offset 3", "it has gone").after(Effect.UNKNOWN), ActionOutcome.UNKNOWN),
        (Unreachable("h:1", "refused"), ActionOutcome.REFUSED),
        (NotSupported("two-phase commit", "a broker of KIP-939"), ActionOutcome.REFUSED),
        (
            build_broker_error("InitProducerId", "a", ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
            ActionOutcome.REFUSED,
        ),
        (build_broker_error("EndTxn", "a", ErrorCode.REQUEST_TIMED_OUT), ActionOutcome.UNKNOWN),
        (build_broker_error("EndTxn", "a", 9_999), ActionOutcome.UNKNOWN),
        (ConnectionLost("h:1", "InitProducerId", "cut"), ActionOutcome.UNKNOWN),
        (ConnectionLost("h:1", "DescribeTransactions", "cut"), ActionOutcome.REFUSED),
        (TimedOut("default.api.timeout.ms", 1, "Metadata"), ActionOutcome.REFUSED),
        (TIMED_OUT, ActionOutcome.UNKNOWN),
        (InDoubt("a"), ActionOutcome.UNKNOWN),
        (CommitUnknown("a"), ActionOutcome.UNKNOWN),
        (LogBehind("a"), ActionOutcome.REFUSED),
        (HeuristicMixed("a"), ActionOutcome.REFUSED),
        (BadStore("a"), ActionOutcome.REFUSED),
        (UnsafeDurability("fsync", "off", "on"), ActionOutcome.REFUSED),
        (DecisionBroken("a"), ActionOutcome.REFUSED),
        (SinkError("a"), ActionOutcome.UNKNOWN),
        (MissingLibrary("kazoo", "zookeeper"), ActionOutcome.REFUSED),
        (RuntimeError("of a driver"), ActionOutcome.UNKNOWN),
    ],
    ids=lambda value: value.name if isinstance(value, ActionOutcome) else type(value).__name__,
)
def test_an_error_tells_whether_anything_was_done(error: Exception, outcome: ActionOutcome) -> None:
    """[ACT-3] What nothing is known of is unknown, and says what to look at."""
    result = classify_error(error, "text", PLAN)
    assert result.outcome is outcome
    assert result.meaning
    assert result.look_ups == ((LOOK_UP,) if outcome is ActionOutcome.UNKNOWN else ())


def test_the_error_of_one_transaction_says_nothing_of_the_others() -> None:
    lost = Unreachable("h:1", "refused")
    assert classify_error(lost, "", PLAN, is_compound=True).outcome is ActionOutcome.UNKNOWN
    broken = DecisionBroken("a")
    assert classify_error(broken, "", PLAN, is_compound=True).outcome is ActionOutcome.REFUSED


def test_errors_are_one_line() -> None:
    assert describe_exception(RuntimeError("a\n b")) == "RuntimeError: a b"
    assert describe_exception(HeuristicMixed("a\n b")) == "a b"


def test_what_was_done_and_what_was_refused() -> None:
    assert report_done("terminated").outcome is ActionOutcome.DONE
    refusal = report_refusal("moved", changes=("Kafka, now: Empty.",))
    assert (refusal.meaning, refusal.changes) == ("Nothing was sent.", ("Kafka, now: Empty.",))
