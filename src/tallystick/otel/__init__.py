"""OpenTelemetry for tallystick: traces of clients, dual writes and Spark batches, and the clients' metrics.

    from tallystick.otel import TallystickInstrumentor

    TallystickInstrumentor().instrument()

`opentelemetry-instrument` switches it on without a line of code. Spans and metrics go to the program's own
SDK; what is needed here is `opentelemetry-api` (`pip install '.[otel]'`). docs/how-to/tracing.md has
the shape of the traces.
"""

from typing import TYPE_CHECKING

from tallystick import _lazy

if TYPE_CHECKING:
    from tallystick.otel.instrumentor import TallystickInstrumentor, process

__all__ = ["TallystickInstrumentor", "process"]

if not TYPE_CHECKING:
    __getattr__ = _lazy.attributes(
        __name__, {name: f"tallystick.otel.instrumentor:{name}" for name in __all__}
    )
