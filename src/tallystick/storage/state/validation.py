"""Validation of batches before an append; values in, values out.

Source: Kafka's LogValidator and UnifiedLog.analyzeAndValidateRecords. Differences: a compressed batch is
decompressed only for a compacted topic, for a change of codec, and to name late records; otherwise only its
first and its greatest timestamp are checked. Uncompressed records are parsed where the extension is
built, and refused if unreadable. The CRC proves that the rest arrived as sent.

The slow parts, decompressing and parsing many records, are done by `prevalidate_batch` in any thread before
the append; `needs_prevalidation` tells for which batches.
"""

from struct import Struct
from typing import Final, Literal

from msgspec import field

from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import INT32_MAX, INT64_MAX
from tallystick.kernel.limits import KIB, MIB
from tallystick.kernel.value import Value, replace
from tallystick.protocol.records import (
    HEADER_SIZE,
    LOG_OVERHEAD,
    BatchHeader,
    Codec,
    EncodedBatch,
    RecordsError,
    TimestampType,
    check_batch,
    check_produce_batch,
    native,
    patch_log_append_time,
    read_header,
)
from tallystick.protocol.records.batch import CODEC_MASK
from tallystick.protocol.records.compression import compress
from tallystick.protocol.records.faults import find_faults, find_section_faults, is_readable
from tallystick.protocol.records.section import build_batch, decompress_section
from tallystick.storage.state.producer_state import AppendOrigin

FlushPolicy = Literal["ack", "interval", "os"]
DELETE: Final = "delete"
COMPACT: Final = "compact"
_HOUR_MS: Final = 3_600_000
INT64_MIN: Final = -INT64_MAX - 1


class LogConfig(Value, kw_only=True):
    """Settings of one log under Kafka's names, with Kafka's defaults; None means unlimited."""

    segment_bytes: int = 1024 * MIB
    segment_ms: int = 7 * 24 * _HOUR_MS
    segment_index_bytes: int = 10 * MIB
    index_interval_bytes: int = 4096
    retention_ms: int | None = 7 * 24 * _HOUR_MS
    retention_bytes: int | None = None
    cleanup_policy: frozenset[str] = field(default=frozenset({DELETE}))
    max_message_bytes: int = MIB + LOG_OVERHEAD
    message_timestamp_type: TimestampType = TimestampType.CREATE_TIME
    message_timestamp_before_max_ms: int = INT64_MAX
    message_timestamp_after_max_ms: int = _HOUR_MS
    compression_type: Codec | None = None  # None is Kafka's "producer": keep the producer's codec
    compression_level: int | None = None
    flush_policy: FlushPolicy = "ack"
    flush_interval_ms: int = 1000
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = INT64_MAX
    delete_retention_ms: int = 24 * _HOUR_MS
    min_cleanable_dirty_ratio: float = 0.5
    file_delete_delay_ms: int = 60_000
    producer_id_expiration_ms: int = 24 * _HOUR_MS
    verification_required: bool = False
    internal: bool = False  # may use the reserve on a full disk

    def __post_init__(self) -> None:
        if not PREFIX_BYTES_MIN <= self.segment_bytes <= INT32_MAX:
            raise ValueError(
                f"segment.bytes is {self.segment_bytes}; it must be {PREFIX_BYTES_MIN} to {INT32_MAX}"
            )

    @property
    def roll_ms(self) -> int:
        """The age at which a segment is rolled; compaction in time needs a closed segment by then.

        Source: LogConfig.maxSegmentMs.
        """
        if COMPACT in self.cleanup_policy:
            return min(self.segment_ms, self.max_compaction_lag_ms)
        return self.segment_ms


PREFIX_BYTES_MIN: Final = 14  # Kafka's own lower bound of segment.bytes

CheckedBatches = tuple[bytearray, list[tuple[int, BatchHeader]]]


# Larger batches are parsed before the append; by codec, since ratios of decompression differ.
# None, gzip, snappy, lz4, zstd.
_INLINE_BYTES_MAX: Final = (256 * KIB, 1 * KIB, 16 * KIB, 16 * KIB, 0)
_INLINE_RECORDS_MAX: Final = 2_000
# Attributes, base and greatest timestamp, record count, at their places in the batch header.
_unpack_cost_fields: Final = Struct(">21xh4xqq14xi").unpack_from


# Traits of a batch. The first is the transactional bit of the attributes.
IS_TRANSACTIONAL: Final = 0x10
MAY_BE_SLOW: Final = 1  # parsing it may take long
_ATTRIBUTES_AT: Final = 22  # the lower byte


class PrevalidatedBatch(bytes):
    """A client's batch that `prevalidate_batch` has validated and adapted.

    Its records are not parsed again.
    """


