"""SyncGroup and Heartbeat: assignments of a generation, and liveness of its members."""

from tallystick.broker.group.machine.commands import (
    DONE,
    GroupEnv,
    GroupStep,
    Heartbeat,
    SyncGroup,
    SyncGroupResult,
)
from tallystick.broker.group.machine.draft import GroupDraft, build_group_stored
from tallystick.broker.group.machine.events import SessionExtended, SyncReceived, SyncsAnswered
from tallystick.broker.group.machine.model import ClassicGroup, ClassicGroupMember, GroupState
from tallystick.broker.group.machine.rebalance import REBALANCE_IN_PROGRESS, check_generation, check_member
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import MemberId


def decide_sync_group(group: ClassicGroup | None, command: SyncGroup, env: GroupEnv) -> GroupStep | Reject:
    """Park until the leader has assigned; the leader's own request answers all.

    The assignment is stored before any member gets it: after a restart every member finds its generation
    again.

    Rejects with: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION,
        INCONSISTENT_GROUP_PROTOCOL, REBALANCE_IN_PROGRESS.
    """
    if group is None or group.state is GroupState.EMPTY:
        return Reject(ErrorCode.UNKNOWN_MEMBER_ID, f"group {env.group_id} has no members; join again")
    member = check_member(group, command.member_id, command.instance_id)
    if isinstance(member, Reject):
        return member
    refusal = check_generation(group, command.generation) or _check_protocol(group, command)
    if refusal is not None:
        return refusal
    if group.state is GroupState.PREPARING_REBALANCE:
        return REBALANCE_IN_PROGRESS
    draft = GroupDraft(group, env)
    # The assignment exists: a member whose answer was lost gets it again.
    if group.state is GroupState.STABLE:
        draft.emit(SyncReceived(member_id=member.member_id, ticket=None))
        return draft.build_step(_build_sync_result(group, member))
    draft.answer_parked(member.awaiting_sync, REBALANCE_IN_PROGRESS)
    draft.emit(SyncReceived(member_id=member.member_id, ticket=command.ticket))
    if group.leader_id == member.member_id:
        _store_assignment(draft, dict(command.assignments))
    return draft.build_step(None, own=command.ticket)


def _check_protocol(group: ClassicGroup, command: SyncGroup) -> Reject | None:
    """Refuse a member that names another protocol: it must not get this one's bytes (KIP-559)."""
    for claimed, actual in (
        (command.protocol_type, group.protocol_type),
        (command.protocol_name, group.protocol_name),
    ):
        if claimed is not None and actual is not None and claimed != actual:
            return Reject(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                f"the member names protocol {claimed}, but the group uses {actual}; join again",
            )
    return None


def _build_sync_result(group: ClassicGroup, member: ClassicGroupMember) -> SyncGroupResult:
    return SyncGroupResult(
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        assignment=member.assignment,
    )


def _store_assignment(draft: GroupDraft, assignments: dict[MemberId, bytes]) -> None:
    """Store the assignment; a member without one gets an empty one, unknown ids are ignored."""
    draft.emit(
        build_group_stored(draft.group, assignments=assignments, state_timestamp_ms=draft.env.now.wall_ms)
    )
    group, now = draft.group, draft.env.now
    members = [member for member in group.members.values() if member.awaiting_sync is not None]
    for member in members:
        draft.answer_parked(member.awaiting_sync, _build_sync_result(group, member))
    # Sessions of parked members did not run; they restart.
    deadlines = {member.member_id: now.deadline_after(member.session_timeout_ms) for member in members}
    draft.emit(SyncsAnswered(session_deadlines_ms=deadlines))


def decide_heartbeat(group: ClassicGroup | None, command: Heartbeat, env: GroupEnv) -> GroupStep | Reject:
    """Extend a session; while a rebalance waits for the member, answer REBALANCE_IN_PROGRESS.

    Rejects with: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION; answers
        REBALANCE_IN_PROGRESS, and still extends the session.
    """
    if group is None or group.state is GroupState.EMPTY:
        return Reject(ErrorCode.UNKNOWN_MEMBER_ID, f"group {env.group_id} has no members; join again")
    member = check_member(group, command.member_id, command.instance_id)
    if isinstance(member, Reject):
        return member
    refusal = check_generation(group, command.generation)
    if refusal is not None:
        return refusal
    draft = GroupDraft(group, env)
    deadline = env.now.deadline_after(member.session_timeout_ms)
    draft.emit(SessionExtended(member_id=member.member_id, session_deadline_ms=deadline))
    is_preparing = group.state is GroupState.PREPARING_REBALANCE
    return draft.build_step(REBALANCE_IN_PROGRESS if is_preparing else DONE)
