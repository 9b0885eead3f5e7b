"""Batches with a lake table, in the driver. It needs the library of the table's format: the extra `delta`.

    table = look_up_table(session, table)           if the table has a name in Spark's catalog
    target = prepare_target(location, sink, rows)   before the batch begins

A query of `format("tallystick")` with the option `table` has no sinks of its own:

    batch = prepare_table(options, columns)         before the batch begins
    stage_files(context, table, votes, files)       in another process: the files to be decided

The tasks write the data files (`task.combined_attempt`, `task.table_rows`).
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, cast

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import DataType, StructType

from tallystick.kernel.check import check, require
from tallystick.kernel.value import replace
from tallystick.lake.errors import SchemaDiffers, UnusableTable
from tallystick.lake.names import find_url_problem, is_catalog_url, parse_table_url
from tallystick.lake.opening import LakeLocation, open_table
from tallystick.lake.schema import TableDefinition, find_added_columns, find_column_problems
from tallystick.spark.options.sink_options import SinkOptions
from tallystick.spark.options.sinks import StagedMoves, ToTable, ToTopic, quote_column
from tallystick.spark.protocol.committable import Vote
from tallystick.spark.sink.driver.columns import has_records, to_arrow_schema
from tallystick.spark.sink.driver.context import SinkContext, get_sink_context
from tallystick.spark.sink.driver.lake_context import LakeSinkContext, OpenLakeContext
from tallystick.spark.sink.task.attempt import ROW_COLUMN
from tallystick.spark.sink.task.combined_attempt import HASH_COLUMN, LakeTarget
from tallystick.spark.sink.task.table_rows import TableBatch, VotedFiles

_PROPERTIES: Final = "# Detailed Table Information"


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


def prepare_table(options: SinkOptions, columns: StructType) -> TableBatch:
    """Compare the rows of a batch with the table. Raises: BadConfig, LakeErrors, MissingLibrary."""
    table = _require_table(options)
    target = prepare_target(locate_table(table), table, columns[ROW_COLUMN].dataType)
    topics = (ToTopic(topic=options.topic or ""),) if has_records(columns, options.topic) else ()
    return TableBatch(target, (*topics, table))


def open_table_context(options: SinkOptions) -> SinkContext:
    """Return the driver's context of a prefix whose decisions are in the table."""
    return get_sink_context(options, OpenLakeContext(location=locate_table(_require_table(options))))


def stage_files(
    context: SinkContext,
    table: ToTable,
    votes: Iterable[Vote | None],
    files: Iterable[VotedFiles | None],
) -> None:
    """Set the data files that the decision of these votes will commit."""
    lake_context = cast(LakeSinkContext, context)
    parts = [part for part in files if part is not None]
    for part in parts:  # all of them are of one batch, and have the same
        lake_context.lake_row.expect_batch(part.definition, table.keys)
    moves = StagedMoves(
        attempts=tuple(part.files for part in parts), rows=(sum(part.row_count for part in parts),)
    )
    nonce = next((vote.nonce for vote in votes if vote is not None), "")
    lake_context.decision_log.set_staged_moves(nonce, moves)


def _require_table(options: SinkOptions) -> ToTable:
    return require(options.table, "these are the options of a query with a table")
