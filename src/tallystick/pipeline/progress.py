"""Progress of a query, from Spark's report on each batch. Pure.

Source: Spark's StreamingQueryProgress as JSON; `spark.protocol.query_events` says what its lag is.
"""

from collections.abc import Mapping
from typing import cast

from tallystick.kernel.value import Value
from tallystick.spark.protocol.query_events import count_lag


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
    return Progress(
        output=output,
        batch=cast(int, report["batchId"]),
        at=cast(str, report["timestamp"]),
        rows=cast(int, report.get("numInputRows") or 0),
        duration_ms=durations.get("triggerExecution", 0),
        lag=count_lag(report),
    )
