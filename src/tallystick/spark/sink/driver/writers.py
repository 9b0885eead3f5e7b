"""Spark's writer hooks: `df.writeStream.format("tallystick")` and `df.write.format("tallystick")`.

Spark asks for a writer on the driver for every batch and pickles it for the tasks. The batch begins with the
writer, which carries the lease to the tasks. A batch write is committed or aborted by a pickled copy of the
same writer. A streaming batch is committed or aborted by another writer in another process, which has only
the votes and the lease that `lease_handover` finds.

Source: PySpark 4.3, sql/worker/write_into_data_source.py, commit_data_source_write.py and
    python_streaming_sink_runner.py.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import (
    StructType,
)

from tallystick.kernel.check import require
from tallystick.kernel.settings import BadConfig
from tallystick.spark import sink, tracing
from tallystick.spark.checkpoint import read_end_offsets, read_query_id, read_query_start
from tallystick.spark.options.option_table import QueryType
from tallystick.spark.options.sink_options import SinkOptions, with_database_suffix
from tallystick.spark.protocol.committable import (
    BatchLease,
    BatchWrite,
    Job,
    MicroBatch,
    Vote,
    build_empty_vote,
    decode_vote,
    encode_vote,
)
from tallystick.spark.protocol.errors import NotBegun
from tallystick.spark.sink.driver.columns import parse_checked_options
from tallystick.spark.sink.driver.context import OpenContext, SinkContext, get_sink_context
from tallystick.spark.sink.driver.lease_handover import find_lease, remove_lease, save_lease
from tallystick.spark.sink.task.attempt import run_attempt
from tallystick.spark.sink.task.context import get_task_context

if TYPE_CHECKING:
    from tallystick.spark.sink.task.encoding import RecordEncoding
    from tallystick.spark.sink.task.table_rows import TableBatch, VotedFiles

_log = logging.getLogger("tallystick.spark")

_QUERY_ID_PROPERTY: Final = "sql.streaming.queryId"
_BATCH_ID_PROPERTY: Final = "streaming.sql.batchId"
"""Local properties that Spark's MicroBatchExecution sets for the tasks of a micro-batch."""


class VoteMessage(WriterCommitMessage):
    """An encoded vote as a commit message of Spark."""

    def __init__(
        self,
        vote: bytes,
        trace_carrier: tracing.Carrier = tracing.NO_CARRIER,
        table_files: "VotedFiles | None" = None,
    ) -> None:
        self.vote, self.trace_carrier, self.table_files = vote, trace_carrier, table_files


def create_stream_writer(
    options: Mapping[str, str], schema: StructType, connect: OpenContext | None = None, *, begins: bool
) -> "StreamWriter":
    """Return a streaming writer. Output mode complete appends, as with Spark's own Kafka sink.

    Args:
        connect: connects a process to the cluster; crash tests replace it.
        begins: begin a micro-batch; otherwise the writer is there to commit or abort one.
    Raises: BadConfig with all problems at once; NotBegun.
    """
    writer = StreamWriter(_parse_options(options, schema, QueryType.STREAM), schema, connect)
    if begins:
        save_lease(writer.options, writer.begin())
    return writer


def begin_batch_write(options: Mapping[str, str], schema: StructType, overwrite: bool) -> "BatchWriter":
    """Begin the batch of a `save()`, and return its writer. Raises: BadConfig, NotBegun."""
    problems = ["mode: overwrite cannot be done, a topic is appended to; use mode('append')"] * overwrite
    writer = BatchWriter(_parse_options(options, schema, QueryType.BATCH, problems), schema)
    writer.begin()
    return writer


def _parse_options(
    texts: Mapping[str, str], schema: StructType, query: QueryType, problems: Iterable[str] = ()
) -> SinkOptions:
    options = parse_checked_options(texts, schema, query, problems)
    # As in `foreach_batch` with a table: readers of the decision topic do not end its batches.
    return options if options.table is None else with_database_suffix(options)


