"""Test helpers for code that uses Kafka: an embedded broker, a fake clock, and polling for a condition.

The names are imported on first use, because pytest loads this package's plugin in every run.
"""

from typing import TYPE_CHECKING

from tallystick import _lazy

if TYPE_CHECKING:
    from tallystick.broker.embedded import EmbeddedBroker
    from tallystick.testing.clock import FakeClock
    from tallystick.testing.waiting import eventually

__all__ = ["EmbeddedBroker", "FakeClock", "eventually"]

if not TYPE_CHECKING:
    __getattr__ = _lazy.attributes(
        __name__,
        {
            "EmbeddedBroker": "tallystick.broker.embedded:EmbeddedBroker",
            "FakeClock": "tallystick.testing.clock:FakeClock",
            "eventually": "tallystick.testing.waiting:eventually",
        },
    )
