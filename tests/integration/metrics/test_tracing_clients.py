"""Spans of producers and consumers, the headers between them, and metrics, on a real broker."""

import asyncio
from typing import Any

import pytest
from opentelemetry import baggage, propagate
from opentelemetry.context import attach, detach
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from tests.support.traces import (
    Traces,
    attributes_of,
    context_of,
    headers_of,
    linked_traces,
    span_of,
    trace_of,
    traced,
)

from tallystick import Consumer, Producer, TopicPartition, aio
from tallystick.client.errors import ClientError, TooLarge
from tallystick.otel import TallystickInstrumentor, process
from tallystick.otel.metrics import list_producer_names
from tallystick.testing import EmbeddedBroker

pytestmark = pytest.mark.server

FOREIGN = b"00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"


def settings(broker: EmbeddedBroker, **others: object) -> dict[str, object]:
    return {"bootstrap.servers": broker.bootstrap_servers, "client.id": "shop"} | {
        name.replace("_", "."): value for name, value in others.items()
    }


def read(broker: EmbeddedBroker, topic: str, count: int) -> list[Any]:
    records: list[Any] = []
    with Consumer(settings(broker, auto_offset_reset="earliest")) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        while len(records) < count:
            records += consumer.poll(30.0)
    return records


def test_a_send_is_a_producer_span_and_its_context_that_of_the_record(
    broker: EmbeddedBroker, topic: str, traces: Traces
) -> None:
    with Producer(settings(broker)) as producer:
        delivery = producer.send(topic, b"one")
        delivery.result(30)
    sent = traces.one(f"send {topic}")
    assert sent.kind is SpanKind.PRODUCER
    assert attributes_of(sent) == {
        "messaging.system": "kafka",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": topic,
        "messaging.client.id": "shop",
        "messaging.destination.partition.id": "0",
        "messaging.kafka.offset": 0,
    }
    (record,) = read(broker, topic, 1)
    assert trace_of(headers_of(record)["traceparent"]) == context_of(sent).trace_id
    assert span_of(headers_of(record)["traceparent"]) == context_of(sent).span_id


def test_headers_of_the_user_stay_and_baggage_travels(
    broker: EmbeddedBroker, topic: str, traces: Traces
) -> None:
    token = attach(baggage.set_baggage("tenant", "north"))
    try:
        with Producer(settings(broker)) as producer:
            producer.send(topic, b"one", headers=[("kind", b"order")])
    finally:
        detach(token)
    (record,) = read(broker, topic, 1)
    assert [name for name, _ in record.headers] == ["kind", "traceparent", "baggage"]
    assert headers_of(record)["baggage"] == b"tenant=north"


def test_a_trace_context_of_the_user_is_not_changed(
    broker: EmbeddedBroker, topic: str, traces: Traces
) -> None:
    """[OTEL-2] and the span of the send links to it."""
    with Producer(settings(broker)) as producer:
        producer.send(topic, b"one", headers=[("traceparent", FOREIGN)])
    (record,) = read(broker, topic, 1)
    assert record.headers == (("traceparent", FOREIGN),)
    sent = traces.one(f"send {topic}")
    assert sent.kind is SpanKind.CLIENT
    assert linked_traces(sent) == {trace_of(FOREIGN)}


def test_the_configured_propagator_is_used(broker: EmbeddedBroker, topic: str, traces: Traces) -> None:
    class Shouting(TraceContextTextMapPropagator):
        def inject(self, carrier: Any, context: Any = None, setter: Any = None) -> None:
            setter.set(carrier, "x-trace", "loud")

        @property
        def fields(self) -> set[str]:
            return {"x-trace"}

    before = propagate.get_global_textmap()
    propagate.set_global_textmap(Shouting())
    try:
        with Producer(settings(broker)) as producer:
            producer.send(topic, b"one")
    finally:
        propagate.set_global_textmap(before)
    (record,) = read(broker, topic, 1)
    assert record.headers == (("x-trace", b"loud"),)


class BrokenPropagator(TraceContextTextMapPropagator):
    def inject(self, carrier: Any, context: Any = None, setter: Any = None) -> None:
        raise RuntimeError("no inject")

    def extract(self, carrier: Any, context: Any = None, getter: Any = None) -> Any:
        raise RuntimeError("no extract")


def test_a_broken_propagator_loses_no_record(broker: EmbeddedBroker, topic: str, traces: Traces) -> None:
    """[OTEL-1] What a poll has taken from the log would be lost to its caller if a report of it raised."""
    before = propagate.get_global_textmap()
    propagate.set_global_textmap(BrokenPropagator())
    try:
        with Producer(settings(broker)) as producer:
            producer.send(topic, b"one", headers=[("traceparent", FOREIGN)])
            producer.send(topic, b"two")
        records = read(broker, topic, 2)
        with process(records[0]):
            pass
    finally:
        propagate.set_global_textmap(before)
    assert [record.value for record in records] == [b"one", b"two"]
    assert len(traces.named(f"send {topic}")) == 2


