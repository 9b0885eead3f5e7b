"""The pages of the terminal: what is on each, and where its rows lead."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
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
from tests.support.hostile_console import HARMLESS, make_hostile_state

from tallystick.console.model.snapshot import ClusterFacts, PartStatus, Snapshot
from tallystick.console.model.state import ConsoleState, advance
from tallystick.console.terminal.frame import (
    DETAIL_LINES,
    Frame,
    describe_away,
    detail_lines,
    head_lines,
    key_line,
)
from tallystick.console.terminal.lines import Anchor, PageLines
from tallystick.console.terminal.pages import build_page
from tallystick.console.terminal.pages.guide import CONSOLE_URL
from tallystick.console.terminal.routes import (
    MENU,
    Order,
    Route,
    Section,
    cycle_order,
    format_filter,
    parse_filter,
    route_to_browser,
    sort_rows,
)
from tallystick.console.views.transactions import TransactionFilter, build_transactions
from tallystick.kernel.value import replace

STATE = make_hostile_state(HARMLESS)
ROUTES = [
    *(Route(section=section) for section in Section),
    Route(section=Section.TRANSACTIONS, key=HARMLESS),
    Route(section=Section.TRANSACTIONS, key="producer:77:0"),
    Route(section=Section.TRANSACTIONS, key="nothing of this name"),
    route_to_browser("topics", "a/b c"),
]


def show(route: Route, state: ConsoleState = STATE, width: int = 200) -> tuple[str, list[Anchor]]:
    """Return the text of a page, and what the cursor can stand on."""
    lines = PageLines(build_page(state, route, NOW_MS).blocks, width)
    shown = [lines.get_line(number) for number in range(lines.count)]
    return "\n".join(line.text.rstrip() for line in shown), [line.anchor for line in shown if line.anchor]


@pytest.mark.parametrize(
    ("route", "texts"),
    [
        (
            Route(),
            [
                "hanging  1 transaction hanging",
                "What to look at",
                "Held back         16 records in 2 partitions",
            ],
        ),
        (
            Route(section=Section.TRANSACTIONS),
            ["hanging 1, recover 2, ok 1; worst first", "producer:77:0", "no coordinator", "3 min 5 s"],
        ),
        (
            Route(section=Section.TRANSACTIONS, key=HARMLESS),
            [
                "Its writer is gone",
                "[x]  coordinator",
                "[ ]  orders-0",
                "marker (missing)",
                "tallystick transactions",
            ],
        ),
        (
            Route(section=Section.TRANSACTIONS, key=HARMLESS),
            [
                "Token             5:3 (producer id:epoch)",
                "Last committed    5:3",
                "prepared_transaction_state='5:3'",
            ],
        ),
        (Route(section=Section.TRANSACTIONS, key="x"), ["No transaction of this id is open"]),
        (Route(section=Section.BROWSER), ["--store", f"{CONSOLE_URL}/groups", "reset of offsets"]),
        (
            route_to_browser("topics", "a/b c"),
            [f"{CONSOLE_URL}/topics/a%2Fb%20c\n", f"{CONSOLE_URL}/topics\n"],
        ),
        (Route(section=Section.HELP), ["Enter", "hanging"]),
    ],
)
def test_what_is_on_a_page(route: Route, texts: list[str]) -> None:
    shown, _ = show(route)
    assert [text for text in texts if text not in shown] == []


@pytest.mark.parametrize("route", ROUTES, ids=str)
def test_anchors_have_names_of_their_own(route: Route) -> None:
    names = [anchor.name for anchor in show(route)[1]]
    assert len(names) == len(set(names))
    assert "" not in names


def test_what_could_not_be_read_is_first_on_the_page() -> None:
    shown, _ = show(Route())
    assert shown.startswith("Not everything could be read:\n")
    assert "- pay-harmless: away" in shown


def test_before_the_first_reading_nothing_is_called_empty() -> None:
    assert "Nothing has been read yet." in show(Route(), ConsoleState())[0]
    assert "Nothing has been read yet." in show(Route(section=Section.TRANSACTIONS), ConsoleState())[0]


def test_lists_are_filtered_and_say_so() -> None:
    wanted = TransactionFilter(health="recover", text="harmless-2")
    shown, anchors = show(Route(section=Section.TRANSACTIONS, filter=wanted))
    assert [anchor.name for anchor in anchors] == [f"{HARMLESS}-2"]
    assert "1 match the filter health=recover harmless-2" in shown
    nothing = TransactionFilter(text="of no name")
    shown, anchors = show(Route(section=Section.TRANSACTIONS, filter=nothing))
    assert "match" in shown
    assert anchors == []


def test_transactions_are_sorted() -> None:
    rows = build_transactions(STATE, TransactionFilter(), NOW_MS).rows
    keys = {order: [row.key for row in sort_rows(rows, order)] for order in Order}
    assert keys[Order.WORST] == [row.key for row in rows]
    assert keys[Order.OLDEST][0] == f"{HARMLESS}-2"
    assert keys[Order.MOST_HELD_BACK][0] == HARMLESS
    assert keys[Order.BY_ID][-1] == "producer:77:0"
    order = Order.WORST
    for _ in Order:
        order = cycle_order(order)
    assert order is Order.WORST


@pytest.mark.slow
def test_ten_thousand_transactions_are_one_list() -> None:
    snapshot = make_snapshot(*(describe(f"id-{number:05}") for number in range(10_000)))
    lines = PageLines(
        build_page(advance(ConsoleState(), snapshot), Route(section=Section.TRANSACTIONS), NOW_MS).blocks, 80
    )
    assert lines.find("id-09999") == lines.count - 1


FILTERS = st.builds(
    TransactionFilter,
    health=st.text(max_size=8),
    state=st.text(max_size=8),
    store=st.text(max_size=12),
    text=st.text(max_size=12) | st.sampled_from(["health=x", "text=", "a b", "'", "state="]),
)


@given(FILTERS)
def test_a_filter_is_typed_as_it_is_shown(wanted: TransactionFilter) -> None:
    assert parse_filter(format_filter(wanted)) == wanted


@given(st.text(max_size=30))
def test_anything_that_is_typed_is_a_filter(text: str) -> None:
    assert parse_filter(text).page == 1


# ------------------------------------------------------------------------------------ the frame


def make_frame(state: ConsoleState, route: Route, now_ms: int = NOW_MS) -> Frame:
    info = build_page(state, route, now_ms).info
    return Frame(health="ok", route=route, info=info, built_ms=now_ms, away=describe_away(state, now_ms))


@pytest.mark.parametrize("width", [80, 200])
@pytest.mark.parametrize("route", ROUTES, ids=str)
def test_the_frame_fits(route: Route, width: int) -> None:
    frame = make_frame(STATE, route)
    head = head_lines(frame, NOW_MS, "9,981-9,999 of 10,000", width)
    keys = key_line(route, width)
    detail = detail_lines(frame, Anchor(name="x", reason="reason " * 80), width)
    assert (len(head), len(detail)) == (3, DETAIL_LINES)
    assert all(len(line.text) <= width for line in (*head, *detail, keys))
    assert "q quit  c copy" in keys.text
    assert ("/ filter" in keys.text) == route.lists_transactions
    if route.section in MENU:
        assert f" {route.section.value}]" in head[1].text


def test_the_age_grows_while_nothing_is_read() -> None:
    frame = make_frame(STATE, Route())
    assert "ms ago" in head_lines(frame, NOW_MS, "", 80)[0].text
    assert "read 43 s ago" in head_lines(frame, NOW_MS + 43_000, "", 80)[0].text
    assert "not read yet" in head_lines(make_frame(ConsoleState(), Route()), NOW_MS, "", 80)[0].text


def test_a_cluster_that_is_away_is_said_on_every_page_with_its_age() -> None:
    snapshot = make_snapshot(describe(), stores=[make_store(make_row(state=WRITER))])
    away = PartStatus(
        read_ms=NOW_MS - 40_000, tried_ms=NOW_MS, away_since_ms=NOW_MS, failures=("transactions: refused",)
    )
    gone = replace(
        read_again(snapshot),
        cluster=replace(snapshot.cluster, status=away),
        transactions=replace(snapshot.transactions, status=away),
        topics=replace(snapshot.topics, status=away),
        pipelines=replace(snapshot.pipelines, status=away),
    )
    state = advance(advance(ConsoleState(), snapshot), gone)
    text = f"! No answer from {SERVERS} for 3 s. Its data below are 43 s old."
    for route in ROUTES:
        assert head_lines(make_frame(state, route, NOW_MS + 3_000), NOW_MS + 3_000, "", 80)[
            2
        ].text.startswith(text)
    assert describe_away(advance(ConsoleState(), snapshot), NOW_MS) == ""


def test_a_cluster_that_never_answered_is_said_to_be_away() -> None:
    away = PartStatus(
        tried_ms=NOW_MS,
        away_since_ms=NOW_MS,
        failures=("cluster: refused",),
    )
    gone = Snapshot(number=1, at_ms=NOW_MS, bootstrap_servers=SERVERS, cluster=ClusterFacts(status=away))
    state = advance(ConsoleState(), gone)
    assert describe_away(state, NOW_MS) == f"No answer from {SERVERS} for 0 ms. Not all of it is known yet."


def test_a_cluster_that_is_back_is_not_called_away_by_what_was_read_before() -> None:
    away = PartStatus(
        read_ms=NOW_MS - 90_000,
        tried_ms=NOW_MS - 9_000,
        away_since_ms=NOW_MS - 9_000,
        failures=("cluster: refused",),
    )
    back = PartStatus(read_ms=NOW_MS, tried_ms=NOW_MS)
    snapshot = make_snapshot()
    snapshot = replace(
        snapshot,
        cluster=replace(snapshot.cluster, status=away),
        transactions=replace(snapshot.transactions, status=back),
    )
    assert describe_away(advance(ConsoleState(), snapshot), NOW_MS) == ""


def test_a_store_that_was_never_read_is_not_taken_for_the_cluster() -> None:
    snapshot = make_snapshot(stores=[make_store(failures=("refused",), read_ms=0)])
    state = advance(ConsoleState(), snapshot)
    assert head_lines(make_frame(state, Route()), NOW_MS, "", 80)[0].text.endswith("  not all read yet")


def test_a_note_stands_in_place_of_the_reason() -> None:
    frame = replace(make_frame(STATE, Route()), note="Copied.")
    assert detail_lines(frame, Anchor(name="x", reason="why"), 80)[0].text == "Copied."
    assert detail_lines(make_frame(STATE, Route()), None, 80)[0].text == ""
