"""`__consumer_offsets` for the group coordinator."""

from collections.abc import Callable

from tallystick.broker.config import BrokerConfig
from tallystick.broker.coordinator_topic import CoordinatorTopic
from tallystick.broker.partition import Partition
from tallystick.broker.topics import GROUP_OFFSETS, NewTopic, Topics
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject


class ConsumerOffsetsTopic(CoordinatorTopic):
    """The coordinator's view of its topic. Lives on the loop."""

    def __init__(self, topics: Topics, config: Callable[[], BrokerConfig]) -> None:
        super().__init__(topics, lambda: consumer_offsets_topic(config()))

    async def partition(self, index: int) -> Partition | Reject:
        """One partition; the topic is made when it is not there."""
        refused = await self.ensure()
        if refused is not None:
            return refused
        partitions = self.existing()
        if index >= len(partitions):
            return Reject(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no {GROUP_OFFSETS}-{index}")
        return partitions[index]


def consumer_offsets_topic(config: BrokerConfig) -> NewTopic:
    """How the topic is made."""
    return NewTopic(
        GROUP_OFFSETS,
        config.offsets_topic_num_partitions,
        {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(config.offsets_topic_segment_bytes),
        },
    )
