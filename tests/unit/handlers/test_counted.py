"""What the broker counts and shows while it serves transactions."""

import pytest
from tests.support.leading import TOPIC, Leader, T, batch, leader
from tests.support.memory_broker import HeldMarkers, on_a_loop

from tallystick.broker.handlers.txn.open_transactions import check_records_deletion
from tallystick.broker.metrics.broker_metrics import read_gauges
from tallystick.broker.serve import make_gauge_sources
from tallystick.broker.txn.machine.commands import InitProducerId, RecordForcedMarker
from tallystick.broker.txn.machine.model import TransactionResult
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import ProducerEpoch, ProducerId, ProducerIdAndEpoch, TopicPartition
from tallystick.storage.state.producer_state import AppendOrigin


def forced(made: Leader) -> dict[str, float]:
    """Forced outcomes by cause, without those that did not happen."""
    counter = made.broker.metrics.forced_outcomes
    return {labels[0]: count for labels, count in counter.samples() if count}


@on_a_loop
async def test_each_transaction_that_ends_without_its_client_is_counted_once_by_its_cause() -> None:
    async with leader() as made:
        identity = await made.identity()
        await made.write(identity)
        ended = await made.end(identity, TransactionResult.COMMIT)
        assert forced(made) == {}
        await made.write(ended)
        answer = await made.broker.transactions.execute(T, InitProducerId(timeout_ms=60_000))
        assert isinstance(answer, Reject)  # the fence is told to ask again
        assert forced(made) == {"terminated": 1}
        await made.rest()
        identity = await made.identity()
        await made.write(identity)
        note = RecordForcedMarker(writer=identity, partition=TopicPartition(TOPIC, 0))
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
        stranger = ProducerIdAndEpoch(ProducerId(identity.producer_id + 1), ProducerEpoch(0))
        assert await made.write(stranger, version=version) is not ErrorCode.NONE
        assert made.broker.metrics.verification_failures.value() == 1


@on_a_loop
async def test_a_deletion_that_an_open_transaction_prevents_is_counted() -> None:
    async with leader() as made:
        await made.write(await made.identity())
        partition = made.partition()
        assert check_records_deletion(made.broker, [(partition, partition.log.log_end_offset)]) is not None
        assert made.broker.metrics.deletions_refused.value() == 1


def shown(made: Leader, name: str, *labels: str) -> float:
    readings = dict(
        reading for reading in read_gauges(make_gauge_sources(made.broker)) if reading is not None
    )
    (samples,) = (samples for family, samples in readings.items() if family.name == name)
    return dict(samples)[labels]


GAUGES = (
    ("kafka_cluster_partition_laststableoffsetlag", TOPIC, "0"),
    ("kafka_cluster_partition_maxactivetransactionduration", TOPIC, "0"),
    ("tallystick_decided_transaction_time_max_ms",),
    ("tallystick_hanging_transactions",),
)


@on_a_loop
async def test_gauges_follow_a_transaction_to_its_decision() -> None:
    async with leader(markers=HeldMarkers()) as made:
        identity = await made.identity()
        await made.write(identity)
        made.clock.advance(70)
        assert [shown(made, *name) for name in GAUGES] == [1, 70, 0, 0]
        await made.end(identity, TransactionResult.COMMIT)
        made.clock.advance(7)
        assert [shown(made, *name) for name in GAUGES] == [1, 77, 7, 0]


@on_a_loop
async def test_when_it_is_complete_nothing_is_left_and_what_then_comes_in_hangs() -> None:
    async with leader() as made:
        identity = await made.identity()
        await made.write(identity)
        ended = await made.end(identity, TransactionResult.COMMIT)
        assert [shown(made, *name) for name in GAUGES] == [0, 0, 0, 0]
        # As a leader of before KIP-890 would have let it in, after the marker.
        made.partition().append(batch(ended, at_ms=made.clock.now_ms()), AppendOrigin.REPLICATION)
        made.clock.advance(5)
        assert [shown(made, *name) for name in GAUGES] == [1, 5, 0, 1]
