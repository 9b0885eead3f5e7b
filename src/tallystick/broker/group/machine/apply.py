"""State changes of a group: the only place where they happen, live and on replay alike [GRP-4]."""

from collections.abc import Mapping
from typing import TypeVar, assert_never

from tallystick.broker.group.machine.events import (
    GenerationStarted,
    GroupEvent,
    GroupRemoved,
    GroupStored,
    JoinTimerChanged,
    LeaderElected,
    MemberAdded,
    MemberIdAssigned,
    MemberReplaced,
    MembersRemoved,
    MemberUpdated,
    OffsetsCommitted,
    OffsetsDeleted,
    RebalancePrepared,
    ReplayedEvent,
    SessionExtended,
    SessionsStarted,
    StoredMember,
    SyncReceived,
    SyncsAnswered,
    TransactionEnded,
)
from tallystick.broker.group.machine.model import (
    EMPTY_BYTES,
    PENDING_MEMBERS_MAX,
    PREVIOUS_STATES,
    ClassicGroup,
    ClassicGroupMember,
    DeadlineMs,
    GroupState,
    MemberProtocol,
)
from tallystick.kernel.check import check, require
from tallystick.kernel.ids import GroupId, MemberId, Offset, ProducerId, TopicPartition
from tallystick.kernel.value import replace

K = TypeVar("K")
V = TypeVar("V")


def apply_event(
    group: ClassicGroup | None, event: GroupEvent, at: Offset | None = None
) -> ClassicGroup | None:
    """Return the group as it is after `event`; None when the group no longer exists.

    Args:
        group: None when it does not exist yet.
        at: for OffsetsCommitted the log offset of its first record; None while drafting.

    Cost: linear in the members, or in the offsets, of the group: the one mapping that changes is copied.
    """
    match event:
        case GroupStored():
            return _restore_group(group, event)
        case OffsetsCommitted():
            return _commit_offsets(group or ClassicGroup(group_id=event.group_id), event, at)
        case GroupRemoved():
            return _remove_group(group)
        case OffsetsDeleted(partitions=partitions):
            return group and _delete_offsets(group, partitions)
        case TransactionEnded(producer_id=producer_id, is_committed=committed):
            return group and _end_transaction(group, producer_id, committed)
        case _:
            group = require(group, f"{type(event).__name__} for a group that does not exist")
            return _apply_soft_event(group, event)


def apply_to_existing(group: ClassicGroup, event: GroupEvent) -> ClassicGroup:
    """Apply an event to a group that exists before and after it."""
    return require(apply_event(group, event), f"{type(event).__name__} must not remove a group")


def _apply_soft_event(group: ClassicGroup, event: GroupEvent) -> ClassicGroup:
    match event:
        case (
            MemberIdAssigned()
            | MemberAdded()
            | MemberUpdated()
            | MemberReplaced()
            | MembersRemoved()
            | LeaderElected()
        ):
            return _apply_membership(group, event)
        case SessionsStarted(now=now):
            members = {
                member_id: replace(member, session_deadline_ms=now.deadline_after(member.session_timeout_ms))
                for member_id, member in group.members.items()
            }
            return replace(group, members=members)
        case RebalancePrepared(state_timestamp_ms=timestamp, join_timer=timer):
            group = _change_state(group, GroupState.PREPARING_REBALANCE)
            return replace(
                group,
                state_timestamp_ms=timestamp,
                join_timer=timer,
                has_new_member=False,
                pending_sync_members=frozenset(),
                sync_deadline_ms=None,
            )
        case JoinTimerChanged(join_timer=timer):
            return replace(group, join_timer=timer, has_new_member=False)
        case GenerationStarted():
            return _start_generation(group, event)
        case SyncReceived(member_id=member_id, ticket=ticket):
            pending = group.pending_sync_members - {member_id}
            member = replace(group.members[member_id], awaiting_sync=ticket)
            return replace(
                _put_member(group, member),
                pending_sync_members=pending,
                sync_deadline_ms=group.sync_deadline_ms if pending else None,
            )
        case SyncsAnswered(session_deadlines_ms=deadlines):
            return replace(group, members=_clear_pending_syncs(group.members, deadlines))
        case SessionExtended(member_id=member_id, session_deadline_ms=deadline):
            member = replace(group.members[member_id], session_deadline_ms=deadline)
            return _put_member(group, member)
        case GroupStored() | GroupRemoved() | OffsetsCommitted() | OffsetsDeleted() | TransactionEnded():
            raise AssertionError("durable events are applied elsewhere")
        case _:
            assert_never(event)


_Membership = MemberIdAssigned | MemberAdded | MemberUpdated | MemberReplaced | MembersRemoved | LeaderElected


