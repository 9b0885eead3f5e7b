"""Responses with long lists, built and encoded one entry at a time.

A response with a thousand topics takes long to build, and its objects take twenty times the memory of its
bytes. So the handler returns a function that builds one entry; each entry is encoded as soon as it is built,
and the dispatcher yields to the event loop in between [SRV-3]. The bytes are the same as if the whole
response were encoded at once: only the count before the list differs from a response with one entry. A
topic's long list of partitions is encoded in the same way within its entry.

Encoding the whole response in a thread would be simpler, but it holds the interpreter: with the largest
requests of `tools.hostile` the p99 of another client was 646 to 1,876 ms, for 44 to 211 ms in slices.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, TypeVar

from tallystick.kernel.limits import KIB
from tallystick.kernel.value import Value
from tallystick.protocol import encode
from tallystick.protocol.primitives import encode_uvarint

T = TypeVar("T")
R = TypeVar("R")

# The size of one slice: about a millisecond of building and encoding.
SLICE_ENTRIES: Final = 32
SLICE_BYTES: Final = 16 * KIB


class SlicedListResponse(Value):
    """A response with one list.

    make_response  the whole response with these entries; a long list calls it only with `()` and with one
                   entry
    items          the items to answer, each once
    answer_item    the entry for an item; the broker's state may change between two calls
    """

    make_response: Callable[[tuple[Any, ...]], object]
    items: Sequence[Any]
    answer_item: Callable[[Any], object]

    @property
    def is_short(self) -> bool:
        """Whether the list is too short to need a pause."""
        return len(self.items) <= SLICE_ENTRIES

    def build(self) -> object:
        """Build the whole response."""
        return self.make_response(tuple(map(self.answer_item, self.items)))

    def iter_slices(self, version: int) -> Iterator[bytes]:
        """Yield the encoded response in slices; other requests may run between two."""
        empty = encode(self.make_response(()), version)
        start = len(empty)  # where the first entry begins, or the end if there is none
        piece, entries = bytearray(), 0
        for number, item in enumerate(self.items):
            one = encode(self.make_response((self.answer_item(item),)), version)
            if not number:
                start = _find_entry_start(empty, one)
                piece += _build_head(one, start, len(self.items))
            piece += _cut_entries(one, empty, start)
            entries += 1
            if entries == SLICE_ENTRIES or len(piece) >= SLICE_BYTES:
                yield bytes(piece)
                piece, entries = bytearray(), 0
        yield bytes(piece) + empty[start if self.items else 0 :]


class SlicedTopicResponse(Value):
    """A response with a list of topics, each with a list of partitions.

    make_response        the whole response with these topics
    make_topic           the entry for a topic with these partitions
    partitions_by_topic  the partitions to answer for each topic, each once
    answer_partition     the entry for a partition; the broker's state may change between two calls
    """

    make_response: Callable[[tuple[Any, ...]], object]
    make_topic: Callable[[Any, tuple[Any, ...]], object]
    partitions_by_topic: Mapping[Any, Collection[Any]]
    answer_partition: Callable[[Any, Any], object]

    @property
    def is_short(self) -> bool:
        """Whether the list is too short to need a pause."""
        if len(self.partitions_by_topic) > SLICE_ENTRIES:
            return False
        return sum(map(len, self.partitions_by_topic.values())) <= SLICE_ENTRIES

    def build(self) -> object:
        """Build the whole response."""
        return self.make_response(
            tuple(self._build_entry(key, parts) for key, parts in self.partitions_by_topic.items())
        )

    def _build_entry(self, key: Any, parts: Iterable[Any]) -> object:
        return self.make_topic(key, tuple(self.answer_partition(key, part) for part in parts))

    def iter_slices(self, version: int) -> Iterator[bytes]:
        """Yield the encoded response in slices; other requests may run between two."""
        empty = encode(self.make_response(()), version)
        if not self.partitions_by_topic:
            yield empty
            return
        first = encode(
            self.make_response((self.make_topic(next(iter(self.partitions_by_topic)), ()),)), version
        )
        start = _find_entry_start(empty, first)
        yield _build_head(first, start, len(self.partitions_by_topic))
        few: list[object] = []
        rows = 0
        for key, parts in self.partitions_by_topic.items():
            if few and rows + len(parts) >= SLICE_ENTRIES:
                yield _cut_entries(encode(self.make_response(tuple(few)), version), empty, start)
                few, rows = [], 0
            if len(parts) < SLICE_ENTRIES:
                few.append(self._build_entry(key, parts))
                rows += 1 + len(parts)
            else:
                yield from self._iter_long_entry(key, parts, version, (empty, start))
        if few:
            yield _cut_entries(encode(self.make_response(tuple(few)), version), empty, start)
        yield empty[start:]

    def _iter_long_entry(
        self, key: Any, parts: Collection[Any], version: int, around: tuple[bytes, int]
    ) -> Iterator[bytes]:
        """Yield the entry of a topic with very many partitions.

        Args: around: the response without topics, and the position where they begin.
        """
        rest = iter(parts)
        hollow = encode(self.make_response((self.make_topic(key, ()),)), version)
        single = encode(self.make_response((self._build_entry(key, islice(rest, 1)),)), version)
        start = _find_entry_start(hollow, single)
        yield _build_head(single, start, len(parts))[around[1] :] + _cut_entries(single, hollow, start)
        while some := tuple(islice(rest, SLICE_ENTRIES)):
            yield _cut_entries(
                encode(self.make_response((self._build_entry(key, some),)), version), hollow, start
            )
        yield _cut_entries(hollow, *around)[start - around[1] :]


# A response that is built and encoded in slices if it is long.
SlicedResponse = SlicedListResponse | SlicedTopicResponse


class LoopYielder:
    """Counter that yields to the event loop after each `SLICE_ENTRIES` entries of a long request.

    Args:
        at_once: number of entries before the first pause, for pipelined requests, which must not be
            overtaken.
    """

    def __init__(self, at_once: int = SLICE_ENTRIES) -> None:
        self._until_yield = at_once

    async def count_entry(self) -> None:
        """Count one entry, and yield to the event loop if it is time."""
        self._until_yield -= 1
        if self._until_yield <= 0:
            self._until_yield = SLICE_ENTRIES
            await asyncio.sleep(0)


async def collect_in_slices(entries: Iterable[T]) -> tuple[T, ...]:
    """Collect all entries of an iterator, yielding to the event loop in between."""
    collected = []
    for number, entry in enumerate(entries, 1):
        collected.append(entry)
        if number % SLICE_ENTRIES == 0:
            await asyncio.sleep(0)
    return tuple(collected)


async def answer_in_slices(
    requests: Mapping[str, Iterable[T]], answer: Callable[[str, T], R]
) -> dict[str, tuple[R, ...]]:
    """Answer each partition, by topic, yielding to the event loop in between."""
    results_by_topic: dict[str, tuple[R, ...]] = {}
    count = 0
    for topic, partitions in requests.items():
        results = []
        for each in partitions:
            results.append(answer(topic, each))
            count += 1
            if count % SLICE_ENTRIES == 0:
                await asyncio.sleep(0)
        results_by_topic[topic] = tuple(results)
    return results_by_topic


def _find_entry_start(empty: bytes, one: bytes) -> int:
    """Return where the first entry begins: after the count, the first byte that differs."""
    at = 0
    while empty[at] == one[at]:
        at += 1
    return at + 1


def _cut_entries(body: bytes, empty: bytes, start: int) -> bytes:
    """Return the entries of an encoded response. `empty` is the response without entries."""
    return body[start : len(body) - len(empty) + start]


def _build_head(one: bytes, start: int, count: int) -> bytes:
    """Return the bytes before the entries of a response with `count` of them."""
    # The count of one entry is 2 in a compact array, and 1 in a classic one.
    if one[start - 1] == 2:
        return one[: start - 1] + encode_uvarint(count + 1)
    return one[: start - 4] + count.to_bytes(4, "big")
