"""Time as an argument: state machines take `now_ms`, I/O shells own a Clock."""

import time
from typing import Protocol

from tallystick.kernel.ids import TimestampMs


class Clock(Protocol):
    """A source of time for shells."""

    def now_ms(self) -> TimestampMs:
        """Return milliseconds since the epoch, the unit of every Kafka timestamp; may step back."""
        ...

    def monotonic_ms(self) -> int:
        """Return milliseconds from an arbitrary start that never step back, for deadlines."""
        ...


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> TimestampMs:
        return TimestampMs(time.time_ns() // 1_000_000)

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000
