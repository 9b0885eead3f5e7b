"""Positions of consumers: after a dual write that sends their offsets, and of what one poll returned.

After each outcome of a dual write:

    committed      the consumer continues at its position; the offsets sent count
    rolled back    the next `poll` returns again everything returned and never committed [DW-26]
    unknown        the consumer is paused until recovery: the offsets are as undecided as the rows

A consumer that continued before the outcome is known would return records whose predecessors may be rolled
back, and a later commit of its offsets would skip those for good.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol
from weakref import WeakSet

from tallystick.client.consumer.decode import ConsumerRecord
from tallystick.client.errors import ClientError
from tallystick.dualwrite.errors import NotRecovered, Outcome
from tallystick.dualwrite.stores.base import OffsetAdvance
from tallystick.kernel.ids import TopicPartition
from tallystick.kernel.value import Value

_log = logging.getLogger("tallystick.dualwrite")


class RewindableConsumer(Protocol):
    """The methods used of `tallystick.Consumer` and `tallystick.aio.Consumer`."""

    @property
    def assignment(self) -> frozenset[TopicPartition]: ...
    @property
    def paused(self) -> frozenset[TopicPartition]: ...
    def pause(self, partitions: Iterable[TopicPartition]) -> None: ...
    def resume(self, partitions: Iterable[TopicPartition]) -> None: ...
    def rewind(self) -> None: ...
    def note_committed(self, offsets: Mapping[TopicPartition, int]) -> None: ...


@dataclass(slots=True)
class OffsetsInFlight:
    """One call of `send_offsets`.

    positions          the offsets that were sent
    paused_partitions  partitions paused until the outcome is known; None while no partition is paused
    """

    consumer: RewindableConsumer
    positions: Mapping[TopicPartition, int] = field(default_factory=dict)
    paused_partitions: frozenset[TopicPartition] | None = None


_in_doubt: WeakSet[RewindableConsumer] = WeakSet()
"""Consumers that are paused until the outcome of their offsets is known, whichever writer has sent them."""


class OffsetsOfBlock:
    """The offsets sent by one block, until its outcome is known. `apply_outcome` is idempotent."""

    def __init__(self) -> None:
        self._entries: list[OffsetsInFlight] = []

    def add(self, consumer: RewindableConsumer) -> OffsetsInFlight:
        """Add a consumer before its positions are known: its returned records already belong to the block.

        Raises: NotRecovered for a consumer whose offsets have an unknown outcome: its position is behind
            records whose rows may be rolled back, and the group would never see those again [DW-26].
        """
        if consumer in _in_doubt:
            raise NotRecovered(
                f"{consumer!r}: whether the offsets before are committed is not known, so none can be sent. "
                "If recover() has not resumed it, close it and open it again"
            )
        entry = OffsetsInFlight(consumer)
        self._entries.append(entry)
        return entry

    def clear(self) -> None:
        """Drop all entries. A consumer that is paused stays so: no later outcome is that of its offsets."""
        self._entries.clear()

    def apply_outcome(self, outcome: Outcome) -> None:
        """Apply the outcome of the block, as known at its end or after recovery."""
        for entry in tuple(self._entries):
            try:
                _apply_outcome(entry, outcome)
            except ClientError as exc:  # closed, or used by another thread: the block's own error comes first
                _log.warning("%r: where it goes on was not set: %s", entry.consumer, exc)
            if outcome is not Outcome.UNKNOWN:
                self._entries.remove(entry)
                _in_doubt.discard(entry.consumer)

    def report_unknown(self) -> None:
        """Log what can be done about consumers whose outcome a recovery has not determined."""
        for entry in self._entries:
            _log.error(
                "%r returns no more records: nothing tells whether its offsets were committed. "
                "Close it and open it again: it begins at the offsets that the group has committed",
                entry.consumer,
            )


def _apply_outcome(entry: OffsetsInFlight, outcome: Outcome) -> None:
    consumer = entry.consumer
    if outcome is Outcome.UNKNOWN:
        if entry.paused_partitions is None:
            _in_doubt.add(consumer)
            paused = consumer.assignment - consumer.paused
            consumer.pause(paused)
            entry.paused_partitions = paused
            _log.warning("%r returns no more records until recover() has found the outcome", consumer)
        return
    if outcome is Outcome.COMMITTED:
        consumer.note_committed(entry.positions)
    else:
        consumer.rewind()
    if entry.paused_partitions:
        consumer.resume(entry.paused_partitions & consumer.assignment)


class PolledBatch(Value):
    """The result of one poll: records, and how far they move each partition."""

    records: tuple[ConsumerRecord[Any, Any], ...]
    offset_moves: Mapping[TopicPartition, OffsetAdvance]


def first_offsets(records: Iterable[ConsumerRecord[Any, Any]]) -> dict[TopicPartition, int]:
    """Return the first offset of each partition."""
    first: dict[TopicPartition, int] = {}
    for each in records:
        first.setdefault(TopicPartition(each.topic, each.partition), each.offset)
    return first
