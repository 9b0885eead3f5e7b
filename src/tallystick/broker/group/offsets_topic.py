"""`__consumer_offsets` for the coordinator: made when it is first needed, read back at the start."""

from collections.abc import Iterator, Sequence

from tallystick.broker.config import BrokerConfig
from tallystick.broker.group.driver import GroupCoordinator
from tallystick.broker.group.model import GroupConfig
from tallystick.broker.partition import Partition
from tallystick.broker.topics import GROUP_OFFSETS, NewTopic, Topics
from tallystick.kernel.clock import Clock
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import Offset
from tallystick.protocol.records import iter_headers
from tallystick.storage.log import AppendResult, LogFull


class LoggedPartition:
    """One partition of `__consumer_offsets`, on its log."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition

    async def append_durably(self, batch: bytes) -> AppendResult | Reject:
        try:
            return await self._partition.append_durably(batch)
        except LogFull as exc:
            # Refused before anything was written: the group goes on as it was.
            return Reject(exc.code, str(exc))

    def read_all(self, max_bytes: int) -> Iterator[bytes]:
        log = self._partition.log
        at, end = log.log_start_offset, log.log_end_offset
        while at < end:
            result = log.read(at, max_bytes, upper=end)
            if isinstance(result, Reject) or not result.data:
                return
            data = bytes(result.data)
            yield data
            at = Offset(max(header.next_offset for _, header in iter_headers(data)))


class BrokerOffsetsTopic:
    """The topic among the broker's topics."""

    def __init__(self, topics: Topics, config: BrokerConfig) -> None:
        self._topics = topics
        self._config = config

    @property
    def partition_count(self) -> int:
        return len(self._topics.partitions(GROUP_OFFSETS)) or self._config.offsets_topic_num_partitions

    def existing(self) -> Sequence[LoggedPartition]:
        return [LoggedPartition(partition) for partition in self._topics.partitions(GROUP_OFFSETS)]

    async def partition(self, index: int) -> LoggedPartition | Reject:
        partition = self._topics.partition(GROUP_OFFSETS, index)
        if partition is None:
            refused = await self.ensure()
            if refused is not None:
                return refused
        partition = self._topics.partitions(GROUP_OFFSETS)[index]
        return LoggedPartition(partition)

    async def ensure(self) -> Reject | None:
        """Make the topic unless it is there."""
        configs = {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(self._config.offsets_topic_segment_bytes),
        }
        count = self._config.offsets_topic_num_partitions
        made = await self._topics.create_if_absent(NewTopic(GROUP_OFFSETS, count, configs))
        return made if isinstance(made, Reject) else None


def group_config(config: BrokerConfig) -> GroupConfig:
    """The coordinator's part of the broker's settings."""
    return GroupConfig(
        group_min_session_timeout_ms=config.group_min_session_timeout_ms,
        group_max_session_timeout_ms=config.group_max_session_timeout_ms,
        group_initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
        group_max_size=config.group_max_size,
        offset_metadata_max_bytes=config.offset_metadata_max_bytes,
        offsets_retention_ms=config.offsets_retention_minutes * 60_000,
        offsets_retention_check_interval_ms=config.offsets_retention_check_interval_ms,
    )


def group_coordinator(topics: Topics, config: BrokerConfig, clock: Clock) -> GroupCoordinator:
    """The broker's group coordinator; `start` it when the topics are loaded."""
    return GroupCoordinator(BrokerOffsetsTopic(topics, config), group_config(config), clock)
