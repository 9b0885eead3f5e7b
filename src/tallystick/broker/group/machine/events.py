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
from tallystick.kernel.ids import GroupId, MemberId, Offset, ProducerId, TimestampMs, TopicPartition
from tallystick.kernel.value import Value

# ---- durable


class StoredMember(Value, kw_only=True):
    """A member as kept in the log: the subscription of the chosen protocol, not every offer."""

    member_id: MemberId
    instance_id: InstanceId | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes = EMPTY_BYTES
    assignment: bytes = EMPTY_BYTES


class GroupStored(Value, kw_only=True):
    """The group as of a completed generation: Stable with members, Empty without."""

    group_id: GroupId
    generation: Generation
    protocol_type: str | None
    protocol_name: str | None = None
    leader_id: MemberId | None = None
    state_timestamp_ms: TimestampMs | None = None
    members: tuple[StoredMember, ...] = ()


class GroupRemoved(Value, kw_only=True):
    """The tombstone of a group."""

    group_id: GroupId


class OffsetsCommitted(Value, kw_only=True):
    """Offsets of one request, one record per partition.

    producer_id: set when they are part of a transaction and wait for its marker.
    """

    group_id: GroupId
    offsets: Mapping[TopicPartition, CommittedOffset]
    producer_id: ProducerId | None = None


class OffsetsDeleted(Value, kw_only=True):
    """Tombstones, one record per partition; they clear pending offsets, too."""

    group_id: GroupId
    partitions: tuple[TopicPartition, ...]


class TransactionEnded(Value, kw_only=True):
    """The transaction coordinator wrote a COMMIT or ABORT marker to the partition."""

    producer_id: ProducerId
    is_committed: bool


DurableEvent = GroupStored | GroupRemoved | OffsetsCommitted | OffsetsDeleted


class ReplayedEvent(Value):
    """An event found in the log, and the offset of its first record."""

    event: DurableEvent | TransactionEnded
    offset: Offset


# ---- soft


class SessionsStarted(Value, kw_only=True):
    """Replay is over: the sessions of the members start."""

    now: ClockReading


class MemberIdAssigned(Value, kw_only=True):
    """The client got an id and is expected to join with it (KIP-394)."""

    member_id: MemberId
    deadline_ms: DeadlineMs


class MemberAdded(Value, kw_only=True):
    member: ClassicGroupMember
    protocol_type: str


class MemberUpdated(Value, kw_only=True):
    """A known member joined again, perhaps with other offers. `ticket` None: it is answered at once."""

    member_id: MemberId
    protocols: tuple[MemberProtocol, ...]
    rebalance_timeout_ms: int
    session_timeout_ms: int
    ticket: Ticket | None


class MemberReplaced(Value, kw_only=True):
    """A static member came back under a new member id and fences the old one (KIP-345)."""

    old_member_id: MemberId
    new_member_id: MemberId
    session_deadline_ms: DeadlineMs


class MembersRemoved(Value, kw_only=True):
    """Members, or pending ids, are gone."""

    member_ids: tuple[MemberId, ...]


class LeaderElected(Value, kw_only=True):
    member_id: MemberId


class RebalancePrepared(Value, kw_only=True):
    """The join phase begins; assignments that were never handed out are void."""

    state_timestamp_ms: TimestampMs
    join_timer: JoinTimer


class JoinTimerChanged(Value, kw_only=True):
    join_timer: JoinTimer


class GenerationStarted(Value, kw_only=True):
    """The join phase is over, every parked JoinGroup is answered, SyncGroups are expected."""

    generation: Generation
    protocol_name: str
    now: ClockReading
    sync_deadline_ms: DeadlineMs


class SyncReceived(Value, kw_only=True):
    """A member sent SyncGroup. `ticket` None: it is answered immediately."""

    member_id: MemberId
    ticket: Ticket | None


class SyncsAnswered(Value, kw_only=True):
    """Parked SyncGroups are answered; the sessions of their members run again."""

    session_deadlines_ms: Mapping[MemberId, DeadlineMs]


class SessionExtended(Value, kw_only=True):
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
