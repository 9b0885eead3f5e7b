"""Data files that tasks write for Iceberg tables: pyiceberg reads them with filters, and by column ids."""

import datetime as dt
from collections import Counter
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from secrets import token_hex
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.lake_tables import PREFIX, IcebergPlace

from tallystick.kernel.ids import ProducerEpoch, ProducerId, ProducerIdAndEpoch
from tallystick.lake import data_files
from tallystick.lake.entries import CommitOutcome, LakeEntry
from tallystick.lake.errors import SchemaDiffers

pytest.importorskip("pyiceberg", reason="needs the extra iceberg")

from pyiceberg.expressions import And, EqualTo, GreaterThanOrEqual, IsNull, LessThan
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    TruncateTransform,
    VoidTransform,
    YearTransform,
)
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
)

OWNER = ProducerIdAndEpoch(ProducerId(7), ProducerEpoch(1))
ROWS = 24
BEGIN = dt.datetime(2025, 11, 3, 22, 15)  # noqa: DTZ001

COLUMNS: dict[str, tuple[Any, Callable[[int], Any]]] = {
    "n": (IntegerType(), lambda n: n - 20),
    "big": (LongType(), lambda n: n * 10**12),
    "text": (StringType(), lambda n: f"{'abcd'[n % 4]}x{n:03}"),
    "raw": (BinaryType(), lambda n: bytes([n, 255 - n])),
    "flag": (BooleanType(), lambda n: n % 2 == 0),
    "price": (DecimalType(9, 2), lambda n: Decimal(n - 7) / 4),
    "wide": (DecimalType(25, 3), lambda n: Decimal(n * 10**15) + Decimal("0.125")),
    "ratio": (DoubleType(), lambda n: n / 8),
    "day": (DateType(), lambda n: dt.date(2025, 12, 1) + dt.timedelta(days=n * 11)),
    "hour": (TimeType(), lambda n: dt.time(n % 24, 3)),
    "at": (TimestampType(), lambda n: BEGIN + dt.timedelta(hours=n * 31)),
    "at_utc": (TimestamptzType(), lambda n: (BEGIN + dt.timedelta(hours=n * 31)).replace(tzinfo=dt.UTC)),
    "list": (ListType(100, StringType(), element_required=False), lambda n: [f"{n}"] * (n % 3)),
    "pair": (
        StructType(NestedField(101, "a", LongType()), NestedField(102, "b", StringType())),
        lambda n: {"a": n, "b": None},
    ),
}
SCHEMA = Schema(
    *(NestedField(number, name, kind) for number, (name, (kind, _)) in enumerate(COLUMNS.items(), 1))
)
IDS = {field.name: field.field_id for field in SCHEMA.fields}


def make_rows(place: IcebergPlace, columns: Sequence[str] = tuple(COLUMNS)) -> pa.RecordBatch:
    """Return rows of which every seventh is null in all columns but `list` and `pair`."""
    kinds = place.table.schema().as_arrow()

    def value(name: str, n: int) -> Any:
        is_null = n % 7 == 3 and name not in ("list", "pair")
        return None if is_null else COLUMNS[name][1](n)

    arrays = [pa.array([value(name, n) for n in range(ROWS)], kinds.field(name).type) for name in columns]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))


def write(place: IcebergPlace, rows: pa.RecordBatch) -> None:
    """Write and commit rows as a task and a driver do."""
    table = place.open()
    writer = place.open_writer(OWNER, token_hex(4))
    for at in range(0, rows.num_rows, 16):
        writer.write(rows.slice(at, 16))
    files = writer.finish()
    entry = LakeEntry(key=PREFIX, owner=str(OWNER), commit="c")
    if not place.table.snapshots():
        place.append_nothing()
    assert table.commit(table.read(PREFIX).version, entry, files) is CommitOutcome.COMMITTED


def partitioned(field: str, transform: Any) -> PartitionSpec:
    return PartitionSpec(PartitionField(IDS[field], 1000, transform, "part"))


