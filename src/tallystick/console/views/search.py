"""Search over everything that has a name: ids, topics, groups, Spark prefixes. Pure.

It looks through the newest snapshot, so it asks the cluster nothing, and shows the first of each kind only.
"""

from collections.abc import Iterable
from heapq import nsmallest
from typing import Final
from urllib.parse import quote

from tallystick.console.model.state import ConsoleState
from tallystick.console.views.page import PageInfo, describe_page
from tallystick.console.views.transactions import build_key
from tallystick.kernel.value import Value

HITS_MAX: Final = 20
"""Names of one kind that the page shows."""
TEXT_MAX: Final = 300
"""Characters that are searched for; more are left out."""


class SearchHit(Value, kw_only=True):
    """A name that has the text in it. `note` is what a list would say beside it, `health` its health."""

    name: str
    url: str
    note: str = ""
    health: str = ""


class SearchKind(Value, kw_only=True):
    """The names of one kind, the best first.

    list_url  shows all that match; "" where no page does
    """

    title: str
    hits: tuple[SearchHit, ...]
    match_count: int
    list_url: str


class SearchPage(Value, kw_only=True):
    """The result of a search. `kinds` has those with a hit."""

    info: PageInfo
    text: str
    kinds: tuple[SearchKind, ...]


def build_search(state: ConsoleState, text: str, now_ms: int, *, hits_max: int = HITS_MAX) -> SearchPage:
    """Search for a part of a name, in upper or lower case; for nothing where there is no text."""
    text = text.strip()[:TEXT_MAX]
    snapshot = state.snapshot
    query = quote(text, safe="")
    topics, groups = snapshot.topics.partition_counts, snapshot.groups.groups
    kinds: tuple[tuple[str, str, Iterable[SearchHit]], ...] = (
        ("Open transactions", f"/transactions?text={query}", _list_transactions(state)),
        ("Ids with nothing open", "", _list_other_ids(state)),
        (
            "Topics",
            f"/topics?text={query}",
            (_hit("topics", name) for name in topics),
        ),
        ("Groups", f"/groups?text={query}", (_hit("groups", name) for name in groups)),
        ("Spark prefixes", "", _list_prefixes(state)),
    )
    all_kinds = (_select(title, url, hits, text.lower(), hits_max) for title, url, hits in kinds if text)
    return SearchPage(
        info=describe_page("Search", snapshot, snapshot.list_statuses(), now_ms),
        text=text,
        kinds=tuple(kind for kind in all_kinds if kind.hits),
    )


def _select(title: str, list_url: str, hits: Iterable[SearchHit], text: str, hits_max: int) -> SearchKind:
    """Return the hits: the name itself first, then those that begin with the text, then the others."""
    matching = [hit for hit in hits if text in hit.name.lower()]

    def rank(hit: SearchHit) -> tuple[bool, bool, str]:
        name = hit.name.lower()
        return name != text, not name.startswith(text), hit.name

    return SearchKind(
        title=title,
        hits=tuple(nsmallest(hits_max, matching, key=rank)),
        match_count=len(matching),
        list_url=list_url if len(matching) > hits_max else "",
    )


def _hit(section: str, name: str, *, key: str = "", note: str = "", health: str = "") -> SearchHit:
    url = f"/{section}/{quote(key or name, safe='')}"
    return SearchHit(name=name, url=url, note=note, health=health)


def _list_transactions(state: ConsoleState) -> Iterable[SearchHit]:
    for each in state.transactions:
        key = build_key(each)
        name = each.views.transactional_id or key
        yield _hit("transactions", name, key=key, health=each.health.value)


def _list_other_ids(state: ConsoleState) -> Iterable[SearchHit]:
    open_ids = {each.views.transactional_id for each in state.transactions}
    stores_by_id: dict[str, list[str]] = {}
    for store in state.snapshot.stores:
        for name in store.rows:
            if name not in open_ids:
                stores_by_id.setdefault(name, []).append(store.name)
    for name, stores in stores_by_id.items():
        yield _hit("transactions", name, note=", ".join(stores))


def _list_prefixes(state: ConsoleState) -> Iterable[SearchHit]:
    for name in dict.fromkeys(each.prefix for each in state.snapshot.pipelines.prefixes):
        yield SearchHit(name=name, url=f"/pipelines#prefix-{quote(name, safe='')}")