def read_batch_flags(records: bytes | memoryview) -> int:
    """Return the traits of a client's batch: the bits MAY_BE_SLOW and IS_TRANSACTIONAL.

    They are read from its size and header alone, both at once, because each Produce passes here.
    """
    size = len(records)
    if size < HEADER_SIZE:
        return records[_ATTRIBUTES_AT] & IS_TRANSACTIONAL if size > _ATTRIBUTES_AT else 0
    attributes, _, _, count = _unpack_cost_fields(records)
    transactional: int = attributes & IS_TRANSACTIONAL
    codec = attributes & CODEC_MASK
    if codec >= len(_INLINE_BYTES_MAX):
        return transactional  # an unknown codec, which is refused
    if size > _INLINE_BYTES_MAX[codec] or count > _INLINE_RECORDS_MAX:
        return transactional | MAY_BE_SLOW
    return transactional


def needs_prevalidation(records: bytes | memoryview, config: LogConfig, now_ms: int) -> bool:
    """Return whether parsing a client's batch would block the loop for too long."""
    if not read_batch_flags(records) & MAY_BE_SLOW or len(records) > config.max_message_bytes:
        return False  # a batch that is too large is refused unparsed
    attributes, base_timestamp, max_timestamp, _ = _unpack_cost_fields(records)
    return (
        COMPACT in config.cleanup_policy
        or config.compression_type not in (None, attributes & CODEC_MASK)
        or any(_describe_violation(time, config, now_ms) for time in (base_timestamp, max_timestamp))
    )


def prevalidate_batch(data: bytes | memoryview, config: LogConfig, now_ms: int) -> PrevalidatedBatch | Reject:
    """Validate one batch of a client as `check_batches` would; any thread.

    Rejects as `check_batches`.
    """
    private = bytearray(data)
    try:
        header = check_batch(private)
        refusal = _reject_batch(private, 0, header, config, AppendOrigin.CLIENT, now_ms)
        if refusal is not None:
            return refusal
        return PrevalidatedBatch(_recompress(private, [(0, header)], config)[0])
    except RecordsError as exc:
        return Reject(exc.code, str(exc))


def check_batches(
    data: bytearray, config: LogConfig, origin: AppendOrigin, now_ms: int, *, is_prevalidated: bool = False
) -> CheckedBatches | Reject:
    """Validate and adapt a private copy of the batches to append.

    Args:
        is_prevalidated: `prevalidate_batch` has validated the batch.
    Returns: the bytes to write (not `data` after a change of codec), and position and header of each batch;
        offsets and epoch are not patched yet.
    Rejects with CORRUPT_MESSAGE, INVALID_RECORD, MESSAGE_TOO_LARGE, RECORD_LIST_TOO_LARGE, INVALID_TIMESTAMP.
    """
    headers: list[tuple[int, BatchHeader]] = []
    at, end = 0, len(data)
    try:
        while at < end:
            header = check_batch(data, at)
            refusal = _reject_batch(data, at, header, config, origin, now_ms, is_prevalidated=is_prevalidated)
            if refusal is not None:
                return refusal
            if config.message_timestamp_type is TimestampType.LOG_APPEND_TIME and not header.is_control:
                patch_log_append_time(data, at, now_ms)
                header = read_header(data, at)
            headers.append((at, header))
            at += header.batch_length + LOG_OVERHEAD
        if not headers:
            return Reject(ErrorCode.CORRUPT_MESSAGE, "the request has no batch to append")
        if config.compression_type is not None and origin is AppendOrigin.CLIENT and not is_prevalidated:
            data, headers = _recompress(data, headers, config)
            largest = max(header.size_bytes for _, header in headers)
            if largest > config.max_message_bytes:
                # As in Kafka: the limit applies to the stored batch, after recompression.
                return Reject(
                    ErrorCode.MESSAGE_TOO_LARGE,
                    f"the batch has {largest} bytes in the topic's codec, but max.message.bytes is"
                    f" {config.max_message_bytes}; nothing was appended. Send smaller batches or raise the"
                    " limit",
                )
    except RecordsError as exc:
        return Reject(exc.code, str(exc))
    if len(data) > config.segment_bytes and _has_size_limit(headers[0][1], origin):
        return Reject(
            ErrorCode.RECORD_LIST_TOO_LARGE,
            f"the batches have {len(data)} bytes, but segment.bytes is {config.segment_bytes}; nothing was"
            " appended. Send smaller batches or raise the limit",
        )
    if len(headers) > 1 and any(header.producer_id >= 0 for _, header in headers):
        return Reject(
            ErrorCode.INVALID_RECORD,
            f"an idempotent producer sent {len(headers)} batches for one partition in one request; it may"
            " send one",
        )
    return data, headers


def check_encoded_batch(
    batch: EncodedBatch, config: LogConfig, origin: AppendOrigin, now_ms: int
) -> CheckedBatches | Reject:
    """Do as `check_batches` for a batch of this broker: it is sound, and can only be too large."""
    size = len(batch)
    is_usual = config.message_timestamp_type is TimestampType.CREATE_TIME and (
        size <= config.max_message_bytes and size <= config.segment_bytes
    )
    data = bytearray(batch)
    return (data, [(0, batch.header)]) if is_usual else check_batches(data, config, origin, now_ms)


