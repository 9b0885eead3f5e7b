"""KIP-447, "Producer scalability for exactly once semantics": the group coordinator's part.

The text speaks of PendingTransactionException and of COORDINATOR_LOAD_IN_PROGRESS for old clients; what Kafka
made of it is UNSTABLE_OFFSET_COMMIT for those that ask for stable offsets (OffsetFetch 7), and no change for
those that do not.
"""

from collections.abc import Mapping

import pytest

from harness.groups import GroupMachineHarness
from tallystick.broker.group.machine.commands import (
    DONE,
    CommitOffsets,
    CommitTxnOffsets,
    DeleteGroup,
    DeleteOffsets,
    DeleteTopicOffsets,
    ExpireOffsets,
    Heartbeat,
    JoinGroup,
    JoinGroupResult,
    LeaveGroup,
    LeavingMember,
    OffsetPartitionErrors,
    OffsetToCommit,
    SyncGroup,
)
from tallystick.broker.group.machine.model import (
    CommittedOffset,
    GroupConfig,
    GroupState,
    InstanceId,
    MemberProtocol,
)
from tallystick.broker.group.machine.queries import find_committed_offset
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import (
    GroupId,
    MemberId,
    Offset,
    ProducerEpoch,
    ProducerId,
    ProducerIdAndEpoch,
    TopicPartition,
)
from tallystick.protocol.records import ControlType

G = GroupId("g")
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
COMMIT, ABORT = ControlType.COMMIT, ControlType.ABORT
OFFER = (MemberProtocol("range", b"\0\0\0\0\0\1\0\1t\xff\xff\xff\xff"),)  # subscribes to "t"


def producer(number: int, epoch: int = 0) -> ProducerIdAndEpoch:
    return ProducerIdAndEpoch(ProducerId(number), ProducerEpoch(epoch))


P, Q = producer(7), producer(8)


def commit(
    world: GroupMachineHarness, who: ProducerIdAndEpoch, offsets: Mapping[TopicPartition, int], **said: object
) -> OffsetPartitionErrors | ErrorCode:
    """One TxnOffsetCommit; the code when it was refused as a whole."""
    wanted = {partition: OffsetToCommit(offset=Offset(offset)) for partition, offset in offsets.items()}
    answer = world.run(G, CommitTxnOffsets(identity=who, offsets=wanted, **said))  # type: ignore[arg-type]
    if isinstance(answer, Reject):
        return answer.code
    assert isinstance(answer, OffsetPartitionErrors)
    return answer


def accepted(
    world: GroupMachineHarness, who: ProducerIdAndEpoch, offsets: Mapping[TopicPartition, int], **said: object
) -> bool:
    return commit(world, who, offsets, **said) == OffsetPartitionErrors()


def plain(world: GroupMachineHarness, offset: int, partition: TopicPartition = T0) -> None:
    command = CommitOffsets(offsets={partition: OffsetToCommit(offset=Offset(offset))})
    assert world.run(G, command) == OffsetPartitionErrors()


def fetch(
    world: GroupMachineHarness, partition: TopicPartition = T0, *, stable: bool
) -> int | ErrorCode | None:
    found = find_committed_offset(world.groups.get(G), partition, topic_id=None, require_stable=stable)
    if isinstance(found, Reject):
        return found.code
    return found.offset if isinstance(found, CommittedOffset) else None