def _apply_membership(group: ClassicGroup, event: _Membership) -> ClassicGroup:
    match event:
        case MemberIdAssigned(member_id=member_id, deadline_ms=deadline):
            check(member_id not in group.members, f"{member_id} is pending and a member [GRP-3]")
            pending = {**group.pending_members, member_id: deadline}
            if len(pending) > PENDING_MEMBERS_MAX:
                # The oldest goes: refusing the newest would let one client that keeps asking lock out others.
                del pending[next(iter(pending))]
            return replace(group, pending_members=pending)
        case MemberAdded():
            return _add_member(group, event)
        case MemberUpdated(member_id=member_id):
            member = replace(
                group.members[member_id],
                supported_protocols=event.protocols,
                rebalance_timeout_ms=event.rebalance_timeout_ms,
                session_timeout_ms=event.session_timeout_ms,
                awaiting_join=event.ticket,
            )
            return _put_member(group, member)
        case MemberReplaced(old_member_id=old, new_member_id=new):
            successor = replace(
                group.members[old],
                member_id=new,
                session_deadline_ms=event.session_deadline_ms,
                is_new=False,
                awaiting_join=None,
                awaiting_sync=None,
            )
            members = {
                (new if member_id == old else member_id): (successor if member_id == old else member)
                for member_id, member in group.members.items()
            }
            leader = new if group.leader_id == old else group.leader_id
            pending_sync = frozenset(new if name == old else name for name in group.pending_sync_members)
            return replace(group, members=members, leader_id=leader, pending_sync_members=pending_sync)
        case MembersRemoved(member_ids=member_ids):
            return _remove_members(group, frozenset(member_ids))
        case LeaderElected(member_id=member_id):
            check(member_id in group.members, f"leader {member_id} is not a member")
            return replace(group, leader_id=member_id)
        case _:
            assert_never(event)


def _change_state(group: ClassicGroup, state: GroupState) -> ClassicGroup:
    """Change the state, by a transition of the table only [GRP-2]."""
    previous_states = PREVIOUS_STATES[state]
    check(group.state in previous_states, f"group {group.group_id}: {group.state.value} -> {state.value}")
    return replace(group, state=state)


def _put_member(group: ClassicGroup, member: ClassicGroupMember) -> ClassicGroup:
    return replace(group, members={**group.members, member.member_id: member})


def _remove_keys(mapping: Mapping[K, V], keys: frozenset[K]) -> Mapping[K, V]:
    return {key: value for key, value in mapping.items() if key not in keys}


def _add_member(group: ClassicGroup, event: MemberAdded) -> ClassicGroup:
    member = event.member
    check(member.member_id not in group.members, f"{member.member_id} is a member already")
    pending = _remove_keys(group.pending_members, frozenset({member.member_id}))
    initial = group.join_timer is not None and group.join_timer.is_initial
    return replace(
        _put_member(group, member),
        protocol_type=group.protocol_type if group.members else event.protocol_type,
        leader_id=group.leader_id or member.member_id,
        pending_members=pending,
        has_new_member=group.has_new_member or initial,
    )


def _remove_members(group: ClassicGroup, member_ids: frozenset[MemberId]) -> ClassicGroup:
    members = _remove_keys(group.members, member_ids)
    leader = group.leader_id if group.leader_id in members else next(iter(members), None)
    pending_sync = group.pending_sync_members - member_ids
    return replace(
        group,
        members=members,
        leader_id=leader,
        pending_members=_remove_keys(group.pending_members, member_ids),
        pending_sync_members=pending_sync,
        sync_deadline_ms=group.sync_deadline_ms if pending_sync else None,
    )


def _start_generation(group: ClassicGroup, event: GenerationStarted) -> ClassicGroup:
    check(event.generation == group.generation + 1, "generations count up by one [GRP-5]")
    group = _change_state(group, GroupState.COMPLETING_REBALANCE)
    members = {
        member_id: replace(
            member,
            awaiting_join=None,
            is_new=False,
            assignment=EMPTY_BYTES,
            session_deadline_ms=event.now.deadline_after(member.session_timeout_ms),
        )
        for member_id, member in group.members.items()
    }
    return replace(
        group,
        generation=event.generation,
        protocol_name=event.protocol_name,
        state_timestamp_ms=event.now.wall_ms,
        members=members,
        join_timer=None,
        has_new_member=False,
        pending_sync_members=frozenset(members),
        sync_deadline_ms=event.sync_deadline_ms,
    )


def _clear_pending_syncs(
    members: Mapping[MemberId, ClassicGroupMember], deadlines: Mapping[MemberId, DeadlineMs]
) -> Mapping[MemberId, ClassicGroupMember]:
    return {
        member_id: (
            replace(member, awaiting_sync=None, session_deadline_ms=deadlines[member_id])
            if member_id in deadlines
            else member
        )
        for member_id, member in members.items()
    }


def _restore_group(group: ClassicGroup | None, event: GroupStored) -> ClassicGroup:
    """Return the group as of a completed generation; on replay just that, live with running sessions."""
    state = GroupState.STABLE if event.members else GroupState.EMPTY
    live = group or ClassicGroup(group_id=event.group_id)
    if group is not None and group.members:
        check(event.generation >= group.generation, "generations never go back [GRP-5]")
    return replace(
        live,
        state=state,
        state_timestamp_ms=event.state_timestamp_ms,
        generation=event.generation,
        protocol_type=event.protocol_type,
        protocol_name=event.protocol_name,
        leader_id=event.leader_id,
        members={
            stored_member.member_id: _restore_member(
                stored_member, live.members.get(stored_member.member_id), event.protocol_name
            )
            for stored_member in event.members
        },
        join_timer=None,
        has_new_member=False,
    )


