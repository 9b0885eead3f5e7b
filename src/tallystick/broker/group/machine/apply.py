"""State changes of a group: the only place where they happen, live and on replay alike [GRP-4]."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar, assert_never

from tallystick.broker.group.machine.events import (
    Event,
    GenerationStarted,
    GroupRemoved,
    GroupRevived,
    GroupStored,
    JoinTimerSet,
    LeaderElected,
    MemberAdded,
    MemberPending,
    MemberReplaced,
    MembersRemoved,
    MemberUpdated,
    OffsetsCommitted,
    OffsetsDeleted,
    RebalancePrepared,
    SessionExtended,
    StoredMember,
    SyncReceived,
    SyncsAnswered,
    TransactionEnded,
)
from tallystick.broker.group.machine.model import (
    NOTHING,
    PENDING_MEMBERS_MAX,
    PREVIOUS_STATES,
    DeadlineMs,
    Group,
    GroupState,
    Member,
    ProtocolChoice,
)
from tallystick.kernel.check import check
from tallystick.kernel.ids import MemberId, Offset, ProducerId, TopicPartition

K = TypeVar("K")
V = TypeVar("V")


def apply(group: Group | None, event: Event, at: Offset | None = None) -> Group | None:
    """Return the group as it is after `event`; None when the group no longer exists.

    Args:
        group: None when it does not exist yet.
        at: for OffsetsCommitted the log offset of its first record; None while drafting.

    Cost: linear in the members, or in the offsets, of the group: the one mapping that changes is copied.
    """
    match event:
        case GroupStored():
            return _stored(group, event)
        case OffsetsCommitted():
            return _committed(group or Group(group_id=event.group_id), event, at)
        case GroupRemoved():
            return _removed(group)
        case OffsetsDeleted(partitions=partitions):
            return group and _offsets_deleted(group, partitions)
        case TransactionEnded(producer_id=producer_id, committed=committed):
            return group and _transaction_ended(group, producer_id, committed)
        case _:
            check(group is not None, f"{type(event).__name__} for a group that does not exist")
            assert group is not None
            return _apply_soft(group, event)


def apply_soft_to(group: Group, event: Event) -> Group:
    """Apply an event to a group that exists before and after it."""
    after = apply(group, event)
    check(after is not None, f"{type(event).__name__} must not remove a group")
    assert after is not None
    return after


def _apply_soft(group: Group, event: Event) -> Group:
    match event:
        case (
            MemberPending()
            | MemberAdded()
            | MemberUpdated()
            | MemberReplaced()
            | MembersRemoved()
            | LeaderElected()
        ):
            return _apply_membership(group, event)
        case GroupRevived(now=now):
            members = {
                member_id: replace(member, session_deadline_ms=now.deadline(member.session_timeout_ms))
                for member_id, member in group.members.items()
            }
            return replace(group, members=members)
        case RebalancePrepared(state_timestamp_ms=timestamp, join_timer=timer):
            group = _enter(group, GroupState.PREPARING_REBALANCE)
            return replace(
                group,
                state_timestamp_ms=timestamp,
                join_timer=timer,
                new_member_added=False,
                pending_sync=frozenset(),
                sync_deadline_ms=None,
            )
        case JoinTimerSet(join_timer=timer):
            return replace(group, join_timer=timer, new_member_added=False)
        case GenerationStarted():
            return _generation_started(group, event)
        case SyncReceived(member_id=member_id, ticket=ticket):
            pending = group.pending_sync - {member_id}
            member = replace(group.members[member_id], awaiting_sync=ticket)
            return replace(
                _with_member(group, member),
                pending_sync=pending,
                sync_deadline_ms=group.sync_deadline_ms if pending else None,
            )
        case SyncsAnswered(session_deadlines_ms=deadlines):
            return replace(group, members=_syncs_answered(group.members, deadlines))
        case SessionExtended(member_id=member_id, session_deadline_ms=deadline):
            member = replace(group.members[member_id], session_deadline_ms=deadline)
            return _with_member(group, member)
        case GroupStored() | GroupRemoved() | OffsetsCommitted() | OffsetsDeleted() | TransactionEnded():
            raise AssertionError("durable events are applied elsewhere")
        case _:
            assert_never(event)


_Membership = MemberPending | MemberAdded | MemberUpdated | MemberReplaced | MembersRemoved | LeaderElected


def _apply_membership(group: Group, event: _Membership) -> Group:
    match event:
        case MemberPending(member_id=member_id, deadline_ms=deadline):
            check(member_id not in group.members, f"{member_id} is pending and a member [GRP-3]")
            pending = {**group.pending_members, member_id: deadline}
            if len(pending) > PENDING_MEMBERS_MAX:
                # The oldest goes: refusing the newest would let one client that keeps asking lock out others.
                del pending[next(iter(pending))]
            return replace(group, pending_members=pending)
        case MemberAdded():
            return _member_added(group, event)
        case MemberUpdated(member_id=member_id):
            member = replace(
                group.members[member_id],
                protocols=event.protocols,
                rebalance_timeout_ms=event.rebalance_timeout_ms,
                session_timeout_ms=event.session_timeout_ms,
                awaiting_join=event.ticket,
            )
            return _with_member(group, member)
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
            leader = new if group.leader == old else group.leader
            pending_sync = frozenset(new if name == old else name for name in group.pending_sync)
            return replace(group, members=members, leader=leader, pending_sync=pending_sync)
        case MembersRemoved(member_ids=gone):
            return _members_removed(group, frozenset(gone))
        case LeaderElected(member_id=member_id):
            check(member_id in group.members, f"leader {member_id} is not a member")
            return replace(group, leader=member_id)
        case _:
            assert_never(event)


def _enter(group: Group, state: GroupState) -> Group:
    """Change the state, by a transition of the table only [GRP-2]."""
    allowed = PREVIOUS_STATES[state]
    check(group.state in allowed, f"group {group.group_id}: {group.state.value} -> {state.value}")
    return replace(group, state=state)


def _with_member(group: Group, member: Member) -> Group:
    return replace(group, members={**group.members, member.member_id: member})


def _without(mapping: Mapping[K, V], keys: frozenset[K]) -> Mapping[K, V]:
    return {key: value for key, value in mapping.items() if key not in keys}


def _member_added(group: Group, event: MemberAdded) -> Group:
    member = event.member
    check(member.member_id not in group.members, f"{member.member_id} is a member already")
    pending = _without(group.pending_members, frozenset({member.member_id}))
    initial = group.join_timer is not None and group.join_timer.is_initial
    return replace(
        _with_member(group, member),
        protocol_type=group.protocol_type if group.members else event.protocol_type,
        leader=group.leader or member.member_id,
        pending_members=pending,
        new_member_added=group.new_member_added or initial,
    )


def _members_removed(group: Group, gone: frozenset[MemberId]) -> Group:
    members = _without(group.members, gone)
    leader = group.leader if group.leader in members else next(iter(members), None)
    pending_sync = group.pending_sync - gone
    return replace(
        group,
        members=members,
        leader=leader,
        pending_members=_without(group.pending_members, gone),
        pending_sync=pending_sync,
        sync_deadline_ms=group.sync_deadline_ms if pending_sync else None,
    )


def _generation_started(group: Group, event: GenerationStarted) -> Group:
    check(event.generation == group.generation + 1, "generations count up by one [GRP-5]")
    group = _enter(group, GroupState.COMPLETING_REBALANCE)
    members = {
        member_id: replace(
            member,
            awaiting_join=None,
            is_new=False,
            assignment=NOTHING,
            session_deadline_ms=event.now.deadline(member.session_timeout_ms),
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
        new_member_added=False,
        pending_sync=frozenset(members),
        sync_deadline_ms=event.sync_deadline_ms,
    )


def _syncs_answered(
    members: Mapping[MemberId, Member], deadlines: Mapping[MemberId, DeadlineMs]
) -> Mapping[MemberId, Member]:
    return {
        member_id: (
            replace(member, awaiting_sync=None, session_deadline_ms=deadlines[member_id])
            if member_id in deadlines
            else member
        )
        for member_id, member in members.items()
    }


def _stored(group: Group | None, event: GroupStored) -> Group:
    """Return the group as of a completed generation; on replay just that, live with running sessions."""
    state = GroupState.STABLE if event.members else GroupState.EMPTY
    live = group or Group(group_id=event.group_id)
    if group is not None and group.members:
        check(event.generation >= group.generation, "generations never go back [GRP-5]")
    return replace(
        live,
        state=state,
        state_timestamp_ms=event.state_timestamp_ms,
        generation=event.generation,
        protocol_type=event.protocol_type,
        protocol_name=event.protocol_name,
        leader=event.leader,
        members={
            stored.member_id: _member_of(stored, live.members.get(stored.member_id), event.protocol_name)
            for stored in event.members
        },
        join_timer=None,
        new_member_added=False,
    )


def _member_of(stored: StoredMember, known: Member | None, protocol_name: str | None) -> Member:
    """Return the member as stored, with the session and offers of the live member, if there is one."""
    offers = () if known is None else known.protocols
    chosen = ProtocolChoice(protocol_name or "", stored.subscription)
    return Member(
        member_id=stored.member_id,
        instance_id=stored.instance_id,
        client_id=stored.client_id,
        client_host=stored.client_host,
        rebalance_timeout_ms=stored.rebalance_timeout_ms,
        session_timeout_ms=stored.session_timeout_ms,
        protocols=offers if chosen in offers else (chosen,),
        # For a member found by replay, GroupRevived sets it.
        session_deadline_ms=DeadlineMs(0) if known is None else known.session_deadline_ms,
        assignment=stored.assignment,
        awaiting_join=None if known is None else known.awaiting_join,
        awaiting_sync=None if known is None else known.awaiting_sync,
    )


def _removed(group: Group | None) -> Group | None:
    """Remove the group for a tombstone; remaining offsets make it a simple group."""
    if group is None or not (group.offsets or group.pending_offsets):
        return None
    return Group(group_id=group.group_id, offsets=group.offsets, pending_offsets=group.pending_offsets)


def _committed(group: Group, event: OffsetsCommitted, at: Offset | None) -> Group:
    placed = {
        partition: offset if at is None else replace(offset, record_offset=Offset(at + index))
        for index, (partition, offset) in enumerate(event.offsets.items())
    }
    producer_id = event.producer_id
    if producer_id is None:
        return replace(group, offsets={**group.offsets, **placed})
    pending = {**group.pending_offsets.get(producer_id, {}), **placed}
    return replace(group, pending_offsets={**group.pending_offsets, producer_id: pending})


def _offsets_deleted(group: Group, partitions: tuple[TopicPartition, ...]) -> Group:
    """Delete offsets, pending ones too: the deletion is later in the log than they are."""
    gone = frozenset(partitions)
    pending = {
        producer_id: left
        for producer_id, offsets in group.pending_offsets.items()
        if (left := _without(offsets, gone))
    }
    return replace(group, offsets=_without(group.offsets, gone), pending_offsets=pending)


def _transaction_ended(group: Group, producer_id: ProducerId, committed: bool) -> Group:
    """Commit or drop pending offsets. Of two commits the later append wins (KAFKA-5247)."""
    pending = group.pending_offsets.get(producer_id)
    if pending is None:
        return group
    group = replace(group, pending_offsets=_without(group.pending_offsets, frozenset({producer_id})))
    if not committed:
        return group
    offsets = dict(group.offsets)
    for partition, offset in pending.items():
        before = offsets.get(partition)
        if before is None or (before.record_offset or 0) < (offset.record_offset or 0):
            offsets[partition] = offset
    return replace(group, offsets=offsets)
