"""Appends to one partition take effect in the order of its log, whoever made them [GRP-7].

Several are on their way at a time: those of groups that share the partition, and end markers, which come from
the transaction coordinator and belong to no group. Each is applied once it is durable, but the news of that
travels apart for each of them, and may overtake: an append can be found durable at once while the one before
still waits to be told. A marker that overtook the offsets it ends would leave them pending for ever, and what
is live would differ from what a restart replays.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

Durable = asyncio.Future[None]


@dataclass(slots=True)
class _InFlight:
    durable: Durable | None
    apply: Callable[[], None]
    applied: "asyncio.Future[bool]"

    def drop(self) -> None:
        """Apply it no more: the append before it failed, and this one may fail for the same reason."""
        if self.durable is not None:
            self.durable.add_done_callback(_note_failure)
        self.settle(False)

    def settle(self, applied: bool) -> None:
        if not self.applied.done():
            self.applied.set_result(applied)


class LogOrder:
    """The appends to one partition that are not applied yet. Lives on the loop; one for each partition.

    Ends when an append fails or an event cannot be applied: `lost` is told, and nothing is applied any more.
    """

    __slots__ = ("_in_flight", "_lost", "closed")

    def __init__(self, lost: Callable[[Exception], None]) -> None:
        self._in_flight: deque[_InFlight] = deque()
        self._lost = lost
        self.closed = False

    def apply_in_turn(self, durable: Durable | None, apply: Callable[[], None]) -> "asyncio.Future[bool]":
        """Have `apply` called when the append just made is durable, and all before it are applied.

        A caller that is cancelled does not undo it.

        Order: no await between the append and this call.
        Args:
            durable: done when the append is; None if it is already.
        Returns: whether it was applied, when that is known; False when the partition was lost before.
        """
        entry = _InFlight(durable, apply, asyncio.get_running_loop().create_future())
        if self.closed:
            entry.drop()
            return entry.applied
        self._in_flight.append(entry)
        if durable is None:
            self._drain()
        else:
            durable.add_done_callback(self._drain)
        return entry.applied

    def close(self) -> None:
        """Apply nothing more, and tell whoever waits."""
        self.closed = True
        while self._in_flight:
            self._in_flight.popleft().drop()

    def _drain(self, _: Durable | None = None) -> None:
        while self._in_flight:
            entry = self._in_flight[0]
            if entry.durable is not None and not entry.durable.done():
                return
            self._in_flight.popleft()
            try:
                if entry.durable is not None:
                    entry.durable.result()
                entry.apply()
            except Exception as exc:
                # Durable or not? Unknown, or an invariant is broken.
                self.close()
                entry.settle(False)
                self._lost(exc)
            else:
                entry.settle(True)


def _note_failure(durable: Durable) -> None:
    """Look at the outcome, so that asyncio does not report it as one that nobody handled."""
    if not durable.cancelled():
        durable.exception()
