"""Values of each type in lake tables: other libraries find the rows again, with a filter and without."""

import datetime as dt
import operator
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from secrets import token_hex
from typing import Any, Final

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.support.lake_tables import PREFIX, DeltaPlace, IcebergPlace, Place

from tallystick.kernel.ids import ProducerEpoch, ProducerId, ProducerIdAndEpoch
from tallystick.lake.dual_writes.rows import read_rows, to_all_columns, to_table_types
from tallystick.lake.entries import CommitOutcome, LakeEntry
from tallystick.lake.schema import TableDefinition

OWNER: Final = ProducerIdAndEpoch(ProducerId(7), ProducerEpoch(1))
NAN, INFINITY = float("nan"), float("inf")
UTC: Final = pa.timestamp("us", "UTC")
LOCAL: Final = pa.timestamp("us")
LONG: Final = "y" * 31


def at(*parts: int) -> dt.datetime:
    return dt.datetime(*parts)  # type: ignore[arg-type]  # noqa: DTZ001


INSTANTS: Final = (
    *(at(1, 1, 1), at(1969, 12, 31, 23, 59, 59, 999_999), at(1970, 1, 1, 0, 0, 0, 1)),
    *(at(2024, 3, 10, 2, 30, 0, 1500), at(9999, 12, 31, 23, 59, 59, 998_001)),
)
LAST: Final = (at(2024, 1, 1), at(9999, 12, 31, 23, 59, 59, 999_999))
DECIMALS: Final = ("-0.0000000001", "1234567890123456789012345678.0123456789", "1.5", "0")
TEXTS: Final = (
    *("", "a", LONG + "z", LONG + "zz", LONG + "z\U0010ffff", "\U0010ffff" * 31 + "ab", '"\\\n\0'),
    *("\ud7ff" * 40, "ä" * 5000),
)
# The columns of a table, and their values; each column also has a null.
CELLS: Final[dict[str, tuple[pa.DataType, Sequence[Any]]]] = {
    "boolean": (pa.bool_(), (True, False)),
    "true": (pa.bool_(), (True, True)),
    "int8": (pa.int8(), (-128, 0, 127)),
    "int16": (pa.int16(), (-(2**15), 2**15 - 1)),
    "int32": (pa.int32(), (-(2**31), 2**31 - 1)),
    "int64": (pa.int64(), (-(2**63), -1, 2**53 + 1, 2**63 - 1)),
    "float": (pa.float32(), (-1.5, 0.1, 16777216.0, 3.4028234663852886e38)),
    "double": (pa.float64(), (-1e300, 5e-324, 0.1 + 0.2, 1.7976931348623157e308)),
    "zeros": (pa.float64(), (-0.0, 0.0)),
    "zero": (pa.float64(), (0.0, 0.0)),
    "minus zero": (pa.float64(), (-0.0, -0.0)),
    "nan": (pa.float64(), (NAN, 1.0, 2.0)),
    "only nan": (pa.float64(), (NAN, NAN)),
    "infinity": (pa.float32(), (INFINITY, 1.0)),
    "minus infinity": (pa.float64(), (-INFINITY, 1.0)),
    "decimal": (pa.decimal128(38, 10), tuple(map(Decimal, DECIMALS))),
    "cents": (pa.decimal128(9, 2), (Decimal("-0.01"), Decimal("9999999.99"))),
    "date": (pa.date32(), (dt.date(1, 1, 1), dt.date(1969, 12, 31), dt.date(9999, 12, 31))),
    "timestamp": (UTC, tuple(each.replace(tzinfo=dt.UTC) for each in INSTANTS)),
    "timestamp_ntz": (LOCAL, INSTANTS),
    "last timestamp": (UTC, tuple(each.replace(tzinfo=dt.UTC) for each in LAST)),
    "last timestamp_ntz": (LOCAL, LAST),
    "string": (pa.string(), TEXTS),
    "last string": (pa.string(), ("a", "\U0010ffff" * 40)),
    "binary": (pa.binary(), (b"", b"\0\xff", b"\xff" * 40)),
    "nothing": (pa.int64(), (None, None)),
}
STRUCT: Final = pa.struct([("x", pa.float64()), ("y", pa.struct([("z", pa.string())]))])
NESTED: Final[dict[str, tuple[pa.DataType, Sequence[Any]]]] = {
    "struct": (STRUCT, ({"x": NAN, "y": {"z": "a"}}, {"x": 1.0, "y": None}, {"x": 2.0, "y": {"z": None}})),
    "list": (pa.list_(pa.float64()), ([], [NAN, None], [1.0])),
    "map": (pa.map_(pa.string(), pa.int64()), ([], [("a", None)], [("b", 1)])),
}
PLAIN: Final = tuple(name for name in CELLS if name not in ("int8", "int16"))


