"""Encoding of whole batches from records, and decoding of records from whole batches."""

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Final, NamedTuple, Self

from tallystick.kernel.check import check
from tallystick.kernel.ids import INT32_MAX
from tallystick.kernel.limits import DECOMPRESSED_BYTES_MAX, DECOMPRESSION_RATIO_MAX, RECORDS_PER_BATCH_MAX
from tallystick.kernel.value import Value
from tallystick.protocol.records.batch import (
    BATCH_LENGTH_MIN,
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    HEADER_SIZE,
    LOG_APPEND_TIME_BIT,
    MAGIC,
    RECORD_SIZE_MIN,
    TRANSACTIONAL_BIT,
    BatchHeader,
    Buffer,
    TimestampType,
    read_header,
)
from tallystick.protocol.records.compression import Codec, compress, decompress
from tallystick.protocol.records.crc import crc32c
from tallystick.protocol.records.errors import CorruptBatch, InvalidBatch
from tallystick.protocol.records.record import Record, encode_records, iter_section, iter_spans

# The header in two parts: the fields before the CRC's range, and those in it.
_PREFIX: Final = Struct(">qiibI")
_CRC_COVERED: Final = Struct(">hiqqqhii")


class BatchMeta(Value, kw_only=True):
    """The attributes of a batch besides its records; -1 is the wire's "none"."""

    base_offset: int = 0
    codec: Codec = Codec.NONE
    level: int | None = None
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    is_transactional: bool = False
    is_control: bool = False
    leader_epoch: int = -1
    timestamp_type: TimestampType = TimestampType.CREATE_TIME
    delete_horizon_ms: int | None = None

    @property
    def attributes(self) -> int:
        return (
            self.codec
            | (LOG_APPEND_TIME_BIT if self.timestamp_type is TimestampType.LOG_APPEND_TIME else 0)
            | (TRANSACTIONAL_BIT if self.is_transactional else 0)
            | (CONTROL_BIT if self.is_control else 0)
            | (DELETE_HORIZON_BIT if self.delete_horizon_ms is not None else 0)
        )


class DecodeLimits(Value, kw_only=True):
    """Limits of the memory that one batch may take to decode."""

    decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX
    ratio_max: int = DECOMPRESSION_RATIO_MAX
    records_max: int = RECORDS_PER_BATCH_MAX


DEFAULT_LIMITS: Final = DecodeLimits()


class ScannedKey(NamedTuple):
    """The part of a record that compaction needs."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value_is_null: bool
    value_size: int


def encode_batch(records: Sequence[Record], meta: BatchMeta) -> bytes:
    """Encode the records as one batch; their offsets ascend from `meta.base_offset` or later."""
    check(records, "a batch without records is written by compaction alone")
    last_offset_delta = records[-1].offset - meta.base_offset
    check(meta.base_offset <= records[0].offset, "offsets begin at the base")
    check(len(records) - 1 <= last_offset_delta <= INT32_MAX, "and rise, within an int32 of it")
    check(meta.producer_id < 0 or meta.producer_epoch >= 0, "a producer id comes with its epoch")
    check(meta.producer_id < 0 or meta.base_sequence >= 0 or meta.is_control, "and data with its sequence")
    check(meta.producer_id >= 0 or not meta.is_transactional, "a transaction has a producer")
    base_timestamp = records[0].timestamp_ms if meta.delete_horizon_ms is None else meta.delete_horizon_ms
    section = encode_records(records, meta.base_offset, base_timestamp)
    covered = _CRC_COVERED.pack(
        meta.attributes,
        last_offset_delta,
        base_timestamp,
        max([record.timestamp_ms for record in records]),
        meta.producer_id,
        meta.producer_epoch,
        meta.base_sequence,
        len(records),
    )
    payload = section if meta.codec is Codec.NONE else compress(meta.codec, section, meta.level)
    return _join_batch(meta.base_offset, meta.leader_epoch, covered, payload)


class EncodedBatch(bytes):
    """One batch as `encode_batch` has just made it, with its header: a log has nothing to check in it."""

    def __new__(cls, data: bytes) -> Self:
        encoded = super().__new__(cls, data)
        encoded.header = read_header(data)
        return encoded

    header: BatchHeader


def build_batch(header: BatchHeader, payload: bytes) -> bytes:
    """Build a batch from a header and a compressed record section; computes length and CRC."""
    covered = _CRC_COVERED.pack(
        header.attributes,
        header.last_offset_delta,
        header.base_timestamp,
        header.max_timestamp,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        header.record_count,
    )
    return _join_batch(header.base_offset, header.partition_leader_epoch, covered, payload)


def _join_batch(base_offset: int, leader_epoch: int, covered: bytes, payload: bytes) -> bytes:
    length = BATCH_LENGTH_MIN + len(payload)
    check(length <= INT32_MAX, "a batch's length is an int32")
    crc = crc32c(payload, crc32c(covered))
    return b"".join((_PREFIX.pack(base_offset, length, leader_epoch, MAGIC, crc), covered, payload))


def decompress_section(
    buf: Buffer, at: int, header: BatchHeader, limits: DecodeLimits = DEFAULT_LIMITS
) -> bytes:
    """Return the record section of the batch at `at`, decompressed within `limits`.

    Raises: CorruptBatch if it is truncated; InvalidBatch if it cannot be decompressed, or exceeds a limit.
    """
    end = at + header.size_bytes
    if end > len(buf):
        raise CorruptBatch(f"needs {header.size_bytes} bytes, {len(buf) - at} are there", at)
    packed = memoryview(buf)[at + HEADER_SIZE : end]
    section = decompress(header.codec, packed, limits.decompressed_bytes_max, limits.ratio_max)
    count = header.record_count
    if count > limits.records_max or count * RECORD_SIZE_MIN > len(section):
        raise InvalidBatch(f"{count} records in {len(section)} bytes, the most is {limits.records_max}", at)
    return section


def iter_records(buf: Buffer, at: int = 0, limits: DecodeLimits = DEFAULT_LIMITS) -> Iterator[Record]:
    """Yield the records of the batch at `at`, one at a time; the CRC is not checked again.

    Source: DefaultRecordBatch, for timestamps: if there is a delete horizon, deltas count from it.
    Raises: CorruptBatch, InvalidBatch, UnsupportedMagic; records before the bad one have been yielded.
    """
    header = read_header(buf, at)
    yield from iter_section(decompress_section(buf, at, header, limits), header)


def decode_records(buf: Buffer, at: int = 0, limits: DecodeLimits = DEFAULT_LIMITS) -> list[Record]:
    """Decode all records of the batch at `at`; the CRC is not checked again.

    Cost: about 700 ns per record, and 200 bytes of memory besides keys and values.
    Raises: CorruptBatch, InvalidBatch, UnsupportedMagic.
    """
    header = read_header(buf, at)
    return list(iter_section(decompress_section(buf, at, header, limits), header))


def scan_keys(buf: Buffer, at: int = 0, limits: DecodeLimits = DEFAULT_LIMITS) -> Iterator[ScannedKey]:
    """Yield offset, timestamp and key of every record in the batch at `at`, without values and headers.

    Raises: CorruptBatch, InvalidBatch, UnsupportedMagic.
    """
    header = read_header(buf, at)
    new, here = tuple.__new__, ScannedKey
    for offset, timestamp, key, _, _, size, _ in iter_spans(
        decompress_section(buf, at, header, limits), header
    ):
        null = size < 0
        yield new(here, (offset, timestamp, key, null, 0 if null else size))
