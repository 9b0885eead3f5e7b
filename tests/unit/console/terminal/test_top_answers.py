"""Events, histories and records by keys: what is asked when, and what becomes of the answer."""

import pytest
from tests.support.console_facts import (
    NOW_MS,
    ORDERS,
    WRITER,
    describe,
    make_case,
    make_snapshot,
    pair,
    read_again,
)
from tests.support.terminal import WIDE, Screen, use_terminal
from tests.support.terminal_answers import Answers, make_record, make_transition
from textual.events import Key

from tallystick.admin.txn.hanging import HangingFinding
from tallystick.console.lookup.record_page import RecordVerdict
from tallystick.console.lookup.record_query import RecordQuery
from tallystick.console.model.snapshot import PartitionOffsets, PartStatus, Snapshot, TopicFacts
from tallystick.console.model.state import ConsoleState, advance
from tallystick.console.terminal.app import TopServices
from tallystick.console.terminal.places import Place, Section
from tallystick.kernel.value import replace
from tallystick.protocol.transaction_history import TransitionKind

pytestmark = pytest.mark.slow

NAME = "pay-1"
TOPIC = Place(section=Section.TOPICS, key="orders")


def make_open(*names: str) -> Snapshot:
    """Return transactions that are open in a topic with 200 records."""
    descriptions = [
        describe(name, writer=pair(WRITER.producer_id + at, 3)) for at, name in enumerate(names or (NAME,))
    ]
    snapshot = make_snapshot(
        *descriptions,
        cases=[make_case(HangingFinding.TWO_PHASE, each, each.writer or WRITER) for each in descriptions],
    )
    topics = TopicFacts(
        status=PartStatus(read_ms=NOW_MS - 100),
        partition_counts={"orders": 1},
        offsets={ORDERS: PartitionOffsets(start=0, last_stable=10, end=200)},
    )
    return replace(snapshot, topics=topics)


def settle(snapshot: Snapshot) -> ConsoleState:
    return advance(advance(ConsoleState(), snapshot), read_again(snapshot, after_ms=1))


OPEN = settle(make_open())
RECORDS = tuple(make_record(offset, key=f"key-{offset}".encode()) for offset in range(200))


# ---------------------------------------------------------------------------------------- events


def test_events_are_all_there_and_lead_to_their_transactions() -> None:
    async def steps(screen: Screen) -> None:
        await screen.press("e")
        assert "Nothing has happened yet." in screen.text
        assert "[1 Overview]" in screen.lines[1]
        await screen.publish(read_again(make_open(NAME, "pay-2"), after_ms=5_000))
        assert "pay-2 has begun a transaction as 6:3." in " ".join(screen.text.split())
        await screen.press("enter")
        assert screen.app.place == Place(section=Section.TRANSACTIONS, key="pay-2")
        await screen.press("escape", "1", "end")
        assert "pay-2 has begun" in screen.text
        assert "All events" in screen.text
        await screen.press("enter")
        assert screen.app.place.section is Section.EVENTS

    use_terminal(OPEN, steps)


def test_an_event_stays_under_the_cursor_when_others_come() -> None:
    async def steps(screen: Screen) -> None:
        await screen.publish(read_again(make_open(NAME, "pay-2"), after_ms=5_000))
        await screen.press("e")
        line = screen.cursor_line
        assert line is not None
        assert "pay-2" in screen.lines[line]
        more = [f"more-{number}" for number in range(8)]
        await screen.publish(read_again(make_open(NAME, "pay-2", *more), after_ms=9_000))
        assert screen.cursor_line is not None
        assert "pay-2" in screen.lines[screen.cursor_line]
        assert "pay-2 has begun" in screen.lines[-3]

    use_terminal(OPEN, steps)


# --------------------------------------------------------------------------------------- history


def test_a_history_comes_after_its_page_and_moves_nothing_on_it() -> None:
    answers = Answers(
        make_transition(TransitionKind.INITIALIZED, 9_000, producer=pair(5, 2)),
        make_transition(TransitionKind.INITIALIZED, 8_000),
        make_transition(TransitionKind.BEGUN, 1_000),
    )
    answers.hold()

    async def steps(screen: Screen) -> None:
        await screen.press("2", "enter")
        await screen.wait_until(lambda: answers.asked == [NAME])
        assert "Being read." in screen.text
        before = screen.lines[3:]
        answers.release()
        await screen.wait_until(lambda: "Kept by the broker" in screen.text)
        at = next(number for number, line in enumerate(before) if "Being read." in line)
        assert screen.lines[3:][:at] == before[:at]
        await screen.press("end")
        assert "A transaction began. By shop from /shop." in screen.text
        await screen.press("up")
        assert "A producer claimed the id. 5:2 is fenced." in screen.text

    use_terminal(OPEN, steps, size=WIDE, services=TopServices(lookups=answers))


