"""Spans that a test has caused, as trees of text."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext

from tallystick.otel import TallystickInstrumentor


class _Order(SpanProcessor):
    """Numbers spans as they begin: a clock may give two of them the same time."""

    def __init__(self) -> None:
        self.number_by_id: dict[int, int] = {}

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        self.number_by_id[context_of(span).span_id] = len(self.number_by_id)


class Traces:
    """What a provider has exported."""

    def __init__(self) -> None:
        self._exporter, self._order = InMemorySpanExporter(), _Order()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(self._order)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self.provider.get_tracer("test")

    @property
    def spans(self) -> list[ReadableSpan]:
        """All spans that have ended, in the order of their beginnings."""
        numbers = self._order.number_by_id
        return sorted(self._exporter.get_finished_spans(), key=lambda span: numbers[context_of(span).span_id])

    def clear(self) -> None:
        self._exporter.clear()

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.named(name)
        return span

    def tree(self, *attributes: str) -> str:
        """Return the names of all spans, each below its parent, with the values of some attributes."""
        spans = self.spans
        ids = {context_of(span).span_id for span in spans}

        def lines(parent: int | None, depth: int) -> Iterator[str]:
            for span in spans:
                above = span.parent.span_id if span.parent and span.parent.span_id in ids else None
                if above == parent:
                    values = [
                        str(attributes_of(span)[each]) for each in attributes if each in attributes_of(span)
                    ]
                    yield "  " * depth + " ".join([span.name, *values])
                    yield from lines(context_of(span).span_id, depth + 1)

        return "\n".join(lines(None, 0))


def context_of(span: ReadableSpan) -> SpanContext:
    context = span.get_span_context()
    assert context is not None
    return context


def attributes_of(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def linked_traces(span: ReadableSpan) -> set[int]:
    return {link.context.trace_id for link in span.links}


@contextmanager
def traced(*processors: SpanProcessor) -> Iterator[Traces]:
    """Switch tracing on in the block, with a provider of its own."""
    traces = Traces()
    for processor in processors:
        traces.provider.add_span_processor(processor)
    TallystickInstrumentor().instrument(tracer_provider=traces.provider)
    try:
        yield traces
    finally:
        TallystickInstrumentor().uninstrument()
        traces.provider.shutdown()


def headers_of(record: Any) -> dict[str, bytes | None]:
    return dict(record.headers)


def trace_of(header: bytes | None) -> int:
    """Return the trace id of a `traceparent` header."""
    assert header is not None
    return int(header.decode().split("-")[1], 16)


def span_of(header: bytes | None) -> int:
    """Return the span id of a `traceparent` header."""
    assert header is not None
    return int(header.decode().split("-")[2], 16)


def dedent_tree(text: str) -> str:
    """Return an expected tree as `Traces.tree` writes it."""
    rows: Sequence[str] = [row for row in text.splitlines() if row.strip()]
    margin = min(len(row) - len(row.lstrip()) for row in rows)
    return "\n".join(row[margin:].rstrip() for row in rows)
