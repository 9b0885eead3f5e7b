"""Deadlines of a group, and the expiration of its offsets."""

from collections.abc import Iterator

from tallystick.broker.group.machine.commands import (
    ExpireJoinPhase,
    ExpireSession,
    ExpireSyncPhase,
    GroupTimeout,
)
from tallystick.broker.group.machine.model import (
    ClassicGroup,
    CommittedOffset,
    DeadlineMs,
    GroupConfig,
    GroupState,
)
from tallystick.broker.group.machine.subscription import SubscribedTopics, find_subscribed_topics
from tallystick.kernel.ids import MemberId, TimestampMs, TopicPartition


def find_session_deadline(group: ClassicGroup, member_id: MemberId) -> DeadlineMs | None:
    """Return when the session of this member, or pending id, ends; None when no session runs.

    A member with a parked request cannot heartbeat and is not expected to, unless it is new: then its parked
    JoinGroup itself has a limit.
    """
    pending = group.pending_members.get(member_id)
    if pending is not None:
        return pending
    member = group.members.get(member_id)
    if member is None:
        return None
    is_parked = member.awaiting_join is not None or member.awaiting_sync is not None
    return None if is_parked and not member.is_new else member.session_deadline_ms


def iter_deadlines(group: ClassicGroup) -> Iterator[tuple[DeadlineMs, GroupTimeout]]:
    """Yield every running deadline, with the command for when it passes [GRP-6]."""
    if group.join_timer is not None:
        yield group.join_timer.deadline_ms, ExpireJoinPhase()
    if group.sync_deadline_ms is not None:
        yield group.sync_deadline_ms, ExpireSyncPhase()
    for member_id in (*group.pending_members, *group.members):
        deadline = find_session_deadline(group, member_id)
        if deadline is not None:
            yield deadline, ExpireSession(member_id=member_id)


def find_next_deadline(group: ClassicGroup) -> DeadlineMs | None:
    """Return the earliest deadline. Cost: linear in members."""
    return min((deadline for deadline, _ in iter_deadlines(group)), default=None)


def find_due_timeouts(group: ClassicGroup, monotonic_ms: int) -> tuple[GroupTimeout, ...]:
    """Return the timeouts that have passed, earliest first.

    Each decision checks again: an earlier one may remove the reason of a later one.
    """
    due = [(deadline, timeout) for deadline, timeout in iter_deadlines(group) if deadline <= monotonic_ms]
    return tuple(timeout for _, timeout in sorted(due, key=lambda entry: entry[0]))


def find_expired_offsets(
    group: ClassicGroup, config: GroupConfig, now_ms: TimestampMs
) -> tuple[TopicPartition, ...]:
    """Return the partitions whose offsets have expired.

    | group                              | retention counts from                       |
    |------------------------------------|---------------------------------------------|
    | no protocol (a simple consumer)    | the commit                                  |
    | Empty                              | when it became Empty; unknown: the commit   |
    | Stable consumers, topics known     | the commit, and only topics not subscribed  |
    | anything else                      | never                                       |

    An explicit expiry of the commit takes precedence; a partition with a pending transactional offset is left
    alone. Source: KIP-211.
    """
    if not _may_expire(group):
        return ()
    topics = find_subscribed_topics(group)
    base_ms = group.state_timestamp_ms if _is_counted_from_empty(group) else None
    return tuple(
        partition
        for partition, offset in group.offsets.items()
        if not is_subscribed(group, topics, partition.topic)
        and not group.has_pending_offset(partition)
        and _is_expired(offset, base_ms, config.offsets_retention_ms, now_ms)
    )


def _may_expire(group: ClassicGroup) -> bool:
    # KIP-211: offsets expire once the group has no members; with members, only of topics they do not consume.
    if group.protocol_type is None or group.state is GroupState.EMPTY:
        return True
    knows_topics = group.uses_consumer_protocol and find_subscribed_topics(group) is not None
    return knows_topics and group.state is GroupState.STABLE


def _is_counted_from_empty(group: ClassicGroup) -> bool:
    return group.protocol_type is not None and group.state is GroupState.EMPTY


def _is_expired(
    offset: CommittedOffset, base_ms: TimestampMs | None, retention_ms: int, now_ms: TimestampMs
) -> bool:
    if offset.expire_timestamp_ms is not None:
        return now_ms >= offset.expire_timestamp_ms
    return now_ms - (offset.commit_timestamp_ms if base_ms is None else base_ms) >= retention_ms


def is_subscribed(group: ClassicGroup, topics: SubscribedTopics, topic: str) -> bool:
    """Return whether a member subscribes to `topic`; assumed for a consumer group with unreadable topics."""
    return group.uses_consumer_protocol if topics is None else topic in topics
