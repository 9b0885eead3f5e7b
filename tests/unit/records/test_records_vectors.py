"""Somebody else's bytes: batches written by Kafka's own code, and one spelled out by hand.

Where nothing depends on a codec's implementation ours must be the same, byte for byte.
"""

from collections.abc import Callable
from itertools import product

import pytest

from tallystick.kernel.ids import INT32_MAX, ProducerEpoch, ProducerId, ProducerIdAndEpoch
from tallystick.kernel.value import replace
from tallystick.protocol.records import (
    BatchMeta,
    Codec,
    ControlType,
    EndTransactionMarker,
    InvalidBatch,
    Record,
    RecordsError,
    check_batch,
    check_produce_batch,
    decode_marker,
    decode_records,
    encode_batch,
    encode_marker,
    filter_batch,
    iter_records,
    parse_control_type,
    read_header,
    read_marker,
    scan_keys,
)

Vector = Callable[[str], bytes]

RECORDS = [
    Record(5, 1_700_000_000_000, None, b"first"),
    Record(6, 1_700_000_000_007, b"k", None),
    Record(7, 1_699_999_999_000, b"key", b"v" * 300, (("h", b"\0\1"), ("n", None))),
    Record(8, 1_700_000_100_000, b"", b""),
]
PLAIN = BatchMeta(base_offset=5, leader_epoch=3)
TRANSACTIONAL = replace(
    PLAIN, producer_id=4000, producer_epoch=7, base_sequence=INT32_MAX - 1, is_transactional=True
)


def test_the_batch_spelled_out_by_hand(vector: Vector) -> None:
    record = Record(42, 1000, b"a", b"b")
    check_batch(vector("by_hand"))
    assert decode_records(vector("by_hand")) == [record]
    assert encode_batch([record], BatchMeta(base_offset=42)) == vector("by_hand")


@pytest.mark.parametrize("name", ["plain", "gzip", "snappy", "lz4", "zstd"])
def test_kafkas_batches_hold_the_same_records_under_every_codec(vector: Vector, name: str) -> None:
    batch = vector(name)
    header = check_batch(batch)
    assert header.codec is (Codec.NONE if name == "plain" else Codec[name.upper()])
    assert decode_records(batch) == RECORDS
    assert list(iter_records(batch)) == RECORDS
    assert [tuple(found) for found in scan_keys(batch)] == [
        (5, 1_700_000_000_000, None, False, 5),
        (6, 1_700_000_000_007, b"k", True, 0),
        (7, 1_699_999_999_000, b"key", False, 300),
        (8, 1_700_000_100_000, b"", False, 0),
    ]


@pytest.mark.parametrize("name", ["plain", "gzip", "snappy", "lz4", "zstd"])
def test_librdkafkas_batches_are_read(vector: Vector, name: str) -> None:
    batch = vector(f"librdkafka_{name}")
    header = check_batch(batch)
    check_produce_batch(header)
    assert header.codec is (Codec.NONE if name == "plain" else Codec[name.upper()])
    assert decode_records(batch) == [
        record._replace(offset=at, timestamp_ms=1_700_000_000_000 + 7 * at)
        for at, record in enumerate(RECORDS)
    ]


def test_our_batches_are_kafkas_byte_for_byte(vector: Vector) -> None:
    assert encode_batch(RECORDS, PLAIN) == vector("plain")
    assert encode_batch(RECORDS, TRANSACTIONAL) == vector("transactional_wrap")


@pytest.mark.parametrize("outcome", [ControlType.ABORT, ControlType.COMMIT])
def test_markers_are_kafkas_byte_for_byte(vector: Vector, outcome: ControlType) -> None:
    marker = EndTransactionMarker(control_type=outcome, coordinator_epoch=11)
    batch = vector(outcome.name.lower())
    identity = ProducerIdAndEpoch(ProducerId(4000), ProducerEpoch(8))
    ours = encode_marker(marker, identity, timestamp_ms=1_700_000_000_000, offset=9, leader_epoch=3)
    assert ours == batch

    header = check_batch(batch)
    assert (header.is_control, header.is_transactional, header.base_sequence) == (True, True, -1)
    assert header.producer_id_and_epoch == identity
    assert read_marker(batch) == marker
    assert decode_marker(decode_records(batch)[0]) == marker


def read_or_refused(batch: bytes) -> EndTransactionMarker | str | None:
    try:
        return read_marker(batch)
    except RecordsError as exc:
        return type(exc).__name__


@pytest.mark.parametrize("outcome", [ControlType.ABORT, ControlType.COMMIT])
def test_a_marker_is_read_the_same_the_quick_way_and_the_careful_one(
    vector: Vector, outcome: ControlType
) -> None:
    """[WIRE-4] Whatever byte is another one; a batch with something behind it is read carefully."""
    batch = vector(outcome.name.lower())
    length = range(8, 12)  # then where the batch ends depends on what is behind it
    for position, bit in product(set(range(len(batch))) - set(length), range(8)):
        changed = bytearray(batch)
        changed[position] ^= 1 << bit
        assert read_or_refused(bytes(changed)) == read_or_refused(bytes(changed) + b"\0"), (position, bit)


def test_only_markers_are_markers(vector: Vector) -> None:
    assert read_marker(vector("plain")) is None
    leader_change = Record(0, 0, b"\0\0\0\2", b"")
    assert parse_control_type(leader_change) is ControlType.LEADER_CHANGE
    assert parse_control_type(Record(0, 0, b"\0\0\x7f\0", b"")) is None
    for wrong in (
        leader_change,
        Record(0, 0, None, b"\0\0\0\0\0\1"),
        Record(0, 0, b"\0\0\0", b"\0\0\0\0\0\1"),
        Record(0, 0, b"\xff\xff\0\1", b"\0\0\0\0\0\1"),
        Record(0, 0, b"\0\0\0\1", None),
        Record(0, 0, b"\0\0\0\1", b"\0\0\0\0\0"),
        Record(0, 0, b"\0\0\0\1", b"\xff\xff\0\0\0\1"),
    ):
        with pytest.raises(InvalidBatch):
            decode_marker(wrong)
    # A later version begins like ours.
    later = Record(0, 0, b"\0\1\0\1more", b"\0\1\0\0\0\7more")
    assert decode_marker(later) == EndTransactionMarker(control_type=ControlType.COMMIT, coordinator_epoch=7)


@pytest.mark.parametrize(
    ("name", "offsets", "horizon_ms"),
    [
        ("compacted_none", {7, 8}, 1_700_000_501_000),
        ("compacted_horizon", {6, 7, 8}, 1_700_000_501_000),
        ("compacted_first", {5}, 1_700_000_501_000),
        ("compacted_empty", set(), 1_700_000_501_000),
    ],
)
def test_compaction_leaves_what_kafkas_leaves(
    vector: Vector, name: str, offsets: set[int], horizon_ms: int
) -> None:
    """[REC-2] Byte for byte, and the producer's last sequence stays where it was."""
    before = vector("transactional_wrap")
    after = filter_batch(before, 0, offsets, retain_empty=True, horizon_ms=horizon_ms)
    assert after == vector(name)
    header = check_batch(after)
    assert decode_records(after) == [record for record in RECORDS if record.offset in offsets]
    assert (header.last_offset, header.last_sequence) == (8, read_header(before).last_sequence)
    assert header.delete_horizon_ms == (horizon_ms if name == "compacted_horizon" else None)
