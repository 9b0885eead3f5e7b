"""Offsets of groups and of logs: values for users, and the requests that carry them. Pure.

A committed offset is that of the next record to read. Under `read_committed` the end of a log is its last
stable offset, and the broker does not return a group's offset that an open transaction may still change
(`RequireStable`, KIP-447): it answers UNSTABLE_OFFSET_COMMIT, and the request is repeated [CLI-36].
"""

from collections.abc import Iterable, Mapping
from typing import Final

from tallystick.client.errors import BrokerRefused, build_broker_error
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.ids import TopicPartition
from tallystick.kernel.value import Value
from tallystick.protocol.messages.data.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from tallystick.protocol.messages.groups.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from tallystick.protocol.messages.groups.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
)

# Last versions with topics by name and one group per request, which is all a consumer needs.
OFFSET_COMMIT_VERSION_MAX: Final = 9
OFFSET_FETCH_VERSION_MAX: Final = 7


class OffsetAndMetadata(Value):
    """A committed offset: the next record to read, the leader epoch of the one before it, and a note."""

    offset: int
    leader_epoch: int | None = None
    metadata: str = ""


class GroupMetadata(Value, kw_only=True):
    """Group member that commits; a producer needs it to commit offsets in a transaction (KIP-447).

    generation_id  -1, with member_id "", for a consumer with manual assignment
    """

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None


class OffsetAndTimestamp(Value):
    """First offset in a log with a time or later, and that record's time."""

    offset: int
    timestamp_ms: int
    leader_epoch: int | None = None


Offsets = Mapping[TopicPartition, OffsetAndMetadata | int]
"""Offsets to commit, as users give them: a number stands for an offset without metadata."""


HELD_OFFSET_TEXT: Final = (
    "an open transaction holds the group's offset, which is read when it ends; `tallystick transactions list "
    "--state Ongoing` names the ids, and `describe` which has a partition of __consumer_offsets; if its "
    "writer is gone, `transactions resolve` or `complete` ends it"
)


