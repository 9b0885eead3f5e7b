"""State of a classic consumer group: members, generations, offsets. Values only.

A group has Kafka's five states:

    Empty ---------------- a member joins ----------------> PreparingRebalance
    PreparingRebalance --- all rejoined, or timeout ------> CompletingRebalance
    PreparingRebalance --- timeout and no member left ----> Empty
    CompletingRebalance -- the leader's assignment -------> Stable
    CompletingRebalance, Stable -- join, leave, timeout --> PreparingRebalance
    Dead: the answer for a group that does not exist; no `ClassicGroup` is ever in it

A `ClassicGroup` consists of *durable* and *soft* state. Durable state is in `__consumer_offsets` and
restored by replay: the members and assignments of the last completed generation, and committed offsets. Soft
state (parked requests, deadlines, members that joined since) lives in memory, as in Kafka: losing it costs
one rebalance.

Deadlines are monotonic milliseconds, so that setting the clock does not expire sessions; timestamps are
wall-clock milliseconds, because they are stored. `ClockReading` carries both.

Values are frozen: `apply` returns a new `ClassicGroup`, so `decide` can try a cascade of events on a draft
without touching the real one (ADR 0022).

Sources: Kafka's classic group protocol; KIP-62 (separate rebalance and session timeouts), KIP-134 (initial
rebalance delay), KIP-345 (static members), KIP-394 (member id first), KIP-447 (offsets pending in
transactions), KIP-814 (skip assignment).
"""

from collections.abc import Iterator, Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final, NewType
from uuid import UUID

from msgspec import field

from tallystick.kernel.ids import (
    INT32_MAX,
    GroupId,
    LeaderEpoch,
    MemberId,
    Offset,
    ProducerId,
    TimestampMs,
    TopicPartition,
)
from tallystick.kernel.value import Value

DeadlineMs = NewType("DeadlineMs", int)
"""Monotonic milliseconds: compared with `ClockReading.monotonic_ms` only."""

Ticket = NewType("Ticket", int)
"""Id of one parked request; the coordinator holds the future, the machine decides when it is answered."""

InstanceId = NewType("InstanceId", str)
Generation = NewType("Generation", int)

CONSUMER_PROTOCOL_TYPE: Final = "consumer"
EMPTY_BYTES: Final = b""


class GroupState(Enum):
    """States, with the names that Kafka's tools print."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


# Valid previous states of each state; `apply` checks them on every change of state [GRP-2].
# Stable after Stable: a static member's new id is stored.
PREVIOUS_STATES: Final[Mapping[GroupState, frozenset[GroupState]]] = MappingProxyType(
    {
        GroupState.EMPTY: frozenset({GroupState.PREPARING_REBALANCE}),
        GroupState.PREPARING_REBALANCE: frozenset(
            {GroupState.STABLE, GroupState.COMPLETING_REBALANCE, GroupState.EMPTY}
        ),
        GroupState.COMPLETING_REBALANCE: frozenset({GroupState.PREPARING_REBALANCE}),
        GroupState.STABLE: frozenset({GroupState.COMPLETING_REBALANCE, GroupState.STABLE}),
        GroupState.DEAD: frozenset(),
    }
)


class ClockReading(Value):
    """One reading of both clocks."""

    wall_ms: TimestampMs
    monotonic_ms: int

    def deadline_after(self, after_ms: int) -> DeadlineMs:
        return DeadlineMs(self.monotonic_ms + max(after_ms, 0))


class GroupConfig(Value, kw_only=True):
    """Settings of the group coordinator, with Kafka's names and defaults (docs/config.md)."""

    group_min_session_timeout_ms: int = 6_000
    group_max_session_timeout_ms: int = 1_800_000
    group_initial_rebalance_delay_ms: int = 3_000
    group_max_size: int = INT32_MAX
    offset_metadata_max_bytes: int = 4_096
    offsets_retention_ms: int = 7 * 24 * 60 * 60 * 1_000
    offsets_retention_check_interval_ms: int = 600_000
    offset_commit_timeout_ms: int = 5_000
    # Not a setting in Kafka either: how long a new member may stay parked.
    new_member_join_timeout_ms: int = 300_000


class MemberProtocol(Value):
    """One assignor that a member offers, with its subscription in the assignor's own (opaque) format."""

    name: str
    metadata: bytes


class ClassicGroupMember(Value, kw_only=True):
    """One consumer in a group.

    `awaiting_join` and `awaiting_sync` are the tickets of its parked requests; at most one is set [GRP-3].
    `is_new` until its first generation: it cannot heartbeat yet.
    """

    member_id: MemberId
    instance_id: InstanceId | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    supported_protocols: tuple[MemberProtocol, ...]
    session_deadline_ms: DeadlineMs
    assignment: bytes = EMPTY_BYTES
    is_new: bool = False
    awaiting_join: Ticket | None = None
    awaiting_sync: Ticket | None = None

    @property
    def is_static(self) -> bool:
        return self.instance_id is not None

    def supports(self, protocol: str) -> bool:
        return any(each.name == protocol for each in self.supported_protocols)

    def find_metadata(self, protocol: str | None) -> bytes | None:
        """Return the subscription for `protocol`; None when the member does not offer it."""
        return next((each.metadata for each in self.supported_protocols if each.name == protocol), None)

    def vote_for_protocol(self, candidates: frozenset[str]) -> str | None:
        """Return the member's first choice among the candidates."""
        return next((each.name for each in self.supported_protocols if each.name in candidates), None)


