"""Questions below the page: a filter, and the reason and id of an action. Pure."""

from enum import Enum
from typing import Final

from tallystick.console.actions.pending import REASON_LENGTH_MAX
from tallystick.console.actions.plan import ActionPlan, Guard
from tallystick.console.model.escaped import show
from tallystick.console.terminal.routes import Route, format_filter, parse_filter
from tallystick.kernel.value import Value, replace

LENGTH_MAX: Final = 40_000
"""Characters of a line: a transactional id has up to 32,767 bytes."""

NAMED_MAX: Final = 80
"""Characters of an id that is repeated next to the line in which it is to be typed."""


class PromptKind(Enum):
    """The meaning of a line that is typed."""

    FILTER = "filter"
    REASON = "reason"
    CONFIRMATION = "confirmation"


class Prompt(Value, kw_only=True):
    """A question below the page.

    note        what to type
    value       what stands there already
    length_max  characters of an answer
    """

    kind: PromptKind
    note: str
    value: str = ""
    length_max: int = LENGTH_MAX


def ask_filter(route: Route) -> Prompt:
    """Ask for the filter of the transactions."""
    return Prompt(
        kind=PromptKind.FILTER,
        note="Filter by health=WORD state=STATE store=NAME and a part of the name. Enter applies it, "
        "Esc keeps the rows.",
        value=format_filter(route.filter),
    )


def ask_to_confirm(plan: ActionPlan, reason: str = "") -> Prompt:
    """Ask for the reason, if the plan needs one and has none yet, and else for the id."""
    if plan.guard is Guard.REASON and not reason.strip():
        note = "Why it is done all the same: the reason goes into the audit log. Esc: nothing is done."
        return Prompt(kind=PromptKind.REASON, note=note, length_max=REASON_LENGTH_MAX)
    is_short = len(plan.confirmation) <= NAMED_MAX
    name = plan.confirmation if is_short else f"all {len(plan.confirmation):,} characters that are shown"
    note = f"Type {name} and press Enter to do it. Esc: nothing is done."
    return Prompt(kind=PromptKind.CONFIRMATION, note=note)


def is_confirmed(plan: ActionPlan, typed: str) -> bool:
    """Return whether what was typed is what the page shows [ACT-4]: each character of it is seen there."""
    return typed.strip() == show(plan.confirmation, max_length=LENGTH_MAX)


def answer_prompt(prompt: Prompt, route: Route, typed: str) -> Route:
    """Return where the answer to a prompt leads; the same route where it leads nowhere."""
    if prompt.kind is PromptKind.FILTER:
        return replace(route, filter=parse_filter(typed))
    return route