def member(
    world: GroupMachineHarness, instance: str | None = None, *others: JoinGroupResult
) -> JoinGroupResult:
    """A member of a stable group, which `others` join again."""
    wanted = [(None, instance, 3)] + [(other.member_id, None, 9) for other in others]
    for member_id, name, version in wanted:
        world.run(
            G,
            JoinGroup(
                member_id=member_id,
                instance_id=None if name is None else InstanceId(name),
                client_id="c",
                client_host="/h",
                session_timeout_ms=10_000,
                rebalance_timeout_ms=20_000,
                protocol_type="consumer",
                protocols=OFFER,
                requires_known_member_id=version >= 4,
                ticket=world.new_ticket(),
            ),
        )
    world.pass_time(3_000)
    group = world.groups[G]
    answers = {answer.member_id: answer for _, answer in world.answers if isinstance(answer, JoinGroupResult)}
    for member_id in group.members:
        world.run(
            G,
            SyncGroup(
                member_id=member_id, generation=group.generation, assignments={}, ticket=world.new_ticket()
            ),
        )
    assert world.groups[G].state is GroupState.STABLE
    new = [
        answers[member_id] for member_id in group.members if member_id not in {o.member_id for o in others}
    ]
    return new[-1]


def said_by(joined: JoinGroupResult) -> dict[str, object]:
    """What a client with `joined` as its group metadata says of itself."""
    return {"member_id": joined.member_id, "generation": joined.generation}


# ---------------------------------------------------------------------- offsets that are pending


def test_an_offset_of_an_open_transaction_is_pending_and_decided_by_its_marker() -> None:
    """KIP-447, Motivation: "With transactional processing, there could be offsets that are "pending", I.E
    they are part of some ongoing transaction."."""
    for outcome, after in ((COMMIT, 5), (ABORT, None)):
        world = GroupMachineHarness()
        assert accepted(world, P, {T0: 5})
        assert fetch(world, stable=False) is None
        world.end_transaction(P, outcome)
        assert fetch(world, stable=True) == after


def test_a_stable_fetch_is_refused_until_every_pending_transaction_is_cleared() -> None:
    """KIP-447, Motivation: "reject FetchOffset request by sending out PendingTransactionException to new
    client when there is pending transactional offset commits"; "back-off and retry getting input offset until
    all the pending transaction offsets are cleared"."""
    world = GroupMachineHarness()
    plain(world, 1)
    assert accepted(world, P, {T0: 5})
    assert accepted(world, Q, {T0: 6})
    assert fetch(world, stable=True) is ErrorCode.UNSTABLE_OFFSET_COMMIT
    world.end_transaction(P, COMMIT)
    assert fetch(world, stable=True) is ErrorCode.UNSTABLE_OFFSET_COMMIT
    world.end_transaction(Q, ABORT)
    assert fetch(world, stable=True) == 5


def test_other_partitions_are_not_held_back() -> None:
    """The refusal is a partition's, not the group's: OffsetMetadataManager.fetchOffsets."""
    world = GroupMachineHarness()
    plain(world, 1, T1)
    assert accepted(world, P, {T0: 5})
    assert fetch(world, T1, stable=True) == 1


def test_clients_that_do_not_ask_for_stable_offsets_see_the_last_one_committed() -> None:
    """KIP-447 had meant "since it would be an unknown exception for old consumers, we will choose to send a
    COORDINATOR_LOAD_IN_PROGRESS exception to let it retry"; Kafka leaves them as they were."""
    world = GroupMachineHarness()
    plain(world, 1)
    assert accepted(world, P, {T0: 5})
    assert fetch(world, stable=False) == 1


def test_a_transaction_of_several_commits_keeps_the_last_of_each_partition() -> None:
    world = GroupMachineHarness()
    assert accepted(world, P, {T0: 5, T1: 1})
    assert accepted(world, P, {T0: 9})
    world.end_transaction(P, COMMIT)
    assert (fetch(world, T0, stable=True), fetch(world, T1, stable=True)) == (9, 1)


@pytest.mark.parametrize(("first", "after"), [("plain", 200), ("transactional", 100)])
def test_the_later_append_wins_whenever_the_marker_comes(first: str, after: int) -> None:
    """KAFKA-5247: what counts is when an offset was appended, not when its transaction ended."""
    world = GroupMachineHarness()
    if first == "plain":
        plain(world, 100)
        assert accepted(world, P, {T0: 200})
    else:
        assert accepted(world, P, {T0: 200})
        plain(world, 100)
    world.end_transaction(P, COMMIT)
    assert fetch(world, stable=True) == after
    assert world.replay_groups()[G].offsets == world.groups[G].offsets


