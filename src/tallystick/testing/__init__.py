"""What users need to test their own Kafka code: a broker of their own, a clock that stands still."""

from tallystick.broker.embedded import EmbeddedBroker
from tallystick.testing.clock import FakeClock
from tallystick.testing.waiting import eventually

__all__ = ["EmbeddedBroker", "FakeClock", "eventually"]
