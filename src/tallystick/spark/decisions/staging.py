"""Staging tables: tasks stage rows there, and the driver moves them in the transaction that decides.

A staging table belongs to one prefix and one target table. It has the target's columns without its
constraints, and with each row the attempt that wrote it:

    create   driver   before a batch, outside of the deciding transaction
    stage    task     in any number of short transactions; nothing depends on them yet
    move     driver   all rows that the voted attempts staged, into the target [SPK-41]
    sweep    driver   with the claim of the prefix: no live batch has rows there [SPK-42]

Staged rows need not survive a crash of the database: the votes have their number, and if some are missing
nothing is moved. So in PostgreSQL the table is UNLOGGED. docs/design/spark-sink.md.
"""

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from itertools import count, repeat
from typing import Any, Final

import pyarrow as pa
from sqlalchemy import (
    JSON,
    Boolean,
    Column,
    ColumnElement,
    Connection,
    Date,
    DateTime,
    Engine,
    Executable,
    Float,
    Integer,
    LargeBinary,
    MetaData,
    Numeric,
    String,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    cast,
    delete,
    func,
    insert,
    inspect,
    or_,
    select,
    text,
)
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.exc import DBAPIError, NoSuchTableError
from sqlalchemy.schema import CreateTable, DropTable

from tallystick.kernel.settings import BadConfig
from tallystick.spark.decisions.column_values import MYSQL, find_value_problem, is_instant
from tallystick.spark.decisions.database import DecisionDatabase, get_engine
from tallystick.spark.options.sinks import ToTable
from tallystick.spark.protocol.errors import SinkError, VoteLost

_log = logging.getLogger("tallystick.spark")

ATTEMPT: Final = "tallystick_attempt"
ROW: Final = "tallystick_row"
_ATTEMPT_LENGTH: Final = 32
_NAME_DIGITS: Final = 24
# Types that drivers want as objects and a batch has as text: staged as text, and cast when moved.
_TEXT_STAGED_TYPES: Final = (JSON, Uuid)
# Types that PostgreSQL's COPY reads from text as from its driver; all others are inserted, with casts.
_COPY_TYPES: Final[Mapping[Callable[[pa.DataType], bool], tuple[type, ...]]] = {
    pa.types.is_null: (object,),
    pa.types.is_boolean: (Boolean,),
    pa.types.is_integer: (Integer, Numeric),
    pa.types.is_floating: (Float,),
    pa.types.is_decimal: (Numeric,),
    pa.types.is_string: (String,),
    pa.types.is_binary: (LargeBinary,),
    pa.types.is_date: (Date,),
    pa.types.is_timestamp: (DateTime,),
}
# TRUNCATE frees the space, but would wait for the insert of a fenced attempt that is still running.
_LIMIT_TRUNCATE_WAIT: Final = "SET LOCAL lock_timeout = '200ms'"


class RowsRejected(SinkError):
    """The table refuses the rows of a batch. Nothing was decided."""


