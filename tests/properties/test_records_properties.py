"""Record batches under Hypothesis: round trips, a second opinion (kio), and hostile bytes."""

import io
from datetime import UTC, datetime
from itertools import pairwise

import pytest
from crc32c import crc32c
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kio.records.readers import read_batch
from kio.records.schema import NewRecordBatch, RecordHeader
from kio.records.schema import Record as KioRecord
from kio.records.writers import write_batch
from kio.static.primitive import TZAwareMicros, i8, i16, i32, i64
from tests.support.effort import examples

from tallystick.kernel.ids import INT32_MAX, INT64_MAX
from tallystick.protocol.errors import DecodeError
from tallystick.protocol.records import (
    BatchMeta,
    Codec,
    DecodeLimits,
    InvalidBatch,
    Record,
    check_batch,
    check_produce_batch,
    decode_marker,
    decode_records,
    decompress,
    encode_batch,
    filter_batch,
    read_header,
    read_marker,
    scan_keys,
)
from tallystick.protocol.records.batch import ATTRIBUTES_AT, CRC_AT
from tallystick.protocol.records.record import decode_zigzag, encode_zigzag

INT64_MIN = -INT64_MAX - 1
int64s = st.integers(INT64_MIN, INT64_MAX)
sizes = st.sampled_from([0, 1, 63, 64, 127, 128, 8191, 8192, 16383, 16384])
blobs = st.one_of(st.none(), st.binary(max_size=40), st.builds(bytes, sizes))
names = st.text(max_size=10)
headers = st.lists(st.tuples(names, blobs), max_size=3).map(tuple)


@st.composite
def record_lists(draw: st.DrawFn, timestamps: st.SearchStrategy[int] = int64s) -> list[Record]:
    base = draw(st.sampled_from([0, 1, 1 << 31, (1 << 63) - 1 - INT32_MAX]))
    gaps = draw(st.lists(st.sampled_from([1, 1, 1, 2, 63, 64, 8192, 1 << 20]), min_size=1, max_size=6))
    offsets = [base + sum(gaps[:i]) for i in range(len(gaps))]
    return [Record(o, draw(timestamps), draw(blobs), draw(blobs), draw(headers)) for o in offsets]


