"""Pages of the terminal: a module for each, from the view model that the browser's page shows, too. Pure."""

from collections.abc import Callable, Mapping
from typing import Final

from tallystick.console.model.state import ConsoleState
from tallystick.console.terminal.action_stage import ActionStage
from tallystick.console.terminal.lines import Block, Paragraph, TextRole, blank, say
from tallystick.console.terminal.pages import (
    action,
    events,
    groups,
    key_help,
    overview,
    pipelines,
    records,
    stores,
    topics,
    transaction,
    transactions,
)
from tallystick.console.terminal.places import Place, Section
from tallystick.console.views.page import PageInfo
from tallystick.console.views.page_request import PageRequest
from tallystick.kernel.value import Value

Build = Callable[[ConsoleState, Place, int], tuple[PageInfo, list[Block]]]

_LISTS: Final[Mapping[Section, Build]] = {
    Section.OVERVIEW: overview.build,
    Section.TRANSACTIONS: transactions.build,
    Section.STORES: stores.build,
    Section.PIPELINES: pipelines.build,
    Section.TOPICS: topics.build,
    Section.GROUPS: groups.build,
    Section.EVENTS: events.build,
    Section.HELP: key_help.build,
}


class TerminalPage(Value):
    """A page: its head as in the browser, and what is below it."""

    info: PageInfo
    blocks: tuple[Block, ...]


def build_page(
    state: ConsoleState,
    place: Place,
    now_ms: int,
    answer: PageRequest | None = None,
    stage: ActionStage | None = None,
    *,
    allows_actions: bool = False,
) -> TerminalPage:
    """Build the page of a place; what could not be read comes first.

    Args:
        answer: what was read for this page alone; None if that has not come yet, or there is nothing.
        stage: how far the action of the page has come.
        allows_actions: pages offer what changes something.
    """
    if place.action is not None:
        info, blocks = action.build(state, place, now_ms, stage)
    elif place.has_history:
        info, blocks = transaction.build(state, place, now_ms, answer)
    elif place.has_records:
        info, blocks = records.build(state, place, now_ms, answer)
    elif place.section is Section.GROUPS:
        info, blocks = groups.build(state, place, now_ms, allows_actions=allows_actions)
    else:
        info, blocks = _LISTS[place.section](state, place, now_ms)
    return TerminalPage(info, (*list_failures(info), *blocks))


def list_failures(info: PageInfo) -> tuple[Block, ...]:
    """List what the page needs and what could not be read."""
    if not info.failures:
        return ()
    lines = [Paragraph((say("- "), say(text)), indent=2) for text in dict.fromkeys(info.failures)]
    return (Paragraph((say("Not everything could be read:", TextRole.BAD),)), *lines, blank())
