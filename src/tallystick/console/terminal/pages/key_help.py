"""What the keys do and what the words mean. Pure."""

from collections.abc import Iterator
from typing import Final

from tallystick.console.model.state import ConsoleState
from tallystick.console.model.visible import pad, show
from tallystick.console.terminal.lines import Block, Paragraph, Span, badge, blank, field, heading, say
from tallystick.console.terminal.places import Place
from tallystick.console.views.page import PageInfo, describe_page

_KEYS: Final = (
    ("1 to 6", "the pages, in the order of the second line"),
    ("Up, Down, k, j", "move by a line"),
    ("PgUp, PgDn, Space", "move by a screen"),
    ("Home, End, g, G", "to the beginning, to the end"),
    ("Enter", "open what the cursor stands on; of a partition its newest records"),
    ("t", "of a partition or a record: the transaction that it waits for, or is part of"),
    ("Esc, Backspace", "back to the page before; on a list with a filter: without the filter"),
    ("/", "filter a list. Of transactions: health=recover state=Ongoing store=NAME, and a part of the id"),
    ("s", "the next order of transactions"),
    ("c", "copy the command to the clipboard of your terminal, if it lets programs do that (OSC 52)"),
    ("r", "read the cluster again as soon as its load allows, and records at once"),
    ("e", "what has happened since this program was started"),
    ("o", "records from an offset or a time on; nothing typed: the newest"),
    ("n, p", "the records after those that are shown, and before"),
    ("f", "records as text, as JSON, as hex"),
    ("a", "the dry run of what the command on this line would do, with --allow-actions"),
    ("q, Ctrl-C", "quit"),
)
_WORDS: Final = (
    ("broken", "the halves differ, or neither commit nor abort would be right"),
    ("hanging", "no coordinator will ever end it"),
    ("orphan", "in doubt, and nothing that is read here decides it"),
    ("recover", "decided or given up, and its writer is gone: recovery ends it"),
    ("unknown", "one of its views could not be read"),
    ("slow", "something will end it, and it takes long"),
    ("looking again", "its views contradict each other so far: the next look decides"),
    ("ok", "within its time"),
)

_VERDICTS: Final = (
    ("committed, aborted", "its transaction has ended so"),
    ("open", "its transaction has not ended"),
    ("ended", "not open any more; how it ended is too far behind for this page"),
    ("control", "a marker, which consumers never see"),
    ("held back", "readers of committed records do not see it yet"),
)


def build(state: ConsoleState, place: Place, now_ms: int) -> tuple[PageInfo, list[Block]]:
    """Build the page."""
    snapshot = state.snapshot
    return describe_page("Help", snapshot, [snapshot.transactions.status], now_ms), list(_list_blocks())


def _list_blocks() -> Iterator[Block]:
    yield heading("Keys")
    for key, does in _KEYS:
        yield field(key, does)
    yield blank()
    yield heading("Health")
    for word, means in _WORDS:
        label = Span(pad(show(word), 18), badge(word).role)
        yield Paragraph((label, say(means)), indent=18)
    yield blank()
    yield heading("Records")
    for word, means in _VERDICTS:
        yield field(word, means)
    yield blank()
    promise = "Nothing is changed but by an action whose id you have typed."
    yield Paragraph((say(f"A command that is shown is run by you. {promise} Times are UTC."),))
    yield Paragraph((say(r"Characters that cannot be seen are written as \x1b or \u202e."),))
