"""What OffsetCommit and TxnOffsetCommit share: partitions are refused one by one, the rest is one command."""

from collections.abc import Callable, Mapping, Sequence
from typing import Self
from uuid import UUID

from tallystick.broker.group.commands import Answer, OffsetToCommit, PerPartition
from tallystick.broker.handlers.group_wire import code_of, find_topic
from tallystick.broker.metadata import Topic
from tallystick.broker.topics import Topics
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.ids import LeaderEpoch, Offset, TopicPartition
from tallystick.kernel.value import frozen
from tallystick.protocol.messages.offset_commit import (
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tallystick.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

# The place of a partition in the request: topics may be named twice, or by ids nobody knows.
Place = tuple[int, int]
RequestTopic = OffsetCommitRequestTopic | TxnOffsetCommitRequestTopic
RequestPartition = OffsetCommitRequestPartition | TxnOffsetCommitRequestPartition


@frozen
class Commit:
    """A request's rows: those refused already, and the offsets that may be committed."""

    refused: Mapping[Place, int]
    partitions: Mapping[Place, TopicPartition]
    offsets: Mapping[TopicPartition, OffsetToCommit]

    @classmethod
    def of(
        cls,
        topics: Topics,
        rows: Sequence[RequestTopic],
        *,
        by_id: bool,
        may_read: Callable[[str], bool] = lambda topic: True,
    ) -> Self:
        """Look every partition up. A topic that may not be read is refused before it is looked for."""
        refused: dict[Place, int] = {}
        partitions: dict[Place, TopicPartition] = {}
        offsets: dict[TopicPartition, OffsetToCommit] = {}
        for row, wanted in enumerate(rows):
            found = _find_topic(topics, wanted.name, wanted.topic_id, by_id, may_read)
            asked_for: Sequence[RequestPartition] = wanted.partitions
            for column, asked in enumerate(asked_for):
                if isinstance(found, ErrorCode):
                    refused[row, column] = found
                elif not 0 <= asked.partition_index < found.partitions:
                    refused[row, column] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                else:
                    partition = TopicPartition(found.name, asked.partition_index)
                    partitions[row, column] = partition
                    offsets[partition] = _offset_of(asked, found.topic_id)
        return cls(refused, partitions, offsets)

    def codes(self, answer: Answer | None) -> Mapping[Place, int]:
        """The code of every row. `answer`: to the command; None when there was nothing to commit."""
        refused = answer.refused if isinstance(answer, PerPartition) else {}
        whole = code_of(answer)
        answered = {place: refused.get(partition, whole) for place, partition in self.partitions.items()}
        return {**self.refused, **answered}


def _find_topic(
    topics: Topics, name: str, topic_id: UUID, by_id: bool, may_read: Callable[[str], bool]
) -> Topic | ErrorCode:
    if not by_id and not may_read(name):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    found = find_topic(topics, name, topic_id, by_id=by_id)
    if by_id and not isinstance(found, ErrorCode) and not may_read(found.name):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return found


def _offset_of(asked: RequestPartition, topic_id: UUID) -> OffsetToCommit:
    epoch = asked.committed_leader_epoch
    return OffsetToCommit(
        offset=Offset(asked.committed_offset),
        leader_epoch=None if epoch < 0 else LeaderEpoch(epoch),
        metadata=asked.committed_metadata or "",
        topic_id=topic_id,
    )
