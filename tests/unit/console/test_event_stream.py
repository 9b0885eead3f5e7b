"""Events in the console's state, on its pages and in its stream."""

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.console_facts import (
    NOW_MS,
    WRITER,
    describe,
    make_case,
    make_row,
    make_snapshot,
    make_store,
    pair,
    read_again,
)
from tests.unit.console.test_web import HOSTILE, Page, make_client

from tallystick.admin.model import TransactionDescription
from tallystick.admin.txn.hanging import HangingFinding
from tallystick.console.collect.feed import StateFeed
from tallystick.console.model.escaped import show_on_page
from tallystick.console.model.events import USUAL_KIND_MAX, EventKind, EventLog
from tallystick.console.model.snapshot import Snapshot
from tallystick.console.model.state import ConsoleState, advance
from tallystick.console.views.events import (
    OVERVIEW_EVENTS,
    STREAM_EVENTS_MAX,
    build_events,
    list_unseen,
    stream_events,
)
from tallystick.console.views.transaction import build_transaction
from tallystick.kernel.value import replace


def list_kinds(state: ConsoleState) -> list[tuple[EventKind, str]]:
    return [(event.kind, event.subject) for event in state.events.events]


def make_state(event_count: int, **settings: Any) -> ConsoleState:
    log = EventLog(**settings)
    for number in range(event_count):
        log = log.note("", f"note {number}", NOW_MS)
    return ConsoleState(events=log)


# ------------------------------------------------------------------------------- health changes


def abandon(snapshot: Snapshot, age_ms: int) -> Snapshot:
    description = describe(age_ms=age_ms)
    return replace(snapshot, transactions=replace(snapshot.transactions, descriptions={"pay-1": description}))


def test_a_transaction_that_is_not_well_any_more_is_told_once() -> None:
    description = describe(age_ms=1_000, timeout_ms=60_000)
    snapshot = make_snapshot(description, cases=[make_case(HangingFinding.RUNNING, description)])
    state = advance(ConsoleState(), snapshot)
    later = read_again(snapshot, after_ms=16 * 60_000)
    state = advance(advance(state, later), read_again(later))
    assert list_kinds(state) == [(EventKind.HEALTH, "pay-1")]
    assert state.events.events[0].text.startswith("pay-1 is slow: It is open for longer than the limit")


@pytest.mark.parametrize(
    ("finding", "owner"),
    [(HangingFinding.MAYBE_UNLISTED, None), (HangingFinding.COORDINATOR_BEHIND, describe())],
    ids=["of no known id", "of an id whose coordinator is behind"],
)
def test_an_event_of_what_no_coordinator_has_leads_to_its_page(
    finding: HangingFinding, owner: TransactionDescription | None
) -> None:
    state = advance(ConsoleState(), make_snapshot())
    case = make_case(finding, owner, pair(77, 0))
    snapshot = read_again(make_snapshot(*(() if owner is None else (owner,)), cases=[case]))
    state = advance(advance(state, snapshot), read_again(snapshot))
    (event,) = [row for row in build_events(state, "", NOW_MS).events if row.kind == "health"]
    assert event.key == "producer:77:0"
    assert build_transaction(state, event.key, NOW_MS).row is not None
    assert event.text.startswith("producer:77:0 is ")


def test_what_was_not_well_at_the_start_is_no_event() -> None:
    description = describe(age_ms=20 * 60_000)
    snapshot = make_snapshot(description, cases=[make_case(HangingFinding.TWO_PHASE, description)])
    state = advance(ConsoleState(), snapshot)
    assert state.transactions[0].health.value == "orphan"
    assert list_kinds(advance(state, read_again(snapshot))) == []


def test_a_transaction_that_is_well_again_is_told() -> None:
    """An orphan whose store can be read at last."""
    description = describe(age_ms=20_000)
    snapshot = make_snapshot(description, cases=[make_case(HangingFinding.TWO_PHASE, description)])
    state = advance(ConsoleState(), snapshot)
    later = read_again(snapshot, after_ms=16 * 60_000)
    state = advance(state, later)
    store = make_store(make_row(state=WRITER), read_ms=later.at_ms)
    state = advance(state, replace(read_again(later), stores=(store,)))
    kinds = [kind for kind, subject in list_kinds(state) if subject == "pay-1"]
    assert kinds == [EventKind.HEALTH, EventKind.HEALTH]
    assert "was orphan and is ok" in state.events.events[-1].text


