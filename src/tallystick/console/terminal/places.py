"""Where the terminal is: a page, what it is of, and which rows it shows in which order. Pure."""

import shlex
from collections.abc import Mapping
from enum import Enum
from typing import Final

from tallystick.console.actions.request import ActionAddress
from tallystick.console.lookup.record_query import Format, parse_format
from tallystick.console.views.records import RecordsView
from tallystick.console.views.transactions import TransactionFilter, TransactionRow
from tallystick.kernel.value import Value, replace


class Section(Enum):
    """A page of the menu; the value is its title."""

    OVERVIEW = "Overview"
    TRANSACTIONS = "Transactions"
    STORES = "Stores"
    PIPELINES = "Pipelines"
    TOPICS = "Topics"
    GROUPS = "Groups"
    EVENTS = "Events"
    HELP = "Help"


MENU: Final = (
    Section.OVERVIEW,
    Section.TRANSACTIONS,
    Section.STORES,
    Section.PIPELINES,
    Section.TOPICS,
    Section.GROUPS,
)
"""The pages that a digit leads to, from 1 on."""


class Order(Enum):
    """The order of transactions; the value is what the page calls it."""

    WORST = "worst first"
    OLDEST = "oldest first"
    MOST_HELD_BACK = "most records held back first"
    BY_ID = "by id"


class Place(Value, kw_only=True):
    """A page.

    key     what it is of, as in the URL of the browser's page; None: the list
    filter  the rows of a list; lists of other things than transactions look at its text alone
    query   of a topic: which records, as in the URL of the browser's page; empty: none
    record  the offset of the one that is shown as a whole
    action  whose dry run is shown; the section is the one that it was asked for in
    """

    section: Section = Section.OVERVIEW
    key: str | None = None
    filter: TransactionFilter = TransactionFilter()
    order: Order = Order.WORST
    query: Mapping[str, str] = {}
    record: int | None = None
    action: ActionAddress | None = None

    @property
    def menu_section(self) -> Section:
        """The entry of the menu that the page belongs to."""
        return Section.OVERVIEW if self.section is Section.EVENTS else self.section

    @property
    def has_history(self) -> bool:
        return self.action is None and self.section is Section.TRANSACTIONS and self.key is not None

    @property
    def has_records(self) -> bool:
        """Whether it shows records of a partition, or one of them."""
        return self.action is None and self.section is Section.TOPICS and bool(self.query)

    @property
    def lists_records(self) -> bool:
        return self.has_records and self.record is None

    @property
    def can_filter(self) -> bool:
        return (
            self.action is None
            and self.key is None
            and self.section
            in (
                Section.TRANSACTIONS,
                Section.TOPICS,
                Section.GROUPS,
                Section.STORES,
            )
        )

    @property
    def can_sort(self) -> bool:
        return self.action is None and self.key is None and self.section is Section.TRANSACTIONS


class Visit(Value, kw_only=True):
    """A place on the way back, and where its page stood.

    top     first line on the screen
    anchor  name of what the cursor stood on
    """

    place: Place
    top: int = 0
    anchor: str = ""


def cycle_order(order: Order) -> Order:
    """Return the next order."""
    orders = list(Order)
    return orders[(orders.index(order) + 1) % len(orders)]


def sort_rows(rows: tuple[TransactionRow, ...], order: Order) -> tuple[TransactionRow, ...]:
    """Return rows, which come the worst first, in another order."""
    match order:
        case Order.OLDEST:
            return tuple(sorted(rows, key=lambda row: -(row.age_ms or 0)))
        case Order.MOST_HELD_BACK:
            return tuple(sorted(rows, key=lambda row: -row.held_back_count))
        case Order.BY_ID:
            return tuple(sorted(rows, key=lambda row: (row.transactional_id is None, row.key)))
        case _:
            return rows


_FIELDS: Final = ("health", "state", "store")


