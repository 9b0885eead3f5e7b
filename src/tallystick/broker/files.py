"""The data directory as the broker uses it: logs, their syncing, and the work that keeps them in bounds.

What answers wait for is synced by the group commit in its own thread; it reports back through the loop.
"""

from typing import Final, cast, get_args

from tallystick.broker.config import BrokerConfig
from tallystick.broker.topic_config import TopicConfig
from tallystick.broker.topics import INTERNAL
from tallystick.protocol.records import Codec, TimestampType
from tallystick.storage.validation import FlushPolicy, LogConfig

_CODECS: Final[dict[str, Codec | None]] = {
    "producer": None,
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}


def storage_config(topic: str, config: TopicConfig, broker: BrokerConfig) -> LogConfig:
    """A topic's settings as its logs want them."""
    levels = {
        "gzip": None if config.compression_gzip_level < 0 else config.compression_gzip_level,
        "lz4": config.compression_lz4_level,
        "zstd": config.compression_zstd_level,
    }
    log_append_time = config.message_timestamp_type == "LogAppendTime"
    return LogConfig(
        segment_bytes=config.segment_bytes,
        segment_ms=config.segment_ms,
        segment_index_bytes=config.segment_index_bytes,
        index_interval_bytes=config.index_interval_bytes,
        retention_ms=config.retention_ms,
        retention_bytes=config.retention_bytes,
        cleanup_policy=frozenset(config.cleanup_policy),
        max_message_bytes=config.max_message_bytes,
        message_timestamp_type=(
            TimestampType.LOG_APPEND_TIME if log_append_time else TimestampType.CREATE_TIME
        ),
        message_timestamp_before_max_ms=config.message_timestamp_before_max_ms,
        message_timestamp_after_max_ms=config.message_timestamp_after_max_ms,
        compression_type=_CODECS[config.compression_type],
        compression_level=levels.get(config.compression_type),
        flush_policy=_flush_policy(broker.flush_policy),
        flush_interval_ms=broker.flush_interval_ms,
        min_compaction_lag_ms=config.min_compaction_lag_ms,
        max_compaction_lag_ms=config.max_compaction_lag_ms,
        delete_retention_ms=config.delete_retention_ms,
        min_cleanable_dirty_ratio=config.min_cleanable_dirty_ratio,
        file_delete_delay_ms=config.file_delete_delay_ms,
        producer_id_expiration_ms=broker.producer_id_expiration_ms,
        internal=topic in INTERNAL,
    )


def _flush_policy(text: str) -> FlushPolicy:
    if text not in get_args(FlushPolicy):
        raise ValueError(f"flush.policy {text!r} is unknown")
    return cast(FlushPolicy, text)
