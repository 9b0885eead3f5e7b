"""State machine of one member of a classic consumer group. Pure; the consumer's engine carries it out.

    OUT         in no group
    PREPARING   must join; first gives up partitions it may no longer read, in a call of the user's
    JOINING     JoinGroup is to be sent, or was
    SYNCING     SyncGroup is to be sent, or was; the leader's has the assignment of all members
    SETTLING    has its assignment; takes it over in a call of the user's
    STABLE      reads, and sends heartbeats
    FAILED      will not be a member again: `failure` says why

    OUT -> PREPARING -> JOINING -> SYNCING -> SETTLING -> STABLE -> PREPARING -> ...

Eager members give up everything in PREPARING. Cooperative ones (all assignors cooperative) keep their
partitions while the group rebalances, give up in SETTLING those that are no longer theirs, and then join
again, so that these can be assigned to other members (KIP-429). A member that lost its generation does not
know which member reads its partitions now: it *loses* them instead of giving them up, since a commit would
be refused.

Callbacks run in PREPARING and SETTLING only, that is, while the user waits in `poll` [CLI-32]. The table
REACTIONS says what an error code does to the machine.

Source: AbstractCoordinator, ConsumerCoordinator; KIP-62 (poll interval), KIP-345 (static members), KIP-394
    (member id first), KIP-429, KIP-814.
"""

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final, assert_never

from tallystick.client.consumer.assignors.assign import ASSIGNORS, Assignor
from tallystick.client.consumer.assignors.subscription import (
    MemberData,
    PartitionRacks,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from tallystick.client.errors.rules import find_rule
from tallystick.kernel.check import check
from tallystick.kernel.codes import ErrorCode as E
from tallystick.kernel.errors import Remedy
from tallystick.kernel.ids import GroupId, MemberId, TopicPartition
from tallystick.kernel.value import Value, replace
from tallystick.protocol.messages.groups.membership import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    JoinGroupResponseMember,
    LeaveGroupRequest,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)

PartitionSet = frozenset[TopicPartition]

PROTOCOL_TYPE: Final = "consumer"
NO_MEMBER_ID: Final = MemberId("")
NO_PARTITIONS: Final[PartitionSet] = frozenset()
REVOKE_AND_REJOIN_REASON: Final = "need to revoke partitions and re-join"
_REASON_MAX: Final = 255


class Phase(Enum):
    OUT = auto()
    PREPARING = auto()
    JOINING = auto()
    SYNCING = auto()
    SETTLING = auto()
    STABLE = auto()
    FAILED = auto()


class ErrorReaction(Enum):
    """Effect of an error code on a member."""

    RETRY = "the same request again"
    FIND_COORDINATOR = "the same request again, to the current coordinator"
    ADOPT_MEMBER_ID = "the coordinator gave an id: join again under it"
    REJOIN = "join again; id and generation still hold"
    RESET_GENERATION = "the generation is gone, and what was read in it; the id still holds"
    RESET_MEMBER_ID = "no member has this id; what was read is lost"
    FAIL = "trying again cannot help"


