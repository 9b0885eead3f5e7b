"""Spans of Spark batches: the driver's, and the tasks' below it."""

from collections.abc import Iterable

from opentelemetry.trace import SpanKind

from tallystick.otel.conventions import (
    BATCH_ID,
    PARTICIPANTS,
    QUERY_ID,
    ROWS,
    TRANSACTION_ID,
    Attributes,
)
from tallystick.otel.propagation import read_carrier, write_carrier
from tallystick.otel.spans import AttachedContext, SpanScope, SpanStarter
from tallystick.spark.protocol.committable import Job, MicroBatch, Vote
from tallystick.spark.tracing import Carrier


class SparkSpans:
    """The tracer of batches, `spark.tracing.BatchTracer`."""

    def __init__(self, spans: SpanStarter) -> None:
        self._spans = spans

    def trace_part(self, name: str, prefix: str, job: Job | None) -> "PartSpan":
        """Start the span of a batch or of a part of it."""
        attributes: Attributes = {TRANSACTION_ID: prefix}
        if isinstance(job, MicroBatch):
            attributes |= {QUERY_ID: job.query_id, BATCH_ID: job.batch_id}
        return PartSpan(self._spans, self._spans.start(name, SpanKind.INTERNAL, attributes))

    def resume(self, carrier: Carrier) -> AttachedContext:
        """Make a span of another process the current one in the block."""
        return AttachedContext(read_carrier(carrier))

    def carry(self) -> Carrier:
        """Return the current trace, for another process."""
        return write_carrier()


class PartSpan(SpanScope):
    """The span of a batch or of a part of it."""

    __slots__ = ()

    def describe_votes(self, votes: Iterable[Vote | None]) -> None:
        """Add the rows and transactions that tasks have voted for."""
        self._spans.guard(self._describe, [vote for vote in votes if vote is not None])

    def _describe(self, votes: list[Vote]) -> None:
        rows = sum(each.rows for vote in votes for each in vote.row_checksums)
        participants = sum(vote.participant is not None for vote in votes)
        self.span.set_attributes({ROWS: rows, PARTICIPANTS: participants})
