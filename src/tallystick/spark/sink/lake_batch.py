"""A batch with a lake table: the driver compares its rows with the table, and the tasks write its data files.

target = prepare_target(location, sink, rows)     driver, before the batch begins
writer = open_data_files(target, prefix, lease)   each attempt
"""

from pathlib import Path
from secrets import token_hex
from typing import Final, cast

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import DataType, StructType

from tallystick import lake
from tallystick.kernel.check import check
from tallystick.kernel.value import Value, replace
from tallystick.lake.data_files import AttemptName, DataFileWriter
from tallystick.lake.errors import SchemaDiffers, UnusableTable
from tallystick.lake.names import parse_table_url
from tallystick.lake.opening import LakeLocation, open_table
from tallystick.lake.schema import TableDefinition, find_added_columns, find_column_problems
from tallystick.lake.storage import open_storage
from tallystick.spark.options.sinks import ToTable
from tallystick.spark.protocol.committable import BatchLease
from tallystick.spark.sink.projection import HASH_COLUMN

_ATTEMPT_BYTES: Final = 8


class LakeTarget(Value, kw_only=True):
    """The table of a batch as its tasks need it: they write data files, and do not read the table."""

    location: LakeLocation
    definition: TableDefinition
    keys: tuple[str, ...] = ()


def locate_table(sink: ToTable) -> LakeLocation:
    """Return where the table of a sink is, as the driver's working directory has it. Raises: BadConfig."""
    url = parse_table_url(sink.table)
    if url.is_path:
        url = replace(url, place=str(Path(url.place).absolute()))
    return LakeLocation(url=url, storage_options=sink.storage_options)


def prepare_target(location: LakeLocation, sink: ToTable, rows: DataType) -> LakeTarget:
    """Compare the rows of a batch with the table, on the driver and before the batch begins.

    Args:
        rows: the type of the column with the table's rows, a struct.
    Raises: UnusableTable; SchemaDiffers with all problems.
    """
    table = open_table(location)
    columns = _read_columns(rows)
    definition = table.read_definition()
    if definition.problems:
        raise UnusableTable(f"table {table.url}: {'; '.join(definition.problems)}. Nothing was begun")
    problems = list(find_column_problems(definition, columns, merge_schema=sink.merge_schema))
    problems += [f"key {key} is no column of the batch" for key in sink.keys if key not in columns.names]
    if problems:
        raise SchemaDiffers("\n".join(f"table {table.url}: {each}. Nothing was written" for each in problems))
    new_columns = find_added_columns(definition, columns)
    if new_columns.names:
        table.add_columns(TableDefinition(identity=definition.identity, schema=new_columns))
        definition = table.read_definition()
    return LakeTarget(location=location, definition=definition, keys=sink.keys)


def _read_columns(kind: DataType) -> pa.Schema:
    check(isinstance(kind, StructType), "a table's rows are a column of structs")
    fields = [field for field in cast(StructType, kind).fields if field.name != HASH_COLUMN]
    return to_arrow_schema(StructType(fields), timezone="UTC")


def open_data_files(target: LakeTarget, prefix: str, lease: BatchLease) -> DataFileWriter:
    """Return the writer of one attempt's data files."""
    name = AttemptName(key=prefix, owner=str(lease.coordinator), attempt=token_hex(_ATTEMPT_BYTES))
    definition = target.definition
    if target.location.url.format == "iceberg":
        return lake.iceberg_files.IcebergFileWriter(definition, name)
    if target.keys:
        # These files are read again for the upsert, and are no part of the table.
        definition = replace(definition, partition_columns=())
    storage = open_storage(target.location.url, dict(target.location.storage_options))
    return DataFileWriter(storage, definition, name)


def drop_hash(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows without the hash that the projection has added."""
    return rows.select([name for name in rows.schema.names if name != HASH_COLUMN])
