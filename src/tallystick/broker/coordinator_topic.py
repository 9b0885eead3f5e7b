"""A coordinator's own topic: made when the first client needs it."""

from collections.abc import Callable, Sequence

from tallystick.broker.partition import Partition
from tallystick.broker.topics import NewTopic, Topics
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject


class CoordinatorTopic:
    """`__consumer_offsets` or `__transaction_state`, as its coordinator sees it. Lives on the loop."""

    def __init__(self, topics: Topics, wanted: Callable[[], NewTopic]) -> None:
        """Args:
        wanted: how the topic is made, with the settings of now.
        """
        self._topics = topics
        self._wanted = wanted
        self._name = wanted().name

    @property
    def partition_count(self) -> int:
        """The topic's own once it exists: places depend on it, the setting does not change it."""
        topic = self._topics.find(self._name)
        return self._wanted().partitions if topic is None else topic.partitions

    def existing(self) -> Sequence[Partition]:
        """All partitions, by index; empty when there is no topic yet."""
        return self._topics.partitions(self._name)

    async def ensure(self) -> Reject | None:
        """Make the topic unless it is there; a disk without room for it may have some later."""
        if self._topics.find(self._name) is not None:
            return None
        made = await self._topics.create_if_absent(self._wanted())
        if not isinstance(made, Reject):
            return None
        is_full = made.code is ErrorCode.KAFKA_STORAGE_ERROR
        return Reject(ErrorCode.COORDINATOR_NOT_AVAILABLE, made.reason) if is_full else made