def test_two_transactions_on_one_partition_count_in_the_order_of_their_appends() -> None:
    """KAFKA-5247 again, between two producers whose markers come the other way round."""
    world = GroupMachineHarness()
    assert accepted(world, P, {T0: 1})
    assert accepted(world, Q, {T0: 2})
    world.end_transaction(Q, COMMIT)
    world.end_transaction(P, COMMIT)
    assert fetch(world, stable=True) == 2


def test_a_marker_ends_its_own_producers_transaction_alone() -> None:
    world = GroupMachineHarness()
    assert accepted(world, P, {T0: 1})
    world.end_transaction(Q, COMMIT)
    assert fetch(world, stable=True) is ErrorCode.UNSTABLE_OFFSET_COMMIT


def test_pending_offsets_survive_a_restart() -> None:
    world = GroupMachineHarness()
    assert accepted(world, P, {T0: 5})
    world.restart()
    assert fetch(world, stable=True) is ErrorCode.UNSTABLE_OFFSET_COMMIT
    world.end_transaction(P, COMMIT)
    world.restart()
    assert fetch(world, stable=True) == 5


# ---------------------------------------- who may commit offsets: ADR 0022


def test_without_a_group_and_without_a_generation_a_simple_group_comes_into_being() -> None:
    """Row 1."""
    world = GroupMachineHarness()
    assert accepted(world, P, {T0: 1})
    group = world.groups[G]
    assert (group.protocol_type, group.state, group.members) == (None, GroupState.EMPTY, {})


@pytest.mark.parametrize(("knows", "code"), [(False, "ILLEGAL_GENERATION"), (True, "GROUP_ID_NOT_FOUND")])
def test_a_generation_of_a_group_that_is_not_there(knows: bool, code: str) -> None:
    """Row 2. KIP-1319, TxnOffsetCommit version 6: "It also returns GROUP_ID_NOT_FOUND when the group does not
    exist"."""
    world = GroupMachineHarness()
    said = {"generation": 3, "member_id": MemberId("m"), "knows_group_id_not_found": knows}
    assert commit(world, P, {T0: 1}, **said) is ErrorCode[code]
    assert G not in world.groups


def test_an_empty_group_accepts_clients_without_a_generation() -> None:
    """Row 3, whatever else is said."""
    world = GroupMachineHarness()
    first = member(world)
    world.run(G, LeaveGroup(members=(LeavingMember(member_id=first.member_id),)))
    assert world.groups[G].state is GroupState.EMPTY
    assert accepted(world, P, {T0: 1}, member_id=MemberId("m"))
    assert accepted(world, P, {T0: 2}, instance_id=InstanceId("i"))
    assert accepted(world, P, {T0: 3})
    assert commit(world, P, {T0: 4}, **said_by(first)) is ErrorCode.UNKNOWN_MEMBER_ID


def test_clients_from_before_the_kip_say_nothing_and_are_accepted_in_any_state() -> None:
    """Row 4: versions 0 to 2 have no fields for it; what fences those is their transactional id."""
    world = GroupMachineHarness()
    member(world)
    assert accepted(world, P, {T0: 1})


def test_a_member_of_the_generation_may_commit() -> None:
    """Rows 5 to 7. KIP-447: "We propose to switch this guarantee on to group coordinator instead."."""
    world = GroupMachineHarness()
    assert accepted(world, P, {T0: 1}, **said_by(member(world)))


