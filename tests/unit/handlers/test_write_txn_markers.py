"""WriteTxnMarkers from outside: what an administrator may end, and what the coordinator learns of it."""

import asyncio
from typing import Any

import pytest
from tests.support.leading import TOPIC, VERIFIED, Leader, T, leader, turns
from tests.support.memory_broker import HeldMarkers, on_a_loop

from tallystick.broker.authorizer.authorizer import CLUSTER_RESOURCE, Operation
from tallystick.broker.handlers.txn import write_txn_markers
from tallystick.broker.partitions.topics import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from tallystick.broker.server.server import CloseConnection
from tallystick.broker.txn.machine.model import ForcedCause, TransactionResult, TxnEntry
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.ids import GroupId, ProducerEpoch, ProducerId, ProducerIdAndEpoch, TopicPartition
from tallystick.protocol import encode
from tallystick.protocol.messages.groups.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from tallystick.protocol.messages.txn.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tallystick.protocol.messages.txn.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from tallystick.protocol.records import read_marker

VERIFICATION_OFF = {"transaction.partition.verification.enable": "false"}
STRANGER = ProducerIdAndEpoch(ProducerId(77), ProducerEpoch(4))


def marker(
    identity: ProducerIdAndEpoch, *indexes: int, commit: bool = False, topic: str = TOPIC, **fields: Any
) -> WritableTxnMarker:
    starts = fields.pop("starts", ())
    return WritableTxnMarker(
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        transaction_result=commit,
        topics=(WritableTxnMarkerTopic(name=topic, partition_indexes=indexes, txn_start_offsets=starts),),
        **{"coordinator_epoch": 0, **fields},
    )


async def write(made: Leader, *markers: WritableTxnMarker, version: int = 2) -> list[tuple[int, ErrorCode]]:
    """Partition and code, in the order of the answer."""
    answer = await made.ask(WriteTxnMarkersRequest(markers=markers), version)
    return [
        (partition.partition_index, ErrorCode(partition.error_code))
        for result in answer.markers
        for topic in result.topics
        for partition in topic.partitions
    ]


async def code(made: Leader, one: WritableTxnMarker, version: int = 2) -> ErrorCode:
    ((_, found),) = await write(made, one, version=version)
    return found


async def hang(made: Leader) -> int:
    """A transaction that no coordinator knows, as a broker without verification may have it."""
    await made.broker.alter_dynamic_configs("", lambda _: VERIFICATION_OFF)
    assert await made.write(STRANGER, version=VERIFIED) is ErrorCode.NONE
    (start,) = [first for first, _ in made.partition().log.producer_state_manager.iter_open_transactions()]
    return start


def entry(made: Leader) -> TxnEntry:
    found = made.broker.transactions.get_entry(T)
    assert isinstance(found, TxnEntry)
    return found


# ------------------------------------------------------------------------------------- as Kafka's


@on_a_loop
async def test_markers_are_cluster_business() -> None:
    async with leader() as made:
        made.deny((Operation.ALTER, CLUSTER_RESOURCE), (Operation.CLUSTER_ACTION, CLUSTER_RESOURCE))
        refused = await write(made, marker(STRANGER, 0, 1))
        assert refused == [(index, ErrorCode.CLUSTER_AUTHORIZATION_FAILED) for index in (0, 1)]
        for one_of_them in (Operation.ALTER, Operation.CLUSTER_ACTION):
            made.deny((one_of_them, CLUSTER_RESOURCE))
            assert await code(made, marker(STRANGER, 0)) is ErrorCode.NONE


@pytest.mark.parametrize("version", [1, 2])
@on_a_loop
async def test_a_hanging_transaction_is_ended_and_readers_go_on(version: int) -> None:
    async with leader() as made:
        await hang(made)
        assert await made.latest(isolation=1) == 0
        assert await code(made, marker(STRANGER, 0), version) is ErrorCode.NONE
        assert await made.latest(isolation=1) == 2
        assert [(t.producer_id, t.first_offset) for t in (await made.fetch()).aborted_transactions or ()] == [
            (STRANGER.producer_id, 0)
        ]


