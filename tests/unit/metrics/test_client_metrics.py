"""`ClientMetrics`: what it exports of clients and of dual writes, under which names."""

import gc
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tallystick.dualwrite.block.life import BlockOutcome, WriterLife, WriterState, count_writer
from tallystick.dualwrite.block.steps import AsyncStepRunner, StepRunner
from tallystick.dualwrite.errors import Outcome
from tallystick.metrics import ClientMetrics
from tallystick.metrics.dual_writes import OTHER_STEP, STEPS, WriteEvent


class FakeClient:
    """A client that shows what a test chooses, after a number of failures."""

    def __init__(self, metrics: Mapping[str, float], *failures: Exception) -> None:
        self._metrics, self._failures = metrics, list(failures)

    def metrics(self) -> dict[str, float]:
        if self._failures:
            raise self._failures.pop(0)
        return dict(self._metrics)


def scrape(metrics: ClientMetrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    registry = CollectorRegistry()
    registry.register(metrics)
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
    }


def test_clients_are_exported_under_kafkas_names() -> None:
    metrics = ClientMetrics()
    producer = FakeClient({"record-send-total": 3, "produce-latency-avg": 1.5})
    consumer = FakeClient({"request-total": 4, "records-lag.a-b-7": 12})
    admin = FakeClient({"request-total": 5})
    metrics.add_producer(producer, "orders")
    metrics.add_consumer(consumer, "billing")
    metrics.add_admin(admin, "tools")
    shown = scrape(metrics)
    orders, billing = (("client_id", "orders"),), (("client_id", "billing"),)
    assert shown["kafka_producer_producer_metrics_record_send_total", orders] == 3
    assert shown["kafka_producer_producer_metrics_produce_latency_avg", orders] == 1.5
    assert shown["kafka_consumer_consumer_metrics_request_total", billing] == 4
    at = (*billing, ("partition", "7"), ("topic", "a-b"))
    assert shown["kafka_consumer_consumer_fetch_manager_metrics_records_lag", at] == 12
    assert shown["kafka_admin_client_admin_client_metrics_request_total", (("client_id", "tools"),)] == 5


def test_a_client_that_changes_while_it_is_read_is_read_again() -> None:
    metrics = ClientMetrics()
    client = FakeClient({"request-total": 1}, RuntimeError("dictionary changed size during iteration"))
    metrics.add_producer(client, "p")
    assert ("kafka_producer_producer_metrics_request_total", (("client_id", "p"),)) in scrape(metrics)


def test_a_client_that_cannot_be_read_hides_no_other() -> None:
    metrics = ClientMetrics()
    broken, sound = FakeClient({"a-total": 1}, *[ValueError("closed")] * 9), FakeClient({"a-total": 2})
    metrics.add_producer(broken, "broken")
    metrics.add_producer(sound, "sound")
    name = "kafka_producer_producer_metrics_a_total"
    assert [key for key in scrape(metrics) if key[0] == name] == [(name, (("client_id", "sound"),))]


def test_a_deleted_client_is_forgotten() -> None:
    metrics = ClientMetrics()
    client = FakeClient({"a-total": 1})
    metrics.add_producer(client, "p")
    del client
    gc.collect()
    assert not any(name.startswith("kafka_") for name, _ in scrape(metrics))


def test_steps_are_timed_when_they_succeed_and_unknown_ones_are_summed_up() -> None:
    metrics = ClientMetrics()
    run = StepRunner(metrics.watch_writes("shop")).run
    run("prepare", "", divmod, 7, 2)
    with pytest.raises(ZeroDivisionError):
        run("prepare", "", divmod, 7, 0)
    run("a step of tomorrow", "", divmod, 7, 2)
    shown = scrape(metrics)

    def count(step: str) -> float:
        labels = (("step", step), ("writer", "shop"))
        return shown["tallystick_dual_write_step_seconds_count", labels]

    assert {step: count(step) for step in (*STEPS, OTHER_STEP)} == {
        **dict.fromkeys(STEPS, 0),
        "prepare": 1,
        OTHER_STEP: 1,
    }


def test_events_are_counted_by_the_name_of_the_writer() -> None:
    metrics = ClientMetrics()
    steps = AsyncStepRunner(metrics.watch_writes("shop"))
    for event in WriteEvent:
        steps.emit(event)
    shown = scrape(metrics)
    shop = ("writer", "shop")
    counted = {key for key, value in shown.items() if value == 1 and key[0].endswith("_total")}
    assert counted == {
        *(
            ("tallystick_dual_writes_total", (("outcome", each), shop))
            for each in ("committed", "rolled_back", "in_doubt")
        ),
        *(
            ("tallystick_dual_write_recoveries_total", (("result", each), shop))
            for each in ("recovered", "failed")
        ),
        ("tallystick_dual_write_retries_total", (shop,)),
        *(
            ("tallystick_dual_write_leases_total", (("event", each), shop))
            for each in ("taken", "lost", "expired")
        ),
    }


def test_without_an_observer_nothing_is_noted_or_loaded() -> None:
    steps = StepRunner()
    steps.emit(WriteEvent.COMMITTED)
    steps.attach(FakeClient({"writers": 1}))
    assert steps.run("prepare", "", divmod, 7, 2) == (3, 1)


def test_what_writers_show_is_added_up_and_vanishes_with_them() -> None:
    metrics = ClientMetrics()
    steps = StepRunner(metrics.watch_writes("shop"))
    sources = [FakeClient({"writers": 1, "writers-in-doubt": number}) for number in (0, 1)]
    for each in sources:
        steps.attach(each)
    shop = (("writer", "shop"),)
    shown = scrape(metrics)
    assert shown["tallystick_dual_write_writers", shop] == 2
    assert shown["tallystick_dual_write_writers_in_doubt", shop] == 1
    sources.pop()
    del each
    gc.collect()
    assert scrape(metrics)["tallystick_dual_write_writers", shop] == 1


@pytest.mark.parametrize(
    ("state", "outcome", "values"),
    [
        (WriterState.READY, Outcome.COMMITTED, (1, 0, 0)),
        (WriterState.IN_TRANSACTION, Outcome.UNKNOWN, (1, 0, 0)),
        (WriterState.UNSETTLED, Outcome.NOT_COMMITTED, (1, 0, 1)),
        (WriterState.UNSETTLED, Outcome.UNKNOWN, (1, 1, 1)),
        (WriterState.CLOSED, Outcome.UNKNOWN, (0, 0, 0)),
    ],
)
def test_a_writer_is_in_doubt_only_until_its_recovery(
    state: WriterState, outcome: Outcome, values: tuple[int, int, int]
) -> None:
    life, block = WriterLife("pay-1"), BlockOutcome()
    life.state, block.value = state, outcome
    assert tuple(count_writer(life, block).values()) == values


def test_names_of_many_threads_have_one_meter_each() -> None:
    metrics, barrier = ClientMetrics(), threading.Barrier(8)

    def watch(_: int) -> object:
        barrier.wait()
        return metrics.watch_writes("shop")

    with ThreadPoolExecutor(8) as pool:
        assert len(set(map(id, pool.map(watch, range(8))))) == 1
