"""Every command in every state: one table of outcomes, and the rules that need a closer look."""

import struct

import pytest

from harness.groups import GroupMachineHarness
from tallystick.broker.group.machine.commands import (
    CommitOffsets,
    DeleteGroup,
    DeleteOffsets,
    GroupCommand,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    LeaveGroupResult,
    LeavingMember,
    MemberIdRequired,
    OffsetPartitionErrors,
    OffsetToCommit,
    SyncGroup,
)
from tallystick.broker.group.machine.expiry import find_expired_offsets
from tallystick.broker.group.machine.model import (
    PENDING_MEMBERS_MAX,
    ClassicGroup,
    CommittedOffset,
    GroupConfig,
    GroupState,
    InstanceId,
    MemberProtocol,
)
from tallystick.broker.group.machine.queries import describe_group, find_committed_offset, list_groups
from tallystick.broker.group.machine.subscription import find_subscribed_topics, parse_topics
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import GroupId, MemberId, Offset, ProducerId, TimestampMs, TopicPartition
from tallystick.kernel.value import replace

G = GroupId("g")
T0 = TopicPartition("t", 0)
CONFIG = GroupConfig(group_initial_rebalance_delay_ms=0)
SUBSCRIBED_T = b"\0\0\0\0\0\1\0\1t"


class Stage:
    """A group brought to a state, with the id of its leader and the generation that member knows."""

    def __init__(self, state: str) -> None:
        self.world = GroupMachineHarness(CONFIG)
        self.leader = MemberId("nobody")
        self.generation = 0
        if state != "absent":
            self.world.run(G, self.commit(None))
        if state in ("PreparingRebalance", "CompletingRebalance", "Stable"):
            required = self.world.run(G, self.join(None))
            assert isinstance(required, MemberIdRequired)
            self.leader = required.member_id
            self.world.run(G, self.join(self.leader))
            self.world.pass_time(0)
            self.generation = 1
        if state in ("PreparingRebalance", "Stable"):
            self.world.run(G, self.sync())
        if state == "PreparingRebalance":
            other = self.world.run(G, self.join(None))
            assert isinstance(other, MemberIdRequired)
            self.world.run(G, self.join(other.member_id))
        group = self.world.groups.get(G)
        assert (group.state.value if group else "absent") == state

    def join(self, member_id: MemberId | None, offers: str = "range") -> JoinGroup:
        return JoinGroup(
            member_id=member_id,
            client_id="c",
            client_host="/h",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=60_000,
            protocol_type="consumer",
            protocols=(MemberProtocol(offers, SUBSCRIBED_T),),
            ticket=self.world.new_ticket(),
        )

    def sync(self) -> SyncGroup:
        return SyncGroup(
            member_id=self.leader,
            generation=self.generation,
            assignments={self.leader: b"a"},
            ticket=self.world.new_ticket(),
        )

    def commit(self, member_id: MemberId | None, generation: int | None = None) -> CommitOffsets:
        return CommitOffsets(
            member_id=member_id, generation=generation, offsets={T0: OffsetToCommit(offset=Offset(1))}
        )

    def command(self, name: str) -> GroupCommand:
        commands: dict[str, GroupCommand] = {
            "join new": self.join(None),
            "join again": self.join(self.leader),
            "join other offers": self.join(self.leader, "other"),
            "sync": self.sync(),
            "heartbeat": Heartbeat(member_id=self.leader, generation=self.generation),
            "heartbeat, old generation": Heartbeat(member_id=self.leader, generation=self.generation - 1),
            "leave": LeaveGroup(members=(LeavingMember(member_id=self.leader),)),
            "commit as member": self.commit(self.leader, self.generation),
            "commit as nobody": self.commit(None),
            "delete offset of t": DeleteOffsets(partitions=(T0,)),
            "delete": DeleteGroup(),
        }
        return commands[name]