def test_many_records_are_one_span_whose_context_all_of_them_have(
    broker: EmbeddedBroker, topic: str, traces: Traces
) -> None:
    with Producer(settings(broker)) as producer:
        producer.send_batch(topic, [b"one", b"two", b"three"]).result(30)
    sent = traces.one(f"send {topic}")
    assert attributes_of(sent)["messaging.batch.message_count"] == 3
    records = read(broker, topic, 3)
    assert {span_of(headers_of(record)["traceparent"]) for record in records} == {context_of(sent).span_id}
    received = traces.named(f"poll {topic}")[0]
    assert received.kind is SpanKind.CLIENT
    assert linked_traces(received) == {context_of(sent).trace_id}
    assert len(received.links) == 1, "each context is linked once"


def test_arrow_rows_are_one_span_and_have_no_header(
    broker: EmbeddedBroker, topic: str, traces: Traces
) -> None:
    pa = pytest.importorskip("pyarrow")
    with Producer(settings(broker)) as producer:
        producer.send_arrow(pa.record_batch({"value": pa.array([b"one", b"two"])}), topic)
        producer.send_batch(topic, pa.array([b"three"])).result(30)
    sends = traces.named(f"send {topic}")
    assert [attributes_of(span)["messaging.batch.message_count"] for span in sends] == [2, 1]
    assert [record.headers for record in read(broker, topic, 3)] == [(), (), ()]
    assert {span.kind for span in sends} == {SpanKind.CLIENT}


def test_a_refused_record_is_a_failed_span(broker: EmbeddedBroker, topic: str, traces: Traces) -> None:
    with Producer(settings(broker, max_request_size=1000)) as producer, pytest.raises(TooLarge):
        producer.send(topic, bytes(2000))
    sent = traces.one(f"send {topic}")
    assert sent.status.status_code is StatusCode.ERROR
    assert attributes_of(sent)["error.type"] == "TooLarge"


def test_a_record_that_is_never_delivered_is_a_failed_span(
    broker: EmbeddedBroker, topic: str, traces: Traces
) -> None:
    config = settings(broker, transactional_id=topic, linger_ms=600_000)
    with Producer(config) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        delivery = producer.send(topic, b"one")
        producer.abort_transaction()
        assert isinstance(delivery.exception(30), ClientError)
    sent = traces.one(f"send {topic}")
    assert sent.status.status_code is StatusCode.ERROR
    assert "messaging.kafka.offset" not in attributes_of(sent)


def test_the_calls_of_a_transaction_are_spans_below_the_callers(
    broker: EmbeddedBroker, topic: str, traces: Traces
) -> None:
    """They run on the engine thread, which gets the caller's context with the call."""
    with Producer(settings(broker, transactional_id=topic)) as producer:
        with traces.tracer.start_as_current_span("start"):
            producer.init_transactions()
        with traces.tracer.start_as_current_span("work"):
            producer.begin_transaction()
            producer.send(topic, b"one")
            producer.commit_transaction()
            producer.begin_transaction()
            producer.abort_transaction()
    assert traces.tree("tallystick.transaction.id").replace(topic, "T") == "\n".join(
        [
            "start",
            "  init_transactions T",
            "work",
            "  begin_transaction T",
            "  send T",
            "  commit_transaction T",
            "  begin_transaction T",
            "  abort_transaction T",
        ]
    )
    assert {span.kind for span in traces.spans if span.name.endswith("_transaction")} == {SpanKind.CLIENT}


def test_asyncio_clients_have_the_same_spans(broker: EmbeddedBroker, topic: str, traces: Traces) -> None:
    async def story() -> None:
        async with aio.Producer(settings(broker, transactional_id=topic)) as producer:
            await producer.init_transactions()
            with traces.tracer.start_as_current_span("work"):
                await producer.begin_transaction()
                await producer.send(topic, b"one")
                await producer.commit_transaction()
        group = settings(broker, group_id=topic, auto_offset_reset="earliest", enable_auto_commit="false")
        async with aio.Consumer(group) as consumer:
            consumer.assign([TopicPartition(topic, 0)])
            while not (records := await consumer.poll(30.0)):
                pass
            with process(records[0]):
                await consumer.commit()

    asyncio.run(story())
    assert traces.tree().replace(topic, "T") == "\n".join(
        [
            "init_transactions",
            "work",
            "  begin_transaction",
            "  send T",
            "    process T",
            "      commit",
            "  commit_transaction",
            "poll T",
        ]
    )
    assert attributes_of(traces.one("commit"))["messaging.operation.type"] == "settle"
    assert attributes_of(traces.one("commit"))["messaging.consumer.group.name"] == topic


