"""The transaction coordinator over a topic, partitions and a clock that the test controls."""

import asyncio
from collections.abc import Awaitable, Iterator
from itertools import count
from typing import Any

from tests.support.loops import Turn as Turn
from tests.support.loops import on_a_loop as on_a_loop

from tallystick.broker.txn.codec import decode_batches
from tallystick.broker.txn.coordinator import (
    TransactionCoordinator,
)
from tallystick.broker.txn.machine.commands import (
    DONE,
    AddPartitionsByLeader,
    EndTxn,
    EntryStored,
    InitProducerId,
    InitProducerIdResult,
    MarkerRequest,
    TxnAnswer,
    TxnCommand,
)
from tallystick.broker.txn.machine.model import TransactionResult, TxnEntry
from tallystick.broker.txn.marker_sender import MarkerResult
from tallystick.broker.txn.ports import TxnSettings
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import (
    Offset,
    ProducerEpoch,
    ProducerId,
    ProducerIdAndEpoch,
    TopicPartition,
    TransactionalId,
)
from tallystick.kernel.value import Value
from tallystick.protocol.records import patch_offset_and_epoch, read_header
from tallystick.storage.disk.fs import DiskFull
from tallystick.storage.state.producer_state import AppendOrigin
from tallystick.testing import FakeClock

T = TransactionalId("t")
P0, P1, P2 = (TopicPartition("data", index) for index in range(3))
FULL = DiskFull("/data", "no space left")


class At(Value):
    last_offset: Offset


class MemoryPartition:
    """An in-memory log whose syncs can be held back, and whose appends can be refused or fail."""

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self.end = 0
        self.leader_epoch = 7
        self.syncs: list[asyncio.Future[None]] | None = None
        self.refusal: Reject | Exception | None = None
        # Raised after the batch is in the log, so that its success is not reported.
        self.unheard: Exception | None = None
        self.unreadable: Exception | None = None

    def append(self, batches: bytes, origin: AppendOrigin) -> At | Reject:
        if isinstance(self.refusal, Exception):
            raise self.refusal
        if self.refusal is not None:
            return self.refusal
        placed = bytearray(batches)
        patch_offset_and_epoch(placed, 0, self.end, 0)
        self.end += read_header(batches).record_count
        self.batches.append(bytes(placed))
        if self.unheard is not None:
            raise self.unheard
        return At(Offset(self.end - 1))

    def when_durable(self, offset: Offset) -> "asyncio.Future[None] | None":
        if self.syncs is None:
            return None
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.syncs.append(future)
        return future

    def hold(self) -> None:
        """Hold back every sync from now on."""
        self.syncs = []

    def sync(self, failure: Exception | None = None) -> None:
        """Sync everything so far, or fail to."""
        held, self.syncs = self.syncs or [], []
        for future in held:
            if failure is None:
                future.set_result(None)
            else:
                future.set_exception(failure)

    def iter_batches(self, max_bytes: int) -> Iterator[bytes]:
        if self.unreadable is not None:
            raise self.unreadable
        yield from self.batches

    def states(self) -> list[str]:
        """Return the states in the log, in order."""
        return [
            record.entry.state.label if isinstance(record, EntryStored) else "gone"
            for batch in self.batches
            for record in decode_batches(batch)
        ]


class MemoryTopic:
    def __init__(self, partitions: int = 1) -> None:
        self.partitions = [MemoryPartition() for _ in range(partitions)]

    @property
    def partition_count(self) -> int:
        return len(self.partitions)

    def list_partitions(self) -> list[MemoryPartition]:
        return self.partitions

    async def ensure_exists(self) -> Reject | None:
        return None


class MemoryMarkers:
    """Partitions that take markers, unless a test makes them refuse."""

    def __init__(self) -> None:
        self.written: list[tuple[MarkerRequest, TopicPartition, int]] = []
        self.answers: dict[TopicPartition, MarkerResult | Exception | Awaitable[MarkerResult]] = {}

    def write(
        self, send: MarkerRequest, partition: TopicPartition, coordinator_epoch: int
    ) -> MarkerResult | Awaitable[MarkerResult]:
        answer = self.answers.get(partition, Offset(100))
        if isinstance(answer, Exception):
            raise answer
        if not isinstance(answer, Reject):
            self.written.append((send, partition, coordinator_epoch))
        return answer

    def partitions(self) -> list[TopicPartition]:
        return sorted(partition for _, partition, _ in self.written)


class World:
    def __init__(self, topic: MemoryTopic | None = None, **settings: Any) -> None:
        self.topic = topic or MemoryTopic()
        self.log = self.topic.partitions[0]
        self.markers = MemoryMarkers()
        self.clock = FakeClock()
        self.settings = TxnSettings(**settings)
        self.ids = count(1000)
        self.no_ids: Exception | asyncio.Event | None = None
        self.coordinator = self.new_coordinator()

    def new_coordinator(self) -> TransactionCoordinator:
        return TransactionCoordinator(
            self.topic, self.markers, self.new_producer_id, lambda: self.settings, self.clock
        )

    async def new_producer_id(self) -> ProducerId:
        if isinstance(self.no_ids, asyncio.Event):
            await self.no_ids.wait()
        elif self.no_ids is not None:
            raise self.no_ids
        return ProducerId(next(self.ids))

    async def __aenter__(self) -> "World":
        self.coordinator.start()
        await self.settle()
        return self

    async def __aexit__(self, *exc: object) -> None:
        for partition in self.topic.partitions:
            partition.sync()
        await self.coordinator.stop()

    async def settle(self) -> None:
        for _ in range(12):
            await Turn()

    async def restart(self) -> None:
        """End the process, and begin another one with the same log."""
        await self.coordinator.stop()
        self.log.syncs = None
        self.coordinator = self.new_coordinator()
        self.coordinator.start()
        await self.settle()

    async def pass_time(self, by_ms: int) -> None:
        self.clock.advance(by_ms)
        while self.coordinator.tick() <= self.coordinator._runtime.timer.monotonic_ms():
            await Turn()
        await self.settle()

    def ask(self, command: TxnCommand, name: TransactionalId = T) -> "asyncio.Future[TxnAnswer]":
        return self.coordinator.submit(name, command)

    async def init(self, name: TransactionalId = T, timeout_ms: int = 60_000) -> ProducerIdAndEpoch:
        answer = await self.coordinator.execute(name, InitProducerId(timeout_ms=timeout_ms))
        assert isinstance(answer, InitProducerIdResult)
        return answer.client

    async def begin(self, *partitions: TopicPartition, name: TransactionalId = T) -> ProducerIdAndEpoch:
        """Open a transaction."""
        who = await self.init(name)
        assert await self.coordinator.execute(name, add(who, *(partitions or (P0,)))) == DONE
        return who

    def entry(self, name: TransactionalId = T) -> TxnEntry:
        entry = self.coordinator.get_entry(name)
        assert isinstance(entry, TxnEntry)
        return entry


def add(who: ProducerIdAndEpoch, *partitions: TopicPartition) -> AddPartitionsByLeader:
    return AddPartitionsByLeader(identity=who, partitions=frozenset(partitions))


def commit(who: ProducerIdAndEpoch, version: int = 2) -> EndTxn:
    return EndTxn(identity=who, outcome=TransactionResult.COMMIT, transaction_version=version)


def other_than(who: ProducerIdAndEpoch) -> ProducerIdAndEpoch:
    return ProducerIdAndEpoch(ProducerId(1), ProducerEpoch(9))


def code_of(answer: TxnAnswer) -> ErrorCode:
    assert isinstance(answer, Reject)
    return answer.code