STATES = ("absent", "Empty", "PreparingRebalance", "CompletingRebalance", "Stable")
# One row a command; columns are STATES. "parked": answered later.
TABLE = {
    "join new": ("MemberIdRequired",) * 5,
    "join again": (
        "UNKNOWN_MEMBER_ID",
        "UNKNOWN_MEMBER_ID",
        "JoinGroupResult",
        "JoinGroupResult",
        "JoinGroupResult",
    ),
    "join other offers": ("UNKNOWN_MEMBER_ID", "UNKNOWN_MEMBER_ID", *("INCONSISTENT_GROUP_PROTOCOL",) * 3),
    "sync": (
        "UNKNOWN_MEMBER_ID",
        "UNKNOWN_MEMBER_ID",
        "REBALANCE_IN_PROGRESS",
        "SyncGroupResult",
        "SyncGroupResult",
    ),
    "heartbeat": (
        "UNKNOWN_MEMBER_ID",
        "UNKNOWN_MEMBER_ID",
        "REBALANCE_IN_PROGRESS",
        "GroupDone",
        "GroupDone",
    ),
    "heartbeat, old generation": ("UNKNOWN_MEMBER_ID", "UNKNOWN_MEMBER_ID", *("ILLEGAL_GENERATION",) * 3),
    "leave": (
        "LeaveGroupResult UNKNOWN_MEMBER_ID",
        "LeaveGroupResult UNKNOWN_MEMBER_ID",
        "LeaveGroupResult",
        "LeaveGroupResult",
        "LeaveGroupResult",
    ),
    "commit as member": (
        "GROUP_ID_NOT_FOUND",
        "UNKNOWN_MEMBER_ID",
        "OffsetPartitionErrors",
        "REBALANCE_IN_PROGRESS",
        "OffsetPartitionErrors",
    ),
    "commit as nobody": ("OffsetPartitionErrors", "OffsetPartitionErrors", *("UNKNOWN_MEMBER_ID",) * 3),
    "delete offset of t": (
        "GROUP_ID_NOT_FOUND",
        "OffsetPartitionErrors",
        *("OffsetPartitionErrors GROUP_SUBSCRIBED_TO_TOPIC",) * 3,
    ),
    "delete": ("GROUP_ID_NOT_FOUND", "GroupDone", *("NON_EMPTY_GROUP",) * 3),
}


def name_of(answer: object) -> str:
    match answer:
        case None:
            return "parked"
        case Reject(code=code):
            return code.name
        case LeaveGroupResult(errors=outcomes):
            return " ".join(["LeaveGroupResult", *(code.name for code in outcomes if code is not None)])
        case OffsetPartitionErrors(errors=refused):
            return " ".join(["OffsetPartitionErrors", *(code.name for code in refused.values())])
        case _:
            return type(answer).__name__


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("command", TABLE)
def test_every_command_in_every_state(state: str, command: str) -> None:
    """[GRP-2]"""
    stage = Stage(state)
    assert name_of(stage.world.run(G, stage.command(command))) == TABLE[command][STATES.index(state)]


