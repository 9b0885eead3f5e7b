"""The database schema that a store's tables are in, whatever a block makes of names.

A block may set the search path, change the role, or map schemas on its connection: the row of the writer
belongs to the table that was claimed all the same. So each statement of the store names the schema, by
SQLAlchemy's `schema_translate_map`, which a statement's own option replaces.

A table without a schema is where the connection's default has it when the store first claims an id.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Engine, Executable, Table, select, text

from tallystick.dualwrite.stores.dialects import FIND_SCHEMA_SQL

Options = Mapping[str, Any]


class TablePlaces:
    """The schema of each table, as options of statements."""

    def __init__(self, tables: Iterable[Table], schemas: Mapping[str, str | None]) -> None:
        self._tables = tuple(tables)
        self._schemas = schemas
        self._unplaced = [name for name, schema in schemas.items() if schema is None]
        self._options = {
            table.name: {"schema_translate_map": _build_map(table.schema, schemas[table.name])}
            for table in self._tables
        }

    @classmethod
    def of_engine(cls, engine: Engine, tables: Sequence[Table]) -> "TablePlaces":
        """Return where the engine's own map puts the tables."""
        translated: Mapping[str | None, str] = (
            engine.get_execution_options().get("schema_translate_map") or {}
        )
        return cls(tables, {table.name: translated.get(table.schema, table.schema) for table in tables})

    def options(self, table: Table) -> Options:
        """Return the execution options of a statement on a table of the store."""
        return self._options[table.name]

    def get_schema(self, table: Table) -> str | None:
        """Return the schema of a table; None for the connection's default."""
        return self._schemas[table.name]

    def find_statement(self, dialect: str) -> Executable | None:
        """Select the schemas of the tables whose schema is not known; None if all are."""
        finding = FIND_SCHEMA_SQL.get(dialect)
        if finding is None or not self._unplaced:
            return None
        return select(*[text(finding.format(name=name)) for name in self._unplaced])

    def place(self, schemas: Sequence[str | None]) -> "TablePlaces":
        """Return the places with the answer to `find_statement`."""
        return TablePlaces(self._tables, {**self._schemas, **dict(zip(self._unplaced, schemas, strict=True))})


def _build_map(declared: str | None, actual: str | None) -> Mapping[str | None, str] | None:
    return None if actual is None else {declared: actual}
