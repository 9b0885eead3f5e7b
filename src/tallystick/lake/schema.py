"""Rows and table compared: every problem is reported before anything is written. Pure.

A column of a batch has the type of the table's column, or one that every reader widens to it without loss.
Everything else is refused with the expression that mends it: a cast that fails in the middle of a batch, or
that rounds, is no decision of a sink's.
"""

from collections.abc import Iterator
from typing import Final

import pyarrow as pa
from pyarrow import types

from tallystick.kernel.value import Value
from tallystick.lake.names import NO_OPTIONS, StorageOptions

_INTEGERS: Final = (pa.int8(), pa.int16(), pa.int32(), pa.int64())


class TableDefinition(Value, kw_only=True):
    """The definition of a table, as far as a writer depends on it.

    identity           of the table; another one at the same place is another table
    schema             its columns as Arrow has them; a field that is not nullable takes no null
    partition_columns  in the table's order, if they are all there is to its partitions
    layout             what else the writer of its data files needs, in the words of its format
    is_append_only     the table refuses every commit that removes a row
    file_options       by which a task reaches the place of its data files; no part of a comparison
    problems           why a writer like this one must not write the table; empty if it may
    """

    identity: str
    schema: pa.Schema
    partition_columns: tuple[str, ...] = ()
    layout: str = ""
    is_append_only: bool = False
    file_options: StorageOptions = NO_OPTIONS
    problems: tuple[str, ...] = ()


def find_column_problems(
    definition: TableDefinition, columns: pa.Schema, *, merge_schema: bool
) -> Iterator[str]:
    """Yield the problems of a batch's columns.

    Args:
        columns: of the batch.
        merge_schema: columns that the table lacks will be added to it.
    """
    table = definition.schema
    for column in columns:
        if column.name in table.names:
            wanted = table.field(column.name).type
            if not _fits(column.type, wanted):
                yield (
                    f"column {column.name} is {_name(column.type)} in the batch and {_name(wanted)} in the "
                    f"table; write cast({column.name} as ...) if the conversion is meant"
                )
            continue
        similar = [name for name in table.names if name.lower() == column.name.lower()]
        if similar:
            yield f"column {column.name}: the table has {similar[0]}, and names differ only in case"
        elif not merge_schema:
            names = ", ".join(table.names)
            yield f"has no column {column.name}; it has {names}. merge_schema adds the column"
        elif types.is_null(column.type):
            yield f"column {column.name}: is null in every row, so that it has no type to be added with"
    for column in table:
        if not column.nullable and column.name not in columns.names:
            yield f"column {column.name} may not be null, and is not written"
    for name in definition.partition_columns:
        if name in columns.names and not _is_partition_type(columns.field(name).type):
            kind = _name(columns.field(name).type)
            yield f"partition column {name} is {kind}, which this sink cannot write"


def find_added_columns(definition: TableDefinition, columns: pa.Schema) -> pa.Schema:
    """Return the columns that the table lacks; a new column takes nulls, for the rows that are there."""
    return pa.schema(
        [pa.field(each.name, each.type) for each in columns if each.name not in definition.schema.names]
    )


def is_same_definition(before: TableDefinition, now: TableDefinition) -> bool:
    """Return whether data files that were written for `before` may be committed to `now`."""
    return (
        before.identity == now.identity
        and before.partition_columns == now.partition_columns
        and before.schema.equals(now.schema)
        and before.layout == now.layout
        and not now.problems
    )


def accepts_files(before: TableDefinition, now: TableDefinition) -> bool:
    """Return whether data files written for `before` fit `now`, which may have more columns that take nulls.

    A file that lacks a column of its table is read with nulls there.
    """
    if before.identity != now.identity or before.partition_columns != now.partition_columns or now.problems:
        return False
    known = {field.name: field for field in now.schema}
    is_kept = all(field.name in known and field.equals(known[field.name]) for field in before.schema)
    return is_kept and all(field.nullable for field in now.schema if field.name not in before.schema.names)


def _fits(kind: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether values of a type can be stored as another without loss."""
    if types.is_null(kind):
        return True
    if kind in _INTEGERS and wanted in _INTEGERS:
        return _INTEGERS.index(kind) <= _INTEGERS.index(wanted)
    if types.is_floating(kind) and types.is_floating(wanted):
        return bool(kind.bit_width <= wanted.bit_width)
    if types.is_decimal(kind) and types.is_decimal(wanted):
        return bool(kind.scale == wanted.scale and kind.precision <= wanted.precision)
    if types.is_timestamp(kind) and types.is_timestamp(wanted):
        return (kind.tz is None) == (wanted.tz is None)
    return _fits_nested(kind, wanted)


def _fits_nested(kind: pa.DataType, wanted: pa.DataType) -> bool:
    if types.is_struct(kind) and types.is_struct(wanted):
        return [each.name for each in kind] == [each.name for each in wanted] and all(
            _fits(here.type, there.type) for here, there in zip(kind, wanted, strict=True)
        )
    if _is_list(kind) and _is_list(wanted):
        return _fits(kind.value_type, wanted.value_type)
    if types.is_map(kind) and types.is_map(wanted):
        return _fits(kind.key_type, wanted.key_type) and _fits(kind.item_type, wanted.item_type)
    for is_kind in (_is_text, _is_bytes):
        if is_kind(kind):
            return is_kind(wanted)
    return bool(kind == wanted)


def _is_text(kind: pa.DataType) -> bool:
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind))


def _is_list(kind: pa.DataType) -> bool:
    return bool(types.is_list(kind) or types.is_large_list(kind))


def _is_partition_type(kind: pa.DataType) -> bool:
    return (
        _is_text(kind)
        or types.is_integer(kind)
        or types.is_boolean(kind)
        or types.is_date(kind)
        or types.is_null(kind)
    )


def _name(kind: pa.DataType) -> str:
    """Return a type as its user writes it: Spark's word for the common ones."""
    if _is_text(kind):
        return "string"
    if types.is_timestamp(kind):
        return "timestamp" if kind.tz is not None else "timestamp_ntz"
    spark_names = {pa.int8(): "tinyint", pa.int16(): "smallint", pa.int32(): "int", pa.int64(): "bigint"}
    return spark_names.get(kind) or str(kind)