@pytest.mark.gate(2)
@pytest.mark.parametrize(
    ("field", "transform"),
    [
        *((name, IdentityTransform()) for name in COLUMNS if name not in ("list", "pair", "ratio")),
        *(
            (name, BucketTransform(4))
            for name in ("n", "big", "text", "raw", "price", "wide", "day", "at", "at_utc")
        ),
        *((name, TruncateTransform(2)) for name in ("n", "big", "text", "raw", "price", "wide")),
        *((name, YearTransform()) for name in ("day", "at", "at_utc")),
        *((name, MonthTransform()) for name in ("day", "at", "at_utc")),
        *((name, DayTransform()) for name in ("day", "at", "at_utc")),
        *((name, HourTransform()) for name in ("at", "at_utc")),
    ],
    ids=str,
)
def test_rows_are_found_by_the_partition_they_are_in(field: str, transform: Any, tmp_path: Path) -> None:
    """A wrong value of a partition would hide rows from a filter: each row is looked for by its value."""
    place = IcebergPlace(tmp_path, SCHEMA, partition_spec=partitioned(field, transform))
    rows = make_rows(place)
    write(place, rows)
    assert Counter(place.read()["n"].to_pylist()) == Counter(rows.column("n").to_pylist())
    everything = len(list(place.table.scan().plan_files()))
    assert everything > 1
    for number in (0, 10, 20):
        value = rows.column(field)[number].as_py()
        filtered: Any = IsNull(field) if value is None else EqualTo(field, value)
        scan = place.table.scan(row_filter=filtered)
        assert len(list(scan.plan_files())) < everything, "files are left out by their partition"
        wanted = [row for row in rows.to_pylist() if row[field] == value]
        assert scan.to_arrow().to_pylist() == wanted


def test_two_partition_fields_and_one_that_was_dropped(tmp_path: Path) -> None:
    spec = PartitionSpec(
        PartitionField(IDS["flag"], 1000, IdentityTransform(), "flag"),
        PartitionField(IDS["n"], 1001, VoidTransform(), "gone"),
        PartitionField(IDS["text"], 1002, TruncateTransform(1), "letter"),
    )
    place = IcebergPlace(tmp_path, SCHEMA, partition_spec=spec)
    write(place, make_rows(place))
    files = [task.file for task in place.table.scan().plan_files()]
    parts = Counter(tuple(file.partition[at] for at in range(3)) for file in files)
    assert parts.total() == len(parts) == 5
    assert (True, None, "a") in parts
    assert (None, None, None) in parts


def test_statistics_are_those_that_pyiceberg_would_keep(tmp_path: Path) -> None:
    (tmp_path / "twin").mkdir()
    ours, theirs = IcebergPlace(tmp_path, SCHEMA), IcebergPlace(tmp_path / "twin", SCHEMA)
    rows = make_rows(ours)
    write(ours, rows)
    theirs.table.append(pa.table(rows))
    described = []
    for place in (ours, theirs):
        (task,) = place.table.scan().plan_files()
        file = task.file
        counts = file.record_count, file.value_counts, file.null_value_counts, set(file.column_sizes)
        described.append([*counts, file.lower_bounds, file.upper_bounds, file.spec_id])
    assert described[0] == described[1]
    (task,) = ours.table.scan().plan_files()
    assert task.file.file_size_in_bytes == ours.find_file(Path(task.file.file_path).name).stat().st_size


def test_a_filter_leaves_files_out_by_their_bounds(tmp_path: Path) -> None:
    place = IcebergPlace(tmp_path, SCHEMA)
    rows = make_rows(place)
    write(place, rows.slice(0, 12))
    write(place, rows.slice(12))
    for filtered, count in (
        (LessThan("n", -10), 1),
        (And(GreaterThanOrEqual("n", -9), LessThan("n", 2)), 2),
        (GreaterThanOrEqual("price", Decimal("100.00")), 0),
        (EqualTo("text", "bx021"), 2),
        (GreaterThanOrEqual("at", "2025-11-29T00:00:00"), 1),
    ):
        assert len(list(place.table.scan(row_filter=filtered).plan_files())) == count, filtered


