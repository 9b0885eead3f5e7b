"""The join phase of a rebalance: from a change of members to a new generation.

Every function takes a Draft, emits events and answers parked requests. They call each other as in Kafka:

    member added, updated   -> rebalance_or_complete
    member gone             -> rebalance_or_complete, or complete_if_all_joined while preparing
    rebalance_or_complete   -> prepare, or complete_if_all_joined
    prepare                 -> complete_join_phase when all members are parked already
    timer                   -> complete_join_phase, or another slice of the initial delay
"""

from typing import Final

from tallystick.broker.group.machine.commands import JoinGroupMember, JoinGroupResult
from tallystick.broker.group.machine.draft import GroupDraft, build_group_stored
from tallystick.broker.group.machine.events import (
    GenerationStarted,
    JoinTimerChanged,
    LeaderElected,
    MembersRemoved,
    RebalancePrepared,
    SyncsAnswered,
)
from tallystick.broker.group.machine.model import (
    PREVIOUS_STATES,
    ClassicGroup,
    ClassicGroupMember,
    Generation,
    GroupState,
    InstanceId,
    JoinTimer,
)
from tallystick.kernel.check import require
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import MemberId

# Minimum wait when only absent static members are left: a member may have asked for a rebalance
# timeout of 0.
REJOIN_WAIT_MS_MIN: Final = 1_000

REBALANCE_IN_PROGRESS: Final = Reject(ErrorCode.REBALANCE_IN_PROGRESS, "the group is rebalancing; join again")


def check_member(
    group: ClassicGroup, member_id: MemberId, instance_id: InstanceId | None
) -> ClassicGroupMember | Reject:
    """Return the member that sent a request; of a static member only the latest member id is valid.

    Source: KIP-345, fencing of duplicate members.
    Rejects with: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID.
    """
    member = group.members.get(member_id)
    if instance_id is not None and (member is None or member.instance_id != instance_id):
        owner = group.find_static_member(instance_id)
        if owner is None:
            return Reject(
                ErrorCode.UNKNOWN_MEMBER_ID,
                f"group {group.group_id} has no member with group.instance.id {instance_id}; join again",
            )
        return Reject(
            ErrorCode.FENCED_INSTANCE_ID,
            f"group.instance.id {instance_id} belongs to member {owner.member_id}, not to {member_id}; close"
            " this member if another one runs under its id",
        )
    if member is None:
        return Reject(
            ErrorCode.UNKNOWN_MEMBER_ID,
            f"group {group.group_id} has no member {member_id}: its session has expired or it has left; join"
            " again",
        )
    return member


def check_generation(group: ClassicGroup, generation: int) -> Reject | None:
    if generation == group.generation:
        return None
    return Reject(
        ErrorCode.ILLEGAL_GENERATION,
        f"the request has generation {generation}, but group {group.group_id} is at {group.generation}; join"
        " again",
    )


def list_members(group: ClassicGroup) -> tuple[JoinGroupMember, ...]:
    """Return all members, for the leader's assignment."""
    return tuple(
        JoinGroupMember(
            member_id=member.member_id,
            instance_id=member.instance_id,
            metadata=member.find_metadata(group.protocol_name) or b"",
        )
        for member in group.members.values()
    )


def build_join_result(group: ClassicGroup, member_id: MemberId) -> JoinGroupResult:
    """Return the answer to a JoinGroup for the current generation; the leader's includes the members."""
    leads = group.leader_id == member_id
    return JoinGroupResult(
        member_id=member_id,
        generation=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        leader_id=group.leader_id,
        members=list_members(group) if leads else (),
    )


def rebalance_or_complete(draft: GroupDraft) -> None:
    """Start a rebalance if the state allows it; otherwise complete the running one if all have joined."""
    if draft.group.state in PREVIOUS_STATES[GroupState.PREPARING_REBALANCE]:
        prepare_rebalance(draft)
    else:
        complete_if_all_joined(draft)


def prepare_rebalance(draft: GroupDraft) -> None:
    """Begin the join phase.

    Members that wait for an assignment have to join again. The first rebalance of an empty group waits a
    little, so that consumers started together are assigned together (KIP-134).
    """
    group, env = draft.group, draft.env
    if group.state is GroupState.COMPLETING_REBALANCE:
        reject_pending_syncs(draft, REBALANCE_IN_PROGRESS)
    # KIP-134: the first rebalance waits for more members, each newcomer extends it, up to the rebalance
    # timeout.
    if group.state is GroupState.EMPTY:
        delay_ms = env.config.group_initial_rebalance_delay_ms
        timer = JoinTimer(
            deadline_ms=env.now.deadline_after(delay_ms),
            delay_ms=delay_ms,
            extension_left_ms=max(group.rebalance_timeout_ms - delay_ms, 0),
        )
    else:
        # KIP-62: members have the largest of their rebalance timeouts to finish their work and rejoin.
        timer = JoinTimer(deadline_ms=env.now.deadline_after(group.rebalance_timeout_ms))
    draft.emit(RebalancePrepared(state_timestamp_ms=env.now.wall_ms, join_timer=timer))
    complete_if_all_joined(draft)


