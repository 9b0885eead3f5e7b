"""The terminal application, driven by keys: no terminal, no clock, no cluster."""

import asyncio
import base64

import pytest
from tests.support.console_facts import (
    NOW_MS,
    SERVERS,
    describe,
    make_case,
    make_snapshot,
    pair,
    read_again,
)
from tests.support.console_site import serve
from tests.support.hostile_console import HARMLESS, make_hostile_state
from tests.support.terminal import SMALL, STYLE, WIDE, Screen, use_terminal

from tallystick.admin.txn.hanging import HangingFinding, HangingVerdict
from tallystick.console.model.snapshot import PartStatus, Snapshot
from tallystick.console.model.state import ConsoleState, advance
from tallystick.console.terminal.app import TopServices
from tallystick.console.terminal.pages.guide import CONSOLE_URL
from tallystick.console.terminal.routes import MENU, Order, Route, Section, route_to_browser
from tallystick.console.terminal.run import find_console
from tallystick.kernel.value import replace

pytestmark = pytest.mark.slow

STATE = make_hostile_state(HARMLESS)


def settle(snapshot: Snapshot) -> ConsoleState:
    return advance(advance(ConsoleState(), snapshot), read_again(snapshot, after_ms=1))


def open_ids(*ages_ms: int) -> Snapshot:
    """Return transactions that are fine, by their age; the oldest comes first."""
    return make_snapshot(
        *(describe(f"id-{age_ms}", writer=pair(age_ms, 0), age_ms=age_ms) for age_ms in ages_ms)
    )


@pytest.mark.parametrize("size", [SMALL, WIDE], ids=["80x24", "160x50"])
def test_digits_lead_to_the_pages(size: tuple[int, int]) -> None:
    async def steps(screen: Screen) -> None:
        assert "1 transaction hanging" in screen.text
        for number, section in enumerate(MENU, 1):
            await screen.press(str(number))
            assert screen.app.route.section is section
            assert f"[{number} {section.value}]" in screen.lines[1]
            assert len(screen.lines) == size[1]
            assert "q quit" in screen.lines[-1]

    use_terminal(STATE, steps, size=size)


def test_enter_opens_and_escape_leads_back_to_the_same_row() -> None:
    async def steps(screen: Screen) -> None:
        await screen.press("2", "down", "down")
        line = screen.cursor_line
        await screen.press("enter")
        assert screen.app.route.key == HARMLESS
        assert "Its writer is gone" in screen.text
        await screen.press("end", "escape")
        assert (screen.app.route.section, screen.app.route.key) == (Section.TRANSACTIONS, None)
        assert screen.cursor_line == line
        await screen.press("escape")
        assert screen.app.route.section is Section.OVERVIEW
        await screen.press("escape")
        assert screen.app.route.section is Section.OVERVIEW

    use_terminal(STATE, steps)


def test_a_partition_leads_to_the_address_of_its_topic_and_back() -> None:
    async def steps(screen: Screen) -> None:
        await screen.press("2", "down", "down", "enter")
        await screen.move_to("orders-0")
        line = screen.cursor_line
        await screen.press("enter")
        assert screen.app.route == route_to_browser("topics", "orders")
        assert "http://127.0.0.1:8080/topics/orders" in screen.text
        await screen.press("escape")
        assert screen.app.route.key == HARMLESS
        assert screen.cursor_line == line
        await screen.press("backspace")
        assert screen.app.route.section is Section.TRANSACTIONS

    use_terminal(STATE, steps, size=WIDE)


def test_the_address_of_a_console_that_runs_is_copied() -> None:
    asked: list[str | None] = []

    async def find_console(cluster_id: str | None) -> str:
        asked.append(cluster_id)
        return CONSOLE_URL

    async def steps(screen: Screen) -> None:
        await screen.press("3")
        await screen.wait_until(lambda: "The console runs." in screen.text)
        assert "tallystick console" not in screen.text
        await screen.move_to("/groups")
        await screen.press("c")
        assert base64.b64encode(f"{CONSOLE_URL}/groups".encode()).decode() in screen.written
        assert asked == [STATE.snapshot.cluster.cluster_id]

    use_terminal(STATE, steps, services=TopServices(find_console=find_console))


def test_without_a_console_there_is_the_command_that_starts_it() -> None:
    async def steps(screen: Screen) -> None:
        await screen.press("3")
        assert "No console of this cluster answers" in screen.text
        assert "tallystick console --bootstrap-server" in screen.text
        assert f"{CONSOLE_URL}/stores" in screen.text

    use_terminal(STATE, steps)


def test_the_reason_of_the_row_under_the_cursor_is_below_the_page() -> None:
    async def steps(screen: Screen) -> None:
        await screen.press("2")
        assert "no coordinator knows the producer id" in screen.lines[-3]
        await screen.press("down")
        assert "has not committed it" in screen.lines[-3]

    use_terminal(STATE, steps)


