"""The real group coordinator on an in-memory log, with a disk that the test controls."""

import asyncio
from collections.abc import Iterator
from itertools import count

from tests.support.loops import Turn as Turn
from tests.support.loops import on_a_loop as on_a_loop

from tallystick.broker.group.coordinator import GroupCoordinator
from tallystick.broker.group.machine.commands import (
    CommitOffsets,
    GroupAnswer,
    GroupCommand,
    JoinGroup,
    JoinGroupResult,
    MemberIdRequired,
    OffsetToCommit,
    SyncGroup,
    SyncGroupResult,
)
from tallystick.broker.group.machine.model import ClassicGroup, GroupConfig, InstanceId, MemberProtocol
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import GroupId, MemberId, Offset, TopicPartition
from tallystick.protocol.records import patch_offset_and_epoch, read_header
from tallystick.storage.disk.fs import DiskFull
from tallystick.storage.log.log import NO_GUARD, AppendResult, TxnGuard
from tallystick.storage.state.producer_state import AppendOrigin
from tallystick.testing import FakeClock

G = GroupId("g")
T0 = TopicPartition("t", 0)


class Gate:
    """Holds durability back while it is closed."""

    def __init__(self) -> None:
        self.closed = False
        self.waiting: list[asyncio.Future[None]] = []

    def clear(self) -> None:
        self.closed = True

    def set(self) -> None:
        self.closed = False
        for future in self.waiting:
            if not future.done():
                future.set_result(None)
        self.waiting.clear()

    def fail(self, cause: Exception) -> None:
        """Let the sync fail: nothing that waits becomes durable."""
        for future in self.waiting:
            if not future.done():
                future.set_exception(cause)
        self.waiting.clear()


class MemoryPartition:
    """An in-memory log whose durability can be held back, refused, or broken."""

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self.guards: list[TxnGuard] = []
        self.end = 0
        self.gate = Gate()
        self.refusal: Reject | Exception | None = None
        # Raised after the batch is in the log, so that its success is not reported.
        self.unheard: Exception | None = None
        self.unreadable: Exception | None = None
        self.failure: Exception | None = None
        self.full = False
        self.most: int | None = None  # bytes in a batch

    def append(
        self, batches: bytes, origin: AppendOrigin = AppendOrigin.CLIENT, guard: TxnGuard = NO_GUARD
    ) -> AppendResult | Reject:
        assert origin is AppendOrigin.COORDINATOR
        if isinstance(self.refusal, Exception):
            raise self.refusal
        if self.refusal is not None:
            return self.refusal
        if self.most is not None and len(batches) > self.most:
            return Reject(ErrorCode.MESSAGE_TOO_LARGE, f"{len(batches)} bytes, above {self.most}")
        if self.full:
            raise DiskFull("/data", "no space left")
        placed = bytearray(batches)
        patch_offset_and_epoch(placed, 0, self.end, 0)
        at, self.end = self.end, self.end + read_header(batches).record_count
        self.batches.append(bytes(placed))
        self.guards.append(guard)
        if self.unheard is not None:
            raise self.unheard
        return AppendResult(Offset(at), Offset(self.end - 1), -1, Offset(0))

    def when_durable(self, offset: Offset) -> "asyncio.Future[None] | None":
        if self.failure is None and not self.gate.closed:
            return None
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.failure is not None:
            future.set_exception(self.failure)
        else:
            self.gate.waiting.append(future)
        return future

    def iter_batches(self, max_bytes: int) -> Iterator[bytes]:
        if self.unreadable is not None:
            raise self.unreadable
        yield from self.batches


class MemoryTopic:
    def __init__(self, count: int = 1) -> None:
        self.partitions = [MemoryPartition() for _ in range(count)]

    @property
    def partition_count(self) -> int:
        return len(self.partitions)

    def list_partitions(self) -> list[MemoryPartition]:
        return self.partitions

    async def ensure_exists(self) -> Reject | None:
        return None

    async def ensure_partition(self, index: int) -> MemoryPartition | Reject:
        return self.partitions[index]


class World:
    def __init__(self, topic: MemoryTopic | None = None, **settings: int) -> None:
        self.topic = topic or MemoryTopic()
        self.clock = FakeClock()
        ids = count(1)
        config = GroupConfig(**{"group_initial_rebalance_delay_ms": 0, **settings})
        self.coordinator = GroupCoordinator(self.topic, config, self.clock, lambda: str(next(ids)))

    async def __aenter__(self) -> "World":
        self.coordinator.start()
        await self.settle()
        return self

    async def __aexit__(self, *_: object) -> None:
        for partition in self.topic.partitions:
            partition.gate.set()
        await self.coordinator.stop()

    async def settle(self) -> None:
        """Let the loop run until nothing is ready."""
        for _ in range(20):
            await Turn()

    async def pass_time(self, by_ms: int) -> None:
        self.clock.advance(by_ms)
        self.coordinator.tick()
        await self.settle()

    def ask(self, command: GroupCommand, group_id: GroupId = G) -> "asyncio.Task[GroupAnswer]":
        return asyncio.ensure_future(self.coordinator.execute(group_id, command))

    def join(self, member_id: MemberId | None, name: str = "a", instance: str | None = None) -> JoinGroup:
        return JoinGroup(
            member_id=member_id,
            instance_id=None if instance is None else InstanceId(instance),
            client_id=name,
            client_host="/h",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=60_000,
            protocol_type="consumer",
            protocols=(MemberProtocol("range", b""),),
            ticket=self.coordinator.create_ticket(),
        )

    def sync(self, joined: JoinGroupResult, assignments: dict[MemberId, bytes]) -> SyncGroup:
        return SyncGroup(
            member_id=joined.member_id,
            generation=joined.generation,
            assignments=assignments,
            ticket=self.coordinator.create_ticket(),
        )

    async def member(self, name: str = "a") -> JoinGroupResult:
        """Return a member of a stable group of one."""
        required = await self.coordinator.execute(G, self.join(None, name))
        assert isinstance(required, MemberIdRequired)
        asked = self.ask(self.join(required.member_id, name))
        await self.settle()
        await self.pass_time(0)
        joined = await asked
        assert isinstance(joined, JoinGroupResult)
        synced = await self.coordinator.execute(G, self.sync(joined, {joined.member_id: b"all"}))
        assert isinstance(synced, SyncGroupResult)
        assert synced.assignment == b"all"
        return joined

    def group(self) -> ClassicGroup:
        group = self.coordinator.get_group(G)
        assert isinstance(group, ClassicGroup)
        return group


def commit(offset: int, joined: JoinGroupResult | None = None) -> CommitOffsets:
    return CommitOffsets(
        member_id=joined and joined.member_id,
        generation=joined and joined.generation,
        offsets={T0: OffsetToCommit(offset=Offset(offset))},
    )
