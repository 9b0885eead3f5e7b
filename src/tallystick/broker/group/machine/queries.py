"""Read access to groups for ListGroups, DescribeGroups and OffsetFetch."""

from collections.abc import Iterable
from typing import Final
from uuid import UUID

from tallystick.broker.group.machine.model import (
    ClassicGroup,
    CommittedOffset,
    CommittedOffsets,
    GroupState,
    InstanceId,
)
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import GroupId, MemberId, TopicPartition
from tallystick.kernel.value import Value

# Kafka also has consumer, share and streams groups; here every group is a classic one.
GROUP_TYPE: Final = "classic"


class ClassicGroupListing(Value, kw_only=True):
    group_id: GroupId
    protocol_type: str
    state: GroupState


class DescribedMember(Value, kw_only=True):
    member_id: MemberId
    instance_id: InstanceId | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


class ClassicGroupView(Value, kw_only=True):
    """Description of a group for administrators; `protocol_name` and the members' bytes only when Stable."""

    group_id: GroupId
    state: GroupState
    protocol_type: str
    protocol_name: str
    members: tuple[DescribedMember, ...]


def list_groups(
    groups: Iterable[ClassicGroup], states: frozenset[str], types: frozenset[str]
) -> tuple[ClassicGroupListing, ...]:
    """Return the groups in one of `states` and of one of `types`; an empty filter passes all.

    Names are compared without case (KIP-518, KIP-848).
    """
    wanted_states = frozenset(name.lower() for name in states)
    wanted_types = frozenset(name.lower() for name in types)
    if wanted_types and GROUP_TYPE.lower() not in wanted_types:
        return ()
    return tuple(
        ClassicGroupListing(
            group_id=group.group_id, protocol_type=group.protocol_type or "", state=group.state
        )
        for group in groups
        if not wanted_states or group.state.value.lower() in wanted_states
    )


def describe_group(group: ClassicGroup) -> ClassicGroupView:
    """Describe a group, with subscriptions only when Stable: before, their protocol is not chosen yet."""
    stable = group.state is GroupState.STABLE
    protocol = group.protocol_name if stable else None
    return ClassicGroupView(
        group_id=group.group_id,
        state=group.state,
        protocol_type=group.protocol_type or "",
        protocol_name=protocol or "",
        members=tuple(
            DescribedMember(
                member_id=member.member_id,
                instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                metadata=(member.find_metadata(protocol) or b"") if stable else b"",
                assignment=member.assignment,
            )
            for member in group.members.values()
        ),
    )


def find_committed_offset(
    group: ClassicGroup | None, partition: TopicPartition, *, topic_id: UUID | None, require_stable: bool
) -> CommittedOffset | Reject | None:
    """Return the committed offset of one partition; None when there is none.

    Args:
        topic_id: of the topic that has the name now. An offset committed to an earlier topic of that name
            is not this topic's.
        require_stable: refuse while a transaction may still change it (KIP-447).

    Rejects with: UNSTABLE_OFFSET_COMMIT.
    """
    if group is None:
        return None
    if require_stable and group.has_pending_offset(partition):
        return Reject(
            ErrorCode.UNSTABLE_OFFSET_COMMIT,
            f"{partition} has an offset in an open transaction; retry when it has ended",
        )
    offset = group.offsets.get(partition)
    if offset is None or (topic_id and offset.topic_id and topic_id != offset.topic_id):
        return None
    return offset


def list_committed_offsets(group: ClassicGroup | None) -> CommittedOffsets:
    """Return every committed offset of a group."""
    return {} if group is None else group.offsets
