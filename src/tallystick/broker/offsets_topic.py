"""`__consumer_offsets` for the group coordinator: made when the first group needs it."""

from collections.abc import Callable, Sequence

from tallystick.broker.config import BrokerConfig
from tallystick.broker.partition import Partition
from tallystick.broker.topics import GROUP_OFFSETS, NewTopic, Topics
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject


class ConsumerOffsetsTopic:
    """The coordinator's view of its topic. Lives on the loop."""

    def __init__(self, topics: Topics, config: Callable[[], BrokerConfig]) -> None:
        self._topics = topics
        self._config = config

    @property
    def partition_count(self) -> int:
        """The topic's own once it exists: a group's place depends on it, the setting does not change it."""
        topic = self._topics.find(GROUP_OFFSETS)
        return self._config().offsets_topic_num_partitions if topic is None else topic.partitions

    def existing(self) -> Sequence[Partition]:
        return self._topics.partitions(GROUP_OFFSETS)

    async def ensure(self) -> Reject | None:
        """Make the topic unless it is there."""
        if self._topics.find(GROUP_OFFSETS) is not None:
            return None
        config = self._config()
        wanted = NewTopic(
            GROUP_OFFSETS,
            config.offsets_topic_num_partitions,
            {
                "cleanup.policy": "compact",
                "compression.type": "producer",
                "segment.bytes": str(config.offsets_topic_segment_bytes),
            },
        )
        made = await self._topics.create_if_absent(wanted)
        return made if isinstance(made, Reject) else None

    async def partition(self, index: int) -> Partition | Reject:
        refused = await self.ensure()
        if refused is not None:
            return refused
        found = self._topics.partition(GROUP_OFFSETS, index)
        if found is None:
            return Reject(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no {GROUP_OFFSETS}-{index}")
        return found