class StagingTable:
    """A target table of a query and its staging table. It belongs to one engine."""

    def __init__(self, engine: Engine, prefix: str, sink: ToTable) -> None:
        """Read the target's definition from the database, and check the sink against it.

        Args:
            sink: the sink, with its columns.
        Raises: BadConfig.
        """
        self.sink = sink
        self._engine = engine
        self._is_created = False
        self._dialect = engine.dialect.name
        self.target = _reflect_table(engine, sink)
        if problems := list(self._find_problems()):
            raise BadConfig("\n".join(problems))
        self._column_names = tuple(name for name, _ in sink.columns or ())
        name = sha256(f"{prefix}\0{sink.table}".encode()).hexdigest()[:_NAME_DIGITS]
        self.table = Table(
            f"tallystick_staged_{name}",
            MetaData(),
            Column(ATTEMPT, String(_ATTEMPT_LENGTH), primary_key=True),
            Column(ROW, Integer, primary_key=True, autoincrement=False),
            *(Column(each, self._choose_staged_type(each), nullable=True) for each in self._column_names),
            schema=sink.schema,
            prefixes=["UNLOGGED"] if self._dialect == "postgresql" else [],
            mysql_engine="InnoDB",
        )

    def _choose_staged_type(self, name: str) -> Any:
        target_type = self.target.c[name].type
        return Text() if isinstance(target_type, _TEXT_STAGED_TYPES) else target_type

    def _find_problems(self) -> Iterator[str]:
        at, columns = f"table {self.sink.table}", self.target.c
        names = [name for name, _ in self.sink.columns or ()]
        for name in names:
            if name not in columns:
                yield f"{at}: has no column {name}; it has {', '.join(columns.keys())}"
        for column in columns:
            fills_itself = (
                column.nullable or column.server_default is not None or column.autoincrement is True
            )
            if (
                column.name not in names
                and not fills_itself
                and column is not self.target.autoincrement_column
            ):
                yield f"{at}: column {column.name} may not be null, has no default, and is not written"
        if self.sink.write == "upsert":
            yield from self._find_key_problems(at)

    def _find_key_problems(self, at: str) -> Iterator[str]:
        unique = {frozenset(self.target.primary_key.columns.keys())}
        unique |= {
            frozenset(each.columns.keys())
            for each in self.target.constraints
            if isinstance(each, UniqueConstraint)
        }
        unique |= {frozenset(each.columns.keys()) for each in self.target.indexes if each.unique}
        unique.discard(frozenset())
        keys = frozenset(self.sink.keys)
        if keys not in unique:
            unique_keys = (
                " or ".join(", ".join(sorted(each)) for each in sorted(unique, key=sorted)) or "no columns"
            )
            yield f"{at}: keys {', '.join(self.sink.keys)}: what it keeps unique is {unique_keys}"
        elif self._dialect in MYSQL and len(unique) > 1:
            # ON DUPLICATE KEY UPDATE applies to the first unique key that matches.
            yield f"{at}: has several unique keys, and {self._dialect} cannot be told by which to replace"

    # ---- driver, before a batch

    def create(self) -> None:
        """Create the staging table once, or again if the target has changed; no live batch needs old rows."""
        if self._is_created:
            return
        with self._engine.begin() as connection:
            inspector = inspect(connection)
            if inspector.has_table(self.table.name, self.table.schema):
                columns = inspector.get_columns(self.table.name, self.table.schema)
                kinds = {each["name"]: self._compile_type(each["type"]) for each in columns}
                if [each.name for each in self.table.columns] != list(kinds) or any(
                    kinds[name] != self._compile_type(self.table.c[name].type) for name in self._column_names
                ):
                    connection.execute(DropTable(self.table))
            connection.execute(CreateTable(self.table, if_not_exists=True))
        self._is_created = True

    def _compile_type(self, kind: Any) -> str:
        text: str = kind.compile(self._engine.dialect)
        return text

    def sweep(self, connection: Connection) -> None:
        """Remove all staged rows. This may fail, because rows without a vote are never moved."""
        for statement in self._build_sweep_statements(connection):
            try:
                with connection.begin_nested():
                    if self._dialect == "postgresql":
                        connection.execute(text(_LIMIT_TRUNCATE_WAIT))
                    connection.execute(statement)
                return
            except DBAPIError as exc:
                if exc.connection_invalidated:
                    raise
                _log.info("%s: not swept: %s", self.table.name, exc.orig)

    def _build_sweep_statements(self, connection: Connection) -> Iterator[Executable]:
        if self._dialect == "postgresql":
            yield text(f"TRUNCATE {connection.dialect.identifier_preparer.format_table(self.table)}")
        yield delete(self.table)

    # ---- task

    def stage(self, attempt: str, first_number: int, rows: pa.RecordBatch) -> None:
        """Stage rows of one attempt.

        Args:
            first_number: the number of the first row; row numbers are unique within an attempt.
            rows: rows with the sink's columns.
        Raises: RowsRejected for values that the target would round or cut.
        """
        for name in self._column_names:
            problem = find_value_problem(rows.column(name), self.target.c[name].type, self._dialect)
            if problem is not None:
                raise RowsRejected(
                    f"table {self.sink.table} does not hold the rows of this batch: column {name}: "
                    f"{problem}. Nothing was decided"
                )
        columns = [
            _to_python_values(rows.column(name), self.table.c[name].type, self._dialect)
            for name in self._column_names
        ]
        values = zip(repeat(attempt, rows.num_rows), count(first_number), *columns)
        with self._engine.begin() as connection, self._in_utc(connection):
            if self._engine.driver == "psycopg" and self._is_copied(rows.schema):
                self._stage_by_copy(connection, values)
            else:
                names = self.table.c.keys()
                connection.execute(insert(self.table), [dict(zip(names, row, strict=True)) for row in values])

    def _is_copied(self, schema: pa.Schema) -> bool:
        return all(
            any(
                is_of(schema.field(name).type) and isinstance(self.table.c[name].type, kinds)
                for is_of, kinds in _COPY_TYPES.items()
            )
            for name in self._column_names
        )

    def _stage_by_copy(self, connection: Connection, values: Iterable[tuple[Any, ...]]) -> None:
        """Stage rows by COPY, in a seventh of an insert's CPU time: docs/notes/performance.md."""
        preparer = connection.dialect.identifier_preparer
        names = ", ".join(map(preparer.quote, self.table.c.keys()))
        statement = f"COPY {preparer.format_table(self.table)} ({names}) FROM STDIN"
        psycopg: Any = connection.connection.driver_connection
        with psycopg.cursor() as cursor, cursor.copy(statement) as copy:
            for row in values:
                copy.write_row(row)

    # ---- driver, in the transaction that decides

    def move(self, connection: Connection, attempts: Sequence[str], rows: int) -> None:
        """Move all rows that these attempts staged into the target [SPK-41].

        Args:
            rows: the number of rows by the votes.
        Raises: VoteLost if the number differs; RowsRejected.
        """
        is_voted = self.table.c[ATTEMPT].in_(attempts)
        row_count = connection.execute(
            select(func.count()).select_from(self.table).where(is_voted)
        ).scalar_one()
        if row_count != rows:
            raise VoteLost(
                f"table {self.sink.table}: {rows} rows were staged, but {row_count} are there: the "
                "database has lost some, or the staging table was emptied. Nothing was decided; restart "
                "the query to write the batch again"
            )
        if not rows:
            return
        if self.sink.write == "upsert":
            self._check_keys(connection, is_voted)
        try:
            with self._in_utc(connection):
                connection.execute(self._move_statement(is_voted))
        except DBAPIError as exc:
            if exc.connection_invalidated:
                raise
            raise RowsRejected(
                f"table {self.sink.table} does not take the rows of this batch: "
                f"{' '.join(str(exc.orig).split())}. Nothing was decided"
            ) from exc

    @contextmanager
    def _in_utc(self, connection: Connection) -> Iterator[None]:
        """Let a session write instants: MySQL's TIMESTAMP takes and gives them in the session's time zone.

        The session is as it was afterwards.
        """
        if self._dialect not in MYSQL or not any(
            is_instant(self.target.c[name].type, self._dialect) for name in self._column_names
        ):
            yield
            return
        zone = connection.execute(text("SELECT @@session.time_zone")).scalar_one()
        connection.execute(text("SET time_zone = '+00:00'"))
        try:
            yield
        finally:
            if not connection.invalidated:
                connection.execute(text("SET time_zone = :zone"), {"zone": zone})

    def _check_keys(self, connection: Connection, is_voted: ColumnElement[bool]) -> None:
        """Refuse rows without a key, and with the same keys: a batch has no order, and none is the later."""
        keys = [self.table.c[name] for name in self.sink.keys]
        is_null = or_(*(key.is_(None) for key in keys))
        if (
            connection.execute(select(self.table.c[ROW]).where(is_voted, is_null).limit(1)).first()
            is not None
        ):
            raise RowsRejected(
                f"table {self.sink.table}: rows of this batch have no {' or no '.join(self.sink.keys)}, "
                "which is a key, and null is equal to nothing. Nothing was decided"
            )
        twice = select(*keys).where(is_voted).group_by(*keys).having(func.count() > 1).limit(1)
        if (duplicate := connection.execute(twice).first()) is not None:
            keys_text = ", ".join(
                f"{name}={value!r}" for name, value in zip(self.sink.keys, duplicate, strict=True)
            )
            raise RowsRejected(
                f"table {self.sink.table}: several rows of this batch have {keys_text}, in no defined "
                "order. Nothing was decided. Aggregate the batch to one row per key"
            )

    def _move_statement(self, is_voted: ColumnElement[bool]) -> Executable:
        values = []
        for name in self._column_names:
            target_type, column = self.target.c[name].type, self.table.c[name]
            is_cast = isinstance(target_type, _TEXT_STAGED_TYPES) and self._dialect == "postgresql"
            values.append(cast(column, target_type) if is_cast else column)
        rows = select(*values).where(is_voted)
        if self.sink.write == "append":
            return insert(self.target).from_select(self._column_names, rows)
        other_names = [name for name in self._column_names if name not in self.sink.keys]
        if self._dialect in MYSQL:
            statement = mysql.insert(self.target).from_select(self._column_names, rows)
            # Without other columns to replace, a key is set to its own value.
            return statement.on_duplicate_key_update(
                {name: statement.inserted[name] for name in other_names or self.sink.keys[:1]}
            )
        dialect: Any = postgresql if self._dialect == "postgresql" else sqlite
        upsert = dialect.insert(self.target).from_select(self._column_names, rows)
        if not other_names:
            return upsert.on_conflict_do_nothing(index_elements=self.sink.keys)  # type: ignore[no-any-return]
        replacements = {name: upsert.excluded[name] for name in other_names}
        return upsert.on_conflict_do_update(  # type: ignore[no-any-return]
            index_elements=self.sink.keys, set_=replacements
        )


