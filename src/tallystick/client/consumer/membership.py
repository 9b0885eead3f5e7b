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

from tallystick.client.assignors.assign import ASSIGNORS, Assignor
from tallystick.client.assignors.racks import Topics
from tallystick.client.assignors.subscription import (
    Previous,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from tallystick.client.retry import rule_for
from tallystick.kernel.check import check
from tallystick.kernel.codes import ErrorCode as E
from tallystick.kernel.errors import Remedy
from tallystick.kernel.ids import GroupId, MemberId, TopicPartition
from tallystick.kernel.value import frozen, replace
from tallystick.protocol.messages.heartbeat import HeartbeatRequest
from tallystick.protocol.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    JoinGroupResponseMember,
)
from tallystick.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from tallystick.protocol.messages.sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)

Partitions = frozenset[TopicPartition]

PROTOCOL_TYPE: Final = "consumer"
NOBODY: Final = MemberId("")
NOTHING: Final[Partitions] = frozenset()
FREED: Final = "need to revoke partitions and re-join"
_REASON_MAX: Final = 255


class Phase(Enum):
    OUT = auto()
    PREPARING = auto()
    JOINING = auto()
    SYNCING = auto()
    SETTLING = auto()
    STABLE = auto()
    FAILED = auto()


class Reaction(Enum):
    """Effect of an error code on a member."""

    AGAIN = "the same request again"
    FIND_COORDINATOR = "the same request again, to whoever is the coordinator now"
    TAKE_ID = "the coordinator gave an id: join again under it"
    REJOIN = "join again; id and generation still hold"
    NEW_GENERATION = "the generation is gone, and what was read in it; the id still holds"
    NEW_MEMBER = "nobody by this id is a member; what was read is lost"
    FAIL = "trying again cannot help"


# Other codes follow the client's retry rules: retry, find the coordinator, or fail.
REACTIONS: Final = {
    ("JoinGroup", E.MEMBER_ID_REQUIRED): Reaction.TAKE_ID,
    ("JoinGroup", E.UNKNOWN_MEMBER_ID): Reaction.NEW_MEMBER,
    ("JoinGroup", E.ILLEGAL_GENERATION): Reaction.NEW_GENERATION,
    ("JoinGroup", E.REBALANCE_IN_PROGRESS): Reaction.AGAIN,
    ("SyncGroup", E.REBALANCE_IN_PROGRESS): Reaction.REJOIN,
    ("SyncGroup", E.UNKNOWN_MEMBER_ID): Reaction.NEW_MEMBER,
    ("SyncGroup", E.ILLEGAL_GENERATION): Reaction.NEW_GENERATION,
    ("Heartbeat", E.REBALANCE_IN_PROGRESS): Reaction.REJOIN,
    ("Heartbeat", E.UNKNOWN_MEMBER_ID): Reaction.NEW_MEMBER,
    ("Heartbeat", E.ILLEGAL_GENERATION): Reaction.NEW_GENERATION,
    ("OffsetCommit", E.REBALANCE_IN_PROGRESS): Reaction.REJOIN,
    ("OffsetCommit", E.UNKNOWN_MEMBER_ID): Reaction.NEW_MEMBER,
    ("OffsetCommit", E.ILLEGAL_GENERATION): Reaction.NEW_GENERATION,
}
_OF_REMEDY: Final = {
    Remedy.RETRY: Reaction.AGAIN,
    Remedy.REFRESH: Reaction.AGAIN,
    Remedy.FIND_COORDINATOR: Reaction.FIND_COORDINATOR,
}


def reaction_to(api: str, code: int) -> Reaction:
    """Return the effect of `code`, as an answer to `api`, on a member."""
    try:
        known = REACTIONS.get((api, E(code)))
    except ValueError:
        return Reaction.FAIL
    return known or _OF_REMEDY.get(rule_for(api, code).remedy, Reaction.FAIL)


