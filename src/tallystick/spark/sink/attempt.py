"""One task attempt of the Spark sink: write its rows in a transaction and prepare it, or count and drop them.

    holds?   check that the lease is the last one, before any id is initialised: a late task of an older lease
             must not touch an id that a newer lease has used since. Left out if an id of this process was
             initialised when its last task was over (`next_producer`)
    write    init, begin, send, prepare, under an id of this process
    holds?   check again. If a newer lease was taken meanwhile, its sweep may have missed this transaction, so
             the task aborts it; otherwise it would stay open for ever under two-phase commit

The attempt does not depend on partition, attempt or stage numbers: Spark repeats them as it likes [SPK-20].
"""

import logging
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from typing import Final

import pyarrow as pa

from tallystick.client.transactions.prepared import PreparedTxnState
from tallystick.kernel.check import check, require
from tallystick.spark.protocol.committable import BatchLease, Job, MicroBatch, Participant, RowChecksum, Vote
from tallystick.spark.protocol.decide import TaskAction, plan_task
from tallystick.spark.protocol.errors import InvalidRows, PrefixTaken, SinkError
from tallystick.spark.protocol.transactional_ids import WorkerTransactionalId
from tallystick.spark.sink.context import SinkContext
from tallystick.spark.sink.next_producer import OpenedProducer
from tallystick.spark.sink.row_checksum import checksum_columns

_log = logging.getLogger("tallystick.spark")

COLUMNS: Final = ("key", "value", "topic", "partition", "headers")
# Rows go to the producer in pieces, of which buffer.memory holds several.
_CHUNK_BYTES: Final = 4 * 1024 * 1024


def run_attempt(station: SinkContext, lease: BatchLease, job: Job, batches: Iterable[pa.RecordBatch]) -> Vote:
    """Write or skip the rows of one task.

    Args:
        batches: rows with the sink's columns. They are always read to their end: Spark fails a stateful query
            whose plan did not run to its end, since its state stores did not commit (SPARK-52008).
    Raises: SinkErrors, the client's errors; then this attempt leaves nothing open.
    """
    way = TaskAction.SKIP if lease.repeats else TaskAction.WRITE
    if isinstance(job, MicroBatch):
        plan = plan_task(
            lease.last_decision, job, station.options.on_new_checkpoint, station.options.on_new_prefix
        )
        if isinstance(plan, SinkError):
            raise plan
        way = plan
    pieces = _iter_chunks(batches)
    total, participant, mode = RowChecksum(), None, ""
    if way is TaskAction.SKIP:
        for piece in pieces:
            total = total.combine(_checksum_chunk(piece, station.options.topic))
    elif (first_piece := next(pieces, None)) is not None:
        total, participant, mode = _write_and_prepare(station, lease, first_piece, pieces)
    return Vote(
        nonce=lease.nonce,
        coordinator=lease.coordinator,
        transaction_version=lease.transaction_version,
        job=job,
        tallies=(total,),
        participant=participant,
        is_skipped=way is TaskAction.SKIP,
        mode=mode,
        began_ms=lease.began_ms,
        last_nonce=lease.last_nonce,
    )


def _write_and_prepare(
    station: SinkContext,
    lease: BatchLease,
    first_piece: pa.RecordBatch,
    other_pieces: Iterator[pa.RecordBatch],
) -> tuple[RowChecksum, Participant, str]:
    opened = open_producer(station, lease)
    topic, total = station.options.topic, RowChecksum()
    with ExitStack() as stack:
        producer = stack.enter_context(opened.producer)  # on an exception before the prepare, its exit aborts
        mode = producer.mode
        check(mode is not None, "the sink prepares, so a mode is in force")
        producer.begin_transaction()
        piece: pa.RecordBatch | None = first_piece
        while piece is not None:
            try:
                producer.send_arrow(piece, topic)
            except ValueError as exc:  # a row has no topic; the types were checked with the schema
                raise InvalidRows(f"{exc}; nothing of this batch was decided") from exc
            total = total.combine(_checksum_chunk(piece, topic))
            piece = next(other_pieces, None)
        state = producer.prepare_transaction()
        try:
            check_lease(station, lease)
        except BaseException:
            producer.abort_transaction()
            raise
        stack.pop_all()
    station.next_producer.open(lease, producer, () if topic is None else (topic,))
    return total, _to_participant(opened.name, state), "" if mode is None else mode.value


def open_producer(station: SinkContext, lease: BatchLease) -> OpenedProducer:
    """Return an initialised producer for one attempt. Raises: PrefixTaken; the client's errors.

    The lease is checked before an id is initialised. One that was initialised before needs no check: the one
    after the prepare finds out what this one would.
    """
    opened = station.next_producer.take(lease)
    if opened is None:
        check_lease(station, lease)
        name = station.worker_ids.acquire(lease)
        opened = OpenedProducer(name=name, producer=station.create_producer(name))
        try:
            opened.producer.init_transactions()
        except BaseException:
            opened.producer.close()
            raise
    return opened


def check_lease(station: SinkContext, lease: BatchLease) -> None:
    """Raise PrefixTaken unless the lease is the last one."""
    if not station.owns_prefix(lease.coordinator):
        raise PrefixTaken(station.options.prefix, "this batch was given up, or another query began")


def _to_participant(name: WorkerTransactionalId, state: PreparedTxnState) -> Participant:
    identity = require(state.identity, "rows were sent, so something is prepared")
    return Participant(transactional_id=str(name), identity=identity)


def _iter_chunks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the sink's columns of all rows, in pieces of bounded size, none of them empty."""
    for batch in batches:
        columns = batch.select([name for name in COLUMNS if name in batch.schema.names])
        count = max(1, -(-columns.nbytes // _CHUNK_BYTES))
        rows = max(1, -(-columns.num_rows // count))
        for at in range(0, columns.num_rows, rows):
            yield columns.slice(at, rows)


def _checksum_chunk(piece: pa.RecordBatch, topic: str | None) -> RowChecksum:
    columns = {name: piece.column(name) for name in piece.schema.names}
    return checksum_columns(
        columns["value"],
        columns.get("key"),
        columns.get("topic") if topic is None else None,
        columns.get("partition"),
        columns.get("headers"),
    )
