"""Commands about a group, their answers, and the ordered effects between the two."""

from collections.abc import Mapping
from dataclasses import field
from types import MappingProxyType
from typing import Final
from uuid import UUID

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
from tallystick.kernel.value import frozen

# ---- commands


@frozen(kw_only=True)
class JoinGroup:
    """JoinGroup.

    member_id                 None for a member that has none yet
    requires_known_member_id  version 4 and later: an id is handed out first (KIP-394)
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


@frozen(kw_only=True)
class SyncGroup:
    """SyncGroup; only the leader's `assignments` are used."""

    member_id: MemberId
    instance_id: InstanceId | None = None
    generation: int
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: Mapping[MemberId, bytes]
    ticket: Ticket


@frozen(kw_only=True)
class Heartbeat:
    member_id: MemberId
    instance_id: InstanceId | None = None
    generation: int


@frozen(kw_only=True)
class LeavingMember:
    """One member of a LeaveGroup; `member_id` None: an administrator names the instance alone."""

    member_id: MemberId | None
    instance_id: InstanceId | None = None
    reason: str | None = None


@frozen(kw_only=True)
class LeaveGroup:
    members: tuple[LeavingMember, ...]


@frozen(kw_only=True)
class OffsetToCommit:
    offset: Offset
    leader_epoch: LeaderEpoch | None = None
    metadata: str = ""
    topic_id: UUID | None = None


@frozen(kw_only=True)
class CommitOffsets:
    """OffsetCommit. Without generation, member and instance: a consumer without a group."""

    member_id: MemberId | None = None
    instance_id: InstanceId | None = None
    generation: int | None = None
    retention_ms: int | None = None
    offsets: Mapping[TopicPartition, OffsetToCommit]
    knows_group_id_not_found: bool = True  # version 9 and later


@frozen(kw_only=True)
class CommitTxnOffsets:
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


@frozen(kw_only=True)
class DeleteOffsets:
    """OffsetDelete by an administrator, for topics to which no member subscribes.

    may_discard_pending  offsets of open transactions, too (delete.open.transactions)
    """

    partitions: tuple[TopicPartition, ...]
    may_discard_pending: bool = False


@frozen(kw_only=True)
class DeleteTopicOffsets:
    """The partitions no longer exist: their topic was deleted."""

    topics: frozenset[str]


@frozen(kw_only=True)
class DeleteGroup:
    """DeleteGroups. `may_discard_pending`: offsets of open transactions, too (delete.open.transactions)."""

    may_discard_pending: bool = False


@frozen(kw_only=True)
class ExpireOffsets:
    """Periodic check for offsets older than offsets.retention.minutes."""


@frozen(kw_only=True)
class ExpireSession:
    """The member sent no heartbeat in time, or never used the id it was given."""

    member_id: MemberId


@frozen(kw_only=True)
class ExpireJoinPhase:
    pass


@frozen(kw_only=True)
class ExpireSyncPhase:
    pass


@frozen(kw_only=True)
class AwaitPriorCommands:
    """Answered when all earlier commands are applied; a stable read waits for it (KIP-447)."""


@frozen(kw_only=True)
class StartSessions:
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


@frozen(kw_only=True)
class JoinGroupMember:
    """One member in the list for the leader."""

    member_id: MemberId
    instance_id: InstanceId | None
    metadata: bytes


@frozen(kw_only=True)
class JoinGroupResult:
    """A member is part of `generation`. `members` is filled for a member that may assign, or list, them."""

    member_id: MemberId
    generation: Generation
    protocol_type: str | None
    protocol_name: str | None
    leader_id: MemberId | None
    members: tuple[JoinGroupMember, ...] = ()
    skip_assignment: bool = False


@frozen(kw_only=True)
class MemberIdRequired:
    """The member has to join again, with this id (KIP-394)."""

    member_id: MemberId


@frozen(kw_only=True)
class SyncGroupResult:
    protocol_type: str | None
    protocol_name: str | None
    assignment: bytes


@frozen(kw_only=True)
class GroupDone:
    """Success without further content."""


@frozen(kw_only=True)
class LeaveGroupResult:
    """One outcome for each member of the request, in its order; None means it left."""

    errors: tuple[ErrorCode | None, ...]


@frozen(kw_only=True)
class OffsetPartitionErrors:
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


@frozen(kw_only=True)
class ParkedAnswer:
    """An answer to a request that was parked earlier."""

    ticket: Ticket
    answer: GroupAnswer


@frozen(kw_only=True)
class GroupStep:
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


@frozen(kw_only=True)
class GroupEnv:
    """Inputs of a decision besides the group: settings, time, and an unused id."""

    group_id: GroupId
    config: GroupConfig
    now: ClockReading
    member_id_suffix: str
