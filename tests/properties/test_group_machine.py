"""The group machine under any order of commands, any passing of time, and markers at any moment."""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.support.effort import examples

from harness.groups import GroupMachineHarness, durable_view
from tallystick.broker.group.codec import decode_batches
from tallystick.broker.group.machine.apply import apply_event
from tallystick.broker.group.machine.commands import (
    CommitOffsets,
    CommitTxnOffsets,
    DeleteGroup,
    DeleteOffsets,
    DeleteTopicOffsets,
    ExpireOffsets,
    GroupCommand,
    Heartbeat,
    JoinGroup,
    JoinGroupResult,
    LeaveGroup,
    LeavingMember,
    MemberIdRequired,
    OffsetToCommit,
    SyncGroup,
)
from tallystick.broker.group.machine.events import (
    GroupRemoved,
    GroupStored,
    OffsetsCommitted,
    OffsetsDeleted,
    TransactionEnded,
)
from tallystick.broker.group.machine.expiry import find_due_timeouts, iter_deadlines
from tallystick.broker.group.machine.model import (
    ClassicGroup,
    CommittedOffset,
    Generation,
    GroupConfig,
    GroupState,
    InstanceId,
    MemberProtocol,
)
from tallystick.kernel.ids import (
    GroupId,
    MemberId,
    Offset,
    ProducerEpoch,
    ProducerId,
    ProducerIdAndEpoch,
    TimestampMs,
    TopicPartition,
)
from tallystick.kernel.value import replace
from tallystick.protocol.records import ControlType

GROUP = GroupId("g")
CONFIG = GroupConfig(
    group_min_session_timeout_ms=10,
    group_max_session_timeout_ms=1_000,
    group_initial_rebalance_delay_ms=30,
    group_max_size=4,
    offsets_retention_ms=2_000,
    new_member_join_timeout_ms=3_000,
)
# Longer than every timeout a member below may ask for, one after the other.
LONG_ENOUGH_MS = 60_000

CLIENTS = st.integers(0, 3)
PRODUCERS = st.builds(ProducerIdAndEpoch, st.integers(1, 3).map(ProducerId), st.just(ProducerEpoch(0)))
OUTCOMES = st.sampled_from([ControlType.COMMIT, ControlType.ABORT])
PARTITIONS = st.builds(TopicPartition, st.sampled_from(["t", "u"]), st.integers(0, 1))
OFFERS = st.lists(
    st.builds(
        MemberProtocol, st.sampled_from(["range", "sticky"]), st.sampled_from([b"", b"\0\0\0\0\0\1\0\1t"])
    ),
    min_size=1,
    max_size=2,
    unique_by=lambda offer: offer.name,
).map(tuple)


Told = dict[TopicPartition, int]


def what_the_log_says(log: list[bytes]) -> tuple[Told, dict[ProducerId, Told]]:
    """Committed and pending offsets, told from the log by the plainest rule there is.

    The last word on a partition counts, in the order of the log: a plain commit, one of a transaction that
    has committed, or a deletion. What was said before a deletion is forgotten, pending or not.
    """
    entries = [entry.event for batch in log for entry in decode_batches(batch)]
    offsets: Told = {}
    pending: dict[ProducerId, Told] = {}
    for number, event in enumerate(entries):
        match event:
            case OffsetsCommitted(producer_id=None):
                offsets |= {partition: said.offset for partition, said in event.offsets.items()}
            case OffsetsCommitted(producer_id=producer_id):
                later = (e for e in entries[number:] if isinstance(e, TransactionEnded))
                end = next((e for e in later if e.producer_id == producer_id), None)
                told = {partition: said.offset for partition, said in event.offsets.items()}
                if end is None:
                    pending[producer_id] = pending.get(producer_id, {}) | told
                elif end.is_committed:
                    offsets |= told
            case OffsetsDeleted(partitions=partitions):
                for left in (offsets, *pending.values()):
                    for partition in partitions:
                        left.pop(partition, None)
            case TransactionEnded() | GroupStored() | GroupRemoved():
                pass
    return offsets, {producer_id: told for producer_id, told in pending.items() if told}


class Client:
    """What one consumer believes."""

    def __init__(self, name: str, instance: InstanceId | None) -> None:
        self.name = name
        self.instance = instance
        self.member_id: MemberId | None = None
        self.generation = 0


