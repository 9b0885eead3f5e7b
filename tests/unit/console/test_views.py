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

from tallystick.admin.txn.hanging import HangingFinding, Verdict
from tallystick.console.snapshot import PartitionOffsets, Snapshot
from tallystick.console.state import ConsoleState, advance
from tallystick.console.views.overview import build_overview
from tallystick.console.views.texts import format_duration
from tallystick.console.views.timeline import draw, list_events
from tallystick.console.views.transaction import build_transaction
from tallystick.console.views.transactions import (
    NO_STATE,
    PAGE_ROWS,
    TransactionFilter,
    build_key,
    build_transactions,
)


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
    case = make_case(HangingFinding.UNKNOWN_PRODUCER_ID, None, pair(77, 0), verdict=Verdict.HANGING)
    return show(make_snapshot(cases=[case]))


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


def test_an_overview_says_what_it_lacks() -> None:
    state = show(make_snapshot(stores=[make_store(failures=(f"{STORE}: connection refused",))]))
    overview = build_overview(state, NOW_MS)
    assert overview.health == "unknown"
    assert overview.problems[0].reason == f"{STORE}: connection refused"
    assert not overview.stores[0].is_reachable


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
        *(build_transaction(state, build_key(each), NOW_MS) for each in state.joint),
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
    (each,) = decided_and_abandoned().joint
    events = [(event.lane, event.label, event.is_done) for event in list_events(each)]
    assert events == [
        ("coordinator", "begun", True),
        ("orders-0", "data", True),
        (STORE, "committed", True),
        ("coordinator", "decision", False),
        ("orders-0", "marker", False),
    ]


def test_lanes_and_events_fit_into_the_drawing() -> None:
    for state in (decided_and_abandoned(), hanging()):
        timeline = draw(list_events(state.joint[0]))
        assert all(
            0 < drawn.x < timeline.width and 0 < drawn.y < timeline.height for drawn in timeline.events
        )
        assert len({lane.y for lane in timeline.lanes}) == len(timeline.lanes)


def test_a_transaction_of_many_partitions_is_drawn_in_few_lanes() -> None:
    description = describe(partitions=[type(ORDERS)("orders", number) for number in range(50)])
    (each,) = show(make_snapshot(description)).joint
    timeline = draw(list_events(each))
    assert [lane.name for lane in timeline.lanes][-1] == "other partitions"
    assert len(timeline.lanes) <= 10


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
