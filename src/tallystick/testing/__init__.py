"""What users need to test their own Kafka code: an in-process broker, a clock that stands still, a disk that forgets."""

from tallystick.testing.clock import FakeClock
from tallystick.testing.waiting import eventually

__all__ = ["FakeClock", "eventually"]
