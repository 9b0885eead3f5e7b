"""Rows as a user appends them, compared with the table and brought to its types. Pure.

Everything that a table may refuse is found here, in the call that appends: a column that it lacks or that
has another type, a value that does not fit, a null where none may be. So a block does not learn at its end,
with its records prepared in Kafka, that its rows cannot be written.

Arrow data has types, which are compared. Python values have none: they are given those of the table, without
rounding, cutting or parsing anything; but a float is as precise as its column.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from tallystick.lake.errors import SchemaDiffers
from tallystick.lake.schema import TableDefinition, find_column_problems

_INSTANT: Final = pa.timestamp("us", "UTC")


def read_rows(rows: object, definition: TableDefinition) -> pa.Table:
    """Return rows as an Arrow table: Arrow data, a pandas DataFrame, or dicts with a value for each column.

    The table shares no memory with `rows`: Arrow data may lie over a buffer that its owner fills again.
    Raises: SchemaDiffers for values that are not of their column's type; TypeError for anything else.
    """
    if isinstance(rows, pa.Table):
        return _copy(rows)
    if isinstance(rows, pa.RecordBatch):
        return _copy(pa.Table.from_batches([rows]))
    if isinstance(rows, list | tuple) and all(isinstance(row, Mapping) for row in rows):
        return _read_dicts(rows, definition)
    if type(rows).__module__.partition(".")[0] == "pandas":
        return _read_pandas(rows)
    if hasattr(rows, "__arrow_c_stream__"):
        return _copy(pa.table(rows))
    raise TypeError(
        f"{type(rows).__name__}: rows are an Arrow table, what exports one (polars, DuckDB), a pandas "
        "DataFrame, or a list of dicts. Nothing of it was taken"
    )


def _copy(rows: pa.Table) -> pa.Table:
    """Return the same rows in memory of their own."""
    written = pa.BufferOutputStream()
    with pa.ipc.new_stream(written, rows.schema) as stream:
        stream.write_table(rows)
    return pa.ipc.open_stream(written.getvalue()).read_all()


def to_table_types(rows: pa.Table, definition: TableDefinition, *, merge_schema: bool) -> pa.Table:
    """Return rows with the types of the table's columns; columns that it lacks stay as they are.

    Args:
        merge_schema: columns that the table lacks are none of its problems.
    Raises: SchemaDiffers with all problems.
    """
    problems = list(_find_repeated(rows.schema))
    problems = problems or list(find_column_problems(definition, rows.schema, merge_schema=merge_schema))
    if problems:
        raise SchemaDiffers("; ".join(problems))
    fields, columns = [], []
    for field in rows.schema:
        column = rows.column(field.name)
        if field.name in definition.schema.names:
            field = definition.schema.field(field.name)
            column = _cast(column, field)
        elif not _is_addable(field.type):
            problems.append(
                f"new column {field.name} is {field.type}, which is no type of a table's: cast it to a "
                "signed integer, a float, a decimal, text, bytes, a date, a microsecond timestamp in UTC or "
                "without a zone, or lists, structs and maps of these"
            )
        problems += _find_value_problems(column, field, definition)
        fields.append(field)
        columns.append(column)
    if problems:
        raise SchemaDiffers("; ".join(problems))
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def _is_addable(kind: pa.DataType) -> bool:
    """Return whether a column of this type can be added, and is read back with the same values."""
    if types.is_struct(kind):
        return all(_is_addable(field.type) for field in kind)
    if types.is_map(kind):
        return _is_addable(kind.key_type) and _is_addable(kind.item_type)
    if _is_list(kind):
        return _is_addable(kind.value_type)
    if types.is_timestamp(kind):
        return kind.unit == "us" and kind.tz in (None, "UTC")
    is_number = types.is_signed_integer(kind) or kind in (pa.float32(), pa.float64())
    is_plain = types.is_boolean(kind) or kind == pa.date32() or types.is_decimal128(kind)
    return is_number or is_plain or _is_text(kind) or _is_bytes(kind)


def _find_repeated(columns: pa.Schema) -> Iterator[str]:
    for name in sorted({name for name in columns.names if columns.names.count(name) > 1}):
        yield f"column {name} is there {columns.names.count(name)} times"


def _cast(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    try:
        return column.cast(field.type)
    except pa.ArrowInvalid as exc:
        raise SchemaDiffers(f"column {field.name} has a value that is no {field.type}: {exc}") from exc


def _find_value_problems(
    column: pa.ChunkedArray, field: pa.Field, definition: TableDefinition
) -> Iterator[str]:
    if not field.nullable and column.null_count:
        yield f"column {field.name} may not be null, and is in {column.null_count} rows"
    # Delta's protocol, "Partition Value Serialization": an empty text reads back as null.
    is_path = field.name in definition.partition_columns and types.is_string(column.type)
    if is_path and pc.any(pc.equal(column, "")).as_py():
        yield (f"partition column {field.name} is an empty text in some rows, and would be read back as null")


# ------------------------------------------------------------------------------------- Python's values


def _read_dicts(rows: Sequence[Mapping[Any, Any]], definition: TableDefinition) -> pa.Table:
    """Build a column of each key that any row has; a key that a row lacks is null there."""
    if not rows:
        return definition.schema.empty_table()
    names = list(dict.fromkeys(name for row in rows for name in row))
    if wrong := [name for name in names if not isinstance(name, str)]:
        raise TypeError(f"{wrong[0]!r}: the keys of a row are names of columns. Nothing of it was taken")
    columns = {name: _build_column(name, [row.get(name) for row in rows], definition) for name in names}
    return pa.table(columns)


def _build_column(name: str, values: list[Any], definition: TableDefinition) -> pa.Array:
    kind = definition.schema.field(name).type if name in definition.schema.names else None
    try:
        if kind is None or not _takes_by_itself(kind):
            column = pa.array(values)
            if kind is None:
                # An instant is one in any zone; a table has one.
                has_zone = types.is_timestamp(column.type) and column.type.tz is not None
                return column.cast(_INSTANT) if has_zone else column
            if not _takes(kind, column.type):
                raise SchemaDiffers(f"column {name} is {column.type} in the rows and {kind} in the table")
        return pa.array(values, type=kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as exc:
        wanted = "of one type" if kind is None else f"of {kind}"
        raise SchemaDiffers(f"column {name}: its values are not {wanted}: {exc}") from exc


def _takes_by_itself(kind: pa.DataType) -> bool:
    """Return whether Arrow refuses what is not of this type, and cannot always tell the type of what is."""
    return bool(types.is_decimal(kind) or types.is_map(kind))


def _takes(kind: pa.DataType, values: pa.DataType) -> bool:
    """Return whether a column takes Python values that Arrow would give another type.

    A number in Python has no width: building the column refuses an integer that is too large.
    """
    if types.is_null(values) or _takes_by_itself(kind):
        return True
    if types.is_integer(kind):
        return bool(types.is_integer(values))
    if types.is_floating(kind):
        return bool(types.is_floating(values) or types.is_integer(values))
    if types.is_timestamp(kind) and types.is_timestamp(values):
        return (kind.tz is None) == (values.tz is None)
    if types.is_struct(kind) and types.is_struct(values):
        known = {field.name: field.type for field in kind}
        return all(field.name in known and _takes(known[field.name], field.type) for field in values)
    if any(is_kind(kind) and is_kind(values) for is_kind in (_is_list, _is_text, _is_bytes)):
        return not _is_list(kind) or _takes(kind.value_type, values.value_type)
    return bool(kind == values)


def _is_list(kind: pa.DataType) -> bool:
    return bool(types.is_list(kind) or types.is_large_list(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind))


def _read_pandas(frame: Any) -> pa.Table:
    """Convert a DataFrame by value: what its owner writes into it later is no part of the rows."""
    if not hasattr(frame, "columns"):
        raise TypeError(f"{type(frame).__name__}: rows are a DataFrame. Nothing of it was taken")
    names = [name for name in frame.index.names if name is not None]
    if names:
        raise SchemaDiffers(
            f"the frame's index {', '.join(map(str, names))} would be lost: make it a column with "
            "reset_index(), or drop it with reset_index(drop=True)"
        )
    return pa.Table.from_pandas(frame.copy(), preserve_index=False).replace_schema_metadata(None)


def to_all_columns(rows: pa.Table, definition: TableDefinition) -> pa.Table:
    """Return rows with every column of the table, in its order: null where they have none."""
    columns = [
        rows.column(field.name).cast(field.type)
        if field.name in rows.column_names
        else pa.nulls(rows.num_rows, field.type)
        for field in definition.schema
    ]
    return pa.Table.from_arrays(columns, schema=definition.schema)
