"""Histories of transactional ids: what is kept, what a page shows, and how often the cluster is asked."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.console_facts import NOW_MS, describe, make_snapshot, pair
from tests.unit.console.test_web import HOSTILE, Client, Page

from tallystick.console.collect.feed import StateFeed
from tallystick.console.lookup.history import HistorySource, IdHistory, KeptHistories
from tallystick.console.lookup.recent import WAITING_MAX, RecentAnswers, TooManyQuestions
from tallystick.console.model.escaped import show_on_page
from tallystick.console.model.snapshot import PartStatus
from tallystick.console.views.history import view_history
from tallystick.console.web.app import create_app
from tallystick.kernel.value import replace
from tallystick.protocol.transaction_history import TransactionTransition, TransitionKind
from tallystick.testing import FakeClock

K = TransitionKind


def step(
    kind: TransitionKind | int = K.BEGUN, name: str = "pay-1", epoch: int = 3, **more: Any
) -> TransactionTransition:
    fields = {"at_ms": NOW_MS, "state": "Ongoing", "producer": pair(5, epoch), "partition_count": 1, **more}
    return TransactionTransition(transactional_id=name, kind=kind, **fields)


class Answers:
    """Answers pages with one history, and notes what it was asked."""

    def __init__(self, history: IdHistory) -> None:
        self.history = history
        self.names: list[str] = []

    async def read_history(self, transactional_id: str) -> IdHistory:
        self.names.append(transactional_id)
        return self.history


def make_client(history: IdHistory, *, is_away: bool = False) -> tuple[Client, Answers]:
    feed, answers = StateFeed(), Answers(history)
    snapshot = make_snapshot(describe())
    if is_away:
        away = PartStatus(read_ms=1, tried_ms=2, away_since_ms=2, failures=("transactions: refused",))
        snapshot = replace(snapshot, transactions=replace(snapshot.transactions, status=away))
    feed.publish(snapshot)
    return Client(create_app(feed, None, FakeClock(NOW_MS), answers)), answers


# ------------------------------------------------------------------------------------- the page


def test_a_page_shows_who_claimed_an_id_from_where_and_who_is_fenced() -> None:
    steps = (
        step(K.BEGUN, epoch=3, client_id="shop", address="10.0.0.1:4000"),
        step(K.INITIALIZED, epoch=4, client_id=HOSTILE, address="10.0.0.9:4001", state="Empty"),
    )
    client, answers = make_client(IdHistory(source=HistorySource.BROKER, transitions=steps))
    page = Page(client.get("/transactions/pay-1").text)
    for text in (
        "10.0.0.9:4001",
        "5:3 is fenced",
        "A producer claimed the id.",
        show_on_page(HOSTILE),
        "Kept by the broker",
    ):
        assert text in page.text
    rows = client.get("/transactions/pay-1?format=json").json()["history"]["rows"]
    assert [(row["kind"], row["client_id"], row["fenced"]) for row in rows] == [
        ("begun", "shop", ""),
        ("initialized", HOSTILE, "5:3"),
    ]
    assert answers.names == ["pay-1", "pay-1"]


def test_an_id_that_is_not_open_has_its_history_too() -> None:
    client, _ = make_client(IdHistory(source=HistorySource.LOG, transitions=(step(K.COMPLETED, "x"),)))
    page = client.get("/transactions/x?format=json").json()
    assert page["row"] is None
    assert [row["kind"] for row in page["history"]["rows"]] == ["completed"]


@pytest.mark.parametrize("source", HistorySource)
@pytest.mark.slow
def test_an_id_that_its_coordinator_knows_is_found_although_nothing_is_told_of_it(
    source: HistorySource,
) -> None:
    """A broker that was started again remembers no transitions of ids that it knows."""
    client, _ = make_client(IdHistory(source=source, is_described=True))
    assert client.get("/transactions/x").status_code == 200
    client, _ = make_client(IdHistory(source=source))
    assert client.get("/transactions/x").status_code == 404


def test_a_producer_without_an_id_has_none() -> None:
    client, answers = make_client(IdHistory())
    assert client.get("/transactions/producer:77:0?format=json").json()["history"] is None
    assert answers.names == []


def test_a_cluster_that_is_away_is_not_asked_and_the_page_says_why() -> None:
    client, answers = make_client(IdHistory(), is_away=True)
    assert (
        client.get("/transactions/pay-1?format=json").json()["history"]["failure"] == "transactions: refused"
    )
    assert answers.names == []


def test_a_log_that_is_followed_says_since_when() -> None:
    history = IdHistory(source=HistorySource.LOG, followed_since_ms=NOW_MS, is_catching_up=True)
    client, _ = make_client(history)
    text = " ".join(Page(client.get("/transactions/pay-1").text).text.split())
    assert "Followed since 2026-" in text
    assert "Still being read. Nothing is known." in text


def test_every_kind_has_a_sentence_and_a_newer_one_is_shown_as_its_number() -> None:
    for kind in TransitionKind:
        (row,) = view_history(IdHistory(transitions=(step(kind),))).rows
        assert row.text.endswith("."), kind
    (row,) = view_history(IdHistory(transitions=(step(99),))).rows
    assert (row.kind, row.text) == ("99", "")


@given(st.lists(st.tuples(st.sampled_from(TransitionKind), st.integers(0, 2)), max_size=12))
def test_rows_have_keys_of_their_own(kinds: list[tuple[TransitionKind, int]]) -> None:
    steps = tuple(step(kind, at_ms=NOW_MS + after) for kind, after in kinds)
    keys = [row.key for row in view_history(IdHistory(transitions=steps)).rows]
    assert len(set(keys)) == len(kinds)


# ------------------------------------------------------------------------------- what is kept


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 6)), max_size=30))
def test_what_is_kept_is_bounded_and_the_newest_of_each_id(runs: list[tuple[int, int]]) -> None:
    kept = KeptHistories(transitions_max=10, per_id=4)
    all_steps: dict[str, list[TransactionTransition]] = {}
    for name, count in runs:
        for _ in range(count):
            steps = all_steps.setdefault(str(name), [])
            steps.append(step(name=str(name), at_ms=len(steps)))
            kept.add(steps[-1:])
        assert kept.find(str(name))
    found = {name: kept.find(name) for name in all_steps}
    assert sum(map(len, found.values())) == kept.transition_count <= 10
    for name, steps in found.items():
        assert steps == tuple(all_steps[name][len(all_steps[name]) - len(steps) :])
        assert len(steps) <= 4


# -------------------------------------------------------------------------- how often is asked


def run(check: Callable[[FakeClock], Awaitable[None]]) -> None:
    asyncio.run(check(FakeClock()))


def test_many_pages_ask_once() -> None:
    async def check(clock: FakeClock) -> None:
        asked: list[str] = []

        async def ask(key: str) -> int:
            asked.append(key)
            await asyncio.sleep(0)
            return len(asked)

        answers = RecentAnswers(ask, clock, keep_ms=1_000)
        assert await asyncio.gather(*(answers.find("a") for _ in range(10))) == [1] * 10
        clock.advance(999)
        assert await answers.find("a") == 1
        clock.advance(1)
        assert await answers.find("a") == 2
        assert asked == ["a", "a"]

    run(check)


def test_few_are_asked_at_once_and_few_are_kept() -> None:
    async def check(clock: FakeClock) -> None:
        running, most = 0, 0

        async def ask(key: int) -> int:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0)
            running -= 1
            return key

        answers = RecentAnswers(ask, clock, kept_max=3, concurrent_max=2)
        assert await asyncio.gather(*(answers.find(key) for key in range(8))) == list(range(8))
        assert most == 2
        await answers.find(8)
        assert len(answers._tasks) == 3

    run(check)


def test_a_page_that_goes_away_ends_no_other_pages_question() -> None:
    async def check(clock: FakeClock) -> None:
        gate = asyncio.Event()

        async def ask(key: str) -> str:
            await gate.wait()
            return key

        answers = RecentAnswers(ask, clock)
        gone, stays = (asyncio.ensure_future(answers.find("a")) for _ in range(2))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.sleep(0)
        gate.set()
        assert await stays == "a"

    run(check)


def test_more_questions_than_can_wait_are_refused() -> None:
    async def check(clock: FakeClock) -> None:
        async def ask(key: int) -> None:
            await asyncio.Event().wait()

        answers = RecentAnswers(ask, clock)
        waiting = [asyncio.ensure_future(answers.find(key)) for key in range(WAITING_MAX)]
        await asyncio.sleep(0)
        with pytest.raises(TooManyQuestions, match=str(WAITING_MAX)):
            await answers.find(-1)
        await answers.close()
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        assert {type(each) for each in outcomes} == {asyncio.CancelledError}

    run(check)