class _LeasedWriter:
    """Base class of both writers: it carries the lease from the driver to the tasks."""

    def __init__(self, options: SinkOptions, columns: StructType, connect: OpenContext | None = None) -> None:
        self.options = options
        self._columns = columns
        self._open_context = connect
        self._encoding: RecordEncoding | None = None
        self._table: TableBatch | None = None
        self._lease: BatchLease | None = None
        self._trace_carrier = tracing.NO_CARRIER
        self._write_id: str | None = None

    def begin(self) -> BatchLease:
        """Begin the batch, on the driver and before any task. Raises: NotBegun."""
        try:
            if any(each.has_schema for each in self.options.formats.fields):
                self._encoding = sink.schemas.resolve_encoding(self.options, self._columns)
            if self.options.table is not None:
                self._table = sink.lake.prepare_table(self.options, self._columns)
            self._lease = self._claim_prefix()
        except Exception as exc:  # of a table's library, too
            why = f"the batch has not begun, and nothing of it is written. {type(exc).__name__}: {exc}"
            raise NotBegun(why) from exc
        return self._lease

    def _claim_prefix(self) -> BatchLease:
        tracing.set_up(self.options.tracing_setup)
        # It ends before the tasks begin: no process of Spark's lives from the begin of a batch to its end.
        with tracing.trace_part("spark batch", self.options.prefix):
            self._trace_carrier = tracing.carry()
            return self._context.begin(
                write_id=self._write_id,
                query_id=read_query_id(self.options.checkpoint),
                resuming=read_query_start(self.options),
            )

    @property
    def _context(self) -> SinkContext:
        """The driver's context."""
        if self._open_context is not None:
            return self._open_context(self.options)
        if self.options.table is not None:
            return sink.lake.open_table_context(self.options)
        return get_sink_context(self.options)

    def _run_attempt(self, job: Job, batches: Iterator[pa.RecordBatch]) -> VoteMessage:
        lease = require(self._lease, "a task has the writer that has begun its batch")
        if self._encoding is not None:
            batches = sink.encoding.encode_batches(batches, self._encoding)
        tracing.set_up(self.options.tracing_setup)
        with (
            tracing.resume(self._trace_carrier),
            tracing.trace_part("spark task", self.options.prefix, job) as trace,
        ):
            files = None
            if self._table is None:
                vote = run_attempt(
                    (self._open_context or get_task_context)(self.options), lease, job, batches
                )
            else:
                vote, files = sink.table_rows.write_rows(self.options, self._table, lease, job, batches)
            trace.describe_votes([vote])
        return VoteMessage(encode_vote(vote), self._trace_carrier, files)

    def _commit(self, messages: Sequence[WriterCommitMessage | None], offsets: str | None = None) -> None:
        votes, context = _decode_votes(messages), self._context
        if self.options.table is not None:
            files = [each.table_files for each in messages if isinstance(each, VoteMessage)]
            sink.lake.stage_files(context, self.options.table, votes, files)
        with self._resume_trace(messages):
            decision = context.commit(votes, offsets)
        _log.info("%s: %s", self.options.prefix, "skipped: decided before" if decision is None else decision)

    def _abort(self, messages: Sequence[WriterCommitMessage | None], lease: BatchLease | None) -> bool:
        """Abort the batch; return whether that succeeded."""
        # Spark aborts a stopped batch while its tasks still run: none of them has voted (ADR 0036).
        votes = _decode_votes(messages)
        if lease is not None and not any(votes):
            votes = [build_empty_vote(lease)]
        with self._resume_trace(messages):
            return self._context.try_abort(votes)

    def _resume_trace(self, messages: Iterable[WriterCommitMessage | None]) -> AbstractContextManager[object]:
        """Continue the batch's trace, which the tasks' messages name."""
        tracing.set_up(self.options.tracing_setup)
        carriers = [getattr(message, "trace_carrier", tracing.NO_CARRIER) for message in messages]
        return tracing.resume(next(filter(None, carriers), tracing.NO_CARRIER))


class StreamWriter(_LeasedWriter, DataSourceStreamArrowWriter):
    """The sink of a streaming query."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> VoteMessage:
        return self._run_attempt(_find_micro_batch(), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._commit(messages, read_end_offsets(self.options.checkpoint, batchId))
        remove_lease(self.options)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        if self._abort(messages, find_lease(self.options)):
            remove_lease(self.options)


class BatchWriter(_LeasedWriter, DataSourceArrowWriter):
    """The sink of a batch write, which becomes visible as a whole or not at all."""

    def __init__(self, options: SinkOptions, columns: StructType) -> None:
        super().__init__(options, columns)
        self._write_id = options.write_id

    def write(self, iterator: Iterator[pa.RecordBatch]) -> VoteMessage:
        return self._run_attempt(BatchWrite(self._write_id or ""), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        # Spark runs no task for rows without partitions, so the driver votes for them.
        self._commit(messages if any(messages) else [self.write(iter(()))])

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self._abort(messages, self._lease)


def _find_micro_batch() -> MicroBatch:
    # Spark tells only tasks, as local properties, to which query and batch they belong (ADR 0036).
    context = TaskContext.get()
    query_id = batch_id = None
    if context is not None:
        query_id, batch_id = (
            context.getLocalProperty(_QUERY_ID_PROPERTY),
            context.getLocalProperty(_BATCH_ID_PROPERTY),
        )
    if query_id is None or batch_id is None:
        raise BadConfig(
            "this task belongs to no micro-batch: continuous and real-time triggers have none, and the "
            "sink commits whole micro-batches. Use processingTime or availableNow"
        )
    return MicroBatch(query_id, int(batch_id))


def _decode_votes(messages: Iterable[WriterCommitMessage | None]) -> list[Vote | None]:
    return [decode_vote(each.vote) if isinstance(each, VoteMessage) else None for each in messages]
