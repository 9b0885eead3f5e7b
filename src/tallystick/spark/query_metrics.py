"""`QueryMetrics`: a StreamingQueryListener that counts the events of queries, and reports each.

Spark calls it in the process that created the session: the driver's Python process, or with Spark Connect the
client's. What happens inside `addBatch`, where tasks write and the sink decides, is not in Spark's reports;
the number of transactions is in the decision, which is read separately.
"""

import json
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from tallystick.kernel.clock import Clock, SystemClock
from tallystick.kernel.value import replace
from tallystick.metrics.exposition import PrometheusText
from tallystick.metrics.families.applications import (
    QUERY_ACTIVE,
    QUERY_BATCH,
    QUERY_BATCHES,
    QUERY_LAG,
    QUERY_PARTICIPANTS,
    QUERY_PHASE_SECONDS,
    QUERY_REPLAYS,
    QUERY_ROWS,
    QUERY_TERMINATIONS,
)
from tallystick.spark.options.option_table import DECISIONS_TOPIC
from tallystick.spark.protocol.committable import Decision
from tallystick.spark.protocol.query_events import QueryEvent, QueryEventKind, parse_batch
from tallystick.spark.sink.driver.recovery import read_last_decision

_log = logging.getLogger("tallystick.spark")

REST_FACTOR: Final = 20
"""A decision whose reading took a second is read again twenty seconds later at the earliest."""

READING_MS_MIN: Final = 1_000

QUERIES_MAX: Final = 200
"""Queries with series of their own. Those that come later are counted as OTHER_QUERY together."""

OTHER_QUERY: Final = "other"


