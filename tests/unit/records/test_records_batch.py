"""Headers: read, checked and patched in place."""

from collections.abc import Callable

import pytest
from crc32c import crc32c

from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.ids import INT32_MAX, ProducerEpoch, ProducerId, ProducerIdAndEpoch
from tallystick.kernel.value import replace
from tallystick.protocol.errors import DecodeError
from tallystick.protocol.records import (
    HEADER_SIZE,
    BatchHeader,
    BatchMeta,
    Codec,
    CorruptBatch,
    InvalidBatch,
    Record,
    TimestampType,
    UnsupportedMagic,
    check_batch,
    check_produce_batch,
    decode_records,
    encode_batch,
    iter_headers,
    patch_log_append_time,
    patch_offset_and_epoch,
    read_header,
)
from tallystick.protocol.records.batch import ATTRIBUTES_AT, CRC_AT, LAST_OFFSET_DELTA_AT, LENGTH_AT, MAGIC_AT

Vector = Callable[[str], bytes]
META = BatchMeta(base_offset=10)
RECORDS = [Record(10, 1000, b"a", b"1"), Record(11, 1500, None, b"2"), Record(12, 900, b"c", None)]


def resealed(batch: bytes, at: int, field: bytes) -> bytes:
    """The batch with other bytes at a place, and a CRC that agrees."""
    changed = bytearray(batch)
    changed[at : at + len(field)] = field
    changed[CRC_AT : CRC_AT + 4] = crc32c(changed[ATTRIBUTES_AT:]).to_bytes(4, "big")
    return bytes(changed)


def test_every_field_of_a_header_written_by_kafka(vector: Vector) -> None:
    header = check_batch(vector("transactional_wrap"))
    assert header == BatchHeader(
        base_offset=5,
        batch_length=0x18F,
        partition_leader_epoch=3,
        magic=2,
        crc=0x34E4D533,
        attributes=0x10,
        last_offset_delta=3,
        base_timestamp=1_700_000_000_000,
        max_timestamp=1_700_000_100_000,
        producer_id=4000,
        producer_epoch=7,
        base_sequence=INT32_MAX - 1,
        record_count=4,
    )
    assert (header.last_offset, header.next_offset, header.size_bytes) == (8, 9, 0x18F + 12)
    assert header.is_transactional
    assert not header.is_control
    assert header.codec is Codec.NONE
    assert header.timestamp_type is TimestampType.CREATE_TIME
    assert header.delete_horizon_ms is None
    assert header.producer_id_and_epoch == ProducerIdAndEpoch(ProducerId(4000), ProducerEpoch(7))


def test_the_last_sequence_wraps_to_zero(vector: Vector) -> None:
    """[REC-3] Kafka's incrementSequence: INT32_MAX is followed by 0."""
    header = read_header(vector("transactional_wrap"))
    assert header.last_sequence == 1
    assert replace(header, last_offset_delta=1).last_sequence == INT32_MAX
    assert replace(header, last_offset_delta=2).last_sequence == 0
    assert replace(header, base_sequence=-1).last_sequence == -1
    assert read_header(vector("plain")).producer_id_and_epoch is None


def test_place_and_epoch_are_outside_the_crc() -> None:
    """[REC-1]"""
    batch = bytearray(encode_batch(RECORDS, META))
    before = read_header(batch)
    patch_offset_and_epoch(batch, 0, 1 << 40, 9)
    after = check_batch(batch)
    assert after == replace(before, base_offset=1 << 40, partition_leader_epoch=9)
    assert [record.offset for record in decode_records(batch)] == [(1 << 40) + i for i in range(3)]


def test_append_time_is_stamped_as_kafka_stamps_it(vector: Vector) -> None:
    stamped = bytearray(vector("plain"))
    patch_log_append_time(stamped, 0, 1_700_000_200_000)
    assert bytes(stamped) == vector("log_append_time")
    assert check_batch(stamped).timestamp_type is TimestampType.LOG_APPEND_TIME
    assert {record.timestamp_ms for record in decode_records(stamped)} == {1_700_000_200_000}


def test_patches_reach_the_batch_they_are_given() -> None:
    one = encode_batch(RECORDS, META)
    log = bytearray(one + one)
    view = memoryview(log)
    patch_offset_and_epoch(view, len(one), 13, 2)
    patch_log_append_time(view, len(one), 5000)
    assert bytes(log[: len(one)]) == one
    assert check_batch(view, len(one)).base_offset == 13
    assert [(at, header.base_offset) for at, header in iter_headers(view)] == [(0, 10), (len(one), 13)]


