"""Upserts into an Iceberg table: files that have rows with the batch's keys are rewritten without them.

Copy on write: readers need no delete files. The batch's own data files stay as the tasks wrote them. Deleted,
rewritten and new files are one snapshot, which is the decision. `Table.upsert` makes several snapshots of it,
and writes the rows again that the tasks have written.
"""

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import types
from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression, GreaterThanOrEqual, LessThanOrEqual
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.manifest import DataFile as ManifestFileEntry
from pyiceberg.table import Table

from tallystick.lake.data_files import DataFileWriter
from tallystick.lake.ports import DataFile
from tallystick.lake.storage import Storage, map_files

_PLACE: Final = "place of the row"


def read_keys(storage: Storage, files: Sequence[DataFile], keys: Sequence[str]) -> pa.Table:
    """Return the key columns of data files."""
    contents = map_files(storage, storage.read, [file.path for file in files])
    return pa.concat_tables(
        pq.read_table(pa.BufferReader(content), columns=list(keys)) for content in contents if content
    )


def rewrite_files(
    table: Table, batch_keys: pa.Table, writer: DataFileWriter
) -> tuple[list[ManifestFileEntry], Sequence[DataFile]]:
    """Write the table's files without the rows that have these keys.

    Returns: the files that are to be deleted, and those that replace them.
    Cost: one file that has such a row is in memory at a time.
    """
    scan = table.scan(row_filter=_build_filter(batch_keys))
    reader = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue())
    replaced: list[ManifestFileEntry] = []
    for task in scan.plan_files():
        rows = reader.to_table(tasks=[task])
        others = _drop_rows(rows, batch_keys)
        if others.num_rows == rows.num_rows:
            continue
        replaced.append(task.file)
        for part in others.to_batches():
            writer.write(part)
    return replaced, writer.finish()


def _drop_rows(rows: pa.Table, batch_keys: pa.Table) -> pa.Table:
    """Return the rows whose keys are not in the batch, in their order."""
    keys = batch_keys.column_names
    wanted = pa.schema([rows.schema.field(name) for name in keys])
    # A join takes no columns of structs or lists, so only the keys are joined.
    numbered = rows.select(keys).append_column(_PLACE, pa.array(range(rows.num_rows), pa.int64()))
    others = numbered.join(batch_keys.cast(wanted), keys, join_type="left anti")
    return rows.take(others.column(_PLACE).take(pc.sort_indices(others.column(_PLACE))))


def _build_filter(batch_keys: pa.Table) -> BooleanExpression:
    """Return a filter that holds for every row with a key of the batch: it only spares files to be read."""
    bounding: BooleanExpression = AlwaysTrue()
    for name in batch_keys.column_names:
        column = batch_keys.column(name)
        if types.is_integer(column.type) or types.is_large_string(column.type) or types.is_date(column.type):
            bounds: Any = pc.min_max(column).as_py()
            least: Any = GreaterThanOrEqual
            most: Any = LessThanOrEqual
            bounding = And(bounding, least(name, bounds["min"]), most(name, bounds["max"]))
    return bounding