def test_a_filter_is_typed_applied_and_left() -> None:
    async def steps(screen: Screen) -> None:
        await screen.press("2", "slash", *"q1s?", "escape")
        assert (screen.app.route.section, screen.app.route.filter.text) == (Section.TRANSACTIONS, "")
        await screen.press("slash", *"health=recover", "enter")
        assert "2 match the filter health=recover" in screen.text
        assert "producer:77:0" not in screen.text
        await screen.press("slash", "enter")
        assert "2 match" in screen.text
        await screen.press("escape")
        assert "producer:77:0" in screen.text
        await screen.press("3", "slash", "s")
        assert screen.app.route == Route(section=Section.BROWSER)

    use_terminal(STATE, steps)


def test_what_is_pasted_into_the_filter_is_made_visible() -> None:
    async def steps(screen: Screen) -> None:
        from textual.events import Paste

        await screen.press("2", "slash")
        screen.app.post_message(Paste("pay\x1b[5;31m\u202e"))
        await screen.settle()
        await screen.press("enter")
        assert screen.app.route.filter.text == r"pay\x1b[5;31m\u202e".replace("\\", "")

    use_terminal(STATE, steps)


def test_sorting_keeps_the_list() -> None:
    async def steps(screen: Screen) -> None:
        await screen.press("2")
        for order in (*list(Order)[1:], Order.WORST):
            await screen.press("s")
            assert screen.app.route.order is order
            assert order.value in screen.text
        await screen.press("1", "s")
        assert screen.app.route.order is Order.WORST

    use_terminal(STATE, steps)


def test_a_row_keeps_its_place_under_the_cursor_when_the_data_change() -> None:
    ages_ms = range(1_000, 61_000, 1_000)

    async def steps(screen: Screen) -> None:
        await screen.press("2", "end", "up", "up")
        line = screen.cursor_line
        assert line is not None
        name = screen.lines[line][17:27]
        more = read_again(open_ids(*ages_ms, *range(100_000, 130_000, 1_000)))
        await screen.publish(more)
        assert screen.cursor_line == line
        assert screen.lines[line][17:27] == name
        fewer = read_again(more)
        await screen.publish(replace(fewer, transactions=open_ids(*ages_ms).transactions))
        assert screen.cursor_line == line
        assert screen.lines[line][17:27] == name

    use_terminal(settle(open_ids(*ages_ms)), steps)


def test_a_transaction_that_ends_leaves_its_page_and_says_so() -> None:
    async def steps(screen: Screen) -> None:
        await screen.press("2", "enter")
        assert screen.app.route.key == "id-5000"
        await screen.publish(read_again(make_snapshot()))
        assert "No transaction of this id is open" in screen.text

    use_terminal(settle(open_ids(5_000)), steps)


def test_a_hanging_transaction_appears_by_itself() -> None:
    async def steps(screen: Screen) -> None:
        assert screen.lines[0].startswith("tallystick ok")
        case = make_case(
            HangingFinding.UNKNOWN_PRODUCER_ID, None, pair(77, 0), verdict=HangingVerdict.HANGING
        )
        await screen.publish(read_again(make_snapshot(cases=[case])))
        assert screen.lines[0].startswith("tallystick hanging")
        assert "transactions abort" in screen.text

    use_terminal(settle(make_snapshot()), steps)


def test_a_cluster_that_is_away_is_said_at_once_and_its_data_age() -> None:
    snapshot = make_snapshot(describe())
    away = PartStatus(
        read_ms=NOW_MS - 200, tried_ms=NOW_MS, away_since_ms=NOW_MS, failures=("transactions: refused",)
    )

    async def steps(screen: Screen) -> None:
        gone = read_again(snapshot)
        gone = replace(
            gone,
            transactions=replace(gone.transactions, status=away),
            topics=replace(gone.topics, status=away),
            pipelines=replace(gone.pipelines, status=away),
        )
        await screen.publish(gone)
        assert screen.lines[2].startswith(f"! No answer from {SERVERS} for 0 ms. ")
        assert screen.text.count("transactions: refused") == 1
        screen.clock.advance(60_000)
        screen.app.show_frame()
        await screen.settle()
        assert "for 1 min. Its data below are 1 min" in screen.lines[2]
        assert "read 1 min ago" in screen.lines[0]
        assert "pay-1" not in screen.lines[2]
        await screen.press("2")
        assert "pay-1" in screen.text

    use_terminal(settle(snapshot), steps)


def test_before_the_first_reading_it_says_so() -> None:
    async def steps(screen: Screen) -> None:
        assert "not read yet" in screen.lines[0]
        assert "Nothing has been read yet." in screen.text
        await screen.publish(make_snapshot())
        assert "No transaction is open." in screen.text

    use_terminal(ConsoleState(), steps)


