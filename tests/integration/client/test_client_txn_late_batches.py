"""Batches without an answer at the end of their transaction: waiting to be sent again, or given up in flight.

The clock of the engine stands still, so that a batch stays what a test needs it to be.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from tests.support.scripted_broker import ScriptedBroker, Seen

from tallystick.client.errors import AbortRequired, TimedOut
from tallystick.client.net.cluster import Cluster
from tallystick.client.producer.batches.accumulator import BufferFullOrUnknownTopic
from tallystick.client.producer.batches.delivery import Delivery
from tallystick.client.producer.engine import ProducerEngine
from tallystick.client.settings.config import ProducerConfig
from tallystick.client.transactions.engine import TransactionManager
from tallystick.kernel.codes import ErrorCode
from tallystick.protocol.apis import ApiKey
from tallystick.protocol.messages.cluster.find_coordinator import Coordinator, FindCoordinatorResponse
from tallystick.protocol.messages.data.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from tallystick.protocol.messages.txn.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
)
from tallystick.protocol.messages.txn.end_txn import EndTxnResponse
from tallystick.protocol.messages.txn.init_producer_id import InitProducerIdResponse
from tallystick.protocol.records.batch import read_header
from tallystick.testing import FakeClock, eventually

pytestmark = pytest.mark.server

DELIVERY_TIMEOUT_MS = 120_000


@dataclass
class Coordination:
    """A coordinator and a leader of topic `t` that know one producer id; the test answers Produce."""

    coordinator: ScriptedBroker
    leader: ScriptedBroker
    version: int
    epoch: int = -1
    produce_codes: list[int] = field(default_factory=list)
    """Of the answers to come; none when it is empty."""
    may_answer: asyncio.Event = field(default_factory=asyncio.Event)
    produced: list[tuple[int, int]] = field(default_factory=list)
    """Epoch and base sequence of every batch that came."""

    def install(self) -> None:
        coordinator, leader = self.coordinator, self.leader
        self.may_answer.set()
        for broker in {coordinator.node_id: coordinator, leader.node_id: leader}.values():
            broker.features = {"transaction.version": self.version} if self.version else {}
            broker.scripts |= {
                ApiKey.METADATA: lambda _: coordinator.metadata(leader, t=leader.node_id),
                ApiKey.FIND_COORDINATOR: self._find_coordinator,
                ApiKey.INIT_PRODUCER_ID: self._init_producer_id,
                ApiKey.ADD_PARTITIONS_TO_TXN: self._add_partitions,
                ApiKey.PRODUCE: self._produce,
                ApiKey.END_TXN: self._end_txn,
            }

    def _find_coordinator(self, seen: Seen) -> object:
        at = self.coordinator
        one = Coordinator(
            key="x", node_id=at.node_id, host=at.host, port=at.port, error_code=0, error_message=None
        )
        return FindCoordinatorResponse(coordinators=(one,))

    def _init_producer_id(self, seen: Seen) -> object:
        self.epoch += 1
        return InitProducerIdResponse(producer_id=9, producer_epoch=self.epoch)

    def _end_txn(self, seen: Seen) -> object:
        if self.version < 2:
            return EndTxnResponse()
        self.epoch += 1
        return EndTxnResponse(producer_id=9, producer_epoch=self.epoch)

    def _add_partitions(self, seen: Seen) -> object:
        assert isinstance(seen.request, AddPartitionsToTxnRequest)
        topics = tuple(
            AddPartitionsToTxnTopicResult(
                name=topic.name,
                results_by_partition=tuple(
                    AddPartitionsToTxnPartitionResult(partition_index=index, partition_error_code=0)
                    for index in topic.partitions
                ),
            )
            for topic in seen.request.v3_and_below_topics
        )
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=topics)

    async def _produce(self, seen: Seen) -> object:
        assert isinstance(seen.request, ProduceRequest)
        (topic,) = seen.request.topic_data
        (part,) = topic.partition_data
        assert part.records is not None
        header = read_header(part.records)
        self.produced.append((header.producer_epoch, header.base_sequence))
        code = self.produce_codes.pop(0)
        await self.may_answer.wait()
        answer = PartitionProduceResponse(index=part.index, error_code=code, base_offset=7)
        return ProduceResponse(
            responses=(
                TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=(answer,)),
            )
        )


@dataclass
class LateProducer:
    """An engine on a clock of its own, and its transactions."""

    cluster: Cluster
    engine: ProducerEngine
    txn: TransactionManager
    clock: FakeClock

    async def send(self, value: bytes) -> Delivery:
        while True:
            try:
                return self.engine.accumulator.append("t", value, None, partition=0)
            except BufferFullOrUnknownTopic:
                await self.engine.wait_for_space("t", self.cluster.start_deadline("max.block.ms", 30_000))

    async def wait_until_in_flight(self, count: int) -> None:
        """Wait until this many Produce requests have no answer."""
        await asyncio.to_thread(eventually, lambda: self.engine.metrics()["requests-in-flight"] == count)

    def pass_time(self, by_ms: int) -> None:
        self.clock.advance(by_ms)
        self.engine.wake()


@asynccontextmanager
async def late_producer(version: int) -> AsyncIterator[tuple[Coordination, LateProducer]]:
    async with ScriptedBroker(node_id=1) as coordinator, ScriptedBroker(node_id=2) as leader:
        world = Coordination(coordinator, leader, version)
        world.install()
        config = ProducerConfig.parse(
            {
                "bootstrap.servers": coordinator.address,
                "transactional.id": "x",
                "linger.ms": 0,
                "delivery.timeout.ms": DELIVERY_TIMEOUT_MS,
            }
        )
        clock, cluster = FakeClock(), Cluster(config.client)
        engine = ProducerEngine(cluster, config, clock)
        txn = TransactionManager(cluster, config, engine)
        engine.use_transactions(txn.send_context)
        try:
            await txn.init()
            yield world, LateProducer(cluster, engine, txn, clock)
        finally:
            await engine.close(cluster.start_deadline("close", 1_000))
            await cluster.close()


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_batch_that_waits_for_a_retry_at_the_abort_leaves_no_gap_to_the_next_transaction(
    version: int,
) -> None:
    """KIP-360: its numbers are missing at the broker, so the next transaction has another epoch."""

    async def run() -> None:
        async with late_producer(version) as (world, late):
            world.produce_codes = [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NONE]
            await late.txn.begin()
            first = await late.send(b"a")
            await asyncio.to_thread(eventually, lambda: world.produced)
            await late.wait_until_in_flight(0)
            await late.txn.abort()
            assert isinstance(first.exception(0), AbortRequired)
            assert late.txn.needs_init == (version < 2)
            late.pass_time(10_000)  # the backoff
            await late.txn.begin()
            second = await late.send(b"b")
            assert (await second).offset == 7
            await late.txn.commit()
            assert world.produced == [(0, 0), (1, 0)]

    asyncio.run(asyncio.wait_for(run(), 60))


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("answer", ["written", "fenced", "lost"])
def test_the_next_transaction_waits_for_a_batch_that_was_given_up_in_flight(
    version: int, answer: str
) -> None:
    """[CLI-23] Its partition begins at 0 under the next epoch after the answer; the abort does not wait."""

    async def run() -> None:
        async with late_producer(version) as (world, late):
            fenced = ErrorCode.INVALID_PRODUCER_EPOCH if answer == "fenced" else ErrorCode.NONE
            world.produce_codes = [fenced, ErrorCode.NONE]
            world.may_answer.clear()
            await late.txn.begin()
            first = await late.send(b"a")
            await asyncio.to_thread(eventually, lambda: world.produced)
            late.pass_time(DELIVERY_TIMEOUT_MS)
            with pytest.raises(AbortRequired, match=r"delivery\.timeout\.ms"):
                await late.txn.commit()
            await late.txn.abort()
            await late.txn.begin()
            second = await late.send(b"b")
            assert late.engine.metrics()["requests-in-flight"] == 1
            if answer == "lost":
                world.leader.hang_up()
                await asyncio.to_thread(eventually, lambda: len(world.produced) == 2)
            world.may_answer.set()
            assert (await second).offset == 7
            await late.txn.commit()
            assert isinstance(first.exception(0), TimedOut)
            assert world.produced == [(0, 0), (1, 0)]

    asyncio.run(asyncio.wait_for(run(), 60))
