"""A batch with a lake table: the driver compares its rows with the table, and the tasks write its data files.

table = look_up_table(session, table)             driver, if the table has a name in Spark's catalog
target = prepare_target(location, sink, rows)     driver, before the batch begins
writer = open_data_files(target, prefix, lease)   each attempt
"""

from collections.abc import Sequence
from pathlib import Path
from secrets import token_hex
from typing import Final, cast

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import DataType, StructType

from tallystick.kernel.check import check
from tallystick.kernel.value import Value, replace
from tallystick.lake.data_files import AttemptName, DataFileWriter
from tallystick.lake.errors import SchemaDiffers, UnusableTable
from tallystick.lake.names import find_url_problem, is_catalog_url, parse_table_url
from tallystick.lake.opening import LakeLocation, open_file_writer, open_table
from tallystick.lake.schema import TableDefinition, find_added_columns, find_column_problems
from tallystick.spark.options.sinks import ToTable, quote_column
from tallystick.spark.protocol.committable import BatchLease
from tallystick.spark.runtime.arrow_types import to_arrow_schema
from tallystick.spark.sink.projection import HASH_COLUMN

_ATTEMPT_BYTES: Final = 8
_PROPERTIES: Final = "# Detailed Table Information"


class LakeTarget(Value, kw_only=True):
    """The table of a batch as its tasks need it: they write data files, and do not read the table."""

    location: LakeLocation
    definition: TableDefinition
    keys: tuple[str, ...] = ()


def look_up_table(session: SparkSession, table: str) -> str:
    """Return the URL of a lake table, with its path if it has the table's name in Spark's catalog.

    Raises: UnusableTable if Spark has no Delta table of that name.
    """
    if not is_catalog_url(table):
        return table
    name = ".".join(quote_column(part) for part in parse_table_url(table).place.split("."))
    try:
        rows = session.sql(f"DESCRIBE TABLE EXTENDED {name}").collect()
    except PySparkException as exc:
        raise UnusableTable(
            f"table {table}: is a name in Spark's catalog, and Spark does not find it there "
            f"({str(exc).splitlines()[0].rstrip('.')}). Nothing was begun; a relative path begins with ./"
        ) from exc
    path = read_delta_location([(row.col_name, row.data_type) for row in rows])
    if path is None:
        raise UnusableTable(f"table {table}: is no Delta table in Spark's catalog. Nothing was begun")
    url = f"delta:{path}"
    problem = find_url_problem(url)
    if problem is not None:
        raise UnusableTable(f"{problem}. Spark's catalog has {table} there; nothing was begun")
    return url


def read_delta_location(rows: Sequence[tuple[str, str]]) -> str | None:
    """Return the place of a Delta table as a path or URL; None for another table, or a view.

    Args:
        rows: the first two columns of DESCRIBE TABLE EXTENDED: the table's columns, which may have any name,
            then its properties.
    """
    names = [name for name, _ in rows]
    if _PROPERTIES not in names:
        return None
    properties = dict(rows[names.index(_PROPERTIES) + 1 :])
    place = properties.get("Location")
    if properties.get("Provider", "").lower() != "delta" or not place:
        return None
    return "/" + place.removeprefix("file:").lstrip("/") if place.startswith("file:") else place


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
    if sink.keys and definition.is_append_only:
        problems.append(
            "has delta.appendOnly=true, so that no row is ever replaced: an upsert is not possible. "
            "Append, or unset the property"
        )
    if sink.keys and table.keeps_upserted_files:  # rows are replaced by those of the files, as they are
        problems += [
            f"the upsert has no column {name}, which the rows that it replaces would lose. Write all "
            "columns: join the batch with the table, or say cast(null as ...)"
            for name in definition.schema.names
            if name not in columns.names
        ]
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
    return to_arrow_schema(StructType(fields))


def open_data_files(target: LakeTarget, prefix: str, lease: BatchLease) -> DataFileWriter:
    """Return the writer of one attempt's data files."""
    name = AttemptName(key=prefix, owner=str(lease.coordinator), attempt=token_hex(_ATTEMPT_BYTES))
    return open_file_writer(target.location, target.definition, name, is_source=bool(target.keys))


def drop_hash(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows without the hash that the projection has added."""
    return rows.select([name for name in rows.schema.names if name != HASH_COLUMN])