@pytest.mark.parametrize("size", range(HEADER_SIZE))
def test_a_short_header_is_corrupt(size: int) -> None:
    with pytest.raises(CorruptBatch) as caught:
        read_header(encode_batch(RECORDS, META)[:size])
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE


def test_a_batch_that_is_cut_off_is_corrupt() -> None:
    batch = encode_batch(RECORDS, META)
    for size in range(HEADER_SIZE, len(batch)):
        with pytest.raises(CorruptBatch, match=f"needs {len(batch)} bytes, {size} are there"):
            check_batch(batch[:size])
        with pytest.raises(CorruptBatch):
            decode_records(batch[:size])
        with pytest.raises(CorruptBatch):
            list(iter_headers(batch + batch[:size]))


@pytest.mark.parametrize("at", [ATTRIBUTES_AT, LAST_OFFSET_DELTA_AT, HEADER_SIZE, HEADER_SIZE + 5])
def test_a_flipped_bit_is_corrupt(at: int) -> None:
    batch = bytearray(encode_batch(RECORDS, META))
    batch[at] ^= 0x01
    with pytest.raises(CorruptBatch, match="CRC-32C in the header is 0x"):
        check_batch(batch)


@pytest.mark.parametrize("magic", [0, 1])
def test_formats_0_and_1_are_refused_as_kafka_refuses_them(magic: int) -> None:
    """ProduceRequest.validateRecords of Kafka 4.3 raises InvalidRecordException."""
    batch = bytearray(encode_batch(RECORDS, META))
    batch[MAGIC_AT] = magic
    for size in (len(batch), 34):  # a message of format 1 may be shorter than a header of format 2
        with pytest.raises(UnsupportedMagic) as caught:
            read_header(batch[:size])
        assert caught.value.magic == magic
        assert caught.value.code is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("magic", [3, 127, 255])
def test_other_formats_are_corruption(magic: int) -> None:
    batch = bytearray(encode_batch(RECORDS, META))
    batch[MAGIC_AT] = magic
    with pytest.raises(CorruptBatch, match="expected 2"):
        read_header(batch)


@pytest.mark.parametrize("length", [-1, 0, 48, -(2**31)])
def test_impossible_lengths_are_corrupt(length: int) -> None:
    batch = bytearray(encode_batch(RECORDS, META))
    batch[LENGTH_AT : LENGTH_AT + 4] = length.to_bytes(4, "big", signed=True)
    with pytest.raises(CorruptBatch, match=f"length {length}"):
        read_header(batch)


def test_what_kafka_calls_an_invalid_record() -> None:
    batch = encode_batch(RECORDS, META)
    unknown_codec = resealed(batch, ATTRIBUTES_AT, b"\0\5")
    with pytest.raises(InvalidBatch, match="codec 5"):
        check_batch(unknown_codec)
    with pytest.raises(InvalidBatch, match="codec 5"):
        decode_records(unknown_codec)
    with pytest.raises(InvalidBatch, match="3 records do not fit offset deltas 0 to 1"):
        check_batch(resealed(batch, LAST_OFFSET_DELTA_AT, b"\0\0\0\1"))
    with pytest.raises(InvalidBatch, match="negative"):
        check_batch(resealed(batch, LAST_OFFSET_DELTA_AT, b"\xff\xff\xff\xff"))


def test_what_only_a_client_must_not_send() -> None:
    """LogValidator.validateBatch, AppendOrigin.CLIENT."""
    sound = check_batch(encode_batch(RECORDS, META))
    check_produce_batch(sound)
    for wrong in (
        replace(sound, last_offset_delta=3),  # compaction leaves such gaps, clients do not
        replace(sound, record_count=0, last_offset_delta=-1),
        replace(sound, attributes=0x20),
        replace(sound, producer_id=5, producer_epoch=0),
        replace(sound, record_count=1000, last_offset_delta=999),
        replace(sound, attributes=4, record_count=INT32_MAX, last_offset_delta=INT32_MAX - 1),
    ):
        with pytest.raises(InvalidBatch):
            check_produce_batch(wrong)


def test_errors_are_decode_errors_that_say_where() -> None:
    batch = encode_batch(RECORDS, META)
    with pytest.raises(DecodeError, match=f"record batch at byte {len(batch)}: "):
        check_batch(batch + b"\0" * 100, len(batch))
