"""Definitions of the topics and tables that a batch is written to, as Spark SQL expressions. Pure.

    to_topic("delays.by_flight", key="flight", where="delay > 0")
    to_table("delays", write="upsert", keys=["flight"])

`foreach_batch` writes to all of them atomically.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal

from tallystick.kernel.ids import is_table_url
from tallystick.kernel.value import Value
from tallystick.lake.names import NO_OPTIONS, StorageOptions, find_url_problem, is_catalog_url

WriteMode = Literal["append", "upsert"]
_WRITE_MODES: Final = ("append", "upsert")


class ToTopic(Value, kw_only=True):
    """A topic: it gets a record for each row, or for each row where `where` holds; see `to_topic`.

    topic  its name; empty if each row names its own, in the column `topic`
    """

    topic: str
    key: str | None = None
    value: str | None = None
    headers: str | None = None
    where: str | None = None


class ToTable(Value, kw_only=True):
    """A table: it gets each row of the batch, or each row where `where` holds; see `to_table`.

    columns          name in the table, and expression; None for the columns of the batch
    merge_schema     columns that a lake table lacks are added to it
    storage_options  of a lake table
    """

    table: str
    columns: tuple[tuple[str, str], ...] | None = None
    write: WriteMode = "append"
    keys: tuple[str, ...] = ()
    where: str | None = None
    merge_schema: bool = False
    storage_options: StorageOptions = NO_OPTIONS

    @property
    def is_lake_table(self) -> bool:
        """True for a table that is a URL, like `delta:/lake/delays`: its commit is the decision."""
        return is_table_url(self.table)

    @property
    def has_catalog_name(self) -> bool:
        """True for `delta:sales.delays`, a table that Spark's catalog knows the path of."""
        return is_catalog_url(self.table)

    @property
    def schema(self) -> str | None:
        return self.table.rpartition(".")[0] or None

    @property
    def name(self) -> str:
        return self.table.rpartition(".")[2]


Sink = ToTopic | ToTable


class StagedMoves(Value, kw_only=True):
    """The staged rows that a decision moves: the attempts that voted, and their row count for each table."""

    attempts: tuple[str, ...]
    rows: tuple[int, ...]


def to_topic(
    topic: str,
    *,
    key: str | None = None,
    value: str | None = None,
    headers: str | None = None,
    where: str | None = None,
) -> ToTopic:
    """Write records to a topic. Every argument but the first is a Spark SQL expression.

    Args:
        key: string or binary; without it, records have no key.
        value: string or binary; without it, the whole row as JSON, including nulls.
        headers: array<struct<key:string,value:binary>>.
        where: boolean; selects the rows.
    """
    return ToTopic(topic=topic, key=key, value=value, headers=headers, where=where)


def to_table(
    table: str,
    *,
    columns: Mapping[str, str] | Sequence[str] | None = None,
    write: WriteMode = "append",
    keys: Sequence[str] = (),
    where: str | None = None,
    merge_schema: bool = False,
    storage_options: Mapping[str, str] | None = None,
) -> ToTable:
    """Write rows to an existing table: of the database, or of a lake.

    Args:
        table: its name, or `schema.name`; or the URL of a lake table, like `delta:/lake/delays`,
            `delta:schema.delays` (its name in Spark's catalog) or `iceberg:catalog.namespace.delays`, whose
            commit then is the decision, so that the query has no other table.
        columns: the table's columns, each with its Spark SQL expression, or only the names if the batch has
            columns of those names; without it, every column of the batch.
        write: "append", or "upsert": a row whose keys are in the table replaces the row there.
        keys: for an upsert, the columns of a unique constraint or of the primary key; any columns of a lake
            table. Two rows of a batch with the same keys are refused.
        where: boolean; selects the rows.
        merge_schema: add columns that a lake table lacks, instead of refusing the batch.
        storage_options: for the storage or the catalog of a lake table, by the names of its library.
    """
    expressions = (
        columns if columns is None or isinstance(columns, Mapping) else {c: quote_column(c) for c in columns}
    )
    return ToTable(
        table=table,
        columns=None if expressions is None else tuple(expressions.items()),
        write=write,
        keys=tuple(keys),
        where=where,
        merge_schema=merge_schema,
        storage_options=StorageOptions.build(storage_options),
    )


def name_sinks(sinks: Sequence[Sink]) -> tuple[str, ...]:
    """Return the names by which a decision tells its sinks from others.

    A lake table has none: the decision is in the table, whose name and place may change.
    """
    return tuple(_name_sink(sink) for sink in sinks)


def _name_sink(sink: Sink) -> str:
    if isinstance(sink, ToTopic):
        return name_topic(sink.topic)
    return "the lake table" if sink.is_lake_table else f"table {sink.table}"


def name_topic(topic: str | None) -> str:
    """Return the name of the sink that writes a topic; without one, that of the column `topic`."""
    return f"topic {topic}" if topic else "the topics of the column topic"


def find_lake_table(sinks: Sequence[object]) -> ToTable | None:
    """Return the lake table among the sinks, whose commit is the decision; None if there is none."""
    return next((sink for sink in sinks if isinstance(sink, ToTable) and sink.is_lake_table), None)


def quote_column(column: str) -> str:
    """Quote a column name of the batch as an expression."""
    return "`" + column.replace("`", "``") + "`"


def find_sink_problems(sinks: Sequence[object], database: str | None) -> Iterator[str]:
    """Yield the problems of the sinks that show without a batch or the database."""
    tables = [sink for sink in sinks if isinstance(sink, ToTable)]
    for sink in sinks:
        if not isinstance(sink, Sink):
            yield f"{sink!r}: is no sink: to_topic(...) and to_table(...) make them"
    if find_lake_table(tables) is not None:
        yield from _find_lake_problems(tables, database)
    elif tables and database is None:
        yield "database: required by to_table, the URL that SQLAlchemy takes"
    names = [sink.table for sink in tables]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"table {name}: written to by two sinks; make it one"
    for sink in tables:
        at = f"table {sink.table}"
        if not sink.is_lake_table and (sink.merge_schema or sink.storage_options):
            yield f"{at}: merge_schema and storage_options are for tables of a lake"
        if sink.write not in _WRITE_MODES:
            yield f"{at}: write is {sink.write!r}, and must be one of {', '.join(_WRITE_MODES)}"
        elif sink.write == "upsert" and not sink.keys:
            yield f"{at}: keys: required by an upsert"
        elif sink.write == "append" and sink.keys:
            yield f"{at}: keys: mean nothing to an append; is it an upsert?"
        if sink.columns is not None:
            column_names = {name for name, _ in sink.columns}
            yield from (
                f"{at}: key {key} is none of its columns" for key in sink.keys if key not in column_names
            )


def _find_lake_problems(tables: Sequence[ToTable], database: str | None) -> Iterator[str]:
    """Yield the problems of sinks with a lake table: its commit decides, and nothing else can."""
    if database is not None:
        yield "database: one place decides, and here it is the commit of the lake table: leave it out"
    for sink in tables:
        if sink.is_lake_table and not sink.has_catalog_name:
            problem = find_url_problem(sink.table)
            if problem is not None:
                yield problem
    if len(tables) > 1:
        yield (
            f"tables {', '.join(sink.table for sink in tables)}: a batch is decided by the commit of one "
            "lake table, and two tables have no commit in common. Write the others from a query of their own"
        )
