"""Upserts: the rows of a batch replace those with the same keys, in the commit that decides. Pure.

The batch's data files are then no part of the table: the library reads them and rewrites the files of the
table that have such keys (MERGE), in one commit. A batch has no order, so two rows with the same keys have no
later one, and a null key is equal to nothing.
"""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc


def find_key_problem(rows: pa.Table, keys: Sequence[str]) -> str | None:
    """Return why these rows cannot be told apart by their keys; None if they can."""
    for name in keys:
        if rows.column(name).null_count:
            return f"{rows.column(name).null_count} rows of this batch have no {name}, which is a key"
    counts = rows.select(list(keys)).group_by(list(keys)).aggregate([([], "count_all")])
    several = counts.filter(pc.greater(counts["count_all"], 1))
    if not several.num_rows:
        return None
    first = several.slice(0, 1).to_pylist()[0]
    values = ", ".join(f"{name}={first[name]!r}" for name in keys)
    return f"several rows of this batch have {values}, in no defined order. Aggregate it to one row per key"


def format_key_predicate(keys: Sequence[str]) -> str:
    """Return the condition of a MERGE under which a row of `source` replaces one of `target`."""
    return " AND ".join(f"target.{quote_name(name)} = source.{quote_name(name)}" for name in keys)


def format_assignments(columns: Sequence[str]) -> dict[str, str]:
    """Return the expression for each column of the target."""
    return {quote_name(name): f"source.{quote_name(name)}" for name in columns}


def quote_name(name: str) -> str:
    """Quote a name of a column as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'
