"""Record batches of format 2: headers, checks and in-place patches.

A batch is a header of 61 bytes and a section of records, which may be compressed as a whole. The CRC covers
everything from the attributes on. Base offset and leader epoch come before that, so a broker can assign
them without recomputing the CRC [REC-1].

Source: Kafka's protocol guide, "Record Batch"; DefaultRecordBatch.
"""

from collections.abc import Iterator
from enum import IntEnum
from struct import Struct
from typing import Final

from tallystick.kernel.ids import INT32_MAX, ProducerEpoch, ProducerId, ProducerIdAndEpoch
from tallystick.kernel.limits import RECORDS_PER_BATCH_MAX
from tallystick.kernel.value import Value
from tallystick.protocol.records.compression import Codec
from tallystick.protocol.records.crc import crc32c
from tallystick.protocol.records.errors import CorruptBatch, InvalidBatch, UnsupportedMagic

Buffer = bytes | bytearray | memoryview

MAGIC: Final = 2

# Positions of the header fields.
BASE_OFFSET_AT: Final = 0
LENGTH_AT: Final = 8
LEADER_EPOCH_AT: Final = 12
MAGIC_AT: Final = 16
CRC_AT: Final = 17
ATTRIBUTES_AT: Final = 21
LAST_OFFSET_DELTA_AT: Final = 23
BASE_TIMESTAMP_AT: Final = 27
MAX_TIMESTAMP_AT: Final = 35
PRODUCER_ID_AT: Final = 43
PRODUCER_EPOCH_AT: Final = 51
BASE_SEQUENCE_AT: Final = 53
RECORD_COUNT_AT: Final = 57
HEADER_SIZE: Final = 61

# Base offset and length fields, which `batch_length` does not include.
LOG_OVERHEAD: Final = 12
BATCH_LENGTH_MIN: Final = HEADER_SIZE - LOG_OVERHEAD

CODEC_MASK: Final = 0x07
LOG_APPEND_TIME_BIT: Final = 0x08
TRANSACTIONAL_BIT: Final = 0x10
CONTROL_BIT: Final = 0x20
DELETE_HORIZON_BIT: Final = 0x40

# The shortest record: seven fields of one byte each.
RECORD_SIZE_MIN: Final = 7

HEADER_STRUCT: Final = Struct(">qiibIhiqqqhii")
_unpack_header: Final = HEADER_STRUCT.unpack_from
_pack_int64: Final = Struct(">q").pack_into
_pack_int32: Final = Struct(">i").pack_into
_pack_uint32: Final = Struct(">I").pack_into
_pack_int16: Final = Struct(">h").pack_into

_CODECS: Final = tuple(Codec)


class TimestampType(IntEnum):
    """Bit 3 of the attributes: CreateTime or LogAppendTime."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class BatchHeader(Value):
    """The header as it is on the wire: plain integers, and -1 where Kafka writes "none"."""

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def size_bytes(self) -> int:
        """Size of the whole batch, base offset and length fields included."""
        return LOG_OVERHEAD + self.batch_length

    @property
    def codec(self) -> Codec:
        bits = self.attributes & CODEC_MASK
        if bits >= len(_CODECS):
            raise InvalidBatch(f"compression codec {bits} is unknown, the highest is {_CODECS[-1]}")
        return _CODECS[bits]

    @property
    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL_BIT != 0

    @property
    def is_control(self) -> bool:
        return self.attributes & CONTROL_BIT != 0

    @property
    def timestamp_type(self) -> TimestampType:
        log_append_time = self.attributes & LOG_APPEND_TIME_BIT
        return TimestampType.LOG_APPEND_TIME if log_append_time else TimestampType.CREATE_TIME

    @property
    def log_append_time_ms(self) -> int | None:
        """The broker's timestamp, which applies to all records; None for CreateTime."""
        return self.max_timestamp if self.attributes & LOG_APPEND_TIME_BIT else None

    @property
    def delete_horizon_ms(self) -> int | None:
        """The time from which tombstones or markers may be removed; stored as base timestamp (KIP-534)."""
        return self.base_timestamp if self.attributes & DELETE_HORIZON_BIT else None

    @property
    def producer_id_and_epoch(self) -> ProducerIdAndEpoch | None:
        """Producer id and epoch of an idempotent or transactional batch; None for others."""
        if self.producer_id < 0:
            return None
        return ProducerIdAndEpoch(ProducerId(self.producer_id), ProducerEpoch(self.producer_epoch))

    @property
    def last_sequence(self) -> int:
        """Sequence number of the last record, wrapping to 0 after INT32_MAX [REC-3]; -1 for none.

        Compaction keeps `last_offset_delta`, so this also holds for a batch whose last record was removed.
        """
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.last_offset_delta) & INT32_MAX


def read_header(buf: Buffer, at: int = 0) -> BatchHeader:
    """Read the header of the batch at `at`; only these 61 bytes need to be there.

    Raises: UnsupportedMagic for formats 0 and 1; CorruptBatch for a short buffer or impossible numbers.
    """
    if len(buf) - at < HEADER_SIZE:
        raise _short_batch_error(buf, at)
    header = BatchHeader(*_unpack_header(buf, at))
    if header.magic != MAGIC:
        raise _foreign_magic_error(header.magic, at)
    if header.batch_length < BATCH_LENGTH_MIN:
        raise CorruptBatch(f"length {header.batch_length} is below the header's {BATCH_LENGTH_MIN}", at)
    if header.last_offset_delta < 0 or header.record_count < 0:
        raise InvalidBatch(
            f"{header.record_count} records up to offset delta {header.last_offset_delta}: negative", at
        )
    return header


