"""The coordinators' own topics, `__consumer_offsets` and `__transaction_state`, created when first needed."""

from collections.abc import Callable, Sequence

from tallystick.broker.config.broker_config import BrokerConfig
from tallystick.broker.partitions.partition import Partition
from tallystick.broker.partitions.topic_controller import TopicController
from tallystick.broker.partitions.topics import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC, TopicSpec
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject


class CoordinatorTopic:
    """`__consumer_offsets` or `__transaction_state`, as seen by its coordinator. Lives on the loop."""

    def __init__(self, controller: TopicController, define_topic: Callable[[], TopicSpec]) -> None:
        """Create the view of a topic that need not exist yet.

        Args:
            define_topic: how to create the topic, with the current settings.
        """
        self._controller = controller
        self._topics = controller.image
        self._define_topic = define_topic
        self._name = define_topic().name

    @property
    def partition_count(self) -> int:
        """Partitions of the existing topic, as placement depends on them; before that, the setting."""
        topic = self._topics.find(self._name)
        return self._define_topic().partitions if topic is None else topic.partitions

    def list_partitions(self) -> Sequence[Partition]:
        """Return all partitions by index; none when the topic does not exist yet."""
        return self._topics.list_partitions_of(self._name)

    async def ensure_exists(self) -> Reject | None:
        """Create the topic unless it exists; a full disk is a retriable refusal."""
        if self._topics.find(self._name) is not None:
            return None
        result = await self._controller.create_if_absent(self._define_topic())
        if not isinstance(result, Reject):
            return None
        is_full = result.code is ErrorCode.KAFKA_STORAGE_ERROR
        return Reject(ErrorCode.COORDINATOR_NOT_AVAILABLE, result.reason) if is_full else result


class ConsumerOffsetsTopic(CoordinatorTopic):
    """`__consumer_offsets`, as seen by the group coordinator. Lives on the loop."""

    def __init__(self, controller: TopicController, config: Callable[[], BrokerConfig]) -> None:
        super().__init__(controller, lambda: define_consumer_offsets_topic(config()))

    async def ensure_partition(self, index: int) -> Partition | Reject:
        """Return one partition; create the topic if it does not exist."""
        refusal = await self.ensure_exists()
        if refusal is not None:
            return refusal
        partitions = self.list_partitions()
        if index >= len(partitions):
            return Reject(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"partition {CONSUMER_OFFSETS_TOPIC}-{index} does not exist",
            )
        return partitions[index]


def define_consumer_offsets_topic(config: BrokerConfig) -> TopicSpec:
    """Return how to create `__consumer_offsets`."""
    return TopicSpec(
        CONSUMER_OFFSETS_TOPIC,
        config.offsets_topic_num_partitions,
        {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(config.offsets_topic_segment_bytes),
        },
    )


def define_transaction_state_topic(config: BrokerConfig) -> TopicSpec:
    """Return how to create `__transaction_state`.

    Source: TransactionStateManager.transactionTopicConfigs, apart from min.isr.
    """
    return TopicSpec(
        TRANSACTION_STATE_TOPIC,
        config.transaction_state_log_num_partitions,
        {
            "cleanup.policy": "compact",
            "compression.type": "uncompressed",
            "segment.bytes": str(config.transaction_state_log_segment_bytes),
            "unclean.leader.election.enable": "false",
        },
    )
