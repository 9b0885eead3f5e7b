"""View models: what pages, their JSON form and the terminal show."""

import json
from urllib.parse import parse_qsl

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.console_facts import (
    NOW_MS,
    ORDERS,
    SERVERS,
    STORE,
    WRITER,
    describe,
    make_case,
    make_row,
    make_snapshot,
    make_store,
    pair,
    read_again,
)

from tallystick.admin.txn.hanging import HangingFinding, HangingVerdict
from tallystick.console.model.commands import describe_command
from tallystick.console.model.snapshot import PartitionOffsets, Snapshot
from tallystick.console.model.state import ConsoleState, advance
from tallystick.console.views.lists import PAGE_ROWS, ListQuery, select_rows
from tallystick.console.views.overview import build_overview
from tallystick.console.views.texts import format_duration, format_time
from tallystick.console.views.timeline import draw, list_events
from tallystick.console.views.transaction import build_transaction
from tallystick.console.views.transactions import (
    NO_STATE,
    TransactionFilter,
    build_key,
    build_transactions,
)
from tallystick.dualwrite.rules.leases import LeaseRow


def show(snapshot: Snapshot) -> ConsoleState:
    """Return the state after two looks at the same, so that everything is settled."""
    return advance(advance(ConsoleState(), snapshot), read_again(snapshot, after_ms=1))


def decided_and_abandoned() -> ConsoleState:
    description = describe(age_ms=120_000)
    return show(
        make_snapshot(
            description,
            cases=[make_case(HangingFinding.TWO_PHASE, description)],
            stores=[make_store(make_row(state=WRITER))],
            offsets={ORDERS: PartitionOffsets(start=0, last_stable=10, end=25)},
        )
    )


def hanging() -> ConsoleState:
    case = make_case(HangingFinding.UNKNOWN_PRODUCER_ID, None, pair(77, 0), verdict=HangingVerdict.HANGING)
    return show(make_snapshot(cases=[case]))


def test_a_pasted_command_is_one_command() -> None:
    """ESC [ 2 0 1 ~ ends a bracketed paste: what follows a line feed behind it would be run at once."""
    name = "a\x1b[201~\nrm -rf 'b\\c'\u202e7"
    command = describe_command(SERVERS, name)
    assert command.isprintable()
    assert command.endswith(r"--transactional-id $'a\033[201~\012rm -rf \'b\\c\'\342\200\2567'")
    assert describe_command(SERVERS, "a b").endswith("--transactional-id 'a b'")


def test_a_time_is_shown_in_utc_whatever_it_is() -> None:
    assert format_time(1_790_000_000_123) == "2026-09-21 14:13:20.123"
    assert format_time(-1) == "1969-12-31 23:59:59.999"
    assert format_time(-(2**63)) == f"{-(2**63)} ms"
    assert format_time(None) == "-"


def test_a_transaction_decided_by_a_dead_writer_in_every_page() -> None:
    state = decided_and_abandoned()
    overview = build_overview(state, NOW_MS)
    assert (overview.health, overview.headline) == ("recover", "1 transaction to recover.")
    assert overview.problems[0].key == "pay-1"
    assert "transactions resolve" in overview.problems[0].command
    assert (overview.held_back_count, overview.held_back_partitions) == (15, 1)
    assert overview.oldest_in_doubt_ms == 120_000
    (row,) = build_transactions(state, TransactionFilter(), NOW_MS).rows
    assert (row.health, row.stage, row.verdict, row.store) == ("recover", "decided", "commit", STORE)
    assert (row.held_back_count, row.held_back_ms) == (15, 120_000)
    page = build_transaction(state, "pay-1", NOW_MS)
    assert page.coordinator is not None
    assert page.database is not None
    assert page.coordinator.token == page.database.stored_state == "5:3"
    assert page.database.raw_row["prepared_transaction_state"] == "5:3"
    assert [each.start_offset for each in page.partitions] == [10]
    assert not any("force-terminate" in line.text for line in page.commands)  # it is decided


