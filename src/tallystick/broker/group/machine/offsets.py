"""Commit, deletion and expiration of a group's offsets, and deletion of the group."""

from collections.abc import Mapping
from types import MappingProxyType

from tallystick.broker.group.machine.commands import (
    DONE,
    CommitOffsets,
    CommitTxnOffsets,
    DeleteGroup,
    DeleteOffsets,
    DeleteTopicOffsets,
    GroupEnv,
    GroupStep,
    OffsetPartitionErrors,
    OffsetToCommit,
)
from tallystick.broker.group.machine.events import (
    DurableEvent,
    GroupEvent,
    GroupRemoved,
    OffsetsCommitted,
    OffsetsDeleted,
    SessionExtended,
)
from tallystick.broker.group.machine.expiry import find_expired_offsets, is_subscribed
from tallystick.broker.group.machine.model import ClassicGroup, CommittedOffset, GroupState
from tallystick.broker.group.machine.rebalance import REBALANCE_IN_PROGRESS, check_generation, check_member
from tallystick.broker.group.machine.subscription import find_subscribed_topics
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import INT64_MAX, MemberId, TimestampMs, TopicPartition

_EMPTY_STEP = GroupStep(reply=DONE)
_SESSION_STATES = (GroupState.STABLE, GroupState.PREPARING_REBALANCE)


def decide_commit_offsets(
    group: ClassicGroup | None, command: CommitOffsets, env: GroupEnv
) -> GroupStep | Reject:
    """Commit offsets of a member, or of a consumer that uses no group.

    A commit proves that the member is alive, and extends its session. During a rebalance commits are accepted
    until the new generation exists: clients commit before they rejoin.

    Rejects with: ILLEGAL_GENERATION, GROUP_ID_NOT_FOUND, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID,
        REBALANCE_IN_PROGRESS; per partition OFFSET_METADATA_TOO_LARGE.
    """
    if group is not None and group.state is not GroupState.EMPTY and _is_anonymous(command):
        return Reject(
            ErrorCode.UNKNOWN_MEMBER_ID,
            f"group {group.group_id} has members, but the commit names none; nothing was committed. Use"
            " another group.id, or join the group",
        )
    refusal = _check_committer(group, command, env)
    if refusal is not None:
        return refusal
    if group is not None and group.state is GroupState.COMPLETING_REBALANCE:
        # The member has joined the new generation and commits for the old one: its partitions may have moved.
        return REBALANCE_IN_PROGRESS
    errors = _find_oversized_metadata(command.offsets, env)
    events: list[DurableEvent] = []
    if len(errors) < len(command.offsets):
        offsets = _build_offsets(command.offsets, errors, env, command.retention_ms)
        events.append(OffsetsCommitted(group_id=env.group_id, offsets=offsets))
    return GroupStep(
        records=tuple(events),
        events=(*events, *_extend_session(group, command, env)),
        reply=OffsetPartitionErrors(errors=errors),
    )


def decide_commit_txn_offsets(
    group: ClassicGroup | None, command: CommitTxnOffsets, env: GroupEnv
) -> GroupStep | Reject:
    """Store offsets as pending until the transaction ends.

    A request that names member and generation is checked against them, so that a replaced member cannot
    commit for partitions that another member owns now. A rebalance in progress is no reason to refuse: until
    the generation changes, the member owns its partitions.

    Source: KIP-447 "Fencing zombie"; ClassicGroup.validateOffsetCommit.
    Rejects with: ILLEGAL_GENERATION, GROUP_ID_NOT_FOUND, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID; per
        partition OFFSET_METADATA_TOO_LARGE.
    """
    refusal = None if group is not None and _is_anonymous(command) else _check_committer(group, command, env)
    if refusal is not None:
        return refusal
    # KIP-447: pending offsets belong to the transaction's producer id until its marker arrives.
    errors = _find_oversized_metadata(command.offsets, env)
    if len(errors) == len(command.offsets):
        return GroupStep(reply=OffsetPartitionErrors(errors=errors))
    pending = OffsetsCommitted(
        group_id=env.group_id,
        offsets=_build_offsets(command.offsets, errors, env),
        producer_id=command.identity.producer_id,
    )
    return GroupStep(records=(pending,), events=(pending,), reply=OffsetPartitionErrors(errors=errors))