def test_a_history_is_asked_for_again_with_each_state_and_one_at_a_time() -> None:
    answers = Answers(make_transition(TransitionKind.BEGUN, 1_000))

    async def steps(screen: Screen) -> None:
        await screen.press("2", "enter")
        await screen.wait_until(lambda: "Kept by the broker" in screen.text)
        assert answers.asked == [NAME]
        answers.hold()
        await screen.publish(read_again(read_again(make_open())))
        await screen.wait_until(lambda: answers.asked == [NAME] * 2)
        await screen.publish(read_again(read_again(read_again(make_open()))))
        assert answers.asked == [NAME] * 2
        assert "Kept by the broker" in screen.text
        await screen.press("1")
        answers.release()
        await screen.publish(read_again(make_open(), after_ms=9_000))
        assert answers.asked == [NAME] * 2

    use_terminal(OPEN, steps, size=WIDE, services=TopServices(lookups=answers))


def test_an_answer_for_a_page_that_was_left_is_not_shown_on_another() -> None:
    answers = Answers(make_transition(TransitionKind.BEGUN, 1_000))
    answers.hold()

    async def steps(screen: Screen) -> None:
        await screen.press("2", "enter")
        await screen.wait_until(lambda: answers.asked == [NAME])
        await screen.press("escape", "down", "enter")
        await screen.wait_until(lambda: answers.asked == [NAME, "pay-2"])
        answers.history = replace(answers.history, transitions=())
        answers.release()
        await screen.wait_until(lambda: "Nothing is known." in screen.text)

    state = settle(make_open(NAME, "pay-2"))
    use_terminal(state, steps, size=WIDE, services=TopServices(lookups=answers))


def test_a_producer_without_an_id_has_no_history() -> None:
    answers = Answers()
    hanging = make_case(HangingFinding.UNKNOWN_PRODUCER_ID, None, pair(77, 0))

    async def steps(screen: Screen) -> None:
        await screen.press("2", "enter")
        await screen.wait_until(lambda: "Being read." not in screen.text)
        assert "History" not in screen.text
        assert answers.asked == []

    state = settle(replace(make_snapshot(cases=[hanging]), topics=make_open().topics))
    use_terminal(state, steps, size=WIDE, services=TopServices(lookups=answers))


# --------------------------------------------------------------------------------------- records


def test_records_are_read_on_demand_only() -> None:
    answers = Answers(records=RECORDS)
    newest = RecordQuery(partition=ORDERS)

    async def steps(screen: Screen) -> None:
        await screen.press("5", "enter")
        assert answers.asked == []
        await screen.press("enter")
        await screen.wait_until(lambda: "key-150" in screen.text)
        assert answers.asked == [newest]
        await screen.publish(read_again(make_open(), after_ms=5_000))
        await screen.press("f", "f", "f", "enter", "f", "escape", "end", "home")
        assert answers.asked == [newest]
        await screen.press("r")
        await screen.wait_until(lambda: answers.asked == [newest] * 2)
        await screen.press("escape")
        assert screen.app.place == TOPIC

    use_terminal(OPEN, steps, services=TopServices(lookups=answers))