def test_what_every_busy_cluster_does_is_summarized_early() -> None:
    state = advance(ConsoleState(), make_snapshot())
    names = [describe(f"pay-{number}") for number in range(USUAL_KIND_MAX + 1)]
    state = advance(state, make_snapshot(*names, number=2, at_ms=NOW_MS + 1_000))
    assert list_kinds(state) == [(EventKind.BEGUN, "")]


# ------------------------------------------------------------------------------------- pages


def test_the_overview_has_the_last_events_and_a_page_has_all() -> None:
    feed = StateFeed(make_state(OVERVIEW_EVENTS + 5))
    feed.note(HOSTILE, HOSTILE, NOW_MS)
    client = make_client(feed)
    overview = Page(client.get("/").text)
    rows = [each for each in overview.ids if each.startswith("event-")]
    assert rows == [f"event-{number}" for number in range(OVERVIEW_EVENTS + 6, 6, -1)]
    assert show_on_page(HOSTILE) in overview.text
    assert len(client.get("/?format=json").json()["events"]) == OVERVIEW_EVENTS
    assert len(client.get("/events?format=json").json()["events"]) == OVERVIEW_EVENTS + 6


def test_a_script_asks_for_what_is_new() -> None:
    client = make_client(StateFeed(make_state(30)))
    page = client.get("/events?format=json&since=28").json()
    assert [event["number"] for event in page["events"]] == [30, 29]
    assert (page["last_number"], page["is_resync"]) == (30, False)
    assert client.get("/events?format=json&since=30").json()["events"] == []


@pytest.mark.parametrize("since", ["9999", "-1", "x", "9" * 400, "\u0661"])
def test_a_number_of_another_process_is_answered_with_everything(since: str) -> None:
    page = make_client(StateFeed(make_state(3))).get(f"/events?format=json&since={since}").json()
    assert (page["is_resync"], len(page["events"])) == (True, 3)


# ------------------------------------------------------------------------------------ the stream


def test_a_reader_that_comes_back_gets_what_it_has_missed() -> None:
    messages = stream_events(make_state(30), "28")
    assert [(each.name, each.id) for each in messages] == [("event", "29"), ("event", "30")]
    assert json.loads(messages[1].data)["text"] == "note 29"


def test_a_reader_that_has_just_loaded_the_page_gets_nothing() -> None:
    assert stream_events(make_state(30), "") == ()


@pytest.mark.parametrize(
    ("last_id", "count", "capacity"),
    [("1", STREAM_EVENTS_MAX + 2, 1_000), ("1", 30, 10), ("77", 30, 1_000), ("x", 30, 1_000)],
    ids=["too far behind", "forgotten", "of another process", "no number"],
)
def test_a_reader_that_cannot_be_told_has_to_read_anew(last_id: str, count: int, capacity: int) -> None:
    (message,) = stream_events(make_state(count, capacity=capacity), last_id)
    assert (message.name, message.id) == ("resync", str(count))


@given(st.integers(0, 40), st.integers(0, 40))
def test_a_reader_is_told_each_event_once(first: int, more: int) -> None:
    """[CON-13] Whenever it comes back, if it names the last number that it was given."""
    state = make_state(first)
    last_id = str(state.events.last_number)
    for number in range(more):
        state = replace(state, events=state.events.note("", str(number), NOW_MS))
        (message,) = stream_events(state, last_id)
        assert (message.name, json.loads(message.data)["text"]) == ("event", str(number))
        last_id = message.id or ""


def test_a_slow_reader_is_given_the_newest_state_and_waits_for_no_old_one() -> None:
    async def follow() -> list[str | None]:
        feed = StateFeed(make_state(1))
        state = feed.state
        waiting = asyncio.ensure_future(feed.wait_for_next(state))
        await asyncio.sleep(0)
        for number in range(3):
            feed.note("", str(number), NOW_MS)
        state = await waiting
        return [message.id for message in stream_events(state, "1")]

    assert asyncio.run(follow()) == ["2", "3", "4"]


def test_a_page_that_shows_another_snapshot_than_the_present_one_is_told_at_once() -> None:
    """One that was rendered before a snapshot, and follows after it, would wait for the next otherwise."""
    state = ConsoleState(snapshot=make_snapshot(number=7))
    assert [message.name for message in list_unseen(state, "6")] == ["snapshot"]
    assert [message.name for message in list_unseen(state, "")] == ["snapshot"]
    assert list_unseen(state, "7") == ()
    assert list_unseen(state, None) == ()
