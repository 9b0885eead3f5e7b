"""Until it is switched on, OpenTelemetry costs nothing: it is not even loaded."""

import subprocess
import sys
from importlib.metadata import entry_points

import pytest

from tallystick.otel import TallystickInstrumentor

USE_EVERYTHING = """
import sys
import tallystick, tallystick.aio, tallystick.dualwrite, tallystick.dualwrite.aio
from tallystick import Admin, Consumer, Producer
from tallystick.dualwrite import DualWriter, SqlStore, WriterPool, consume_into
from tallystick.spark import foreach_batch, register
from tallystick.spark.sink.driver import writers
import tallystick.broker.serve, tallystick.cli.app
print([name for name in sys.modules if name.startswith(("opentelemetry", "tallystick.otel"))])
"""


@pytest.mark.gate(0)
def test_nothing_of_opentelemetry_is_loaded_until_it_is_switched_on() -> None:
    child = subprocess.run(
        [sys.executable, "-c", USE_EVERYTHING], capture_output=True, text=True, timeout=120, check=True
    )
    assert child.stdout.strip() == "[]"


def test_opentelemetry_instrument_finds_the_switch() -> None:
    (entry,) = entry_points(group="opentelemetry_instrumentor", name="tallystick")
    assert entry.load() is TallystickInstrumentor
    assert TallystickInstrumentor().instrumentation_dependencies() == ()
