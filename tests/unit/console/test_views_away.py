"""What pages say of a cluster or a store that cannot be read, or has not been read yet."""

import json

import httpx
import pytest
from tests.support.console_facts import (
    NOW_MS,
    SERVERS,
    WRITER,
    describe,
    make_row,
    make_snapshot,
    make_store,
    read_again,
)
from tests.unit.console.test_web import make_client

from tallystick.console.collect.feed import StateFeed
from tallystick.console.model.events import EventKind
from tallystick.console.model.snapshot import ClusterFacts, PartStatus, Snapshot, StoreFacts, StoreKind
from tallystick.console.model.state import ConsoleState, advance
from tallystick.console.terminal.summary import list_summary
from tallystick.console.views.overview import OverviewPage, build_overview
from tallystick.kernel.value import replace

REFUSED = "cluster: Metadata: 127.0.0.1:9092: Connect call failed"
AWAY = PartStatus(
    read_ms=NOW_MS - 14_000, tried_ms=NOW_MS - 2_000, away_since_ms=NOW_MS - 12_000, failures=(REFUSED,)
)
NEVER_REACHED = PartStatus(tried_ms=NOW_MS - 2_000, away_since_ms=NOW_MS - 12_000, failures=(REFUSED,))


def show(snapshot: Snapshot) -> OverviewPage:
    return build_overview(advance(ConsoleState(), snapshot), NOW_MS)


def lose_cluster(snapshot: Snapshot, status: PartStatus = AWAY) -> Snapshot:
    return replace(
        snapshot,
        cluster=replace(snapshot.cluster, status=status),
        transactions=replace(snapshot.transactions, status=status),
        topics=replace(snapshot.topics, status=status),
        pipelines=replace(snapshot.pipelines, status=status),
    )


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("status", [AWAY, NEVER_REACHED])
def test_a_cluster_that_cannot_be_read_is_unknown_with_the_reason(
    status: PartStatus, *, is_open: bool
) -> None:
    page = show(lose_cluster(make_snapshot(*([describe()] if is_open else [])), status))
    assert page.health == "unknown"
    (outage,) = page.info.outages
    assert outage.reason == REFUSED
    assert outage.text.startswith(f"No answer from {SERVERS} for 12 s. ")


def test_one_line_is_true_when_the_cluster_does_not_answer() -> None:
    """Wanted: "No answer from B for 41 s. Everything below is 44 s old." """
    status = replace(AWAY, read_ms=NOW_MS - 44_000, away_since_ms=NOW_MS - 41_000)
    snapshot = lose_cluster(make_snapshot(describe()), status)
    text = f"No answer from {SERVERS} for 41 s. Everything below is 44 s old."
    assert show(snapshot).info.outages[0].text == text
    feed = StateFeed()
    feed.publish(snapshot)
    for path in ("/", "/transactions", "/topics", "/pipelines"):
        html = make_client(feed).get(path).text.partition("Last events")[0]
        assert "<h2>" not in html.partition(text)[0], path
        assert (html.count(text), html.count(REFUSED)) == (1, 1), path
    lines = list(list_summary(advance(ConsoleState(), snapshot), NOW_MS))
    assert [line.strip() for line in lines].count(REFUSED) == 1
    assert lines[1] == text


@pytest.mark.parametrize("path", ["/stores", "/groups", "/pipelines", "/topics", "/transactions"])
def test_every_page_with_open_transactions_says_that_they_are_old(path: str) -> None:
    """The databases answer, and beside each row stands what the cluster had open some time ago."""
    snapshot = make_snapshot(describe(), stores=[make_store(make_row())])
    feed = StateFeed()
    feed.publish(replace(snapshot, transactions=replace(snapshot.transactions, status=AWAY)))
    page = json.loads(make_client(feed).get(f"{path}?format=json").text)
    assert [outage["reason"] for outage in page["info"]["outages"]] == [REFUSED]


def test_what_is_still_read_is_not_called_old() -> None:
    snapshot = lose_cluster(make_snapshot(describe(), stores=[make_store()]))
    (outage,) = show(snapshot).info.outages
    assert outage.text == f"No answer from {SERVERS} for 12 s. Its data below are 14 s old."


def test_groups_that_alone_cannot_be_read_are_said_on_the_overview() -> None:
    snapshot = make_snapshot(describe())
    page = show(replace(snapshot, groups=replace(snapshot.groups, status=fail("groups", NOW_MS - 11_000))))
    assert [outage.reason for outage in page.info.outages] == ["groups: not within 5000 ms"]


def test_a_cluster_that_refuses_to_be_read_has_answered() -> None:
    denied = replace(AWAY, was_answered=True, failures=("cluster: the login was refused",))
    (outage,) = show(lose_cluster(make_snapshot(), denied)).info.outages
    assert outage.text == f"{SERVERS} has not been read for 12 s. Everything below is 14 s old."


def test_a_cluster_of_which_a_part_is_read_has_answered() -> None:
    snapshot = lose_cluster(make_snapshot())
    read = PartStatus(read_ms=NOW_MS - 1_000, tried_ms=NOW_MS - 1_000)
    snapshot = replace(snapshot, topics=replace(snapshot.topics, status=read))
    (outage,) = show(snapshot).info.outages
    assert outage.text.startswith(f"A part of {SERVERS} has not been read for 12 s. ")


