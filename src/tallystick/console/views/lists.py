"""Long lists of names: the part that the URL asks for. Pure.

A browser lays out a table of thousands of rows for as long as everything else takes together, so a list is
shown by the hundred, and a part of a name finds what is not on the first page.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Generic, TypeVar
from urllib.parse import urlencode

from tallystick.console.views.ordering import parse_sort
from tallystick.kernel.value import Value

PAGE_ROWS: Final = 100

Row = TypeVar("Row")


class ListQuery(Value, kw_only=True):
    """The rows that the URL asks for.

    text  part of a name, in upper or lower case; empty: all
    page  from 1
    sort  a column, as `ordering` reads it; empty: the list's own order
    """

    text: str = ""
    page: int = 1
    sort: str = ""

    @staticmethod
    def parse(query: Mapping[str, str]) -> "ListQuery":
        """Read the query of a URL; what it does not know is ignored, as a shared link may be old."""
        return ListQuery(text=query.get("text", ""), page=parse_page(query), sort=parse_sort(query))

    def format_query(self, **changes: object) -> str:
        """Return the query of a URL for the same rows with some fields changed."""
        fields = {"text": self.text, "page": self.page, "sort": self.sort} | changes
        return urlencode({name: value for name, value in fields.items() if value not in ("", 1)})


class Selection(Value, Generic[Row], kw_only=True):
    """One page of the rows that match.

    page         from 1, and not beyond the last
    match_count  rows on all pages
    """

    rows: tuple[Row, ...]
    page: int
    page_count: int
    match_count: int


def select_rows(
    rows: Sequence[Row], query: ListQuery, name_of: Callable[[Row], str], *, page_rows: int = PAGE_ROWS
) -> Selection[Row]:
    """Return the page of rows that a query asks for, in pages of `page_rows`."""
    text = query.text.lower()
    matching = [row for row in rows if text in name_of(row).lower()]
    page_count = max(1, -(-len(matching) // page_rows))
    page = min(query.page, page_count)
    return Selection(
        rows=tuple(matching[(page - 1) * page_rows : page * page_rows]),
        page=page,
        page_count=page_count,
        match_count=len(matching),
    )


def parse_page(query: Mapping[str, str]) -> int:
    """Return the number of a page in the query of a URL; the first one for anything but a number."""
    text = query.get("page", "1")
    return max(1, int(text)) if text.isascii() and text.isdigit() and len(text) < 9 else 1
