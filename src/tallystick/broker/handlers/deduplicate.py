"""Removal of duplicates from requests: each name or partition is looked up, and answered, once.

A client cannot lengthen a response by repeating itself. If a request names a partition twice, the last entry
counts, as in the maps that Kafka builds of it.
"""

from collections.abc import Callable, Hashable, Iterable, ValuesView
from typing import TypeVar

from tallystick.broker.handlers.sliced_response import LoopYielder

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


def deduplicate(names: Iterable[K]) -> tuple[K, ...]:
    """Return each name once, in the order of the request."""
    return tuple(dict.fromkeys(names))


async def group_distinct(
    rows: Iterable[tuple[K, Iterable[T]]], key: Callable[[T], Hashable]
) -> dict[K, ValuesView[T]]:
    """Group the entries by topic, in the order of the request: each topic once, each `key` of a topic once.

    Yields to the event loop in a long request.
    """
    pacer = LoopYielder()
    topics: dict[K, dict[Hashable, T]] = {}
    distinct: dict[K, ValuesView[T]] = {}
    for topic, entries in rows:
        await pacer.count_entry()
        parts = topics.get(topic)
        if parts is None:
            parts = topics[topic] = {}
            distinct[topic] = parts.values()
        for each in entries:
            parts[key(each)] = each
            await pacer.count_entry()
    return distinct


def identity_key(index: T) -> T:
    """Return the index: the key for entries that are plain numbers."""
    return index
