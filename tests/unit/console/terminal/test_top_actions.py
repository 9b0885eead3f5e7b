"""Actions by keys: the dry run, what is typed, the three results, and how the application ends meanwhile."""

import json
import logging
import threading
from pathlib import Path

import pytest
from tests.support.console_facts import (
    NOW_MS,
    ORDERS,
    STORE,
    WRITER,
    describe,
    make_row,
    make_snapshot,
    make_store,
    read_again,
)
from tests.support.terminal import SMALL, Screen, use_terminal
from tests.support.terminal_actions import DONE, USER, Stage
from textual.events import Key

from tallystick.console.actions.audit import AUDIT_LOGGER
from tallystick.console.actions.readings import (
    CompletionOutlook,
    TransactionReading,
)
from tallystick.console.actions.request import CompleteByState, ForceTerminate, ResolveRow
from tallystick.console.actions.results import report_refusal, report_unknown
from tallystick.console.model.snapshot import Snapshot
from tallystick.console.model.state import ConsoleState, advance
from tallystick.console.terminal.routes import Route, Section
from tallystick.console.terminal.run import hold_log
from tallystick.kernel.value import replace

pytestmark = pytest.mark.slow

NAME = "pay-1"


def make_trouble(name: str = NAME) -> Snapshot:
    """Return a transaction that its database has committed, and whose writer is gone."""
    return make_snapshot(
        describe(name, age_ms=185_000), stores=[make_store(make_row(name, WRITER), make_row("other", WRITER))]
    )


def settle(snapshot: Snapshot) -> ConsoleState:
    return advance(advance(ConsoleState(), snapshot), read_again(snapshot, after_ms=1))


TROUBLE = settle(make_trouble())
READING = TransactionReading(snapshot=make_trouble(), transactional_id=NAME)


async def open_dry_run(screen: Screen) -> None:
    """Go to the transaction, and ask for its dry run."""
    await screen.press("2", "enter", "a")
    await screen.wait_until(lambda: "This is a dry run" in screen.text)


async def confirm(screen: Screen, typed: str) -> None:
    await screen.press("end", "enter", *typed, "enter")


def see(screen: Screen, text: str) -> bool:
    """Return whether a text is on the screen, however it is broken into lines."""
    return text in " ".join(screen.text.replace("> ", "  ").split())


# ------------------------------------------------------------------------------------ three results


def test_a_transaction_is_resolved_by_keys_alone(tmp_path: Path) -> None:
    stage = Stage(READING, tmp_path / "audit.jsonl")

    async def steps(screen: Screen) -> None:
        await screen.press("2", "enter")
        assert "a: dry run, c copies: tallystick transactions resolve" in screen.text
        await screen.press("a")
        await screen.wait_until(lambda: "This is a dry run" in screen.text)
        assert "read 0 ms ago" in screen.lines[0]
        assert see(screen, "Kafka Is now Ongoing, producer id and epoch 5:3")
        await screen.press("end")
        assert see(screen, f"--transactional-id {NAME}")
        assert see(screen, f"To be typed: {NAME}")
        await confirm(screen, NAME)
        await screen.wait_until(lambda: f"done  {DONE}" in screen.text)
        await screen.press("escape")
        assert screen.app.route == Route(section=Section.TRANSACTIONS, key=NAME)

    stage.play(TROUBLE, steps)
    assert stage.actions == [ResolveRow(transactional_id=NAME, store=STORE)]
    assert stage.readings_asked == [True]
    intent, result = map(json.loads, (tmp_path / "audit.jsonl").read_text().splitlines())
    assert (intent["event"], result["event"], result["outcome"]) == ("intent", "result", "done")
    assert (intent["user"], intent["action"], intent["subject"]) == (USER, "resolve", NAME)


def test_another_id_than_the_one_that_is_shown_does_nothing() -> None:
    """[ACT-4]"""
    stage = Stage(READING)

    async def steps(screen: Screen) -> None:
        await open_dry_run(screen)
        for typed in ("", "pay", "PAY-1", "pay-11"):
            await confirm(screen, typed)
            assert see(screen, f"Something else was typed, and nothing was done. Type {NAME} and press Enter")
            await screen.press("escape")
        await screen.press("escape", "escape")
        assert screen.app.route == Route(section=Section.TRANSACTIONS)

    stage.play(TROUBLE, steps)
    assert stage.actions == []


