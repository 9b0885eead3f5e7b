"""Data files of one attempt: Arrow batches in, finished Parquet files out.

Rows are kept until a row group is full, and a file is closed when it has its size: one file for each value of
the partition columns. A file is durable when it is finished; no commit names it before. The attempt that
fails removes its files; what a killed process leaves is an orphan (`orphans`).
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tallystick.kernel.check import require
from tallystick.kernel.value import Value
from tallystick.lake.delta_statistics import FileStatistics
from tallystick.lake.errors import SchemaDiffers
from tallystick.lake.names import format_data_file_name
from tallystick.lake.ports import DataFile
from tallystick.lake.schema import TableDefinition
from tallystick.lake.storage import Storage

ROW_GROUP_BYTES: Final = 32 * 1024 * 1024
FILE_BYTES: Final = 128 * 1024 * 1024
# Rows of all partitions that are in memory; then the largest one is written.
BUFFER_BYTES: Final = 64 * 1024 * 1024

UPLOAD_BYTES: Final = 256 * 1024 * 1024
"""What all uploads of a task hold in memory; a folder's files are on a disk."""

PartitionKey = tuple[str | None, ...]


class AttemptName(Value, kw_only=True):
    """The parts of the names of an attempt's files."""

    key: str
    owner: str
    attempt: str


class _OpenFile:
    """A file that is being written, and the rows that wait for its next row group."""

    def __init__(self, statistics: FileStatistics) -> None:
        self.statistics = statistics
        self.batches: list[pa.RecordBatch] = []
        self.waiting_bytes = 0
        self.sink: pa.BufferOutputStream | Any = None
        self.writer: pq.ParquetWriter | None = None
        self.metadata: list[pq.FileMetaData] = []
        self.path = ""