@frozen(kw_only=True)
class GroupSettings:
    """Settings that are fixed for a consumer's lifetime."""

    group_id: GroupId
    instance_id: str | None = None
    rack: str | None = None
    session_timeout_ms: int
    rebalance_timeout_ms: int  # max.poll.interval.ms
    assignors: tuple[Assignor, ...]

    @property
    def cooperative(self) -> bool:
        """Whether every assignor is cooperative: an eager one, if chosen, assumes that nothing is owned."""
        return all(assignor.cooperative for assignor in self.assignors)


@frozen(kw_only=True)
class Member:
    """State of a member.

    generation  of its last SyncGroup; None where it has none, or lost it
    topics      its subscription; `joined_topics` is that of its last join
    owned       partitions it reads
    assigned    partitions it is to read, while SETTLING
    previous    what assignors remember of its last assignment
    led         the members of the generation it leads, while SYNCING
    assigns     False for a static leader that came back to a group whose assignments still hold
    watched     partitions of the group's topics when it assigned them; the leader looks for changes
    rejoin      why it must join again, which it does when the running rebalance is over
    """

    phase: Phase = Phase.OUT
    member_id: MemberId = NOBODY
    generation: int | None = None
    protocol: str = ""
    topics: frozenset[str] = frozenset()
    joined_topics: frozenset[str] = frozenset()
    owned: Partitions = NOTHING
    assigned: Partitions = NOTHING
    previous: Previous | None = None
    leads: bool = False
    led: tuple[JoinGroupResponseMember, ...] = ()
    assigns: bool = True
    watched: Topics | None = None
    rejoin: str | None = None
    failure: tuple[str, int] | None = None

    @property
    def beats(self) -> bool:
        """Whether the coordinator expects heartbeats."""
        return self.generation is not None and self.phase in _BEATING


_BEATING: Final = frozenset({Phase.PREPARING, Phase.SETTLING, Phase.STABLE})


@frozen(kw_only=True)
class Change:
    """Arguments of the user's callbacks, in this order: revoked or lost, then added.

    added  None where no assignment was made; the callback runs even if it is empty
    """

    revoked: Partitions = NOTHING
    lost: Partitions = NOTHING
    added: Partitions | None = None

    @property
    def gives_up(self) -> bool:
        return bool(self.revoked or self.lost)


# ---------------------------------------------------------------------- calls of the user


def subscribe(member: Member, topics: frozenset[str]) -> Member:
    """Subscribe to these topics; join, or join again, if that is a change."""
    if member.phase is Phase.OUT:
        return replace(member, topics=topics, phase=Phase.PREPARING, rejoin=None)
    changed = replace(member, topics=topics)
    return changed if topics == member.joined_topics else _rejoin(changed, "the subscription changed")


def leave(member: Member) -> tuple[Member, Change]:
    """Leave the group. Static members stay in it, for the coordinator, until their session ends (KIP-345)."""
    change = Change(lost=member.owned) if member.phase is Phase.FAILED else _given_up(member, member.owned)
    return Member(previous=member.previous), change


def expire(member: Member) -> Member:
    """Leave the group: the user has not polled for too long (KIP-62)."""
    return _without(member, NOBODY) if member.beats else member


# ------------------------------------------------------------------------- rebalancing


def before_joining(member: Member, settings: GroupSettings) -> Change:
    """Return the partitions that this PREPARING member must give up before it joins."""
    if settings.cooperative and member.generation is not None:
        # KIP-429: only topics no longer subscribed to; other partitions wait for the assignment.
        return Change(revoked=frozenset(p for p in member.owned if p.topic not in member.topics))
    return _given_up(member, member.owned)


def gave_up(member: Member, change: Change) -> Member:
    """Stop reading the partitions of `change`, after the callbacks have run.

    A member that gave up partitions while SETTLING joins again, so that others can be assigned them.
    """
    left = replace(member, owned=member.owned - change.revoked - change.lost)
    return _rejoin(left, FREED) if left.phase is Phase.SETTLING else left


