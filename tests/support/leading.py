"""An in-memory broker for tests of partition leaders and transactional producers; its disk can be held."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from tests.support.memory_broker import HeldMarkers, MemoryBroker, memory_broker, memory_disk

from tallystick.broker.broker import Broker
from tallystick.broker.handlers import HANDLERS
from tallystick.broker.handlers.dispatch import ResponseBody
from tallystick.broker.partitions.data_directory import StorageEnvironment
from tallystick.broker.partitions.partition import Partition
from tallystick.broker.partitions.topics import TRANSACTION_STATE_TOPIC
from tallystick.broker.server.request_context import RequestContext
from tallystick.broker.txn.machine.commands import EndTxn, EndTxnResult, InitProducerId, InitProducerIdResult
from tallystick.broker.txn.machine.model import TransactionResult
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.ids import Offset, ProducerIdAndEpoch, TopicPartition, TransactionalId
from tallystick.kernel.value import replace
from tallystick.protocol import decode, encode
from tallystick.protocol.apis import ApiKey
from tallystick.protocol.messages.data.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from tallystick.protocol.messages.data.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from tallystick.protocol.messages.data.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tallystick.protocol.messages.txn.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from tallystick.protocol.records import BatchMeta, Record, encode_batch
from tallystick.storage.disk.fs import StorageFailure
from tallystick.storage.log.log import Log

TOPIC = "orders"
T = TransactionalId("pay-7")
IMPLICIT, VERIFIED, OLD = 12, 11, 10  # versions of Produce


class HeldDisk:
    """Syncs logs only when a test says so."""

    def __init__(self) -> None:
        self.holding = False
        self._kept: frozenset[str] = frozenset()  # topics that are synced even while holding
        self._wanted: dict[Log, None] = {}
        self._synced: Callable[[Log, Offset], None] = lambda log, end: None
        self._failed: Callable[[Log, StorageFailure], None] = lambda log, failure: None

    def syncer(
        self, synced: Callable[[Log, Offset], None], failed: Callable[[Log, StorageFailure], None]
    ) -> "HeldDisk":
        self._synced, self._failed = synced, failed
        return self

    def start(self) -> None: ...

    def stop(self) -> None:
        self.release()

    def request(self, log: Log) -> None:
        self._wanted[log] = None
        if not self.holding:
            self.sync()
        for topic in self._kept:
            self.sync(topic)

    @property
    def waiting(self) -> set[str]:
        """The topics of the logs that wait for a sync."""
        return {log.topic_partition.topic for log in self._wanted}

    def keep_syncing(self, *topics: str) -> None:
        """Sync these topics even while holding."""
        self._kept = frozenset(topics)

    def sync(self, topic: str | None = None) -> None:
        """Sync everything that waits, or only what waits of one topic."""
        for log in [log for log in self._wanted if topic in (None, log.topic_partition.topic)]:
            del self._wanted[log]
            self._synced(log, log.sync())

    def fail(self, topic: str) -> None:
        """Fail to sync what waits of one topic."""
        for log in [log for log in self._wanted if log.topic_partition.topic == topic]:
            del self._wanted[log]
            self._failed(log, log.take_offline("input/output error"))

    def release(self) -> None:
        self.holding = False
        self.sync()


class Leader(MemoryBroker):
    """The broker, with two partitions of a topic, and the actions of a transactional producer."""

    def __init__(self, broker: Broker, disk: HeldDisk) -> None:
        super().__init__(broker)
        self.disk = disk

    def partition(self, index: int = 0) -> Partition:
        found = self.broker.topics.find_partition(TOPIC, index)
        assert found is not None
        return found

    def records_of_coordinator(self) -> int:
        """Return the number of records in `__transaction_state`: one per change of an id."""
        return sum(
            p.log.log_end_offset for p in self.broker.topics.list_partitions_of(TRANSACTION_STATE_TOPIC)
        )

    async def rest(self) -> None:
        """Let everything under way finish, also in the thread that producer ids come from."""
        for _ in range(3):
            await self.broker.worker.run(lambda: None)
            await turns()

    # ---- a producer

    async def identity(self, name: TransactionalId = T, *, two_phase: bool = False) -> ProducerIdAndEpoch:
        assert await self.broker.transactions.ensure_topic() is None
        command = InitProducerId(timeout_ms=60_000, enable_2pc=two_phase)
        answer = await self.broker.transactions.execute(name, command)
        assert isinstance(answer, InitProducerIdResult), answer
        return answer.client

    async def end(
        self,
        identity: ProducerIdAndEpoch,
        outcome: TransactionResult,
        *,
        name: TransactionalId = T,
        version: int = 2,
    ) -> ProducerIdAndEpoch:
        answer = await self.broker.transactions.execute(
            name, EndTxn(identity=identity, outcome=outcome, transaction_version=version)
        )
        assert isinstance(answer, EndTxnResult), answer
        await turns()
        return answer.client

    async def add(self, identity: ProducerIdAndEpoch, *indexes: int, name: TransactionalId = T) -> None:
        """Add partitions ahead of the data, as clients before transaction version 2 do."""
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=name,
            v3_and_below_producer_id=identity.producer_id,
            v3_and_below_producer_epoch=identity.epoch,
            v3_and_below_topics=(AddPartitionsToTxnTopic(name=TOPIC, partitions=indexes),),
        )
        answer = await self.ask(request, 3)
        codes = {
            p.partition_error_code
            for t in answer.results_by_topic_v3_and_below
            for p in t.results_by_partition
        }
        assert codes == {0}

    def send(self, request: ProduceRequest, version: int = IMPLICIT) -> "asyncio.Future[ResponseBody]":
        """Start a request. Its bytes are overwritten as soon as the handler has returned."""
        frame = bytearray(encode(request, version))
        context = RequestContext(ApiKey.PRODUCE, version, 1, "client", "10.0.0.1", 1)
        answer = HANDLERS[ApiKey.PRODUCE].run(self.broker, memoryview(frame), context)
        frame[:] = b"\xff" * len(frame)
        if isinstance(answer, Awaitable):
            return asyncio.ensure_future(answer)
        done: asyncio.Future[ResponseBody] = asyncio.get_running_loop().create_future()
        done.set_result(answer)
        return done

    async def produce(
        self, request: ProduceRequest, version: int = IMPLICIT
    ) -> list[PartitionProduceResponse]:
        return told(await self.send(request, version), version)

    async def write(
        self, identity: ProducerIdAndEpoch, sequence: int = 0, index: int = 0, **kind: Any
    ) -> ErrorCode:
        """Produce one record to one partition."""
        version = kind.pop("version", IMPLICIT)
        (answer,) = await self.produce(request({index: batch(identity, sequence)}, **kind), version)
        return ErrorCode(answer.error_code)

    # ---- a consumer

    async def fetch(
        self, offset: int = 0, *, isolation: int = 1, max_bytes: int = 1 << 20, wait_ms: int = 0
    ) -> PartitionData:
        """Fetch partition 0."""
        request = FetchRequest(
            replica_id=-1,
            max_wait_ms=wait_ms,
            min_bytes=1,
            isolation_level=isolation,
            topics=(
                FetchTopic(
                    topic=TOPIC,
                    partitions=(
                        FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=max_bytes),
                    ),
                ),
            ),
        )
        answer = await self.ask(request, 12)
        found: PartitionData = answer.responses[0].partitions[0]
        return found

    async def latest(self, *, isolation: int, timestamp: int = -1) -> int:
        request = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=isolation,
            topics=(
                ListOffsetsTopic(
                    name=TOPIC, partitions=(ListOffsetsPartition(partition_index=0, timestamp=timestamp),)
                ),
            ),
        )
        offset: int = (await self.ask(request, 7)).topics[0].partitions[0].offset
        return offset


@asynccontextmanager
async def leader(
    disk: StorageEnvironment | None = None, *, markers: HeldMarkers | None = None, **settings: Any
) -> AsyncIterator[Leader]:
    """Run a broker; `flush_policy="ack"` holds the disk as soon as `disk.holding` is set."""
    held = HeldDisk()
    given = replace(disk or memory_disk(), make_syncer=held.syncer)
    async with memory_broker(given, markers=markers, **settings) as made:
        leading = Leader(made.broker, held)
        await leading.make_topic(TOPIC)
        try:
            yield leading
        finally:
            held.release()


async def turns(count: int = 20) -> None:
    """Let everything happen that needs no time."""
    for _ in range(count):
        await asyncio.sleep(0)


def batch(
    identity: ProducerIdAndEpoch | None,
    sequence: int = 0,
    *,
    count: int = 1,
    transactional: bool = True,
    at_ms: int = 1,
) -> bytes:
    records = [
        Record(offset=n, timestamp_ms=at_ms, key=b"k", value=b"v%d" % (sequence + n), headers=())
        for n in range(count)
    ]
    if identity is None:
        return encode_batch(records, BatchMeta())
    meta = BatchMeta(
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        base_sequence=sequence,
        is_transactional=transactional,
    )
    return encode_batch(records, meta)


def request(
    batches: dict[int, bytes] | list[tuple[int, bytes]],
    *,
    name: str | None = T,
    acks: int = -1,
    timeout_ms: int = 10_000,
) -> ProduceRequest:
    pairs = batches.items() if isinstance(batches, dict) else batches
    return ProduceRequest(
        transactional_id=name,
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=(
            TopicProduceData(
                name=TOPIC,
                partition_data=tuple(PartitionProduceData(index=i, records=data) for i, data in pairs),
            ),
        ),
    )


def told(body: ResponseBody, version: int = IMPLICIT) -> list[PartitionProduceResponse]:
    assert body is not None
    answer = decode(ProduceResponse, b"".join(body), version)
    return [partition for topic in answer.responses for partition in topic.partition_responses]


def orders(index: int) -> TopicPartition:
    return TopicPartition(TOPIC, index)
