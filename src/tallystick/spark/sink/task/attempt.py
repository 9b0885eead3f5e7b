"""One task attempt of the Spark sink: write its rows in a transaction and prepare it, or count and drop them.

    holds?   check that the lease is the last one, before any id is initialised: a late task of an older lease
             must not touch an id that a newer lease has used since. Left out if an id of this process was
             initialised when its last task was over (`next_producer`)
    write    init, begin, send, prepare, under an id of this process
    holds?   check again. If a newer lease was taken meanwhile, its sweep may have missed this transaction, so
             the task aborts it; otherwise it would stay open for ever under two-phase commit

The attempt does not depend on partition, attempt or stage numbers: Spark repeats them as it likes [SPK-20].

Source: docs/design/spark-sink.md.
"""

import logging
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from typing import Final

import pyarrow as pa

from tallystick.client.blocking.producer import Producer
from tallystick.kernel.check import require
from tallystick.spark.options.rights import explain_missing_right
from tallystick.spark.options.sink_options import SinkOptions
from tallystick.spark.options.sinks import name_topic
from tallystick.spark.protocol.committable import BatchLease, Job, MicroBatch, Participant, RowChecksum, Vote
from tallystick.spark.protocol.decide import TaskAction, plan_task
from tallystick.spark.protocol.errors import InvalidRows, PrefixTaken, SinkError
from tallystick.spark.sink.task.context import TaskContext
from tallystick.spark.sink.task.next_producer import OpenedProducer
from tallystick.spark.sink.task.row_checksum import checksum_columns

_log = logging.getLogger("tallystick.spark")

COLUMNS: Final = ("key", "value", "topic", "partition", "headers")
ROW_COLUMN: Final = "row"
"""The column with the rows of a table; null for none."""
# Rows go to the producer in pieces, of which buffer.memory holds several.
_CHUNK_BYTES: Final = 4 * 1024 * 1024


def run_attempt(context: TaskContext, lease: BatchLease, job: Job, batches: Iterable[pa.RecordBatch]) -> Vote:
    """Write or skip the rows of one task.

    Args:
        batches: rows with the sink's columns. They are always read to their end: Spark fails a stateful query
            whose plan did not run to its end, since its state stores did not commit (SPARK-52008).
    Raises: SinkErrors, the client's errors; then this attempt leaves nothing open.
    """
    with explain_missing_right(context.options):
        return _run_attempt(context, lease, job, batches)


def _run_attempt(
    context: TaskContext, lease: BatchLease, job: Job, batches: Iterable[pa.RecordBatch]
) -> Vote:
    action = plan_attempt(context.options, lease, job)
    chunks = _iter_chunks(batches)
    total, participant, mode = RowChecksum(), None, ""
    if action is TaskAction.SKIP:
        for chunk in chunks:
            total = total.combine(_checksum_chunk(chunk, context.options.topic))
    elif (first_chunk := next(chunks, None)) is not None:
        total, participant, mode = _write_and_prepare(context, lease, first_chunk, chunks)
    return Vote(
        nonce=lease.nonce,
        coordinator=lease.coordinator,
        transaction_version=lease.transaction_version,
        job=job,
        row_checksums=(total,),
        participant=participant,
        is_skipped=action is TaskAction.SKIP,
        mode=mode,
        began_ms=lease.began_ms,
        last_nonce=lease.last_nonce,
        sinks=(name_topic(context.options.topic),),
    )


def plan_attempt(options: SinkOptions, lease: BatchLease, job: Job) -> TaskAction:
    """Return what a task does with its rows. Raises: SinkError if the batch must not be written."""
    if not isinstance(job, MicroBatch):
        return TaskAction.SKIP if lease.repeats else TaskAction.WRITE
    plan = plan_task(lease.last_decision, job, options.on_new_checkpoint, options.on_new_prefix)
    if isinstance(plan, SinkError):
        raise plan
    return plan


