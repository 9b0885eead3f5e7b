"""DescribeProducers: what partitions know of producers."""

from tests.support.leading import TOPIC, Leader, batch, leader, request
from tests.support.memory_broker import on_a_loop

from tallystick.broker.authorizer.authorizer import Operation, topic_resource
from tallystick.broker.txn.machine.model import TransactionResult
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.ids import ProducerEpoch, ProducerId, ProducerIdAndEpoch
from tallystick.protocol.messages.txn.describe_producers import (
    DescribeProducersRequest,
    PartitionResponse,
    ProducerState,
    TopicRequest,
)


async def describe(made: Leader, name: str, *indexes: int) -> list[PartitionResponse]:
    asked = DescribeProducersRequest(topics=(TopicRequest(name=name, partition_indexes=indexes),))
    (answer,) = (await made.ask(asked, 0)).topics
    assert answer.name == name
    return list(answer.partitions)


@on_a_loop
async def test_a_producer_is_shown_with_the_beginning_of_its_transaction() -> None:
    """KIP-664 "DescribeProducers": what find-hanging compares with the coordinators."""
    async with leader() as made:
        identity = await made.identity()
        await made.produce(request({0: batch(None)}, name=None))
        await made.produce(request({0: batch(identity, count=3, at_ms=1_000)}))
        first, second = await describe(made, TOPIC, 0, 1)
        assert (first.error_code, first.error_message, second.active_producers) == (0, None, ())
        assert first.active_producers == (
            ProducerState(
                producer_id=identity.producer_id,
                producer_epoch=identity.epoch,
                last_sequence=2,
                last_timestamp=1_000,
                coordinator_epoch=-1,
                current_txn_start_offset=1,
            ),
        )


@on_a_loop
async def test_after_the_marker_nothing_is_open_and_the_coordinator_is_known() -> None:
    async with leader() as made:
        identity = await made.identity()
        await made.write(identity)
        following = await made.end(identity, TransactionResult.COMMIT)
        ((answer,),) = ((await describe(made, TOPIC, 0))[0].active_producers,)
        assert answer == ProducerState(
            producer_id=identity.producer_id,
            producer_epoch=following.epoch,
            last_sequence=-1,
            last_timestamp=made.clock.now_ms(),
            coordinator_epoch=0,
            current_txn_start_offset=-1,
        )


@on_a_loop
async def test_idempotent_producers_are_shown_too() -> None:
    async with leader() as made:
        identity = ProducerIdAndEpoch(ProducerId(500), ProducerEpoch(2))
        await made.produce(request({1: batch(identity, transactional=False)}, name=None))
        (answer,) = await describe(made, TOPIC, 1)
        assert [p.current_txn_start_offset for p in answer.active_producers] == [-1]


@on_a_loop
async def test_what_is_refused() -> None:
    async with leader() as made:
        (missing,) = await describe(made, TOPIC, 7)
        assert missing.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert missing.error_message
        (nowhere,) = await describe(made, "nowhere", 0)
        assert nowhere.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        (bad,) = await describe(made, "not a name", 0)
        assert bad.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        made.deny((Operation.READ, topic_resource(TOPIC)))
        (forbidden,) = await describe(made, TOPIC, 0)
        assert forbidden.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert forbidden.active_producers == ()