def test_an_unknown_member_is_fenced() -> None:
    world = GroupMachineHarness()
    first = member(world)
    said = {"member_id": MemberId("zombie"), "generation": first.generation}
    assert commit(world, P, {T0: 1}, **said) is ErrorCode.UNKNOWN_MEMBER_ID
    assert commit(world, P, {T0: 1}, generation=first.generation) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_of_an_earlier_generation_is_fenced() -> None:
    """KIP-447: "It is no longer safe to do so when we allow topic partitions to move around transactional
    producers": what moves them is a rebalance, and a rebalance is a generation."""
    world = GroupMachineHarness()
    first = member(world)
    second = member(world, None, first)
    assert commit(world, P, {T0: 1}, **said_by(first)) is ErrorCode.ILLEGAL_GENERATION
    assert accepted(world, P, {T0: 1}, **said_by(second))
    no_generation = {"member_id": first.member_id}
    assert commit(world, P, {T0: 1}, **no_generation) is ErrorCode.ILLEGAL_GENERATION


def test_a_static_member_that_was_replaced_is_fenced_by_its_instance() -> None:
    """KIP-345 and KIP-447: one instance id, two processes; the one with the older member id is out."""
    world = GroupMachineHarness()
    first = member(world, "i")
    second = world.run(
        G,
        JoinGroup(
            member_id=None,
            instance_id=InstanceId("i"),
            client_id="c",
            client_host="/h",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=20_000,
            protocol_type="consumer",
            protocols=OFFER,
            ticket=world.new_ticket(),
        ),
    )
    assert isinstance(second, JoinGroupResult)
    assert second.generation == first.generation
    instance = {"instance_id": InstanceId("i")}
    assert commit(world, P, {T0: 1}, **said_by(first), **instance) is ErrorCode.FENCED_INSTANCE_ID
    assert accepted(world, P, {T0: 1}, **said_by(second), **instance)
    other = {"instance_id": InstanceId("j")}
    assert commit(world, P, {T0: 1}, **said_by(second), **other) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_rebalance_that_is_going_on_is_no_error() -> None:
    """A plain commit hears REBALANCE_IN_PROGRESS while the group waits for its assignment; a transaction is
    ended before the client rejoins, and may be: its generation still is the group's."""
    world = GroupMachineHarness()
    first = member(world)
    world.run(
        G,
        JoinGroup(
            member_id=None,
            client_id="d",
            client_host="/h",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=20_000,
            protocol_type="consumer",
            protocols=OFFER,
            requires_known_member_id=False,
            ticket=world.new_ticket(),
        ),
    )
    assert world.groups[G].state is GroupState.PREPARING_REBALANCE
    assert accepted(world, P, {T0: 1}, **said_by(first))
    world.pass_time(10_000)  # the first member's session ends: the second is alone in the next generation
    group = world.groups[G]
    assert group.state is GroupState.COMPLETING_REBALANCE
    (second,) = group.members
    assert commit(world, P, {T0: 2}, **said_by(first)) is ErrorCode.UNKNOWN_MEMBER_ID
    assert accepted(world, P, {T0: 2}, member_id=second, generation=group.generation)
    held = CommitOffsets(
        member_id=second, generation=group.generation, offsets={T0: OffsetToCommit(offset=Offset(3))}
    )
    refused = world.run(G, held)
    assert isinstance(refused, Reject)
    assert refused.code is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_transactional_commit_is_no_heartbeat() -> None:
    """OffsetMetadataManager.commitTransactionalOffset: it is the producer that speaks, not the consumer."""
    world = GroupMachineHarness()
    first = member(world)
    world.pass_time(9_000)
    assert accepted(world, P, {T0: 1}, **said_by(first))
    world.pass_time(1_000)
    beat = world.run(G, Heartbeat(member_id=first.member_id, generation=first.generation))
    assert isinstance(beat, Reject)
    assert beat.code is ErrorCode.UNKNOWN_MEMBER_ID


