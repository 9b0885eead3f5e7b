"""Time as an argument: machines take `now_ms`, shells own a Clock."""

import time
from typing import Protocol

from tallystick.kernel.ids import TimestampMs


class Clock(Protocol):
    """Where a shell reads time."""

    def now_ms(self) -> TimestampMs:
        """Milliseconds since the epoch, the unit of every Kafka timestamp; may step back."""
        ...

    def monotonic_ms(self) -> int:
        """Milliseconds from an arbitrary start that never step back: for deadlines."""
        ...


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> TimestampMs:
        return TimestampMs(time.time_ns() // 1_000_000)

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000
