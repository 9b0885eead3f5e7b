"""Records of `__consumer_offsets`: bytes by hand, round trips, and what Kafka's own logs may hold."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.broker.group.codec import (
    count_records,
    decode_batches,
    encode_batch_of,
    encode_event,
    partition_for,
)
from tallystick.broker.group.machine.events import (
    DurableEvent,
    GroupRemoved,
    GroupStored,
    OffsetsCommitted,
    OffsetsDeleted,
    StoredMember,
    TransactionEnded,
)
from tallystick.broker.group.machine.model import CommittedOffset, Generation, InstanceId
from tallystick.kernel.errors import TallystickError
from tallystick.kernel.ids import (
    CoordinatorEpoch,
    GroupId,
    LeaderEpoch,
    MemberId,
    Offset,
    ProducerEpoch,
    ProducerId,
    ProducerIdAndEpoch,
    TimestampMs,
    TopicPartition,
)
from tallystick.kernel.value import replace
from tallystick.protocol.records import (
    BatchMeta,
    ControlType,
    EndTransactionMarker,
    Record,
    encode_batch,
    encode_marker,
)

G = GroupId("g")
T3 = TopicPartition("t", 3)
NOW = TimestampMs(1_700_000_000_000)


def decoded(*batches: bytes) -> list[object]:
    return [entry.event for batch in batches for entry in decode_batches(batch)]


@pytest.mark.parametrize(
    ("text", "java_hash"),
    [("", 0), ("abc", 96354), ("hello", 99162322), ("😀", 1772899), ("polygenelubricants", -(2**31))],
)
def test_a_group_lives_in_the_partition_java_would_choose(text: str, java_hash: int) -> None:
    """Known values of String.hashCode; Kafka takes |the smallest int| as 0."""
    expected = 0 if java_hash == -(2**31) else abs(java_hash) % 50
    assert partition_for(GroupId(text), 50) == expected


def test_bytes_of_an_offset_commit() -> None:
    """Key: type 1, "g", "t", 3. Value 4 is flexible: compact metadata, topic id as tag 0."""
    offset = CommittedOffset(
        offset=Offset(5), leader_epoch=LeaderEpoch(7), metadata="m", commit_timestamp_ms=TimestampMs(9)
    )
    ((key, value),) = encode_event(OffsetsCommitted(group_id=G, offsets={T3: offset}))
    assert value is not None
    assert key.hex(" ") == "00 01 00 01 67 00 01 74 00 00 00 03"
    assert value.hex(" ") == ("00 04 00 00 00 00 00 00 00 05 00 00 00 07 02 6d 00 00 00 00 00 00 00 09 00")
    with_id = replace(offset, topic_id=UUID(int=1))
    ((_, tagged),) = encode_event(OffsetsCommitted(group_id=G, offsets={T3: with_id}))
    assert tagged is not None
    assert tagged[-19:].hex(" ") == "01 00 10" + " 00" * 15 + " 01"


def test_an_expiry_of_its_own_is_stored_in_value_version_one() -> None:
    offset = CommittedOffset(
        offset=Offset(5), commit_timestamp_ms=TimestampMs(9), expire_timestamp_ms=TimestampMs(10)
    )
    ((_, value),) = encode_event(OffsetsCommitted(group_id=G, offsets={T3: offset}))
    assert value is not None
    assert value.hex(" ") == (
        "00 01 00 00 00 00 00 00 00 05 00 00 00 00 00 00 00 00 00 09 00 00 00 00 00 00 00 0a"
    )


def test_bytes_of_a_group() -> None:
    """Value 3, the last one that is not flexible: what Kafka 4.3 writes, too."""
    member = StoredMember(
        member_id=MemberId("m"),
        instance_id=InstanceId("i"),
        client_id="c",
        client_host="/h",
        rebalance_timeout_ms=2,
        session_timeout_ms=3,
        subscription=b"s",
        assignment=b"a",
    )
    stored = GroupStored(
        group_id=G,
        generation=Generation(4),
        protocol_type="consumer",
        protocol_name="range",
        leader_id=MemberId("m"),
        state_timestamp_ms=TimestampMs(1),
        members=(member,),
    )
    ((key, value),) = encode_event(stored)
    assert value is not None
    assert key.hex(" ") == "00 02 00 01 67"
    assert value.hex(" ") == (
        "00 03 00 08 63 6f 6e 73 75 6d 65 72 00 00 00 04 00 05 72 61 6e 67 65 00 01 6d"
        " 00 00 00 00 00 00 00 01 00 00 00 01 00 01 6d 00 01 69 00 01 63 00 02 2f 68"
        " 00 00 00 02 00 00 00 03 00 00 00 01 73 00 00 00 01 61"
    )
    assert decoded(encode_batch_of([stored], NOW)) == [stored]


SMALL = st.text(st.sampled_from("aé😀"), max_size=3)
INT32 = st.integers(0, 2**31 - 1)
TIMES = st.integers(0, 2**63 - 1).map(TimestampMs)
MEMBERS = st.builds(
    StoredMember,
    member_id=SMALL.map(MemberId),
    instance_id=st.none() | SMALL.map(InstanceId),
    client_id=SMALL,
    client_host=SMALL,
    rebalance_timeout_ms=INT32,
    session_timeout_ms=INT32,
    subscription=st.binary(max_size=5),
    assignment=st.binary(max_size=5),
)
OFFSETS = st.builds(
    CommittedOffset,
    offset=st.integers(-1, 2**63 - 1).map(Offset),
    leader_epoch=st.none() | INT32.map(LeaderEpoch),
    metadata=SMALL,
    commit_timestamp_ms=TIMES,
    topic_id=st.none() | st.integers(1, 2**128 - 1).map(lambda number: UUID(int=number)),
)
PARTITIONS = st.builds(TopicPartition, SMALL, INT32)
EVENTS: st.SearchStrategy[DurableEvent] = st.one_of(
    st.builds(
        GroupStored,
        group_id=SMALL.map(GroupId),
        generation=INT32.map(Generation),
        protocol_type=st.none() | st.just("consumer"),
        protocol_name=st.none() | SMALL,
        leader_id=st.none() | SMALL.map(MemberId),
        state_timestamp_ms=st.none() | TIMES,
        members=st.lists(MEMBERS, max_size=3).map(tuple),
    ),
    st.builds(GroupRemoved, group_id=SMALL.map(GroupId)),
    st.builds(
        OffsetsCommitted,
        group_id=SMALL.map(GroupId),
        offsets=st.dictionaries(PARTITIONS, OFFSETS, min_size=1, max_size=4),
    ),
    st.builds(
        OffsetsDeleted,
        group_id=SMALL.map(GroupId),
        partitions=PARTITIONS.map(lambda partition: (partition,)),
    ),
)


@given(EVENTS)
def test_every_event_comes_back(event: DurableEvent) -> None:
    batch = encode_batch_of([event], NOW)
    assert decoded(batch) == [event]
    assert count_records(event) == len(list(encode_event(event)))


@given(st.binary(max_size=40), st.none() | st.binary(max_size=60))
def test_any_record_is_an_event_or_nothing_or_an_error(key: bytes, value: bytes | None) -> None:
    batch = encode_batch([Record(0, NOW, key, value)], BatchMeta())
    try:
        assert len(decoded(batch)) <= 1
    except TallystickError:
        pass


@pytest.mark.parametrize("key_type", [3, 8, 10, 15, 16, 17, 22, 999])
def test_records_of_other_kinds_of_groups_are_passed_over(key_type: int) -> None:
    key = key_type.to_bytes(2, "big") + b"anything"
    assert decoded(encode_batch([Record(0, NOW, key, b"x")], BatchMeta())) == []


def test_version_zero_of_a_group_has_one_timeout_for_both() -> None:
    """Written before KIP-62; a log may still hold one."""
    key = bytes.fromhex("0002 0001 67")
    value = bytes.fromhex(
        "0000 0001 63 00000001 ffff ffff 00000001 0001 6d 0001 63 0001 68 00000005 00000000 00000000"
    )
    (event,) = decoded(encode_batch([Record(0, NOW, key, value)], BatchMeta()))
    assert isinstance(event, GroupStored)
    (member,) = event.members
    assert (member.rebalance_timeout_ms, member.session_timeout_ms) == (5, 5)
    assert event.state_timestamp_ms is None


def test_offsets_in_a_transaction_wait_for_its_marker() -> None:
    """KIP-447: the batch is transactional, the marker is a control batch of the same producer."""
    offset = CommittedOffset(offset=Offset(1), commit_timestamp_ms=NOW)
    ((key, value),) = encode_event(OffsetsCommitted(group_id=G, offsets={T3: offset}))
    meta = BatchMeta(producer_id=7, producer_epoch=2, base_sequence=0, is_transactional=True)
    data = encode_batch([Record(0, NOW, key, value)], meta)
    marker = encode_marker(
        EndTransactionMarker(control_type=ControlType.COMMIT, coordinator_epoch=CoordinatorEpoch(0)),
        ProducerIdAndEpoch(ProducerId(7), ProducerEpoch(2)),
        timestamp_ms=NOW,
    )
    assert decoded(data, marker) == [
        OffsetsCommitted(group_id=G, offsets={T3: offset}, producer_id=ProducerId(7)),
        TransactionEnded(producer_id=ProducerId(7), is_committed=True),
    ]


def test_neighbouring_commits_are_one_event_and_gaps_part_them() -> None:
    """Replay applies a request at once; a compacted batch has holes, and record offsets must stay true."""
    offset = CommittedOffset(offset=Offset(1), commit_timestamp_ms=NOW)
    partitions = [TopicPartition("t", index) for index in range(4)]
    event = OffsetsCommitted(group_id=G, offsets=dict.fromkeys(partitions, offset))
    pairs = list(encode_event(event))
    whole = [Record(index, NOW, *pair) for index, pair in enumerate(pairs)]
    assert decoded(encode_batch(whole, BatchMeta())) == [event]
    entries = list(decode_batches(encode_batch([whole[0], whole[1], whole[3]], BatchMeta())))
    assert [entry.offset for entry in entries] == [0, 3]