@pytest.mark.parametrize("size", [4_096, 4_097])
@pytest.mark.parametrize("character", ["m", "😀"])
def test_metadata_is_measured_in_utf_16_units(size: int, character: str) -> None:
    stage = Stage("Empty")
    text = character * (size // (1 if character == "m" else 2))
    offsets = {T0: OffsetToCommit(offset=Offset(1), metadata=text)}
    answer = stage.world.run(G, CommitOffsets(offsets=offsets))
    too_large = size > 4_096 and character == "m"
    assert name_of(answer) == (
        "OffsetPartitionErrors OFFSET_METADATA_TOO_LARGE" if too_large else "OffsetPartitionErrors"
    )


def test_a_commit_of_a_member_keeps_it_alive() -> None:
    stage = Stage("Stable")
    for _ in range(3):
        stage.world.pass_time(9_000)
        stage.world.run(G, stage.commit(stage.leader, 1))
    assert stage.world.groups[G].state is GroupState.STABLE
    stage.world.pass_time(10_000)
    assert stage.world.groups[G].state is GroupState.EMPTY


def test_a_parked_member_is_not_expected_to_heartbeat() -> None:
    """While a JoinGroup is parked no session runs; the rebalance timeout bounds the wait (KIP-62)."""
    stage = Stage("Stable")
    other = stage.world.run(G, stage.join(None))
    assert isinstance(other, MemberIdRequired)
    ticket = stage.join(other.member_id)
    stage.world.run(G, ticket)
    for _ in range(7):
        stage.world.pass_time(8_000)
        stage.world.run(G, Heartbeat(member_id=stage.leader, generation=1))
    assert other.member_id in stage.world.groups[G].members
    assert ticket.ticket in stage.world.parked_tickets
    stage.world.pass_time(8_000)
    assert not stage.world.parked_tickets


def test_a_second_join_of_the_same_member_answers_the_first() -> None:
    """[GRP-6] A client that lost its connection and retries leaves no request behind that waits for ever."""
    stage = Stage("PreparingRebalance")
    group = stage.world.groups[G]
    waiting = next(member for member in group.members.values() if member.awaiting_join is not None)
    first = waiting.awaiting_join
    stage.world.run(G, stage.join(waiting.member_id))
    assert (first, "REBALANCE_IN_PROGRESS") in [(t, name_of(a)) for t, a in stage.world.answers]


# ---- time and offsets


def test_which_offsets_expire() -> None:
    """KIP-211, row by row of the table in `find_expired_offsets`."""
    old, new = TimestampMs(0), TimestampMs(90)
    config = GroupConfig(offsets_retention_ms=100)

    def at(commit: TimestampMs, expire: int | None = None) -> CommittedOffset:
        return CommittedOffset(
            offset=Offset(1),
            commit_timestamp_ms=commit,
            expire_timestamp_ms=None if expire is None else TimestampMs(expire),
        )

    t1, t2 = TopicPartition("t", 1), TopicPartition("t", 2)
    simple = ClassicGroup(group_id=G, offsets={T0: at(old), t1: at(new), t2: at(new, expire=99)})
    assert set(find_expired_offsets(simple, config, TimestampMs(100))) == {T0, t2}

    empty = replace(simple, protocol_type="consumer", state_timestamp_ms=TimestampMs(50))
    assert set(find_expired_offsets(empty, config, TimestampMs(149))) == {t2}
    assert set(find_expired_offsets(empty, config, TimestampMs(150))) == {T0, t1, t2}
    written_by_old_kafka = replace(empty, state_timestamp_ms=None)
    assert set(find_expired_offsets(written_by_old_kafka, config, TimestampMs(100))) == {T0, t2}

    stage = Stage("Stable")
    stable = replace(stage.world.groups[G], offsets={T0: at(old), TopicPartition("u", 0): at(old)})
    assert find_expired_offsets(stable, config, TimestampMs(100)) == (TopicPartition("u", 0),)
    unreadable = replace(
        stable,
        members={
            name: replace(member, supported_protocols=(MemberProtocol("range", b"?"),))
            for name, member in stable.members.items()
        },
    )
    assert find_expired_offsets(unreadable, config, TimestampMs(100)) == ()
    connect = replace(stable, protocol_type="connect")
    assert find_expired_offsets(connect, config, TimestampMs(100)) == ()

    pending = replace(simple, pending_offsets={ProducerId(1): {T0: at(old)}})
    assert T0 not in find_expired_offsets(pending, config, TimestampMs(100))


def test_a_stable_read_refuses_what_a_transaction_may_change() -> None:
    """KIP-447, require_stable."""
    offset = CommittedOffset(offset=Offset(1), commit_timestamp_ms=TimestampMs(0))
    group = ClassicGroup(group_id=G, offsets={T0: offset}, pending_offsets={ProducerId(1): {T0: offset}})
    assert find_committed_offset(group, T0, topic_id=None, require_stable=False) == offset
    assert (
        name_of(find_committed_offset(group, T0, topic_id=None, require_stable=True))
        == "UNSTABLE_OFFSET_COMMIT"
    )


def test_subscriptions_are_read_from_the_common_head_of_all_versions() -> None:
    assert parse_topics(SUBSCRIBED_T + b"whatever a later version adds") == ("t",)
    assert parse_topics(struct.pack(">hi", 3, 0)) == ()
    for broken in (
        b"",
        b"\0",
        SUBSCRIBED_T[:-1],
        struct.pack(">hi", 0, 2**31 - 1),
        struct.pack(">hi", 0, -1),
    ):
        assert parse_topics(broken) is None
    assert find_subscribed_topics(Stage("Stable").world.groups[G]) == frozenset({"t"})


def test_a_group_is_described_by_its_protocol_only_when_stable() -> None:
    assert describe_group(Stage("Stable").world.groups[G]).members[0].metadata == SUBSCRIBED_T
    completing = describe_group(Stage("CompletingRebalance").world.groups[G])
    assert (completing.protocol_name, completing.members[0].metadata) == ("", b"")


def test_filters_compare_without_case() -> None:
    groups = [Stage("Stable").world.groups[G]]
    assert list_groups(groups, frozenset(), frozenset())
    assert list_groups(groups, frozenset({"sTable"}), frozenset({"CLASSIC"}))
    assert not list_groups(groups, frozenset({"Empty"}), frozenset())
    assert not list_groups(groups, frozenset(), frozenset({"consumer"}))


def test_an_instance_id_of_another_member_is_fenced() -> None:
    stage = Stage("Stable")
    beat = Heartbeat(member_id=stage.leader, instance_id=InstanceId("i"), generation=1)
    assert name_of(stage.world.run(G, beat)) == "UNKNOWN_MEMBER_ID"


def test_ids_that_are_handed_out_and_not_used_are_bounded_and_the_newest_are_good() -> None:
    """KIP-394 has the client come back at once. One that asks for ids for ever costs no more than so many,
    and keeps nobody out: what gives way is the oldest."""
    stage = Stage("Stable")
    ids = []
    for _ in range(PENDING_MEMBERS_MAX + 1):
        required = stage.world.run(G, stage.join(None))
        assert isinstance(required, MemberIdRequired)
        ids.append(required.member_id)
    assert len(stage.world.groups[G].pending_members) == PENDING_MEMBERS_MAX
    forgotten = stage.world.run(G, stage.join(ids[0]))
    assert isinstance(forgotten, Reject)
    assert forgotten.code is ErrorCode.UNKNOWN_MEMBER_ID
    assert stage.world.run(G, stage.join(ids[-1])) is None
    assert ids[-1] in stage.world.groups[G].members
    stage.world.pass_time(10_000)
    assert not stage.world.groups[G].pending_members
