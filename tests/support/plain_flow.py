"""A minimal producing engine for tests of transactions alone: one record per request, sent at once."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from tests.support.failing_cluster import FailingCluster, FaultPlan

from tallystick.client.errors import ClientError, build_broker_error
from tallystick.client.net.cluster import Cluster
from tallystick.client.settings.config import ProducerConfig
from tallystick.client.transactions.engine import TransactionManager
from tallystick.client.transactions.state import State
from tallystick.kernel.clock import SystemClock
from tallystick.kernel.ids import ProducerIdAndEpoch, TopicPartition
from tallystick.protocol.messages.data.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tallystick.protocol.records import BatchMeta, Record, encode_batch


@dataclass
class PlainFlow:
    """A flow that has nothing to flush, as records go out in `send`; `held` delays `flush` for a test."""

    sequences: dict[TopicPartition, int] = field(default_factory=dict)
    held: asyncio.Event | None = None
    discarded: int = 0
    gate: Callable[[], Exception] | None = None

    def close_gate(self, why: Callable[[], Exception]) -> None:
        self.gate = why

    def open_gate(self) -> None:
        self.gate = None

    async def flush(self) -> None:
        if self.held is not None:
            await self.held.wait()

    async def abort_unsent(self, why: ClientError) -> None:
        self.discarded += 1

    def restart_sequences(self) -> None:
        self.sequences.clear()


@dataclass
class PlainProducer:
    """A transactional id with its manager, and `send`."""

    cluster: Cluster
    flow: PlainFlow
    txn: TransactionManager

    async def send(self, topic: str, value: str, partition: int = 0) -> None:
        """Write one record and wait for its acknowledgement."""
        at = TopicPartition(topic, partition)
        if self.txn.machine.state is not State.IN_TRANSACTION:
            raise self.txn.send_context.build_send_error()
        try:
            if not self.txn.send_context.is_partition_added(at):
                await self.txn.send_context.add_partitions([at])
            await self.cluster.run_with_retries(
                "Produce",
                at,
                lambda: self._produce(at, value, self.txn.identity),
                self.cluster.start_deadline("delivery.timeout.ms", 20_000),
            )
        except ClientError as exc:
            self.txn.send_context.note_batch_failure(at, exc, is_numbered=True)
            raise
        self.flow.sequences[at] = self.flow.sequences.get(at, 0) + 1

    async def _produce(self, at: TopicPartition, value: str, identity: ProducerIdAndEpoch) -> None:
        meta = BatchMeta(
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            base_sequence=self.flow.sequences.get(at, 0),
            is_transactional=True,
        )
        # A record of 1970 is older than any retention: Kafka rolls the segment behind it, and deletes it half
        # a minute after its start.
        record = Record(0, SystemClock().now_ms(), None, value.encode())
        data = PartitionProduceData(index=at.partition, records=encode_batch([record], meta))
        request = ProduceRequest(
            transactional_id=self.txn.transactional_id,
            acks=-1,
            timeout_ms=10_000,
            topic_data=(TopicProduceData(name=at.topic, partition_data=(data,)),),
        )
        highest = 12 if self.txn.transaction_version >= 2 else 11
        node = await self.cluster.find_leader(at)
        answer = await self.cluster.send(node, request, ProduceResponse, max_version=highest)
        code = answer.responses[0].partition_responses[0].error_code
        if code:
            raise build_broker_error("Produce", at, code)


@asynccontextmanager
async def producer(
    bootstrap: str,
    transactional_id: str = "pay-7",
    config: Mapping[str, object] | None = None,
    plan: FaultPlan | None = None,
) -> AsyncIterator[PlainProducer]:
    """Provide a producer; leaving the block is its crash: it ends nothing."""
    settings = {"bootstrap.servers": bootstrap, "transactional.id": transactional_id, **(config or {})}
    parsed = ProducerConfig.parse(settings)
    cluster = FailingCluster(parsed.client, plan or FaultPlan())
    flow = PlainFlow()
    try:
        yield PlainProducer(cluster, flow, TransactionManager(cluster, parsed, flow))
    finally:
        await cluster.close()
