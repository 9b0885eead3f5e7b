"""One task attempt for several sinks: it prepares one transaction of records, and stages the rows of tables.

The rows of a lake table become data files, which are finished before the attempt votes.

It is `run_attempt` for several topics and tables: it checks the lease at the same places, and returns the
same vote, with a tally for each sink.
"""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from secrets import token_hex
from typing import TYPE_CHECKING, Final, cast

import numpy as np
import pyarrow as pa

from tallystick.client.blocking.producer import Producer
from tallystick.kernel.check import require
from tallystick.kernel.value import Value
from tallystick.lake.data_files import AttemptName, DataFileWriter
from tallystick.lake.opening import LakeLocation, open_file_writer
from tallystick.lake.schema import TableDefinition
from tallystick.spark import sink as spark_sink
from tallystick.spark import tracing
from tallystick.spark.decisions.lake_row import encode_files
from tallystick.spark.options.rights import explain_missing_right
from tallystick.spark.options.sink_options import SinkOptions
from tallystick.spark.options.sinks import Sink, ToTable, ToTopic, name_sinks
from tallystick.spark.protocol.committable import (
    BatchLease,
    Job,
    Participant,
    RowChecksum,
    Vote,
    encode_vote,
)
from tallystick.spark.protocol.decide import TaskAction
from tallystick.spark.sink.task.attempt import open_producer, plan_attempt, prepare, send_records
from tallystick.spark.sink.task.context import OpenTaskContext, get_task_context
from tallystick.spark.sink.task.next_producer import OpenedProducer

if TYPE_CHECKING:
    from tallystick.spark.decisions.database import DecisionDatabase
    from tallystick.spark.decisions.staging import StagingTable


HASH_COLUMN: Final = "tallystick_hash"
_ATTEMPT_BYTES: Final = 8
_CHUNK_BYTES: Final = 4 * 1024 * 1024
_CHUNK_ROWS: Final = 5_000


def name_sink_column(number: int) -> str:
    return f"sink_{number}"


class LakeTarget(Value, kw_only=True):
    """The table of a batch as its tasks need it: they write data files, and do not read the table."""

    location: LakeLocation
    definition: TableDefinition
    keys: tuple[str, ...] = ()