# Other codes follow the client's retry rules: retry, find the coordinator, or fail.
REACTIONS: Final = {
    ("JoinGroup", E.MEMBER_ID_REQUIRED): ErrorReaction.ADOPT_MEMBER_ID,
    ("JoinGroup", E.UNKNOWN_MEMBER_ID): ErrorReaction.RESET_MEMBER_ID,
    ("JoinGroup", E.ILLEGAL_GENERATION): ErrorReaction.RESET_GENERATION,
    ("JoinGroup", E.REBALANCE_IN_PROGRESS): ErrorReaction.RETRY,
    ("SyncGroup", E.REBALANCE_IN_PROGRESS): ErrorReaction.REJOIN,
    ("SyncGroup", E.UNKNOWN_MEMBER_ID): ErrorReaction.RESET_MEMBER_ID,
    ("SyncGroup", E.ILLEGAL_GENERATION): ErrorReaction.RESET_GENERATION,
    ("Heartbeat", E.REBALANCE_IN_PROGRESS): ErrorReaction.REJOIN,
    ("Heartbeat", E.UNKNOWN_MEMBER_ID): ErrorReaction.RESET_MEMBER_ID,
    ("Heartbeat", E.ILLEGAL_GENERATION): ErrorReaction.RESET_GENERATION,
    ("OffsetCommit", E.REBALANCE_IN_PROGRESS): ErrorReaction.REJOIN,
    ("OffsetCommit", E.UNKNOWN_MEMBER_ID): ErrorReaction.RESET_MEMBER_ID,
    ("OffsetCommit", E.ILLEGAL_GENERATION): ErrorReaction.RESET_GENERATION,
}
_REACTION_BY_REMEDY: Final = {
    Remedy.RETRY: ErrorReaction.RETRY,
    Remedy.REFRESH: ErrorReaction.RETRY,
    Remedy.FIND_COORDINATOR: ErrorReaction.FIND_COORDINATOR,
}


def classify_error(api: str, code: int) -> ErrorReaction:
    """Return the effect of `code`, as an answer to `api`, on a member."""
    try:
        reaction = REACTIONS.get((api, E(code)))
    except ValueError:
        return ErrorReaction.FAIL
    return reaction or _REACTION_BY_REMEDY.get(find_rule(api, code).remedy, ErrorReaction.FAIL)


class GroupRebalanceConfig(Value, kw_only=True):
    """Settings that are fixed for a consumer's lifetime."""

    group_id: GroupId
    instance_id: str | None = None
    rack: str | None = None
    session_timeout_ms: int
    rebalance_timeout_ms: int  # max.poll.interval.ms
    assignors: tuple[Assignor, ...]

    @property
    def is_cooperative(self) -> bool:
        """Whether every assignor is cooperative: an eager one, if chosen, assumes that nothing is owned."""
        return all(assignor.is_cooperative for assignor in self.assignors)


class Membership(Value, kw_only=True):
    """State of a member.

    generation           of its last SyncGroup; None where it has none, or lost it
    topics               its subscription; `joined_topics` is that of its last join
    owned_partitions     partitions it reads
    assigned_partitions  partitions it is to read, while SETTLING
    previous_assignment  what assignors remember of its last assignment
    group_members        the members of the generation it leads, while SYNCING
    must_assign          False for a static leader that came back to a group whose assignments still hold
    assignment_snapshot  partitions of the group's topics when it assigned them; the leader looks for changes
    rejoin_reason        why it must join again, which it does when the running rebalance is over
    """

    phase: Phase = Phase.OUT
    member_id: MemberId = NO_MEMBER_ID
    generation: int | None = None
    protocol: str = ""
    topics: frozenset[str] = frozenset()
    joined_topics: frozenset[str] = frozenset()
    owned_partitions: PartitionSet = NO_PARTITIONS
    assigned_partitions: PartitionSet = NO_PARTITIONS
    previous_assignment: MemberData | None = None
    is_leader: bool = False
    group_members: tuple[JoinGroupResponseMember, ...] = ()
    must_assign: bool = True
    assignment_snapshot: PartitionRacks | None = None
    rejoin_reason: str | None = None
    failure: tuple[str, int] | None = None

    @property
    def needs_heartbeats(self) -> bool:
        """Whether the coordinator expects heartbeats."""
        return self.generation is not None and self.phase in _HEARTBEAT_PHASES

    @property
    def may_commit(self) -> bool:
        """Whether its coordinator accepts offsets: of a generation, or of a consumer outside the group."""
        return self.phase is Phase.OUT or self.generation is not None


_HEARTBEAT_PHASES: Final = frozenset({Phase.PREPARING, Phase.SETTLING, Phase.STABLE})


