"""What a batch must be before it may enter a log; values in, values out.

Source: Kafka's LogValidator and UnifiedLog.analyzeAndValidateRecords. Left out: the sections of
records are not decoded for topics that are not compacted, so a timestamp is checked at the batch's first
record and its greatest, and inner offsets are trusted; the CRC proves the rest arrived as sent.
"""

from dataclasses import dataclass, field
from typing import Final, Literal

from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import INT32_MAX, INT64_MAX
from tallystick.kernel.limits import MIB
from tallystick.protocol.records import (
    LOG_OVERHEAD,
    BatchHeader,
    BatchMeta,
    Codec,
    RecordsError,
    TimestampType,
    check_batch,
    check_produced,
    decode_records,
    encode_batch,
    patch_log_append_time,
    read_header,
    scan_keys,
)
from tallystick.storage.producers import AppendOrigin

FlushPolicy = Literal["ack", "interval", "os"]
DELETE: Final = "delete"
COMPACT: Final = "compact"
_HOUR_MS: Final = 3_600_000


@dataclass(frozen=True, kw_only=True, slots=True)
class LogConfig:
    """Settings of one log under Kafka's names, in Kafka's defaults; None is "without limit"."""

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
    compression_type: Codec | None = None  # None is Kafka's "producer": leave it as it came
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
        if not HEADER_MIN <= self.segment_bytes <= INT32_MAX:
            raise ValueError(f"segment.bytes is {self.segment_bytes}, it must be {HEADER_MIN} to {INT32_MAX}")

    @property
    def rolling_ms(self) -> int:
        """How long a segment grows; what is to be compacted in time must be in a closed one by then.

        Source: LogConfig.maxSegmentMs.
        """
        if COMPACT in self.cleanup_policy:
            return min(self.segment_ms, self.max_compaction_lag_ms)
        return self.segment_ms


HEADER_MIN: Final = 14  # Kafka's own lower bound of segment.bytes

Checked = tuple[bytearray, list[tuple[int, BatchHeader]]]


def check_batches(data: bytearray, config: LogConfig, origin: AppendOrigin, now_ms: int) -> Checked | Reject:
    """Prove and adapt a private copy of what is to be appended.

    Returns: the bytes to write (others than `data` after a change of codec), and position and header of
        each batch; offsets and epoch are not patched yet.
    Rejects with CORRUPT_MESSAGE, INVALID_RECORD, MESSAGE_TOO_LARGE, RECORD_LIST_TOO_LARGE, INVALID_TIMESTAMP.
    """
    headers: list[tuple[int, BatchHeader]] = []
    at, end = 0, len(data)
    try:
        while at < end:
            header = check_batch(data, at)
            refusal = _refusal(data, at, header, config, origin, now_ms)
            if refusal is not None:
                return refusal
            if config.message_timestamp_type is TimestampType.LOG_APPEND_TIME and not header.is_control:
                patch_log_append_time(data, at, now_ms)
                header = read_header(data, at)
            headers.append((at, header))
            at += header.batch_length + LOG_OVERHEAD
        if not headers:
            return Reject(ErrorCode.CORRUPT_MESSAGE, "there is no batch to append")
        if config.compression_type is not None and origin is AppendOrigin.CLIENT:
            data, headers = _recompress(data, headers, config)
    except RecordsError as exc:
        return Reject(exc.code, str(exc))
    if len(data) > config.segment_bytes and _is_limited(headers[0][1], origin):
        return Reject(
            ErrorCode.RECORD_LIST_TOO_LARGE,
            f"{len(data)} bytes of batches, segment.bytes is {config.segment_bytes}",
        )
    if len(headers) > 1 and any(header.producer_id >= 0 for _, header in headers):
        return Reject(
            ErrorCode.INVALID_RECORD, f"{len(headers)} batches of an idempotent producer in one append"
        )
    return data, headers


def _refusal(
    data: bytearray, at: int, header: BatchHeader, config: LogConfig, origin: AppendOrigin, now_ms: int
) -> Reject | None:
    size = header.batch_length + LOG_OVERHEAD
    if origin is AppendOrigin.CLIENT:
        check_produced(header, at)
    if size > config.max_message_bytes and _is_limited(header, origin):
        return Reject(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"a batch of {size} bytes, max.message.bytes is {config.max_message_bytes}",
        )
    if origin is AppendOrigin.CLIENT:
        refusal = _timestamp_refusal(header, config, now_ms)
        if refusal is not None:
            earliest = now_ms - config.message_timestamp_before_max_ms
            latest = now_ms + config.message_timestamp_after_max_ms
            late = tuple(
                (index, f"timestamp {record.timestamp_ms} is not within {earliest} to {latest}")
                for index, record in enumerate(decode_records(data, at))
                if record.timestamp_ms >= 0 and not earliest <= record.timestamp_ms <= latest
            )
            return Reject(refusal.code, refusal.reason, late)
    # A coordinator's records have keys: it is this broker that made them, and several for each commit.
    if origin is AppendOrigin.CLIENT and COMPACT in config.cleanup_policy and not header.is_control:
        keyless = [key.offset - header.base_offset for key in scan_keys(data, at) if key.key is None]
        if keyless:
            return Reject(
                ErrorCode.INVALID_RECORD,
                f"{len(keyless)} records have no key, the first is {keyless[0]}; the topic is compacted",
                tuple((index, "no key; the topic is compacted") for index in keyless),
            )
    return None


def _is_limited(header: BatchHeader, origin: AppendOrigin) -> bool:
    """Whether a limit to its size may keep a batch out: not what ends a transaction that is there [TXN-14].

    The limits can be lowered at any time, and a marker that is refused holds a partition back for ever.
    """
    return not header.is_control and origin in (AppendOrigin.CLIENT, AppendOrigin.COORDINATOR)


def _timestamp_refusal(header: BatchHeader, config: LogConfig, now_ms: int) -> Reject | None:
    if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
        return Reject(ErrorCode.INVALID_TIMESTAMP, "a producer may not set the log's append time")
    if config.message_timestamp_type is TimestampType.LOG_APPEND_TIME:
        return None
    for timestamp in (header.base_timestamp, header.max_timestamp):
        if timestamp < 0:
            continue  # -1: the producer set none
        if now_ms - timestamp > config.message_timestamp_before_max_ms:
            limit = f"message.timestamp.before.max.ms is {config.message_timestamp_before_max_ms}"
        elif timestamp - now_ms > config.message_timestamp_after_max_ms:
            limit = f"message.timestamp.after.max.ms is {config.message_timestamp_after_max_ms}"
        else:
            continue
        return Reject(ErrorCode.INVALID_TIMESTAMP, f"timestamp {timestamp}, the time is {now_ms}, {limit}")
    return None


def _recompress(data: bytearray, headers: list[tuple[int, BatchHeader]], config: LogConfig) -> Checked:
    codec = config.compression_type
    if codec is None or all(header.codec == codec for _, header in headers):
        return data, headers
    packed, placed = bytearray(), []
    for at, header in headers:
        meta = BatchMeta(
            base_offset=header.base_offset,
            codec=codec,
            level=config.compression_level,
            producer_id=header.producer_id,
            epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
            transactional=header.is_transactional,
            timestamp_type=header.timestamp_type,
        )
        placed.append(len(packed))
        packed += encode_batch(decode_records(data, at), meta)
    return packed, [(at, read_header(packed, at)) for at in placed]
