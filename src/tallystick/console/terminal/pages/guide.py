"""Help, and the addresses of the pages that only the browser has. Pure."""

from collections.abc import Iterator
from typing import Final

from tallystick.console.model.commands import console_command
from tallystick.console.model.escaped import pad, show
from tallystick.console.model.state import ConsoleState
from tallystick.console.terminal.lines import (
    Anchor,
    Block,
    Command,
    Paragraph,
    Span,
    badge,
    blank,
    field,
    heading,
    say,
)
from tallystick.console.terminal.routes import Route
from tallystick.console.views.page import PageInfo, describe_page

CONSOLE_HOST, CONSOLE_PORT = "127.0.0.1", 8080
CONSOLE_URL: Final = f"http://{CONSOLE_HOST}:{CONSOLE_PORT}"
"""Where `tallystick console` listens unless it is told otherwise."""

_PAGES: Final = (
    ("/stores", "each database: rows, leases, transactions that its server has prepared"),
    ("/pipelines", "each Spark prefix: its last decision and what that leaves open"),
    ("/topics", "where readers of committed records wait, and the records of a partition"),
    ("/groups", "lag in records, members, and a reset of offsets"),
    ("/events", "the last 1,000 events"),
)
_KEYS: Final = (
    ("1 to 3", "the pages, in the order of the second line"),
    ("Up, Down, k, j", "move by a line"),
    ("PgUp, PgDn, Space", "move by a screen"),
    ("Home, End, g, G", "to the beginning, to the end"),
    ("Enter", "open the subject of the line under the cursor"),
    ("Esc, Backspace", "back to the page before; on a list with a filter: without the filter"),
    ("/", "filter transactions: health=recover state=Ongoing store=NAME, and a part of the id"),
    ("s", "the next order of transactions"),
    ("c", "copy the command or address to your terminal's clipboard, if it lets programs do that (OSC 52)"),
    ("r", "read the cluster again as soon as its load allows"),
    ("a", "the dry run of the command on this line, with --allow-actions"),
    ("q, Ctrl-C", "quit"),
)
_WORDS: Final = (
    ("broken", "the two sides differ, or neither commit nor abort would be right"),
    ("hanging", "no coordinator will ever end it"),
    ("orphan", "in doubt, and nothing that is read here decides it"),
    ("recover", "decided or given up, and its writer is gone: recovery ends it"),
    ("unknown", "one of its views could not be read"),
    ("slow", "something will end it, and it takes long"),
    ("looking again", "its views contradict each other so far: the next reading decides"),
    ("ok", "within its time"),
)


def build_addresses(
    state: ConsoleState, route: Route, now_ms: int, console_url: str
) -> tuple[PageInfo, list[Block]]:
    """Build the page with the addresses.

    Args:
        console_url: of the console that runs; empty if none was found.
    """
    snapshot = state.snapshot
    info = describe_page("In the browser", snapshot, [snapshot.cluster.status], now_ms)
    return info, list(_list_addresses(state, route, console_url))


def _list_addresses(state: ConsoleState, route: Route, console_url: str) -> Iterator[Block]:
    url = console_url or CONSOLE_URL
    if route.key is not None:
        yield _make_address(url, route.key)
        yield blank()
    if console_url:
        yield Paragraph((say("The console runs. Open an address in a browser; c copies it."),))
    else:
        text = f"No console of this cluster answers at {CONSOLE_URL}/. This command starts one:"
        yield Paragraph((say(text),))
        stores = [store.name for store in state.snapshot.stores]
        command = console_command(state.snapshot.bootstrap_servers, stores)
        yield Command(command, Anchor(name="console", command=command), 4)
        yield Paragraph((say("It takes the other options of this program, too. Its addresses then are:"),))
    yield blank()
    for path, text in _PAGES:
        if path != route.key:
            yield _make_address(url, path)
            yield Paragraph((say("    "), say(text)), indent=4)


def _make_address(url: str, path: str) -> Command:
    address = f"{url}{path}"
    return Command(address, Anchor(name=path, command=address), 0)


def build_help(state: ConsoleState, route: Route, now_ms: int) -> tuple[PageInfo, list[Block]]:
    """Build the page with the keys and the words."""
    snapshot = state.snapshot
    return describe_page("Help", snapshot, [snapshot.transactions.status], now_ms), list(_list_help())


def _list_help() -> Iterator[Block]:
    yield heading("Keys")
    for key, does in _KEYS:
        yield field(key, does)
    yield blank()
    yield heading("Health")
    for word, means in _WORDS:
        label = Span(pad(show(word), 18), badge(word).role)
        yield Paragraph((label, say(means)), indent=18)
    yield blank()
    promise = "Nothing is changed but by an action whose id you have typed."
    yield Paragraph((say(f"You run the commands that are shown. {promise} Times are UTC."),))
    yield Paragraph((say(r"Characters that cannot be seen are written as \x1b or \u202e."),))
