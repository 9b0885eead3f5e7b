"""Names, outcomes and contexts of spans, without a broker."""

from itertools import product

import pytest
from opentelemetry.context import (
    _SUPPRESS_INSTRUMENTATION_KEY,
    Context,
    attach,
    detach,
    get_current,
    set_value,
)
from opentelemetry.trace import (
    INVALID_SPAN_CONTEXT,
    NonRecordingSpan,
    NoOpTracer,
    SpanKind,
    get_current_span,
)
from sqlalchemy import create_engine

from tallystick.client.consumer.decode import ConsumerRecord
from tallystick.client.producer.requests.metrics import ProducerMetrics
from tallystick.dualwrite import AsyncDeltaStore, DeltaStore, RocksStore, SqlStore
from tallystick.dualwrite.blocking.leases import LeasedStore
from tallystick.dualwrite.errors import HeuristicMixed, Outcome
from tallystick.dualwrite.tracing import get_database_system
from tallystick.kernel.errors import InDoubt
from tallystick.otel.conventions import LINKS_MAX, TraceOutcome, assess_block, name_span
from tallystick.otel.metrics import list_producer_names
from tallystick.otel.propagation import has_context, list_links, read_context, read_span_context
from tallystick.otel.spans import AttachedContext, SpanScope, SpanStarter
from tallystick.protocol.records import TimestampType

PARENT = b"00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"


def record(headers: tuple[tuple[str, bytes | None], ...]) -> ConsumerRecord:
    return ConsumerRecord("t", 0, 0, 0, TimestampType.CREATE_TIME, None, b"", headers, None)


def test_a_block_that_has_not_begun_is_aborted_whatever_the_last_one_was() -> None:
    errors = [None, ValueError("no"), InDoubt("lost")]
    judged = {assess_block(exc, value, has_begun=False) for exc, value in product(errors, Outcome)}
    assert judged == {TraceOutcome.ABORTED}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Outcome.COMMITTED, TraceOutcome.COMMITTED),
        (Outcome.NOT_COMMITTED, TraceOutcome.ABORTED),
        (Outcome.UNKNOWN, TraceOutcome.IN_DOUBT),
    ],
)
def test_a_block_that_has_begun_has_the_outcome_of_its_writer(value: Outcome, expected: TraceOutcome) -> None:
    assert assess_block(None, value, has_begun=True) is expected
    assert assess_block(ValueError("no"), value, has_begun=True) is expected
    assert assess_block(HeuristicMixed("differ"), value, has_begun=True) is TraceOutcome.TORN


def test_a_span_is_named_by_its_operation_and_destination() -> None:
    assert name_span("send", "orders") == "send orders"
    assert name_span("poll", None) == "poll"


@pytest.mark.parametrize(
    "value",
    [
        b"",
        None,
        b"\xff\xfe",
        b"00-zz",
        b"00-" + b"0" * 32 + b"-0123456789abcdef-01",
        b"x" * 100_000,
    ],
)
def test_a_hostile_context_is_no_context(value: bytes | None) -> None:
    assert read_span_context((("traceparent", value),)) is None


def test_other_headers_are_no_context() -> None:
    assert not has_context(())
    assert not has_context((("kind", b"order"),))
    assert has_context((("kind", b"order"), ("tracestate", b"a=b")))


def test_links_are_distinct_and_bounded() -> None:
    def parent(number: int) -> tuple[tuple[str, bytes], ...]:
        return (("traceparent", f"00-{number + 1:032x}-0123456789abcdef-01".encode()),)

    many = [record(parent(number)) for number in range(3 * LINKS_MAX)]
    assert len(list_links([record((("traceparent", PARENT),))] * 10)) == 1
    assert len(list_links(many)) == LINKS_MAX
    assert list_links([record(())]) == []


class BrokenTracer:
    def start_span(self, *args: object, **kwargs: object) -> object:
        raise RuntimeError("no spans today")


class BrokenSpan(NonRecordingSpan):
    def end(self, end_time: int | None = None) -> None:
        raise RuntimeError("no end")


def test_a_tracer_that_fails_leaves_a_span_that_does_nothing() -> None:
    """[OTEL-1]"""
    spans = SpanStarter(BrokenTracer())  # type: ignore[arg-type]
    parent = read_context((("traceparent", PARENT),))
    with AttachedContext(parent):
        span = spans.start("dual write", SpanKind.INTERNAL, {})
        assert not span.is_recording()
        assert span.get_span_context() == get_current_span().get_span_context(), "the trace goes on below it"


def test_nothing_is_reported_while_spans_are_exported() -> None:
    """An exporter that sends spans with a client would report its own sends, and theirs in turn."""
    spans = SpanStarter(BrokenTracer())  # type: ignore[arg-type]
    with AttachedContext(set_value(_SUPPRESS_INSTRUMENTATION_KEY, value=True)):
        assert not spans.start("send orders", SpanKind.PRODUCER, {}).is_recording()
    assert not spans.is_failure_logged


def test_a_span_that_cannot_end_is_logged_once_and_raises_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """[OTEL-1]"""
    spans = SpanStarter(NoOpTracer())
    for _ in range(3):
        with SpanScope(spans, BrokenSpan(INVALID_SPAN_CONTEXT)):
            pass
    assert len(caplog.records) == 1


def test_a_context_is_restored_only_where_it_is_the_current_one() -> None:
    """A framework may leave a block in another thread, or after it has changed the context itself."""
    outer = Context({"outer": 1})
    token = attach(outer)
    try:
        with AttachedContext(Context({"inner": 1})):
            pass
        assert get_current() is outer
        other = Context({"other": 1})
        with AttachedContext(Context({"inner": 1})):
            attach(other)
        assert get_current() is other, "not the block's own context: it is left alone"
    finally:
        detach(token)


def test_a_store_names_its_database() -> None:
    assert get_database_system(RocksStore) == "rocksdb"
    assert get_database_system(SqlStore(create_engine("sqlite://"))) == "sqlite"
    assert get_database_system(LeasedStore(SqlStore(create_engine("sqlite://")), "holder")) == "sqlite"
    assert get_database_system(DeltaStore("/nowhere")) == "delta"
    assert get_database_system(AsyncDeltaStore("/nowhere")) == "delta"
    assert get_database_system(object()) == "other_sql"


def test_every_counter_of_a_producer_is_observed() -> None:
    assert set(ProducerMetrics().as_metrics()) <= set(list_producer_names())
