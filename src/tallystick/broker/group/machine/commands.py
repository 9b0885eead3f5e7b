"""Commands about a group, their answers, and the ordered effects between the two."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final
from uuid import UUID

from msgspec import field

from tallystick.broker.group.machine.events import DurableEvent, GroupEvent
from tallystick.broker.group.machine.model import (
    ClockReading,
    Generation,
    GroupConfig,
    InstanceId,
    MemberProtocol,
    Ticket,
)
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import GroupId, LeaderEpoch, MemberId, Offset, ProducerIdAndEpoch, TopicPartition
from tallystick.kernel.value import Value

# ---- commands


class JoinGroup(Value, kw_only=True):
    """JoinGroup.

    member_id                 None for a member that has none yet
    requires_known_member_id  version 4 and later: the client gets an id first (KIP-394)
    supports_skip_assignment  version 9 and later (KIP-814)
    """

    member_id: MemberId | None
    instance_id: InstanceId | None = None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[MemberProtocol, ...]
    requires_known_member_id: bool = True
    supports_skip_assignment: bool = True
    reason: str | None = None
    ticket: Ticket


class SyncGroup(Value, kw_only=True):
    """SyncGroup; only the leader's `assignments` are used."""

    member_id: MemberId
    instance_id: InstanceId | None = None
    generation: int
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: Mapping[MemberId, bytes]
    ticket: Ticket


class Heartbeat(Value, kw_only=True):
    member_id: MemberId
    instance_id: InstanceId | None = None
    generation: int


class LeavingMember(Value, kw_only=True):
    """One member of a LeaveGroup; `member_id` None: an administrator names the instance alone."""

    member_id: MemberId | None
    instance_id: InstanceId | None = None
    reason: str | None = None


class LeaveGroup(Value, kw_only=True):
    members: tuple[LeavingMember, ...]


class OffsetToCommit(Value, kw_only=True):
    offset: Offset
    leader_epoch: LeaderEpoch | None = None
    metadata: str = ""
    topic_id: UUID | None = None


class CommitOffsets(Value, kw_only=True):
    """OffsetCommit. Without generation, member and instance: a consumer without a group."""

    member_id: MemberId | None = None
    instance_id: InstanceId | None = None
    generation: int | None = None
    retention_ms: int | None = None
    offsets: Mapping[TopicPartition, OffsetToCommit]
    knows_group_id_not_found: bool = True  # version 9 and later


class CommitTxnOffsets(Value, kw_only=True):
    """TxnOffsetCommit: offsets that take effect when the transaction of `identity` commits (KIP-98).

    Without generation, member and instance: a client from before KIP-447, which has no field for them, or a
    consumer without a group.
    """

    identity: ProducerIdAndEpoch
    member_id: MemberId | None = None
    instance_id: InstanceId | None = None
    generation: int | None = None
    offsets: Mapping[TopicPartition, OffsetToCommit]
    knows_group_id_not_found: bool = True  # version 6 and later


class DeleteOffsets(Value, kw_only=True):
    """OffsetDelete by an administrator, for topics to which no member subscribes.

    may_discard_pending  offsets of open transactions, too (delete.open.transactions)
    """

    partitions: tuple[TopicPartition, ...]
    may_discard_pending: bool = False


class DeleteTopicOffsets(Value, kw_only=True):
    """The partitions no longer exist: their topic was deleted."""

    topics: frozenset[str]


class DeleteGroup(Value, kw_only=True):
    """DeleteGroups. `may_discard_pending`: offsets of open transactions, too (delete.open.transactions)."""

    may_discard_pending: bool = False


class ExpireOffsets(Value, kw_only=True):
    """Periodic check for offsets older than offsets.retention.minutes."""


class ExpireSession(Value, kw_only=True):
    """The member sent no heartbeat in time, or never used the id it was given."""

    member_id: MemberId


class ExpireJoinPhase(Value, kw_only=True):
    pass


class ExpireSyncPhase(Value, kw_only=True):
    pass


class AwaitPriorCommands(Value, kw_only=True):
    """Answered when all earlier commands are applied; a stable read waits for it (KIP-447)."""


class StartSessions(Value, kw_only=True):
    """Replay found this group: start its sessions."""


GroupTimeout = ExpireSession | ExpireJoinPhase | ExpireSyncPhase
GroupCommand = (
    JoinGroup
    | SyncGroup
    | Heartbeat
    | LeaveGroup
    | CommitOffsets
    | CommitTxnOffsets
    | DeleteOffsets
    | DeleteTopicOffsets
    | DeleteGroup
    | ExpireOffsets
    | AwaitPriorCommands
    | StartSessions
    | GroupTimeout
)

# ---- replies


class JoinGroupMember(Value, kw_only=True):
    """One member in the list for the leader."""

    member_id: MemberId
    instance_id: InstanceId | None
    metadata: bytes


class JoinGroupResult(Value, kw_only=True):
    """A member is part of `generation`. `members` is filled for a member that may assign, or list, them."""

    member_id: MemberId
    generation: Generation
    protocol_type: str | None
    protocol_name: str | None
    leader_id: MemberId | None
    members: tuple[JoinGroupMember, ...] = ()
    skip_assignment: bool = False


class MemberIdRequired(Value, kw_only=True):
    """The member has to join again, with this id (KIP-394)."""

    member_id: MemberId


class SyncGroupResult(Value, kw_only=True):
    protocol_type: str | None
    protocol_name: str | None
    assignment: bytes


class GroupDone(Value, kw_only=True):
    """Success without further content."""


class LeaveGroupResult(Value, kw_only=True):
    """One outcome for each member of the request, in its order; None means it left."""

    errors: tuple[ErrorCode | None, ...]


class OffsetPartitionErrors(Value, kw_only=True):
    """Outcome of OffsetCommit, TxnOffsetCommit and OffsetDelete: the refused partitions and their errors."""

    errors: Mapping[TopicPartition, ErrorCode] = field(default_factory=lambda: MappingProxyType({}))


GroupReply = (
    JoinGroupResult
    | MemberIdRequired
    | SyncGroupResult
    | GroupDone
    | LeaveGroupResult
    | OffsetPartitionErrors
)
GroupAnswer = GroupReply | Reject
DONE: Final = GroupDone()


class ParkedAnswer(Value, kw_only=True):
    """An answer to a request that was parked earlier."""

    ticket: Ticket
    answer: GroupAnswer


class GroupStep(Value, kw_only=True):
    """Work for the coordinator, to be done in exactly this order [GRP-1].

    records         records for `__consumer_offsets`, one batch; wait until they are durable
    events          every event of the step, those of `records` included, in order
    reply           the answer to this command; None: the command is parked under its ticket
    parked_answers  answers to requests parked earlier
    """

    records: tuple[DurableEvent, ...] = ()
    events: tuple[GroupEvent, ...] = ()
    reply: GroupAnswer | None = None
    parked_answers: tuple[ParkedAnswer, ...] = ()


class GroupEnv(Value, kw_only=True):
    """Inputs of a decision besides the group: settings, time, and an unused id."""

    group_id: GroupId
    config: GroupConfig
    now: ClockReading
    member_id_suffix: str
