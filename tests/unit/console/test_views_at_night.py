"""What an operator sees at three in the morning: few lines, in words, and none of them misleading."""

from tests.support.console_facts import (
    NOW_MS,
    describe,
    make_prefix,
    make_row,
    make_snapshot,
    make_store,
    pair,
)
from tests.unit.console.test_web import make_client, make_feed

from tallystick.console.collect.feed import StateFeed
from tallystick.console.model.health import Limits
from tallystick.console.model.snapshot import NEVER_MS, PartStatus, Snapshot, StoreFacts, StoreKind
from tallystick.console.model.state import ConsoleState, advance
from tallystick.console.views.overview import build_overview
from tallystick.console.views.pipelines import build_pipelines
from tallystick.console.views.stores import build_stores
from tallystick.kernel.value import replace
from tallystick.spark.protocol.committable import Decision, Participant

TASKS = 200
LATE_MS = 10**7


def look(snapshot: Snapshot) -> ConsoleState:
    return advance(advance(ConsoleState(limits=Limits()), snapshot), replace(snapshot, number=2))


def make_dead_query() -> Snapshot:
    """Return a query with many open transactions, and another one of which no decision is read."""
    names = [f"loud/w/{number:016x}/0" for number in range(TASKS)]
    participants = [Participant(transactional_id=name, identity=pair(n, 0)) for n, name in enumerate(names)]
    opened = [describe(name, writer=pair(n, 0), age_ms=LATE_MS) for n, name in enumerate(names)]
    new = describe(f"new/w/{'b' * 16}/0", writer=pair(999, 0), age_ms=LATE_MS)
    return make_snapshot(*opened, new, prefixes=[make_prefix("loud", *participants)])


def test_a_query_with_many_transactions_is_one_problem() -> None:
    """Or the first twenty would leave no room for anything else."""
    page = build_overview(look(replace(make_dead_query(), at_ms=NOW_MS + LATE_MS)), NOW_MS)
    assert page.problem_count == 2
    assert page.counts == {"orphan": 1, "recover": TASKS}
    orphan, loud = page.problems
    assert (orphan.key, orphan.prefix) == (f"new/w/{'b' * 16}/0", "")
    assert (loud.subject, loud.key, loud.prefix) == (f"loud, {TASKS} transactions", "", "loud")
    assert loud.command.endswith(" --prefix loud --decisions decisions")


def test_the_problem_of_a_query_leads_to_its_transactions() -> None:
    html = make_client(make_feed(replace(make_dead_query(), at_ms=NOW_MS + LATE_MS))).get("/").text
    assert 'href="/transactions?store=loud"' in html


def test_a_query_that_has_decided_nothing_is_on_the_page_of_pipelines() -> None:
    loud, new = build_pipelines(look(make_dead_query()), NOW_MS).prefixes
    assert (loud.prefix, loud.missing) == ("loud", "")
    assert (new.prefix, new.health, new.resolve_command) == ("new", "orphan", "")
    assert new.missing.startswith("It has decided nothing that is read here")
    assert new.undecided == (f"new/w/{'b' * 16}/0",)


def test_a_store_of_decisions_says_of_which_queries_and_has_no_command_for_rows() -> None:
    decides = replace(make_store(name="sqlite:///a.db"), prefixes=(make_prefix("loud/database"),))
    rows = make_store(make_row(), name="sqlite:///b.db")
    first, second = build_stores(look(make_snapshot(stores=[decides, rows])), NOW_MS).stores
    assert (first.prefixes, first.resolve_command) == (("loud/database",), "")
    assert second.resolve_command.endswith("--store sqlite:///b.db --dry-run")


def test_a_store_that_is_away_is_named_and_no_command_for_kafka_is_shown() -> None:
    status = PartStatus(tried_ms=NOW_MS, away_since_ms=NOW_MS - 5_000, failures=("store b: refused",))
    away = StoreFacts(status=status, name="postgresql://db/b", kind=StoreKind.SQL)
    page = build_overview(look(make_snapshot(stores=[away])), NOW_MS)
    (outage,) = page.info.outages
    assert outage.text.startswith("postgresql://db/b has not been read for ")
    assert outage.command == ""
    assert page.problems == ()


def test_a_page_that_shows_something_does_not_say_that_nothing_was_read() -> None:
    away = StoreFacts(name="postgresql://db/b", kind=StoreKind.SQL)
    assert away.status.read_ms == NEVER_MS
    feed = StateFeed(ConsoleState())
    feed.publish(make_snapshot(describe(), stores=[away]))
    html = make_client(feed).get("/").text
    assert "Nothing has been read yet" not in html
    assert "Not all of it has been read yet, snapshot" in html


def test_a_decision_says_when_in_words_even_if_no_calendar_has_that_time() -> None:
    decision = Decision(nonce="n", participants=(), transaction_version=2, decided_ms=NOW_MS)
    assert str(decision).endswith("0 transactions, decided at 2026-09-21 14:13:20 UTC")
    assert str(replace(decision, decided_ms=2**62)).endswith(f"decided at {2**62} ms")