def format_filter(wanted: TransactionFilter) -> str:
    """Return a filter as it is typed: `health=recover state=Ongoing store=NAME`, then a part of the id."""
    words = [f"{name}={value}" for name in _FIELDS if (value := getattr(wanted, name))]
    if wanted.text:
        words.append(wanted.text if not _is_field(wanted.text) else f"text={wanted.text}")
    return " ".join(map(shlex.quote, words))


def parse_filter(text: str) -> TransactionFilter:
    """Read a filter that was typed. Words that are not `name=value` of a field are a part of the id."""
    try:
        words = shlex.split(text)
    except ValueError:  # a quote that is still open
        words = text.split()
    fields: dict[str, str] = {}
    texts: list[str] = []
    for word in words:
        name, _, value = word.partition("=")
        if not _is_field(word):
            texts.append(word)
        elif name == "text":
            texts.append(value)
        else:
            fields[name] = value
    return TransactionFilter(
        health=fields.get("health", ""),
        state=fields.get("state", ""),
        store=fields.get("store", ""),
        text=" ".join(texts),
    )


def _is_field(word: str) -> bool:
    name, equals, _ = word.partition("=")
    return bool(equals) and name in (*_FIELDS, "text")


# ------------------------------------------------------------------------------------- records


class Turn(Enum):
    """A way from one page of records to another."""

    AFTER = "after"
    BEFORE = "before"
    FORMAT = "format"


def place_of_records(topic: str, partition: int) -> Place:
    """Return the page of the newest records of a partition."""
    return Place(section=Section.TOPICS, key=topic, query={"partition": str(partition)})


def turn_page(place: Place, turn: Turn, records: RecordsView | None) -> Place:
    """Return where a page of records leads; the same place where there is nothing that way.

    Args:
        records: what the page shows; None if it has not been read yet.
    """
    if not place.has_records:
        return place
    if turn is Turn.FORMAT:
        return replace(place, query={**place.query, "as": _next_format(parse_format(place.query)).value})
    if records is None or not place.lists_records:
        return place
    query = {name: value for name, value in place.query.items() if name in ("partition", "as")}
    offset = records.next_offset if turn is Turn.AFTER else records.previous_offset
    return place if offset is None else replace(place, query={**query, "offset": str(offset)})


def seek_records(place: Place, text: str) -> Place:
    """Return the page of records from an offset or a time on, as it was typed; of nothing the newest."""
    query = {name: value for name, value in place.query.items() if name in ("partition", "as")}
    text = text.strip()
    if text:
        # Milliseconds of a time are as good a number as an offset is: what is only digits is an offset.
        query["offset" if text.isascii() and text.isdecimal() else "time"] = text
    return replace(place, query=query)


def _next_format(present: Format) -> Format:
    formats = list(Format)
    return formats[(formats.index(present) + 1) % len(formats)]


# ---------------------------------------------------------------------------------------- keys

_ALWAYS: Final = (("1-6", "pages"), ("Enter", "open"), ("Esc", "back"), ("?", "help"), ("q", "quit"))
_TURNS: Final = (("o", "from"), ("n", "after"), ("p", "before"), ("f", "format"))


def list_keys(place: Place) -> tuple[tuple[str, str], ...]:
    """Return the keys that do something here, and what they do, as the last line names them."""
    if place.action is not None:
        return (("Enter", "choose"), ("Esc", "back"), ("c", "copy"), ("r", "dry run anew"), *_ALWAYS[3:])
    if place.has_records:
        more = _TURNS if place.lists_records else _TURNS[-1:]
        return (*_ALWAYS[1:], *more, ("r", "read again"))
    keys = [*_ALWAYS, ("c", "copy")]
    if place.can_filter:
        keys.append(("/", "filter"))
    if place.can_sort:
        keys.append(("s", "sort"))
    if place.section is Section.OVERVIEW:
        keys.append(("e", "events"))
    return tuple(keys)