def _is_anonymous(command: CommitOffsets | CommitTxnOffsets) -> bool:
    return command.generation is None and command.member_id is None and command.instance_id is None


def _check_committer(
    group: ClassicGroup | None, command: CommitOffsets | CommitTxnOffsets, env: GroupEnv
) -> Reject | None:
    """Check member and generation of a commit.

    One without a generation passes if the group does not exist or is empty.
    """
    if group is None:
        if command.generation is None:
            return None  # the commit creates a simple group
        code = ErrorCode.ILLEGAL_GENERATION
        if command.knows_group_id_not_found:
            code = ErrorCode.GROUP_ID_NOT_FOUND
        return Reject(code, f"group {env.group_id} does not exist; nothing was committed")
    if command.generation is None and group.state is GroupState.EMPTY:
        return None
    # A missing id is an unknown member, unless the claimed instance has a member: then it is fenced.
    member = check_member(group, command.member_id or MemberId(""), command.instance_id)
    if isinstance(member, Reject):
        return member
    return check_generation(group, -1 if command.generation is None else command.generation)


def _find_oversized_metadata(
    offsets: Mapping[TopicPartition, OffsetToCommit], env: GroupEnv
) -> Mapping[TopicPartition, ErrorCode]:
    length_max = env.config.offset_metadata_max_bytes
    errors = {
        partition: ErrorCode.OFFSET_METADATA_TOO_LARGE
        for partition, commit in offsets.items()
        # Kafka compares UTF-16 code units, despite the setting's name.
        if len(commit.metadata) > length_max or len(commit.metadata.encode("utf-16-le")) // 2 > length_max
    }
    return MappingProxyType(errors)


def _build_offsets(
    offsets: Mapping[TopicPartition, OffsetToCommit],
    errors: Mapping[TopicPartition, ErrorCode],
    env: GroupEnv,
    retention_ms: int | None = None,
) -> Mapping[TopicPartition, CommittedOffset]:
    """Return the offsets for the record; with an own expiry, it has no field for epoch and topic id.

    Some clients ask for a retention of Long.MAX_VALUE, meaning for ever.
    """
    now_ms = env.now.wall_ms
    expire_ms = None if retention_ms is None else TimestampMs(min(now_ms + retention_ms, INT64_MAX))
    return {
        partition: CommittedOffset(
            offset=commit.offset,
            leader_epoch=commit.leader_epoch if expire_ms is None else None,
            metadata=commit.metadata,
            commit_timestamp_ms=now_ms,
            expire_timestamp_ms=expire_ms,
            topic_id=commit.topic_id if expire_ms is None else None,
        )
        for partition, commit in offsets.items()
        if partition not in errors
    }


def _extend_session(
    group: ClassicGroup | None, command: CommitOffsets, env: GroupEnv
) -> tuple[GroupEvent, ...]:
    if group is None or command.member_id is None or group.state not in _SESSION_STATES:
        return ()
    member = group.members.get(command.member_id)
    if member is None or member.is_new:
        return ()
    deadline = env.now.deadline_after(member.session_timeout_ms)
    return (SessionExtended(member_id=member.member_id, session_deadline_ms=deadline),)


