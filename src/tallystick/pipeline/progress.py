"""Progress of a query, from Spark's report on each batch. Pure.

Source: Spark's StreamingQueryProgress as JSON; `latestOffset` of a source is the result of
    `reportLatestOffset`, its `endOffset` is the end of the batch, and the difference is still to be read.
"""

import json
from collections.abc import Iterable, Mapping
from typing import cast

from tallystick.kernel.value import Value


class Progress(Value, kw_only=True):
    """The progress of one batch of one output.

    at       start time, ISO 8601
    rows     rows read from all sources
    lag      Kafka records available and not read when the batch was planned; None if no source reports it
    """

    output: str
    batch: int
    at: str
    rows: int
    duration_ms: int
    lag: int | None

    @property
    def rows_per_s(self) -> float:
        return self.rows * 1000 / self.duration_ms if self.duration_ms else 0.0


def parse_progress(output: str, report: Mapping[str, object]) -> Progress | None:
    """Parse Spark's report on a batch; return None if the trigger had nothing to do.

    Args:
        report: the parsed object of `StreamingQueryProgress.json`.
    """
    durations = cast(Mapping[str, int], report.get("durationMs") or {})
    if "addBatch" not in durations:
        return None
    sources = cast(Iterable[Mapping[str, object]], report.get("sources") or ())
    lags = [lag for source in sources if (lag := _count_lag(source)) is not None]
    return Progress(
        output=output,
        batch=cast(int, report["batchId"]),
        at=cast(str, report["timestamp"]),
        rows=cast(int, report.get("numInputRows") or 0),
        duration_ms=durations.get("triggerExecution", 0),
        lag=sum(lags) if lags else None,
    )


def _count_lag(source: Mapping[str, object]) -> int | None:
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