def test_columns_are_found_by_their_ids_after_they_were_renamed(tmp_path: Path) -> None:
    place = IcebergPlace(tmp_path, SCHEMA)
    write(place, make_rows(place, ("n", "text", "pair")))
    before = place.read()
    with place.table.update_schema() as update:
        update.rename_column("n", "number").rename_column("text", "n").rename_column("pair.a", "first")
    after = place.read()
    assert after["number"].to_pylist() == before["n"].to_pylist()
    assert after["n"].to_pylist() == before["text"].to_pylist()
    assert [each["first"] for each in after["pair"].to_pylist()] == list(range(ROWS))
    assert after["big"].null_count == ROWS, "a column that was not written"


def test_a_file_has_the_ids_of_nested_columns_too(tmp_path: Path) -> None:
    place = IcebergPlace(tmp_path, SCHEMA)
    write(place, make_rows(place))
    (path,) = place.find_file("").glob("*.parquet")
    written = pq.ParquetFile(path).schema
    element, pair = (place.table.schema().find_type(name) for name in ("list", "pair"))
    for number in (element.element_id, *(field.field_id for field in pair.fields)):
        assert f"field_id={number} " in str(written)
    assert [written.column(at).physical_type for at in (IDS["price"] - 1, IDS["wide"] - 1)] == [
        "INT32",
        "FIXED_LEN_BYTE_ARRAY",
    ]


def test_rows_are_sorted_as_the_table_says(tmp_path: Path) -> None:
    order = SortOrder(
        SortField(IDS["flag"], IdentityTransform(), SortDirection.DESC, NullOrder.NULLS_LAST),
        SortField(IDS["text"], TruncateTransform(1), SortDirection.ASC, NullOrder.NULLS_FIRST),
        SortField(IDS["n"], IdentityTransform(), SortDirection.DESC, NullOrder.NULLS_FIRST),
    )
    place = IcebergPlace(tmp_path, SCHEMA, sort_order=order)
    rows = make_rows(place)
    write(place, rows)
    expected = sorted(
        rows.to_pylist(),
        key=lambda row: (
            row["flag"] is None,
            not row["flag"],
            row["text"] is not None,
            (row["text"] or "")[:1],
            row["n"] is not None,
            -(row["n"] or 0),
        ),
    )
    assert [row["n"] for row in place.read().to_pylist()] == [row["n"] for row in expected]
    (task,) = place.table.scan().plan_files()
    assert task.file.sort_order_id == place.table.sort_order().order_id


@pytest.mark.parametrize("field", ["ratio", "pair"])
def test_a_file_that_is_not_sorted_does_not_say_so(
    field: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By floats, whose NaN Arrow and Iceberg order otherwise; or in several row groups."""
    name = "n" if field == "pair" else field
    if field == "pair":
        monkeypatch.setattr(data_files, "ROW_GROUP_BYTES", 1)
    order = SortOrder(SortField(IDS[name], IdentityTransform(), SortDirection.ASC, NullOrder.NULLS_FIRST))
    place = IcebergPlace(tmp_path, SCHEMA, sort_order=order)
    write(place, make_rows(place))
    (task,) = place.table.scan().plan_files()
    assert task.file.sort_order_id is None


def test_a_null_where_none_may_be(tmp_path: Path) -> None:
    place = IcebergPlace(tmp_path, Schema(NestedField(1, "n", IntegerType(), required=True)))
    with pytest.raises(SchemaDiffers, match="1 rows of this batch have none"):
        place.open_writer(OWNER, "aa").write(pa.record_batch({"n": pa.array([1, None], pa.int32())}))