def _reflect_table(engine: Engine, sink: ToTable) -> Table:
    try:
        return Table(sink.name, MetaData(), schema=sink.schema, autoload_with=engine, resolve_fks=False)
    except NoSuchTableError as exc:
        raise BadConfig(
            f"table {sink.table}: does not exist in the database, and the sink does not create it. "
            "Create it first"
        ) from exc


def _to_python_values(column: pa.Array, kind: Any, dialect: str) -> list[Any]:
    """Convert a column to Python values; instants become UTC in columns without a time zone."""
    is_instant = pa.types.is_timestamp(column.type) and column.type.tz is not None
    keeps_zone = isinstance(kind, DateTime) and kind.timezone and dialect == "postgresql"
    if is_instant and not keeps_zone:
        column = column.cast(pa.timestamp(column.type.unit))
    values: list[Any] = column.to_pylist()
    return values


_STAGING_TABLES: Final[dict[tuple[object, ...], tuple[StagingTable, ...]]] = {}


def get_staging_tables(
    prefix: str, where: DecisionDatabase, tables: tuple[ToTable, ...]
) -> tuple[StagingTable, ...]:
    """Return this process's staging tables for these sinks. Raises: BadConfig."""
    key = (os.getpid(), prefix, where.url, tables)
    if key not in _STAGING_TABLES:
        _STAGING_TABLES[key] = tuple(StagingTable(get_engine(where), prefix, each) for each in tables)
    return _STAGING_TABLES[key]