class QueryMetrics(StreamingQueryListener):
    """Listens to the streaming queries of a session, and is a collector for a registry of prometheus_client.

        queries = QueryMetrics(on_event=lambda event: mlflow.log_metrics(event.to_numbers(), event.batch))
        spark.streams.addListener(queries)
        REGISTRY.register(queries)

    It works for queries with any sink. With Spark Connect it is called in the client's process.
    """

    def __init__(
        self, on_event: Callable[[QueryEvent], object] | None = None, *, clock: Clock | None = None
    ) -> None:
        """Create the metrics, which belong to no registry.

        Args:
            on_event: called for each event, one after the other. What it raises is logged.
        Raises: MissingLibrary.
        """
        self._on_event, self._clock = on_event, clock or SystemClock()
        self._text = PrometheusText()
        self._batches = self._text.make_instrument(QUERY_BATCHES)
        self._rows = self._text.make_instrument(QUERY_ROWS)
        self._replays = self._text.make_instrument(QUERY_REPLAYS)
        self._phases = self._text.make_instrument(QUERY_PHASE_SECONDS)
        self._terminations = self._text.make_instrument(QUERY_TERMINATIONS)
        self._lock = threading.Lock()
        self._runs: dict[str, str] = {}
        self._labels: set[str] = set()
        self._gauges: dict[str, dict[str, float]] = {
            each.name: {} for each in (QUERY_BATCH, QUERY_LAG, QUERY_PARTICIPANTS)
        }
        self._readers: dict[str, _DecisionReader] = {}

    def read_decisions(
        self,
        query: str,
        prefix: str,
        client: Mapping[str, str],
        *,
        decisions: str = DECISIONS_TOPIC,
    ) -> None:
        """Read the decisions of a query's sink in their topic, so that its transactions are counted.

        Args:
            query: the query's name.
            prefix: `transactional.id.prefix` of the sink.
            client: its producer settings by Kafka's names.
            decisions: its topic of decisions.
        """
        self._readers[query] = _DecisionReader(
            lambda: read_last_decision(prefix, client, decisions=decisions), self._clock
        )

    # --------------------------------------------------------------------------- called by Spark

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark
        """Note a query that begins a run."""
        query_id, run_id = str(event.id), str(event.runId)
        query = event.name or query_id
        label = self._find_label(query)
        with self._lock:
            self._runs[run_id] = query
        # From the beginning, as the increase of a series that begins with 1 is not seen.
        self._replays.labels(label)
        for kind in (QueryEventKind.FAILED, QueryEventKind.STOPPED):
            self._terminations.labels(label, kind.value)
        self._tell(
            QueryEvent(
                kind=QueryEventKind.STARTED,
                query=query,
                query_id=query_id,
                run_id=run_id,
                at=event.timestamp,
            )
        )

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark
        """Count a batch."""
        batch = parse_batch(json.loads(event.progress.json))
        if batch is None:
            return
        reader = self._readers.get(batch.query)
        decision = None if reader is None else reader.read()
        # The next batch may be decided by now, as Spark reports with a delay.
        if decision is not None and decision.batch_id == batch.batch:
            batch = replace(batch, participants=len(decision.participants))
        self._count(batch, None if decision is None else len(decision.participants))
        self._tell(batch)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 - Spark
        """Tell of a query that waits for data."""
        run_id, query_id = str(event.runId), str(event.id)
        query = self._runs.get(run_id, query_id)
        self._tell(
            QueryEvent(
                kind=QueryEventKind.IDLE, query=query, query_id=query_id, run_id=run_id, at=event.timestamp
            )
        )

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark
        """Count a query that has ended its run."""
        run_id, query_id = str(event.runId), str(event.id)
        with self._lock:
            query = self._runs.pop(run_id, query_id)
        kind = QueryEventKind.FAILED if event.exception else QueryEventKind.STOPPED
        self._terminations.labels(self._find_label(query), kind.value).inc()
        self._tell(
            QueryEvent(kind=kind, query=query, query_id=query_id, run_id=run_id, error=event.exception or "")
        )

    def _count(self, batch: QueryEvent, participants: int | None) -> None:
        query = self._find_label(batch.query)
        self._batches.labels(query).inc()
        self._rows.labels(query).inc(batch.rows)
        self._replays.labels(query).inc(batch.is_replay)
        for phase, ms in batch.durations_ms.items():
            self._phases.labels(query, phase).observe(ms / 1000)
        values = {
            QUERY_BATCH: batch.batch,
            QUERY_LAG: batch.lag,
            QUERY_PARTICIPANTS: participants,
        }
        with self._lock:
            for family, value in values.items():
                if value is not None:
                    self._gauges[family.name][query] = value

    def _find_label(self, query: str) -> str:
        with self._lock:
            if len(self._labels) < QUERIES_MAX:
                self._labels.add(query)
            return query if query in self._labels else OTHER_QUERY

    def _tell(self, event: QueryEvent) -> None:
        if self._on_event is None:
            return
        try:
            self._on_event(event)
        except Exception:  # of the user's: the query goes on
            _log.exception("on_event failed for %s of %s", event.kind, event.query)

    # ------------------------------------------------------------------ called by prometheus_client

    def collect(self) -> Iterator[Any]:
        """Yield every metric; prometheus_client calls it for each scrape."""
        for metric in (self._batches, self._rows, self._replays, self._phases, self._terminations):
            yield from metric.collect()
        with self._lock:
            running = {query if query in self._labels else OTHER_QUERY for query in self._runs.values()}
            gauges = {name: dict(values) for name, values in self._gauges.items()}
        queries = sorted(running | set(gauges[QUERY_BATCH.name]))
        yield self._text.convert(QUERY_ACTIVE, [((query,), query in running) for query in queries])
        for family in (QUERY_BATCH, QUERY_LAG, QUERY_PARTICIPANTS):
            yield self._text.convert(
                family, [((query,), value) for query, value in gauges[family.name].items()]
            )

    def describe(self) -> Iterator[Any]:
        """Yield nothing: names are checked when they are collected."""
        yield from ()


class _DecisionReader:
    """Reads the last decision of a prefix, no more often than its reading's cost allows."""

    def __init__(self, read: Callable[[], Decision | None], clock: Clock) -> None:
        self._read, self._clock = read, clock
        self._next_ms = 0

    def read(self) -> Decision | None:
        """Return the decision; None if it is not read now, or cannot be."""
        began_ms = self._clock.monotonic_ms()
        if began_ms < self._next_ms:
            return None
        try:
            return self._read()
        except Exception as exc:  # the query goes on, and what Spark reports is counted
            _log.info("the last decision was not read: %s", exc)
            return None
        finally:
            ended_ms = self._clock.monotonic_ms()
            self._next_ms = ended_ms + max(READING_MS_MIN, REST_FACTOR * (ended_ms - began_ms))