def test_a_hanging_transaction_is_found_under_its_producer() -> None:
    state = hanging()
    (row,) = build_transactions(state, TransactionFilter(), NOW_MS).rows
    assert (row.key, row.state, row.transactional_id) == ("producer:77:0", NO_STATE, None)
    page = build_transaction(state, row.key, NOW_MS)
    assert page.row == row
    assert "--start-offset 10" in page.commands[0].text


def test_what_is_not_decided_can_be_ended_by_force() -> None:
    page = build_transaction(show(make_snapshot(describe())), "pay-1", NOW_MS)
    assert any("force-terminate" in line.text for line in page.commands)


def test_an_id_that_is_not_open_shows_what_is_known_of_it() -> None:
    done = describe(state="CompleteCommit", writer=pair(5, 4), partitions=())
    state = show(make_snapshot(done, stores=[make_store(make_row(state=WRITER, settled=True))]))
    page = build_transaction(state, "pay-1", NOW_MS)
    assert page.row is None
    assert page.database is not None
    assert page.database.is_settled
    assert build_transaction(state, "nothing of that name", NOW_MS).coordinator is None


def test_an_id_that_is_not_open_shows_its_lease_and_every_store_that_has_a_row() -> None:
    lease = LeaseRow(transactional_id="pay-1", base="pay", number=1, holder="h", expires_at_ms=NOW_MS + 9_000)
    stores = [make_store(make_row(settled=True), leases=(lease,)), make_store(make_row(), name="sqlite:///b")]
    page = build_transaction(advance(ConsoleState(), make_snapshot(stores=stores)), "pay-1", NOW_MS)
    assert page.row is None
    assert page.database is not None
    assert (page.database.lease, page.database.other_stores) == ("held", ("sqlite:///b",))


def test_an_overview_says_what_it_lacks() -> None:
    state = show(make_snapshot(stores=[make_store(failures=(f"{STORE}: connection refused",))]))
    overview = build_overview(state, NOW_MS)
    assert overview.health == "unknown"
    assert overview.problems[0].reason == f"{STORE}: connection refused"
    assert not overview.stores[0].is_reachable


def test_problems_are_shown_the_worst_first() -> None:
    """What could not be read comes after what is known to be broken or hanging."""
    case = make_case(HangingFinding.UNKNOWN_PRODUCER_ID, None, pair(77, 0), verdict=HangingVerdict.HANGING)
    failing = make_store(failures=(f"{STORE}: connection refused",))
    overview = build_overview(show(make_snapshot(cases=[case], stores=[failing])), NOW_MS)
    assert [problem.health for problem in overview.problems] == ["hanging", "unknown"]


@given(
    names=st.lists(st.text(max_size=3), max_size=250),
    text=st.text(max_size=2),
    page=st.integers(min_value=1, max_value=5),
)
def test_the_pages_of_a_list_are_its_matching_rows(names: list[str], text: str, page: int) -> None:
    query = ListQuery(text=text, page=page)
    assert ListQuery.parse(dict(parse_qsl(query.format_query()))) == query
    first = select_rows(names, ListQuery(text=text), str)
    pages = [select_rows(names, ListQuery(text=text, page=n + 1), str) for n in range(first.page_count)]
    shown = [name for each in pages for name in each.rows]
    assert shown == [name for name in names if text.lower() in name.lower()]
    assert first.match_count == len(shown)
    chosen = select_rows(names, query, str)
    assert chosen.rows == pages[chosen.page - 1].rows
    assert chosen.page == min(page, first.page_count)


def test_before_the_first_reading_nothing_is_called_well() -> None:
    overview = build_overview(ConsoleState(), NOW_MS)
    assert (overview.health, overview.headline) == ("unknown", "Nothing has been read yet.")
    assert overview.info.age_ms is None


def test_a_quiet_cluster_is_well() -> None:
    assert build_overview(show(make_snapshot()), NOW_MS).headline == "No transaction is open."
    overview = build_overview(show(make_snapshot(describe(age_ms=3_000))), NOW_MS)
    assert overview.headline == "1 transaction open, the oldest for 3 s."