def prepared(member: Member) -> Member:
    """Go on to JOINING: no partition is left to be given up."""
    return replace(member, phase=Phase.JOINING, joined_topics=member.topics)


def joined(member: Member, answer: JoinGroupResponse) -> Member:
    """Apply a JoinGroup response without error."""
    return replace(
        member,
        phase=Phase.SYNCING,
        member_id=MemberId(answer.member_id),
        generation=answer.generation_id,
        protocol=answer.protocol_name or "",
        leads=answer.leader == answer.member_id,
        led=answer.members,
        # KIP-814: a static leader that returns need not assign again.
        assigns=not answer.skip_assignment,
        rejoin=None,
    )


def synced(member: Member, answer: SyncGroupResponse) -> Member:
    """Apply a SyncGroup response without error.

    An assignment with topics that are no longer subscribed to is dropped; the member joins again.
    Raises: DecodeError.
    """
    assigned = frozenset(decode_assignment(answer.assignment))
    told = replace(member, phase=Phase.SETTLING, assigned=assigned, led=())
    if all(partition.topic in member.topics for partition in assigned):
        return told
    return replace(told, phase=Phase.PREPARING, assigned=NOTHING)


def to_settle(member: Member) -> Change:
    """Return the changes that the new assignment brings for this SETTLING member."""
    return Change(revoked=member.owned - member.assigned, added=member.assigned - member.owned)


def settled(member: Member) -> Member:
    """Take over the assignment; revoked partitions are given up already. The callbacks follow."""
    check(member.owned <= member.assigned, "what is assigned to others was given up")
    taken = replace(
        member,
        phase=Phase.STABLE,
        owned=member.assigned,
        assigned=NOTHING,
        previous=Previous(tuple(sorted(member.assigned)), member.generation),
    )
    if member.topics != member.joined_topics:
        return _rejoin(taken, "the subscription changed")
    return taken if member.rejoin is None else _rejoin(taken, member.rejoin)


def seen(member: Member, topics: Topics) -> Member:
    """Join again if the leader sees another number of partitions or other racks in the group's topics."""
    if not member.leads or member.watched is None or member.watched == topics:
        return member
    return _rejoin(member, "topics of the group changed")


# ------------------------------------------------------------------------------ errors


def refused(member: Member, api: str, code: int, *, generation: int | None, member_id: str = "") -> Member:
    """Apply an answer with an error code.

    Args:
        generation: the one the request was sent in: an answer from an earlier one is ignored.
        member_id: the member id in the JoinGroup response.
    """
    if api in _IN_PASSING and not (member.beats and member.generation == generation):
        return member
    reaction = reaction_to(api, code)
    match reaction:
        case Reaction.AGAIN | Reaction.FIND_COORDINATOR:
            # The generation of an interrupted SyncGroup may be over.
            return member if api != "SyncGroup" else _join_again(member)
        # KIP-394: the coordinator gave a member id; the member joins again under it.
        case Reaction.TAKE_ID:
            return replace(member, member_id=MemberId(member_id))
        case Reaction.REJOIN:
            return _rejoin(member, "the group is rebalancing") if api in _IN_PASSING else _join_again(member)
        case Reaction.NEW_GENERATION:
            return _without(member, member.member_id)
        case Reaction.NEW_MEMBER:
            return _without(member, NOBODY)
        case Reaction.FAIL:
            return replace(member, phase=Phase.FAILED, failure=(api, code))
        case _:
            assert_never(reaction)


# Requests sent in parallel to rebalances: their answers may be outdated.
_IN_PASSING: Final = frozenset({"Heartbeat", "OffsetCommit"})


def unanswered(member: Member, api: str) -> Member:
    """Handle a lost connection or a silent coordinator."""
    return _join_again(member) if api == "SyncGroup" else member


def fail(member: Member, api: str, code: int) -> Member:
    """Take no further part in the group."""
    return replace(member, phase=Phase.FAILED, failure=(api, code))