class CombinedTask(Value, kw_only=True):
    """The function that each task of a batch runs. It is pickled, and connects in the task's process."""

    options: SinkOptions
    lease: BatchLease
    job: Job
    sinks: tuple[Sink, ...]
    store: "DecisionDatabase | LakeTarget | None"
    open_context: OpenTaskContext = get_task_context
    trace_carrier: tracing.Carrier = tracing.NO_CARRIER

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield one row: the vote, and the name of the attempt or its data files.

        Args:
            batches: one column of structs for each sink, as `project_sinks` makes them.
        """
        tracing.set_up(self.options.tracing_setup)
        with (
            tracing.resume(self.trace_carrier),
            tracing.trace_part("spark task", self.options.prefix, self.job) as trace,
        ):
            vote, attempt = self.run(batches)
            trace.describe_votes([vote])
        yield pa.record_batch([pa.array([encode_vote(vote)]), pa.array([attempt])], names=["vote", "attempt"])

    def run(self, batches: Iterable[pa.RecordBatch]) -> tuple[Vote, str]:
        """Write or count the rows. Raises: SinkErrors, BadConfig, errors of client and database."""
        action = plan_attempt(self.options, self.lease, self.job)
        row_checksums = [RowChecksum()] * len(self.sinks)
        with explain_missing_right(self.options), ExitStack() as stack:
            attempt = _CombinedAttempt(self, stack)
            for batch in batches:
                for number, rows in _split_by_sink(batch):
                    row_checksums[number] = row_checksums[number].combine(_checksum_rows(rows))
                    if action is TaskAction.WRITE:
                        attempt.write(number, rows)
            participant, mode = attempt.prepare()
        vote = Vote(
            nonce=self.lease.nonce,
            coordinator=self.lease.coordinator,
            transaction_version=self.lease.transaction_version,
            job=self.job,
            row_checksums=tuple(row_checksums),
            participant=participant,
            is_skipped=action is TaskAction.SKIP,
            mode=mode,
            began_ms=self.lease.began_ms,
            last_nonce=self.lease.last_nonce,
            sinks=name_sinks(self.sinks),
        )
        return vote, attempt.moves


class _CombinedAttempt:
    """The output of one task: a transaction, which begins with the first record, and staged rows."""

    def __init__(self, work: CombinedTask, stack: ExitStack) -> None:
        self.name = token_hex(_ATTEMPT_BYTES)
        self._task, self._stack = work, stack
        self._next_producer: OpenedProducer | None = None
        self._staged_row_counts: dict[str, int] = {}
        self._staging_tables: dict[str, StagingTable] = {}
        self._data_files: DataFileWriter | None = None
        self.moves = self.name

    def write(self, number: int, rows: pa.RecordBatch) -> None:
        match self._task.sinks[number]:
            case ToTopic(topic=topic):
                for chunk in _iter_chunks(rows):
                    send_records(self._get_producer(), drop_hash(chunk), topic or None)
            case ToTable() if isinstance(self._task.store, LakeTarget):
                self._get_data_files(self._task.store).write(drop_hash(rows))
            case ToTable(table=table):
                for chunk in _iter_chunks(rows):
                    first_number = self._staged_row_counts.get(table, 0)
                    self._get_staging_table(table).stage(self.name, first_number, chunk)
                    self._staged_row_counts[table] = first_number + chunk.num_rows

    def _get_data_files(self, target: LakeTarget) -> DataFileWriter:
        if self._data_files is None:
            work = self._task
            self._data_files = open_data_files(target, work.options.prefix, work.lease)
            self._stack.push(self._discard_on_error)
        return self._data_files

    def _discard_on_error(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and self._data_files is not None:
            self._data_files.discard()

    def _get_staging_table(self, table: str) -> "StagingTable":
        if not self._staging_tables:
            work = self._task
            tables = tuple(each for each in work.sinks if isinstance(each, ToTable))
            self._staging_tables = {
                each.sink.table: each
                for each in spark_sink.staging.get_staging_tables(
                    work.options.prefix, self._require_database(), tables
                )
            }
        return self._staging_tables[table]

    def _require_database(self) -> "DecisionDatabase":
        store = self._task.store
        return cast("DecisionDatabase", require(store, "a sink with tables has a database"))

    def _get_producer(self) -> Producer:
        if self._next_producer is None:
            context = self._task.open_context(self._task.options)
            self._next_producer = open_producer(context, self._task.lease)
            # On an exception before the prepare, the producer's exit aborts.
            self._stack.enter_context(self._next_producer.producer).begin_transaction()
        return self._next_producer.producer

    def prepare(self) -> tuple[Participant | None, str]:
        """Prepare the transaction; return it and its mode, or None and an empty mode without records."""
        if isinstance(self._task.store, LakeTarget):
            # Before the prepare: a data file that cannot be finished aborts the transaction.
            self.moves = encode_files(() if self._data_files is None else self._data_files.finish())
        if self._next_producer is None:
            return None, ""
        context = self._task.open_context(self._task.options)
        participant, mode = prepare(context, self._task.lease, self._next_producer, self._stack)
        topics = {each.topic for each in self._task.sinks if isinstance(each, ToTopic) and each.topic}
        context.next_producer.open(self._task.lease, self._next_producer.producer, topics)
        return participant, mode


def _split_by_sink(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the rows of each sink that gets some, with the sink's number."""
    for number, column in enumerate(batch.columns):
        rows = column.filter(column.is_valid()) if column.null_count else column
        if len(rows):
            yield number, pa.RecordBatch.from_struct_array(rows)


def _checksum_rows(rows: pa.RecordBatch) -> RowChecksum:
    hashes = rows.column(HASH_COLUMN).to_numpy().astype(np.uint64)
    return RowChecksum(rows.num_rows, int(np.add.reduce(hashes)))


def _iter_chunks(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield the rows in pieces of bounded size, which fit into buffer.memory and into an SQL statement."""
    count = max(-(-rows.nbytes // _CHUNK_BYTES), -(-rows.num_rows // _CHUNK_ROWS))
    size = -(-rows.num_rows // count)
    for at in range(0, rows.num_rows, size):
        yield rows.slice(at, size)


def open_data_files(target: LakeTarget, prefix: str, lease: BatchLease) -> DataFileWriter:
    """Return the writer of one attempt's data files."""
    name = AttemptName(key=prefix, owner=str(lease.coordinator), attempt=token_hex(_ATTEMPT_BYTES))
    return open_file_writer(target.location, target.definition, name, is_source=bool(target.keys))


def drop_hash(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows without the hash that the projection has added."""
    return rows.select([name for name in rows.schema.names if name != HASH_COLUMN])
