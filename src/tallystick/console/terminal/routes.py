"""Routes of the terminal: a page, its subject, and its rows with their order. Pure."""

import shlex
from enum import Enum
from typing import Final
from urllib.parse import quote

from tallystick.console.actions.request import ActionAddress
from tallystick.console.views.transactions import TransactionFilter, TransactionRow
from tallystick.kernel.value import Value


class Section(Enum):
    """A page of the menu; the value is its title."""

    OVERVIEW = "Overview"
    TRANSACTIONS = "Transactions"
    BROWSER = "In the browser"
    HELP = "Help"


MENU: Final = (Section.OVERVIEW, Section.TRANSACTIONS, Section.BROWSER)
"""The pages that a digit leads to, from 1 on."""


class Order(Enum):
    """The order of transactions; the value is the page's name for it."""

    WORST = "worst first"
    OLDEST = "oldest first"
    MOST_HELD_BACK = "most records held back first"
    BY_ID = "by id"


class Route(Value, kw_only=True):
    """A page.

    key     its transaction, as in the URL of the browser's page, or the path of a page that only the browser
            has; None: the list
    filter  the rows of the list of transactions
    action  whose dry run is shown; the section is the one in which it was chosen
    """

    section: Section = Section.OVERVIEW
    key: str | None = None
    filter: TransactionFilter = TransactionFilter()
    order: Order = Order.WORST
    action: ActionAddress | None = None

    @property
    def has_history(self) -> bool:
        return self.action is None and self.section is Section.TRANSACTIONS and self.key is not None

    @property
    def lists_transactions(self) -> bool:
        return self.action is None and self.section is Section.TRANSACTIONS and self.key is None


class Visit(Value, kw_only=True):
    """A route on the way back, and where its page stood.

    top     first line on the screen
    anchor  name of the line under the cursor
    """

    route: Route
    top: int = 0
    anchor: str = ""


def route_to_browser(*names: str) -> Route:
    """Return the route to the address of a page of the browser, such as `topics`, `orders`."""
    path = "".join(f"/{quote(name, safe='')}" for name in names)
    return Route(section=Section.BROWSER, key=path)


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


# ---------------------------------------------------------------------------------------- keys

_ALWAYS: Final = (("1-3", "pages"), ("Enter", "open"), ("Esc", "back"), ("?", "help"), ("q", "quit"))


def list_keys(route: Route) -> tuple[tuple[str, str], ...]:
    """Return the keys that do something here, and their effect, as the last line names them."""
    if route.action is not None:
        return (("Enter", "choose"), ("Esc", "back"), ("c", "copy"), ("r", "new dry run"), *_ALWAYS[3:])
    keys = [*_ALWAYS, ("c", "copy")]
    if route.lists_transactions:
        keys += [("/", "filter"), ("s", "sort")]
    return tuple(keys)