class AssignmentChange(Value, kw_only=True):
    """Arguments of the user's callbacks, in this order: revoked or lost, then added.

    added  None where no assignment was made; the callback runs even if it is empty
    """

    revoked: PartitionSet = NO_PARTITIONS
    lost: PartitionSet = NO_PARTITIONS
    added: PartitionSet | None = None

    @property
    def has_removals(self) -> bool:
        return bool(self.revoked or self.lost)


# ---------------------------------------------------------------------- calls of the user


def subscribe(member: Membership, topics: frozenset[str]) -> Membership:
    """Subscribe to these topics; join, or join again, if that is a change."""
    if member.phase is Phase.OUT:
        return replace(member, topics=topics, phase=Phase.PREPARING, rejoin_reason=None)
    subscriber = replace(member, topics=topics)
    return (
        subscriber
        if topics == member.joined_topics
        else _request_rejoin(subscriber, "the subscription changed")
    )


def leave(member: Membership) -> tuple[Membership, AssignmentChange]:
    """Leave the group. Static members stay in it, for the coordinator, until their session ends (KIP-345)."""
    change = (
        AssignmentChange(lost=member.owned_partitions)
        if member.phase is Phase.FAILED
        else _plan_removal(member, member.owned_partitions)
    )
    return Membership(previous_assignment=member.previous_assignment), change


def expire_member(member: Membership) -> Membership:
    """Leave the group: the user has not polled for too long (KIP-62)."""
    return _reset_generation(member, NO_MEMBER_ID) if member.needs_heartbeats else member


# ------------------------------------------------------------------------- rebalancing


def plan_revocation(member: Membership, settings: GroupRebalanceConfig) -> AssignmentChange:
    """Return the partitions that this PREPARING member must give up before it joins."""
    if settings.is_cooperative and member.generation is not None:
        # KIP-429: only topics no longer subscribed to; other partitions wait for the assignment.
        return AssignmentChange(
            revoked=frozenset(p for p in member.owned_partitions if p.topic not in member.topics)
        )
    return _plan_removal(member, member.owned_partitions)


def drop_partitions(member: Membership, change: AssignmentChange) -> Membership:
    """Stop reading the partitions of `change`, after the callbacks have run.

    A member that gave up partitions while SETTLING joins again, so that others can be assigned them.
    """
    remaining_member = replace(
        member, owned_partitions=member.owned_partitions - change.revoked - change.lost
    )
    return (
        _request_rejoin(remaining_member, REVOKE_AND_REJOIN_REASON)
        if remaining_member.phase is Phase.SETTLING
        else remaining_member
    )


def begin_join(member: Membership) -> Membership:
    """Go on to JOINING: no partition is left to be given up."""
    return replace(member, phase=Phase.JOINING, joined_topics=member.topics)


def apply_join_response(member: Membership, answer: JoinGroupResponse) -> Membership:
    """Apply a JoinGroup response without error."""
    return replace(
        member,
        phase=Phase.SYNCING,
        member_id=MemberId(answer.member_id),
        generation=answer.generation_id,
        protocol=answer.protocol_name or "",
        is_leader=answer.leader == answer.member_id,
        group_members=answer.members,
        # KIP-814: a static leader that returns need not assign again.
        must_assign=not answer.skip_assignment,
        rejoin_reason=None,
    )


def apply_sync_response(member: Membership, answer: SyncGroupResponse) -> Membership:
    """Apply a SyncGroup response without error.

    An assignment with topics that are no longer subscribed to is dropped; the member joins again.
    Raises: DecodeError.
    """
    partitions = frozenset(decode_assignment(answer.assignment))
    assigned_member = replace(member, phase=Phase.SETTLING, assigned_partitions=partitions, group_members=())
    if all(partition.topic in member.topics for partition in partitions):
        return assigned_member
    return replace(assigned_member, phase=Phase.PREPARING, assigned_partitions=NO_PARTITIONS)


def plan_assignment_change(member: Membership) -> AssignmentChange:
    """Return the changes that the new assignment brings for this SETTLING member."""
    return AssignmentChange(
        revoked=member.owned_partitions - member.assigned_partitions,
        added=member.assigned_partitions - member.owned_partitions,
    )


