"""JoinGroup: admission of members.

no member id, dynamic   version 4+: the client gets an id, nothing else (KIP-394); before: a member
no member id, static    a new member, or the instance's next incarnation, which fences the old (KIP-345)
pending id              becomes a member
id of a member          joins again; whether that rebalances depends on state and offers
"""

from tallystick.broker.group.machine.commands import GroupEnv, GroupStep, JoinGroup, MemberIdRequired
from tallystick.broker.group.machine.draft import GroupDraft, build_group_stored
from tallystick.broker.group.machine.events import (
    MemberAdded,
    MemberIdAssigned,
    MemberReplaced,
    MembersRemoved,
    MemberUpdated,
    SyncsAnswered,
)
from tallystick.broker.group.machine.model import (
    ClassicGroup,
    ClassicGroupMember,
    GroupState,
    InstanceId,
    Ticket,
)
from tallystick.broker.group.machine.rebalance import (
    REBALANCE_IN_PROGRESS,
    build_join_result,
    check_member,
    complete_if_all_joined,
    list_members,
    prepare_rebalance,
    rebalance_or_complete,
)
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import MemberId
from tallystick.kernel.limits import CLIENT_ID_LOGGED_MAX, GROUP_INSTANCE_ID_LENGTH_MAX
from tallystick.kernel.value import replace


def decide_join_group(group: ClassicGroup | None, command: JoinGroup, env: GroupEnv) -> GroupStep | Reject:
    """Decide one JoinGroup.

    A group that does not exist is created by a member without an id, and stored empty before its first member
    is known, as in Kafka: later records presume it.

    Rejects with: INVALID_SESSION_TIMEOUT, INVALID_REQUEST, UNKNOWN_MEMBER_ID, INCONSISTENT_GROUP_PROTOCOL,
        GROUP_MAX_SIZE_REACHED, FENCED_INSTANCE_ID.
    """
    refusal = _check_session_timeout(command, env) or _check_instance_id(command)
    if refusal is not None:
        return refusal
    target = group or ClassicGroup(group_id=env.group_id, state_timestamp_ms=env.now.wall_ms)
    # KIP-394: the broker hands out member ids, so that an unknown one is of an expired session or group.
    if group is None and command.member_id is not None:
        return Reject(
            ErrorCode.UNKNOWN_MEMBER_ID, f"group {env.group_id} does not exist; join without a member id"
        )
    if not _has_room(target, command.member_id, env.config.group_max_size):
        return _reject_full(target, command, env)
    # Every member of a group must support one common protocol, or the leader could not assign to all of them.
    names = frozenset(protocol.name for protocol in command.protocols)
    if not target.supports_protocols(command.protocol_type, names):
        return Reject(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
            f"the member supports {command.protocol_type}:{sorted(names)}, but group {env.group_id} uses"
            f" {target.protocol_type}:{sorted(target.find_common_protocols())}; configure a common assignor",
        )
    draft = GroupDraft(target, env)
    if group is None:
        draft.emit(build_group_stored(target))
    if command.member_id is None:
        return _join_without_id(draft, command)
    if command.member_id in target.pending_members:
        if command.instance_id is not None:
            return Reject(
                ErrorCode.UNKNOWN_MEMBER_ID,
                "a static member cannot join with the member id of a dynamic one; join without a member id",
            )
        return _add_member(draft, command, command.member_id)
    member = check_member(target, command.member_id, command.instance_id)
    return member if isinstance(member, Reject) else _rejoin(draft, command, member)


def _check_session_timeout(command: JoinGroup, env: GroupEnv) -> Reject | None:
    low, high = env.config.group_min_session_timeout_ms, env.config.group_max_session_timeout_ms
    if low <= command.session_timeout_ms <= high:
        return None
    return Reject(
        ErrorCode.INVALID_SESSION_TIMEOUT,
        f"session.timeout.ms is {command.session_timeout_ms}; the broker allows {low} to {high}",
    )


