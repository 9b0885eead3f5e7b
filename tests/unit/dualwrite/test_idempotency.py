"""Keys that databases keep as they are, results that JSON gives back, and the key of each call."""

import math
from collections import Counter, OrderedDict
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Any
from uuid import UUID

import pytest

from tallystick.client.errors import NotSupported
from tallystick.client.transactions.modes import TxnDescription
from tallystick.client.transactions.prepared import PreparedTxnState
from tallystick.dualwrite import BadResult, CorruptRow, IdempotencyKey
from tallystick.dualwrite.rules.idempotency import (
    KEY_BYTES_MAX,
    KeyOfCall,
    KeyOutcome,
    KeyResult,
    assess_key,
    check_keys_supported,
    describe_call,
    encode_result,
    get_default_scope,
)
from tallystick.dualwrite.rules.model import StoredState
from tallystick.dualwrite.rules.recovery import ClusterSide
from tallystick.kernel.ids import ProducerEpoch, ProducerId, ProducerIdAndEpoch
from tallystick.kernel.value import replace

KEY = IdempotencyKey("pay", "order-7")


@pytest.mark.parametrize(
    "result", [None, True, 7, -1.5, "größer", [], [1, [None]], {"a": {"b": [1]}}, {"größer": "\0\ud800"}]
)
def test_a_result_comes_back_as_it_was(result: Any) -> None:
    text = encode_result(KEY, result)
    assert text.isascii()
    kept = KeyResult(KEY, text, {"größer-1": PreparedTxnState("5:1"), "b": PreparedTxnState("9:2")})
    assert KeyResult.parse(KEY, kept.format()) == kept
    assert kept.result == result
    # A row of an earlier version has the result alone.
    assert KeyResult.parse(KEY, text) == KeyResult(KEY, text, {})
    assert KeyResult(KEY, text, {}).format() == text


@pytest.mark.parametrize("states", ["x", "[]", "7", '{"a": 1}', '{"a": "x"}'])
def test_transactions_that_cannot_be_read_are_not_none(states: str) -> None:
    with pytest.raises(CorruptRow, match=r"order-7.*its transactions"):
        KeyResult.parse(KEY, f"null\n{states}")


NAMED = PreparedTxnState("5:1")


@pytest.mark.parametrize(
    ("row", "shown", "outcome"),
    [
        ({"settled": True}, None, KeyOutcome.COMMITTED),
        ({"state": PreparedTxnState("5:2")}, None, KeyOutcome.COMMITTED),
        ({}, None, None),
        ({}, ("CompleteCommit", 2), KeyOutcome.COMMITTED),
        ({}, ("PrepareCommit", 2), KeyOutcome.COMMITTED),
        ({}, ("Ongoing", 2), KeyOutcome.COMMITTED),
        ({}, ("Ongoing", 1), KeyOutcome.OPEN),
        ({"timeout_ms": None}, ("Ongoing", 1), KeyOutcome.COMMITTED),
        ({}, ("CompleteAbort", 2), KeyOutcome.ABORTED),
        ({"timeout_ms": None}, ("CompleteAbort", 2), KeyOutcome.ABORTED),
        ({"timeout_ms": None}, ("CompleteAbort", 3), KeyOutcome.ABORTED),
        ({}, ("Empty", 2), KeyOutcome.UNKNOWN),
        ({}, ("CompleteCommit", 3), KeyOutcome.UNKNOWN),
        ({}, ("CompleteCommit", 1), KeyOutcome.UNKNOWN),
    ],
)
def test_a_key_answers_for_what_is_committed_in_both_halves(
    row: dict[str, Any], shown: tuple[str, int] | None, outcome: KeyOutcome | None
) -> None:
    """[DW-28]"""
    named: dict[str, Any] = {"state": NAMED, "notes": True, "transaction_version": 2, "timeout_ms": 3000}
    stored = StoredState(**({"transactional_id": "t", "owner": "o"} | named | row))
    side = None
    if shown is not None:
        identity = ProducerIdAndEpoch(ProducerId(5), ProducerEpoch(shown[1]))
        side = ClusterSide(txn_state=TxnDescription(state=shown[0], identity=identity))
    assert assess_key(NAMED, stored, side) is outcome


