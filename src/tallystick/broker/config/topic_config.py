"""Configuration of topics, under Kafka's names, with the fall-backs of each value.

A topic setting without a value of its own falls back to broker settings (its synonyms), and those to their
defaults; DescribeConfigs shows that chain.

Source: Kafka 4.3 TopicConfig, LogConfig and ServerTopicConfigSynonyms.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from tallystick.kernel.ids import INT64_MAX
from tallystick.kernel.settings import SettingType, Synonym, setting

HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS
WEEK_MS: Final = 7 * DAY_MS

COMPRESSION_TYPES: Final = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")


def _make_broker_synonym(name: str, scale: int = 1) -> Synonym:
    return Synonym(name=name, scale=scale)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """A topic's settings; None is "no limit"."""

    cleanup_policy: tuple[str, ...] = setting(
        ("delete",),
        "What happens to old records: `delete` removes whole segments, `compact` keeps the newest "
        "record of each key.",
        choices=("delete", "compact"),
        synonyms=(_make_broker_synonym("log.cleanup.policy"),),
    )
    compression_gzip_level: int = setting(
        -1,
        "Level if the broker compresses with gzip.",
        kind=SettingType.INT,
        low=-1,
        high=9,
        synonyms=(_make_broker_synonym("compression.gzip.level"),),
    )
    compression_lz4_level: int = setting(
        9,
        "Level if the broker compresses with lz4.",
        kind=SettingType.INT,
        low=1,
        high=17,
        synonyms=(_make_broker_synonym("compression.lz4.level"),),
    )
    compression_type: str = setting(
        "producer",
        "Codec of stored batches; `producer` keeps the client's.",
        choices=COMPRESSION_TYPES,
        synonyms=(_make_broker_synonym("compression.type"),),
    )
    compression_zstd_level: int = setting(
        3,
        "Level if the broker compresses with zstd.",
        kind=SettingType.INT,
        low=-131072,
        high=22,
        synonyms=(_make_broker_synonym("compression.zstd.level"),),
    )
    delete_retention_ms: int = setting(
        DAY_MS,
        "How long a tombstone stays readable in a compacted topic.",
        low=0,
        synonyms=(_make_broker_synonym("log.cleaner.delete.retention.ms"),),
    )
    file_delete_delay_ms: int = setting(
        60_000,
        "Delay between removing a segment from the log and deleting its files.",
        low=0,
        synonyms=(_make_broker_synonym("log.segment.delete.delay.ms"),),
    )
    flush_messages: int = setting(
        INT64_MAX,
        "Kafka's forced flush by count. Accepted, without effect: see `flush.policy`.",
        low=1,
        synonyms=(_make_broker_synonym("log.flush.interval.messages"),),
    )
    flush_ms: int = setting(
        INT64_MAX,
        "Kafka's forced flush by time. Accepted, without effect: see `flush.policy`.",
        low=0,
        synonyms=(_make_broker_synonym("log.flush.interval.ms"),),
    )
    follower_replication_throttled_replicas: tuple[str, ...] = setting(
        (), "Replicas whose copying Kafka slows down. Accepted, without effect: there is one replica."
    )
    index_interval_bytes: int = setting(
        4096,
        "Bytes of log between entries of the offset index.",
        kind=SettingType.INT,
        low=0,
        synonyms=(_make_broker_synonym("log.index.interval.bytes"),),
    )
    leader_replication_throttled_replicas: tuple[str, ...] = setting(
        (), "Replicas whose copying Kafka slows down. Accepted, without effect: there is one replica."
    )
    max_compaction_lag_ms: int = setting(
        INT64_MAX,
        "Longest time after which a record is compacted.",
        low=1,
        synonyms=(_make_broker_synonym("log.cleaner.max.compaction.lag.ms"),),
    )
    max_message_bytes: int = setting(
        1_048_588,
        "Largest record batch accepted, after compression.",
        kind=SettingType.INT,
        low=0,
        synonyms=(_make_broker_synonym("message.max.bytes"),),
    )
    message_timestamp_after_max_ms: int = setting(
        HOUR_MS,
        "How far a record's timestamp may be ahead of the broker's clock.",
        low=0,
        synonyms=(_make_broker_synonym("log.message.timestamp.after.max.ms"),),
    )
    message_timestamp_before_max_ms: int = setting(
        INT64_MAX,
        "How far a record's timestamp may be behind the broker's clock.",
        low=0,
        synonyms=(_make_broker_synonym("log.message.timestamp.before.max.ms"),),
    )
    message_timestamp_type: str = setting(
        "CreateTime",
        "Whether records have the producer's timestamp or, with `LogAppendTime`, the broker's.",
        choices=("CreateTime", "LogAppendTime"),
        synonyms=(_make_broker_synonym("log.message.timestamp.type"),),
    )
    min_cleanable_dirty_ratio: float = setting(
        0.5,
        "Share of a compacted log that must be uncompacted before it is compacted.",
        low=0,
        high=1,
        synonyms=(_make_broker_synonym("log.cleaner.min.cleanable.ratio"),),
    )
    min_compaction_lag_ms: int = setting(
        0,
        "Shortest time after which a record may be compacted.",
        low=0,
        synonyms=(_make_broker_synonym("log.cleaner.min.compaction.lag.ms"),),
    )
    min_insync_replicas: int = setting(
        1,
        "Replicas that a write with acks=all needs. There is one: above 1, such writes are refused.",
        kind=SettingType.INT,
        low=1,
        synonyms=(_make_broker_synonym("min.insync.replicas"),),
    )
    preallocate: bool = setting(
        False,
        "Kafka's preallocation of segments. Accepted, without effect.",
        synonyms=(_make_broker_synonym("log.preallocate"),),
    )
    retention_bytes: int | None = setting(
        None,
        "Partition size above which the oldest segments are deleted.",
        kind=SettingType.LONG,
        low=0,
        none="-1",
        synonyms=(_make_broker_synonym("log.retention.bytes"),),
    )
    retention_ms: int | None = setting(
        WEEK_MS,
        "Age above which segments are deleted.",
        kind=SettingType.LONG,
        low=0,
        none="-1",
        synonyms=(
            _make_broker_synonym("log.retention.ms"),
            _make_broker_synonym("log.retention.minutes", 60_000),
            _make_broker_synonym("log.retention.hours", HOUR_MS),
        ),
    )
    segment_bytes: int = setting(
        1_073_741_824,
        "Size at which a new segment is started.",
        kind=SettingType.INT,
        low=1_048_576,
        synonyms=(_make_broker_synonym("log.segment.bytes"),),
    )
    segment_index_bytes: int = setting(
        10_485_760,
        "Largest size of a segment's index.",
        kind=SettingType.INT,
        low=4,
        synonyms=(_make_broker_synonym("log.index.size.max.bytes"),),
    )
    segment_jitter_ms: int = setting(
        0,
        "Maximum random amount subtracted from segment.ms, so that segments do not all roll at once.",
        low=0,
        synonyms=(
            _make_broker_synonym("log.roll.jitter.ms"),
            _make_broker_synonym("log.roll.jitter.hours", HOUR_MS),
        ),
    )
    segment_ms: int = setting(
        WEEK_MS,
        "Age at which a new segment is started.",
        low=1,
        synonyms=(_make_broker_synonym("log.roll.ms"), _make_broker_synonym("log.roll.hours", HOUR_MS)),
    )
    unclean_leader_election_enable: bool = setting(
        False,
        "Kafka's election of a replica that lags. Accepted, without effect: there is one replica.",
        synonyms=(_make_broker_synonym("unclean.leader.election.enable"),),
    )

    def problems(self) -> Iterator[str]:
        """Yield violations of rules that involve more than one setting, in Kafka's words."""
        if self.min_compaction_lag_ms > self.max_compaction_lag_ms:
            yield (
                f"min.compaction.lag.ms: {self.min_compaction_lag_ms} is above max.compaction.lag.ms "
                f"{self.max_compaction_lag_ms}"
            )