def _reject_batch(
    data: bytearray,
    at: int,
    header: BatchHeader,
    config: LogConfig,
    origin: AppendOrigin,
    now_ms: int,
    *,
    is_prevalidated: bool = False,
) -> Reject | None:
    size = header.batch_length + LOG_OVERHEAD
    if origin is AppendOrigin.CLIENT:
        check_produce_batch(header, at)
    if size > config.max_message_bytes and _has_size_limit(header, origin):
        return Reject(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"the batch has {size} bytes, but max.message.bytes is {config.max_message_bytes}; nothing was"
            " appended. Send smaller batches or raise the limit",
        )
    # Records of a coordinator come from this broker and have keys.
    return (
        None
        if origin is not AppendOrigin.CLIENT
        else _reject_records(data, at, header, config, now_ms, is_prevalidated=is_prevalidated)
    )


def _reject_records(
    data: bytearray, at: int, header: BatchHeader, config: LogConfig, now_ms: int, *, is_prevalidated: bool
) -> Reject | None:
    """Return the rejection of a client's batch for its records, naming the first few (KIP-467)."""
    rejection = _reject_timestamp(header, config, now_ms)
    if is_prevalidated:
        return rejection
    requires_keys = COMPACT in config.cleanup_policy
    if (
        rejection is None
        and not requires_keys
        and (header.attributes & CODEC_MASK or native.scan is None or is_readable(data, at, header))
    ):
        return None
    earliest = max(now_ms - config.message_timestamp_before_max_ms, INT64_MIN)
    latest = min(now_ms + config.message_timestamp_after_max_ms, INT64_MAX)
    faults = find_faults(data, at, header, (earliest, latest))
    if rejection is not None:
        record_errors = tuple(
            (n, f"timestamp {time} is not within {earliest} to {latest}") for n, time in faults.bad_timestamps
        )
        return Reject(rejection.code, rejection.reason, record_errors)
    if requires_keys and faults.missing_keys:
        return Reject(
            ErrorCode.INVALID_RECORD,
            f"{faults.missing_key_count} records have no key, first record {faults.missing_keys[0]}; nothing"
            " was appended. Records of a compacted topic need a key",
            tuple((n, "has no key; records of a compacted topic need one") for n in faults.missing_keys),
        )
    return None


def _has_size_limit(header: BatchHeader, origin: AppendOrigin) -> bool:
    """Return whether size limits apply to a batch: not to one that ends an open transaction [TXN-14].

    The limits can be lowered at any time, and a refused marker would block a partition for ever.
    """
    return not header.is_control and origin in (AppendOrigin.CLIENT, AppendOrigin.COORDINATOR)


def _reject_timestamp(header: BatchHeader, config: LogConfig, now_ms: int) -> Reject | None:
    if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
        return Reject(
            ErrorCode.INVALID_TIMESTAMP,
            "the batch has the timestamp type LogAppendTime, which only the broker may set",
        )
    if config.message_timestamp_type is TimestampType.LOG_APPEND_TIME:
        return None
    base, greatest = header.base_timestamp, header.max_timestamp
    earliest = now_ms - config.message_timestamp_before_max_ms
    latest = now_ms + config.message_timestamp_after_max_ms
    if earliest <= base <= latest and earliest <= greatest <= latest:
        return None
    for timestamp in (base, greatest):
        if limit := _describe_violation(timestamp, config, now_ms):
            return Reject(
                ErrorCode.INVALID_TIMESTAMP,
                f"timestamp {timestamp} is too far from the broker's time {now_ms}: {limit}; nothing was"
                " appended",
            )
    return None


def _describe_violation(timestamp: int, config: LogConfig, now_ms: int) -> str:
    """Return the limit that a timestamp violates; empty for none."""
    if timestamp < 0:
        return ""  # -1: the producer set none
    if now_ms - timestamp > config.message_timestamp_before_max_ms:
        return f"message.timestamp.before.max.ms is {config.message_timestamp_before_max_ms}"
    if timestamp - now_ms > config.message_timestamp_after_max_ms:
        return f"message.timestamp.after.max.ms is {config.message_timestamp_after_max_ms}"
    return ""


def _recompress(data: bytearray, headers: list[tuple[int, BatchHeader]], config: LogConfig) -> CheckedBatches:
    codec = config.compression_type
    if codec is None or all(header.codec == codec for _, header in headers):
        return data, headers
    recompressed, positions = bytearray(), []
    for at, header in headers:
        positions.append(len(recompressed))
        section = decompress_section(data, at, header)
        find_section_faults(section, header)
        stored_header = replace(header, attributes=header.attributes & ~CODEC_MASK | codec)
        recompressed += build_batch(stored_header, compress(codec, section, config.compression_level))
    return recompressed, [(at, read_header(recompressed, at)) for at in positions]
