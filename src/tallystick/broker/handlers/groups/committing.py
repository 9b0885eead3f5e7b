"""Rules shared by OffsetCommit and TxnOffsetCommit: partitions fail singly, the others are one command."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Self, TypeVar
from uuid import UUID

from tallystick.broker.group.machine.commands import GroupAnswer, OffsetPartitionErrors, OffsetToCommit
from tallystick.broker.handlers.groups.group_wire import find_topic, get_error_code
from tallystick.broker.handlers.sliced_response import LoopYielder
from tallystick.broker.metadata.store import Topic
from tallystick.broker.partitions.topics import TopicsImage
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.ids import LeaderEpoch, Offset, TopicPartition
from tallystick.kernel.limits import KIB
from tallystick.kernel.value import Value
from tallystick.protocol.messages.groups.offset_commit import (
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tallystick.protocol.messages.txn.txn_offset_commit import (
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

A = TypeVar("A")

# Above the number of rows in a request of `dispatch.INLINE_DECODE_BYTES_MAX`, up to which an OffsetCommit is
# pipelined: a partition takes at least 14 bytes, a topic 6.
ROWS_BEFORE_YIELD: Final = 64 * KIB // 6

# Position of a partition in the request, since topics may be repeated, or named by unknown ids.
RowIndex = tuple[int, int]
RequestTopic = OffsetCommitRequestTopic | TxnOffsetCommitRequestTopic
RequestPartition = OffsetCommitRequestPartition | TxnOffsetCommitRequestPartition


class OffsetCommitPlan(Value):
    """Rows of a request: those refused already, and the offsets to commit."""

    refused_codes: Mapping[RowIndex, int]
    partitions: Mapping[RowIndex, TopicPartition]
    offsets: Mapping[TopicPartition, OffsetToCommit]

    @classmethod
    async def build(
        cls,
        topics: TopicsImage,
        rows: Sequence[RequestTopic],
        *,
        by_id: bool,
        may_read: Callable[[str], bool] = lambda topic: True,
    ) -> Self:
        """Look up every partition. A topic that the client may not read is refused before the lookup.

        Yields to the event loop only in requests too large to be pipelined: a pipelined one reaches the log
        before the requests sent after it.
        """
        codes: dict[RowIndex, int] = {}
        partitions: dict[RowIndex, TopicPartition] = {}
        offsets: dict[TopicPartition, OffsetToCommit] = {}
        pacer = LoopYielder(ROWS_BEFORE_YIELD)
        for row, topic_request in enumerate(rows):
            await pacer.count_entry()
            topic = _find_topic(topics, topic_request.name, topic_request.topic_id, by_id, may_read)
            requests: Sequence[RequestPartition] = topic_request.partitions
            for column, request in enumerate(requests):
                await pacer.count_entry()
                if isinstance(topic, ErrorCode):
                    codes[row, column] = topic
                elif not 0 <= request.partition_index < topic.partitions:
                    codes[row, column] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                else:
                    partition = TopicPartition(topic.name, request.partition_index)
                    partitions[row, column] = partition
                    offsets[partition] = _parse_offset(request, topic.topic_id)
        # A topic may have been deleted, and its group's offsets with it, while the loop above yielded.
        deleted_partitions = {at for at, offset in offsets.items() if not _has_topic(topics, offset)}
        for place in [place for place, at in partitions.items() if at in deleted_partitions]:
            codes[place] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            offsets.pop(partitions.pop(place), None)
        return cls(codes, partitions, offsets)

    @classmethod
    def refuse_all(cls, rows: Sequence[RequestTopic], code: ErrorCode) -> Self:
        """Return a plan that commits nothing and answers every partition with this code."""
        places = ((row, column) for row, topic in enumerate(rows) for column in range(len(topic.partitions)))
        return cls(dict.fromkeys(places, code), {}, {})

    async def build_responses(
        self, rows: Sequence[RequestTopic], answer: GroupAnswer | None, make: Callable[[int, int], A]
    ) -> list[tuple[A, ...]]:
        """Build the answers of the partitions of each row, yielding to the event loop in between.

        Args:
            answer: to the command; None when there was nothing to commit.
            make: builds the answer of a partition from its index and its code.
        """
        pacer = LoopYielder()
        errors = answer.errors if isinstance(answer, OffsetPartitionErrors) else {}
        default_code = get_error_code(answer)
        answers = []
        for row, topic in enumerate(rows):
            await pacer.count_entry()
            responses = []
            requests: Sequence[RequestPartition] = topic.partitions
            for column, request in enumerate(requests):
                await pacer.count_entry()
                partition = self.partitions.get((row, column))
                code = (
                    self.refused_codes[row, column]
                    if partition is None
                    else errors.get(partition, default_code)
                )
                responses.append(make(request.partition_index, code))
            answers.append(tuple(responses))
        return answers


def _has_topic(topics: TopicsImage, offset: OffsetToCommit) -> bool:
    return offset.topic_id is not None and topics.find_by_id(offset.topic_id) is not None


def _find_topic(
    topics: TopicsImage, name: str, topic_id: UUID, by_id: bool, may_read: Callable[[str], bool]
) -> Topic | ErrorCode:
    if not by_id and not may_read(name):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    topic = find_topic(topics, name, topic_id, by_id=by_id)
    if by_id and not isinstance(topic, ErrorCode) and not may_read(topic.name):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return topic


def _parse_offset(request: RequestPartition, topic_id: UUID) -> OffsetToCommit:
    epoch = request.committed_leader_epoch
    return OffsetToCommit(
        offset=Offset(request.committed_offset),
        leader_epoch=None if epoch < 0 else LeaderEpoch(epoch),
        metadata=request.committed_metadata or "",
        topic_id=topic_id,
    )
