"""Appends to one partition take effect in log order, whichever component made them [GRP-7].

Several appends are in flight at a time: those of groups that share the partition, and end markers, which come
from the transaction coordinator and belong to no group. Each is applied once it is durable, but the
notifications are independent and may overtake each other: one append can be found durable immediately while
the one before it is still waiting. A marker applied before the offsets it ends would leave them pending for
ever, and the live state would differ from the state that a restart replays.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

DurableFuture = asyncio.Future[None]


@dataclass(slots=True)
class _PendingAppend:
    durable_future: DurableFuture | None
    apply: Callable[[], None]
    applied_future: "asyncio.Future[bool]"

    def abandon(self) -> None:
        """Give up on the append: an earlier one failed, and this one may fail for the same reason."""
        if self.durable_future is not None:
            self.durable_future.add_done_callback(_retrieve_exception)
        self.resolve(False)

    def resolve(self, is_applied: bool) -> None:
        if not self.applied_future.done():
            self.applied_future.set_result(is_applied)


class AppendOrder:
    """The appends to one partition that are not applied yet. Lives on the loop; one instance per partition.

    Closes when an append fails or an event cannot be applied: `lost` is called, and nothing more is applied.
    """

    __slots__ = ("_on_failure", "_pending_appends", "is_closed")

    def __init__(self, on_failure: Callable[[Exception], None]) -> None:
        self._pending_appends: deque[_PendingAppend] = deque()
        self._on_failure = on_failure
        self.is_closed = False

    def apply_when_durable(
        self, durable: DurableFuture | None, apply: Callable[[], None]
    ) -> "asyncio.Future[bool]":
        """Call `apply` once the append just made is durable and all earlier ones are applied.

        Cancelling the caller does not undo the append.

        Order: no await between the append and this call.

        Args:
            durable: done when the append is durable; None if it already is.

        Returns:
            A future of whether it was applied; False when the partition was lost before.
        """
        entry = _PendingAppend(durable, apply, asyncio.get_running_loop().create_future())
        if self.is_closed:
            entry.abandon()
            return entry.applied_future
        self._pending_appends.append(entry)
        if durable is None:
            self._apply_durable()
        else:
            durable.add_done_callback(self._apply_durable)
        return entry.applied_future

    def close(self) -> None:
        """Apply nothing more, and resolve the futures of all waiting callers."""
        self.is_closed = True
        while self._pending_appends:
            self._pending_appends.popleft().abandon()

    def _apply_durable(self, _: DurableFuture | None = None) -> None:
        while self._pending_appends:
            entry = self._pending_appends[0]
            if entry.durable_future is not None and not entry.durable_future.done():
                return
            self._pending_appends.popleft()
            try:
                if entry.durable_future is not None:
                    entry.durable_future.result()
                entry.apply()
            except Exception as exc:
                # It is unknown whether the append is durable, or an invariant is broken.
                self.close()
                entry.resolve(False)
                self._on_failure(exc)
            else:
                entry.resolve(True)


def _retrieve_exception(durable: DurableFuture) -> None:
    """Retrieve the outcome, so that asyncio does not report an unhandled exception."""
    if not durable.cancelled():
        durable.exception()