@on_a_loop
@pytest.mark.slow
async def test_more_partitions_than_there_can_be_end_the_connection() -> None:
    """One request of 289,254 partitions kept others waiting for 296 ms."""
    async with leader() as made:
        most = made.broker.config.max_partitions
        assert len(await write(made, marker(STRANGER, *range(most)))) == most
        half = range(most // 2 + 1)
        with pytest.raises(CloseConnection, match=f"max.partitions is {most}"):
            await write(made, marker(STRANGER, *half), marker(STRANGER, *half, commit=True))


@on_a_loop
async def test_answers_are_per_producer_and_partition() -> None:
    async with leader() as made:
        other = ProducerIdAndEpoch(ProducerId(78), ProducerEpoch(0))
        answer = await made.ask(
            WriteTxnMarkersRequest(
                markers=(
                    marker(STRANGER, 0, 9),
                    marker(other, 1),
                    marker(STRANGER, 1),
                    marker(other, 0, topic="nowhere"),
                )
            ),
            2,
        )
        told = {
            (result.producer_id, topic.name, p.partition_index): p.error_code
            for result in answer.markers
            for topic in result.topics
            for p in topic.partitions
        }
        assert len(answer.markers) == 2
        assert told == {
            (77, TOPIC, 0): 0,
            (77, TOPIC, 9): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            (77, TOPIC, 1): 0,
            (78, TOPIC, 1): 0,
            (78, "nowhere", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }


@on_a_loop
async def test_an_empty_request_has_an_empty_response() -> None:
    async with leader() as made:
        assert (await made.ask(WriteTxnMarkersRequest(), 1)).markers == ()


@on_a_loop
async def test_the_version_of_the_transaction_says_which_epoch_a_marker_has() -> None:
    """KIP-1228: version 2 of a transaction ends above its epoch; a request of version 1 cannot say so."""
    async with leader() as made:
        await hang(made)
        same, older = marker(STRANGER, 0, transaction_version=2), marker(STRANGER, 0, transaction_version=1)
        assert await code(made, same) is ErrorCode.INVALID_PRODUCER_EPOCH
        assert await code(made, older) is ErrorCode.NONE


@on_a_loop
async def test_a_coordinator_that_was_replaced_ends_nothing() -> None:
    async with leader() as made:
        assert await code(made, marker(STRANGER, 0, coordinator_epoch=6)) is ErrorCode.NONE
        fenced = ErrorCode.TRANSACTION_COORDINATOR_FENCED
        assert await code(made, marker(STRANGER, 0, coordinator_epoch=5)) is fenced
        assert await code(made, marker(STRANGER, 0, coordinator_epoch=-1)) is fenced


@on_a_loop
async def test_a_marker_without_a_producer_is_no_marker() -> None:
    async with leader() as made:
        for nobody in (
            ProducerIdAndEpoch(ProducerId(-1), ProducerEpoch(0)),
            ProducerIdAndEpoch(ProducerId(1), ProducerEpoch(-1)),
        ):
            assert await code(made, marker(nobody, 0)) is ErrorCode.INVALID_REQUEST
        await made.identity()
        internal = marker(STRANGER, 0, topic=TRANSACTION_STATE_TOPIC)
        assert await code(made, internal) is ErrorCode.INVALID_TOPIC_EXCEPTION


# ------------------------------------------------------------------- past the coordinator [TXN-11]


@on_a_loop
async def test_an_abort_into_an_open_transaction_is_noted_with_the_coordinator() -> None:
    async with leader() as made:
        identity = await made.identity()
        await made.write(identity, index=0)
        await made.write(identity, index=1)
        assert await code(made, marker(identity, 1)) is ErrorCode.NONE
        (noted,) = entry(made).forced_outcomes
        assert (noted.writer, noted.cause) == (identity, ForcedCause.MARKER)
        assert str(noted.partition) == f"{TOPIC}-1"
        await made.end(identity, TransactionResult.COMMIT)
        assert entry(made).forced_outcomes == (noted,)


@on_a_loop
async def test_what_the_coordinator_does_not_include_is_not_noted() -> None:
    async with leader() as made:
        identity = await made.identity()
        await made.write(identity, index=0)
        assert await code(made, marker(identity, 1)) is ErrorCode.NONE
        assert await code(made, marker(STRANGER, 0)) is ErrorCode.NONE
        assert entry(made).forced_outcomes == ()


@on_a_loop
async def test_nothing_but_a_decision_commits() -> None:
    """[TXN-11]"""
    async with leader() as made:
        identity = await made.identity()
        await made.write(identity)
        assert await code(made, marker(identity, 0, commit=True)) is ErrorCode.INVALID_TXN_STATE
        assert made.partition().log.log_end_offset == 1
        await made.end(identity, TransactionResult.ABORT)
        assert made.partition().log.producer_state_manager.first_undecided_offset is None


@on_a_loop
async def test_a_transaction_that_no_id_knows_is_not_committed() -> None:
    """[TXN-11] Nobody decided on it: it can only be aborted."""
    async with leader() as made:
        start = await hang(made)
        for starts in ((), (start,)):
            commit = marker(STRANGER, 0, commit=True, starts=starts)
            assert await code(made, commit) is ErrorCode.INVALID_TXN_STATE
        assert made.partition().log.producer_state_manager.first_undecided_offset == start
        assert await code(made, marker(STRANGER, 0)) is ErrorCode.NONE


@on_a_loop
async def test_a_commit_is_for_the_partitions_that_were_decided_and_writes_nothing_after_the_end() -> None:
    """[TXN-11]"""
    async with leader() as made:
        identity = await made.identity()
        await made.write(identity, index=0)
        await made.write(identity, index=1)
        assert await code(made, marker(identity, 0, commit=True)) is ErrorCode.INVALID_TXN_STATE
        await made.end(identity, TransactionResult.COMMIT)
        await turns()
        end = made.partition().log.log_end_offset
        assert await code(made, marker(identity, 0, commit=True)) is ErrorCode.INVALID_TXN_STATE
        assert made.partition().log.log_end_offset == end
    async with leader(markers=HeldMarkers()) as made:
        identity = await made.identity()
        await made.write(identity, index=0)
        await made.end(identity, TransactionResult.COMMIT)
        assert await code(made, marker(identity, 1, commit=True)) is ErrorCode.INVALID_TXN_STATE
        assert await code(made, marker(identity, 0, commit=True)) is ErrorCode.NONE


@pytest.mark.parametrize("decided", list(TransactionResult))
@on_a_loop
async def test_no_partition_is_given_another_outcome_than_was_decided(decided: TransactionResult) -> None:
    """[TXN-11] The decision is durable, and its marker on the way."""
    async with leader(markers=HeldMarkers()) as made:
        identity = await made.identity()
        await made.write(identity)
        await made.end(identity, decided)
        commit = decided is TransactionResult.COMMIT
        assert await code(made, marker(identity, 0, commit=not commit)) is ErrorCode.INVALID_TXN_STATE
        assert made.partition().log.producer_state_manager.first_undecided_offset == 0
        assert await code(made, marker(identity, 0, commit=commit)) is ErrorCode.NONE
        assert entry(made).forced_outcomes == ()


@on_a_loop
async def test_nothing_is_forced_while_decisions_are_not_known() -> None:
    """[TXN-11] A coordinator that still reads its log could not object."""
    async with leader() as made:
        await made.identity()
        made.broker.transactions.begin_shutdown()
        assert await code(made, marker(STRANGER, 0)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert made.partition().log.log_end_offset == 0


@on_a_loop
async def test_an_abort_beside_a_commit_that_is_being_decided_is_noted() -> None:
    """Both are on their way to the disk: the transaction is torn, and that is on record."""
    async with leader(flush_policy="ack") as made:
        identity = await made.identity()
        await made.write(identity)
        made.disk.holding = True
        ending = asyncio.ensure_future(made.end(identity, TransactionResult.COMMIT))
        await turns()
        forced = asyncio.ensure_future(code(made, marker(identity, 0)))
        await turns()
        made.disk.sync(TRANSACTION_STATE_TOPIC)
        await turns()
        made.disk.release()
        await ending
        assert await forced is ErrorCode.NONE
        assert [noted.cause for noted in entry(made).forced_outcomes] == [ForcedCause.MARKER]


@on_a_loop
async def test_offsets_in_a_transaction_are_ended_with_it_by_force_too() -> None:
    """The groups hear of the marker: who waits for a stable offset (KIP-447) goes on, with the one before."""
    async with leader() as made:
        identity = await made.identity()
        assert await made.broker.groups.ensure_topic() is None
        commit = TxnOffsetCommitRequest(
            transactional_id=T,
            group_id="g",
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            topics=(
                TxnOffsetCommitRequestTopic(
                    name=TOPIC,
                    partitions=(TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=7),),
                ),
            ),
        )
        assert (await made.ask(commit, 5)).topics[0].partitions[0].error_code == 0

        async def fetched() -> tuple[int, int]:
            wanted = OffsetFetchRequestTopic(name=TOPIC, partition_indexes=(0,))
            ask = OffsetFetchRequest(group_id="g", topics=(wanted,), require_stable=True)
            found = (await made.ask(ask, 7)).topics[0].partitions[0]
            return found.error_code, found.committed_offset

        assert await fetched() == (ErrorCode.UNSTABLE_OFFSET_COMMIT, -1)
        index = made.broker.groups.partition_for(GroupId("g"))
        assert await code(made, marker(identity, index, topic=CONSUMER_OFFSETS_TOPIC)) is ErrorCode.NONE
        assert await fetched() == (0, -1)
        (noted,) = entry(made).forced_outcomes
        assert noted.partition == TopicPartition(CONSUMER_OFFSETS_TOPIC, index)
        missing = marker(identity, 99, topic=CONSUMER_OFFSETS_TOPIC)
        assert await code(made, missing) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("not_ready", ["LOADING", "STOPPED", "LOST"])
@on_a_loop
async def test_groups_that_are_not_ready_are_told_of_as_a_leader_that_is_not(not_ready: str) -> None:
    """Senders of markers know no coordinators: 14, 15 and 16 would be fatal to them, 6 is tried again."""
    async with leader() as made:
        groups = made.broker.groups
        assert await groups.ensure_topic() is None
        match not_ready:
            case "LOADING":
                groups._runtime.reloader.mark_loading([0])
            case "STOPPED":
                groups._runtime.is_stopped = True
            case "LOST":
                groups._logic.writer.stop_applying(0)
        found = await code(made, marker(STRANGER, 0, topic=CONSUMER_OFFSETS_TOPIC))
        groups._runtime.reloader._loading_indexes.clear()
        groups._runtime.is_stopped = False
        assert found is ErrorCode.NOT_LEADER_OR_FOLLOWER


@on_a_loop
async def test_a_disk_that_hangs_is_no_reason_to_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_txn_markers, "DURABLE_S_MAX", 0.01)
    async with leader(flush_policy="ack") as made:
        made.disk.holding = True
        assert await code(made, marker(STRANGER, 0)) is ErrorCode.REQUEST_TIMED_OUT


# -------------------------------------------------------------------------------- guarded (KIP-664)


@on_a_loop
async def test_the_guard_ends_the_transaction_that_begins_there() -> None:
    async with leader() as made:
        start = await hang(made)
        guarded = marker(STRANGER, 0, starts=(start,), coordinator_epoch=-1, transaction_version=2)
        assert await code(made, guarded) is ErrorCode.NONE
        *_, last = made.partition().iter_batches(1 << 20)
        found = read_marker(last, last.rindex(b"\0\0\0\0\0\0\0\1\0\0\0"))
        assert found is not None
        assert found.coordinator_epoch == -1
        assert made.partition().log.producer_state_manager.active_producers[77].coordinator_epoch is None
        # Repeated, it finds nothing: the same request never ends a later transaction.
        assert await code(made, guarded) is ErrorCode.INVALID_TXN_STATE


@on_a_loop
async def test_the_guard_refuses_another_offset_and_another_epoch() -> None:
    async with leader() as made:
        start = await hang(made)
        other = ProducerIdAndEpoch(STRANGER.producer_id, ProducerEpoch(STRANGER.epoch + 1))
        for one, expected in (
            (marker(STRANGER, 0, starts=(start + 1,)), ErrorCode.INVALID_TXN_STATE),
            (marker(STRANGER, 1, starts=(start,)), ErrorCode.INVALID_TXN_STATE),
            (marker(other, 0, starts=(start,)), ErrorCode.INVALID_PRODUCER_EPOCH),
            (marker(STRANGER, 0, starts=(start, start)), ErrorCode.INVALID_REQUEST),
        ):
            assert await code(made, one) is expected
        assert made.partition().log.log_end_offset == 1


@on_a_loop
async def test_a_coordinator_is_never_fenced_by_a_guarded_abort() -> None:
    async with leader() as made:
        identity = await made.identity()
        await made.write(identity)
        guarded = marker(identity, 0, starts=(0,), coordinator_epoch=-1)
        assert await code(made, guarded) is ErrorCode.NONE
        await made.write(identity, 1)
        await made.end(identity, TransactionResult.COMMIT)
        assert made.partition().log.producer_state_manager.first_undecided_offset is None
        assert len(entry(made).forced_outcomes) == 1


def test_the_guard_is_a_tag_that_kafka_skips() -> None:
    """Tag 10000 of the topic: a tagged field that no schema of Kafka's has, and nothing else is different."""
    for version in (1, 2):
        plain = encode(WriteTxnMarkersRequest(markers=(marker(STRANGER, 0),)), version).hex(" ")
        guarded = encode(WriteTxnMarkersRequest(markers=(marker(STRANGER, 0, starts=(5,)),)), version).hex(
            " "
        )
        # The topic: its name, partition 0, and no tagged field; or one: tag 10000 of nine bytes, one offset.
        topic = "07 6f 72 64 65 72 73 02 00 00 00 00"
        tagged = "01 90 4e 09 02 00 00 00 00 00 00 00 05"
        assert plain.count(f"{topic} 00") == 1
        assert guarded == plain.replace(f"{topic} 00", f"{topic} {tagged}")