def check_batch(buf: Buffer, at: int = 0) -> BatchHeader:
    """Read the header and verify the batch: length, CRC-32C, codec, and no more records than offsets.

    The checks apply to every batch, compacted ones too; `check_produce_batch` adds those for clients'
    batches.

    Raises: CorruptBatch, InvalidBatch, UnsupportedMagic.
    Cost: 1 us, and the CRC of the batch.
    """
    header = read_header(buf, at)
    end = at + LOG_OVERHEAD + header.batch_length
    if end > len(buf):
        raise CorruptBatch(f"needs {header.size_bytes} bytes, {len(buf) - at} are there", at)
    crc = crc32c(memoryview(buf)[at + ATTRIBUTES_AT : end])
    if crc != header.crc:
        raise CorruptBatch(f"CRC-32C in the header is {header.crc:#010x}, of the bytes {crc:#010x}", at)
    if header.attributes & CODEC_MASK > Codec.ZSTD:
        raise InvalidBatch(f"compression codec {header.attributes & CODEC_MASK} is unknown", at)
    if header.record_count > header.last_offset_delta + 1:
        raise InvalidBatch(
            f"{header.record_count} records do not fit offset deltas 0 to {header.last_offset_delta}", at
        )
    return header


def check_produce_batch(header: BatchHeader, at: int = 0) -> None:
    """Check the header of a client's batch: a record per offset, no control records.

    Source: LogValidator.validateBatch with AppendOrigin.CLIENT.
    Raises: InvalidBatch.
    """
    count = header.record_count
    if count < 1 or count != header.last_offset_delta + 1:
        raise InvalidBatch(f"{count} records for offset deltas 0 to {header.last_offset_delta}", at)
    if count > RECORDS_PER_BATCH_MAX:
        raise InvalidBatch(f"{count} records, the most is {RECORDS_PER_BATCH_MAX}", at)
    if header.attributes & CONTROL_BIT:
        raise InvalidBatch("clients may not write control records", at)
    if header.producer_id >= 0 and header.base_sequence < 0:
        raise InvalidBatch(f"producer {header.producer_id} sent sequence {header.base_sequence}", at)
    if (
        not header.attributes & CODEC_MASK
        and count * RECORD_SIZE_MIN > header.batch_length - BATCH_LENGTH_MIN
    ):
        raise InvalidBatch(f"{count} records cannot be in {header.size_bytes} bytes", at)


def iter_headers(buf: Buffer, at: int = 0) -> Iterator[tuple[int, BatchHeader]]:
    """Yield position and header of every batch up to the end of `buf`.

    Raises: as read_header, and CorruptBatch if the last batch is truncated.
    """
    end = len(buf)
    while at < end:
        header = read_header(buf, at)
        following = at + LOG_OVERHEAD + header.batch_length
        if following > end:
            raise CorruptBatch(f"needs {header.size_bytes} bytes, {end - at} are there", at)
        yield at, header
        at = following


def patch_offset_and_epoch(buf: bytearray | memoryview, at: int, base_offset: int, leader_epoch: int) -> None:
    """Set base offset and leader epoch of a batch; the CRC does not cover them [REC-1]."""
    _pack_int64(buf, at, base_offset)
    _pack_int32(buf, at + LEADER_EPOCH_AT, leader_epoch)


def patch_log_append_time(buf: bytearray | memoryview, at: int, now_ms: int) -> None:
    """Set LogAppendTime and the broker's time as max timestamp of a batch, and recompute the CRC.

    Records keep their deltas; readers of such a batch use `max_timestamp` for each of them.
    """
    attributes: int
    _, length, _, _, _, attributes, *_ = _unpack_header(buf, at)
    _pack_int16(buf, at + ATTRIBUTES_AT, attributes | LOG_APPEND_TIME_BIT)
    _pack_int64(buf, at + MAX_TIMESTAMP_AT, now_ms)
    crc = crc32c(memoryview(buf)[at + ATTRIBUTES_AT : at + LOG_OVERHEAD + length])
    _pack_uint32(buf, at + CRC_AT, crc)


def _short_batch_error(buf: Buffer, at: int) -> CorruptBatch | UnsupportedMagic:
    # A message of format 0 or 1 can be shorter than our header; its magic is at the same position.
    if len(buf) - at > MAGIC_AT and buf[at + MAGIC_AT] != MAGIC:
        return _foreign_magic_error(buf[at + MAGIC_AT], at)
    return CorruptBatch(f"a header needs {HEADER_SIZE} bytes, {max(0, len(buf) - at)} are there", at)


def _foreign_magic_error(magic: int, at: int) -> CorruptBatch | UnsupportedMagic:
    # ByteBufferLogInputStream: a magic that Kafka never used is CORRUPT_MESSAGE.
    if magic in (0, 1):
        return UnsupportedMagic(magic, at)
    return CorruptBatch(f"magic is {magic}, expected {MAGIC}", at)