def _check_instance_id(command: JoinGroup) -> Reject | None:
    """Limit the length of an instance id, which becomes part of member ids and of the log.

    Kafka checks it in its clients only.
    """
    if command.instance_id is None or len(command.instance_id) <= GROUP_INSTANCE_ID_LENGTH_MAX:
        return None
    return Reject(
        ErrorCode.INVALID_REQUEST,
        f"group.instance.id has {len(command.instance_id)} characters; at most"
        f" {GROUP_INSTANCE_ID_LENGTH_MAX} are allowed",
    )


def _has_room(group: ClassicGroup, member_id: MemberId | None, group_max_size: int) -> bool:
    """Check group.max.size. While members rejoin, the first `most` to arrive are kept, old or new."""
    member = group.members.get(member_id) if member_id is not None else None
    match group.state:
        case GroupState.EMPTY | GroupState.DEAD:
            return True
        case GroupState.PREPARING_REBALANCE:
            is_waiting = member is not None and member.awaiting_join is not None
            return is_waiting or group.awaiting_join_count < group_max_size
        case GroupState.COMPLETING_REBALANCE | GroupState.STABLE:
            return member is not None or len(group.members) < group_max_size


def _reject_full(group: ClassicGroup, command: JoinGroup, env: GroupEnv) -> GroupStep | Reject:
    refusal = Reject(
        ErrorCode.GROUP_MAX_SIZE_REACHED,
        f"group {group.group_id} has {env.config.group_max_size} members, as many as group.max.size allows",
    )
    member_id = command.member_id
    if member_id is None or not (member_id in group.members or member_id in group.pending_members):
        return refusal
    draft = GroupDraft(group, env)
    draft.emit(MembersRemoved(member_ids=(member_id,)))
    complete_if_all_joined(draft)
    return draft.build_step(refusal)


def _join_without_id(draft: GroupDraft, command: JoinGroup) -> GroupStep:
    client_id = command.client_id[:CLIENT_ID_LOGGED_MAX]
    prefix = command.instance_id if command.instance_id is not None else client_id
    new_id = MemberId(f"{prefix}-{draft.env.member_id_suffix}")
    # KIP-345: an instance that joins without an id is the next incarnation, and takes the place of the
    # former.
    if command.instance_id is not None:
        owner = draft.group.find_static_member(command.instance_id)
        return (
            _replace_static_member(draft, command, owner, new_id)
            if owner
            else _add_member(draft, command, new_id)
        )
    if not command.requires_known_member_id:
        return _add_member(draft, command, new_id)
    # KIP-394: no state is held for a member until it has proved that it received its id.
    deadline = draft.env.now.deadline_after(command.session_timeout_ms)
    draft.emit(MemberIdAssigned(member_id=new_id, deadline_ms=deadline))
    return draft.build_step(MemberIdRequired(member_id=new_id))


def _add_member(draft: GroupDraft, command: JoinGroup, member_id: MemberId) -> GroupStep:
    """Add a new member, parked. It cannot heartbeat before its answer, so its limit is longer."""
    env = draft.env
    member = ClassicGroupMember(
        member_id=member_id,
        instance_id=command.instance_id,
        client_id=command.client_id,
        client_host=command.client_host,
        rebalance_timeout_ms=command.rebalance_timeout_ms,
        session_timeout_ms=command.session_timeout_ms,
        supported_protocols=command.protocols,
        session_deadline_ms=env.now.deadline_after(env.config.new_member_join_timeout_ms),
        is_new=True,
        awaiting_join=command.ticket,
    )
    draft.emit(MemberAdded(member=member, protocol_type=command.protocol_type))
    rebalance_or_complete(draft)
    return draft.build_step(None, own=command.ticket)


