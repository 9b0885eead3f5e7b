"""A clock that moves only when told to."""

from tallystick.kernel.ids import TimestampMs


class FakeClock:
    """Starts at `start_ms` and stands still until `advance`."""

    def __init__(self, start_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = start_ms
        self._monotonic_ms = 0

    def now_ms(self) -> TimestampMs:
        return TimestampMs(self._now_ms)

    def monotonic_ms(self) -> int:
        return self._monotonic_ms

    def advance(self, by_ms: int) -> None:
        """Let `by_ms` milliseconds pass."""
        self._now_ms += by_ms
        self._monotonic_ms += by_ms
