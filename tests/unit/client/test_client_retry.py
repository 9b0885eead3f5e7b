"""The table of what codes mean, held to all codes and to what other clients do."""

import pytest

from tallystick.client.errors import (
    BrokerRefused,
    Closed,
    ConnectionLost,
    Fenced,
    TimedOut,
    Unreachable,
    build_broker_error,
)
from tallystick.client.errors.rules import (
    READ_ONLY_APIS,
    RULES,
    UNKNOWN_CODE_RULE,
    Rule,
    find_rule,
    infer_loss_effect,
)
from tallystick.client.net.backoff import compute_backoff_ms
from tallystick.client.net.retry_scope import Deadline
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Effect, Remedy
from tallystick.protocol.apis import API_SPECS

NAMES = sorted(spec.name for spec in API_SPECS.values())


def test_every_api_and_code_has_a_rule_and_an_unknown_number_is_the_worst() -> None:
    for api in NAMES:
        for code in ErrorCode:
            assert isinstance(find_rule(api, code), Rule)
    assert find_rule("EndTxn", 9999) == UNKNOWN_CODE_RULE
    assert find_rule("EndTxn", ErrorCode.UNKNOWN_SERVER_ERROR) == UNKNOWN_CODE_RULE


def test_rows_name_apis_that_exist() -> None:
    assert {api for api, _ in RULES} - {"*"} <= set(NAMES)
    assert set(NAMES) >= READ_ONLY_APIS


@pytest.mark.parametrize("code", ErrorCode)
@pytest.mark.slow
def test_what_kafka_calls_retriable_is_repeated_and_nothing_else(code: ErrorCode) -> None:
    """Kafka's flag, against the fallback rules; 129 starts anew and repeats (KIP-1102)."""
    repeats = find_rule("*", code).remedy.repeats
    assert repeats == (code.retriable or code is ErrorCode.REBOOTSTRAP_REQUIRED)


def test_reading_has_no_effect_whatever_becomes_of_it() -> None:
    for api in READ_ONLY_APIS:
        assert infer_loss_effect(api) is Effect.NONE
        assert all(find_rule(api, code).effect is Effect.NONE for code in (*ErrorCode, 9999))


@pytest.mark.parametrize("api", ["InitProducerId", "AddPartitionsToTxn", "AddOffsetsToTxn", "EndTxn"])
@pytest.mark.parametrize("code", [ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR])
def test_a_coordinator_that_is_gone_may_have_written(api: str, code: ErrorCode) -> None:
    """Its append timed out (7, 19, 20 become 15) or its log moved (6, 56 become 16): the record may stay."""
    assert find_rule(api, code) == Rule(Effect.UNKNOWN, Remedy.FIND_COORDINATOR)
    assert find_rule("OffsetFetch", code) == Rule(Effect.NONE, Remedy.FIND_COORDINATOR)


@pytest.mark.parametrize("code", [47, 48, 49, 90])
def test_a_decision_that_is_refused_may_have_been_taken_before(code: int) -> None:
    assert find_rule("EndTxn", code) == Rule(Effect.UNKNOWN, Remedy.LOOK_UP)


def test_47_ends_a_transaction_on_produce_and_the_producer_elsewhere() -> None:
    assert find_rule("Produce", 47).remedy is Remedy.ABORT
    assert find_rule("InitProducerId", 47).remedy is Remedy.STOP


def test_the_effect_of_attempts_is_the_worst_of_them() -> None:
    """[CLI-1] Once one attempt is unknown, no later answer is "nothing happened"."""
    lost = ConnectionLost("a:1", "Produce", "reset")
    definite = build_broker_error("Produce", "t-0", ErrorCode.MESSAGE_TOO_LARGE)
    assert definite.effect is Effect.NONE
    assert definite.after(lost.effect).effect is Effect.UNKNOWN
    assert "it may have happened" in str(definite)
    assert definite.after(Effect.NONE).effect is Effect.UNKNOWN


def test_errors_say_what_happened_and_what_to_do() -> None:
    assert str(build_broker_error("InitProducerId", "pay-7", 53, "no WRITE")) == (
        "InitProducerId 'pay-7': TRANSACTIONAL_ID_AUTHORIZATION_FAILED (no WRITE): Write on the "
        "transactional id 'pay-7' is needed, with two-phase commit TwoPhaseCommit as well: tallystick acls "
        "create --allow-principal User:NAME --operation Write --transactional-id pay-7 (and --operation "
        "TwoPhaseCommit); nothing happened; trying again does not help until something is changed"
    )
    assert str(TimedOut("max.block.ms", 5, "Metadata 'x'", "UNKNOWN")) == (
        "Metadata 'x': not within max.block.ms = 5 ms; the last attempt: UNKNOWN; nothing happened; try again"
    )
    assert isinstance(build_broker_error("Produce", "x-0", 90), Fenced)
    assert type(build_broker_error("Produce", "x-0", 9999)) is BrokerRefused
    assert Unreachable("a:1", "refused").effect is Effect.NONE
    assert Closed("the client was closed").effect is Effect.NONE


def test_waits_double_to_the_limit_and_differ_by_a_fifth() -> None:
    assert [compute_backoff_ms(n, 100, 1000, 0.5) for n in range(6)] == [100, 200, 400, 800, 1000, 1000]
    assert (compute_backoff_ms(0, 100, 1000, 0.0), compute_backoff_ms(0, 100, 1000, 1.0)) == (80, 120)
    assert compute_backoff_ms(10**9, 100, 1000, 0.5) == 1000


def test_a_deadline_has_a_name_and_does_not_go_below_zero() -> None:
    """[CLI-2]"""
    deadline = Deadline(1_500, "max.block.ms", 1_000)
    assert (deadline.remaining_ms(600), deadline.remaining_ms(9_999)) == (900, 0)