def _rejoin(member: Member, reason: str) -> Member:
    """Join again: at once if STABLE, else when the running rebalance is over."""
    phase = Phase.PREPARING if member.phase is Phase.STABLE else member.phase
    return replace(member, phase=phase, rejoin=reason)


def _join_again(member: Member) -> Member:
    """Go back to JOINING; partitions that had to be given up are given up already."""
    return replace(member, phase=Phase.JOINING, led=(), assigned=NOTHING)


def _without(member: Member, member_id: MemberId) -> Member:
    """Return a member without a generation: its partitions may belong to other members."""
    return replace(
        member,
        phase=Phase.PREPARING,
        member_id=member_id,
        generation=None,
        assigned=NOTHING,
        led=(),
        leads=False,
        watched=None,
    )


def _given_up(member: Member, partitions: Partitions) -> Change:
    return Change(lost=partitions) if member.generation is None else Change(revoked=partitions)


# ---------------------------------------------------------------------------- requests


def join_request(member: Member, settings: GroupSettings) -> JoinGroupRequest:
    """Return JoinGroup with the subscription once per assignor, since each adds its own user data."""
    protocols = tuple(
        JoinGroupRequestProtocol(
            name=assignor.name,
            metadata=encode_subscription(
                Subscription(
                    topics=tuple(member.joined_topics),
                    owned=tuple(member.owned),
                    generation=member.generation,
                    rack=settings.rack,
                    user_data=assignor.user_data(member.previous),
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
        reason=(member.rejoin or "joining")[:_REASON_MAX],
    )


def topics_of(member: Member) -> frozenset[str]:
    """Return all topics of the generation this member leads. Raises: DecodeError."""
    return frozenset(topic for one in member.led for topic in decode_subscription(one.metadata).topics)


def lead(member: Member, settings: GroupSettings, topics: Topics) -> tuple[Member, SyncGroupRequest]:
    """Return SyncGroup, with the assignment of all members if this member leads.

    Args:
        topics: all of `topics_of` that exist.
    Raises: DecodeError for another member's subscription.
    """
    watching = replace(member, watched=topics if member.leads else None)
    if not member.led or not member.assigns:
        return watching, sync_request(member, settings, {})
    subscriptions = {
        MemberId(one.member_id): decode_subscription(one.metadata, one.group_instance_id)
        for one in member.led
    }
    assignment = ASSIGNORS[member.protocol].assign(topics, subscriptions)
    encoded = {of: encode_assignment(partitions) for of, partitions in assignment.items()}
    return watching, sync_request(member, settings, encoded)


def sync_request(
    member: Member, settings: GroupSettings, assignments: Mapping[MemberId, bytes]
) -> SyncGroupRequest:
    return SyncGroupRequest(
        group_id=settings.group_id,
        generation_id=-1 if member.generation is None else member.generation,
        member_id=member.member_id,
        group_instance_id=settings.instance_id,
        protocol_type=PROTOCOL_TYPE,
        protocol_name=member.protocol,
        assignments=tuple(
            SyncGroupRequestAssignment(member_id=of, assignment=encoded)
            for of, encoded in assignments.items()
        ),
    )


def heartbeat_request(member: Member, settings: GroupSettings) -> HeartbeatRequest:
    return HeartbeatRequest(
        group_id=settings.group_id,
        generation_id=-1 if member.generation is None else member.generation,
        member_id=member.member_id,
        group_instance_id=settings.instance_id,
    )


def leave_request(member: Member, settings: GroupSettings, reason: str) -> LeaveGroupRequest | None:
    """Return LeaveGroup; None for a static member (KIP-345), and for one that never had an id."""
    if settings.instance_id is not None or member.member_id == NOBODY:
        return None
    leaving = MemberIdentity(member_id=member.member_id, reason=reason[:_REASON_MAX])
    return LeaveGroupRequest(group_id=settings.group_id, members=(leaving,))
