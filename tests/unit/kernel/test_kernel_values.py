"""The kernel: identifiers print as Kafka prints them, checks survive, the fake clock stands still."""

import subprocess
import sys

import pytest

from tallystick.kernel.check import InvariantBroken, check
from tallystick.kernel.clock import SystemClock
from tallystick.kernel.codes import ErrorCode, get_error_name
from tallystick.kernel.ids import ProducerEpoch, ProducerId, ProducerIdAndEpoch, TopicPartition
from tallystick.testing import FakeClock, eventually


def test_a_topic_partition_prints_as_its_directory() -> None:
    assert str(TopicPartition("orders", 3)) == "orders-3"


def test_identities_order_by_producer_then_epoch() -> None:
    older = ProducerIdAndEpoch(ProducerId(4), ProducerEpoch(9))
    newer = ProducerIdAndEpoch(ProducerId(5), ProducerEpoch(0))
    assert older < newer
    assert str(newer) == "5/0"


def test_check_holds_under_optimisation() -> None:
    """A bare `assert` would vanish here; an invariant must not."""
    code = "from tallystick.kernel.check import check; check(False, 'two leaders')"
    done = subprocess.run([sys.executable, "-O", "-c", code], capture_output=True, text=True, check=False)
    assert "InvariantBroken: two leaders" in done.stderr
    check(True, "never raised")
    with pytest.raises(InvariantBroken, match="two leaders"):
        check(0, "two leaders")


@pytest.mark.parametrize(
    ("code", "retriable"),
    [
        (ErrorCode.CONCURRENT_TRANSACTIONS, True),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, True),
        (ErrorCode.PRODUCER_FENCED, False),
        (ErrorCode.TRANSACTION_ABORTABLE, False),
        (ErrorCode.NONE, False),
    ],
)
def test_retriable_codes_are_those_kafka_calls_retriable(code: ErrorCode, retriable: bool) -> None:
    assert code.retriable is retriable


def test_codes_have_kafkas_numbers_and_unknown_ones_keep_theirs() -> None:
    assert get_error_name(51) == "CONCURRENT_TRANSACTIONS"
    assert get_error_name(90) == "PRODUCER_FENCED"
    assert get_error_name(9_999) == "UNKNOWN(9999)"


def test_a_fake_clock_moves_only_when_told() -> None:
    clock = FakeClock(start_ms=1_000)
    assert (clock.now_ms(), clock.monotonic_ms()) == (1_000, 0)
    clock.advance(250)
    assert (clock.now_ms(), clock.monotonic_ms()) == (1_250, 250)


def test_the_system_clock_is_in_milliseconds_and_does_not_step_back() -> None:
    clock = SystemClock()
    assert clock.now_ms() > 1_600_000_000_000
    assert clock.monotonic_ms() <= clock.monotonic_ms()


def test_eventually_returns_what_became_true_and_names_what_did_not() -> None:
    answers = iter([None, 0, "ready"])
    assert eventually(lambda: next(answers), deadline_s=5) == "ready"

    def never() -> bool:
        raise AssertionError("3 of 4 arrived")

    with pytest.raises(TimeoutError, match="3 of 4 arrived"):
        eventually(never, deadline_s=0.05)