def _restore_member(
    stored_member: StoredMember, live_member: ClassicGroupMember | None, protocol_name: str | None
) -> ClassicGroupMember:
    """Return the member as stored, with the session and offers of the live member, if there is one."""
    offers = () if live_member is None else live_member.supported_protocols
    protocol = MemberProtocol(protocol_name or "", stored_member.subscription)
    return ClassicGroupMember(
        member_id=stored_member.member_id,
        instance_id=stored_member.instance_id,
        client_id=stored_member.client_id,
        client_host=stored_member.client_host,
        rebalance_timeout_ms=stored_member.rebalance_timeout_ms,
        session_timeout_ms=stored_member.session_timeout_ms,
        supported_protocols=offers if protocol in offers else (protocol,),
        # For a member found by replay, SessionsStarted sets it.
        session_deadline_ms=DeadlineMs(0) if live_member is None else live_member.session_deadline_ms,
        assignment=stored_member.assignment,
        awaiting_join=None if live_member is None else live_member.awaiting_join,
        awaiting_sync=None if live_member is None else live_member.awaiting_sync,
    )


def _remove_group(group: ClassicGroup | None) -> ClassicGroup | None:
    """Remove the group for a tombstone; remaining offsets make it a simple group."""
    if group is None or not (group.offsets or group.pending_offsets):
        return None
    return ClassicGroup(group_id=group.group_id, offsets=group.offsets, pending_offsets=group.pending_offsets)


def _commit_offsets(group: ClassicGroup, event: OffsetsCommitted, at: Offset | None) -> ClassicGroup:
    commits = {
        partition: offset if at is None else replace(offset, record_offset=Offset(at + index))
        for index, (partition, offset) in enumerate(event.offsets.items())
    }
    producer_id = event.producer_id
    # KIP-98: a transactional commit stays pending until the marker of its producer id.
    if producer_id is None:
        return replace(group, offsets={**group.offsets, **commits})
    pending = {**group.pending_offsets.get(producer_id, {}), **commits}
    return replace(group, pending_offsets={**group.pending_offsets, producer_id: pending})


def _delete_offsets(group: ClassicGroup, partitions: tuple[TopicPartition, ...]) -> ClassicGroup:
    """Delete offsets, pending ones too: the deletion is later in the log than they are."""
    deleted_partitions = frozenset(partitions)
    pending = {
        producer_id: remaining
        for producer_id, offsets in group.pending_offsets.items()
        if (remaining := _remove_keys(offsets, deleted_partitions))
    }
    return replace(group, offsets=_remove_keys(group.offsets, deleted_partitions), pending_offsets=pending)


def _end_transaction(group: ClassicGroup, producer_id: ProducerId, committed: bool) -> ClassicGroup:
    """Commit or drop pending offsets. Of two commits the later append wins (KAFKA-5247)."""
    pending = group.pending_offsets.get(producer_id)
    if pending is None:
        return group
    group = replace(group, pending_offsets=_remove_keys(group.pending_offsets, frozenset({producer_id})))
    if not committed:
        return group
    offsets = dict(group.offsets)
    for partition, offset in pending.items():
        before = offsets.get(partition)
        if before is None or (before.record_offset or 0) < (offset.record_offset or 0):
            offsets[partition] = offset
    return replace(group, offsets=offsets)


class GroupTable:
    """The groups of one partition of `__consumer_offsets`, live and on replay alike [GRP-4].

    `groups` may be shared with the tables of other partitions. The index of groups with pending offsets of a
    producer belongs to one table: a marker ends a transaction in its own partition alone.
    """

    def __init__(self, groups: dict[GroupId, ClassicGroup]) -> None:
        self.groups = groups
        # A dict serves as a set: its order is that of the log, in every process.
        self._pending_by_producer: dict[ProducerId, dict[GroupId, None]] = {}

    def apply_event(self, group_id: GroupId, event: GroupEvent, at: Offset | None = None) -> None:
        """Change one group. `at`: log offset of the event's first record, for a durable one."""
        group = apply_event(self.groups.get(group_id), event, at)
        if group is None:
            self.groups.pop(group_id, None)
        else:
            self.groups[group_id] = group
        if isinstance(event, OffsetsCommitted) and event.producer_id is not None:
            self._pending_by_producer.setdefault(event.producer_id, {})[group_id] = None

    def end_transaction(self, event: TransactionEnded) -> None:
        """Change every group with pending offsets of the producer. Cost: linear in those groups' offsets."""
        for group_id in self._pending_by_producer.pop(event.producer_id, {}):
            self.apply_event(group_id, event)

    def replay_event(self, entry: ReplayedEvent) -> None:
        """Apply an event read from the log."""
        if isinstance(entry.event, TransactionEnded):
            self.end_transaction(entry.event)
        else:
            self.apply_event(entry.event.group_id, entry.event, entry.offset)
