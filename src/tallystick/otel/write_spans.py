"""Spans of dual writes, of their steps on the database, and of recoveries."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from time import perf_counter
from typing import Final, Self

from opentelemetry.context import Context, get_current
from opentelemetry.trace import Span, SpanKind, get_current_span

from tallystick.client.consumer.decode import ConsumerRecord
from tallystick.client.transactions.engine import Completion
from tallystick.dualwrite.rules.conclusions import ACTION_DONE
from tallystick.dualwrite.rules.idempotency import KeyFound
from tallystick.dualwrite.tracing import BlockView
from tallystick.otel.conventions import (
    ACTION,
    DATABASE_OPERATION,
    DATABASE_OPERATIONS,
    DATABASE_STEPS,
    DATABASE_SYSTEM,
    FINDING,
    GROUP,
    PREPARED_STATE,
    TRANSACTION_ID,
    Attributes,
    TraceOutcome,
    assess_block,
    assess_consumed,
    build_messaging_attributes,
    name_span,
)
from tallystick.otel.propagation import list_links, read_context, read_span_context
from tallystick.otel.spans import SpanScope, SpanStarter, set_outcome

_NOTHING: Final = nullcontext()

_OUTCOME_BY_ACTION: Final = {
    ACTION_DONE[Completion.COMMITTED]: TraceOutcome.COMMITTED,
    ACTION_DONE[Completion.ABORTED]: TraceOutcome.ABORTED,
}

BlockCallback = Callable[[float, TraceOutcome], object]
"""Called at the end of a dual write, with its duration in seconds."""


class WriteSpans:
    """The tracer of dual writes, `dualwrite.tracing.WriteTracer`."""

    def __init__(
        self, spans: SpanStarter, *, count_write: BlockCallback, count_recovery: Callable[[str], object]
    ) -> None:
        """Bind the tracer to its spans and counters.

        Args:
            count_recovery: called with the finding for each id that was recovered.
        """
        self._spans = spans
        self._count_write = count_write
        self._count_recovery = count_recovery

    def trace_write(self, ids_text: str, block: BlockView) -> "BlockSpan":
        """Start the span of a writer's block, which the user's own spans will be below."""
        span = self._spans.start("dual write", SpanKind.INTERNAL, {TRANSACTION_ID: ids_text})
        return WriteSpan(self._spans, span, block, self._count_write)

    def trace_recovery(self, ids_text: str) -> "BlockSpan":
        """Start the span of a recovery of all ids of a writer."""
        span = self._spans.start("recover", SpanKind.INTERNAL, {TRANSACTION_ID: ids_text})
        return BlockSpan(self._spans, span)

    def trace_finish(self, transactional_id: str) -> "BlockSpan":
        """Start the span of what a recovery does about one id."""
        span = self._spans.start("finish transaction", SpanKind.INTERNAL, {TRANSACTION_ID: transactional_id})
        return FinishSpan(self._spans, span, self._count_recovery)

    def trace_consumed(self, group: str, records: Sequence[ConsumerRecord]) -> "BlockSpan":
        """Start the span of records that are processed in one transaction of a database."""
        topics = {record.topic for record in records}
        topic = topics.pop() if len(topics) == 1 else None
        attributes = build_messaging_attributes("process", "process", topic, count=len(records))
        attributes[GROUP] = group
        span = self._spans.start(
            name_span("process", topic),
            SpanKind.CONSUMER,
            attributes,
            links=list_links(records),
            parent=choose_parent(records),
        )
        return ConsumedSpan(self._spans, span)

    def trace_step(self, name: str, database_system: str) -> AbstractContextManager[object]:
        """Start the span of a step on the database; other steps have none."""
        operation = DATABASE_OPERATIONS.get(name)
        if operation is not None:
            attributes: Attributes = {DATABASE_SYSTEM: database_system, DATABASE_OPERATION: operation}
            return SpanScope(self._spans, self._spans.start(operation, SpanKind.CLIENT, attributes))
        if name in DATABASE_STEPS:
            return SpanScope(self._spans, self._spans.start(name, SpanKind.INTERNAL, {}))
        return _NOTHING


class BlockSpan(SpanScope):
    """The span of a block, and what the block reports to it."""

    __slots__ = ("has_begun",)

    def __init__(self, spans: SpanStarter, span: Span) -> None:
        super().__init__(spans, span)
        self.has_begun = False

    def __enter__(self) -> Self:
        super().__enter__()
        return self

    def mark_begun(self) -> None:
        self.has_begun = True

    def rejoin(self) -> None:
        self._scope.attach_again()

    def link_headers(self, headers: Sequence[tuple[str, bytes | None]]) -> None:
        """Link to the span in which a record was created."""
        self._spans.guard(self._link_headers, headers)

    def _link_headers(self, headers: Sequence[tuple[str, bytes | None]]) -> None:
        span_context = read_span_context(headers)
        if span_context is not None:
            self.span.add_link(span_context)

    def set_finding(self, finding: str, action: str) -> None:
        """Report what a recovery has found and done."""
        self._spans.guard(self.span.set_attributes, {FINDING: finding, ACTION: action})


class WriteSpan(BlockSpan):
    """The span of a dual write."""

    __slots__ = ("_began", "_block", "_count")

    def __init__(self, spans: SpanStarter, span: Span, block: BlockView, count: BlockCallback) -> None:
        super().__init__(spans, span)
        self._block, self._count = block, count
        self._began = perf_counter()

    def finish(self, exc: BaseException | None) -> None:
        self._spans.guard(self._report, exc)
        # A key that the database has already: the work was done before, which is no error.
        super().finish(None if isinstance(exc, KeyFound) else exc)

    def _report(self, exc: BaseException | None) -> None:
        outcome = assess_block(exc, self._block.value, has_begun=self.has_begun)
        set_outcome(self.span, outcome)
        if self.has_begun and self._block.states:
            states = self._block.states
            self.span.set_attribute(PREPARED_STATE, ", ".join(str(states[name]) for name in sorted(states)))
        self._count(perf_counter() - self._began, outcome)


class FinishSpan(BlockSpan):
    """The span of one id in a recovery."""

    __slots__ = ("_count",)

    def __init__(self, spans: SpanStarter, span: Span, count: Callable[[str], object]) -> None:
        super().__init__(spans, span)
        self._count = count

    def set_finding(self, finding: str, action: str) -> None:
        super().set_finding(finding, action)
        self._spans.guard(self._report, finding, action)

    def _report(self, finding: str, action: str) -> None:
        outcome = _OUTCOME_BY_ACTION.get(action)
        if outcome is None and finding == "UNPROVEN":
            outcome = TraceOutcome.UNKNOWN
        if outcome is not None:
            set_outcome(self.span, outcome)
        self._count(finding)


class ConsumedSpan(BlockSpan):
    """The span of consumed records, whose outcome is what its caller gets."""

    __slots__ = ()

    def finish(self, exc: BaseException | None) -> None:
        self._spans.guard(set_outcome, self.span, assess_consumed(exc))
        super().finish(exc)


def choose_parent(records: Sequence[ConsumerRecord]) -> Context | None:
    """Return the creation context of a single record as a parent, where no span is the current one.

    Source: messaging-spans.md, 'Message creation context as parent of "Process" span': "Exclusively for
        single messages scenarios", and not "if processing happens in the scope of another span".
    """
    if len(records) != 1 or get_current_span().get_span_context().is_valid:
        return None
    headers = records[0].headers
    return get_current() if read_span_context(headers) is None else read_context(headers)
