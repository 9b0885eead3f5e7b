"""Spans that cannot fail: what a tracer or its processors raise is logged; what is traced goes on [OTEL-1].

An exception from a span's end would otherwise arrive between the database's COMMIT and its answer, and make a
committed write one in doubt.
"""

import logging
from collections.abc import Callable, Iterable
from contextvars import Token
from typing import Final, Self

from opentelemetry import context as contexts
from opentelemetry.context import Context
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    Tracer,
    get_current_span,
    set_span_in_context,
)

from tallystick.otel.conventions import ERROR_TYPE, OUTCOME, Attributes, TraceOutcome

_log = logging.getLogger("tallystick.otel")

# Set by the SDK while it exports, so that an exporter which uses a client does not report its own sends; and
# by `suppress_instrumentation` of opentelemetry-instrumentation.
_SUPPRESSION_KEYS: Final = (
    "suppress_instrumentation",
    getattr(contexts, "_SUPPRESS_INSTRUMENTATION_KEY", "suppress_instrumentation"),
)


class SpanStarter:
    """Starts and ends spans of one tracer."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self.is_failure_logged = False

    def start(
        self,
        name: str,
        kind: SpanKind,
        attributes: Attributes,
        *,
        links: Iterable[SpanContext] = (),
        parent: Context | None = None,
        start_ns: int | None = None,
    ) -> Span:
        """Start a span. Its parent is the current span unless `parent` has another one, or none."""
        if any(contexts.get_value(key) for key in _SUPPRESSION_KEYS):
            return _continue_current()
        try:
            return self._tracer.start_span(
                name,
                context=parent,
                kind=kind,
                attributes=attributes,
                links=[Link(each) for each in links],
                start_time=start_ns,
            )
        except Exception:
            self._log_failure()
            return _continue_current()

    def end(self, span: Span, exc: BaseException | None = None) -> None:
        """End a span, with the error that its operation ended with."""
        self.guard(_end_span, span, exc)

    def guard(self, report: Callable[..., object], *args: object) -> None:
        """Call what reports something; log what it raises, the first time."""
        try:
            report(*args)
        except Exception:
            self._log_failure()

    def _log_failure(self) -> None:
        if not self.is_failure_logged:
            self.is_failure_logged = True
            _log.warning("a trace could not be reported; later failures are not logged", exc_info=True)


def _continue_current() -> Span:
    """Return a span that reports nothing, and below which the trace goes on."""
    return NonRecordingSpan(get_current_span().get_span_context())


def _end_span(span: Span, exc: BaseException | None) -> None:
    if exc is not None and span.is_recording():
        span.record_exception(exc)
        span.set_attribute(ERROR_TYPE, type(exc).__qualname__)
        span.set_status(Status(StatusCode.ERROR, f"{type(exc).__name__}: {exc}"))
    span.end()


class AttachedContext:
    """A context that is the current one in a block, as far as the block ends where it has begun.

    A framework may end a block in another thread, or in another copy of the context variables, than it has
    begun it in: there is nothing to restore there.
    """

    __slots__ = ("_context", "_token")

    def __init__(self, context: Context) -> None:
        self._context = context
        self._token: Token[Context] | None = None

    def __enter__(self) -> Self:
        self._token = contexts.attach(self._context)
        return self

    def attach_again(self) -> None:
        """Make it the current one here as well, if the block goes on in another place."""
        if contexts.get_current() is not self._context:
            self._token = contexts.attach(self._context)

    def __exit__(self, *exc_info: object) -> None:
        if self._token is not None and contexts.get_current() is self._context:
            contexts.detach(self._token)


class SpanScope:
    """A span from the beginning of a block to its end, and the current span in it."""

    __slots__ = ("_scope", "_spans", "span")

    def __init__(self, spans: SpanStarter, span: Span) -> None:
        self._spans, self.span = spans, span
        self._scope = AttachedContext(set_span_in_context(span))

    def __enter__(self) -> Self:
        self._scope.__enter__()
        return self

    def __exit__(self, kind: object, exc: BaseException | None, trace: object) -> None:
        self._scope.__exit__()
        self.finish(exc)

    def finish(self, exc: BaseException | None) -> None:
        """End the span."""
        self._spans.end(self.span, exc)


class UnattachedScope:
    """A span of a block that begins no spans of its own, and so need not be the current one."""

    __slots__ = ("_spans", "span")

    def __init__(self, spans: SpanStarter, span: Span) -> None:
        self._spans, self.span = spans, span

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, exc: BaseException | None, trace: object) -> None:
        self._spans.end(self.span, exc)


def set_outcome(span: Span, outcome: TraceOutcome) -> None:
    """Set the attribute that tells how a transaction has ended."""
    span.set_attribute(OUTCOME, outcome.value)