def test_a_command_is_copied_whole_and_not_by_accident() -> None:
    async def steps(screen: Screen) -> None:
        await screen.press("2", "down", "down", "enter", "c")
        (start,) = [at for at in range(len(screen.written)) if screen.written.startswith("\x1b]52;c;", at)]
        copied = screen.written[start + 7 :].partition("\a")[0]
        command = base64.b64decode(copied).decode()
        assert command.startswith("tallystick transactions resolve --bootstrap-server")
        assert "Copied" in screen.text
        await screen.press("question_mark", "c")
        assert "There is no command here." in screen.text
        assert screen.written.count("\x1b]52") == 1

    use_terminal(STATE, steps)


def test_keys_ask_for_help_and_for_newer_data() -> None:
    asked: list[bool] = []

    async def steps(screen: Screen) -> None:
        await screen.press("r")
        assert asked == [True]
        assert "as soon as its load allows" in screen.text
        await screen.press("question_mark", "question_mark")
        assert "move by a screen" in screen.text
        await screen.press("escape")
        assert screen.app.route.section is Section.OVERVIEW

    use_terminal(STATE, steps, services=TopServices(read_soon=lambda: asked.append(True)))


@pytest.mark.parametrize("key", ["q", "ctrl+c"])
def test_it_ends(key: str) -> None:
    async def steps(screen: Screen) -> None:
        assert screen.app.is_running
        await screen.press(key)
        assert screen.app.return_code == 0

    use_terminal(STATE, steps)


def test_a_state_that_comes_while_it_ends_does_no_harm() -> None:
    async def steps(screen: Screen) -> None:
        screen.app.exit()
        screen.feed.publish(read_again(make_snapshot()))
        await screen.settle()
        await screen.publish(read_again(read_again(make_snapshot())))
        screen.app.show_state()
        screen.app.show_frame()

    use_terminal(STATE, steps)


def test_a_window_that_shrinks_keeps_the_row() -> None:
    async def steps(screen: Screen) -> None:
        await screen.press("2", "down", "down")
        await screen.resize(60, 14)
        line = screen.cursor_line
        assert line is not None
        assert HARMLESS in screen.lines[line]
        assert all(len(each) == 60 for each in screen.lines)

    use_terminal(STATE, steps, size=WIDE)


def test_without_colours_nothing_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    texts: list[str] = []

    async def steps(screen: Screen) -> None:
        await screen.press("2", "down")
        texts.append(screen.text)
        parameters = {number for each in STYLE.findall(screen.written) for number in each.split(";")}
        colours = {str(number) for base in (30, 40, 90, 100) for number in range(base, base + 8)} | {
            "38",
            "48",
        }
        assert parameters & colours == set()
        assert "> recover" in screen.text

    use_terminal(STATE, steps)
    monkeypatch.delenv("NO_COLOR")

    async def coloured_steps(screen: Screen) -> None:
        await screen.press("2", "down")
        assert screen.text == texts[0]
        assert "\x1b[1;31" in screen.written

    use_terminal(STATE, coloured_steps)


def test_the_colours_are_those_of_the_terminal() -> None:
    """Sixteen colours, and the background as it is: readable on light and on dark ones, and over any line."""

    async def steps(screen: Screen) -> None:
        for number in range(1, len(MENU) + 1):
            await screen.press(str(number))
        parameters = {number for each in STYLE.findall(screen.written) for number in each.split(";")}
        assert parameters & {"38", "48"} == set()
        assert not parameters & {str(number) for number in range(40, 48)}

    use_terminal(STATE, steps)


@pytest.mark.gate(1)
@pytest.mark.parametrize("size", [(1, 1), (9, 4), (30, 7), (300, 90)], ids=str)
def test_a_window_of_any_size_shows_what_fits(size: tuple[int, int]) -> None:
    async def steps(screen: Screen) -> None:
        for number in range(1, len(MENU) + 1):
            await screen.press(str(number), "down", "pagedown", "end", "enter", "up", "home", "escape")
        await screen.press("2", "slash", *"pay", "enter")
        assert len(screen.lines) == size[1]

    use_terminal(STATE, steps, size=size)


def test_a_console_of_the_same_cluster_is_found() -> None:
    snapshot = make_snapshot()
    with serve(snapshot) as site:
        port = int(site.url.rpartition(":")[2])
        assert asyncio.run(find_console(snapshot.cluster.cluster_id, port)) == site.url
        assert asyncio.run(find_console("another", port)) == ""
        assert asyncio.run(find_console(None, port)) == ""
    assert asyncio.run(find_console(snapshot.cluster.cluster_id, port)) == ""
