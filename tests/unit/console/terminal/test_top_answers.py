"""Histories by keys: when they are read, and on which page the answer is shown."""

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
from tests.support.terminal_answers import Answers, make_transition

from tallystick.admin.txn.hanging import HangingFinding
from tallystick.console.model.snapshot import PartitionOffsets, PartStatus, Snapshot, TopicFacts
from tallystick.console.model.state import ConsoleState, advance
from tallystick.console.terminal.app import TopServices
from tallystick.kernel.value import replace
from tallystick.protocol.transaction_history import TransitionKind

pytestmark = pytest.mark.slow

NAME = "pay-1"


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