def test_an_idle_consumer_has_no_spans(broker: EmbeddedBroker, topic: str, traces: Traces) -> None:
    with Consumer(settings(broker)) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        assert consumer.poll(0.01) == []
        consumer.wakeup()
        with pytest.raises(ClientError):
            consumer.poll(30.0)
    assert traces.spans == []


def test_a_poll_that_fails_is_a_span(broker: EmbeddedBroker, topic: str, traces: Traces) -> None:
    with Consumer(settings(broker, auto_offset_reset="none")) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        with pytest.raises(ClientError):
            consumer.poll(30.0)
    assert traces.one("poll").status.status_code is StatusCode.ERROR


def test_processing_inside_another_span_stays_in_its_trace(
    broker: EmbeddedBroker, topic: str, traces: Traces
) -> None:
    with Producer(settings(broker)) as producer:
        producer.send(topic, b"one")
    (record,) = read(broker, topic, 1)
    with traces.tracer.start_as_current_span("job"), process(record) as span:
        span.set_attribute("order", 7)
    processed, job = traces.one(f"process {topic}"), traces.one("job")
    assert processed.parent is not None
    assert processed.parent.span_id == context_of(job).span_id
    assert linked_traces(processed) == {context_of(traces.one(f"send {topic}")).trace_id}
    assert attributes_of(processed)["order"] == 7
    assert processed.kind is SpanKind.CONSUMER


def test_an_unsampled_trace_still_travels(broker: EmbeddedBroker, topic: str) -> None:
    provider = TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False)
    TallystickInstrumentor().instrument(tracer_provider=provider)
    try:
        with Producer(settings(broker)) as producer:
            producer.send(topic, b"one")
    finally:
        TallystickInstrumentor().uninstrument()
    (record,) = read(broker, topic, 1)
    flags = headers_of(record)["traceparent"].split(b"-")[-1]
    assert int(flags, 16) & 1 == 0


def test_switched_off_nothing_is_added_or_reported(broker: EmbeddedBroker, topic: str) -> None:
    with traced() as traces, Producer(settings(broker)) as producer:
        producer.send(topic, b"traced").result(30)
        TallystickInstrumentor().uninstrument()
        assert not TallystickInstrumentor().is_instrumented_by_opentelemetry
        producer.send(topic, b"not traced").result(30)
    first, second = read(broker, topic, 2)
    assert headers_of(first).keys() == {"traceparent"}
    assert second.headers == ()
    assert len(traces.spans) == 1


def test_switching_on_twice_warns(caplog: pytest.LogCaptureFixture) -> None:
    with traced():
        TallystickInstrumentor().instrument(skip_dep_check=True)
    assert "instrumented already" in caplog.text


def read_metrics(reader: InMemoryMetricReader) -> dict[str, list[tuple[dict[str, Any], Any]]]:
    data = reader.get_metrics_data()
    if data is None:
        return {}
    return {
        metric.name: [(dict(point.attributes or {}), point) for point in metric.data.data_points]
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


def pick(found: dict[str, list[tuple[dict[str, Any], Any]]], name: str, client_id: str) -> list[float]:
    return [point.value for each, point in found[name] if each["messaging.client.id"] == client_id]


def test_metrics_of_clients_are_observed_by_kafkas_names(broker: EmbeddedBroker, topic: str) -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    with Producer(settings(broker, client_id=f"{topic}-out", transactional_id=topic)) as producer:
        TallystickInstrumentor().instrument(meter_provider=provider)
        try:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send(topic, b"one")
            producer.send(topic, b"two")
            producer.commit_transaction()
            with Consumer(
                settings(broker, client_id=f"{topic}-in", auto_offset_reset="earliest")
            ) as consumer:
                consumer.assign([TopicPartition(topic, 0)])
                while not consumer.poll(30.0, 1):
                    pass
                found = read_metrics(reader)
                own = producer.metrics()
                assert set(own) == set(list_producer_names())
                assert {name.partition(".")[0] for name in consumer.metrics()} - {"records-lag"} <= {
                    name.removeprefix("kafka.consumer.").replace("_", "-") for name in found
                }
                assert pick(found, "kafka.producer.record_send_total", f"{topic}-out") == [2]
                commit_ns = pick(found, "kafka.producer.txn_commit_time_ns_total", f"{topic}-out")
                assert commit_ns == [own["txn-commit-time-ns-total"]]
                lags = pick(found, "kafka.consumer.records_lag", f"{topic}-in")
                assert lags == [consumer.metrics()[f"records-lag.{topic}-0"]]
        finally:
            TallystickInstrumentor().uninstrument()
    assert read_metrics(reader) == {}, "an instrument that was switched off observes nothing"
    provider.shutdown()