def resolve_lag_conflict(configs: Mapping[str, str]) -> Mapping[str, str]:
    """Return a topic's own settings with one more, in place of a broker default that contradicts them.

    The topic's own setting holds. Of what it allows, the value that keeps records longest is taken: a lag
    that is too short removes records, one that is too long only leaves them where they are.
    """
    own_max = configs.get("max.compaction.lag.ms")
    if own_max is not None and "min.compaction.lag.ms" not in configs:
        return {**configs, "min.compaction.lag.ms": own_max}
    return {"max.compaction.lag.ms": str(INT64_MAX), **configs}


# Settings of Kafka's TopicConfig for replication and tiered storage: only the default is accepted.
DEFAULT_ONLY_SETTINGS: Final = {
    "local.retention.bytes": "-2",
    "local.retention.ms": "-2",
    "remote.log.copy.disable": "false",
    "remote.log.delete.on.disable": "false",
    "remote.storage.enable": "false",
}


def is_harmful(name: str, value: str) -> bool:
    """Return whether a setting lets anything but compaction delete records of an internal topic."""
    if name == "cleanup.policy":
        return value.strip() != "compact"
    return name in ("retention.ms", "retention.bytes") and value.strip() != "-1"


def find_internal_problems(configs: Mapping[str, str], config: TopicConfig) -> Iterator[str]:
    """Yield the problems of an internal topic's settings: its records are decisions and offsets [TXN-15].

    Kafka accepts such settings, and a prepared transaction is lost when its segment expires.
    """
    if configs.get("cleanup.policy") is None or config.cleanup_policy != ("compact",):
        yield "cleanup.policy must be `compact`"
    for name, value in configs.items():
        if name != "cleanup.policy" and is_harmful(name, value):
            yield f"{name} must be -1 or not set"
