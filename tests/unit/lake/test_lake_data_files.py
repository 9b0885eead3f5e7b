"""Data files: rows in, Parquet files out, with the statistics that a reader skips files by."""

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tallystick.lake import data_files
from tallystick.lake.data_files import AttemptName, DataFileWriter
from tallystick.lake.errors import SchemaDiffers
from tallystick.lake.ports import DataFile
from tallystick.lake.schema import TableDefinition
from tallystick.lake.storage import LocalStorage

NAME = AttemptName(key="p", owner="7/1", attempt="ab")


def writer_of(folder: Path, *fields: pa.Field, partition: tuple[str, ...] = ()) -> DataFileWriter:
    definition = TableDefinition(identity="t", schema=pa.schema(fields), partition_columns=partition)
    return DataFileWriter(LocalStorage(folder), definition, NAME)


def read(folder: Path, file: DataFile) -> list[dict[str, Any]]:
    return list(pq.read_table(folder / file.path, partitioning=None).to_pylist())


def test_rows_become_one_file_in_the_tables_types(tmp_path: Path) -> None:
    writer = writer_of(tmp_path, pa.field("id", pa.int64()), pa.field("name", pa.string()))
    for ids in ([1, 2], [3]):
        writer.write(pa.record_batch({"name": ["x"] * len(ids), "id": pa.array(ids, pa.int32())}))
    (file,) = writer.finish()
    assert read(tmp_path, file) == [{"id": n, "name": "x"} for n in (1, 2, 3)]
    assert file.row_count == 3
    assert file.size_bytes == (tmp_path / file.path).stat().st_size
    assert pq.read_schema(tmp_path / file.path).field("id").type == pa.int64()


def test_a_file_for_each_value_of_the_partition(tmp_path: Path) -> None:
    fields = pa.field("day", pa.date32()), pa.field("ok", pa.bool_()), pa.field("id", pa.int64())
    writer = writer_of(tmp_path, *fields, partition=("day", "ok"))
    day = dt.date(2026, 1, 2)
    writer.write(pa.record_batch({"day": [day, None, day], "ok": [True, False, True], "id": [1, 2, 3]}))
    files = {tuple(file.partition.values()): read(tmp_path, file) for file in writer.finish()}
    assert files == {("2026-01-02", "true"): [{"id": 1}, {"id": 3}], (None, "false"): [{"id": 2}]}


def test_a_partition_column_that_the_rows_lack_is_null(tmp_path: Path) -> None:
    fields = pa.field("day", pa.date32()), pa.field("ok", pa.bool_()), pa.field("id", pa.int64())
    writer = writer_of(tmp_path, *fields, partition=("day", "ok"))
    writer.write(pa.record_batch({"id": [1, 2], "ok": [True, True]}))
    (file,) = writer.finish()
    assert dict(file.partition) == {"day": None, "ok": "true"}
    assert read(tmp_path, file) == [{"id": 1}, {"id": 2}]


def test_an_empty_text_is_no_value_of_a_partition(tmp_path: Path) -> None:
    writer = writer_of(tmp_path, pa.field("p", pa.string()), partition=("p",))
    with pytest.raises(SchemaDiffers, match="would be read back as null"):
        writer.write(pa.record_batch({"p": ["a", ""]}))


def test_an_empty_text_is_no_value_of_a_partition_in_an_upsert_either(tmp_path: Path) -> None:
    """Its files are not divided, and the library that reads them writes an empty text as null."""
    columns = pa.schema([("p", pa.string()), ("n", pa.int64())])
    definition = TableDefinition(identity="t", schema=columns, partition_columns=("p",))
    writer = DataFileWriter(LocalStorage(tmp_path), definition, NAME, is_source=True)
    writer.write(pa.record_batch({"p": ["a", "b"], "n": [1, 2]}))
    (file,) = writer.finish()
    assert read(tmp_path, file) == [{"p": "a", "n": 1}, {"p": "b", "n": 2}]
    with pytest.raises(SchemaDiffers, match="would be read back as null"):
        writer.write(pa.record_batch({"p": ["a", ""], "n": [1, 2]}))


def test_a_null_where_none_may_be(tmp_path: Path) -> None:
    writer = writer_of(tmp_path, pa.field("id", pa.int64(), nullable=False))
    with pytest.raises(SchemaDiffers, match="1 rows of this batch have none"):
        writer.write(pa.record_batch({"id": [1, None]}))


def test_large_attempts_are_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_files, "ROW_GROUP_BYTES", 80)
    monkeypatch.setattr(data_files, "FILE_BYTES", 200)
    writer = writer_of(tmp_path, pa.field("id", pa.int64()))
    for start in range(0, 100, 10):
        writer.write(pa.record_batch({"id": list(range(start, start + 10))}))
    files = writer.finish()
    assert len(files) > 1
    assert [row["id"] for file in files for row in read(tmp_path, file)] == list(range(100))


def test_the_last_rows_may_fill_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_files, "FILE_BYTES", 10)
    writer = writer_of(tmp_path, pa.field("id", pa.int64()))
    writer.write(pa.record_batch({"id": [1, 2]}))
    (file,) = writer.finish()
    assert read(tmp_path, file) == [{"id": 1}, {"id": 2}]


