"""A fake clock that moves only when a test advances it."""

from tallystick.kernel.ids import TimestampMs


class FakeClock:
    """A clock that starts at `start_ms` and stands still until `advance` is called."""

    def __init__(self, start_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = start_ms
        self._monotonic_ms = 0

    def now_ms(self) -> TimestampMs:
        return TimestampMs(self._now_ms)

    def monotonic_ms(self) -> int:
        return self._monotonic_ms

    def advance(self, by_ms: int) -> None:
        """Advance both clocks, wall and monotonic, by `by_ms` milliseconds."""
        self._now_ms += by_ms
        self._monotonic_ms += by_ms
