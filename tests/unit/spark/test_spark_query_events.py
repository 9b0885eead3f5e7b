"""Spark's reports on streaming queries as events, and what `QueryMetrics` makes of them."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from tests.support.console_facts import make_prefix, pair

from tallystick.spark import QueryMetrics
from tallystick.spark.protocol.committable import Decision, Participant
from tallystick.spark.protocol.query_events import QueryEvent, QueryEventKind, parse_batch
from tallystick.spark.query_metrics import _DecisionReader
from tallystick.testing import FakeClock

# Of Spark 4.3.0, shortened: a batch, and the same batch in the run that follows one that was stopped before
# the batch was committed.
BATCH: dict[str, Any] = {
    "id": "01f95e9b-73c8-44a6-be69-98d2edcc73cb",
    "runId": "93276090-91f1-47e3-97ba-0ed948f75fa3",
    "name": "flights",
    "timestamp": "2026-11-26T01:23:28.745Z",
    "batchId": 1,
    "numInputRows": 40,
    "durationMs": {
        "addBatch": 769,
        "commitOffsets": 15,
        "getBatch": 39,
        "latestOffset": 19,
        "queryPlanning": 65,
        "triggerExecution": 959,
        "walCommit": 39,
    },
    "sources": [
        {
            "description": "tallystick",
            "endOffset": {"orders": {"0": 5, "1": 2}},
            "latestOffset": {"orders": {"0": 9, "1": 2}},
        }
    ],
}
REPLAY: dict[str, Any] = {
    **BATCH,
    "runId": "1b7d1863-3f5d-4e9e-bd1c-7d643a9a1f6b",
    "durationMs": {
        "addBatch": 536,
        "commitOffsets": 17,
        "getBatch": 12,
        "queryPlanning": 24,
        "triggerExecution": 593,
    },
}


def test_a_report_on_a_batch_is_an_event_with_numbers() -> None:
    event = parse_batch(BATCH)
    assert event is not None
    assert (event.query, event.batch, event.rows, event.lag) == ("flights", 1, 40, 4)
    assert not event.is_replay
    assert event.to_numbers() == {
        "rows": 40,
        "replay": 0,
        "lag": 4,
        "addBatch_ms": 769,
        "commitOffsets_ms": 15,
        "getBatch_ms": 39,
        "latestOffset_ms": 19,
        "queryPlanning_ms": 65,
        "triggerExecution_ms": 959,
        "walCommit_ms": 39,
    }


def test_a_batch_for_which_no_source_was_asked_is_a_replay() -> None:
    event = parse_batch(REPLAY)
    assert event is not None
    assert event.is_replay


def test_a_trigger_with_nothing_to_do_is_no_batch() -> None:
    assert parse_batch({**BATCH, "durationMs": {"latestOffset": 3, "triggerExecution": 3}}) is None


def test_a_query_without_a_name_goes_by_its_id() -> None:
    event = parse_batch({**BATCH, "name": None, "sources": []})
    assert event is not None
    assert (event.query, event.lag) == (BATCH["id"], None)


def test_only_batches_have_numbers() -> None:
    event = QueryEvent(kind=QueryEventKind.IDLE, query="q", query_id="i", run_id="r")
    assert event.to_numbers() == {}


def report(queries: QueryMetrics, progress: dict[str, Any]) -> None:
    queries.onQueryProgress(SimpleNamespace(progress=SimpleNamespace(json=json.dumps(progress))))  # type: ignore[arg-type]


def start(queries: QueryMetrics, run_id: str = BATCH["runId"], name: str | None = "flights") -> None:
    event = SimpleNamespace(id=BATCH["id"], runId=run_id, name=name, timestamp="now")
    queries.onQueryStarted(event)  # type: ignore[arg-type]


def end(queries: QueryMetrics, exception: str | None = None) -> None:
    event = SimpleNamespace(id=BATCH["id"], runId=BATCH["runId"], exception=exception)
    queries.onQueryTerminated(event)  # type: ignore[arg-type]


def scrape(queries: QueryMetrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    registry = CollectorRegistry()
    registry.register(queries)
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
    }


FLIGHTS = ("query", "flights")


def test_batches_rows_phases_and_replays_are_counted() -> None:
    queries = QueryMetrics()
    start(queries)
    for each in (BATCH, REPLAY, {**BATCH, "durationMs": {"triggerExecution": 3}}):
        report(queries, each)
    shown = scrape(queries)
    assert shown["tallystick_spark_query_batches_total", (FLIGHTS,)] == 2
    assert shown["tallystick_spark_query_rows_total", (FLIGHTS,)] == 80
    assert shown["tallystick_spark_query_replays_total", (FLIGHTS,)] == 1
    assert shown["tallystick_spark_query_phase_seconds_sum", (("phase", "addBatch"), FLIGHTS)] == (
        pytest.approx(1.305)
    )
    assert shown["tallystick_spark_query_batch", (FLIGHTS,)] == 1
    assert shown["tallystick_spark_query_lag_records", (FLIGHTS,)] == 4
    assert shown["tallystick_spark_query_active", (FLIGHTS,)] == 1


def test_how_queries_end_is_counted_and_told() -> None:
    events: list[QueryEvent] = []
    queries = QueryMetrics(events.append)
    start(queries)
    queries.onQueryIdle(SimpleNamespace(id=BATCH["id"], runId=BATCH["runId"], timestamp="now"))  # type: ignore[arg-type]
    end(queries, "boom")
    start(queries)
    report(queries, BATCH)
    end(queries)
    shown = scrape(queries)
    for result in ("failed", "stopped"):
        assert shown["tallystick_spark_query_terminations_total", (FLIGHTS, ("result", result))] == 1
    assert shown["tallystick_spark_query_active", (FLIGHTS,)] == 0
    assert [(each.kind.value, each.query) for each in events] == [
        (kind, "flights") for kind in ("started", "idle", "failed", "started", "batch", "stopped")
    ]
    assert events[2].error == "boom"


def test_series_begin_with_the_query_so_that_an_increase_is_seen() -> None:
    queries = QueryMetrics()
    start(queries)
    shown = scrape(queries)
    assert shown["tallystick_spark_query_replays_total", (FLIGHTS,)] == 0
    for result in ("failed", "stopped"):
        assert shown["tallystick_spark_query_terminations_total", (FLIGHTS, ("result", result))] == 0


def test_queries_without_end_have_a_bounded_number_of_series(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tallystick.spark.query_metrics.QUERIES_MAX", 2)
    queries = QueryMetrics()
    for number in range(5):
        start(queries, f"run {number}", f"q{number}")
        report(queries, {**BATCH, "runId": f"run {number}", "name": f"q{number}"})
    names = {"q0": 1, "q1": 1, "other": 3}
    shown = scrape(queries)
    counted = {
        labels[0][1]: value
        for (name, labels), value in shown.items()
        if name == "tallystick_spark_query_batches_total"
    }
    active = {labels[0][1] for name, labels in shown if name == "tallystick_spark_query_active"}
    assert counted == names
    assert active == set(names)


def test_a_run_that_overlaps_the_end_of_the_one_before_is_active() -> None:
    """Spark tells of the end of a run after the start of the next one has been told."""
    queries = QueryMetrics()
    start(queries)
    start(queries, REPLAY["runId"])
    end(queries)
    assert scrape(queries)["tallystick_spark_query_active", (FLIGHTS,)] == 1


def test_what_on_event_raises_ends_neither_the_query_nor_the_counting(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(event: QueryEvent) -> None:
        raise ValueError("the tracker is away")

    queries = QueryMetrics(fail)
    report(queries, BATCH)
    assert scrape(queries)["tallystick_spark_query_batches_total", (FLIGHTS,)] == 1
    assert "the tracker is away" in caplog.text


def decide(batch: int) -> Decision:
    participants = [Participant(transactional_id=f"w{n}", identity=pair(n, 0)) for n in range(3)]
    decision = make_prefix("p", *participants).decision
    assert decision is not None
    assert decision.batch_id == batch
    return decision


def test_transactions_are_those_of_the_batchs_own_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[QueryEvent] = []
    queries = QueryMetrics(events.append, clock=FakeClock(0))
    reads: list[str] = []

    def read(prefix: str, client: object, *, decisions: str) -> Decision:
        reads.append(f"{prefix} {decisions}")
        return decide(7)

    monkeypatch.setattr("tallystick.spark.query_metrics.read_last_decision", read)
    queries.read_decisions("flights", "pipeline.flights", {}, decisions="d")
    report(queries, {**BATCH, "batchId": 7})
    report(queries, {**BATCH, "batchId": 8})  # at once: the decision is not read again
    assert [each.participants for each in events] == [3, None]
    assert reads == ["pipeline.flights d"]
    assert events[0].to_numbers()["participants"] == 3
    assert scrape(queries)["tallystick_spark_query_participants", (FLIGHTS,)] == 3


def test_a_decision_is_read_no_more_often_than_its_cost_allows() -> None:
    clock, reads = FakeClock(1_000), list[int]()

    def read() -> Decision | None:
        reads.append(clock.monotonic_ms())
        clock.advance(100)
        raise OSError("no broker")

    reader = _DecisionReader(read, clock)
    assert reader.read() is None, "a failure is not the query's"
    clock.advance(1_999)
    reader.read()
    clock.advance(1)
    reader.read()
    assert len(reads) == 2, "20 times 100 ms after the end of the first"
