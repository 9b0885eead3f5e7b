"""Statistics of a data file of a Delta table, from the rows that are written into it. Pure.

Readers skip a file whose bounds rule their filter out, so a bound must hold for every reader. deltalake's
dataset for pyarrow and DuckDB takes a missing bound for one that no value meets, as soon as another column
has bounds: a file has the bounds of all columns that a reader asks for, or of none.

Source: Delta's protocol, "Per-file Statistics".
"""

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

_TEXT_MAX: Final = 32
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_DAY: Final = (date.max - date(1970, 1, 1)).days
_FIRST_DAY: Final = (date.min - date(1970, 1, 1)).days
_LAST_MS: Final = (_LAST_DAY + 1) * 86_400_000 - 1
_FIRST_MS: Final = _FIRST_DAY * 86_400_000
_LAST_CHARACTER: Final = 0x10FFFF
_SURROGATES: Final = range(0xD800, 0xE000)

Path = tuple[str, ...]


class FileStatistics:
    """The statistics of one file. `add` takes each row group."""

    def __init__(self, columns: pa.Schema, columns_max: int | None) -> None:
        """Begin a file of no rows.

        Args:
            columns: of the table; what a file lacks of them is null in all its rows.
            columns_max: how many columns have bounds, those inside structs included; None for all.
        """
        self._columns, self._columns_max = columns, columns_max
        self._row_count = 0
        self._nulls: dict[Path, int] = {}
        self._low: dict[Path, Any] = {}
        self._high: dict[Path, Any] = {}
        self._unbounded: set[Path] = set()
        self._kinds: dict[Path, pa.DataType] = {}

    def add(self, rows: pa.Table) -> None:
        """Add the rows of a row group; all of a file have the same columns."""
        self._row_count += rows.num_rows
        bounded_count = 0
        for path, column in _list_leaves(rows, self._columns):
            has_bounds = _can_have_bounds(column.type)
            if has_bounds and bounded_count == self._columns_max:
                return
            bounded_count += has_bounds
            self._nulls[path] = self._nulls.get(path, 0) + column.null_count
            if has_bounds and column.null_count < len(column):
                self._widen(path, column)

    def _widen(self, path: Path, column: pa.ChunkedArray) -> None:
        self._kinds[path] = column.type
        # NaN is in no order: some readers have it above all numbers, and some nowhere.
        if types.is_floating(column.type) and pc.any(pc.is_nan(column)).as_py():
            self._unbounded.add(path)
            return
        bounds = pc.min_max(column)
        low, high = _to_plain(bounds["min"]), _to_plain(bounds["max"])
        if types.is_floating(column.type):
            # Either zero may be the bound of both, and some readers have them apart.
            low, high = low or -0.0, high or 0.0
        self._low[path] = min(low, self._low.get(path, low))
        self._high[path] = max(high, self._high.get(path, high))

    def to_json(self) -> str:
        """Return the statistics as an `add` action has them."""
        least: dict[Path, str] = {}
        most: dict[Path, str] = {}
        for path, kind in self._kinds.items():
            low = None if path in self._unbounded else _format_low(self._low[path], kind)
            high = None if path in self._unbounded else _format_high(self._high[path], kind)
            if low is not None and high is not None:
                least[path], most[path] = low, high
            elif len(path) == 1:
                least.clear()
                most.clear()
                break
        parts = [f'"numRecords": {self._row_count}']
        if least:
            parts += [f'"minValues": {_nest(least)}', f'"maxValues": {_nest(most)}']
        nulls = {path: str(count) for path, count in self._nulls.items()}
        return f'{{{", ".join([*parts, f""""nullCount": {_nest(nulls)}"""])}}}'


def _list_leaves(rows: pa.Table, columns: pa.Schema) -> Iterator[tuple[Path, pa.ChunkedArray]]:
    """Yield the columns that are no lists or maps, those inside structs under all their names."""
    given = dict(zip(rows.column_names, rows.columns, strict=True))
    waiting: list[tuple[Path, pa.ChunkedArray]] = [
        ((each.name,), given.get(each.name, pa.chunked_array([pa.nulls(rows.num_rows, each.type)])))
        for each in columns
    ]
    while waiting:
        path, column = waiting.pop(0)
        if types.is_struct(column.type):
            inner = zip(column.type, column.flatten(), strict=True)
            waiting[:0] = [((*path, field.name), part) for field, part in inner]
        elif not types.is_nested(column.type):
            yield path, column


def _can_have_bounds(kind: pa.DataType) -> bool:
    is_number = types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind)
    is_time = types.is_date32(kind) or types.is_timestamp(kind)
    return bool(is_number or is_time or types.is_boolean(kind) or types.is_string(kind))


def _to_plain(value: pa.Scalar) -> Any:
    """Return a bound; a date or a timestamp as its number, which may be beyond what Python's types hold."""
    is_time = types.is_date32(value.type) or types.is_timestamp(value.type)
    return value.value if is_time else value.as_py()


def _format_low(value: Any, kind: pa.DataType) -> str | None:
    """Return a value of JSON that is not above this one; None if there is none."""
    if types.is_string(kind):
        return _format_text(value[:_TEXT_MAX])
    if types.is_timestamp(kind):
        return _format_instant(value // 1000, kind)
    return _format_plain(value, kind)


def _format_high(value: Any, kind: pa.DataType) -> str | None:
    """Return a value of JSON that is not below this one; None if there is none."""
    if types.is_string(kind):
        text = value if len(value) <= _TEXT_MAX else _round_up(value[:_TEXT_MAX])
        return None if text is None else _format_text(text)
    if types.is_timestamp(kind):
        return _format_instant(-(-value // 1000), kind)
    return _format_plain(value, kind)


def _format_text(text: str) -> str:
    # Not escaped: delta-rs (arrow-json 57) reads a surrogate pair as another character.
    return json.dumps(text, ensure_ascii=False)


def _format_plain(value: Any, kind: pa.DataType) -> str | None:
    if types.is_date32(kind):
        in_range = _FIRST_DAY <= value <= _LAST_DAY
        return json.dumps(str((_EPOCH + timedelta(days=value)).date())) if in_range else None
    if types.is_decimal(kind):
        return f"{value:f}"  # all its digits: a float has 15
    if types.is_floating(kind) and value in (float("inf"), float("-inf")):
        return None
    return json.dumps(value)


def _format_instant(ms: int, kind: pa.DataType) -> str | None:
    if not _FIRST_MS <= ms <= _LAST_MS:
        return None
    instant = (_EPOCH + timedelta(milliseconds=ms)).replace(tzinfo=None)
    return json.dumps(instant.isoformat(timespec="milliseconds") + ("" if kind.tz is None else "Z"))


def _round_up(text: str) -> str | None:
    """Return a text of at most the same length that is above every text that begins with this one."""
    while text:
        text, last = text[:-1], ord(text[-1])
        if last < _LAST_CHARACTER:
            following = last + 1
            return text + chr(_SURROGATES.stop if following in _SURROGATES else following)
    return None


def _nest(values: Mapping[Path, str]) -> str:
    """Return an object of JSON, with objects for structs."""
    inner: dict[str, dict[Path, str]] = {}
    for (name, *rest), text in values.items():
        inner.setdefault(name, {})[tuple(rest)] = text
    parts = (f"{json.dumps(name)}: {part[()] if () in part else _nest(part)}" for name, part in inner.items())
    return f"{{{', '.join(parts)}}}"