def make_table(names: Sequence[str]) -> pa.Table:
    """Return rows with a null, and a value of each column in turn."""
    cells = {name: (*{**CELLS, **NESTED}[name][1], None) for name in names}
    count = max(map(len, cells.values()))
    columns = {
        name: pa.array([values[n % len(values)] for n in range(count)], {**CELLS, **NESTED}[name][0])
        for name, values in cells.items()
    }
    return pa.table({"id": pa.array(range(count), pa.int64()), **columns})


def write_as_sink(place: Place, rows: pa.Table) -> None:
    commit(place, rows.to_batches(max_chunksize=3))


def write_as_dual_writer(place: Place, rows: pa.Table) -> None:
    definition = place.open().read_definition()
    commit(place, to_all_columns(take_rows(rows, definition), definition).to_batches())


def take_rows(rows: Any, definition: TableDefinition) -> pa.Table:
    return to_table_types(read_rows(rows, definition), definition, merge_schema=False)


def commit(place: Place, batches: Sequence[pa.RecordBatch]) -> None:
    table = place.open()
    writer = place.open_writer(OWNER, token_hex(4))
    for batch in batches:
        writer.write(batch)
    entry = LakeEntry(key=PREFIX, owner=str(OWNER), commit="c")
    if isinstance(place, IcebergPlace):
        place.append_nothing()
    assert table.commit(table.read(PREFIX).version, entry, writer.finish()) is CommitOutcome.COMMITTED


# ---------------------------------------------------------------------------------------- readers


def ask_arrow(rows: Any, name: str, value: Any, operation: str) -> list[int]:
    """Return the rows that pyarrow finds, in a dataset or in a table of memory."""
    field = pc.field(name)
    if value is None:
        condition = field.is_null() if operation == "=" else field.is_valid()
    else:
        functions: dict[str, Callable[[Any, Any], Any]] = {
            "=": lambda a, b: a == b,
            ">=": lambda a, b: a >= b,
            "<": lambda a, b: a < b,
        }
        condition = functions[operation](field, pa.scalar(value, rows.schema.field(name).type))
    found = rows.filter(condition)
    return sorted((found if isinstance(found, pa.Table) else found.to_table())["id"].to_pylist())


def write_test(value: Any, operation: str, literal: str) -> str:
    if value is None:
        return "IS NULL" if operation == "=" else "IS NOT NULL"
    return f"{operation} {literal}"


def open_duckdb(rows: Any) -> Any:
    connection = duckdb.connect()
    connection.register("rows", rows)
    return connection


def ask_duckdb(connection: Any, name: str, value: Any, operation: str) -> list[int]:
    test, given = write_test(value, operation, "$1"), [] if value is None else [value]
    found = connection.execute(f'SELECT id FROM rows WHERE "{name}" {test}', given)
    return sorted(n for (n,) in found.fetchall())


def ask_delta_rs(builder: Any, name: str, value: Any, operation: str, kind: pa.DataType) -> list[int]:
    """Return the rows that delta-rs finds with SQL."""
    names = {UTC: 'Timestamp(Microsecond, Some("UTC"))', LOCAL: "Timestamp(Microsecond, None)"}
    names |= {pa.string(): "Utf8", pa.bool_(): "Boolean", pa.date32(): "Date32"}
    names |= {pa.float32(): "Float32", pa.float64(): "Float64"}
    kind_name = names.get(kind) or str(kind).capitalize()
    if pa.types.is_decimal(kind):
        kind_name = f"Decimal128({kind.precision}, {kind.scale})"
    text = f"{value:f}" if isinstance(value, Decimal) else pa.scalar(value, kind).cast(pa.string()).as_py()
    quoted = str(text).replace("'", "''")
    test = write_test(value, operation, f"arrow_cast('{quoted}', '{kind_name}')")
    found = builder.execute(f'SELECT id FROM rows WHERE "{name}" {test}').read_all()
    return sorted(pa.table(found)["id"].to_pylist())


def ask_with_nan_last(rows: pa.Table, name: str, value: float, operation: str) -> list[int]:
    """Return the rows that a reader finds for which NaN is above all."""
    tests = {"=": operator.eq, ">=": operator.ge, "<": operator.lt}
    wanted = pa.scalar(value, rows.schema.field(name).type).as_py()
    pairs = [
        (n, v) for n, v in zip(rows["id"].to_pylist(), rows[name].to_pylist(), strict=True) if v is not None
    ]
    return [n for n, each in pairs if tests[operation](each, wanted) or (each != each and operation == ">=")]


def list_filters(name: str) -> Iterator[tuple[Any, str]]:
    for value in {repr(value): value for value in (*CELLS[name][1], None)}.values():
        # What NaN is compared with differs from reader to reader.
        is_nan = isinstance(value, float) and value != value
        yield from () if is_nan else ((value, operation) for operation in ("=", ">=", "<"))


