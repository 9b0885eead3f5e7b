"""Interface to a tracer of dual writes: their blocks, their steps on the database, and their recovery.

Kafka's part of a dual write is reported by its producer (`client.tracing`). As there, nothing here knows
OpenTelemetry, `tracer` is None until it is switched on, and a tracer's methods never raise [OTEL-1].
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Final, Protocol, Self

from tallystick.client.consumer.decode import ConsumerRecord
from tallystick.client.transactions.prepared import PreparedTxnState
from tallystick.dualwrite.errors import Outcome


class BlockView(Protocol):
    """Outcome of a block, for a tracer to read at its end."""

    value: Outcome

    @property
    def states(self) -> Mapping[str, PreparedTxnState]:
        """The transactions that the rows name, by id; empty before the commit."""


class BlockTrace(Protocol):
    """A dual write, a recovery, or one of its ids: a context manager around it."""

    def __enter__(self) -> Self: ...
    def __exit__(self, kind: object, exc: BaseException | None, trace: object, /) -> None: ...

    def mark_begun(self) -> None:
        """Record that the block has begun, so that its outcome is its own."""

    def rejoin(self) -> None:
        """Go on in this trace where the block ends in another thread or context than it has begun in."""

    def link_headers(self, headers: Sequence[tuple[str, bytes | None]]) -> None:
        """Link to the trace that these headers of a record name, if they name one."""

    def set_finding(self, finding: str, action: str) -> None:
        """Record what a recovery found, and what it did."""


class WriteTracer(Protocol):
    """A tracer of dual writes."""

    def trace_write(self, ids_text: str, block: BlockView) -> BlockTrace:
        """Trace one block of a writer: the root of its trace, unless the caller has one."""

    def trace_recovery(self, ids_text: str) -> BlockTrace:
        """Trace a recovery."""

    def trace_finish(self, transactional_id: str) -> BlockTrace:
        """Trace the end of one id's transaction in a recovery."""

    def trace_consumed(self, group: str, records: Sequence[ConsumerRecord]) -> BlockTrace:
        """Trace records and their rows being processed in one database transaction."""

    def trace_step(self, name: str, database_system: str) -> AbstractContextManager[object]:
        """Trace a step of the recipe, if it is one on the database."""


class _UntracedBlock:
    """A block without a tracer. There is one for all."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        pass

    def mark_begun(self) -> None:
        pass

    def rejoin(self) -> None:
        pass

    def link_headers(self, headers: Sequence[tuple[str, bytes | None]]) -> None:
        pass

    def set_finding(self, finding: str, action: str) -> None:
        pass


tracer: WriteTracer | None = None
"""The process's tracer of dual writes; None: nothing is traced."""

UNTRACED: Final[BlockTrace] = _UntracedBlock()


def trace_write(ids_text: str, block: BlockView) -> BlockTrace:
    """Trace one block of a writer, if there is a tracer."""
    return UNTRACED if (now := tracer) is None else now.trace_write(ids_text, block)


def trace_recovery(ids_text: str) -> BlockTrace:
    """Trace a recovery, if there is a tracer."""
    return UNTRACED if (now := tracer) is None else now.trace_recovery(ids_text)


def trace_finish(transactional_id: str) -> BlockTrace:
    """Trace what a recovery does about one id, if there is a tracer."""
    return UNTRACED if (now := tracer) is None else now.trace_finish(transactional_id)


def trace_consumed(group: str, records: Sequence[ConsumerRecord]) -> BlockTrace:
    """Trace the processing of records, if there are any and a tracer."""
    return UNTRACED if (now := tracer) is None or not records else now.trace_consumed(group, records)


def get_database_system(store: object) -> str:
    """Return the name of a store's database, as OpenTelemetry's conventions write it."""
    return str(getattr(store, "database_system", "other_sql"))
