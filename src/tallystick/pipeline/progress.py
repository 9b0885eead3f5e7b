"""Progress and failure of a query, from Spark's reports. Pure.

Spark passes a Python error on as text inside a Java error: a traceback whose last line is the error itself,
then the query's state and plan. Those details belong in the log.

Source: Spark's StreamingQueryProgress as JSON; `spark.protocol.query_events` defines its lag.
"""

import re
from collections.abc import Mapping
from typing import Final, cast

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


_STATE_HEADING: Final = "\n=== Streaming Query ==="
# The last line of a traceback and its continuation lines, up to Java's frames.
_RAISED_PATTERN: Final = re.compile(
    r"^(?:\S*: )?((?:\w+\.)+\w+|\w+(?:Error|Exception)): (.+(?:\n(?!\s*at |Caused by|\s*$).+)*)", re.MULTILINE
)
_OWN_MODULES: Final = "tallystick."

_SAFE_TEXT: Final = (
    "A batch is decided as a whole. The next start finds out whether the last one was, and completes it or "
    "writes it again: nothing is lost, and nothing is there twice."
)
_RESTART_ADVICE: Final = (
    "Put right what is said above, and start the pipeline again with the same checkpoint."
)
_BROKERS_ADVICE: Final = "See that the brokers are up, and start the pipeline again with the same checkpoint."
_ADVICE_BY_ERROR: Final = {
    "UnknownCheckpoint": "With `tallystick run`, onNewCheckpoint is --on-new-checkpoint.",
    "DecisionsMissing": "With `tallystick run`, onNewPrefix is --on-new-prefix.",
    "SourceDataLoss": (
        'If the records are not wanted, set failOnDataLoss = "false" in [sources.NAME.options].'
    ),
    "TimedOut": _BROKERS_ADVICE,
    "Unreachable": _BROKERS_ADVICE,
    "PrefixTaken": "See that the pipeline runs in one place only, and start it there again.",
}
_MALFORMED_ADVICE: Final = (
    'Correct the schema, or let such values go to a topic with malformed = "dead-letter" and dead-letter = '
    '"TOPIC"; then start the pipeline again with the same checkpoint.'
)


class QueryFailure(Value, kw_only=True):
    """The description of one failed query."""

    cause: str
    safety: str
    advice: str


def describe_failure(exception_text: str) -> QueryFailure:
    """Describe a failed query.

    Args:
        exception_text: text of Spark's StreamingQueryException.
    """
    head = exception_text.split(_STATE_HEADING)[0].strip()
    raised = _RAISED_PATTERN.findall(head)
    kind, text = next(
        (each for each in reversed(raised) if each[0].startswith(_OWN_MODULES)),
        raised[-1] if raised else ("", ""),
    )
    cause = text or re.sub(r"^\[[\w.]+\] ", "", head.splitlines()[0] if head else "it ended without a word")
    cause = re.sub(r"\s*SQLSTATE: \w+$", "", cause.strip())
    if "does not fit the schema" in cause:
        return QueryFailure(cause=cause, safety=_SAFE_TEXT, advice=_MALFORMED_ADVICE)
    return QueryFailure(
        cause=cause, safety=_SAFE_TEXT, advice=_ADVICE_BY_ERROR.get(kind.rpartition(".")[2], _RESTART_ADVICE)
    )
