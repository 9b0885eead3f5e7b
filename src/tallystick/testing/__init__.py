"""Test helpers for code that uses Kafka: a broker, a schema registry, a fake clock, polling for a condition.

The names are imported on first use, because pytest loads this package's plugin in every run.
"""

from typing import TYPE_CHECKING

from tallystick import _lazy

if TYPE_CHECKING:
    from tallystick.broker.embedded import EmbeddedBroker
    from tallystick.testing.clock import FakeClock
    from tallystick.testing.schema_registry import SchemaRegistry
    from tallystick.testing.waiting import eventually

__all__ = ["EmbeddedBroker", "FakeClock", "SchemaRegistry", "eventually"]

if not TYPE_CHECKING:
    __getattr__ = _lazy.attributes(
        __name__,
        {
            "EmbeddedBroker": "tallystick.broker.embedded:EmbeddedBroker",
            "FakeClock": "tallystick.testing.clock:FakeClock",
            "SchemaRegistry": "tallystick.testing.schema_registry:SchemaRegistry",
            "eventually": "tallystick.testing.waiting:eventually",
        },
    )