def test_keys_that_come_at_once_leave_the_prompt_its_note() -> None:
    stage = Stage(READING)

    async def steps(screen: Screen) -> None:
        await open_dry_run(screen)
        for key in ("end", "enter"):  # as a terminal sends them that was waited for
            screen.app.post_message(Key(key, None))
        await screen.settle()
        assert see(screen, f"Type {NAME} and press Enter to do it.")

    stage.play(TROUBLE, steps)


def test_a_state_that_has_moved_is_refused_with_what_has_changed() -> None:
    """[ACT-1] through the service: the screen says what."""
    stage = Stage(READING)

    async def steps(screen: Screen) -> None:
        await open_dry_run(screen)
        moved = make_snapshot(describe(NAME, "PrepareCommit"), stores=[make_store(make_row(NAME, WRITER))])
        stage.reading = TransactionReading(snapshot=moved, transactional_id=NAME)
        await confirm(screen, NAME)
        await screen.wait_until(lambda: "refused  The state has moved" in screen.text)
        assert see(screen, "What has changed")
        assert see(screen, "- Kafka, now: PrepareCommit")
        await screen.press("r")
        await screen.wait_until(lambda: "This is a dry run" in screen.text)

    stage.play(TROUBLE, steps)
    assert stage.actions == []


def test_an_unknown_outcome_lists_what_to_look_at() -> None:
    stage = Stage(READING)
    stage.report = lambda plan: report_unknown("EndTxn: no answer", plan)

    async def steps(screen: Screen) -> None:
        await open_dry_run(screen)
        await confirm(screen, NAME)
        await screen.wait_until(lambda: "outcome unknown  EndTxn: no answer" in screen.text)
        assert see(screen, "CompleteCommit or PrepareCommit: it was done.")
        await screen.press("down", "c")
        assert "Copied" in screen.text

    stage.play(TROUBLE, steps)
    assert len(stage.actions) == 1


def test_a_failing_action_leaves_the_outcome_unknown() -> None:
    """[ACT-3] An error of which nothing is known is no refusal."""
    stage = Stage(READING)

    def fail(_: object) -> None:
        raise KeyError("a mistake")

    stage.report = fail  # type: ignore[assignment]

    async def steps(screen: Screen) -> None:
        await open_dry_run(screen)
        await confirm(screen, NAME)
        await screen.wait_until(lambda: "outcome unknown  KeyError: 'a mistake'" in screen.text)

    stage.play(TROUBLE, steps)


def test_what_cannot_be_read_has_no_dry_run_until_it_can() -> None:
    stage = Stage(READING)
    stage.problem = "Metadata: not within the limit"

    async def steps(screen: Screen) -> None:
        await screen.press("2", "enter", "a")
        await screen.wait_until(lambda: see(screen, f"could not be read: {stage.problem}."))
        await screen.press("end", "enter")
        assert not see(screen, "To be typed")
        stage.problem = ""
        await screen.press("r")
        await screen.wait_until(lambda: "This is a dry run" in screen.text)

    stage.play(TROUBLE, steps)


# ----------------------------------------------------------------------------- what it asks for


def test_what_may_be_wrong_needs_a_reason_first(tmp_path: Path) -> None:
    """[ACT-2] The abort of a transaction that is in doubt."""
    snapshot = make_snapshot(describe(NAME, age_ms=2_000_000))
    stage = Stage(TransactionReading(snapshot=snapshot, transactional_id=NAME), tmp_path / "audit.jsonl")

    async def steps(screen: Screen) -> None:
        await screen.press("2", "enter")
        await screen.move_to("transactions force-terminate")
        await screen.press("a")
        await screen.wait_until(lambda: "This is not done without a reason." in screen.text)
        await screen.press("end", "enter")
        assert "the reason goes into the audit log" in screen.text
        await screen.press("space", "enter")
        assert "the reason goes into the audit log" in screen.text
        await screen.press(*"ticket", "enter")
        assert see(screen, f"Type {NAME} and press Enter")
        await screen.press(*NAME, "enter")
        await screen.wait_until(lambda: f"done  {DONE}" in screen.text)

    stage.play(settle(snapshot), steps)
    assert stage.actions == [ForceTerminate(transactional_id=NAME)]
    lines = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert [line["reason"] for line in lines] == ["ticket", "ticket"]


def test_what_no_reason_makes_right_cannot_be_confirmed() -> None:
    closed = make_snapshot(describe(NAME, "Empty"), stores=[make_store(make_row(NAME, WRITER, settled=True))])
    stage = Stage(TransactionReading(snapshot=closed, transactional_id=NAME))

    async def steps(screen: Screen) -> None:
        await screen.press("2", "enter", "a")
        await screen.wait_until(lambda: "This is refused." in screen.text)
        await screen.press("end", "enter")
        assert not see(screen, "To be typed")

    stage.play(TROUBLE, steps)
    assert stage.actions == []


