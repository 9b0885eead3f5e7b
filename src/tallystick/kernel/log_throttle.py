"""Log lines that a flood of clients could write without end: one a second, and a count of the others."""

from collections.abc import Callable
from math import inf
from typing import Final

INTERVAL_S: Final = 1.0


class LogThrottle:
    """One place that logs. Lives on the loop."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._logged_at, self._unlogged = -inf, 0

    def take(self) -> str | None:
        """Return the end of the line to log, which counts the lines left out; None to leave this one out."""
        now = self._now_s()
        if now < self._logged_at + INTERVAL_S:
            self._unlogged += 1
            return None
        more = f" ({self._unlogged} more since the last such line)" if self._unlogged else ""
        self._logged_at, self._unlogged = now, 0
        return more
