"""Removal of members, by LeaveGroup or by timeout."""

from tallystick.broker.group.machine.commands import (
    DONE,
    ExpireSession,
    GroupEnv,
    GroupStep,
    LeaveGroup,
    LeaveGroupResult,
    LeavingMember,
)
from tallystick.broker.group.machine.draft import GroupDraft
from tallystick.broker.group.machine.events import SessionsStarted
from tallystick.broker.group.machine.expiry import find_session_deadline
from tallystick.broker.group.machine.model import ClassicGroup, GroupState
from tallystick.broker.group.machine.rebalance import (
    check_member,
    complete_if_all_joined,
    complete_join_phase,
    end_or_extend_join_phase,
    prepare_rebalance,
    rebalance_or_complete,
    remove_members,
)
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import MemberId

EMPTY_STEP = GroupStep(reply=DONE)


def decide_leave_group(group: ClassicGroup | None, command: LeaveGroup, env: GroupEnv) -> GroupStep | Reject:
    """Remove several members; each has its own outcome, and at most one rebalance follows."""
    if group is None:
        return GroupStep(reply=LeaveGroupResult(errors=(ErrorCode.UNKNOWN_MEMBER_ID,) * len(command.members)))
    draft = GroupDraft(group, env)
    outcomes: list[ErrorCode | None] = []
    for identity in command.members:
        member_id = _find_leaving_member(draft.group, identity)
        if isinstance(member_id, Reject):
            outcomes.append(member_id.code)
            continue
        outcomes.append(None)
        remove_members(draft, (member_id,), f"left the group: {identity.reason or 'no reason given'}")
    if None in outcomes:
        match draft.group.state:
            case GroupState.STABLE | GroupState.COMPLETING_REBALANCE:
                # A pending id does not belong to this generation, but Kafka starts a rebalance
                # when it leaves, too, and clients may count on it.
                rebalance_or_complete(draft)
            case GroupState.PREPARING_REBALANCE:
                complete_if_all_joined(draft)
            case GroupState.EMPTY | GroupState.DEAD:
                pass
    return draft.build_step(LeaveGroupResult(errors=tuple(outcomes)))


def _find_leaving_member(group: ClassicGroup, identity: LeavingMember) -> MemberId | Reject:
    """Find the member that is leaving. An administrator may name the instance alone (KIP-345)."""
    if identity.member_id is None:
        owner = group.find_static_member(identity.instance_id) if identity.instance_id is not None else None
        if owner is None:
            return Reject(
                ErrorCode.UNKNOWN_MEMBER_ID,
                f"the group has no member with group.instance.id {identity.instance_id}",
            )
        return owner.member_id
    if identity.member_id in group.pending_members:
        return identity.member_id
    member = check_member(group, identity.member_id, identity.instance_id)
    return member if isinstance(member, Reject) else member.member_id


def decide_session_timeout(group: ClassicGroup | None, command: ExpireSession, env: GroupEnv) -> GroupStep:
    """End a session, or a pending id; the deadline is checked again, as it may have been extended."""
    if group is None:
        return EMPTY_STEP
    deadline = find_session_deadline(group, command.member_id)
    if deadline is None or deadline > env.now.monotonic_ms:
        return EMPTY_STEP
    draft = GroupDraft(group, env)
    was_member = command.member_id in group.members
    remove_members(draft, (command.member_id,), "the session timed out")
    if was_member and group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
        rebalance_or_complete(draft)
    elif group.state is GroupState.PREPARING_REBALANCE and draft.group.have_all_joined:
        # Unlike a join or a leave, a session timeout may also cut the initial delay short, as in Kafka.
        complete_join_phase(draft)
    return draft.build_step(DONE)


def decide_join_timeout(group: ClassicGroup | None, env: GroupEnv) -> GroupStep:
    """End the join phase, or add a slice to the initial delay (KIP-62, KIP-134)."""
    timer = group.join_timer if group is not None else None
    if group is None or timer is None or timer.deadline_ms > env.now.monotonic_ms:
        return EMPTY_STEP
    draft = GroupDraft(group, env)
    end_or_extend_join_phase(draft)
    return draft.build_step(DONE)


def decide_sync_timeout(group: ClassicGroup | None, env: GroupEnv) -> GroupStep:
    """Remove members that joined and never sent SyncGroup, and rebalance without them."""
    deadline = group.sync_deadline_ms if group is not None else None
    if group is None or deadline is None or deadline > env.now.monotonic_ms:
        return EMPTY_STEP
    draft = GroupDraft(group, env)
    late = tuple(member_id for member_id in group.members if member_id in group.pending_sync_members)
    remove_members(draft, late, "no SyncGroup within the rebalance timeout")
    prepare_rebalance(draft)
    return draft.build_step(DONE)


def decide_start_sessions(group: ClassicGroup | None, env: GroupEnv) -> GroupStep:
    """Start the sessions after replay; a group larger than group.max.size has to rebalance."""
    if group is None:
        return EMPTY_STEP
    draft = GroupDraft(group, env)
    draft.emit(SessionsStarted(now=env.now))
    if group.state is GroupState.STABLE and len(group.members) > env.config.group_max_size:
        prepare_rebalance(draft)
    return draft.build_step(DONE)