def test_records_are_turned_over_and_sought_by_offset_and_time() -> None:
    answers = Answers(records=RECORDS)

    async def steps(screen: Screen) -> None:
        await screen.press("5", "enter", "enter")
        await screen.wait_until(lambda: "key-150" in screen.text)
        assert "n for those after" not in screen.text
        await screen.press("n")
        assert len(answers.asked) == 1
        await screen.press("p")
        await screen.wait_until(lambda: "key-100" in screen.text)
        assert "There are more: n for those after, p for those before." in " ".join(screen.text.split())
        await screen.press("n")
        await screen.wait_until(lambda: "key-150" in screen.text)
        await screen.press("o", *"7", "enter")
        await screen.wait_until(lambda: "key-7 " in screen.text)
        await screen.press("o", *"yesterday", "enter")
        await screen.wait_until(lambda: "time: 'yesterday' is neither" in screen.text)
        await screen.press("o", *"2026-11-25T10:00", "enter")
        await screen.wait_until(lambda: len(answers.asked) == 5)
        asked = answers.asked[-1]
        assert isinstance(asked, RecordQuery)
        assert asked.time_ms == 1_795_600_800_000
        await screen.press("o", "enter")
        await screen.wait_until(lambda: answers.asked[-1] == RecordQuery(partition=ORDERS))
        await screen.press("escape")
        assert screen.app.place == TOPIC

    use_terminal(OPEN, steps, services=TopServices(lookups=answers))


def test_each_record_has_its_verdict_and_an_open_one_leads_to_its_transaction() -> None:
    records = tuple(
        make_record(at, verdict, is_held_back=verdict is RecordVerdict.OPEN)
        for at, verdict in enumerate(RecordVerdict)
    )
    answers = Answers(records=(*records, make_record(9, producer=pair(99, 0))))

    async def steps(screen: Screen) -> None:
        await screen.press("5", "enter", "enter")
        await screen.wait_until(lambda: "committed" in screen.text)
        words = ("committed", "aborted", "open held back", "ended", "control COMMIT", "not transactional")
        assert [word for word in words if word not in " ".join(screen.text.split())] == []
        await screen.move_to("held back")
        assert "readers of committed records do not see it yet. t leads to its transaction." in " ".join(
            screen.text.split()
        )
        await screen.press("t")
        assert screen.app.place == Place(section=Section.TRANSACTIONS, key=NAME)
        await screen.press("escape")
        await screen.wait_until(lambda: "held back" in screen.text)
        await screen.press("end", "t")
        assert screen.app.place.has_records

    use_terminal(OPEN, steps, services=TopServices(lookups=answers))


def test_one_record_is_shown_as_a_whole_and_in_other_forms() -> None:
    value = b'{"order": 7,\n "paid": "19.90"}'
    big = make_record(1, value=b"x" * 1_000_000, headers={"trace": b"\xff\x00"})
    answers = Answers(records=(make_record(0, value=value, key=None), big))

    async def steps(screen: Screen) -> None:
        await screen.press("5", "enter", "enter")
        await screen.wait_until(lambda: "null" in screen.text)
        await screen.press("enter")
        assert "Value: 30 bytes, as text" in screen.text
        assert '{"order": 7,' in screen.text
        await screen.press("f")
        assert '"paid": "19.90"' in screen.text
        await screen.press("f")
        assert "0000  7b 22 6f 72" in screen.text
        await screen.press("escape", "down", "enter")
        assert "Value: 1,000,000 bytes, of which this is the beginning, as " in screen.text
        await screen.press("end", "c")
        assert "Header trace: 2 bytes" in screen.text
        assert "--partition 0 --offset 1" in " ".join(screen.text.replace("\\", "").split())
        assert "Copied" in screen.text
        await screen.press("escape")
        assert screen.app.place.lists_records
        assert len(answers.asked) == 1

    use_terminal(OPEN, steps, size=WIDE, services=TopServices(lookups=answers))


def test_a_question_that_another_one_replaces_at_once_leaves_nothing_behind() -> None:
    answers = Answers(records=RECORDS)

    async def steps(screen: Screen) -> None:
        await screen.press("5", "enter", "enter")
        for _ in range(5):  # keys that a terminal sends faster than they are handled
            screen.app.post_message(Key("r", "r"))
        await screen.press("escape")
        await screen.wait_until(lambda: screen.app.place == TOPIC)
        assert len(answers.asked) > 1

    use_terminal(OPEN, steps, services=TopServices(lookups=answers))


def test_what_keeps_records_from_being_read_is_said() -> None:
    answers = Answers()
    answers.failure = "records: not read within 5000 ms"

    async def steps(screen: Screen) -> None:
        await screen.press("5", "enter", "enter")
        await screen.wait_until(lambda: answers.failure in screen.text)
        answers.failure = ""
        await screen.press("r")
        await screen.wait_until(lambda: "No record from offset 0 on." in screen.text)

    use_terminal(OPEN, steps, services=TopServices(lookups=answers))
