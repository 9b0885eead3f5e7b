"""The time a coordinator's deadlines go by: that in which its loop has run.

A process that is stopped for longer than a session (a debugger, a laptop's lid, a machine without memory)
must not find, as it goes on, that every member has died: their heartbeats wait in its sockets. A timer that
is late tells for how long nothing was heard; so much is added to every deadline, and what has come meanwhile
is read before anything else is found to be over.

Wall time is not touched: what the log says (when a transaction began, when an offset was committed) goes on.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from tallystick.kernel.clock import Clock
from tallystick.kernel.ids import TimestampMs

# A loop that is merely busy is late by less.
LATE_MS: Final = 500
# For what has come meanwhile.
HEARING_MS: Final = 1_000


class ServingTimer:
    """One timer for all that a coordinator waits for, and the Clock that measures it. Lives on the loop."""

    def __init__(self, clock: Clock, tick: Callable[[], int], log: logging.Logger) -> None:
        """Args:
        tick: lets everything happen that is due; returns the monotonic time of the next thing.
        """
        self._clock = clock
        self._tick = tick
        self._log = log
        self._handle: asyncio.TimerHandle | None = None
        self._at_ms = 0
        self._missed_ms = 0
        self._hears_until_ms: int | None = None
        self._closed = False

    def now_ms(self) -> TimestampMs:
        return self._clock.now_ms()

    def monotonic_ms(self) -> int:
        """Milliseconds in which the loop ran; deadlines are counted in them."""
        return self._clock.monotonic_ms() - self._missed_ms

    def arm(self, at_ms: int) -> None:
        """See to it that `tick` is called then, or before."""
        if self._hears_until_ms is not None:
            at_ms = max(at_ms, self._hears_until_ms)
        if self._closed or (self._handle is not None and self._at_ms <= at_ms):
            return
        if self._handle is not None:
            self._handle.cancel()
        now_ms = self.monotonic_ms()
        # What is asked for "at once" can be of any time that has passed; the timer is late from now on only.
        self._at_ms = max(at_ms, now_ms)
        self._handle = asyncio.get_running_loop().call_later((self._at_ms - now_ms) / 1_000, self.fire)

    def close(self) -> None:
        """Arm it no more."""
        self._closed = True

    def cancel(self) -> None:
        self.close()
        if self._handle is not None:
            self._handle.cancel()

    def fire(self) -> None:
        """The time has come, and perhaps long ago."""
        self._handle = None
        late_ms = self.monotonic_ms() - self._at_ms
        # Only once in a row: a loop that is always late must still find sessions over.
        if late_ms > LATE_MS and self._hears_until_ms is None:
            self._missed_ms += late_ms
            self._log.warning("nothing was heard for %d ms: deadlines are as much later", late_ms)
            self._hears_until_ms = self.monotonic_ms() + HEARING_MS
            self.arm(self._hears_until_ms)
            return
        self._hears_until_ms = None
        self.arm(self._tick())
