"""Upserts: the rows of a batch replace those with the same keys, in the commit that decides. Pure.

The batch's data files are then no part of the table: the library reads them and rewrites the files of the
table that have such keys (MERGE), in one commit. A batch has no order, so two rows with the same keys have no
later one, and a null key is equal to nothing.
"""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types


def find_key_problem(rows: pa.Table, keys: Sequence[str]) -> str | None:
    """Return why these rows cannot be told apart by their keys; None if they can."""
    for name in keys:
        if rows.column(name).null_count:
            return f"{rows.column(name).null_count} rows of this batch have no {name}, which is a key"
        if types.is_floating(rows.column(name).type):
            problem = _find_float_problem(rows.column(name), name)
            if problem is not None:
                return problem
    counts = rows.select(list(keys)).group_by(list(keys)).aggregate([([], "count_all")])
    several = counts.filter(pc.greater(counts["count_all"], 1))
    if not several.num_rows:
        return None
    first = several.slice(0, 1).to_pylist()[0]
    values = ", ".join(f"{name}={first[name]!r}" for name in keys)
    return f"several rows of this batch have {values}, in no defined order. Aggregate it to one row per key"


def _find_float_problem(column: pa.ChunkedArray, name: str) -> str | None:
    """Return a key that is not equal to itself, or that some libraries take for another one."""
    if pc.any(pc.is_nan(column)).as_py():
        return f"{name}, which is a key, is NaN in some rows of this batch: NaN is equal to nothing"
    is_negative_zero = pc.and_(pc.equal(column, 0.0), pc.less(pc.divide(1.0, column), 0.0))
    if pc.any(is_negative_zero).as_py():
        return f"{name}, which is a key, is -0.0 in some rows of this batch: write {name} + 0.0D"
    return None


def format_key_predicate(keys: Sequence[str]) -> str:
    """Return the condition of a MERGE under which a row of `source` replaces one of `target`."""
    return " AND ".join(f"target.{quote_name(name)} = source.{quote_name(name)}" for name in keys)


def format_assignments(columns: Sequence[str]) -> dict[str, str]:
    """Return the expression for each column of the target."""
    return {quote_name(name): f"source.{quote_name(name)}" for name in columns}


def quote_name(name: str) -> str:
    """Quote a name of a column as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'