def _rejoin(draft: GroupDraft, command: JoinGroup, member: ClassicGroupMember) -> GroupStep | Reject:
    group = draft.group
    same_offers = member.supported_protocols == command.protocols
    is_preparing = group.state is GroupState.PREPARING_REBALANCE
    # As in Kafka, a leader that rejoins a stable group rebalances it: topics it watches may have changed.
    assigns_anew = group.state is GroupState.STABLE and group.leader_id == member.member_id
    if same_offers and not is_preparing and not assigns_anew:
        # The member probably missed the answer, and gets it again.
        return draft.build_step(build_join_result(group, member.member_id))
    _update_member(draft, command, member, command.ticket)
    rebalance_or_complete(draft)
    return draft.build_step(None, own=command.ticket)


def _update_member(
    draft: GroupDraft, command: JoinGroup, member: ClassicGroupMember, ticket: Ticket | None
) -> None:
    """Take over the member's new request; its older parked request is answered, not lost."""
    draft.answer_parked(member.awaiting_join, REBALANCE_IN_PROGRESS)
    draft.emit(
        MemberUpdated(
            member_id=member.member_id,
            protocols=command.protocols,
            rebalance_timeout_ms=command.rebalance_timeout_ms,
            session_timeout_ms=command.session_timeout_ms,
            ticket=ticket,
        )
    )


def _replace_static_member(
    draft: GroupDraft, command: JoinGroup, owner: ClassicGroupMember, new_id: MemberId
) -> GroupStep:
    """Give the place, and the assignment, of a static member to its next incarnation.

    If the group is Stable and would choose the same protocol there is no rebalance; the new id is stored and
    answered.

    Source: KIP-345; KIP-814 for the leader's answer.
    """
    group, env = draft.group, draft.env
    old_leader = group.leader_id
    _fence_static_member(draft, owner)
    draft.emit(
        MemberReplaced(
            old_member_id=owner.member_id,
            new_member_id=new_id,
            session_deadline_ms=env.now.deadline_after(command.session_timeout_ms),
        )
    )
    successor = draft.group.members[new_id]
    if group.state is not GroupState.STABLE:
        _update_member(draft, command, successor, command.ticket)
        if group.state is GroupState.COMPLETING_REBALANCE:
            # KIP-345: the leader may be assigning to the old id right now: that assignment would reach no
            # member.
            prepare_rebalance(draft)
        else:
            complete_if_all_joined(draft)
        return draft.build_step(None, own=command.ticket)
    _update_member(draft, command, successor, None)
    # KIP-345: no rebalance for a restart, unless the new incarnation changes the chosen protocol.
    if draft.group.select_protocol() != group.protocol_name:
        _update_member(draft, command, successor, command.ticket)
        rebalance_or_complete(draft)
        return draft.build_step(None, own=command.ticket)
    draft.emit(build_group_stored(draft.group))
    answer = build_join_result(draft.group, new_id)
    # KIP-814: a leader that restarted gets its members back, and learns that they are assigned already.
    if command.supports_skip_assignment:
        leads = draft.group.leader_id == new_id
        members = list_members(draft.group) if leads else ()
        return draft.build_step(replace(answer, members=members, skip_assignment=leads))
    # An older client must not believe it is the leader, or it would assign: it gets the old leader's id.
    return draft.build_step(replace(answer, members=(), leader_id=old_leader))


def _fence_static_member(draft: GroupDraft, owner: ClassicGroupMember) -> None:
    """Answer FENCED_INSTANCE_ID to all parked requests of the old incarnation."""
    instance: InstanceId | None = owner.instance_id
    refusal = Reject(
        ErrorCode.FENCED_INSTANCE_ID,
        f"another member joined as {instance}, so {owner.member_id} is fenced; close this member",
    )
    draft.answer_parked(owner.awaiting_join, refusal)
    draft.answer_parked(owner.awaiting_sync, refusal)
    if owner.awaiting_sync is not None:
        now = draft.env.now
        deadlines = {owner.member_id: now.deadline_after(owner.session_timeout_ms)}
        draft.emit(SyncsAnswered(session_deadlines_ms=deadlines))