def take_over_assignment(member: Membership) -> Membership:
    """Take over the assignment; revoked partitions are given up already. The callbacks follow."""
    check(member.owned_partitions <= member.assigned_partitions, "what is assigned to others was given up")
    stable_member = replace(
        member,
        phase=Phase.STABLE,
        owned_partitions=member.assigned_partitions,
        assigned_partitions=NO_PARTITIONS,
        previous_assignment=MemberData(tuple(sorted(member.assigned_partitions)), member.generation),
    )
    if member.topics != member.joined_topics:
        return _request_rejoin(stable_member, "the subscription changed")
    return (
        stable_member
        if member.rejoin_reason is None
        else _request_rejoin(stable_member, member.rejoin_reason)
    )


def rejoin_if_topics_changed(member: Membership, topics: PartitionRacks) -> Membership:
    """Join again if the leader sees another number of partitions or other racks in the group's topics."""
    if not member.is_leader or member.assignment_snapshot is None or member.assignment_snapshot == topics:
        return member
    return _request_rejoin(member, "topics of the group changed")


# ------------------------------------------------------------------------------ errors


def apply_error(
    member: Membership, api: str, code: int, *, generation: int | None, member_id: str = ""
) -> Membership:
    """Apply an answer with an error code.

    Args:
        generation: the one the request was sent in: an answer from an earlier one is ignored.
        member_id: the member id in the JoinGroup response.
    """
    if api in _CONCURRENT_APIS and not (member.needs_heartbeats and member.generation == generation):
        return member
    reaction = classify_error(api, code)
    match reaction:
        case ErrorReaction.RETRY | ErrorReaction.FIND_COORDINATOR:
            # The generation of an interrupted SyncGroup may be over.
            return member if api != "SyncGroup" else _return_to_joining(member)
        # KIP-394: the coordinator gave a member id; the member joins again under it.
        case ErrorReaction.ADOPT_MEMBER_ID:
            return replace(member, member_id=MemberId(member_id))
        case ErrorReaction.REJOIN:
            return (
                _request_rejoin(member, "the group is rebalancing")
                if api in _CONCURRENT_APIS
                else _return_to_joining(member)
            )
        case ErrorReaction.RESET_GENERATION:
            return _reset_generation(member, member.member_id)
        case ErrorReaction.RESET_MEMBER_ID:
            return _reset_generation(member, NO_MEMBER_ID)
        case ErrorReaction.FAIL:
            return replace(member, phase=Phase.FAILED, failure=(api, code))
        case _:
            assert_never(reaction)


# Requests sent in parallel to rebalances: their answers may be outdated.
_CONCURRENT_APIS: Final = frozenset({"Heartbeat", "OffsetCommit"})


def handle_missing_response(member: Membership, api: str) -> Membership:
    """Handle a lost connection or a silent coordinator."""
    return _return_to_joining(member) if api == "SyncGroup" else member


def _request_rejoin(member: Membership, reason: str) -> Membership:
    """Join again: at once if STABLE, else when the running rebalance is over."""
    phase = Phase.PREPARING if member.phase is Phase.STABLE else member.phase
    return replace(member, phase=phase, rejoin_reason=reason)


def _return_to_joining(member: Membership) -> Membership:
    """Go back to JOINING; partitions that had to be given up are given up already."""
    return replace(member, phase=Phase.JOINING, group_members=(), assigned_partitions=NO_PARTITIONS)


def _reset_generation(member: Membership, member_id: MemberId) -> Membership:
    """Return a member without a generation: its partitions may belong to other members."""
    return replace(
        member,
        phase=Phase.PREPARING,
        member_id=member_id,
        generation=None,
        assigned_partitions=NO_PARTITIONS,
        group_members=(),
        is_leader=False,
        assignment_snapshot=None,
    )


