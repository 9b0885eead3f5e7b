"""What the broker counts while it serves transactions."""

import pytest
from tests.support.leading import TOPIC, Leader, T, leader
from tests.support.memory_broker import on_a_loop

from tallystick.broker.handlers.open_transactions import refuse_deletion
from tallystick.broker.txn.commands import InitProducerId, NoteForcedMarker
from tallystick.broker.txn.model import Outcome
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import Identity, ProducerEpoch, ProducerId, TopicPartition


def forced(made: Leader) -> dict[str, float]:
    """Forced outcomes by cause, without those that did not happen."""
    counter = made.broker.metrics.forced_outcomes
    return {labels[0]: count for labels, count in counter.samples() if count}


@on_a_loop
async def test_each_transaction_that_ends_without_its_client_is_counted_once_by_its_cause() -> None:
    async with leader() as made:
        identity = await made.identity()
        await made.write(identity)
        ended = await made.end(identity, Outcome.COMMIT)
        assert forced(made) == {}
        await made.write(ended)
        answer = await made.broker.transactions.execute(T, InitProducerId(timeout_ms=60_000))
        assert isinstance(answer, Reject)  # the fence is told to ask again
        assert forced(made) == {"terminated": 1}
        await made.rest()
        identity = await made.identity()
        await made.write(identity)
        note = NoteForcedMarker(writer=identity, partition=TopicPartition(TOPIC, 0))
        await made.broker.transactions.execute(T, note)
        made.clock.advance(61_000)
        made.broker.transactions.tick()
        await made.rest()
        assert forced(made) == {"terminated": 1, "timed_out": 1, "marker": 1}


@pytest.mark.parametrize("version", [11, 12])
@on_a_loop
async def test_a_batch_that_the_coordinator_does_not_know_of_is_counted(version: int) -> None:
    async with leader() as made:
        identity = await made.identity()
        stranger = Identity(ProducerId(identity.producer_id + 1), ProducerEpoch(0))
        assert await made.write(stranger, version=version) is not ErrorCode.NONE
        assert made.broker.metrics.verification_failures.value() == 1


@on_a_loop
async def test_a_deletion_that_an_open_transaction_prevents_is_counted() -> None:
    async with leader() as made:
        await made.write(await made.identity())
        partition = made.partition()
        assert refuse_deletion(made.broker, [(partition, partition.log.log_end_offset)]) is not None
        assert made.broker.metrics.deletions_refused.value() == 1