class GroupMachine(RuleBasedStateMachine):
    """Four clients, two of them static, that may do anything at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.world = GroupMachineHarness(CONFIG)
        self.clients = [Client(f"c{i}", InstanceId(f"i{i}") if i % 2 else None) for i in range(4)]
        self.asked_by: dict[int, Client] = {}
        self.seen = 0
        self.generation = 0
        self.marker: tuple[ProducerIdAndEpoch, ControlType] | None = None

    def run_command(self, command: GroupCommand) -> None:
        before = self.world.groups.get(GROUP)
        kept = repr(before)
        step = self.world.decide(GROUP, command)
        if self.marker is not None:
            # The Step was decided without it, and is carried out after it [GRP-7].
            self.world.end_transaction(*self.marker)
            self.marker = None
        self.world.execute_step(GROUP, command, step)
        assert repr(before) == kept, "a decision or an event changed a frozen group"
        self.learn()

    def learn(self) -> None:
        for ticket, answer in self.world.answers[self.seen :]:
            client = self.asked_by[ticket]
            if isinstance(answer, JoinGroupResult):
                client.member_id, client.generation = answer.member_id, answer.generation
            elif isinstance(answer, MemberIdRequired):
                client.member_id = answer.member_id
        self.seen = len(self.world.answers)

    @rule(
        who=CLIENTS,
        offers=OFFERS,
        forget=st.booleans(),
        timeouts=st.tuples(st.integers(0, 500), st.integers(5, 1_005)),
        version=st.sampled_from([3, 8, 9]),
        kind=st.sampled_from(["consumer"] * 9 + ["connect", ""]),
    )
    def join(
        self,
        who: int,
        offers: tuple[MemberProtocol, ...],
        forget: bool,
        timeouts: tuple[int, int],
        version: int,
        kind: str,
    ) -> None:
        client = self.clients[who]
        ticket = self.world.new_ticket()
        self.asked_by[ticket] = client
        self.run_command(
            JoinGroup(
                member_id=None if forget else client.member_id,
                instance_id=client.instance,
                client_id=client.name,
                client_host="/h",
                rebalance_timeout_ms=timeouts[0],
                session_timeout_ms=timeouts[1],
                protocol_type=kind,
                protocols=offers,
                requires_known_member_id=version >= 4,
                supports_skip_assignment=version >= 9,
                ticket=ticket,
            )
        )

    @rule(who=CLIENTS, off=st.sampled_from([0, 0, 0, 1]))
    def sync(self, who: int, off: int) -> None:
        client = self.clients[who]
        ticket = self.world.new_ticket()
        self.asked_by[ticket] = client
        group = self.world.groups.get(GROUP)
        given = {member_id: member_id.encode() for member_id in (group.members if group else ())}
        self.run_command(
            SyncGroup(
                member_id=client.member_id or MemberId("nobody"),
                instance_id=client.instance,
                generation=client.generation - off,
                assignments=given,
                ticket=ticket,
            )
        )

    @rule(who=CLIENTS)
    def heartbeat(self, who: int) -> None:
        client = self.clients[who]
        member_id = client.member_id or MemberId("nobody")
        self.run_command(
            Heartbeat(member_id=member_id, instance_id=client.instance, generation=client.generation)
        )

    @rule(who=CLIENTS, by_instance=st.booleans())
    def leave(self, who: int, by_instance: bool) -> None:
        client = self.clients[who]
        known = None if by_instance else client.member_id or MemberId("nobody")
        self.run_command(LeaveGroup(members=(LeavingMember(member_id=known, instance_id=client.instance),)))

    @rule(
        who=st.none() | CLIENTS,
        partitions=st.lists(PARTITIONS, min_size=1, max_size=3, unique=True),
        retention=st.sampled_from([None, None, 50]),
        long=st.booleans(),
    )
    def commit(
        self, who: int | None, partitions: list[TopicPartition], retention: int | None, long: bool
    ) -> None:
        client = None if who is None else self.clients[who]
        metadata = "m" * 5_000 if long else "m"
        self.run_command(
            CommitOffsets(
                member_id=client and client.member_id,
                instance_id=client and client.instance,
                generation=None if client is None else client.generation,
                retention_ms=retention,
                offsets={
                    p: OffsetToCommit(offset=Offset(i), metadata=metadata) for i, p in enumerate(partitions)
                },
            )
        )

    @rule(
        producer=PRODUCERS,
        who=st.none() | CLIENTS,
        partitions=st.lists(PARTITIONS, min_size=1, max_size=3, unique=True),
        offset=st.integers(0, 99),
    )
    def commit_in_a_transaction(
        self, producer: ProducerIdAndEpoch, who: int | None, partitions: list[TopicPartition], offset: int
    ) -> None:
        client = None if who is None else self.clients[who]
        self.run_command(
            CommitTxnOffsets(
                identity=producer,
                member_id=client and client.member_id,
                instance_id=client and client.instance,
                generation=None if client is None else client.generation,
                offsets={p: OffsetToCommit(offset=Offset(offset)) for p in partitions},
            )
        )

    @rule(producer=PRODUCERS, outcome=OUTCOMES, amid_the_next_step=st.booleans())
    def end_a_transaction(
        self, producer: ProducerIdAndEpoch, outcome: ControlType, amid_the_next_step: bool
    ) -> None:
        if amid_the_next_step:
            self.marker = producer, outcome
        else:
            self.world.end_transaction(producer, outcome)

    @rule(partitions=st.lists(PARTITIONS, max_size=3), discards=st.booleans())
    def delete_offsets(self, partitions: list[TopicPartition], discards: bool) -> None:
        self.run_command(DeleteOffsets(partitions=tuple(partitions), may_discard_pending=discards))

    @rule(
        command=st.sampled_from(
            [
                DeleteGroup(),
                DeleteGroup(may_discard_pending=True),
                ExpireOffsets(),
                DeleteTopicOffsets(topics=frozenset({"t"})),
            ]
        )
    )
    def administer(self, command: GroupCommand) -> None:
        self.run_command(command)

    @rule(by_ms=st.sampled_from([1, 9, 30, 200, 1_000, 3_000]))
    def time_passes(self, by_ms: int) -> None:
        self.world.pass_time(by_ms)
        self.learn()

    @rule(who=st.sets(CLIENTS, min_size=1), offers=OFFERS)
    def behave(self, who: set[int], offers: tuple[MemberProtocol, ...]) -> None:
        """Some clients do what clients should: get an id, join, sync. This is how groups become stable."""
        for _ in range(2):
            for index in who:
                self.join(index, offers, False, (500, 1_000), 9, "consumer")
        self.time_passes(30)
        for index in who:
            self.sync(index, 0)

    @rule()
    def restart(self) -> None:
        """Everything soft is lost; parked requests break with their connections."""
        live = self.world.groups.get(GROUP)
        replayed = self.world.replay_groups()
        if live is not None and live.state in (GroupState.STABLE, GroupState.EMPTY):
            assert durable_view(replayed.get(GROUP)) == durable_view(live)
        self.generation = replayed[GROUP].generation if GROUP in replayed else 0
        self.world.restart()

    @rule()
    def long_silence(self) -> None:
        """[GRP-6] Nobody waits for ever: time passes, nobody speaks, and all that is parked is answered."""
        self.world.pass_time(LONG_ENOUGH_MS)
        self.learn()
        assert not self.world.parked_tickets
        group = self.world.groups.get(GROUP)
        assert group is None or (not group.members and not group.pending_members)
        assert group is None or group.state is GroupState.EMPTY

    @invariant()
    def replay_equals_live(self) -> None:
        """[GRP-4] What a restart would find is what is there, as far as the log promises it."""
        replayed, live = self.world.replay_groups().get(GROUP), self.world.groups.get(GROUP)
        if live is None or live.state in (GroupState.STABLE, GroupState.EMPTY):
            assert durable_view(replayed) == durable_view(live)
        else:
            assert (replayed.offsets if replayed else {}) == live.offsets
            assert (replayed.pending_offsets if replayed else {}) == live.pending_offsets
            assert (replayed.generation if replayed else 0) <= live.generation

    @invariant()
    def offsets_are_what_the_log_says(self) -> None:
        """[GRP-7] In the order of the log, whenever markers came (KAFKA-5247)."""
        offsets, pending = what_the_log_says(self.world.log)
        group = self.world.groups.get(GROUP) or ClassicGroup(group_id=GROUP)
        assert {p: said.offset for p, said in group.offsets.items()} == offsets
        live = {
            producer_id: {p: said.offset for p, said in told.items()}
            for producer_id, told in group.pending_offsets.items()
        }
        assert live == pending
        for partition in {p for told in pending.values() for p in told}:
            assert group.has_pending_offset(partition)

    @invariant()
    def no_member_is_joined_and_pending(self) -> None:
        """[GRP-3]"""
        group = self.world.groups.get(GROUP)
        if group is None:
            assert not self.world.parked_tickets
            return
        assert not group.members.keys() & group.pending_members.keys()
        assert group.pending_sync_members <= group.members.keys()
        instances = [m.instance_id for m in group.members.values() if m.instance_id is not None]
        assert len(instances) == len(set(instances))
        tickets = [
            t for m in group.members.values() for t in (m.awaiting_join, m.awaiting_sync) if t is not None
        ]
        assert len(tickets) == len(set(tickets))
        assert set(tickets) == self.world.parked_tickets
        for member_id, member in group.members.items():
            assert member.member_id == member_id
            assert member.awaiting_join is None or member.awaiting_sync is None

    @invariant()
    def states_are_what_they_mean(self) -> None:
        """[GRP-2]"""
        group = self.world.groups.get(GROUP)
        if group is None:
            return
        assert (group.join_timer is not None) == (group.state is GroupState.PREPARING_REBALANCE)
        assert (group.leader_id is None) == (not group.members)
        assert group.leader_id is None or group.leader_id in group.members
        match group.state:
            case GroupState.EMPTY:
                assert not group.members
                assert not self.world.parked_tickets
            case GroupState.STABLE:
                assert group.members
                assert not self.world.parked_tickets
                assert group.protocol_name in group.find_common_protocols()
            case GroupState.COMPLETING_REBALANCE:
                assert group.members
                assert all(m.awaiting_join is None for m in group.members.values())
                assert group.protocol_name in group.find_common_protocols()
            case GroupState.PREPARING_REBALANCE:
                assert all(m.awaiting_sync is None for m in group.members.values())
            case GroupState.DEAD:
                raise AssertionError("no group is ever dead")

    @invariant()
    def generations_count_up(self) -> None:
        """[GRP-5] Within the life of a group; a group that was deleted begins anew."""
        group = self.world.groups.get(GROUP)
        if group is None or (group.state is GroupState.EMPTY and not group.generation):
            self.generation = 0
            return
        assert group.generation >= self.generation
        self.generation = group.generation

    @invariant()
    def time_has_nothing_left_to_do(self) -> None:
        """[GRP-6] After acting on what is due nothing is due: no wake-up spins."""
        group = self.world.groups.get(GROUP)
        if group is None:
            return
        self.world.run_due_timeouts()
        self.world.run_due_timeouts()
        self.learn()
        group = self.world.groups.get(GROUP)
        assert group is None or not find_due_timeouts(group, self.world.elapsed_ms)
        assert group is None or not self.world.parked_tickets or list(iter_deadlines(group))


GroupMachine.TestCase.settings = settings(
    max_examples=examples(quick=25, gate=30, full=150),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestGroupMachine = GroupMachine.TestCase


def test_the_later_append_wins_not_the_later_marker() -> None:
    """KAFKA-5247: a transaction committed after a plain commit does not bring an older offset back."""
    partition = TopicPartition("t", 0)

    def committed(offset: int, at: int) -> CommittedOffset:
        return CommittedOffset(
            offset=Offset(offset), commit_timestamp_ms=TimestampMs(0), record_offset=Offset(at)
        )

    producer = ProducerId(7)
    for plain_at, transactional_at, winner in ((5, 3, 100), (3, 5, 200)):
        group = ClassicGroup(
            group_id=GROUP,
            generation=Generation(0),
            offsets={partition: committed(100, plain_at)},
            pending_offsets={producer: {partition: committed(200, transactional_at)}},
        )
        after = apply_event(group, TransactionEnded(producer_id=producer, is_committed=True))
        assert after is not None
        assert after.offsets[partition].offset == winner
        assert not after.pending_offsets
        aborted = apply_event(group, TransactionEnded(producer_id=producer, is_committed=False))
        assert aborted == replace(group, pending_offsets={})