def _plan_removal(member: Membership, partitions: PartitionSet) -> AssignmentChange:
    return (
        AssignmentChange(lost=partitions)
        if member.generation is None
        else AssignmentChange(revoked=partitions)
    )


# ---------------------------------------------------------------------------- requests


def build_join_request(member: Membership, settings: GroupRebalanceConfig) -> JoinGroupRequest:
    """Return JoinGroup with the subscription once per assignor, since each adds its own user data."""
    protocols = tuple(
        JoinGroupRequestProtocol(
            name=assignor.name,
            metadata=encode_subscription(
                Subscription(
                    topics=tuple(member.joined_topics),
                    owned=tuple(member.owned_partitions),
                    generation=member.generation,
                    rack=settings.rack,
                    user_data=assignor.user_data(member.previous_assignment),
                )
            ),
        )
        for assignor in settings.assignors
    )
    return JoinGroupRequest(
        group_id=settings.group_id,
        session_timeout_ms=settings.session_timeout_ms,
        rebalance_timeout_ms=settings.rebalance_timeout_ms,
        member_id=member.member_id,
        group_instance_id=settings.instance_id,
        protocol_type=PROTOCOL_TYPE,
        protocols=protocols,
        reason=(member.rejoin_reason or "joining")[:_REASON_MAX],
    )


def collect_group_topics(member: Membership) -> frozenset[str]:
    """Return all topics of the generation this member leads. Raises: DecodeError."""
    return frozenset(
        topic
        for group_member in member.group_members
        for topic in decode_subscription(group_member.metadata).topics
    )


def perform_assignment(
    member: Membership, settings: GroupRebalanceConfig, topics: PartitionRacks
) -> tuple[Membership, SyncGroupRequest]:
    """Return SyncGroup, with the assignment of all members if this member leads.

    Args:
        topics: all of `collect_group_topics` that exist.
    Raises: DecodeError for another member's subscription.
    """
    watching = replace(member, assignment_snapshot=topics if member.is_leader else None)
    if not member.group_members or not member.must_assign:
        return watching, build_sync_request(member, settings, {})
    subscriptions = {
        MemberId(group_member.member_id): decode_subscription(
            group_member.metadata, group_member.group_instance_id
        )
        for group_member in member.group_members
    }
    assignment = ASSIGNORS[member.protocol].assign(topics, subscriptions)
    assignment_bytes = {of: encode_assignment(partitions) for of, partitions in assignment.items()}
    return watching, build_sync_request(member, settings, assignment_bytes)


def build_sync_request(
    member: Membership, settings: GroupRebalanceConfig, assignments: Mapping[MemberId, bytes]
) -> SyncGroupRequest:
    return SyncGroupRequest(
        group_id=settings.group_id,
        generation_id=-1 if member.generation is None else member.generation,
        member_id=member.member_id,
        group_instance_id=settings.instance_id,
        protocol_type=PROTOCOL_TYPE,
        protocol_name=member.protocol,
        assignments=tuple(
            SyncGroupRequestAssignment(member_id=of, assignment=assignment_bytes)
            for of, assignment_bytes in assignments.items()
        ),
    )


def build_heartbeat_request(member: Membership, settings: GroupRebalanceConfig) -> HeartbeatRequest:
    return HeartbeatRequest(
        group_id=settings.group_id,
        generation_id=-1 if member.generation is None else member.generation,
        member_id=member.member_id,
        group_instance_id=settings.instance_id,
    )


def build_leave_request(
    member: Membership, settings: GroupRebalanceConfig, reason: str
) -> LeaveGroupRequest | None:
    """Return LeaveGroup; None for a static member (KIP-345), and for one that never had an id."""
    if settings.instance_id is not None or member.member_id == NO_MEMBER_ID:
        return None
    leaving = MemberIdentity(member_id=member.member_id, reason=reason[:_REASON_MAX])
    return LeaveGroupRequest(group_id=settings.group_id, members=(leaving,))
