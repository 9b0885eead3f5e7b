"""Rows go on in pieces of a bounded size: none is lost, and none comes twice, on any side of the bound."""

import pyarrow as pa
import pytest

from tallystick.spark.sink.task import attempt, combined_attempt, row_checksum
from tallystick.spark.sink.task.row_checksum import checksum_columns

ROW_COUNTS = [1, 9, 10, 11, 20, 21, 100]


def make_rows(count: int) -> pa.RecordBatch:
    """Return rows of 16 bytes of data each, and one value that is longer than all others together."""
    values = [b"%08d" % number for number in range(count - 1)] + [b"x" * 2_000]
    return pa.record_batch({"key": pa.array(range(count)), "value": values})


@pytest.mark.parametrize("count", ROW_COUNTS)
@pytest.mark.parametrize("chunk_bytes", [1, 100, 1 << 20])
def test_chunks_of_a_topic_are_the_rows(
    count: int, chunk_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt, "_CHUNK_BYTES", chunk_bytes)
    rows = make_rows(count)
    chunks = list(attempt._iter_chunks([rows, rows.slice(0, 0), rows.slice(count // 2)]))
    assert pa.Table.from_batches(chunks) == pa.Table.from_batches([rows, rows.slice(count // 2)])
    assert all(chunk.num_rows for chunk in chunks)
    if chunk_bytes == 1:
        assert all(chunk.num_rows == 1 for chunk in chunks)


@pytest.mark.parametrize("count", ROW_COUNTS)
@pytest.mark.parametrize("chunk_bytes", [1, 100, 1 << 20])
def test_chunks_of_several_sinks_are_the_rows(
    count: int, chunk_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(combined_attempt, "_CHUNK_BYTES", chunk_bytes)
    monkeypatch.setattr(combined_attempt, "_CHUNK_ROWS", 10)
    rows = make_rows(count)
    chunks = list(combined_attempt._iter_chunks(rows))
    assert pa.Table.from_batches(chunks) == pa.Table.from_batches([rows])
    assert all(1 <= chunk.num_rows <= 10 for chunk in chunks)


@pytest.mark.parametrize("count", ROW_COUNTS)
def test_a_checksum_does_not_depend_on_how_many_values_are_converted_at_once(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = make_rows(count)
    columns = rows.column("value"), None, None, None, None
    whole = checksum_columns(*columns)
    assert whole.rows == count
    for size in (1, 100, 500, 2_000):
        monkeypatch.setattr(row_checksum, "_SLICE_BYTES", size)
        assert checksum_columns(*columns) == whole