class DataFileWriter:
    """The writer of one attempt. It belongs to one thread."""

    def __init__(
        self, storage: Storage, definition: TableDefinition, name: AttemptName, *, is_source: bool = False
    ) -> None:
        """Begin without a file.

        Args:
            is_source: the files are read again for an upsert, and are no part of the table: not divided.
        """
        self._is_source = is_source
        self._storage, self._definition, self._name = storage, definition, name
        self._parquet_options: Mapping[str, Any] = {}
        partition_columns = definition.partition_columns
        self._stored_columns = pa.schema([e for e in definition.schema if e.name not in partition_columns])
        self._bounded_max = int(definition.layout) if definition.layout.isdecimal() else None
        self._open_files: dict[PartitionKey, _OpenFile] = {}
        self._buffered_bytes = 0
        self._paths: list[str] = []
        self._files: list[DataFile] = []

    def write(self, rows: pa.RecordBatch) -> None:
        """Append rows with columns of the table. Raises: SchemaDiffers for a null where none may be."""
        for key, part in self._split(rows):
            if key not in self._open_files:
                statistics = FileStatistics(self._stored_columns, self._bounded_max)
                self._open_files[key] = _OpenFile(statistics)
            file = self._open_files[key]
            file.batches.append(part)
            file.waiting_bytes += part.nbytes
            self._buffered_bytes += part.nbytes
            if file.waiting_bytes >= ROW_GROUP_BYTES:
                self._write_row_group(key)
        while self._buffered_bytes >= BUFFER_BYTES:
            self._write_row_group(max(self._open_files, key=lambda key: self._open_files[key].waiting_bytes))

    def finish(self) -> tuple[DataFile, ...]:
        """Close all files; they are durable when this returns."""
        while self._open_files:
            key = next(iter(self._open_files))
            self._write_row_group(key)
            if key in self._open_files:  # a file that has its size is closed
                self._close(key)
        return tuple(self._files)

    def discard(self) -> None:
        """Remove the files, as far as that is possible: what stays is an orphan."""
        for file in self._open_files.values():
            if file.writer is not None:
                # What has failed once may not close, and the file goes anyway.
                with suppress(Exception):
                    file.writer.close()
                with suppress(Exception):
                    self._storage.abandon(file.sink)
        for path in self._paths:
            self._storage.try_remove(path)

    # ---- rows

    def _split(self, rows: pa.RecordBatch) -> Iterator[tuple[PartitionKey, pa.RecordBatch]]:
        """Yield the rows of each partition in the table's types, without the partition's columns."""
        rows = self._convert(rows)
        columns = self._definition.partition_columns
        if not columns:
            yield (), rows
            return
        values = [_format_partition_values(rows, name) for name in columns]
        if self._is_source:
            yield (), rows
            return
        stored = [name for name in rows.schema.names if name not in columns]
        keys = pa.StructArray.from_arrays(values, names=list(columns)).to_pylist()
        groups: dict[PartitionKey, list[int]] = {}
        for at, key in enumerate(keys):
            groups.setdefault(tuple(key.values()), []).append(at)
        for partition, places in groups.items():
            part = rows.select(stored)
            yield partition, part if len(groups) == 1 else part.take(pa.array(places))

    def _convert(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        fields, arrays = [], []
        for field in self._definition.schema:
            if field.name not in rows.schema.names:
                continue
            array = rows.column(field.name).cast(field.type)
            if not field.nullable and array.null_count:
                raise SchemaDiffers(
                    f"column {field.name} may not be null, and {array.null_count} rows of this batch have "
                    "none. Nothing of it was decided"
                )
            fields.append(field)
            arrays.append(array)
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))

    # ---- files

    def _write_row_group(self, key: PartitionKey) -> None:
        file = self._open_files[key]
        if not file.batches:
            return
        table = self._arrange(pa.Table.from_batches(file.batches))
        if file.writer is None:
            self._close_largest()
            self._open(file, table.schema)
        writer = require(file.writer, "a file with a row group has a writer")
        writer.write_table(table, row_group_size=table.num_rows)
        self._observe(file.statistics, table)
        self._buffered_bytes -= file.waiting_bytes
        file.batches, file.waiting_bytes = [], 0
        if file.sink.tell() >= FILE_BYTES:
            self._close(key)

    def _close_largest(self) -> None:
        """Finish files, so that what they hold in memory is bounded, however many partitions there are."""
        written = {key: file for key, file in self._open_files.items() if file.writer is not None}
        while self._storage.buffer_bytes * (len(written) + 1) > UPLOAD_BYTES:
            key = max(written, key=lambda key: written[key].sink.tell())
            del written[key]
            self._write_row_group(key)
            if key in self._open_files:  # a file that has its size is closed
                self._close(key)

    def _observe(self, statistics: FileStatistics, rows: pa.Table) -> None:
        """Add the rows of a row group to the statistics of its file."""
        statistics.add(rows)

    def _arrange(self, rows: pa.Table) -> pa.Table:
        """Return the rows of a row group in their order."""
        return rows

    def _open(self, file: _OpenFile, schema: pa.Schema) -> None:
        name = self._name
        file.path = format_data_file_name(
            self._definition.identity, name.key, name.owner, name.attempt, len(self._paths)
        )
        self._paths.append(file.path)
        file.sink = self._storage.create(file.path)
        file.writer = pq.ParquetWriter(
            file.sink,
            schema,
            compression="zstd",
            version="2.6",
            metadata_collector=file.metadata,
            **self._parquet_options,
        )

    def _close(self, key: PartitionKey) -> None:
        file = self._open_files[key]
        if file.writer is not None:
            file.writer.close()
            self._finish(key, file)
        del self._open_files[key]

    def _finish(self, key: PartitionKey, file: _OpenFile) -> None:
        size_bytes = self._storage.finish(file.path, file.sink)
        (metadata,) = file.metadata
        partition, statistics = self._describe(key, metadata, file.statistics)
        self._files.append(
            DataFile(
                path=file.path,
                size_bytes=size_bytes,
                row_count=metadata.num_rows,
                partition=partition,
                statistics=statistics,
                written_ms=time.time_ns() // 1_000_000,
            )
        )

    def _describe(
        self, key: PartitionKey, metadata: pq.FileMetaData, statistics: FileStatistics
    ) -> tuple[Mapping[str, str | None], str]:
        """Return the partition of a file, and its statistics."""
        columns = () if self._is_source else self._definition.partition_columns
        return dict(zip(columns, key, strict=True)), statistics.to_json()


def _format_partition_values(rows: pa.RecordBatch, name: str) -> pa.Array:
    """Return the values of a partition column as the format writes them.

    Raises: SchemaDiffers for an empty text, which reads back as null (Delta's protocol, "Partition Value
        Serialization").
    """
    if name not in rows.schema.names:
        return pa.nulls(rows.num_rows, pa.string())
    values = rows.column(name).cast(pa.string())
    if pc.any(pc.equal(values, "")).as_py():
        raise SchemaDiffers(
            f"partition column {name} is an empty text in some rows, and would be read back as null. "
            "Nothing of this batch was decided"
        )
    return values