def reject_pending_syncs(draft: GroupDraft, refusal: Reject) -> None:
    """Answer every parked SyncGroup with `refusal`, and restart the sessions of those members."""
    members = [member for member in draft.group.members.values() if member.awaiting_sync is not None]
    for member in members:
        draft.answer_parked(member.awaiting_sync, refusal)
    if members:
        now = draft.env.now
        deadlines = {member.member_id: now.deadline_after(member.session_timeout_ms) for member in members}
        draft.emit(SyncsAnswered(session_deadlines_ms=deadlines))


def complete_if_all_joined(draft: GroupDraft) -> None:
    """End the join phase early when no member is missing; the initial delay is never cut short."""
    group = draft.group
    is_preparing = group.state is GroupState.PREPARING_REBALANCE
    initial = group.join_timer is not None and group.join_timer.is_initial
    if is_preparing and not initial and group.have_all_joined:
        complete_join_phase(draft)


def end_or_extend_join_phase(draft: GroupDraft) -> None:
    """Start one more slice of the initial delay, or end the phase: the join timer fired."""
    timer = require(draft.group.join_timer, "a join phase has a timer")
    if timer.delay_ms is None or not draft.group.has_new_member or not timer.extension_left_ms:
        complete_join_phase(draft)
        return
    delay_ms = min(draft.env.config.group_initial_rebalance_delay_ms, timer.extension_left_ms)
    remaining_ms = max(timer.extension_left_ms - timer.delay_ms, 0)
    deadline = draft.env.now.deadline_after(delay_ms)
    draft.emit(
        JoinTimerChanged(
            join_timer=JoinTimer(deadline_ms=deadline, delay_ms=delay_ms, extension_left_ms=remaining_ms)
        )
    )


def complete_join_phase(draft: GroupDraft) -> None:
    """End the join phase: drop missing members, elect a leader, start the next generation.

    Missing static members stay: their session timeout decides, not the rebalance (KIP-345).
    """
    missing = tuple(
        member.member_id
        for member in draft.group.members.values()
        if member.awaiting_join is None and not member.is_static
    )
    if missing:
        draft.emit(MembersRemoved(member_ids=missing))
    group, env = draft.group, draft.env
    if not group.members:
        draft.emit(
            build_group_stored(
                group,
                generation=Generation(group.generation + 1),
                state_timestamp_ms=env.now.wall_ms,
            )
        )
        return
    if not _elect_joined_leader(draft):
        # KIP-345: only absent static members are left: wait for one, or for their sessions to end.
        deadline = env.now.deadline_after(max(group.rebalance_timeout_ms, REJOIN_WAIT_MS_MIN))
        draft.emit(JoinTimerChanged(join_timer=JoinTimer(deadline_ms=deadline)))
        return
    _start_generation(draft)


def _elect_joined_leader(draft: GroupDraft) -> bool:
    group = draft.group
    leader = group.members.get(group.leader_id) if group.leader_id is not None else None
    if leader is not None and leader.awaiting_join is not None:
        return True
    present = next((m for m in group.members.values() if m.awaiting_join is not None), None)
    if present is None:
        return False
    draft.emit(LeaderElected(member_id=present.member_id))
    return True


def _start_generation(draft: GroupDraft) -> None:
    group, env = draft.group, draft.env
    protocol = require(
        group.select_protocol(), f"group {group.group_id}: members without a common protocol were let in"
    )
    tickets = [(member.member_id, member.awaiting_join) for member in group.members.values()]
    draft.emit(
        GenerationStarted(
            generation=Generation(group.generation + 1),
            protocol_name=protocol,
            now=env.now,
            sync_deadline_ms=env.now.deadline_after(group.rebalance_timeout_ms),
        )
    )
    for member_id, ticket in tickets:
        draft.answer_parked(ticket, build_join_result(draft.group, member_id))


def remove_members(draft: GroupDraft, member_ids: tuple[MemberId, ...], reason: str) -> None:
    """Remove members. Parked ones are answered UNKNOWN_MEMBER_ID, so that a live client joins again."""
    refusal = Reject(ErrorCode.UNKNOWN_MEMBER_ID, reason)
    for member_id in member_ids:
        member = draft.group.members.get(member_id)
        if member is not None:
            draft.answer_parked(member.awaiting_join, refusal)
            draft.answer_parked(member.awaiting_sync, refusal)
    draft.emit(MembersRemoved(member_ids=member_ids))
