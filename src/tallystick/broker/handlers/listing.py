"""Answers that list things, made and encoded one entry at a time.

An answer with a thousand topics takes long to make, and as objects it takes twenty times the memory of its
bytes. So the handler hands over what makes an entry, each is encoded as soon as it is made, and the
dispatcher lets others have the loop in between [SRV-3]. The bytes are those of the whole answer encoded at
once: only the count in front of the list differs from an answer with one entry. Where a topic of the answer
has a long list of partitions, the same is done within its entry.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, TypeVar

from tallystick.kernel.limits import KIB
from tallystick.kernel.value import frozen
from tallystick.protocol import encode
from tallystick.protocol.primitives import encode_uvarint

T = TypeVar("T")
R = TypeVar("R")

# So much is made and encoded at one go: about a millisecond.
SLICE_ENTRIES: Final = 32
SLICE_BYTES: Final = 16 * KIB


@frozen
class Listed:
    """An answer with a list in it.

    make     the whole answer with these entries; `()` and one entry are all it is called with for a long list
    items    what to answer, each once
    answer   the entry for one of them; others may have changed things since the one before
    """

    make: Callable[[tuple[Any, ...]], object]
    items: Sequence[Any]
    answer: Callable[[Any], object]

    @property
    def is_short(self) -> bool:
        """Whether it is worth no pause."""
        return len(self.items) <= SLICE_ENTRIES

    def whole(self) -> object:
        """The answer in one piece."""
        return self.make(tuple(map(self.answer, self.items)))

    def slices(self, version: int) -> Iterator[bytes]:
        """The encoded answer piece by piece; others may run between two."""
        empty = encode(self.make(()), version)
        start = len(empty)  # where an entry begins, and the end of an answer without one
        piece, entries = bytearray(), 0
        for number, item in enumerate(self.items):
            one = encode(self.make((self.answer(item),)), version)
            if not number:
                start = _entry_start(empty, one)
                piece += _head(one, start, len(self.items))
            piece += _between(one, empty, start)
            entries += 1
            if entries == SLICE_ENTRIES or len(piece) >= SLICE_BYTES:
                yield bytes(piece)
                piece, entries = bytearray(), 0
        yield bytes(piece) + empty[start if self.items else 0 :]


@frozen
class ListedByTopic:
    """An answer with a list of topics in it, each of them with a list of partitions.

    make     the whole answer with these topics
    topic    the entry for one of them, with these partitions
    wanted   what to answer of each topic, each once
    answer   the entry for a partition; others may have changed things since the one before
    """

    make: Callable[[tuple[Any, ...]], object]
    topic: Callable[[Any, tuple[Any, ...]], object]
    wanted: Mapping[Any, Collection[Any]]
    answer: Callable[[Any, Any], object]

    @property
    def is_short(self) -> bool:
        """Whether it is worth no pause."""
        if len(self.wanted) > SLICE_ENTRIES:
            return False
        return sum(map(len, self.wanted.values())) <= SLICE_ENTRIES

    def whole(self) -> object:
        """The answer in one piece."""
        return self.make(tuple(self._entry(key, parts) for key, parts in self.wanted.items()))

    def _entry(self, key: Any, parts: Iterable[Any]) -> object:
        return self.topic(key, tuple(self.answer(key, part) for part in parts))

    def slices(self, version: int) -> Iterator[bytes]:
        """The encoded answer piece by piece; others may run between two."""
        empty = encode(self.make(()), version)
        if not self.wanted:
            yield empty
            return
        first = encode(self.make((self.topic(next(iter(self.wanted)), ()),)), version)
        start = _entry_start(empty, first)
        yield _head(first, start, len(self.wanted))
        few: list[object] = []
        rows = 0
        for key, parts in self.wanted.items():
            if few and rows + len(parts) >= SLICE_ENTRIES:
                yield _between(encode(self.make(tuple(few)), version), empty, start)
                few, rows = [], 0
            if len(parts) < SLICE_ENTRIES:
                few.append(self._entry(key, parts))
                rows += 1 + len(parts)
            else:
                yield from self._long_entry(key, parts, version, (empty, start))
        if few:
            yield _between(encode(self.make(tuple(few)), version), empty, start)
        yield empty[start:]

    def _long_entry(
        self, key: Any, parts: Collection[Any], version: int, around: tuple[bytes, int]
    ) -> Iterator[bytes]:
        """A topic of very many partitions. `around`: the answer without topics, and where they begin."""
        left = iter(parts)
        hollow = encode(self.make((self.topic(key, ()),)), version)
        single = encode(self.make((self._entry(key, islice(left, 1)),)), version)
        start = _entry_start(hollow, single)
        yield _head(single, start, len(parts))[around[1] :] + _between(single, hollow, start)
        while some := tuple(islice(left, SLICE_ENTRIES)):
            yield _between(encode(self.make((self._entry(key, some),)), version), hollow, start)
        yield _between(hollow, *around)[start - around[1] :]


# What is made and encoded in slices where it is long.
Sliced = Listed | ListedByTopic


class Pacer:
    """Gives others the loop after each `SLICE_ENTRIES` of a long request's entries.

    Args:
        at_once: so many come first without a pause, where what is pipelined must not be overtaken.
    """

    def __init__(self, at_once: int = SLICE_ENTRIES) -> None:
        self._left = at_once

    async def step(self) -> None:
        """Call once for each entry."""
        self._left -= 1
        if self._left <= 0:
            self._left = SLICE_ENTRIES
            await asyncio.sleep(0)


async def in_slices(entries: Iterable[T]) -> tuple[T, ...]:
    """All entries, made lazily; others have the loop in between."""
    made = []
    for number, entry in enumerate(entries, 1):
        made.append(entry)
        if number % SLICE_ENTRIES == 0:
            await asyncio.sleep(0)
    return tuple(made)


async def partitions_in_slices(
    wanted: Mapping[str, Iterable[T]], answer: Callable[[str, T], R]
) -> dict[str, tuple[R, ...]]:
    """What is answered of each partition, by topic; others have the loop in between."""
    found: dict[str, tuple[R, ...]] = {}
    done = 0
    for topic, partitions in wanted.items():
        made = []
        for each in partitions:
            made.append(answer(topic, each))
            done += 1
            if done % SLICE_ENTRIES == 0:
                await asyncio.sleep(0)
        found[topic] = tuple(made)
    return found


def _entry_start(empty: bytes, one: bytes) -> int:
    """Where the first entry begins: behind the count, the first thing that differs."""
    at = 0
    while empty[at] == one[at]:
        at += 1
    return at + 1


def _between(encoded: bytes, empty: bytes, start: int) -> bytes:
    """The entries alone, of an answer with a few of them. `empty`: the one without."""
    return encoded[start : len(encoded) - len(empty) + start]


def _head(one: bytes, start: int, count: int) -> bytes:
    """What stands before the entries of an answer with `count` of them."""
    # The count of one entry is 2 in a compact array, and 1 in a classic one.
    if one[start - 1] == 2:
        return one[: start - 1] + encode_uvarint(count + 1)
    return one[: start - 4] + count.to_bytes(4, "big")
