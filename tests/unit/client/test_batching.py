"""Sections of columns are those built record by record [CLI-26]."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tallystick.client.producer.batches.rows import (
    BatchProducerState,
    ListRows,
    TimestampRun,
    assemble_batch,
    find_timestamp,
    slice_runs,
    split_rows,
)
from tallystick.kernel.ids import ProducerEpoch, ProducerId, ProducerIdAndEpoch
from tallystick.protocol.records import BatchMeta, Codec, Headers, compress, encode_batch

pytestmark = pytest.mark.usefixtures("either_codec")

HEADERS = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=9)), max_size=3).map(tuple)
TIMES = st.integers(1_700_000_000_000, 1_700_000_000_050) | st.integers(0, 2**45)
VALUES = st.binary(max_size=200) | st.sampled_from([b"x" * 63, b"x" * 64, b"x" * 8150, b"x" * 9000])


@st.composite
def columns(draw: st.DrawFn) -> ListRows:
    """Batches of every form: alike and not, with keys, headers, nulls, or without."""
    n = draw(st.integers(1, 200))
    if draw(st.booleans()):
        values: list[bytes | None] = [draw(VALUES)] * n
    else:
        values = draw(st.lists(st.none() | VALUES if draw(st.booleans()) else VALUES, min_size=n, max_size=n))
    keys = draw(st.none() | st.lists(st.none() | st.binary(max_size=40), min_size=n, max_size=n))
    headers: list[Headers] | None = draw(st.none() | st.lists(HEADERS, min_size=n, max_size=n))
    starts = sorted({0, *draw(st.lists(st.integers(0, n - 1), max_size=6))})
    return ListRows(
        values=values, keys=keys, headers=headers, timestamp_runs=[(at, draw(TIMES)) for at in starts]
    )


def _expected(
    rows: ListRows, codec: Codec, who: ProducerIdAndEpoch | None, sequence: int, transactional: bool
) -> bytes:
    meta = BatchMeta(
        codec=codec,
        producer_id=-1 if who is None else who.producer_id,
        producer_epoch=-1 if who is None else who.epoch,
        base_sequence=sequence,
        is_transactional=transactional,
    )
    return encode_batch(list(rows.iter_records()), meta)


@pytest.mark.gate(1)
@given(columns(), st.sampled_from(Codec), st.booleans(), st.booleans())
def test_batches_are_those_of_encode_batch(
    rows: ListRows, codec: Codec, idempotent: bool, transactional: bool
) -> None:
    who = ProducerIdAndEpoch(ProducerId(42), ProducerEpoch(3)) if idempotent or transactional else None
    sequence = 7 if who else -1
    signature = BatchProducerState(identity=who, base_sequence=sequence, is_transactional=transactional)
    made = assemble_batch(rows, compress(codec, rows.encode_section()), codec, signature)
    assert made == _expected(rows, codec, who, sequence, transactional)


@pytest.mark.gate(1)
@given(st.integers(1, 20_000), st.integers(0, 300), st.lists(st.integers(0, 8191), max_size=3))
@example(8193, 100, [0, 63, 64, 8191])
@example(64, 0, [])
def test_large_batches_cross_every_length_of_a_varint(n: int, size: int, deltas: list[int]) -> None:
    base = 1_700_000_000_000
    step = max(n // (len(deltas) + 1), 1)
    runs = [(0, base)] + [
        (place, base + delta) for i, delta in enumerate(deltas, 1) if (place := i * step) < n
    ]
    alike = ListRows(values=[b"v" * size] * n, timestamp_runs=runs)
    differing = ListRows(values=[b"v" * (size + i % 70) for i in range(n)], timestamp_runs=runs)
    for rows in (alike, differing):
        signature = BatchProducerState()
        assert assemble_batch(rows, rows.encode_section(), Codec.NONE, signature) == _expected(
            rows, Codec.NONE, None, -1, False
        )


@pytest.mark.gate(0)
@given(columns(), st.integers(0, 3000))
def test_cutting_keeps_every_record_and_stays_within_the_room(rows: ListRows, room: int) -> None:
    pieces = list(split_rows(rows, room))
    together = [record[1:] for piece, _ in pieces for record in piece.iter_records()]  # type: ignore[attr-defined]
    assert together == [record[1:] for record in rows.iter_records()]
    for piece, size in pieces:
        assert size == piece.compute_size_bounds()[-1]
        assert size <= room or piece.count == 1
        assert len(piece.encode_section()) <= size


@pytest.mark.gate(0)
@given(columns(), st.data())
def test_times_of_a_part_are_those_of_the_whole(rows: ListRows, data: st.DataObject) -> None:
    begin = data.draw(st.integers(0, rows.count - 1))
    end = data.draw(st.integers(begin + 1, rows.count))
    runs: list[TimestampRun] = slice_runs(rows.timestamp_runs, begin, end)
    assert runs[0][0] == 0
    assert [find_timestamp(runs, place - begin) for place in range(begin, end)] == [
        find_timestamp(rows.timestamp_runs, place) for place in range(begin, end)
    ]