def test_a_key_of_what_the_cluster_does_not_show_is_not_known_where_it_may_have_timed_out() -> None:
    """[DW-28]"""
    unseen = ClusterSide(txn_state=None, is_visible=False)
    row = StoredState(transactional_id="t", owner="o", state=NAMED, timeout_ms=3000)
    assert assess_key(NAMED, row, unseen) is KeyOutcome.UNKNOWN
    assert assess_key(NAMED, replace(row, timeout_ms=None, notes=True), unseen) is KeyOutcome.COMMITTED
    # Two-phase commit that is recovered by description: any client of the id may abort it.
    assert assess_key(NAMED, replace(row, timeout_ms=None), unseen) is KeyOutcome.UNKNOWN


class Status(str, Enum):  # noqa: UP042 - what people have
    PAID = "paid"


class Number(IntEnum):
    ONE = 1


LOOP: list[object] = []
LOOP.append(LOOP)


@pytest.mark.parametrize(
    "result",
    [
        *(object(), b"bytes", Decimal(7), {1: "a"}, (1, 2), {"a": (1,)}, {7}, math.nan, math.inf, LOOP),
        *(
            Status.PAID,
            [Status.PAID],
            {"a": [Number.ONE]},
            {Status.PAID: 1},
            OrderedDict(a=1),
            {"a": Counter()},
        ),
    ],
)
def test_a_result_that_would_come_back_as_another_is_refused(result: Any) -> None:
    with pytest.raises(BadResult, match=r"'order-7' of pay: the result, .*neither side is committed"):
        encode_result(KEY, result)


@pytest.mark.parametrize(
    "text", ["", "\0", "a\0", "\ud800", "x" * (KEY_BYTES_MAX + 1), "ö" * (KEY_BYTES_MAX // 2 + 1)]
)
def test_a_key_that_a_database_would_change_is_refused(text: str) -> None:
    for key in (IdempotencyKey("pay", text), IdempotencyKey(text, "order-7")):
        with pytest.raises(ValueError, match="idempotency"):
            key.check()


@pytest.mark.parametrize("text", ["a", "A ", "ö" * (KEY_BYTES_MAX // 2), "'; --", "\U0001f3fa", "a\nb"])
def test_any_other_text_is_a_key(text: str) -> None:
    IdempotencyKey(text, text).check()


def pay(txn: Any, order_id: Any, cents: int = 350, *, note: str = "") -> None: ...


def key_of(rule: Any, *args: Any, **kwargs: Any) -> IdempotencyKey:
    return KeyOfCall(rule, "shop.pay", describe_call(pay))(args, kwargs)


def test_the_key_is_a_parameter_or_a_function_of_the_arguments() -> None:
    expected = IdempotencyKey("shop.pay", "7")
    assert key_of("order_id", "7", 350) == expected
    assert key_of("order_id", 7) == expected
    assert key_of("note", "x", note="7") == expected
    assert key_of("cents", "x") == IdempotencyKey("shop.pay", "350")
    assert key_of(lambda order_id, cents: f"{order_id}/{cents}", 7, cents=1).key == "7/1"
    number = UUID(int=7)
    assert key_of("order_id", number).key == str(number)


@pytest.mark.parametrize("value", [None, b"7", 7.0, ["7"]])
def test_what_is_no_text_is_no_key(value: Any) -> None:
    with pytest.raises(TypeError, match="not a str"):
        key_of("order_id", value)
    with pytest.raises(TypeError, match="not a str"):
        key_of(lambda _: value, 7)


def test_a_rule_names_a_parameter_that_is_there() -> None:
    for name in ("txn", "order"):
        with pytest.raises(ValueError, match=f"{name!r}: shop.pay has no such parameter"):
            key_of(name)


def test_the_transaction_is_no_argument_of_the_call() -> None:
    assert list(describe_call(pay).parameters) == ["order_id", "cents", "note"]
    for work in (lambda: None, lambda *, txn: None):
        with pytest.raises(ValueError, match="first parameter"):
            describe_call(work)


def test_the_default_scope_is_the_name_with_its_module() -> None:
    assert get_default_scope(pay) == f"{__name__}.pay"
    assert get_default_scope(TestScope.pay) == f"{__name__}.TestScope.pay"


class TestScope:
    def pay(self, txn: Any) -> None: ...


def test_a_store_without_keys_says_so() -> None:
    with pytest.raises(NotSupported, match=r"idempotency_key.*table of keys in object"):
        check_keys_supported(object())
