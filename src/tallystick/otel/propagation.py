"""Trace contexts in the headers of records, by the propagator that the program has configured.

By default it is W3C Trace Context and Baggage: `traceparent`, `tracestate` and `baggage`.
"""

import functools
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, ParamSpec, TypeVar

from opentelemetry import propagate
from opentelemetry.context import Context
from opentelemetry.propagators.textmap import Getter, Setter, default_getter, default_setter
from opentelemetry.trace import SpanContext, get_current_span

from tallystick.client.consumer.decode import ConsumerRecord
from tallystick.otel.conventions import LINKS_MAX

A = ParamSpec("A")
R = TypeVar("R")

_log = logging.getLogger("tallystick.otel")

HeaderPairs = Iterable[tuple[str, bytes | None]]
Headers = tuple[tuple[str, bytes | None], ...]


class _HeaderSetter(Setter[list[tuple[str, bytes | None]]]):
    def set(self, carrier: list[tuple[str, bytes | None]], key: str, value: str) -> None:
        carrier.append((key, value.encode()))


class _HeaderGetter(Getter[Sequence[tuple[str, bytes | None]]]):
    def get(self, carrier: Sequence[tuple[str, bytes | None]], key: str) -> list[str] | None:
        values = [
            value.decode(errors="replace") for name, value in carrier if name == key and value is not None
        ]
        return values or None

    def keys(self, carrier: Sequence[tuple[str, bytes | None]]) -> list[str]:
        return [name for name, _ in carrier]


_SETTER, _GETTER = _HeaderSetter(), _HeaderGetter()

_failures: Final[set[str]] = set()


def _fall_back(answer: R) -> Callable[[Callable[A, R]], Callable[A, R]]:
    """Let a function return `answer` where the propagator raises, which may be the user's own [OTEL-1]."""

    def decorate(function: Callable[A, R]) -> Callable[A, R]:
        @functools.wraps(function)
        def call(*args: A.args, **kwargs: A.kwargs) -> R:
            try:
                return function(*args, **kwargs)
            except Exception:
                if function.__name__ not in _failures:
                    _failures.add(function.__name__)
                    _log.warning("the propagator failed; later failures are not logged", exc_info=True)
                return answer

        return call

    return decorate


@_fall_back(None)
def _inject(carrier: Any, context: Context | None, setter: Setter[Any]) -> None:
    propagate.inject(carrier, context, setter)


@_fall_back(Context())
def _extract(carrier: Any, getter: Getter[Any]) -> Context:
    return propagate.extract(carrier, Context(), getter)


@_fall_back(True)
def has_context(headers: Sequence[tuple[str, bytes | None]]) -> bool:
    """Return whether headers have a trace context of their own, which must stay as it is [OTEL-2].

    Source: messaging-spans.md, "If a user provides a custom creation context in a message, this context
        SHOULD NOT be modified".
    """
    if not headers:
        return False
    fields = propagate.get_global_textmap().fields
    return any(name in fields for name, _ in headers)


def add_context(headers: Headers, context: Context) -> Headers:
    """Return headers with those that name the context's span, and carry its baggage."""
    carrier: list[tuple[str, bytes | None]] = []
    _inject(carrier, context, _SETTER)
    return (*headers, *carrier)


def read_context(headers: Sequence[tuple[str, bytes | None]]) -> Context:
    """Return the context that headers name; one without a span if they name none."""
    return _extract(headers, _GETTER)


def read_span_context(headers: Sequence[tuple[str, bytes | None]]) -> SpanContext | None:
    """Return the span that headers name, if they name one."""
    if not has_context(headers):
        return None
    span_context = get_current_span(read_context(headers)).get_span_context()
    return span_context if span_context.is_valid else None


def list_links(records: Iterable[ConsumerRecord]) -> list[SpanContext]:
    """Return the spans that records were created in: each once, and at most as many as a span keeps."""
    links: dict[tuple[int, int], SpanContext] = {}
    for record in records:
        if len(links) == LINKS_MAX:
            break
        span_context = read_span_context(record.headers) if record.headers else None
        if span_context is not None:
            links.setdefault((span_context.trace_id, span_context.span_id), span_context)
    return list(links.values())


def write_carrier() -> Mapping[str, str]:
    """Return the current context as texts by name, for another process of the same program."""
    carrier: dict[str, str] = {}
    _inject(carrier, None, default_setter)
    return carrier


def read_carrier(carrier: Mapping[str, str]) -> Context:
    """Return the context that `write_carrier` has written."""
    return _extract(carrier, default_getter)
