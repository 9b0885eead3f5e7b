"""Events of a group. Only `apply` turns them into changes.

Durable events are records of `__consumer_offsets`: appended before they are applied, and applied again by
replay. Soft events exist in memory alone.
"""

from collections.abc import Mapping

from tallystick.broker.group.machine.model import (
    EMPTY_BYTES,
    ClassicGroupMember,
    ClockReading,
    CommittedOffset,
    DeadlineMs,
    Generation,
    InstanceId,
    JoinTimer,
    MemberProtocol,
    Ticket,
)
from tallystick.kernel.ids import GroupId, MemberId, ProducerId, TimestampMs, TopicPartition
from tallystick.kernel.value import frozen

# ---- durable


@frozen(kw_only=True)
class StoredMember:
    """A member as kept in the log: the subscription of the chosen protocol, not every offer."""

    member_id: MemberId
    instance_id: InstanceId | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes = EMPTY_BYTES
    assignment: bytes = EMPTY_BYTES


@frozen(kw_only=True)
class GroupStored:
    """The group as of a completed generation: Stable with members, Empty without."""

    group_id: GroupId
    generation: Generation
    protocol_type: str | None
    protocol_name: str | None = None
    leader_id: MemberId | None = None
    state_timestamp_ms: TimestampMs | None = None
    members: tuple[StoredMember, ...] = ()


@frozen(kw_only=True)
class GroupRemoved:
    """The tombstone of a group."""

    group_id: GroupId


@frozen(kw_only=True)
class OffsetsCommitted:
    """Offsets of one request, one record per partition.

    producer_id: set when they are part of a transaction and wait for its marker.
    """

    group_id: GroupId
    offsets: Mapping[TopicPartition, CommittedOffset]
    producer_id: ProducerId | None = None


@frozen(kw_only=True)
class OffsetsDeleted:
    """Tombstones, one record per partition; they clear pending offsets, too."""

    group_id: GroupId
    partitions: tuple[TopicPartition, ...]


@frozen(kw_only=True)
class TransactionEnded:
    """The transaction coordinator wrote a COMMIT or ABORT marker to the partition."""

    producer_id: ProducerId
    is_committed: bool


DurableEvent = GroupStored | GroupRemoved | OffsetsCommitted | OffsetsDeleted

# ---- soft


@frozen(kw_only=True)
class SessionsStarted:
    """Replay is over: the sessions of the members start."""

    now: ClockReading


@frozen(kw_only=True)
class MemberIdAssigned:
    """An id was handed out; the client is expected to join with it (KIP-394)."""

    member_id: MemberId
    deadline_ms: DeadlineMs


@frozen(kw_only=True)
class MemberAdded:
    member: ClassicGroupMember
    protocol_type: str


@frozen(kw_only=True)
class MemberUpdated:
    """A known member joined again, perhaps with other offers. `ticket` None: it is answered at once."""

    member_id: MemberId
    protocols: tuple[MemberProtocol, ...]
    rebalance_timeout_ms: int
    session_timeout_ms: int
    ticket: Ticket | None


@frozen(kw_only=True)
class MemberReplaced:
    """A static member came back under a new member id and fences the old one (KIP-345)."""

    old_member_id: MemberId
    new_member_id: MemberId
    session_deadline_ms: DeadlineMs


@frozen(kw_only=True)
class MembersRemoved:
    """Members, or pending ids, are gone."""

    member_ids: tuple[MemberId, ...]


@frozen(kw_only=True)
class LeaderElected:
    member_id: MemberId


@frozen(kw_only=True)
class RebalancePrepared:
    """The join phase begins; assignments that were never handed out are void."""

    state_timestamp_ms: TimestampMs
    join_timer: JoinTimer


@frozen(kw_only=True)
class JoinTimerChanged:
    join_timer: JoinTimer


@frozen(kw_only=True)
class GenerationStarted:
    """The join phase is over, every parked JoinGroup is answered, SyncGroups are expected."""

    generation: Generation
    protocol_name: str
    now: ClockReading
    sync_deadline_ms: DeadlineMs


@frozen(kw_only=True)
class SyncReceived:
    """A member sent SyncGroup. `ticket` None: it is answered at once."""

    member_id: MemberId
    ticket: Ticket | None


@frozen(kw_only=True)
class SyncsAnswered:
    """Parked SyncGroups are answered; the sessions of their members run again."""

    session_deadlines_ms: Mapping[MemberId, DeadlineMs]


@frozen(kw_only=True)
class SessionExtended:
    member_id: MemberId
    session_deadline_ms: DeadlineMs


SoftEvent = (
    SessionsStarted
    | MemberIdAssigned
    | MemberAdded
    | MemberUpdated
    | MemberReplaced
    | MembersRemoved
    | LeaderElected
    | RebalancePrepared
    | JoinTimerChanged
    | GenerationStarted
    | SyncReceived
    | SyncsAnswered
    | SessionExtended
)
GroupEvent = DurableEvent | TransactionEnded | SoftEvent