@given(int64s)
@example(0)
@example(-1)
@example(63)
@example(64)
@example(-64)
@example(-65)
@example(8191)
@example(8192)
@example(2**31 - 1)
@example(-(2**31))
@example(INT64_MAX)
@example(INT64_MIN)
def test_varints_at_their_edges(value: int) -> None:
    encoded = encode_zigzag(value)
    assert decode_zigzag(b"\xff" + encoded + b"\xff", 1) == (value, 1 + len(encoded))
    magnitude = 2 * value if value >= 0 else -2 * value - 1
    assert len(encoded) == max(1, -(-magnitude.bit_length() // 7))


@pytest.mark.parametrize("size", [10, 11, 100])
def test_a_varint_that_does_not_end_is_refused(size: int) -> None:
    with pytest.raises(InvalidBatch, match="more than 64 bits"):
        decode_zigzag(b"\x80" * size + b"\0")
    with pytest.raises(InvalidBatch, match="more than 64 bits"):
        decode_zigzag(b"\xff" * 9 + b"\x02")


@given(record_lists(), st.sampled_from(Codec))
def test_what_is_encoded_is_decoded(records: list[Record], codec: Codec) -> None:
    batch = encode_batch(records, BatchMeta(base_offset=records[0].offset, codec=codec))
    header = check_batch(batch)
    assert decode_records(batch) == records
    assert decode_records(memoryview(b"before" + batch + b"after"), 6) == records
    assert (header.base_offset, header.last_offset) == (records[0].offset, records[-1].offset)
    assert header.max_timestamp == max(record.timestamp_ms for record in records)
    assert [found.key for found in scan_keys(batch)] == [record.key for record in records]


@given(record_lists(), st.sampled_from(Codec), st.data())
def test_filtering_is_decoding_choosing_and_encoding(
    records: list[Record], codec: Codec, data: st.DataObject
) -> None:
    offsets = [record.offset for record in records]
    kept = data.draw(st.sets(st.sampled_from(offsets)))
    horizon = data.draw(st.one_of(st.none(), st.integers(0, INT64_MAX)))
    batch = encode_batch(records, BatchMeta(base_offset=records[0].offset, codec=codec))
    after = filter_batch(batch, 0, kept, retain_empty=True, horizon_ms=horizon)
    assert after is not None
    header = check_batch(after)
    assert decode_records(after) == [record for record in records if record.offset in kept]
    assert (header.base_offset, header.last_offset) == (offsets[0], offsets[-1])
    tombstones = any(record.value is None for record in records if record.offset in kept)
    assert header.delete_horizon_ms == (horizon if tombstones else None)


# kio's timestamps lose what is below a second, and names and times it cannot hold are left out.
seconds = st.integers(0, 4_000_000_000).map(lambda second: second * 1000)


def as_kio(record: Record) -> KioRecord:
    return KioRecord(
        attributes=i8(0),
        timestamp=TZAwareMicros.parse(datetime.fromtimestamp(record.timestamp_ms // 1000, UTC)),
        offset=i64(record.offset),
        key=record.key,
        value=record.value,
        headers=tuple(RecordHeader(key=name.encode(), value=value) for name, value in record.headers),
    )


@given(record_lists(seconds))
def test_kio_reads_ours(records: list[Record]) -> None:
    meta = BatchMeta(
        base_offset=records[0].offset,
        producer_id=5,
        producer_epoch=3,
        base_sequence=INT32_MAX,
        leader_epoch=2,
    )
    batch = encode_batch(records, meta)
    theirs, size = read_batch(batch, 0)
    header = read_header(batch)
    assert size == len(batch)
    assert theirs.records == tuple(map(as_kio, records))
    for name in ("base_offset", "batch_length", "partition_leader_epoch", "crc", "attributes"):
        assert getattr(theirs, name) == getattr(header, name)
    for name in ("last_offset_delta", "base_timestamp", "max_timestamp", "producer_id", "producer_epoch"):
        assert getattr(theirs, name) == getattr(header, name)
    assert theirs.base_sequence == header.base_sequence


@given(record_lists(seconds))
def test_we_read_kios_and_write_the_same_bytes(records: list[Record]) -> None:
    theirs = io.BytesIO()
    new = NewRecordBatch(
        producer_id=i64(5),
        producer_epoch=i16(3),
        partition_leader_epoch=i32(2),
        base_sequence=i32(7),
        records=tuple(map(as_kio, records)),
        attributes=i16(0),
    )
    write_batch(theirs, new)
    batch = theirs.getvalue()
    check_batch(batch)
    assert decode_records(batch) == records
    meta = BatchMeta(
        base_offset=records[0].offset, producer_id=5, producer_epoch=3, base_sequence=7, leader_epoch=2
    )
    assert batch == encode_batch(records, meta)


SMALL = DecodeLimits(decompressed_bytes_max=1 << 16)


def read_every_way(buf: bytes) -> None:
    """Every reader answers a value or a DecodeError."""
    try:
        check_produce_batch(check_batch(buf))
    except DecodeError:
        pass
    try:
        records = decode_records(buf, 0, SMALL)
    except DecodeError:
        records = []
    for record in records:
        assert INT64_MIN <= record.timestamp_ms <= INT64_MAX
        try:
            decode_marker(record)
        except DecodeError:
            pass
    assert all(a.offset < b.offset for a, b in pairwise(records))
    for read in (
        read_marker,
        lambda b: list(scan_keys(b, 0, SMALL)),
        lambda b: filter_batch(b, 0, lambda found: found.offset & 1 == 0, retain_empty=True, horizon_ms=5),
    ):
        try:
            read(buf)
        except DecodeError:
            pass


def seeds() -> list[bytes]:
    records = [
        Record(0, 1_000, b"key", b"value" * 20, (("h", b"x"), ("é", None))),
        Record(1, 999, None, None),
        Record(70, 10**12, b"", b"v" * 300),
    ]
    return [encode_batch(records, BatchMeta(codec=codec)) for codec in Codec]


@given(st.sampled_from(seeds()), st.data())
@settings(max_examples=examples(quick=50, gate=60, full=300))
def test_damaged_batches_with_a_right_crc(batch: bytes, data: st.DataObject) -> None:
    """[REC-6] The CRC is made to agree, so that what lies behind it is reached."""
    damaged = bytearray(batch)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(ATTRIBUTES_AT, len(damaged) - 1))
        damaged[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, 3))
    damaged = damaged[: len(damaged) - cut]
    damaged[8:12] = (len(damaged) - 12).to_bytes(4, "big")
    damaged[CRC_AT:ATTRIBUTES_AT] = crc32c(damaged[ATTRIBUTES_AT:]).to_bytes(4, "big")
    read_every_way(bytes(damaged))


@given(st.binary(max_size=200))
@settings(max_examples=examples(quick=50, gate=50, full=200))
def test_any_bytes(junk: bytes) -> None:
    read_every_way(junk)


@given(st.sampled_from(Codec), st.binary(max_size=200))
@settings(max_examples=examples(quick=50, gate=60, full=300))
def test_any_payload(codec: Codec, junk: bytes) -> None:
    magic = {
        Codec.GZIP: b"\x1f\x8b\x08\0\0\0\0\0\0\xff",
        Codec.SNAPPY: b"\x82SNAPPY\0\0\0\0\1\0\0\0\1",
        Codec.LZ4: b"\x04\x22\x4d\x18\x60\x40\x82",
        Codec.ZSTD: b"\x28\xb5\x2f\xfd",
    }.get(codec, b"")
    for payload in (junk, magic + junk):
        try:
            decompress(codec, payload, max_bytes=1 << 16)
        except DecodeError:
            pass


@pytest.mark.parametrize("value", [0, 1, 63, 64, 65, 127, 128, 4095, 4096, 8191, 8192, 8193, 1 << 20])
def test_sizes_and_deltas_around_the_edges_of_the_table(value: int) -> None:
    """Small varints come from a table; at its edges and beyond it the bytes are the same as computed."""
    record = Record(value, 1000 + value, bytes(value), bytes(value))
    first = Record(-1, 1000)
    batch = encode_batch([first, record], BatchMeta(base_offset=-1))
    assert decode_records(batch) == [first, record]
    assert encode_zigzag(value) + encode_zigzag(value + 1) + encode_zigzag(value) in batch
