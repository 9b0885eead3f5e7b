"""The order of a list's rows that its URL asks for. Pure."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeVar

Row = TypeVar("Row")
Keys = Mapping[str, Callable[[Row], int | str | None]]
"""What the rows are compared by, for each name of a column."""

_SORT: Final = re.compile(r"-?[a-z_]{1,40}")


def parse_sort(query: Mapping[str, str]) -> str:
    """Return the column in the query of a URL; with a `-` before it, the largest comes first. "": none."""
    text = query.get("sort", "")
    return text if _SORT.fullmatch(text) else ""


def sort_rows(rows: Iterable[Row], sort: str, keys: Keys[Row]) -> list[Row]:
    """Return rows in the order of a column; as they came where none of that name is known.

    What has no value in it comes last either way, and equal rows stay in the order in which they came.
    """
    rows, key = list(rows), keys.get(sort.removeprefix("-"))
    if key is None:
        return rows
    valued = [(value, row) for row in rows if (value := key(row)) is not None]
    valued.sort(key=lambda each: each[0], reverse=sort.startswith("-"))
    return [*(row for _, row in valued), *(row for row in rows if key(row) is None)]
