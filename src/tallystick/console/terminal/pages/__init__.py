"""Pages of the terminal, from the view models of the browser's pages. Pure."""

from tallystick.console.model.state import ConsoleState
from tallystick.console.terminal.action_stage import ActionStage
from tallystick.console.terminal.lines import Anchor, Block, Command, Paragraph, TextRole, blank, say
from tallystick.console.terminal.pages import action, guide, overview, transaction, transactions
from tallystick.console.terminal.routes import Route, Section
from tallystick.console.views.page import PageInfo
from tallystick.console.views.page_request import PageRequest
from tallystick.kernel.value import Value


class TerminalPage(Value):
    """A page: its head as in the browser, and the lines below it."""

    info: PageInfo
    blocks: tuple[Block, ...]


def build_page(
    state: ConsoleState,
    route: Route,
    now_ms: int,
    answer: PageRequest | None = None,
    stage: ActionStage | None = None,
    *,
    console_url: str = "",
) -> TerminalPage:
    """Build the page of a route; what could not be read comes first.

    Args:
        answer: the history of the page's transaction; None if it has not come yet, or there is none.
        stage: how far the action of the page has come.
        console_url: of the console that runs; empty if none was found.
    """
    if route.action is not None:
        info, blocks = action.build(state, route, now_ms, stage)
    elif route.has_history:
        info, blocks = transaction.build(state, route, now_ms, answer)
    elif route.section is Section.TRANSACTIONS:
        info, blocks = transactions.build(state, route, now_ms)
    elif route.section is Section.BROWSER:
        info, blocks = guide.build_addresses(state, route, now_ms, console_url)
    elif route.section is Section.HELP:
        info, blocks = guide.build_help(state, route, now_ms)
    else:
        info, blocks = overview.build(state, route, now_ms)
    return TerminalPage(info, (*list_failures(info), *blocks))


def list_failures(info: PageInfo) -> tuple[Block, ...]:
    """List what the page needs and what could not be read; the lines above the page say that it is old."""
    lines: list[Block] = []
    for outage in info.outages:
        text = outage.reason if outage.is_cluster else f"{outage.text} {outage.reason}"
        lines.append(Paragraph((say(f"{text}.", TextRole.BAD),)))
        if outage.command:
            lines.append(Command(outage.command, Anchor(name=text, command=outage.command), 4))
    reasons = {outage.reason for outage in info.outages}
    partial = [text for text in dict.fromkeys(info.failures) if text not in reasons]
    if partial:
        lines.append(Paragraph((say("Not everything could be read:", TextRole.BAD),)))
        lines += [Paragraph((say("- "), say(text)), indent=2) for text in partial]
    return (*lines, blank()) if lines else ()
