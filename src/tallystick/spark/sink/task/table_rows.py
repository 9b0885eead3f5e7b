"""Rows of `format("tallystick")` with a lake table. Imported only for a query with the option `table`.

`foreach_batch` has Spark project a batch to its sinks, and hash each row. A writer of a data source gets
the rows as they are, so the task does both, and gives them to the task of `foreach_batch`: the record of a
row from the columns of Spark's own sink, the row of the table from the column `row`.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tallystick.kernel.value import Value, replace
from tallystick.lake.names import NO_OPTIONS
from tallystick.lake.schema import TableDefinition
from tallystick.spark.options.sink_options import SinkOptions
from tallystick.spark.options.sinks import Sink, ToTable
from tallystick.spark.protocol.committable import BatchLease, Job, Vote
from tallystick.spark.sink.task.attempt import COLUMNS, ROW_COLUMN
from tallystick.spark.sink.task.combined_attempt import (
    HASH_COLUMN,
    CombinedTask,
    LakeTarget,
    name_sink_column,
)
from tallystick.spark.sink.task.row_checksum import hash_records, hash_rows


class VotedFiles(Value):
    """A task's data files as its vote has them, their rows, and the definition they were written for."""

    files: str
    row_count: int
    definition: TableDefinition


class TableBatch(Value):
    """The table of a batch as its tasks need it, and the sinks of its rows: the table is the last one."""

    target: LakeTarget
    sinks: tuple[Sink, ...]


def write_rows(
    options: SinkOptions,
    batch: TableBatch,
    lease: BatchLease,
    job: Job,
    rows: Iterable[pa.RecordBatch],
) -> tuple[Vote, VotedFiles]:
    """Write or count the rows of one task. Raises: as `CombinedTask.run`."""
    task = CombinedTask(options=options, lease=lease, job=job, sinks=batch.sinks, store=batch.target)
    vote, files = task.run(split_rows(rows, batch.sinks))
    # Every task sends it back: without what is long or secret, and is not compared.
    definition = replace(batch.target.definition, file_options=NO_OPTIONS)
    return vote, VotedFiles(files, vote.row_checksums[-1].rows, definition)


def split_rows(batches: Iterable[pa.RecordBatch], sinks: Sequence[Sink]) -> Iterator[pa.RecordBatch]:
    """Yield batches with one column of structs for each sink, as `project_sinks` makes them."""
    names = [name_sink_column(number) for number in range(len(sinks))]
    for batch in batches:
        columns = [
            _build_rows(batch) if isinstance(sink, ToTable) else _build_records(batch, sink.topic)
            for sink in sinks
        ]
        yield pa.RecordBatch.from_arrays(columns, names=names)


def _build_records(batch: pa.RecordBatch, topic: str) -> pa.StructArray:
    columns = {name: batch.column(name) for name in COLUMNS if name in batch.schema.names}
    hashes = hash_records(
        columns["value"],
        columns.get("key"),
        None if topic else columns.get("topic"),
        columns.get("partition"),
        columns.get("headers"),
    )
    return pa.StructArray.from_arrays([*columns.values(), _to_arrow(hashes)], names=[*columns, HASH_COLUMN])


def _build_rows(batch: pa.RecordBatch) -> pa.StructArray:
    rows = batch.column(ROW_COLUMN)
    columns = rows.flatten()  # where a row is null, each of its columns is
    fields = [*rows.type, pa.field(HASH_COLUMN, pa.int64())]
    return pa.StructArray.from_arrays(
        [*columns, _to_arrow(hash_rows(columns, len(rows)))],
        fields=fields,
        mask=rows.is_null() if rows.null_count else None,
    )


def _to_arrow(hashes: Any) -> pa.Array:
    """Return hashes as Spark's own, which are signed."""
    return pa.array(hashes.view(np.int64))