def normalize_offsets(offsets: Offsets) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return the offsets in one form."""
    return {
        at: OffsetAndMetadata(offset) if isinstance(offset, int) else offset for at, offset in offsets.items()
    }


def build_offset_commit_request(
    group: GroupMetadata, offsets: Mapping[TopicPartition, OffsetAndMetadata]
) -> OffsetCommitRequest:
    topics = tuple(
        OffsetCommitRequestTopic(
            name=topic,
            partitions=tuple(
                OffsetCommitRequestPartition(
                    partition_index=partition.partition,
                    committed_offset=offsets[partition].offset,
                    committed_leader_epoch=_epoch_or_minus_one(offsets[partition].leader_epoch),
                    committed_metadata=offsets[partition].metadata,
                )
                for partition in partitions
            ),
        )
        for topic, partitions in group_by_topic(offsets).items()
    )
    return OffsetCommitRequest(
        group_id=group.group_id,
        generation_id_or_member_epoch=group.generation_id,
        member_id=group.member_id,
        group_instance_id=group.group_instance_id,
        topics=topics,
    )


def parse_offset_commit_errors(answer: OffsetCommitResponse) -> dict[TopicPartition, BrokerRefused]:
    """Return the partitions that were not committed, with their errors."""
    return {
        at: build_broker_error("OffsetCommit", at, partition.error_code)
        for topic in answer.topics
        for partition in topic.partitions
        if partition.error_code
        for at in (TopicPartition(topic.name, partition.partition_index),)
    }


def build_offset_fetch_request(
    group_id: str, partitions: Iterable[TopicPartition], *, require_stable: bool
) -> OffsetFetchRequest:
    topics = tuple(
        OffsetFetchRequestTopic(name=topic, partition_indexes=tuple(at.partition for at in topic_partitions))
        for topic, topic_partitions in group_by_topic(partitions).items()
    )
    return OffsetFetchRequest(group_id=group_id, topics=topics, require_stable=require_stable)


def parse_offset_fetch_response(
    answer: OffsetFetchResponse, group_id: str
) -> dict[TopicPartition, OffsetAndMetadata | None]:
    """Return the offsets that a group has committed; None for none.

    Raises: BrokerRefused for the first error code; UNSTABLE_OFFSET_COMMIT can be retried.
    """
    offsets, errors = split_offset_fetch_response(answer, group_id)
    for refusal in errors.values():
        raise refusal
    return offsets


def split_offset_fetch_response(
    answer: OffsetFetchResponse | OffsetFetchResponseGroup, group_id: str
) -> tuple[dict[TopicPartition, OffsetAndMetadata | None], dict[TopicPartition, BrokerRefused]]:
    """Return a group's committed offsets, None for none, and the partitions that were refused.

    Raises: BrokerRefused if the group itself is refused.
    """
    if answer.error_code:
        raise build_broker_error("OffsetFetch", group_id, answer.error_code)
    offsets: dict[TopicPartition, OffsetAndMetadata | None] = {}
    errors: dict[TopicPartition, BrokerRefused] = {}
    for topic in answer.topics:
        for partition in topic.partitions:
            at = TopicPartition(topic.name, partition.partition_index)
            offset, epoch = partition.committed_offset, partition.committed_leader_epoch
            if partition.error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT:
                text = f"{at}: {HELD_OFFSET_TEXT}"
                errors[at] = build_broker_error("OffsetFetch", group_id, partition.error_code, text)
            elif partition.error_code:
                errors[at] = build_broker_error("OffsetFetch", group_id, partition.error_code, str(at))
            elif offset < 0:
                offsets[at] = None
            else:
                offsets[at] = OffsetAndMetadata(
                    offset, epoch if epoch >= 0 else None, partition.metadata or ""
                )
    return offsets, errors


def build_list_offsets_request(
    times: Mapping[TopicPartition, int], epochs: Mapping[TopicPartition, int | None], isolation: int
) -> ListOffsetsRequest:
    """Return a ListOffsets request.

    Args:
        times: milliseconds, or EARLIEST_MS, LATEST_MS.
    """
    topics = tuple(
        ListOffsetsTopic(
            name=topic,
            partitions=tuple(
                ListOffsetsPartition(
                    partition_index=at.partition,
                    current_leader_epoch=_epoch_or_minus_one(epochs.get(at)),
                    timestamp=times[at],
                )
                for at in topic_partitions
            ),
        )
        for topic, topic_partitions in group_by_topic(times).items()
    )
    return ListOffsetsRequest(replica_id=-1, isolation_level=isolation, topics=topics)


def parse_list_offsets_response(
    answer: ListOffsetsResponse,
) -> tuple[dict[TopicPartition, OffsetAndTimestamp | None], dict[TopicPartition, BrokerRefused]]:
    """Return the offsets found, None where no record is that late, and the refused partitions."""
    offsets: dict[TopicPartition, OffsetAndTimestamp | None] = {}
    errors: dict[TopicPartition, BrokerRefused] = {}
    for topic in answer.topics:
        for partition in topic.partitions:
            at = TopicPartition(topic.name, partition.partition_index)
            epoch = partition.leader_epoch if partition.leader_epoch >= 0 else None
            if partition.error_code:
                errors[at] = build_broker_error("ListOffsets", at, partition.error_code)
            elif partition.offset < 0:
                offsets[at] = None
            else:
                offsets[at] = OffsetAndTimestamp(partition.offset, partition.timestamp, epoch)
    return offsets, errors


def group_by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[TopicPartition]]:
    """Group the partitions by topic."""
    topics: dict[str, list[TopicPartition]] = {}
    for partition in partitions:
        topics.setdefault(partition.topic, []).append(partition)
    return topics


def _epoch_or_minus_one(epoch: int | None) -> int:
    return -1 if epoch is None else epoch
