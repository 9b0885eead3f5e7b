"""[CLI-70] The compiled record codec and the one in Python make and find the same."""

import struct
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.support.codecs_of_records import EXTENSION, codec

from tallystick.client.consumer.arrow import RowChunk, build_record_batch, records_to_arrow, take_chunk
from tallystick.client.consumer.decode import CompletedFetch, ConsumerRecord
from tallystick.client.producer.batches.partitioner import murmur2
from tallystick.client.producer.batches.rows import ListRows, group_by_partition
from tallystick.kernel.ids import TopicPartition
from tallystick.kernel.limits import HEADERS_PER_RECORD_MAX
from tallystick.protocol.records import (
    HEADER_SIZE,
    BatchMeta,
    Codec,
    Headers,
    InvalidBatch,
    Record,
    RecordsError,
    TimestampType,
    encode_batch,
    iter_records,
    native,
    read_header,
)

if TYPE_CHECKING:
    from pyarrow import RecordBatch

if EXTENSION is None:
    pytest.skip("the extension is not compiled", allow_module_level=True)

AT = TopicPartition("a topic", 3)
INT64 = st.integers(-(2**63), 2**63 - 1)
TEXTS = st.none() | st.binary(max_size=80) | st.sampled_from([b"v" * 64, b"v" * 8191, b"v" * 20_000])
HEADERS = st.lists(st.tuples(st.text(max_size=4), st.none() | st.binary(max_size=70)), max_size=3).map(tuple)
DAMAGE = st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=3)
RECORDS = st.lists(st.tuples(TEXTS, TEXTS, st.integers(0, 9_000) | INT64, HEADERS), min_size=1, max_size=60)


def read_arrow(data: bytes, start: int = 0, *, check_crcs: bool = True) -> "RecordBatch":
    fetch, pieces = CompletedFetch(AT, start, data, None, check_crcs=check_crcs), list[RowChunk]()
    while not fetch.is_exhausted:
        pieces.append(take_chunk(fetch, 1 << 20)[0])
    return build_record_batch(pieces)


@st.composite
def many_columns(draw: st.DrawFn) -> ListRows:
    n = draw(st.integers(1, 90))
    texts = st.lists(TEXTS, min_size=n, max_size=n)
    headers: list[Headers] | None = draw(st.none() | st.lists(HEADERS, min_size=n, max_size=n))
    starts = sorted({0, *draw(st.lists(st.integers(0, n - 1), max_size=6))})
    runs = [(at, draw(INT64)) for at in starts]
    return ListRows(values=draw(texts), keys=draw(st.none() | texts), headers=headers, timestamp_runs=runs)


@given(many_columns())
def test_sections_are_the_same_bytes(rows: ListRows) -> None:
    with codec(None):
        expected = rows.encode_section()
    with codec(EXTENSION):
        assert rows._encode_natively() == expected


@given(st.lists(st.none() | st.binary(max_size=30), max_size=50), st.integers(1, 2**31 - 1))
def test_keys_have_the_same_partitions(keys: list[bytes | None], partitions: int) -> None:
    with codec(None):
        expected = group_by_partition(keys, partitions)
    with codec(EXTENSION):
        assert group_by_partition(keys, partitions) == expected
    for key in filter(None, keys):
        assert EXTENSION.partition_of(key, partitions) == (murmur2(key) & 2**31 - 1) % partitions


def _found(batch: bytes) -> list[Record] | None:
    """What the plainest reader finds; None where the batch is invalid."""
    try:
        return list(iter_records(batch))
    except InvalidBatch:
        return None


def _plain(records: list[ConsumerRecord]) -> list[Record]:
    return [Record(r.offset, r.timestamp_ms, r.key, r.value, r.headers) for r in records]


@given(RECORDS, DAMAGE, st.booleans(), st.booleans(), st.integers(0, 2**62))
@example([(b"k", b"v", 5, (("h", b"1"), ("n", None)))], [(8, 0x80), (9, 0)], False, True, 0)
def test_any_bytes_are_the_same_records_or_are_left_to_python(
    contents: list[tuple[bytes | None, bytes | None, int, Headers]],
    damage: list[tuple[int, int]],
    gaps: bool,
    stamped: bool,
    base: int,
) -> None:
    """[CLI-70] The extension says None at most where Python refuses; and then always."""
    made = [
        Record(base + i * (1 + gaps), time, key, value, headers)
        for i, (key, value, time, headers) in enumerate(contents)
    ]
    kind = TimestampType.LOG_APPEND_TIME if stamped else TimestampType.CREATE_TIME
    batch = bytearray(encode_batch(made, BatchMeta(base_offset=base, timestamp_type=kind)))
    for where, byte in damage:
        batch[HEADER_SIZE + where % (len(batch) - HEADER_SIZE)] = byte
    thorough = _found(bytes(batch))
    with codec(EXTENSION):
        fetched = CompletedFetch(AT, 0, bytes(batch), None, check_crcs=False)
        table = fetched.take_columns(1000)
        assert (table is None) == (thorough is None)
        if table is not None:
            assert thorough is not None
            assert table[:2] == (len(thorough), 0)
        fetched = CompletedFetch(AT, 0, bytes(batch), None, check_crcs=False)
        if thorough is None:
            with pytest.raises(InvalidBatch):
                fetched.take_records(1000)
        else:
            assert _plain(fetched.take_records(1000)) == thorough


