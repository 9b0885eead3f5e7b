"""Requests reduced to what they name: a thing named a thousand times is looked up, and answered, once.

An answer is as long as what there is and what was asked for, not as long as a client can repeat itself. Where
a request says different things about one partition the last one counts, as in the maps Kafka reads it into.
"""

from collections.abc import Callable, Hashable, Iterable, ValuesView
from typing import TypeVar

from tallystick.broker.handlers.listing import Pacer

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


def distinct(names: Iterable[K]) -> tuple[K, ...]:
    """Each name once, in the order of the request."""
    return tuple(dict.fromkeys(names))


async def merged(
    rows: Iterable[tuple[K, Iterable[T]]], key: Callable[[T], Hashable]
) -> dict[K, ValuesView[T]]:
    """What is asked of each topic, in the order of the request: topics once, each `key` of a topic once.

    Others have the loop in between where it is much.
    """
    pacer = Pacer()
    topics: dict[K, dict[Hashable, T]] = {}
    asked: dict[K, ValuesView[T]] = {}
    for topic, wanted in rows:
        await pacer.step()
        parts = topics.get(topic)
        if parts is None:
            parts = topics[topic] = {}
            asked[topic] = parts.values()
        for each in wanted:
            parts[key(each)] = each
            await pacer.step()
    return asked


def itself(index: T) -> T:
    """The key of what is a plain number."""
    return index