def _write_and_prepare(
    context: TaskContext,
    lease: BatchLease,
    first_chunk: pa.RecordBatch,
    other_chunks: Iterator[pa.RecordBatch],
) -> tuple[RowChecksum, Participant, str]:
    next_producer = open_producer(context, lease)
    topic, total, producer = context.options.topic, RowChecksum(), next_producer.producer
    with ExitStack() as stack:
        stack.enter_context(producer)  # on an exception before the prepare, its exit aborts
        producer.begin_transaction()
        chunk: pa.RecordBatch | None = first_chunk
        while chunk is not None:
            send_records(producer, chunk, topic)
            total = total.combine(_checksum_chunk(chunk, topic))
            chunk = next(other_chunks, None)
        participant, mode = prepare(context, lease, next_producer, stack)
    context.next_producer.open(lease, producer, () if topic is None else (topic,))
    return total, participant, mode


def prepare(
    context: TaskContext, lease: BatchLease, next_producer: OpenedProducer, stack: ExitStack
) -> tuple[Participant, str]:
    """Prepare a transaction with records, and leave it open. Raises: PrefixTaken, after aborting it.

    Args:
        stack: closes the producer on an exception; it is emptied.
    Returns: the participant to vote for, and the mode of its transaction.
    """
    producer = next_producer.producer
    # KIP-939: prepared when "all messages successfully got flushed to all partitions"; only then is it
    # voted for.
    state = producer.prepare_transaction()
    try:
        check_lease(context, lease)
    except BaseException:
        producer.abort_transaction()
        raise
    identity = require(state.identity, "records were sent, so something is prepared")
    mode = require(producer.mode, "the sink prepares, so a mode is in force")
    stack.pop_all()
    return Participant(transactional_id=str(next_producer.name), identity=identity), mode.value


def send_records(producer: Producer, records: pa.RecordBatch, topic: str | None) -> None:
    """Send rows with the sink's columns. Raises: InvalidRows; the client's errors."""
    try:
        producer.send_arrow(records, topic)
    except ValueError as exc:  # a row has no topic, or a header no key; types were checked with the schema
        raise InvalidRows(f"{exc}; nothing of this batch was decided") from exc


def open_producer(context: TaskContext, lease: BatchLease) -> OpenedProducer:
    """Return an initialised producer for one attempt. Raises: PrefixTaken; the client's errors.

    The lease is checked before an id is initialised. One that was initialised before needs no check: the one
    after the prepare finds out what this one would.
    """
    next_producer = context.next_producer.take(lease)
    if next_producer is None:
        check_lease(context, lease)
        name = context.worker_ids.acquire(lease)
        next_producer = OpenedProducer(name=name, producer=context.create_producer(name))
        try:
            next_producer.producer.init_transactions()
        except BaseException:
            next_producer.producer.close()
            raise
    return next_producer


def check_lease(context: TaskContext, lease: BatchLease) -> None:
    """Raise PrefixTaken unless the lease is the last one."""
    if not context.owns_prefix(lease.coordinator):
        raise PrefixTaken(context.options.prefix, "this batch was given up, or another query began")


def _iter_chunks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the sink's columns of all rows, in pieces of bounded size, none of them empty."""
    for batch in batches:
        columns = batch.select([name for name in COLUMNS if name in batch.schema.names])
        count = max(1, -(-columns.nbytes // _CHUNK_BYTES))
        rows = max(1, -(-columns.num_rows // count))
        for at in range(0, columns.num_rows, rows):
            yield columns.slice(at, rows)


def _checksum_chunk(chunk: pa.RecordBatch, topic: str | None) -> RowChecksum:
    columns = {name: chunk.column(name) for name in chunk.schema.names}
    return checksum_columns(
        columns["value"],
        columns.get("key"),
        columns.get("topic") if topic is None else None,
        columns.get("partition"),
        columns.get("headers"),
    )