class UploadingStorage(LocalStorage):
    """A storage that keeps a part of each open file in memory, as an object store's."""

    buffer_bytes = 100

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.open_count = self.open_count_max = 0

    def create(self, path: str) -> Any:
        self.open_count += 1
        self.open_count_max = max(self.open_count_max, self.open_count)
        return super().create(path)

    def finish(self, path: str, sink: Any) -> int:
        self.open_count -= 1
        return super().finish(path, sink)


def test_uploads_of_many_partitions_are_ended_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What they hold in memory is bounded, and no row is lost when a file is ended for another one."""
    monkeypatch.setattr(data_files, "BUFFER_BYTES", 200)
    monkeypatch.setattr(data_files, "UPLOAD_BYTES", 300)
    storage = UploadingStorage(tmp_path)
    fields = pa.schema([("p", pa.int64()), ("id", pa.int64())])
    definition = TableDefinition(identity="t", schema=fields, partition_columns=("p",))
    writer = DataFileWriter(storage, definition, NAME)
    for start in range(0, 200, 20):
        ids = list(range(start, start + 20))
        writer.write(pa.record_batch({"p": [n % 7 for n in ids], "id": ids}))
    rows = [(file.partition["p"], row["id"]) for file in writer.finish() for row in read(tmp_path, file)]
    assert sorted(rows) == sorted((str(n % 7), n) for n in range(200))
    assert storage.open_count_max == 3


def test_many_partitions_stay_within_the_buffer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_files, "BUFFER_BYTES", 200)
    writer = writer_of(tmp_path, pa.field("p", pa.int64()), pa.field("id", pa.int64()), partition=("p",))
    for start in range(0, 100, 10):
        ids = list(range(start, start + 10))
        writer.write(pa.record_batch({"p": [n % 5 for n in ids], "id": ids}))
        assert writer._buffered_bytes < 200
    rows = {(file.partition["p"], row["id"]) for file in writer.finish() for row in read(tmp_path, file)}
    assert rows == {(str(n % 5), n) for n in range(100)}


def test_files_that_are_given_up_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_files, "ROW_GROUP_BYTES", 1)
    writer = writer_of(tmp_path, pa.field("id", pa.int64()))
    writer.write(pa.record_batch({"id": [1]}))
    assert list(tmp_path.iterdir())
    writer.discard()
    assert list(tmp_path.iterdir()) == []


BOUNDED = {
    "id": pa.array([3, None, 1], pa.int64()),
    "name": ["b", "a", None],
    "long": ["x" * 40, "y", "z\U0001f600" + "z" * 40],
    "day": pa.array([dt.date(2026, 1, 2), None, dt.date(2025, 1, 1)]),
    "at": pa.array([1_234_567, None, -5], pa.timestamp("us", "UTC")),
    "none": pa.nulls(3, pa.string()),
    "list": pa.array([[1], [], None], pa.list_(pa.int64())),
    "price": pa.array([Decimal("1.50"), None, Decimal(2)], pa.decimal128(38, 10)),
    "zero": [0.0, 0.0, None],
    "pair": pa.array([{"a": 1, "b": float("nan")}, None, {"a": 2, "b": 1.0}]),
}


def write_statistics(tmp_path: Path, columns: dict[str, Any], *more: pa.Field) -> Any:
    rows = pa.record_batch(columns)
    writer = writer_of(tmp_path, *rows.schema, *more)
    writer.write(rows)
    (file,) = writer.finish()
    return json.loads(file.statistics, parse_float=Decimal)


def test_statistics_bound_the_values(tmp_path: Path) -> None:
    """Texts are cut and rounded up, instants are to the millisecond, a column that is not there is null."""
    assert write_statistics(tmp_path, BOUNDED, pa.field("more", pa.int64())) == {
        "numRecords": 3,
        "minValues": {
            "id": 1,
            "name": "a",
            "long": "x" * 32,
            "day": "2025-01-01",
            "at": "1969-12-31T23:59:59.999Z",
            "price": Decimal("1.5"),
            "zero": Decimal("-0.0"),
            "pair": {"a": 1},
        },
        "maxValues": {
            "id": 3,
            "name": "b",
            "long": "z\U0001f600" + "z" * 29 + "{",
            "day": "2026-01-02",
            "at": "1970-01-01T00:00:01.235Z",
            "price": 2,
            "zero": Decimal("0.0"),
            "pair": {"a": 2},
        },
        "nullCount": {
            "id": 1,
            "name": 1,
            "long": 0,
            "day": 1,
            "at": 1,
            "none": 3,
            "price": 1,
            "zero": 1,
            "pair": {"a": 1, "b": 1},
            "more": 3,
        },
    }


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1.0, float("nan"), 2.0]),
        pa.array([1.0, float("inf"), 2.0]),
        pa.array(["\U0010ffff" * 40] * 3),
        pa.array([0, 1, 253402300799999999], pa.timestamp("us")),
        pa.array([0, 1, 2932897], pa.date32()),
    ],
)
def test_a_file_has_all_bounds_or_none(tmp_path: Path, column: pa.Array) -> None:
    """deltalake's dataset takes a missing bound beside others for one that no value meets."""
    statistics = write_statistics(tmp_path, {"id": [1, 2, 3], "value": column})
    assert statistics == {"numRecords": 3, "nullCount": {"id": 0, "value": 0}}
