"""A page of the terminal as lines: texts, tables, and where the cursor may stand. Pure.

A page is blocks, one below the other. `PageLines` lays them out for a width and makes the lines of a table
only when they are asked for, so that ten thousand rows cost as much as those on the screen. Widths of columns
come from their declaration, never from the rows: nothing jumps when the data change.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import Any, Final

from rich.cells import cell_len

from tallystick.console.model.escaped import EscapedText, join_visible, pad, show, wrap, wrap_command
from tallystick.console.terminal.prompts import Prompt
from tallystick.console.terminal.routes import Route
from tallystick.console.views.texts import format_time
from tallystick.kernel.value import Value

GAP: Final = 2
MARGIN: Final = 2
"""Cells before each line, where the mark of the cursor stands."""


class TextRole(Enum):
    """The role of a text; its style adds nothing, and may be missing (NO_COLOR)."""

    NORMAL = "normal"
    QUIET = "quiet"
    STRONG = "strong"
    HEADING = "heading"
    COMMAND = "command"
    GOOD = "good"
    DOUBTFUL = "doubtful"
    BAD = "bad"


class Span(Value):
    """Text in one role."""

    text: EscapedText
    role: TextRole = TextRole.NORMAL


class Anchor(Value, kw_only=True):
    """Something that the cursor can stand on.

    name     the same in the next state of the page, wherever it stands there
    target   where Enter leads
    prompt   what Enter asks for, in place of a target
    command  copied by `c`, as a shell reads it; `a` makes its dry run if it changes anything
    reason   shown below the page
    """

    name: str
    target: Route | None = None
    prompt: Prompt | None = None
    command: str = ""
    reason: str = ""


class Line(Value):
    """One line of a page."""

    spans: tuple[Span, ...] = ()
    anchor: Anchor | None = None

    @property
    def text(self) -> EscapedText:
        return join_visible("", (span.text for span in self.spans))


class Column(Value, kw_only=True):
    """A column of a table.

    head      its name
    width     cells that it needs
    width_max  cells that it takes where there are some left
    rank      columns of the highest rank are left out first where there is no room
    """

    head: str
    width: int
    width_max: int = 0
    rank: int = 0
    to_right: bool = False


class Row(Value):
    """A row: a cell for each column, and what the cursor finds there."""

    cells: tuple[Span, ...]
    anchor: Anchor | None = None


class Paragraph(Value):
    """Text that is wrapped, with an indent for its further lines."""

    spans: tuple[Span, ...]
    anchor: Anchor | None = None
    indent: int = 0


class Command(Value):
    """A command line, broken so that a shell reads the lines as one."""

    text: str
    anchor: Anchor
    indent: int = 0


class Table(Value, kw_only=True):
    """A table whose rows are made when they are shown.

    items  what the rows are of
    make   makes the row of an item
    name   returns the name of an item's anchor; None: the cursor passes over the rows
    empty  shown in place of a table without rows
    """

    columns: tuple[Column, ...]
    items: Sequence[Any]
    make: Callable[[Any], Row]
    name: Callable[[Any], str] | None
    empty: str


Block = Paragraph | Command | Table


def say(text: str, role: TextRole = TextRole.NORMAL) -> Span:
    """Return a text of whatever origin as a span."""
    return Span(show(text), role)


def write_time(ms: int | None) -> str:
    """Return a time, which is UTC as all of them are."""
    return format_time(ms)


def heading(text: str) -> Paragraph:
    return Paragraph((Span(show(text), TextRole.HEADING),))


def blank() -> Paragraph:
    return Paragraph(())


def field(label: str, value: str | None, role: TextRole = TextRole.NORMAL) -> Paragraph:
    """Return a labelled value; `-` for none."""
    spans = (Span(pad(show(label), LABEL_WIDTH), TextRole.QUIET), say(value or "-", role))
    return Paragraph(spans, indent=LABEL_WIDTH)


LABEL_WIDTH: Final = 18
COMMAND_MAX: Final = 200_000
"""A command is shown whole, or with a mark where it was cut: it would be another one otherwise."""


class PageLines:
    """The lines of a page at one width. Never changed."""

    def __init__(self, blocks: Sequence[Block], width: int) -> None:
        """Lay the blocks out.

        Args:
            width: of the page in cells.
        """
        self.width = max(width, MARGIN + 1)
        self._parts: list[_Part] = []
        self._starts: list[int] = []
        self.count = 0
        for block in blocks:
            for part in self._lay_out(block):
                self._starts.append(self.count)
                self._parts.append(part)
                self.count += part.count

    def get_line(self, number: int) -> Line:
        """Return a line; an empty one beyond the end."""
        if not 0 <= number < self.count:
            return Line()
        at = bisect_right(self._starts, number) - 1
        return self._parts[at].get_line(number - self._starts[at])

    def find(self, name: str) -> int | None:
        """Return the first line of the anchor with this name; None if there is none any more."""
        for start, part in zip(self._starts, self._parts, strict=True):
            at = part.find(name)
            if at is not None:
                return start + at
        return None

    def find_next(self, number: int) -> int | None:
        """Return the first line from `number` on that the cursor can stand on."""
        at = max(0, bisect_right(self._starts, number) - 1)
        for start, part in zip(self._starts[at:], self._parts[at:], strict=True):
            if part.is_selectable and max(start, number) < start + part.count:
                return max(start, number)
        return None

    def find_last(self, number: int) -> int | None:
        """Return the last line up to `number` that the cursor can stand on."""
        for at in range(bisect_right(self._starts, number) - 1, -1, -1):
            if self._parts[at].is_selectable and self._parts[at].count:
                return min(number, self._starts[at] + self._parts[at].count - 1)
        return None

    def _lay_out(self, block: Block) -> Iterator["_Part"]:
        width = self.width - MARGIN
        match block:
            case Paragraph():
                lines = _wrap_spans(block, width)
                yield _FixedPart(lines[:1], block.anchor)
                yield _FixedPart(lines[1:], None)
            case Command():
                texts = wrap_command(show(block.text, max_length=COMMAND_MAX), width - block.indent)
                margin = Span(show(" " * block.indent))
                lines = [(margin, Span(text, TextRole.COMMAND)) for text in texts]
                yield _FixedPart(lines[:1], block.anchor)
                yield _FixedPart(lines[1:], None)
            case Table():
                if not block.items:
                    text = Paragraph((say(block.empty, TextRole.QUIET),))
                    yield _FixedPart(_wrap_spans(text, width), None)
                    return
                fitting = _choose_columns(block.columns, width)
                heads = (
                    Span(
                        pad(show(block.columns[at].head), cells, to_right=block.columns[at].to_right),
                        TextRole.QUIET,
                    )
                    for at, cells in fitting
                )
                yield _FixedPart([_join_cells(heads)], None)
                yield _TablePart(block, fitting)


class _FixedPart:
    """Lines that are made at once. Those that have an anchor are one."""

    def __init__(self, lines: Sequence[tuple[Span, ...]], anchor: Anchor | None) -> None:
        self._lines, self._anchor = lines, anchor
        self.count = len(lines)
        self.is_selectable = anchor is not None

    def get_line(self, number: int) -> Line:
        return Line(self._lines[number], self._anchor)

    def find(self, name: str) -> int | None:
        return 0 if self._anchor is not None and self.count and self._anchor.name == name else None


class _TablePart:
    """The rows of a table."""

    def __init__(self, table: Table, fitting: Sequence[tuple[int, int]]) -> None:
        self._table, self._fitting = table, fitting
        self.is_selectable = table.name is not None
        self.count = len(table.items)

    def get_line(self, number: int) -> Line:
        row = self._table.make(self._table.items[number])
        columns = self._table.columns
        cells = (
            Span(pad(row.cells[at].text, width, to_right=columns[at].to_right), row.cells[at].role)
            for at, width in self._fitting
        )
        return Line(_join_cells(cells), row.anchor)

    def find(self, name: str) -> int | None:
        if self._table.name is None:
            return None
        names = map(self._table.name, self._table.items)
        return next((number for number, each in enumerate(names) if each == name), None)


_Part = _FixedPart | _TablePart


def _join_cells(cells: Iterator[Span]) -> tuple[Span, ...]:
    gap = Span(show(" " * GAP))
    spans: list[Span] = []
    for cell in cells:
        spans += [gap, cell] if spans else [cell]
    return tuple(spans)


def _choose_columns(columns: Sequence[Column], width: int) -> list[tuple[int, int]]:
    """Return the columns that there is room for, each with its width; the first one is always there."""
    order = sorted(range(len(columns)), key=lambda at: (columns[at].rank, at))
    chosen = [order[0]]
    left = width - columns[order[0]].width
    for at in order[1:]:
        if columns[at].width + GAP > left:
            break
        chosen.append(at)
        left -= columns[at].width + GAP
    widths = {at: columns[at].width + min(0, left) for at in chosen}
    for at in sorted(chosen, key=lambda at: (columns[at].rank, at)):
        more = max(0, min(left, columns[at].width_max - columns[at].width))
        widths[at] += more
        left -= more
    return [(at, max(1, widths[at])) for at in sorted(chosen)]


def _wrap_spans(paragraph: Paragraph, width: int) -> list[tuple[Span, ...]]:
    """Wrap a paragraph: its first spans stay on the first line, and the last one goes on below."""
    *lead, last = paragraph.spans or (Span(show("")),)
    lead_width = cell_len("".join(span.text for span in lead))
    pieces = wrap(last.text, max(1, width - max(lead_width, paragraph.indent)))
    margin = Span(show(" " * paragraph.indent))
    first = (*lead, Span(pieces[0], last.role))
    return [first, *((margin, Span(piece, last.role)) for piece in pieces[1:])]


def badge(word: str) -> Span:
    """Return a word of health, which says it without a colour."""
    return Span(show(word), _ROLE_BY_HEALTH.get(word, TextRole.DOUBTFUL))


_ROLE_BY_HEALTH: Final = {
    "": TextRole.NORMAL,
    "ok": TextRole.GOOD,
    "looking again": TextRole.QUIET,
    "slow": TextRole.DOUBTFUL,
    "unknown": TextRole.DOUBTFUL,
    "broken": TextRole.BAD,
    "hanging": TextRole.BAD,
    "orphan": TextRole.BAD,
    "recover": TextRole.BAD,
}


def table_of(rows: Sequence[Row], columns: tuple[Column, ...], empty: str) -> Table:
    """Return a table of rows that are made already: the cursor stands on all of them or on none."""
    name = _name_row if rows and rows[0].anchor is not None else None
    return Table(columns=columns, items=rows, make=_same, name=name, empty=empty)


def _same(row: Row) -> Row:
    return row


def _name_row(row: Row) -> str:
    return "" if row.anchor is None else row.anchor.name