def decide_delete_offsets(
    group: ClassicGroup | None, command: DeleteOffsets, env: GroupEnv
) -> GroupStep | Reject:
    """Delete offsets of topics to which no member subscribes.

    The offset of an open transaction is part of what its client will commit: it stays, unless the operator
    has chosen otherwise. Kafka deletes it (ADR 0022).

    Rejects with: GROUP_ID_NOT_FOUND; NON_EMPTY_GROUP for members of a protocol that cannot be read;
        per partition GROUP_SUBSCRIBED_TO_TOPIC, POLICY_VIOLATION.
    """
    if group is None:
        return Reject(ErrorCode.GROUP_ID_NOT_FOUND, f"group {env.group_id} does not exist")
    if group.state is not GroupState.EMPTY and not group.uses_consumer_protocol:
        return Reject(
            ErrorCode.NON_EMPTY_GROUP,
            f"group {group.group_id} is {group.state.value}; nothing was deleted. Stop its members first",
        )
    topics = find_subscribed_topics(group)
    errors: dict[TopicPartition, ErrorCode] = {}
    for partition in command.partitions:
        # KIP-496: the offset of a topic that a member consumes is in use.
        if is_subscribed(group, topics, partition.topic):
            errors[partition] = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
        elif group.has_pending_offset(partition) and not command.may_discard_pending:
            errors[partition] = ErrorCode.POLICY_VIOLATION
    group_partitions = frozenset(group.iter_partitions())
    deletable = tuple(
        dict.fromkeys(p for p in command.partitions if p in group_partitions and p not in errors)
    )
    return _build_deletion_step(group, deletable, OffsetPartitionErrors(errors=MappingProxyType(errors)))


def decide_delete_topic_offsets(group: ClassicGroup | None, command: DeleteTopicOffsets) -> GroupStep:
    """Delete the offsets of a deleted topic, so that a new topic of the name does not inherit them."""
    if group is None:
        return _EMPTY_STEP
    partitions = tuple(
        partition for partition in group.iter_partitions() if partition.topic in command.topics
    )
    return _build_deletion_step(group, partitions, OffsetPartitionErrors())


def _build_deletion_step(
    group: ClassicGroup, partitions: tuple[TopicPartition, ...], reply: OffsetPartitionErrors
) -> GroupStep:
    if not partitions:
        return GroupStep(reply=reply)
    event = OffsetsDeleted(group_id=group.group_id, partitions=partitions)
    return GroupStep(records=(event,), events=(event,), reply=reply)


def decide_delete_group(
    group: ClassicGroup | None, command: DeleteGroup, env: GroupEnv
) -> GroupStep | Reject:
    """Delete an empty group with its offsets, unless an open transaction has some of them (ADR 0022).

    Rejects with: GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP, POLICY_VIOLATION.
    """
    if group is None:
        return Reject(ErrorCode.GROUP_ID_NOT_FOUND, f"group {env.group_id} does not exist")
    if group.state is not GroupState.EMPTY:
        return Reject(
            ErrorCode.NON_EMPTY_GROUP,
            f"group {group.group_id} is {group.state.value}; nothing was deleted. Stop its members first",
        )
    if group.pending_offsets and not command.may_discard_pending:
        producers = ", ".join(map(str, group.pending_offsets))
        return Reject(
            ErrorCode.POLICY_VIOLATION,
            f"group {group.group_id} has offsets in open transactions of producers {producers}; nothing was"
            " deleted. End these transactions first",
        )
    return _build_removal_step(group, tuple(group.iter_partitions()))


def decide_expire_offsets(group: ClassicGroup | None, env: GroupEnv) -> GroupStep:
    """Expire offsets; remove the group when it is empty and has none left.

    A pending member id keeps the group; Kafka removes it.
    """
    if group is None:
        return _EMPTY_STEP
    partitions = find_expired_offsets(group, env.config, env.now.wall_ms)
    all_expired = len(partitions) == len(group.offsets) and not group.pending_offsets
    if all_expired and group.state is GroupState.EMPTY and not group.pending_members:
        return _build_removal_step(group, partitions)
    if not partitions:
        return _EMPTY_STEP
    event = OffsetsDeleted(group_id=group.group_id, partitions=partitions)
    return GroupStep(records=(event,), events=(event,), reply=DONE)


def _build_removal_step(group: ClassicGroup, partitions: tuple[TopicPartition, ...]) -> GroupStep:
    events: tuple[DurableEvent, ...] = (GroupRemoved(group_id=group.group_id),)
    if partitions:
        events = (OffsetsDeleted(group_id=group.group_id, partitions=partitions), *events)
    return GroupStep(records=events, events=events, reply=DONE)
