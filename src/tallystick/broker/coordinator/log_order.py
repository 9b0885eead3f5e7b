"""Appends to one partition take effect in log order, whichever component made them [GRP-7].

Several appends are in flight at a time: those of groups that share the partition, and end markers, which come
from the transaction coordinator and belong to no group. Each is applied once it is durable, but the
notifications are independent and may overtake each other: one append can be found durable at once while the
one before it is still waiting. A marker applied before the offsets it ends would leave them pending for ever,
and the live state would differ from the state that a restart replays.
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
        """Give up on the append: an earlier one failed, and this one may fail for the same reason."""
        if self.durable is not None:
            self.durable.add_done_callback(_note_failure)
        self.settle(False)

    def settle(self, applied: bool) -> None:
        if not self.applied.done():
            self.applied.set_result(applied)


class LogOrder:
    """The appends to one partition that are not applied yet. Lives on the loop; one instance per partition.

    Closes when an append fails or an event cannot be applied: `lost` is called, and nothing more is applied.
    """

    __slots__ = ("_in_flight", "_lost", "closed")

    def __init__(self, lost: Callable[[Exception], None]) -> None:
        self._in_flight: deque[_InFlight] = deque()
        self._lost = lost
        self.closed = False

    def apply_in_turn(self, durable: Durable | None, apply: Callable[[], None]) -> "asyncio.Future[bool]":
        """Call `apply` once the append just made is durable and all earlier ones are applied.

        Cancelling the caller does not undo the append.

        Order: no await between the append and this call.

        Args:
            durable: done when the append is durable; None if it already is.

        Returns:
            A future of whether it was applied; False when the partition was lost before.
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
        """Apply nothing more, and resolve the futures of all waiting callers."""
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
                # It is unknown whether the append is durable, or an invariant is broken.
                self.close()
                entry.settle(False)
                self._lost(exc)
            else:
                entry.settle(True)


def _note_failure(durable: Durable) -> None:
    """Retrieve the outcome, so that asyncio does not report an unhandled exception."""
    if not durable.cancelled():
        durable.exception()
