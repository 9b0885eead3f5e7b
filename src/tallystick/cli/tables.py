"""What commands print: a table for people, JSON for programs. Both have the same columns."""

import json
import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final, TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

Row = Mapping[str, object]

# A pipe has no width: nothing is to be cut there.
_UNBOUNDED: Final = 1_000_000


class Output(StrEnum):
    """For whom."""

    TABLE = "table"
    JSON = "json"


def show(columns: Sequence[str], rows: Sequence[Row], output: Output, to: TextIO | None = None) -> None:
    """Print rows, on stdout by default. A row may have more than the columns: only JSON shows it."""
    to = to or sys.stdout
    if output is Output.JSON:
        print(json.dumps(rows, indent=2, default=_as_json), file=to)
        return
    table = Table(*columns, box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for row in rows:
        # Not markup: a transactional id may hold brackets.
        table.add_row(*(Text(_as_text(row.get(column)), overflow="fold") for column in columns))
    Console(file=to, width=None if to.isatty() else _UNBOUNDED, highlight=False).print(table)


def _as_text(value: object) -> str:
    if isinstance(value, list | tuple | set | frozenset):
        return ",".join(str(each) for each in sorted(value))
    return str(value)  # None is "None", as in Kafka's tools


def _as_json(value: object) -> object:
    if isinstance(value, set | frozenset):
        return sorted(str(each) for each in value)
    return str(value)