def test_an_outage_has_its_beginning_and_the_age_of_what_is_shown() -> None:
    (outage,) = show(lose_cluster(make_snapshot())).info.outages
    assert (outage.reason, outage.since_ms, outage.for_ms, outage.age_ms) == (
        REFUSED,
        NOW_MS - 12_000,
        12_000,
        14_000,
    )
    (outage,) = show(lose_cluster(make_snapshot(), NEVER_REACHED)).info.outages
    assert outage.age_ms is None


def fail(name: str, since_ms: int) -> PartStatus:
    return replace(AWAY, away_since_ms=since_ms, failures=(f"{name}: not within 5000 ms",))


def test_a_cluster_that_hangs_is_one_cause_in_whichever_words_its_parts_say_so() -> None:
    snapshot = lose_cluster(make_snapshot(describe()))
    snapshot = replace(
        snapshot,
        transactions=replace(snapshot.transactions, status=fail("transactions", NOW_MS - 13_000)),
        topics=replace(snapshot.topics, status=fail("topics", NOW_MS - 11_000)),
        groups=replace(snapshot.groups, status=fail("groups", NOW_MS - 11_000)),
        pipelines=replace(snapshot.pipelines, status=fail("decisions", NOW_MS - 11_000)),
    )
    page = show(snapshot)
    assert [(outage.reason, outage.for_ms) for outage in page.info.outages] == [(REFUSED, 13_000)]
    assert page.info.failures == (REFUSED,)
    assert page.problems == ()
    summary = "\n".join(map(str, list_summary(advance(ConsoleState(), snapshot), NOW_MS)))
    assert "not within 5000 ms" not in summary


def test_a_part_that_is_away_alone_and_a_store_have_their_own_causes() -> None:
    store = replace(make_store(), status=fail("store", NOW_MS - 1))
    snapshot = make_snapshot(describe(), stores=[store])
    snapshot = replace(snapshot, topics=replace(snapshot.topics, status=fail("topics", NOW_MS - 11_000)))
    assert [outage.reason for outage in show(snapshot).info.outages] == [
        "topics: not within 5000 ms",
        "store: not within 5000 ms",
    ]
    assert len(show(lose_cluster(snapshot)).info.outages) == 2


def test_what_was_broken_before_an_outage_is_said_after_it() -> None:
    snapshot = make_snapshot(describe(state="CompleteAbort"), stores=[make_store(make_row(state=WRITER))])
    state = advance(advance(ConsoleState(), snapshot), read_again(snapshot))
    read_ms = state.snapshot.transactions.status.read_ms
    away = replace(AWAY, read_ms=read_ms, away_since_ms=read_ms + 2_000)
    lost = replace(lose_cluster(state.snapshot, away), number=state.snapshot.number + 1)
    page = build_overview(advance(state, lost), read_ms + 14_000)
    assert page.health == "broken"
    assert page.info.outages[0].text.startswith(f"No answer from {SERVERS} for 12 s. ")
    assert page.headline.startswith("When it was last read: 1 transaction: the two sides differ")


def test_a_page_says_that_it_is_not_up_to_date_where_its_script_finds_it() -> None:
    feed = StateFeed()
    feed.publish(make_snapshot())
    assert "data-stale" not in make_client(feed).get("/").text
    feed.publish(lose_cluster(make_snapshot()))
    assert "data-stale" in make_client(feed).get("/").text


def test_what_was_never_read_is_not_well_although_nothing_has_failed() -> None:
    """[CON-11] The first snapshot may come before the first answer."""
    assert show(replace(make_snapshot(), cluster=ClusterFacts())).health == "unknown"
    assert show(Snapshot(number=1, at_ms=NOW_MS)).health == "unknown"
    store = StoreFacts(name="sqlite:///shop.db", kind=StoreKind.SQL)
    assert show(make_snapshot(stores=[store])).health == "unknown"


def test_a_store_that_cannot_be_read_is_unknown_with_the_reason() -> None:
    reason = "store sqlite:///shop.db: unable to open database file"
    status = replace(NEVER_REACHED, failures=(reason,))
    page = show(make_snapshot(stores=[replace(make_store(), status=status)]))
    assert page.health == "unknown"
    (outage,) = page.info.outages
    assert (outage.reason, outage.command) == (reason, "")
    assert outage.text == "postgresql://me@host/shop has not been read for 12 s. Not all of it is known yet."


def test_every_page_says_since_when_and_how_old_what_it_shows_is() -> None:
    feed = StateFeed()
    feed.publish(lose_cluster(make_snapshot(describe())))
    client = make_client(feed)
    for path in ("/", "/transactions", "/transactions/pay-1", "/topics"):
        answer: httpx.Response = client.get(path)
        assert "is 14 s old" in answer.text, path
        assert "for 12 s" in answer.text, path


def test_what_was_seen_before_an_outage_does_not_grow_old_in_it() -> None:
    """Whether its writer is gone cannot be told of a transaction that was well when it was last seen."""
    description = describe(age_ms=1_000)
    snapshot = make_snapshot(description, stores=[make_store(make_row(state=WRITER))])
    state = advance(ConsoleState(), snapshot)
    assert [each.health.value for each in state.transactions] == ["ok"]
    hours_ms = 5 * 3_600_000
    later = replace(lose_cluster(snapshot), number=2, at_ms=NOW_MS + hours_ms)
    state = advance(state, later)
    assert [each.health.value for each in state.transactions] == ["ok"]
    assert [event.kind for event in state.events.events] == [EventKind.AWAY]
    again = read_again(snapshot, after_ms=hours_ms)
    assert [each.health.value for each in advance(state, again).transactions] == ["recover"]
