"""The switch: `instrument` sets the tracers of this process, `uninstrument` removes them."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

from opentelemetry import metrics, trace
from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import Span, SpanKind, TracerProvider

from tallystick import __version__
from tallystick.client import tracing as client_tracing
from tallystick.client.consumer.decode import ConsumerRecord
from tallystick.dualwrite import tracing as write_tracing
from tallystick.otel.client_spans import ClientSpans
from tallystick.otel.conventions import (
    OFFSET,
    PARTITION,
    SCHEMA_URL,
    TOMBSTONE,
    build_messaging_attributes,
    name_span,
)
from tallystick.otel.metrics import ClientInstruments
from tallystick.otel.propagation import list_links
from tallystick.otel.spans import SpanScope, SpanStarter
from tallystick.otel.spark_spans import SparkSpans
from tallystick.otel.write_spans import WriteSpans, choose_parent
from tallystick.spark import tracing as spark_tracing

_log = logging.getLogger("tallystick.otel")

_NAME = "tallystick"


class TallystickInstrumentor:
    """OpenTelemetry's switch for this library, of the form that its other instrumentations have.

    All instances switch the same thing: the tracers of this process. Clients that are open already are traced
    from the switch on.
    """

    _lock: ClassVar[threading.Lock] = threading.Lock()
    _spans: ClassVar[SpanStarter | None] = None
    _metrics: ClassVar[ClientInstruments | None] = None

    def instrument(
        self,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        **_: object,
    ) -> None:
        """Switch on. Does nothing but warn if it is on already.

        Args:
            tracer_provider: where spans go; the program's own provider by default.
            meter_provider: where metrics go, likewise.
        """
        cls = TallystickInstrumentor
        with cls._lock:
            if cls._spans is not None:
                _log.warning("tallystick is instrumented already")
                return
            tracer = trace.get_tracer(_NAME, __version__, tracer_provider, SCHEMA_URL)
            meter = metrics.get_meter(_NAME, __version__, meter_provider, SCHEMA_URL)
            cls._spans = spans = SpanStarter(tracer)
            cls._metrics = counters = ClientInstruments(meter)
            client_tracing.tracer = ClientSpans(spans)
            write_tracing.tracer = WriteSpans(
                spans, count_write=counters.count_write, count_recovery=counters.count_recovery
            )
            spark_tracing.tracer = SparkSpans(spans)

    def uninstrument(self, **_: object) -> None:
        """Switch off. Spans that are open end as they would have."""
        cls = TallystickInstrumentor
        with cls._lock:
            client_tracing.tracer = write_tracing.tracer = spark_tracing.tracer = None
            if cls._metrics is not None:
                cls._metrics.stop()
            cls._spans = cls._metrics = None

    def instrumentation_dependencies(self) -> tuple[str, ...]:
        """Return the other libraries that it instruments: none."""
        return ()

    @property
    def is_instrumented_by_opentelemetry(self) -> bool:
        """Whether it is switched on."""
        return TallystickInstrumentor._spans is not None


@contextmanager
def process(record: ConsumerRecord) -> Iterator[Span]:
    """Trace the processing of one record: the span in the block is the consumer's side of the record's trace.

        for record in consumer:
            with process(record):
                ...

    Its parent is the span that sent the record, or, where another span is the current one, that one; a link
    names the sender's in both cases. Without the switch, and without a provider, it does nothing.

    Yields: the span, for attributes of your own.
    """
    spans = TallystickInstrumentor._spans or SpanStarter(trace.get_tracer(_NAME, __version__))
    attributes = build_messaging_attributes("process", "process", record.topic)
    attributes |= {PARTITION: str(record.partition), OFFSET: record.offset}
    if record.value is None:
        attributes[TOMBSTONE] = True
    span = spans.start(
        name_span("process", record.topic),
        SpanKind.CONSUMER,
        attributes,
        links=list_links([record]),
        parent=choose_parent([record]),
    )
    with SpanScope(spans, span):
        yield span
