"""Output of commands: a table for people, JSON for programs, with the same columns."""

import json
import re
import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final, TextIO

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from tallystick.cli.terminal_text import make_printable

Row = Mapping[str, object]

# As on the console's pages. JSON has null, true and false.
_WORDS: Final[Mapping[bool | None, str]] = {None: "-", True: "yes", False: "no"}

# A pipe has no width, so nothing is truncated.
_UNBOUNDED: Final = 1_000_000
# Positions at which a column's name may be wrapped.
_WRAP_POINT: Final = re.compile(r"(?<=[a-z])(?=[A-Z(])")


class OutputFormat(StrEnum):
    """Output format."""

    TABLE = "table"
    JSON = "json"


def print_rows(
    columns: Sequence[str], rows: Sequence[Row], output: OutputFormat, to: TextIO | None = None
) -> None:
    """Print rows, on stdout by default. Values beyond the columns are printed in JSON only."""
    to = to or sys.stdout
    if output is OutputFormat.JSON:
        print(json.dumps(rows, indent=2, default=_as_json), file=to)
        return
    console = Console(file=to, width=None if to.isatty() else _UNBOUNDED, highlight=False)
    # Not as markup: a transactional id may contain brackets.
    cells = [
        [
            Text(make_printable(_as_text(row.get(column)), one_line=True), overflow="fold")
            for column in columns
        ]
        for row in rows
    ]
    for heads in (columns, [_WRAP_POINT.sub("\n", column) for column in columns]):
        table = _create_table(*heads)
        for each in cells:
            table.add_row(*each)
        width = Measurement.get(console, console.options.update(max_width=_UNBOUNDED), table).maximum
        if width <= console.width or not rows:
            console.print(table)
            return
    for number, each in enumerate(cells):
        if number:
            console.print()
        console.print(_create_vertical_table(columns, each))


def _create_table(*heads: str) -> Table:
    return Table(*heads, box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))


def _create_vertical_table(columns: Sequence[str], cells: Sequence[Text]) -> Table:
    """Lay out a row that is wider than the terminal: a line for each column, as `psql` does."""
    table = _create_table("", "")
    table.show_header = False
    for column, cell in zip(columns, cells, strict=True):
        table.add_row(Text(column, style="bold", no_wrap=True), cell)
    return table


def _as_text(value: object) -> str:
    if isinstance(value, list | tuple | set | frozenset):
        text = ",".join(str(each) for each in sorted(value))
    else:
        text = _WORDS[value] if value is None or isinstance(value, bool) else str(value)
    return make_printable(text, one_line=True)


def _as_json(value: object) -> object:
    if isinstance(value, set | frozenset):
        return sorted(str(each) for each in value)
    return str(value)
