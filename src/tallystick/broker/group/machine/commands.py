"""Commands about a group, their answers, and the ordered effects between the two."""

from collections.abc import Mapping
from dataclasses import field
from types import MappingProxyType
from typing import Final
from uuid import UUID

from tallystick.broker.group.machine.events import DurableEvent, Event
from tallystick.broker.group.machine.model import (
    Generation,
    GroupConfig,
    InstanceId,
    Now,
    ProtocolChoice,
    Ticket,
)
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import GroupId, Identity, LeaderEpoch, MemberId, Offset, TopicPartition
from tallystick.kernel.value import frozen

# ---- commands


@frozen(kw_only=True)
class Join:
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
    protocols: tuple[ProtocolChoice, ...]
    requires_known_member_id: bool = True
    supports_skip_assignment: bool = True
    reason: str | None = None
    ticket: Ticket


@frozen(kw_only=True)
class Sync:
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
class Leave:
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

    identity: Identity
    member_id: MemberId | None = None
    instance_id: InstanceId | None = None
    generation: int | None = None
    offsets: Mapping[TopicPartition, OffsetToCommit]
    knows_group_id_not_found: bool = True  # version 6 and later


@frozen(kw_only=True)
class DeleteOffsets:
    """OffsetDelete by an administrator, for topics to which no member subscribes.

    discards_pending  offsets of open transactions, too (delete.open.transactions)
    """

    partitions: tuple[TopicPartition, ...]
    discards_pending: bool = False


@frozen(kw_only=True)
class ForgetPartitions:
    """The partitions no longer exist: their topic was deleted."""

    topics: frozenset[str]


@frozen(kw_only=True)
class DeleteGroup:
    """DeleteGroups. `discards_pending`: offsets of open transactions, too (delete.open.transactions)."""

    discards_pending: bool = False


@frozen(kw_only=True)
class ExpireOffsets:
    """Periodic check for offsets older than offsets.retention.minutes."""


@frozen(kw_only=True)
class SessionTimedOut:
    """The member sent no heartbeat in time, or never used the id it was given."""

    member_id: MemberId


@frozen(kw_only=True)
class JoinPhaseTimedOut:
    pass


@frozen(kw_only=True)
class SyncPhaseTimedOut:
    pass


@frozen(kw_only=True)
class Settle:
    """Answered when all earlier commands are applied; a stable read waits for it (KIP-447)."""


@frozen(kw_only=True)
class Revive:
    """Replay found this group: start its sessions."""


Timeout = SessionTimedOut | JoinPhaseTimedOut | SyncPhaseTimedOut
Command = (
    Join
    | Sync
    | Heartbeat
    | Leave
    | CommitOffsets
    | CommitTxnOffsets
    | DeleteOffsets
    | ForgetPartitions
    | DeleteGroup
    | ExpireOffsets
    | Settle
    | Revive
    | Timeout
)

# ---- replies


@frozen(kw_only=True)
class JoinedMember:
    """One member in the list for the leader."""

    member_id: MemberId
    instance_id: InstanceId | None
    metadata: bytes


@frozen(kw_only=True)
class Joined:
    """A member is part of `generation`. `members` is filled for a member that may assign, or list, them."""

    member_id: MemberId
    generation: Generation
    protocol_type: str | None
    protocol_name: str | None
    leader: MemberId | None
    members: tuple[JoinedMember, ...] = ()
    skip_assignment: bool = False


@frozen(kw_only=True)
class MemberIdRequired:
    """The member has to join again, with this id (KIP-394)."""

    member_id: MemberId


@frozen(kw_only=True)
class Synced:
    protocol_type: str | None
    protocol_name: str | None
    assignment: bytes


@frozen(kw_only=True)
class Done:
    """Success without further content."""


@frozen(kw_only=True)
class Left:
    """One outcome for each member of the request, in its order; None means it left."""

    outcomes: tuple[ErrorCode | None, ...]


@frozen(kw_only=True)
class PerPartition:
    """Outcome of OffsetCommit, TxnOffsetCommit and OffsetDelete: the refused partitions and their errors."""

    refused: Mapping[TopicPartition, ErrorCode] = field(default_factory=lambda: MappingProxyType({}))


Reply = Joined | MemberIdRequired | Synced | Done | Left | PerPartition
Answer = Reply | Reject
DONE: Final = Done()


@frozen(kw_only=True)
class Send:
    """An answer to a request that was parked earlier."""

    ticket: Ticket
    answer: Answer


@frozen(kw_only=True)
class Step:
    """Work for the coordinator, to be done in exactly this order [GRP-1].

    append      records for `__consumer_offsets`, one batch; wait until they are durable
    then_apply  every event of the step, those of `append` included, in order
    then_reply  the answer to this command; None: the command is parked under its ticket
    then_send   answers to requests parked earlier
    """

    append: tuple[DurableEvent, ...] = ()
    then_apply: tuple[Event, ...] = ()
    then_reply: Answer | None = None
    then_send: tuple[Send, ...] = ()


@frozen(kw_only=True)
class Env:
    """Inputs of a decision besides the group: settings, time, and an unused id."""

    group_id: GroupId
    config: GroupConfig
    now: Now
    spare_id: str