@given(RECORDS, st.sampled_from(Codec), st.integers(0, 70))
def test_columns_hold_what_records_hold(
    contents: list[tuple[bytes | None, bytes | None, int, Headers]], packed: Codec, start: int
) -> None:
    pytest.importorskip("pyarrow", reason="the extra `arrow` is not installed")
    made = [
        Record(i, time % 2**40, key, value, headers) for i, (key, value, time, headers) in enumerate(contents)
    ]
    batch = encode_batch(made, BatchMeta(codec=packed, leader_epoch=4))
    with codec(None):
        expected = records_to_arrow(CompletedFetch(AT, start, batch, None).take_records(1000))
        assert read_arrow(batch, start).equals(expected)
    with codec(EXTENSION):
        found = read_arrow(batch, start)
    found.validate(full=True)
    assert found.equals(expected)


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=6),
    st.lists(st.tuples(st.booleans(), st.integers(1, 12)), min_size=1, max_size=20),
    st.integers(0, 30),
)
def test_rows_are_taken_once_in_whatever_form(
    sizes: list[int], takes: list[tuple[bool, int]], start: int
) -> None:
    """Records and columns in turns: each row once, in order, and the position is behind what was taken."""
    pytest.importorskip("pyarrow", reason="the extra `arrow` is not installed")
    batches, end = [], 0
    for size in sizes:
        made = [Record(end + i, 7, None, b"%d" % (end + i)) for i in range(size)]
        batches.append(encode_batch(made, BatchMeta(base_offset=end, leader_epoch=end)))
        end += size + 2  # a gap
    whole = [
        record.offset for record in CompletedFetch(AT, start, b"".join(batches), None).take_records(1000)
    ]
    with codec(EXTENSION):
        fetched, taken = CompletedFetch(AT, start, b"".join(batches), None), list[int]()
        for columns, most in takes * 10:
            if columns:
                piece, rows = take_chunk(fetched, most)
                some = build_record_batch([piece]).column("offset").to_pylist()
                assert rows == len(some)
            else:
                some = [record.offset for record in fetched.take_records(most)]
            taken += some
            assert len(some) <= most
            assert taken == whole[: len(taken)]
            assert fetched.position >= max(taken, default=start - 1) + 1
            assert all(offset >= fetched.position for offset in whole[len(taken) :])
            if len(taken) == len(whole):
                break
        while not fetched.is_exhausted:
            taken += [record.offset for record in fetched.take_records(1)]
    assert taken == whole


def test_a_bad_batch_behind_good_ones_is_met_when_they_are_used_up() -> None:
    good = encode_batch([Record(i, 7, None, b"v") for i in range(5)], BatchMeta())
    bad = bytearray(encode_batch([Record(5, 7, None, b"v")], BatchMeta(base_offset=5)))
    bad[-1] = 9
    with codec(EXTENSION):
        fetched = CompletedFetch(AT, 2, good + bytes(bad), None, check_crcs=False)
        _, rows = take_chunk(fetched, 100)
        assert (rows, fetched.position) == (3, 5)
        with pytest.raises(RecordsError):
            take_chunk(fetched, 100)
        assert fetched.position == 5


def test_the_most_headers_are_as_many_as_in_python() -> None:
    for number, readable in ((HEADERS_PER_RECORD_MAX, True), (HEADERS_PER_RECORD_MAX + 1, False)):
        batch = encode_batch([Record(0, 0, None, None, (("", None),) * number)], BatchMeta())
        header = native.make_native_batch(read_header(batch))
        assert (_found(batch) is not None) is readable
        section = batch[HEADER_SIZE:]
        origin = ("t", 0, TimestampType.CREATE_TIME, None)
        assert (EXTENSION.records(section, header, ConsumerRecord, origin) is not None) is readable


@pytest.mark.parametrize(
    ("offsets", "data", "first"),
    [
        ((0, 3), b"ab", 0),  # past the end of the data
        ((2, 1), b"abc", 0),  # backwards
        ((-1, 2), b"abc", 0),
        ((0,), b"abc", 0),  # too few
        ((0, 1), b"abc", 1),
        ((0, 1), b"abc", -1),
        ((0, 1), None, 0),
        ((0, 1), b"a", 2**63 - 1),
    ],
)
def test_buffers_that_are_no_array_are_not_read(offsets: tuple[int], data: bytes | None, first: int) -> None:
    column = (None, struct.pack(f"<{len(offsets)}q", *offsets), data, first)
    assert EXTENSION.encode(1, [(0, 0)], column, None, None) is None
    assert EXTENSION.partitions(1, column, 3) is None


@pytest.mark.parametrize(
    ("count", "runs", "values"),
    [
        (1, [(0, 0)], ["text"]),
        (2, [(0, 0)], [b"one"]),
        (1, [], [b"v"]),
        (1, [(0, 2**64)], [b"v"]),
        (1, [0], [b""]),
    ],
)
def test_what_is_not_understood_is_left_to_python(count: int, runs: list, values: list) -> None:  # type: ignore[type-arg]
    assert EXTENSION.encode(count, runs, values, None, None) is None


def test_names_of_headers_that_are_not_utf8_are_replaced_as_in_java() -> None:
    pytest.importorskip("pyarrow", reason="the extra `arrow` is not installed")
    batch = encode_batch([Record(0, 0, None, None, (("é", b"1"),))], BatchMeta())
    damaged = batch.replace("é".encode(), b"\xff\xfe")
    for chosen in (EXTENSION, None):
        with codec(chosen):
            (row,) = read_arrow(damaged, check_crcs=False).to_pylist()
        assert row["headers"] == [{"key": "\ufffd\ufffd", "value": b"1"}]


def test_an_extension_of_other_sources_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "INTERFACE", -1)
    assert native._load_extension() is None
