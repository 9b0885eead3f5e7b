"""Spark's reports on a streaming query, as events with numbers. Pure.

Source: Spark's StreamingQueryProgress as JSON; `latestOffset` of a source is the result of
    `reportLatestOffset`, its `endOffset` is the end of the batch, and the difference is still to be read.
    MicroBatchExecution: a batch that the offset log has and the commit log lacks runs first in a new run, and
    asks no source for its latest offset; every other batch does, which `durationMs` shows.
"""

import json
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import cast

from tallystick.kernel.value import Value

ADD_BATCH = "addBatch"
LATEST_OFFSET = "latestOffset"


class QueryEventKind(StrEnum):
    """The kind of an event of a query."""

    STARTED = "started"
    BATCH = "batch"
    IDLE = "idle"
    STOPPED = "stopped"
    FAILED = "failed"


class QueryEvent(Value, kw_only=True):
    """One event of a query.

    query         its name; its id if it has none
    query_id      the same in every run, as it is in the checkpoint
    run_id        of this run
    at            start of the batch, or time of the event, ISO 8601
    batch         number of the batch
    is_replay     the batch was begun by an earlier run that did not finish it
    rows          read from all sources
    durations_ms  time of each phase by Spark's names; `triggerExecution` is all of them
    lag           Kafka records that the batch could have read and did not; None if no source reports it
    participants  transactions of the last decision, if it is read and is this batch's
    error         why the query has failed
    """

    kind: QueryEventKind
    query: str
    query_id: str
    run_id: str
    at: str = ""
    batch: int | None = None
    is_replay: bool = False
    rows: int = 0
    durations_ms: Mapping[str, int] = {}
    lag: int | None = None
    participants: int | None = None
    error: str = ""

    def to_numbers(self) -> dict[str, float]:
        """Return the numbers of a batch by name, as trackers of experiments log them; empty for other events.

        mlflow.log_metrics(event.to_numbers(), step=event.batch)
        """
        if self.kind is not QueryEventKind.BATCH:
            return {}
        numbers: dict[str, float] = {"rows": self.rows, "replay": float(self.is_replay)}
        numbers |= {f"{phase}_ms": float(ms) for phase, ms in self.durations_ms.items()}
        if self.lag is not None:
            numbers["lag"] = self.lag
        if self.participants is not None:
            numbers["participants"] = self.participants
        return numbers


def parse_batch(report: Mapping[str, object]) -> QueryEvent | None:
    """Return the event of a report on a batch; None if the trigger had nothing to do.

    Args:
        report: the parsed object of `StreamingQueryProgress.json`.
    """
    durations = cast(Mapping[str, int], report.get("durationMs") or {})
    if ADD_BATCH not in durations:
        return None
    query_id = str(report["id"])
    return QueryEvent(
        kind=QueryEventKind.BATCH,
        query=str(report.get("name") or query_id),
        query_id=query_id,
        run_id=str(report["runId"]),
        at=str(report["timestamp"]),
        batch=cast(int, report["batchId"]),
        is_replay=LATEST_OFFSET not in durations,
        rows=cast(int, report.get("numInputRows") or 0),
        durations_ms=dict(durations),
        lag=count_lag(report),
    )


def count_lag(report: Mapping[str, object]) -> int | None:
    """Return the records that sources had and a batch did not read; None if none of them says so."""
    sources = cast(Iterable[Mapping[str, object]], report.get("sources") or ())
    lags = [lag for source in sources if (lag := _count_source_lag(source)) is not None]
    return sum(lags) if lags else None


def _count_source_lag(source: Mapping[str, object]) -> int | None:
    end, latest = _parse_offsets(source.get("endOffset")), _parse_offsets(source.get("latestOffset"))
    if end is None or latest is None:
        return None
    return sum(max(0, offset - end.get(at, 0)) for at, offset in latest.items())


def _parse_offsets(offsets: object) -> dict[tuple[str, str], int] | None:
    """Parse the offsets of `{"topic": {"0": 5}}`, given as text or as an object; None for other forms."""
    try:
        topics = json.loads(offsets) if isinstance(offsets, str) else offsets
    except ValueError:
        return None
    if not isinstance(topics, Mapping) or not all(isinstance(each, Mapping) for each in topics.values()):
        return None
    return {
        (topic, partition): int(offset)
        for topic, places in topics.items()
        for partition, offset in places.items()
    }