Answer = tuple[str, list[int], list[int]]
"""The name of a reader, what it finds, and what it finds in memory."""


def read_back(place: Place, rows: pa.Table, names: Sequence[str]) -> list[str]:
    """Return what a reader does not find, or finds and should not."""
    list_answers = (DeltaReaders if isinstance(place, DeltaPlace) else IcebergReaders)(
        place, rows
    ).list_answers
    return [
        f"{reader}: {name} {operation} {value!r}: {found}, and not {expected}"
        for name in names
        for value, operation in list_filters(name)
        for reader, found, expected in list_answers(name, value, operation)
        if found != expected
    ]


class DeltaReaders:
    """Those that read a Delta table here: pyarrow, DuckDB, and delta-rs itself."""

    def __init__(self, place: Place, rows: pa.Table) -> None:
        from deltalake import QueryBuilder

        self.rows, self.stored = rows, place.table.to_pyarrow_dataset()
        self.in_duckdb = [open_duckdb(each) for each in (self.stored, rows)]
        self.in_delta_rs = QueryBuilder().register("rows", place.table)

    def list_answers(self, name: str, value: Any, operation: str) -> Iterator[Answer]:
        expected = ask_arrow(self.rows, name, value, operation)
        yield "pyarrow", ask_arrow(self.stored, name, value, operation), expected
        found, in_memory = (ask_duckdb(each, name, value, operation) for each in self.in_duckdb)
        yield "duckdb", found, in_memory
        kind = self.rows.schema.field(name).type
        if not pa.types.is_binary(kind):  # no value of it has a text
            if isinstance(value, float):
                expected = ask_with_nan_last(self.rows, name, value, operation)
            yield "delta-rs", ask_delta_rs(self.in_delta_rs, name, value, operation, kind), expected


class IcebergReaders:
    """pyiceberg, which others read Iceberg tables through."""

    def __init__(self, place: Place, rows: pa.Table) -> None:
        self.place, self.rows = place, rows

    def list_answers(self, name: str, value: Any, operation: str) -> Iterator[Answer]:
        # pyiceberg takes an infinite literal for one that its types do not hold.
        if value not in (INFINITY, -INFINITY):
            expected = ask_arrow(self.rows, name, value, operation)
            yield "pyiceberg", ask_pyiceberg(self.place.table, name, value, operation), expected


def ask_pyiceberg(table: Any, name: str, value: Any, operation: str) -> list[int]:
    from pyiceberg.expressions import EqualTo, GreaterThanOrEqual, IsNull, LessThan, NotNull

    if value is None:
        condition: Any = (IsNull if operation == "=" else NotNull)(name)
    else:
        if isinstance(value, dt.datetime):
            value = value.isoformat()
        if isinstance(value, Decimal):
            value = f"{value:.{table.schema().find_type(name).scale}f}"
        kinds: dict[str, Any] = {"=": EqualTo, ">=": GreaterThanOrEqual, "<": LessThan}
        condition = kinds[operation](name, value)
    return sorted(table.scan(row_filter=condition).to_arrow()["id"].to_pylist())


# ---------------------------------------------------------------------------------------- tests


WRITERS: Final = {
    "sink": (DeltaPlace, write_as_sink),
    "dual writer": (DeltaPlace, write_as_dual_writer),
    "iceberg": (IcebergPlace, write_as_sink),
}


@pytest.mark.gate(3)
@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("name", CELLS)
def test_rows_are_found_by_the_value_of_a_column(tmp_path: Path, name: str, writer: str) -> None:
    make_place, write = WRITERS[writer]
    if make_place is IcebergPlace and name in ("int8", "int16"):
        pytest.skip("Iceberg has no such type")
    rows = make_table([name])
    place = make_place(tmp_path, rows.schema)
    write(place, rows)
    assert same(place.read(), rows)
    assert read_back(place, rows, [name]) == []


@pytest.mark.gate(0)
@pytest.mark.parametrize("writer", WRITERS)
def test_rows_are_found_whatever_is_beside_the_column(tmp_path: Path, writer: str) -> None:
    make_place, write = WRITERS[writer]
    rows = make_table([*PLAIN, *NESTED])
    place = make_place(tmp_path, rows.schema)
    write(place, rows)
    assert same(place.read(), rows)
    assert read_back(place, rows, PLAIN) == []


def same(stored: pa.Table, rows: pa.Table) -> bool:
    """Compare as text, in which NaN is equal to itself and -0.0 is not 0.0."""
    stored = stored.select(rows.column_names).cast(rows.schema).sort_by("id")
    return repr(stored.to_pylist()) == repr(rows.to_pylist())
