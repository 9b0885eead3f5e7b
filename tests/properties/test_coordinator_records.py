"""Whatever a client may legally send: it is refused, or the record it leads to can be written and read."""

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.effort import examples
from tests.support.txn_words import TWO_PHASE

from harness.groups import GroupMachineHarness, durable_view
from harness.transactions import TxnMachineHarness
from tallystick.broker.group.machine.commands import (
    CommitOffsets,
    CommitTxnOffsets,
    JoinGroup,
    JoinGroupResult,
    OffsetToCommit,
    SyncGroup,
    SyncGroupResult,
)
from tallystick.broker.group.machine.model import GroupConfig, InstanceId, MemberProtocol
from tallystick.broker.txn.machine.commands import AddPartitions, EndTxn, InitProducerId, InitProducerIdResult
from tallystick.broker.txn.machine.model import TransactionResult
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import (
    INT16_MAX,
    INT32_MAX,
    INT64_MAX,
    GroupId,
    LeaderEpoch,
    MemberId,
    Offset,
    ProducerEpoch,
    ProducerId,
    ProducerIdAndEpoch,
    TopicPartition,
    TransactionalId,
)
from tallystick.kernel.limits import STRING_BYTES_MAX

# As long as a string may be on the wire, in letters of one to four bytes.
LONGEST = [letter * (STRING_BYTES_MAX // len(letter.encode())) for letter in "xé€𝄞"]
TEXT = st.one_of(st.sampled_from(["", "a", *LONGEST]), st.text(max_size=3))
NAME = TEXT.filter(bool)
INT32 = st.sampled_from([-INT32_MAX - 1, -1, 0, 1, INT32_MAX])
INT64 = st.sampled_from([-INT64_MAX - 1, -1, 0, 1, INT64_MAX])
NON_NEGATIVE = st.sampled_from([0, 1, INT64_MAX - 1_700_000_000_000, INT64_MAX - 1, INT64_MAX])
BYTES = st.sampled_from([b"", b"\0" * 70_000])
P0 = TopicPartition("t", 0)
CONFIG = GroupConfig(
    group_initial_rebalance_delay_ms=0,
    group_min_session_timeout_ms=1,
    group_max_session_timeout_ms=INT32_MAX,
    offset_metadata_max_bytes=INT32_MAX,
)
OFFSET = st.builds(
    OffsetToCommit,
    offset=INT64.map(Offset),
    leader_epoch=st.sampled_from([None, LeaderEpoch(0), LeaderEpoch(INT32_MAX)]),
    metadata=TEXT,
)


@st.composite
def joins(draw: st.DrawFn, instance: st.SearchStrategy[str | None]) -> JoinGroup:
    named = draw(instance)
    return JoinGroup(
        member_id=None,
        instance_id=None if named is None else InstanceId(named),
        client_id=draw(TEXT),
        client_host=draw(TEXT),
        session_timeout_ms=draw(INT32.filter(lambda ms: ms > 0)),
        rebalance_timeout_ms=draw(INT32),
        protocol_type=draw(NAME),
        protocols=(MemberProtocol(draw(TEXT), draw(BYTES)),),
        requires_known_member_id=False,
        ticket=GroupMachineHarness().new_ticket(),
    )


def check_live_is_replayed(world: GroupMachineHarness, name: GroupId) -> None:
    assert durable_view(world.replay_groups().get(name)) == durable_view(world.groups.get(name))


@settings(deadline=None, max_examples=examples(quick=60, gate=100, full=600))
@given(NAME.map(GroupId), joins(st.one_of(st.none(), TEXT)), BYTES)
def test_a_member_with_anything_a_client_may_say(name: GroupId, join: JoinGroup, assignment: bytes) -> None:
    world = GroupMachineHarness(CONFIG)
    refused = world.run(name, join)
    if isinstance(refused, Reject):
        assert join.instance_id is not None
        assert len(join.instance_id) > 249
        assert refused.code is ErrorCode.INVALID_REQUEST
        return
    world.pass_time(0)
    (_, joined) = world.answers[-1]
    assert isinstance(joined, JoinGroupResult)
    assert len(joined.member_id.encode()) < STRING_BYTES_MAX
    sync = SyncGroup(
        member_id=joined.member_id,
        instance_id=join.instance_id,
        generation=joined.generation,
        assignments={joined.member_id: assignment, MemberId("x" * STRING_BYTES_MAX): assignment},
        ticket=world.new_ticket(),
    )
    # Without time to rebalance the member is given up at once.
    assert isinstance(world.run(name, sync), SyncGroupResult if join.rebalance_timeout_ms > 0 else Reject)
    check_live_is_replayed(world, name)


@settings(deadline=None, max_examples=examples(quick=60, gate=100, full=600))
@given(NAME.map(GroupId), OFFSET, st.one_of(st.none(), NON_NEGATIVE))
def test_an_offset_with_anything_a_client_may_say(
    name: GroupId, offset: OffsetToCommit, retention_ms: int | None
) -> None:
    world = GroupMachineHarness(CONFIG)
    world.run(name, CommitOffsets(offsets={P0: offset}, retention_ms=retention_ms))
    check_live_is_replayed(world, name)
    stored = world.groups[name].offsets[P0].expire_timestamp_ms
    assert (stored is None) == (retention_ms is None)
    pair = ProducerIdAndEpoch(ProducerId(INT64_MAX), ProducerEpoch(INT16_MAX))
    world.run(name, CommitTxnOffsets(identity=pair, offsets={P0: offset}))
    check_live_is_replayed(world, name)


PAIRS = st.builds(
    ProducerIdAndEpoch,
    st.sampled_from([0, 1, INT64_MAX]).map(ProducerId),
    st.sampled_from([0, 1, INT16_MAX]).map(ProducerEpoch),
)


@settings(deadline=None, max_examples=examples(quick=60, gate=100, full=600))
@given(NAME.map(TransactionalId), INT32, st.one_of(st.none(), PAIRS), st.booleans(), st.sampled_from(LONGEST))
def test_a_transaction_with_anything_a_client_may_say(
    name: TransactionalId, timeout_ms: int, expected: ProducerIdAndEpoch | None, two_phase: bool, topic: str
) -> None:
    world = TxnMachineHarness(TWO_PHASE)
    answer = world.run(
        name, InitProducerId(timeout_ms=timeout_ms, expected_identity=expected, enable_2pc=two_phase)
    )
    if isinstance(answer, Reject):
        assert not two_phase
        assert not 0 < timeout_ms <= TWO_PHASE.transaction_max_timeout_ms
        return
    assert isinstance(answer, InitProducerIdResult)
    at = frozenset({TopicPartition(topic, number) for number in (0, INT32_MAX)})
    world.run(name, AddPartitions(identity=answer.client, partitions=at, transaction_version=2))
    world.run(name, EndTxn(identity=answer.client, outcome=TransactionResult.COMMIT, transaction_version=2))
    world.write_markers(name)
    assert world.replay_entries() == world.entries