@pytest.mark.parametrize("make_state", [decided_and_abandoned, hanging])
def test_every_page_is_json(make_state: object) -> None:
    state: ConsoleState = make_state()  # type: ignore[operator]
    for page in (
        build_overview(state, NOW_MS),
        build_transactions(state, TransactionFilter(), NOW_MS),
        *(build_transaction(state, build_key(each), NOW_MS) for each in state.transactions),
    ):
        assert json.loads(msgspec.json.encode(page))["info"]["bootstrap_servers"] == SERVERS


def test_filters_select_and_page() -> None:
    many = show(make_snapshot(*(describe(f"id-{number:03}") for number in range(PAGE_ROWS + 5))))
    page = build_transactions(many, TransactionFilter(page=2), NOW_MS)
    assert (page.match_count, page.page_count, len(page.rows)) == (PAGE_ROWS + 5, 2, 5)
    assert len(build_transactions(many, TransactionFilter(page=99), NOW_MS).rows) == 5
    by_text = build_transactions(many, TransactionFilter(text="ID-00"), NOW_MS)
    assert by_text.match_count == 10
    assert build_transactions(many, TransactionFilter(health="hanging"), NOW_MS).rows == ()
    assert by_text.counts == {"ok": PAGE_ROWS + 5}


@given(
    st.builds(
        TransactionFilter,
        health=st.text(max_size=5),
        state=st.text(max_size=5),
        store=st.text(max_size=9),
        text=st.text(max_size=9),
        page=st.integers(1, 10_000),
    )
)
def test_a_filter_survives_its_url(wanted: TransactionFilter) -> None:
    """Back buttons and shared links show what was filtered."""
    query = dict(parse_qsl(wanted.format_query(), keep_blank_values=True, encoding="utf-8"))
    assert TransactionFilter.parse(query) == wanted


@given(st.dictionaries(st.sampled_from(["health", "state", "store", "text", "page"]), st.text(max_size=12)))
def test_any_query_is_a_filter(query: dict[str, str]) -> None:
    assert TransactionFilter.parse(query).page >= 1


def test_a_time_line_shows_what_is_missing() -> None:
    (each,) = decided_and_abandoned().transactions
    events = [(event.row, event.label, event.is_done) for event in list_events(each)]
    assert events == [
        ("coordinator", "begun", True),
        ("orders-0", "data", True),
        (STORE, "committed", True),
        ("coordinator", "decision", False),
        ("orders-0", "marker", False),
    ]


def test_rows_and_events_fit_into_the_drawing() -> None:
    for state in (decided_and_abandoned(), hanging()):
        timeline = draw(list_events(state.transactions[0]))
        assert all(
            0 < drawn.x < timeline.width and 0 < drawn.y < timeline.height for drawn in timeline.events
        )
        assert len({row.y for row in timeline.rows}) == len(timeline.rows)


def test_a_transaction_of_many_partitions_is_drawn_in_few_rows() -> None:
    description = describe(partitions=[type(ORDERS)("orders", number) for number in range(50)])
    (each,) = show(make_snapshot(description)).transactions
    timeline = draw(list_events(each))
    assert [row.name for row in timeline.rows][-1] == "other partitions"
    assert len(timeline.rows) <= 10


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (None, "-"),
        (0, "0 ms"),
        (999, "999 ms"),
        (1_000, "1 s"),
        (134_000, "2 min 14 s"),
        (120_000, "2 min"),
        (7_380_000, "2 h 3 min"),
        (90_000_000, "1 d 1 h"),
    ],
)
def test_durations(ms: int | None, text: str) -> None:
    assert format_duration(ms) == text


def test_what_is_broken_and_not_open_any_more_is_not_counted_as_open() -> None:
    ended = describe(state="CompleteAbort")
    state = show(make_snapshot(ended, stores=[make_store(make_row(state=WRITER))]))
    assert [each.health.value for each in state.transactions] == ["broken"]
    page = build_overview(state, NOW_MS)
    assert (page.open_count, page.prepared_count, page.oldest_ms) == (0, 0, None)
    assert [store.open_count for store in page.stores] == [0]
    assert page.counts == {"broken": 1}