class JoinTimer(Value, kw_only=True):
    """Latest end of the join phase.

    In the first rebalance of an empty group the phase lasts `delay_ms`, and is extended while new members
    arrive, by `extension_left_ms` at most. Source: KIP-134.
    """

    deadline_ms: DeadlineMs
    delay_ms: int | None = None
    extension_left_ms: int = 0

    @property
    def is_initial(self) -> bool:
        return self.delay_ms is not None


class CommittedOffset(Value, kw_only=True):
    """One committed offset.

    record_offset: its offset in `__consumer_offsets`; among a plain and a transactional commit
        of one partition the later *append* wins, not the later marker (KAFKA-5247).
    expire_timestamp_ms: only when the client asked for its own retention (OffsetCommit 2-4).
    """

    offset: Offset
    leader_epoch: LeaderEpoch | None = None
    metadata: str = ""
    commit_timestamp_ms: TimestampMs
    expire_timestamp_ms: TimestampMs | None = None
    topic_id: UUID | None = None
    record_offset: Offset | None = None


CommittedOffsets = Mapping[TopicPartition, CommittedOffset]


# Unused ids handed out by one group: a client uses its own within a round trip.
PENDING_MEMBERS_MAX: Final = 1_000


class ClassicGroup(Value, kw_only=True):
    """Complete state of one group.

    state_timestamp_ms    when it entered `state`; None only if an old Kafka wrote the record
    pending_members       ids handed out by MEMBER_ID_REQUIRED and not yet used, with their deadlines; the
                          last PENDING_MEMBERS_MAX, oldest first
    pending_sync_members  members of this generation that have not sent SyncGroup
    has_new_member        a member arrived during the current slice of the initial delay
    pending_offsets       offsets of open transactions by producer; a marker makes them `offsets`
    """

    group_id: GroupId
    state: GroupState = GroupState.EMPTY
    state_timestamp_ms: TimestampMs | None = None
    generation: Generation = Generation(0)
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader_id: MemberId | None = None
    members: Mapping[MemberId, ClassicGroupMember] = field(default_factory=dict)
    pending_members: Mapping[MemberId, DeadlineMs] = field(default_factory=dict)
    pending_sync_members: frozenset[MemberId] = frozenset()
    join_timer: JoinTimer | None = None
    sync_deadline_ms: DeadlineMs | None = None
    has_new_member: bool = False
    offsets: CommittedOffsets = field(default_factory=dict)
    pending_offsets: Mapping[ProducerId, CommittedOffsets] = field(default_factory=dict)

    @property
    def uses_consumer_protocol(self) -> bool:
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    @property
    def rebalance_timeout_ms(self) -> int:
        """Longest rebalance timeout of any member, so that the slowest may finish (KIP-62)."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    @property
    def have_all_joined(self) -> bool:
        """Whether every known member has a parked JoinGroup, and no id is pending."""
        return not self.pending_members and all(
            member.awaiting_join is not None for member in self.members.values()
        )

    @property
    def awaiting_join_count(self) -> int:
        return sum(member.awaiting_join is not None for member in self.members.values())

    def find_static_member(self, instance_id: InstanceId) -> ClassicGroupMember | None:
        """Return the member of a static instance. Cost: linear in members."""
        return next((m for m in self.members.values() if m.instance_id == instance_id), None)

    def find_common_protocols(self) -> frozenset[str]:
        """Return the protocols that every member supports."""
        offers = [frozenset(p.name for p in member.supported_protocols) for member in self.members.values()]
        return frozenset.intersection(*offers) if offers else frozenset()

    def supports_protocols(self, protocol_type: str, names: frozenset[str]) -> bool:
        """Return whether a member with these offers may join the group as it is now."""
        if self.state is GroupState.EMPTY:
            return bool(protocol_type) and bool(names)
        if self.protocol_type != protocol_type:
            return False
        return any(all(m.supports(name) for m in self.members.values()) for name in names)

    def select_protocol(self) -> str | None:
        """Select the protocol with the most votes; each member votes for its first choice among the common.

        A tie goes to the protocol that got its first vote earlier; Kafka leaves it open.
        """
        candidates = self.find_common_protocols()
        votes: dict[str, int] = {}
        for member in self.members.values():
            choice = member.vote_for_protocol(candidates)
            if choice is not None:
                votes[choice] = votes.get(choice, 0) + 1
        return max(votes, key=lambda name: votes[name], default=None)

    def has_pending_offset(self, partition: TopicPartition) -> bool:
        """Return whether an open transaction has an offset of this partition."""
        return any(partition in offsets for offsets in self.pending_offsets.values())

    def iter_partitions(self) -> Iterator[TopicPartition]:
        """Yield every partition with an offset, committed or pending, once."""
        yield from self.offsets
        visited_partitions = set(self.offsets)
        for offsets in self.pending_offsets.values():
            for partition in offsets:
                if partition not in visited_partitions:
                    visited_partitions.add(partition)
                    yield partition
