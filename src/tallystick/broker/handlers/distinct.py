"""Requests reduced to what they name: a thing named a thousand times is looked up, and answered, once.

An answer is as long as what there is and what was asked for, not as long as a client can repeat itself. Where
a request says different things about one partition the last one counts, as in the maps Kafka reads it into.
"""

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


def distinct(names: Iterable[K]) -> tuple[K, ...]:
    """Each name once, in the order of the request."""
    return tuple(dict.fromkeys(names))


def merged(rows: Iterable[tuple[K, Iterable[T]]], key: Callable[[T], Hashable]) -> dict[K, tuple[T, ...]]:
    """What is asked of each topic, in the order of the request: topics once, each `key` of a topic once."""
    topics: dict[K, dict[Hashable, T]] = {}
    for topic, wanted in rows:
        topics.setdefault(topic, {}).update((key(each), each) for each in wanted)
    return {topic: tuple(parts.values()) for topic, parts in topics.items()}


def itself(index: T) -> T:
    """The key of what is a plain number."""
    return index
