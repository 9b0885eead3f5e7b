"""Clock for a coordinator's deadlines, which counts only the time in which its loop has run.

A process that is stopped for longer than a session timeout (a debugger, a laptop's lid, memory pressure) must
not conclude on resuming that every member has died: their heartbeats wait in its sockets. The lateness of a
timer shows for how long nothing was heard; every deadline moves by that much, and pending input is read
before anything else expires.

Wall-clock time is not adjusted: timestamps in the log (when a transaction began, when an offset was
committed) keep their meaning.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from tallystick.kernel.clock import Clock
from tallystick.kernel.ids import TimestampMs

# A loop that is merely busy is late by less than this.
SUSPENSION_MIN_MS: Final = 500
# Time to read the requests that arrived while the process was stopped.
SUSPENSION_GRACE_MS: Final = 1_000


class CoordinatorTimer:
    """One timer for all deadlines of a coordinator, and the Clock that measures them. Lives on the loop."""

    def __init__(self, clock: Clock, tick: Callable[[], int], log: logging.Logger) -> None:
        """Create an idle timer.

        Args:
            tick: runs everything that is due; returns the monotonic time of the next deadline.
        """
        self._clock = clock
        self._tick = tick
        self._log = log
        self._handle: asyncio.TimerHandle | None = None
        self._at_ms = 0
        self._suspended_ms = 0
        self._grace_until_ms: int | None = None
        self._is_closed = False

    def now_ms(self) -> TimestampMs:
        return self._clock.now_ms()

    def monotonic_ms(self) -> int:
        """Return the milliseconds in which the loop ran; deadlines are counted in them."""
        return self._clock.monotonic_ms() - self._suspended_ms

    def arm(self, at_ms: int) -> None:
        """Call `tick` at this time or before."""
        if self._grace_until_ms is not None:
            at_ms = max(at_ms, self._grace_until_ms)
        if self._is_closed or (self._handle is not None and self._at_ms <= at_ms):
            return
        if self._handle is not None:
            self._handle.cancel()
        now_ms = self.monotonic_ms()
        # `at_ms` may be any time in the past to mean "at once"; lateness is counted from now on only.
        self._at_ms = max(at_ms, now_ms)
        self._handle = asyncio.get_running_loop().call_later((self._at_ms - now_ms) / 1_000, self.fire)

    def close(self) -> None:
        """Refuse to be armed again."""
        self._is_closed = True

    def cancel(self) -> None:
        self.close()
        if self._handle is not None:
            self._handle.cancel()

    def fire(self) -> None:
        """Run `tick`, or first grant extra time when the timer is late."""
        self._handle = None
        late_ms = self.monotonic_ms() - self._at_ms
        # Only once in a row: a loop that is always late must still expire sessions.
        if late_ms > SUSPENSION_MIN_MS and self._grace_until_ms is None:
            self._suspended_ms += late_ms
            self._log.warning(
                "the broker was suspended or overloaded for %d ms; all deadlines are postponed by that",
                late_ms,
            )
            self._grace_until_ms = self.monotonic_ms() + SUSPENSION_GRACE_MS
            self.arm(self._grace_until_ms)
            return
        self._grace_until_ms = None
        self.arm(self._tick())
