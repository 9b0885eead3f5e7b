"""What users need to test their own Kafka code: a broker of their own, a clock that stands still.

Imported when they are first used: the pytest plugin of this package is loaded in every run of pytest.
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