@pytest.mark.gate(0)
def test_an_orphan_is_committed_as_the_database_says() -> None:
    orphan = settle(make_snapshot(describe(NAME, age_ms=2_000_000)))
    outlook = CompletionOutlook(outcome="commit", text="it is exactly this one", sends_request=True)
    stage = Stage(
        TransactionReading(snapshot=make_snapshot(describe(NAME)), transactional_id=NAME, completion=outlook)
    )

    async def steps(screen: Screen) -> None:
        await screen.press("2", "enter", "a")
        assert see(screen, "Commit: It says 5:3.")
        assert see(screen, "Abort: It says anything else, or there is no row.")
        await screen.move_to("Commit: ")
        await screen.press("enter")
        await screen.wait_until(lambda: "This is a dry run" in screen.text)
        await screen.move_to("To be typed")
        assert see(screen, "By state 5:3: it is exactly this one.")
        await screen.press("enter", *"its row says so", "enter", *NAME, "enter")
        await screen.wait_until(lambda: f"done  {DONE}" in screen.text)

    stage.play(orphan, steps)
    assert stage.actions == [CompleteByState(transactional_id=NAME, state="5:3")]


@pytest.mark.gate(1)
@pytest.mark.parametrize(
    "name", ["pay\u0301", "pay\u200b-\u202e1", "a\nb", " pay", "口座", "pay\u115f"], ids=ascii
)
def test_an_id_that_cannot_be_typed_is_typed_as_it_is_shown(name: str) -> None:
    stage = Stage(TransactionReading(snapshot=make_trouble(name), transactional_id=name))

    async def steps(screen: Screen) -> None:
        await open_dry_run(screen)
        await screen.press("end")
        line = next(line for line in screen.lines if "To be typed: " in line)
        shown = line.partition("To be typed: ")[2].rstrip()
        await screen.press("enter", *shown, "enter")
        await screen.wait_until(lambda: f"done  {DONE}" in screen.text)

    stage.play(settle(make_trouble(name)), steps)
    assert [action.transactional_id for action in stage.actions] == [name]  # type: ignore[union-attr]


# ------------------------------------------------------------------------------ while it is under way


def test_a_dry_run_stands_still_while_the_cluster_is_read() -> None:
    stage = Stage(READING)

    async def steps(screen: Screen) -> None:
        await open_dry_run(screen)
        await screen.press("end", "enter", *"pa")
        before = screen.lines
        await screen.publish(read_again(make_snapshot(describe("another"), describe("third"))))
        assert screen.lines[1:] == before[1:]
        await screen.press(*"y-1", "enter")
        await screen.wait_until(lambda: f"done  {DONE}" in screen.text)

    stage.play(TROUBLE, steps)


def test_an_action_goes_on_while_other_pages_are_shown() -> None:
    stage = Stage(READING)
    stage.gate.clear()

    async def steps(screen: Screen) -> None:
        await open_dry_run(screen)
        await confirm(screen, NAME)
        await screen.wait_until(lambda: stage.actions != [])
        assert see(screen, "It is under way.")
        await screen.press("r")
        assert see(screen, "It is under way.")
        await screen.press("3")
        assert f"Resolve {NAME}: under way. a shows it." in screen.lines[-3]
        await screen.press("2", "a")
        assert see(screen, "It is under way.")
        await screen.press("1")
        stage.gate.set()
        await screen.wait_until(lambda: f"Resolve {NAME}: done. a shows it." in screen.text)
        await screen.press("2", "a")
        assert f"done  {DONE}" in screen.text
        await screen.press("1")
        assert "a shows it" not in screen.text

    stage.play(TROUBLE, steps)
    assert len(stage.actions) == 1


def test_quitting_is_warned_of_once_for_each_action() -> None:
    stage = Stage(READING)
    stage.gate.clear()

    async def steps(screen: Screen) -> None:
        for count in (1, 2):
            await open_dry_run(screen)
            await confirm(screen, NAME)
            await screen.wait_until(lambda at=count: len(stage.actions) == at)
            await screen.press("q")
            assert screen.app.is_running
            stage.gate.set()
            await screen.wait_until(lambda: f"done  {DONE}" in screen.text)
            stage.gate.clear()

    stage.play(TROUBLE, steps)


