"""What a reader finds: the order of a list, and the search over everything."""

import pytest
from tests.support.console_facts import NOW_MS, ORDERS, describe, make_row, make_snapshot, make_store

from tallystick.admin.model import GroupDescription
from tallystick.console.collect.feed import StateFeed
from tallystick.console.model.snapshot import GroupFacts, PartitionOffsets, TopicFacts
from tallystick.console.model.state import ConsoleState
from tallystick.console.views.groups import build_groups
from tallystick.console.views.lists import ListQuery
from tallystick.console.views.ordering import Keys, parse_sort, sort_rows
from tallystick.console.views.search import TEXT_MAX, build_search
from tallystick.console.views.texts import format_ago, format_machine_time
from tallystick.console.views.topics import build_topics
from tallystick.console.views.transactions import SORT_KEYS, TransactionFilter, build_transactions
from tallystick.kernel.value import replace

KEYS: Keys[tuple[str, int | None]] = {"name": lambda row: row[0], "size": lambda row: row[1]}
ROWS = [("b", 2), ("a", None), ("c", 1), ("d", 2)]


@pytest.mark.parametrize(
    ("sort", "names"),
    [("name", "abcd"), ("-name", "dcba"), ("size", "cbda"), ("-size", "bdca"), ("", "bacd"), ("new", "bacd")],
)
def test_rows_come_in_the_order_of_a_column_and_what_has_no_value_last(sort: str, names: str) -> None:
    assert "".join(name for name, _ in sort_rows(ROWS, sort, KEYS)) == names


@pytest.mark.parametrize("text", ["--name", "a b", '"><script>', "x" * 60])
def test_an_order_that_no_page_links_to_is_none(text: str) -> None:
    assert parse_sort({"sort": text}) == ""


def make_state(count: int = 3) -> ConsoleState:
    feed = StateFeed()
    described = [describe(f"pay-{number}", age_ms=number * 1_000) for number in range(count)]
    snapshot = make_snapshot(*described, stores=[make_store(make_row("pay-1"), make_row("idle-pay"))])
    group = GroupDescription(
        group_id="payers", coordinator=1, state="Stable", type="classic", assignor="range", members=()
    )
    names = ("orders", "payments", "pay")
    feed.publish(
        replace(
            snapshot,
            topics=TopicFacts(
                status=snapshot.topics.status,
                partition_counts=dict.fromkeys(names, 1),
                offsets={ORDERS: PartitionOffsets(start=0, last_stable=10, end=25)},
            ),
            groups=GroupFacts(status=snapshot.topics.status, groups={"payers": group}),
        )
    )
    return feed.state


def test_a_list_is_put_in_order_by_its_columns_and_keeps_its_filter() -> None:
    """Wanted: "sort by column"."""
    wanted = TransactionFilter.parse({"text": "pay", "sort": "-age"})
    page = build_transactions(make_state(), wanted, NOW_MS)
    assert [row.transactional_id for row in page.rows] == ["pay-2", "pay-1", "pay-0"]
    assert wanted.format_query(sort="id") == "text=pay&sort=id"
    topics = build_topics(make_state(), NOW_MS, ListQuery.parse({"sort": "name"}))
    assert [row.name for row in topics.topics] == ["orders", "pay", "payments"]
    assert build_groups(make_state(), NOW_MS, ListQuery(sort="lag")).groups[0].group_id == "payers"


def test_every_column_puts_the_whole_list_in_order() -> None:
    for name in SORT_KEYS:
        page = build_transactions(make_state(), TransactionFilter(sort=name), NOW_MS)
        assert len(page.rows) == 3


def test_the_search_finds_ids_topics_and_groups_the_name_itself_first() -> None:
    """Wanted: "search (`/`) over ids, topics, groups"."""
    page = build_search(make_state(), " PAY ", NOW_MS)
    found = {kind.title: [hit.url for hit in kind.hits] for kind in page.kinds}
    assert found == {
        "Open transactions": ["/transactions/pay-0", "/transactions/pay-1", "/transactions/pay-2"],
        "Ids with nothing open": ["/transactions/idle-pay"],
        "Topics": ["/topics/pay", "/topics/payments"],
        "Groups": ["/groups/payers"],
    }


def test_the_search_shows_some_of_each_kind_and_says_how_many_there_are() -> None:
    page = build_search(make_state(30), "pay-", NOW_MS, hits_max=10)
    (kind,) = page.kinds
    assert (len(kind.hits), kind.match_count, kind.list_url) == (10, 30, "/transactions?text=pay-")
    assert len(build_search(make_state(1), "x" * 400, NOW_MS).text) == TEXT_MAX
    assert build_search(make_state(1), "", NOW_MS).kinds == ()


@pytest.mark.parametrize(
    ("age_ms", "text"),
    [
        (0, "just now"),
        (-5_000, "just now"),
        (59_999, "59 s ago"),
        (200_000, "3 min ago"),
        (90_000_000, "1 d ago"),
    ],
)
def test_how_long_ago_a_time_was(age_ms: int, text: str) -> None:
    assert format_ago(NOW_MS - age_ms, NOW_MS) == text


def test_a_time_for_scripts_has_its_zone_and_one_that_no_calendar_has_is_none() -> None:
    assert format_machine_time(0) == "1970-01-01T00:00:00.000Z"
    assert format_machine_time(2**62) == format_machine_time(None) == ""
