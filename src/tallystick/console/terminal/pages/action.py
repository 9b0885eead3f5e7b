"""An action in the terminal: what has to be chosen, its dry run, and its result. Pure.

It is made of the stage alone: nothing on it moves while the cluster is read.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from tallystick.console.actions.plan import ActionPlan, Guard, PlannedSide
from tallystick.console.actions.request import ActionKind
from tallystick.console.actions.results import ActionOutcome, ActionResult
from tallystick.console.model.escaped import show
from tallystick.console.model.state import ConsoleState
from tallystick.console.terminal.action_stage import ActionStage, begin_stage
from tallystick.console.terminal.lines import (
    Anchor,
    Block,
    Command,
    Paragraph,
    Span,
    TextRole,
    blank,
    field,
    heading,
    say,
)
from tallystick.console.terminal.prompts import LENGTH_MAX, ask_to_confirm
from tallystick.console.terminal.routes import Route
from tallystick.console.views.page import PageInfo, describe_page
from tallystick.console.views.transaction import find_decider, find_open_state
from tallystick.kernel.value import replace

_ROLES: Final = {
    ActionOutcome.DONE: TextRole.GOOD,
    ActionOutcome.REFUSED: TextRole.DOUBTFUL,
    ActionOutcome.UNKNOWN: TextRole.BAD,
}


def build(
    state: ConsoleState, route: Route, now_ms: int, stage: ActionStage | None
) -> tuple[PageInfo, list[Block]]:
    """Build the page."""
    if stage is None and route.action is not None:
        stage = begin_stage(route.action)
    if stage is None:
        return describe_page("Action", state.snapshot, (), now_ms), []
    return _describe(state, stage, now_ms), list(_list_blocks(stage, state, route))


def _describe(state: ConsoleState, stage: ActionStage, now_ms: int) -> PageInfo:
    """Return the head: its age is the dry run's, and not that of the console's own readings."""
    title = stage.name if stage.plan is None else stage.plan.title
    info = describe_page(title, state.snapshot, (), now_ms)
    if stage.plan is None or stage.planned_ms is None:
        return replace(info, age_ms=None, snapshot_number=0)
    return replace(info, age_ms=max(0, now_ms - stage.planned_ms), failures=stage.plan.failures)


def _list_blocks(stage: ActionStage, state: ConsoleState, route: Route) -> Iterator[Block]:
    if stage.result is not None:
        yield from _list_result(stage.result)
        return
    if stage.problem:
        yield Paragraph((say(stage.problem, TextRole.BAD),))
        yield blank()
    if stage.is_running:
        yield Paragraph((say("It is under way. "), say("Its result is shown here.")))
        yield Paragraph((say("It goes on whatever page is shown.", TextRole.QUIET),))
        return
    if stage.plan is not None:
        yield from _list_plan(stage, stage.plan)
    elif stage.request is not None and not stage.problem:
        yield Paragraph((say("The dry run is made: both sides are read.", TextRole.QUIET),))
        return
    yield from _list_choices(stage, state, route)


# ------------------------------------------------------------------------------------- choices


def _list_choices(stage: ActionStage, state: ConsoleState, route: Route) -> Iterator[Block]:
    """List what can be chosen: for a dry run, or for another one."""
    address = stage.address
    if address.kind is not ActionKind.COMPLETE:
        return
    yield blank()
    open_state = find_open_state(state.snapshot, address.subject)
    decider = find_decider(state.snapshot, address.subject)
    if not open_state:
        yield Paragraph((say("Nothing of it was in doubt when it was last read."),))
        return
    text = f"{decider} decides this id: resolve it instead, which reads its decision."
    if not decider:
        text = (
            "No database and no decision log that is read here knows this id. If its service uses another "
            "database, start with --store URL. Else look up its prepared_transaction_state there."
        )
    yield Paragraph((say(text),))
    producer, _, epoch = open_state.partition(":")
    lost = f"If it says {producer} with a number above {epoch}, the cluster has lost what it acknowledged."
    yield Paragraph((say(f"{lost} End nothing then."),))
    for name, stored, reason in (
        ("Commit", open_state, f"It says {open_state}."),
        ("Abort", "", "It says anything else, or there is no row."),
    ):
        action = replace(address, query={**address.query, "state": stored})
        anchor = Anchor(name=name, target=replace(route, action=action), reason="Enter makes the dry run.")
        yield Paragraph((say(f"{name}: ", TextRole.STRONG), say(reason)), anchor)


# ------------------------------------------------------------------------------------- dry run


def _list_plan(stage: ActionStage, plan: ActionPlan) -> Iterator[Block]:
    ending = "The command line that does the same is at its end."
    if stage.can_be_confirmed:
        ending = "The key End leads to where it is confirmed."
    yield Paragraph((say("This is a dry run: nothing is done. ", TextRole.STRONG), say(ending)))
    if plan.objections:
        is_refused = plan.guard is Guard.REFUSED
        text = "This is refused." if is_refused else "This is not done without a reason."
        yield Paragraph((say(text, TextRole.BAD),))
        yield from _list_lines(plan.objections)
    for side in plan.sides:
        yield blank()
        yield from _list_side(side)
    yield from _list_section("What readers will notice", plan.consequences)
    yield from _list_section("Note", plan.cautions)
    yield blank()
    yield heading("The same by the command line")
    yield Command(plan.command, Anchor(name="command", command=plan.command), 4)
    if stage.can_be_confirmed:
        yield blank()
        yield heading("Do it")
        name = Span(show(plan.confirmation, max_length=LENGTH_MAX), TextRole.STRONG)
        anchor = Anchor(name="confirm", prompt=ask_to_confirm(plan), reason="Enter asks for it.")
        yield Paragraph((say("To be typed: "), name), anchor)


def _list_side(side: PlannedSide) -> Iterator[Block]:
    yield heading(side.name)
    for number, text in enumerate(side.now):
        yield field("" if number else "Is now", text)
    yield field("The action", side.effect, TextRole.STRONG)


def _list_section(title: str, texts: Iterable[str]) -> Iterator[Block]:
    lines = list(_list_lines(texts))
    if lines:
        yield blank()
        yield heading(title)
        yield from lines


def _list_lines(texts: Iterable[str]) -> Iterator[Block]:
    for text in texts:
        yield Paragraph((say("- "), say(text)), indent=2)


# -------------------------------------------------------------------------------------- result


def _list_result(result: ActionResult) -> Iterator[Block]:
    word = say(result.outcome.value, _ROLES[result.outcome])
    yield Paragraph((word, say("  "), say(result.text, TextRole.STRONG)), Anchor(name="result"), indent=4)
    yield Paragraph((say(result.meaning),))
    yield from _list_section("What has changed", result.changes)
    if result.look_ups:
        yield blank()
        yield heading("What to look at")
        for number, each in enumerate(result.look_ups):
            yield Command(each.command, Anchor(name=f"look up {number}", command=each.command), 4)
            yield Paragraph((say("    "), say(each.meaning)), indent=4)
    yield blank()
    yield Paragraph((say("r makes a new dry run, Esc leads back.", TextRole.QUIET),))