@pytest.mark.parametrize("key", ["q", "ctrl+c"])
def test_quitting_while_an_action_is_under_way_is_said_first(key: str) -> None:
    stage = Stage(READING)
    stage.gate.clear()

    async def steps(screen: Screen) -> None:
        await open_dry_run(screen)
        await confirm(screen, NAME)
        await screen.wait_until(lambda: stage.actions != [])
        await screen.press(key)
        assert screen.app.is_running
        assert "An action is under way." in screen.text
        await screen.press(key)
        assert screen.app.return_code == 0
        stage.gate.set()
        ended = await screen.app.panel.wait(60)
        assert ended is not None
        assert ended.result is not None
        assert ended.result.text == DONE

    stage.play(TROUBLE, steps)


def test_an_action_that_has_not_ended_when_its_time_is_over_is_unknown() -> None:
    stage = Stage(READING)
    stage.gate.clear()

    async def steps(screen: Screen) -> None:
        await open_dry_run(screen)
        await confirm(screen, NAME)
        await screen.wait_until(lambda: stage.actions != [])
        screen.app.exit()
        await screen.settle()
        ended = await screen.app.panel.wait(0)
        assert ended is not None
        assert ended.result is not None
        assert (ended.result.outcome.value, ended.result.text) == ("outcome unknown", "it has not ended yet")
        assert ended.result.look_ups != ()
        stage.gate.set()

    stage.play(TROUBLE, steps)


def test_a_result_that_was_shown_is_not_told_again() -> None:
    stage = Stage(READING)
    stage.report = lambda _: report_refusal("no")

    async def steps(screen: Screen) -> None:
        await open_dry_run(screen)
        await confirm(screen, NAME)
        await screen.wait_until(lambda: "refused  no" in screen.text)
        assert await screen.app.panel.wait(60) is None

    stage.play(TROUBLE, steps)


def test_the_audit_log_is_held_back_while_there_is_a_screen(capsys: pytest.CaptureFixture[str]) -> None:
    audit, other = logging.getLogger(AUDIT_LOGGER), logging.getLogger("tallystick.console")
    with hold_log() as log:
        audit.warning("intent")
        other.error("a mistake")
        other.warning("nothing")
        assert capsys.readouterr().err == ""
        assert log.last_error == "a mistake"
        log.let_through()
        assert capsys.readouterr().err == "intent\n"
        thread = threading.Thread(target=audit.warning, args=("result",))  # the thread of actions
        thread.start()
        thread.join()
        assert capsys.readouterr().err == "result\n"
    with hold_log():
        audit.warning("kept")
        assert capsys.readouterr().err == ""
    assert capsys.readouterr().err == "kept\n"


# ------------------------------------------------------------------------------------- and without


def test_without_the_option_the_command_is_shown_to_be_copied_as_ever() -> None:
    async def steps(screen: Screen) -> None:
        await screen.press("2", "enter", "a")
        assert "Actions are off: start it with --allow-actions. c copies the command." in screen.text
        assert screen.app.route == Route(section=Section.TRANSACTIONS, key=NAME)
        await screen.press("down", "up")
        assert "c copies: tallystick transactions resolve" in screen.text
        assert "dry run" not in screen.text
        await screen.press("c")
        assert "Copied" in screen.text
        await screen.press("3", "a")
        assert see(screen, "There is no action here.")

    use_terminal(TROUBLE, steps)


def test_a_command_that_changes_nothing_is_no_action() -> None:
    stage = Stage(READING)

    async def steps(screen: Screen) -> None:
        await screen.press("2", "enter")
        await screen.move_to("transactions describe")
        assert "a: dry run" not in screen.text
        await screen.press("a")
        assert "There is no action here." in screen.text

    stage.play(TROUBLE, steps)


@pytest.mark.gate(1)
@pytest.mark.parametrize("size", [SMALL, (60, 14)], ids=["80x24", "60x14"])
def test_a_dry_run_and_its_result_fit(size: tuple[int, int]) -> None:
    stage = Stage(replace(READING, ends={ORDERS: NOW_MS}))

    async def steps(screen: Screen) -> None:
        await open_dry_run(screen)
        assert all(len(line) == size[0] for line in screen.lines)
        await screen.move_to("To be typed")
        assert all(len(line) == size[0] for line in screen.lines)
        await screen.press("enter", *NAME, "enter")
        await screen.wait_until(lambda: f"done  {DONE}" in screen.text)
        assert len(screen.lines) == size[1]

    stage.play(TROUBLE, steps, size=size)
