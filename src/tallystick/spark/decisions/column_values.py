"""Values of a batch that a database's column does not hold: a database rounds them, or cuts them off. Pure.

Databases refuse a text that is too long and an integer that is too large by themselves. What they change in
silence is found here, before anything is staged.
"""

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types
from sqlalchemy import Date, DateTime, Float, Integer, Numeric
from sqlalchemy.dialects import mysql, postgresql

MYSQL: Final = ("mysql", "mariadb")
_SINGLE_BITS: Final = 24  # of a REAL in PostgreSQL, and of a FLOAT in MySQL
_MICROS_DIGITS: Final = 6
_FRACTION_MAX: Final = 1e15


def find_value_problem(column: pa.Array, target: Any, dialect: str) -> str | None:
    """Return why the values of a column would not be the same in the table; None if they would.

    Args:
        target: the type of the table's column, as SQLAlchemy reads it from the database.
    """
    return next(_find_problems(column, target, dialect), None)


def _find_problems(column: pa.Array, target: Any, dialect: str) -> Iterator[str]:
    kind = column.type
    is_number = types.is_floating(kind) or types.is_decimal(kind)
    if is_number and isinstance(target, Integer) and dialect != "sqlite":
        yield from _compare(column, _round(column, 0), "is no integer")
    elif is_number and isinstance(target, Numeric) and not isinstance(target, Float) and dialect != "sqlite":
        scale = _find_scale(target, dialect)
        if scale is not None:
            yield from _compare(
                column, _round(column, scale), f"has more than {scale} digits after the point"
            )
    if types.is_float64(kind) and _is_single(target, dialect):
        single = column.cast(pa.float32(), safe=False).cast(kind)
        yield from _compare(
            column, single, "is rounded to a float: write cast(... as float) if that is meant"
        )
    if types.is_floating(kind) and dialect == "sqlite" and pc.any(pc.is_nan(column)).as_py():
        yield "is NaN in some rows, which SQLite keeps as null"
    if types.is_string(kind) and dialect == "postgresql" and pc.any(pc.match_substring(column, "\0")).as_py():
        yield "has the character NUL in some rows, which no text of PostgreSQL has"
    if types.is_decimal(kind) and (isinstance(target, Float) or dialect == "sqlite"):
        yield from _compare_decimals(column)
    if types.is_integer(kind) and isinstance(target, Float):
        try:
            column.cast(pa.float32() if _is_single(target, dialect) else pa.float64())
        except pa.ArrowInvalid as exc:
            yield f"has an integer that a float does not hold: {exc}"
    if types.is_timestamp(kind):
        yield from _find_time_problems(column, target, dialect)


def _find_time_problems(column: pa.Array, target: Any, dialect: str) -> Iterator[str]:
    if isinstance(target, Date) and not isinstance(target, DateTime):
        plain = column.cast(pa.timestamp("us"))
        yield from _compare(
            plain, pc.floor_temporal(plain, unit="day"), "has a time of day, and the table's column is a date"
        )
    if column.type.tz is None and is_instant(target, dialect):
        yield "has no time zone, and the table's column is an instant: write cast(... as timestamp)"
    digits = _find_fraction_digits(target, dialect)
    if digits < _MICROS_DIGITS and column.type.unit in ("us", "ns"):
        micros = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
        step = 10 ** (_MICROS_DIGITS - digits)
        whole = pc.multiply(pc.divide(micros, step), step)
        advice = "write date_trunc('second', ...), or give the column a precision"
        yield from _compare(micros, whole, f"has more than {digits} digits of a second: {advice}")


def is_instant(target: Any, dialect: str) -> bool:
    """Return whether a column of the table has instants, which a session shows in its own time zone."""
    if dialect in MYSQL:
        return isinstance(target, mysql.TIMESTAMP)
    return dialect == "postgresql" and isinstance(target, DateTime) and bool(target.timezone)


def _compare(column: pa.Array, kept_values: pa.Array, why: str) -> Iterator[str]:
    """Yield the first value that would not be stored as it is. A database keeps or refuses NaN."""
    differs = pc.fill_null(pc.not_equal(column, kept_values), fill_value=False)
    if types.is_floating(column.type):
        differs = pc.and_not(differs, pc.fill_null(pc.is_nan(column), fill_value=False))
    if pc.any(differs).as_py():
        yield f"{column.filter(differs)[0].as_py()!r} {why}"


def _compare_decimals(column: pa.Array) -> Iterator[str]:
    for value in column.drop_null().to_pylist():
        if type(value)(repr(float(value))) != value:
            yield f"{value} has more digits than a double, which is what the table's column keeps"
            return


def _round(column: pa.Array, digits: int) -> pa.Array:
    if types.is_decimal(column.type) and column.type.scale <= digits:
        return column
    if types.is_floating(column.type):  # a larger one has no fraction, and rounding it overflows
        column = pc.if_else(pc.less(pc.abs(column), _FRACTION_MAX), column, pa.scalar(None, column.type))
    return pc.round(column, ndigits=digits)


def _find_scale(target: Any, dialect: str) -> int | None:
    """Return how many digits after the point a column keeps; None if it keeps all."""
    if target.scale is not None:
        return int(target.scale)
    return None if target.precision is None and dialect == "postgresql" else 0


def _is_single(target: Any, dialect: str) -> bool:
    if dialect == "postgresql":
        return isinstance(target, postgresql.REAL) or (
            isinstance(target, Float) and (target.precision or _SINGLE_BITS + 1) <= _SINGLE_BITS
        )
    return dialect in MYSQL and isinstance(target, mysql.FLOAT) and (target.precision or 0) <= _SINGLE_BITS


def _find_fraction_digits(target: Any, dialect: str) -> int:
    if not isinstance(target, DateTime) or dialect == "sqlite":
        return _MICROS_DIGITS
    if dialect in MYSQL:
        return int(getattr(target, "fsp", None) or 0)
    precision = getattr(target, "precision", None)
    return _MICROS_DIGITS if precision is None else int(precision)
