"""Histories of transactional ids: as a page has them, and as they are kept from a transaction log. Pure.

tallystick's broker keeps the last transitions of each id itself, with the clients' names and addresses
(docs/adr/0020). From Apache Kafka's log the console keeps them as it follows it, within the same bounds.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable
from enum import Enum
from typing import Final

from tallystick.kernel.value import Value
from tallystick.protocol.transaction_history import TransactionTransition

TRANSITIONS_PER_ID: Final = 32
TRANSITIONS_MAX: Final = 32_768


class HistorySource(Enum):
    """The source of a history; the value is the sentence of a page."""

    BROKER = "Kept by the broker in its memory: the last transitions of this id."
    LOG = "From the cluster's transaction log, which names no clients."
    NONE = "Not read."


class IdHistory(Value, kw_only=True):
    """The history of one transactional id.

    transitions   oldest first
    is_described  its coordinator knows the id
    followed_since_ms  when the console began to follow the log; it begins a bounded number of records earlier
    is_catching_up     records of the log are still to be read
    failure       what keeps it from being read; "" if nothing does
    """

    source: HistorySource = HistorySource.NONE
    is_described: bool = False
    transitions: tuple[TransactionTransition, ...] = ()
    followed_since_ms: int | None = None
    is_catching_up: bool = False
    failure: str = ""


class KeptHistories:
    """The last transitions of each id, of a bounded number in all.

    The ids to which nothing has happened for longest are forgotten first.
    """

    def __init__(self, transitions_max: int = TRANSITIONS_MAX, per_id: int = TRANSITIONS_PER_ID) -> None:
        self._max, self._per_id = transitions_max, per_id
        self._kept: OrderedDict[str, deque[TransactionTransition]] = OrderedDict()
        self.transition_count = 0

    def add(self, transitions: Iterable[TransactionTransition]) -> None:
        """Keep these, in the order in which they happened."""
        for each in transitions:
            kept = self._kept.setdefault(each.transactional_id, deque(maxlen=self._per_id))
            self._kept.move_to_end(each.transactional_id)
            self.transition_count += len(kept) < self._per_id
            kept.append(each)
            while self.transition_count > self._max and len(self._kept) > 1:
                _, forgotten = self._kept.popitem(last=False)
                self.transition_count -= len(forgotten)

    def find(self, transactional_id: str) -> tuple[TransactionTransition, ...]:
        """Return the transitions of an id, oldest first; none if it is not known."""
        return tuple(self._kept.get(transactional_id, ()))
