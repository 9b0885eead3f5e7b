"""The consumers whose offsets a dual write sends: where they go on, as the write ended.

    committed       from where they are; what was sent counts
    taken back      the next `poll` returns again what was returned and never committed [DW-26]
    not known       nowhere, until recovery has found out: whether the offsets count is as open as the rows

A consumer that went on before the outcome is known would hand out records whose predecessors may be taken
back, and offsets behind them, committed later, would skip these for good.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from tallystick.client.errors import ClientError
from tallystick.dualwrite.errors import Outcome
from tallystick.kernel.ids import TopicPartition

_log = logging.getLogger("tallystick.dualwrite")


class Rewinding(Protocol):
    """What this needs of `tallystick.Consumer` and `tallystick.aio.Consumer`."""

    @property
    def assignment(self) -> frozenset[TopicPartition]: ...
    @property
    def paused(self) -> frozenset[TopicPartition]: ...
    def pause(self, partitions: Iterable[TopicPartition]) -> None: ...
    def resume(self, partitions: Iterable[TopicPartition]) -> None: ...
    def rewind(self) -> None: ...
    def note_committed(self, offsets: Mapping[TopicPartition, int]) -> None: ...


@dataclass(slots=True)
class Sent:
    """One `send_offsets`.

    positions  what was sent
    held       the partitions that return nothing until the outcome is known; None while nothing is held
    """

    consumer: Rewinding
    positions: Mapping[TopicPartition, int] = field(default_factory=dict)
    held: frozenset[TopicPartition] | None = None


class SentOffsets:
    """What one block has sent, until its outcome is known. Concluding it again changes nothing."""

    def __init__(self) -> None:
        self._sent: list[Sent] = []

    def add(self, consumer: Rewinding) -> Sent:
        """Note it before its positions are known: what it has returned is part of the block already."""
        sent = Sent(consumer)
        self._sent.append(sent)
        return sent

    def forget(self) -> None:
        """In a forked child: these are the parent's."""
        self._sent.clear()

    def conclude(self, outcome: Outcome) -> None:
        """The block has ended like this, or recovery has found it out."""
        for sent in tuple(self._sent):
            try:
                _conclude(sent, outcome)
            except ClientError as exc:  # it is closed, or another thread's: the block's own error comes first
                _log.warning("%r: where it goes on was not set: %s", sent.consumer, exc)
            if outcome is not Outcome.UNKNOWN:
                self._sent.remove(sent)


def _conclude(sent: Sent, outcome: Outcome) -> None:
    consumer = sent.consumer
    if outcome is Outcome.UNKNOWN:
        if sent.held is None:
            held = consumer.assignment - consumer.paused
            consumer.pause(held)
            sent.held = held
            _log.warning("%r returns no more records until recover() has found the outcome", consumer)
        else:  # recovery has looked, and another writer had the id in between
            _log.error(
                "%r returns no more records: nothing tells whether its offsets were committed. "
                "Close it and open it anew: it begins at the offsets that the group has committed",
                consumer,
            )
        return
    if outcome is Outcome.COMMITTED:
        consumer.note_committed(sent.positions)
    else:
        consumer.rewind()
    if sent.held:
        consumer.resume(sent.held & consumer.assignment)