def test_metadata_that_is_too_long_costs_its_partition_alone() -> None:
    world = GroupMachineHarness(GroupConfig(offset_metadata_max_bytes=4))
    offsets = {
        T0: OffsetToCommit(offset=Offset(1), metadata="12345"),
        T1: OffsetToCommit(offset=Offset(2), metadata="1234"),
    }
    answer = world.run(G, CommitTxnOffsets(identity=P, offsets=offsets))
    assert answer == OffsetPartitionErrors(errors={T0: ErrorCode.OFFSET_METADATA_TOO_LARGE})
    world.end_transaction(P, COMMIT)
    assert (fetch(world, T0, stable=True), fetch(world, T1, stable=True)) == (None, 2)
    only = CommitTxnOffsets(identity=P, offsets={T0: offsets[T0]})
    assert world.run(G, only) == OffsetPartitionErrors(errors={T0: ErrorCode.OFFSET_METADATA_TOO_LARGE})
    assert len(world.log) == 2


# -------------------------------------------------------------------- deletion and expiry


RETENTION_MS = 50_000


def test_offsets_and_groups_with_something_pending_do_not_expire() -> None:
    """KIP-447: "old transaction will eventually expire due to transaction.timeout": until then its offsets,
    and those it may replace, stay."""
    world = GroupMachineHarness(GroupConfig(offsets_retention_ms=RETENTION_MS))
    plain(world, 1, T0)
    plain(world, 1, T1)
    assert accepted(world, P, {T0: 5})
    world.pass_time(RETENTION_MS)
    world.run(G, ExpireOffsets())
    assert (fetch(world, T0, stable=False), fetch(world, T1, stable=False)) == (1, None)
    world.end_transaction(P, ABORT)
    world.run(G, ExpireOffsets())
    assert G not in world.groups
    assert not world.replay_groups()


def test_a_group_of_pending_offsets_alone_is_not_removed() -> None:
    world = GroupMachineHarness(GroupConfig(offsets_retention_ms=RETENTION_MS))
    assert accepted(world, P, {T0: 5})
    world.pass_time(RETENTION_MS)
    world.run(G, ExpireOffsets())
    assert G in world.groups
    world.end_transaction(P, COMMIT)
    assert fetch(world, stable=True) == 5


def test_an_administrator_may_not_delete_what_a_transaction_has_open() -> None:
    """Stricter than Kafka (ADR 0022): the client would commit, and what it committed would not be there."""
    world = GroupMachineHarness()
    plain(world, 1, T0)
    plain(world, 1, T1)
    assert accepted(world, P, {T0: 5})
    refused = world.run(G, DeleteGroup())
    assert isinstance(refused, Reject)
    assert refused.code is ErrorCode.POLICY_VIOLATION
    assert "producers 7" in refused.reason
    answer = world.run(G, DeleteOffsets(partitions=(T0, T1)))
    assert answer == OffsetPartitionErrors(errors={T0: ErrorCode.POLICY_VIOLATION})
    world.end_transaction(P, COMMIT)
    assert (fetch(world, T0, stable=True), fetch(world, T1, stable=True)) == (5, None)
    assert world.run(G, DeleteGroup()) == DONE


def test_with_delete_open_transactions_a_deletion_is_a_later_word_than_what_is_pending() -> None:
    """As in Kafka: a tombstone clears what is pending, so that the marker brings nothing back."""
    world = GroupMachineHarness()
    plain(world, 1)
    assert accepted(world, P, {T0: 5, T1: 6})
    assert world.run(G, DeleteOffsets(partitions=(T0,), may_discard_pending=True)) == OffsetPartitionErrors()
    assert fetch(world, T1, stable=True) is ErrorCode.UNSTABLE_OFFSET_COMMIT
    assert world.run(G, DeleteGroup(may_discard_pending=True)) == DONE
    assert G not in world.groups
    world.end_transaction(P, COMMIT)
    assert G not in world.groups
    assert not world.replay_groups()


def test_offsets_of_a_topic_that_was_deleted_go_pending_or_not() -> None:
    world = GroupMachineHarness()
    assert accepted(world, P, {T0: 5})
    world.run(G, DeleteTopicOffsets(topics=frozenset({"t"})))
    world.end_transaction(P, COMMIT)
    assert fetch(world, stable=True) is None
