"""Spans of producers and consumers.

Source: semantic conventions v1.44.0, messaging-spans.md, "Trace structure": the context of a "Send" span is
    that of its records, unless they have one; a "Receive" span links to the contexts of its records.
"""

from asyncio import CancelledError
from collections.abc import Coroutine, Iterable, Sequence
from itertools import count as count_from
from time import time_ns
from typing import Any, TypeVar

from opentelemetry.trace import Span, SpanContext, SpanKind, set_span_in_context

from tallystick.client.consumer.decode import ConsumerRecord
from tallystick.client.errors import WokenUp
from tallystick.client.producer.batches.delivery import BatchDelivery, Delivery
from tallystick.client.tracing import HeaderPairs, S
from tallystick.otel.conventions import (
    CALL_NAMES,
    GROUP,
    OFFSET,
    PARTITION,
    TRANSACTION_ID,
    Attributes,
    build_messaging_attributes,
    name_span,
)
from tallystick.otel.propagation import Headers, add_context, has_context, list_links, read_span_context
from tallystick.otel.spans import SpanStarter, UnattachedScope

R = TypeVar("R")

_NO_ERRORS = (CancelledError, WokenUp)


class ClientSpans:
    """The tracer of clients, `client.tracing.ClientTracer`."""

    def __init__(self, spans: SpanStarter) -> None:
        self._spans = spans

    def trace_send(
        self, client_id: str, topic: str | None, headers: HeaderPairs | None, count: int | None
    ) -> "SendSpan":
        """Start the span of a call that sends, and name it in the records' headers."""
        own_headers = () if headers is None else tuple(headers)
        is_own = headers is not None and not has_context(own_headers)
        links: Iterable[SpanContext] = ()
        if not is_own and (creation := read_span_context(own_headers)) is not None:
            links = (creation,)
        attributes = build_messaging_attributes("send", "send", topic, client_id=client_id, count=count)
        # messaging-spans.md, "Span kind": PRODUCER if its context is used as creation context, else CLIENT.
        kind = SpanKind.PRODUCER if is_own else SpanKind.CLIENT
        span = self._spans.start(name_span("send", topic), kind, attributes, links=links)
        return SendSpan(
            self._spans, span, add_context(own_headers, set_span_in_context(span)) if is_own else own_headers
        )

    def trace_call(self, call: str, transactional_id: str) -> UnattachedScope:
        """Start the span of a call on a transaction."""
        name = CALL_NAMES[call]
        attributes = build_messaging_attributes(name, "settle" if call == "send-offsets" else "")
        attributes[TRANSACTION_ID] = transactional_id
        return UnattachedScope(self._spans, self._spans.start(name, SpanKind.CLIENT, attributes))

    async def trace_poll(self, client_id: str, group: str | None, poll: Coroutine[Any, Any, R]) -> R:
        """Await a poll. One that returns nothing has no span: an idle consumer would report little else."""
        began_ns = time_ns()
        try:
            records = await poll
        except BaseException as exc:
            if not isinstance(exc, _NO_ERRORS):
                attributes = _build_consumer_attributes("poll", "receive", client_id, group, ())
                span = self._spans.start("poll", SpanKind.CLIENT, attributes, start_ns=began_ns)
                self._spans.end(span, exc)
            raise
        if records:
            self._spans.guard(self._report_received, client_id, group, records, began_ns)
        return records

    async def trace_commit(self, client_id: str, group: str | None, commit: Coroutine[Any, Any, R]) -> R:
        """Await a commit of offsets."""
        attributes = _build_consumer_attributes("commit", "settle", client_id, group, ())
        with UnattachedScope(self._spans, self._spans.start("commit", SpanKind.CLIENT, attributes)):
            return await commit

    def _report_received(
        self, client_id: str, group: str | None, records: Sequence[ConsumerRecord], began_ns: int
    ) -> None:
        attributes = _build_consumer_attributes("poll", "receive", client_id, group, records)
        topic = attributes.get("messaging.destination.name")
        name = name_span("poll", None if topic is None else str(topic))
        links = list_links(records)
        self._spans.end(self._spans.start(name, SpanKind.CLIENT, attributes, links=links, start_ns=began_ns))


class SendSpan:
    """A call that sends: its span ends with the delivery of its records."""

    __slots__ = ("_error", "_is_followed", "_numbers", "_part_count", "_span", "_spans", "headers")

    def __init__(self, spans: SpanStarter, span: Span, headers: Headers) -> None:
        self._spans, self._span, self.headers = spans, span, headers
        self._is_followed = False
        self._part_count = 0
        self._numbers = count_from(1)
        self._error: BaseException | None = None

    def __enter__(self) -> "SendSpan":
        return self

    def __exit__(self, *exc_info: object) -> None:
        if not self._is_followed:
            exc = exc_info[1]
            self._spans.end(self._span, exc if isinstance(exc, BaseException) else None)

    def follow(self, delivery: S) -> S:
        """End when the records have their outcomes: in the engine's thread, or here if they have them."""
        self._spans.guard(self._follow, delivery)
        return delivery

    def _follow(self, delivery: Delivery | BatchDelivery | list[BatchDelivery]) -> None:
        if not self._span.is_recording():
            return
        if isinstance(delivery, Delivery):
            self._is_followed = True
            delivery.add_done_callback(self._end_with)
            return
        batches = delivery if isinstance(delivery, list) else [delivery]
        parts = [part for batch in batches for part in batch.parts]
        self._part_count, self._is_followed = len(parts), bool(parts)
        for part in parts:
            part.add_done_callback(self._count_part)

    def _end_with(self, delivery: Delivery) -> None:
        self._spans.guard(self._report_delivery, delivery)

    def _report_delivery(self, delivery: Delivery) -> None:
        exc = delivery.exception(0)
        if exc is None:
            record = delivery.result(0)
            self._span.set_attribute(PARTITION, str(record.partition))
            if record.offset is not None:
                self._span.set_attribute(OFFSET, record.offset)
        self._spans.end(self._span, exc)

    def _count_part(self, part: Delivery) -> None:
        self._error = self._error or part.exception(0)
        # One number for each part, also if two of them are done in two threads at the same time.
        if next(self._numbers) == self._part_count:
            self._spans.end(self._span, self._error)


def _build_consumer_attributes(
    name: str, kind: str, client_id: str, group: str | None, records: Sequence[ConsumerRecord]
) -> Attributes:
    """Return attributes with what is the same for all records."""
    topics = {record.topic for record in records}
    topic = topics.pop() if len(topics) == 1 else None
    count = len(records) if records else None
    attributes = build_messaging_attributes(name, kind, topic, client_id=client_id, count=count)
    if group is not None:
        attributes[GROUP] = group
    partitions = {record.partition for record in records} if topic is not None else set()
    if len(partitions) == 1:
        attributes[PARTITION] = str(partitions.pop())
    return attributes
