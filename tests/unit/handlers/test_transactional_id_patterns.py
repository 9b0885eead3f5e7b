"""Patterns of transactional ids: RE2's dialect (KIP-1152), and never more than a bounded amount of work."""

import asyncio
import logging
import re
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.memory_broker import memory_broker, on_a_loop
from tests.support.txn_requests import claimed

from tallystick.broker.handlers.txn import list_transactions
from tallystick.broker.handlers.txn.list_transactions import (
    PATTERN_LENGTH_MAX,
    STEPS_PER_ID_MAX,
    BadPattern,
    IdPattern,
)
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.ids import TransactionalId
from tallystick.protocol.messages.txn.list_transactions import ListTransactionsRequest


def matches(pattern: str, text: str) -> bool:
    return IdPattern(pattern).matches(TransactionalId(text))


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("my-.*", ["my-", "my-app"], ["xmy-app", "my"]),
        ("a|bc|", ["a", "bc", ""], ["abc", "b"]),
        (".", ["a", "ü", "𝄞"], ["", "\n", "ab"]),
        (r"\d", ["7"], ["٣"]),  # ASCII alone, as RE2 has it
        (r"\p{Greek}+", ["λόγος"], ["logos"]),
        (r"\Qa.b\E+c", ["a.bc", "a.bbc"], ["axbc", "a.ba.bc"]),
        ("(?i)straße-A", ["STRAßE-a", "straße-A"], ["strase-a"]),
        ("^a$", ["a"], ["a\n"]),
        ("(?P<n>a)(b)", ["ab"], []),
    ],
)
def test_whole_ids_match(pattern: str, yes: list[str], no: list[str]) -> None:
    assert [text for text in yes if not matches(pattern, text)] == []
    assert [text for text in no if matches(pattern, text)] == []


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("(?=a)", "perl operator"),
        (r"(a)\1", "escape"),
        ("a**", "repetition"),
        ("a{1001}", "repetition"),
        ("(a", "missing"),
        ("((a{100}){100}){100}", "repetition size"),
        (r"\pL{1000}", "too large"),
        ("a" * (PATTERN_LENGTH_MAX + 1), f"{PATTERN_LENGTH_MAX} are allowed"),
    ],
)
def test_a_pattern_is_refused_with_a_reason(
    pattern: str, why: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(BadPattern, match=why):
        IdPattern(pattern)
    assert capfd.readouterr().err == ""  # RE2 would log each one there


@pytest.mark.parametrize("pattern", ["(a+)+b", "(a|a)*b", "(a*)*b", "(.*)*(.*)*b", "a?" * 50 + "a" * 50])
def test_a_pattern_that_python_would_match_for_minutes_ends(pattern: str) -> None:
    assert not matches(pattern, "a" * 5_000)


def test_a_large_pattern_is_refused_for_a_long_id_only() -> None:
    """Without a bound, one such id of 32 KB would block the loop for a second."""
    costly = IdPattern("(a|b)*a(a|b){900}")
    assert not costly.matches(TransactionalId("ab" * 15))
    long_id = TransactionalId("ab" * 16_000)
    assert costly.count_steps(long_id) > STEPS_PER_ID_MAX
    with pytest.raises(BadPattern, match="32000 characters"):
        costly.matches(long_id)
    assert IdPattern("(ab)+").matches(long_id)


@on_a_loop
async def test_costly_patterns_free_the_loop_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(list_transactions, "STEPS_PER_SLICE", 100)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with memory_broker() as desk:
        for number in range(20):
            await claimed(desk, f"app-{number}")
        other = asyncio.create_task(others())
        taken = {}
        for pattern in ("a", "a{50}"):
            before = turns
            answer = await desk.ask(ListTransactionsRequest(transactional_id_pattern=pattern), 2)
            assert answer.error_code == 0
            taken[pattern] = turns - before
        other.cancel()
        assert taken["a{50}"] >= taken["a"] + 10


@on_a_loop
async def test_without_the_library_a_pattern_is_refused_and_the_log_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "re2", None)
    list_transactions._log_missing_library.cache_clear()
    async with memory_broker() as desk:
        await claimed(desk, "app-1")
        with caplog.at_level(logging.WARNING):
            for _ in range(2):
                answer = await desk.ask(ListTransactionsRequest(transactional_id_pattern="app-.*"), 2)
                assert answer.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
        assert caplog.text.count("[re2]'") == 1
        answer = await desk.ask(ListTransactionsRequest(), 2)
        assert [each.transactional_id for each in answer.transaction_states] == ["app-1"]


PARTS = st.sampled_from(["a", "b", "c", "-", ".", "[ab]", "[^a]", r"\d", "(a|b)", "(?:ab)", "1"])
SIGNS = st.sampled_from(["", "", "", "*", "+", "?", "{2}", "{0,2}", "*?"])
PIECES = st.tuples(PARTS, SIGNS).map("".join)
PATTERNS = st.lists(st.lists(PIECES, max_size=5).map("".join), min_size=1, max_size=3).map("|".join)


@given(PATTERNS, st.lists(st.text("abc-1\n", max_size=8), max_size=8))
def test_python_agrees(pattern: str, texts: list[str]) -> None:
    """The options do not change the dialect: Python is the oracle where the two dialects agree."""
    compiled, oracle = IdPattern(pattern), re.compile(pattern)
    for text in texts:
        assert compiled.matches(TransactionalId(text)) == (oracle.fullmatch(text) is not None), text


@given(st.text(max_size=30))
def test_any_text_is_a_pattern_or_refused(pattern: str) -> None:
    try:
        matches(pattern, "abc")
    except BadPattern:
        pass
