"""A whole broker whose disk fails or loses power at a chosen call of one administrative change.

`Desk` records what was acknowledged and what was deleted; `Desk.check` compares it with what can be read.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import cache
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Any, Final, TypeVar

from tests.support.failing_calls import FailingCalls, FailingStore

from harness.memory_fs import PowerLost, SurvivingChanges
from harness.sim.disk_image import append_durably
from harness.sim.loop import VirtualTime
from harness.sim.machine import DATA, BrokerMachine, DiskImage
from tallystick.broker.broker import Broker
from tallystick.broker.metadata.store import MetadataStore, Topic
from tallystick.broker.partitions.topics import TopicSpec
from tallystick.broker.txn.machine.commands import (
    DONE,
    AddPartitionsByLeader,
    EndTxn,
    EndTxnResult,
    InitProducerId,
    InitProducerIdResult,
)
from tallystick.broker.txn.machine.model import TransactionResult, TxnEntry, TxnState
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import Offset, ProducerIdAndEpoch, TopicPartition, TransactionalId
from tallystick.kernel.value import Value
from tallystick.protocol.records import BatchMeta, Record, decode_records, encode_batch, iter_headers
from tallystick.storage.state.producer_state import AppendOrigin

T = TypeVar("T")

SETTINGS: Final = MappingProxyType(
    {
        "flush.policy": "ack",
        "log.reserve.bytes": "0",
        "log.dirs": DATA,
        "log.cleaner.enable": "false",  # tests start a round themselves
        "log.segment.delete.delay.ms": "60000",
        "transaction.partition.verification.enable": "false",  # nothing asks the coordinator
        "transaction.state.log.num.partitions": "1",
    }
)
TOPIC: Final = "orders"
OTHER: Final = "orders-2"  # the names of its directories begin with the other topic's name
COMPACTED: Final = "newest"
TRANSACTIONAL_ID: Final = TransactionalId("pay-7")
# Longer than the pause before a failed deletion is tried again.
A_WHILE_S: Final = 3.0


class FailingMachine(BrokerMachine):
    """The broker's computer, with a disk that fails."""

    def __init__(self, image: DiskImage | None = None) -> None:
        # The seed of new ids: a machine started from an image must not draw the ids on its disk again.
        random = Random(0 if image is None else 1 + len(image.files))
        super().__init__(SETTINGS, VirtualTime(), random, image)
        self.calls = FailingCalls(None if image is None else image.create_tree())
        self.fs = self.calls
        if image is not None:
            self._store = FailingStore(self.calls, image.cluster_id, image.metadata)

    def _metadata(
        self, path: Path, cluster_id: str, make_room: Callable[[], None], *, may_create: bool
    ) -> MetadataStore:
        if self._store is None:
            self._store = FailingStore(self.calls, cluster_id)
            self.fs.open_append(str(path)).sync()
            self.fs.sync_dir(DATA)
        return self._store.reopen(make_room)


class Desk:
    """One machine, and what its clients know."""

    def __init__(self, image: DiskImage | None = None) -> None:
        self.machine = FailingMachine(image)
        self.calls = self.machine.calls
        self.acknowledged: dict[tuple[str, int], list[bytes]] = {}

    # -- the process

    @property
    def broker(self) -> Broker:
        assert self.machine.broker is not None
        return self.machine.broker

    def start(self) -> None:
        """Start the broker.

        Raises:
            PowerLost: power failed at the chosen call.
        """
        machine = self.machine
        machine.start()
        self._until(machine.booting.done)
        machine.booting.result()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the broker's process.

        Raises:
            PowerLost: power failed at the chosen call.
        """
        task = self.machine.loop.create_task(work)
        self._until(task.done)
        return task.result()

    def wait(self, seconds: float = A_WHILE_S) -> None:
        """Let time pass."""
        passed: list[bool] = []
        self.machine.loop.call_later(seconds, passed.append, True)
        self._until(lambda: bool(passed))

    def _until(self, done: Callable[[], bool]) -> None:
        machine = self.machine
        while not (done() or machine.has_died):
            machine.loop.run_ready()
            if done() or machine.has_died:
                break
            due_s = machine.loop.next_callback_s()
            if due_s is None:
                raise TimeoutError("the broker waits for something that will not come")
            machine.time.now_s = max(machine.time.now_s, due_s)
        if machine.has_died:
            raise PowerLost

    def stop(self) -> None:
        self.run(self.broker.stop())
        self.machine.is_running = False
        self.machine.loop.kill()
        self.machine.broker = None

    def crash(self, keep: SurvivingChanges = "nothing", seed: int = 0) -> None:
        self.machine.end(keep, seed)

    # -- clients

    def make(self, name: str, partitions: int, **configs: str) -> Topic | Reject:
        settings = {setting.replace("_", "."): value for setting, value in configs.items()}
        return self.run(self.broker.topic_controller.create(TopicSpec(name, partitions, settings)))

    def write(self, topic: str, index: int, *values: bytes, key: bytes = b"k") -> None:
        """Write one batch per value, and check that each is acknowledged."""
        for value in values:
            self.run(self._write(topic, index, value, key))
            self.acknowledged.setdefault((topic, index), []).append(value)

    async def _write(
        self, topic: str, index: int, value: bytes, key: bytes, writer: ProducerIdAndEpoch | None = None
    ) -> None:
        partition = self.broker.topics.find_partition(topic, index)
        assert partition is not None
        now_ms = self.machine.time.now_ms()
        record = Record(offset=0, timestamp_ms=now_ms, key=key, value=value, headers=())
        meta = BatchMeta()
        if writer is not None:
            meta = BatchMeta(
                producer_id=writer.producer_id,
                producer_epoch=writer.epoch,
                base_sequence=0,
                is_transactional=True,
            )
        batch = encode_batch([record], meta)
        await append_durably(partition, batch, AppendOrigin.CLIENT)

    def open_transaction(self, *written: TopicPartition) -> ProducerIdAndEpoch:
        """Open a transaction with a record in each of these partitions."""

        async def run() -> ProducerIdAndEpoch:
            coordinator = self.broker.transactions
            assert await coordinator.ensure_topic() is None
            made = await coordinator.execute(TRANSACTIONAL_ID, InitProducerId(timeout_ms=600_000))
            assert isinstance(made, InitProducerIdResult)
            added = AddPartitionsByLeader(identity=made.client, partitions=frozenset(written))
            assert await coordinator.execute(TRANSACTIONAL_ID, added) == DONE
            for at in written:
                await self._write(at.topic, at.partition, b"in doubt", b"k", made.client)
            return made.client

        return self.run(run())

    def read(self, topic: str, index: int) -> list[bytes]:
        return [value for _, value in self.read_pairs(topic, index)]

    def read_pairs(self, topic: str, index: int) -> list[tuple[bytes | None, bytes]]:
        """Return keys and values in log order."""
        partition = self.broker.topics.find_partition(topic, index)
        assert partition is not None
        log, pairs = partition.log, list[tuple[bytes | None, bytes]]()
        at = log.log_start_offset
        while at < log.reader.high_watermark:
            found = log.reader.read(at, 1 << 20, upper=log.reader.high_watermark)
            assert not isinstance(found, Reject)
            start = at
            for position, header in iter_headers(found.data):
                at = Offset(header.next_offset)
                if not header.is_control:
                    records = decode_records(found.data, position)
                    pairs += [(r.key, r.value or b"") for r in records if r.offset >= start]
        return pairs

    def check(self, *topics: str) -> None:
        """Check that the topics hold exactly what was acknowledged."""
        for (topic, index), values in self.acknowledged.items():
            if topic in topics:
                assert self.read(topic, index) == values, f"{topic}-{index}"

    def forget(self, topic: str) -> None:
        """Forget what was acknowledged in a topic, because it is deleted."""
        for name in [name for name in self.acknowledged if name[0] == topic]:
            del self.acknowledged[name]


class Begun(Value):
    """A disk with topics and records, and which of them were acknowledged."""

    image: DiskImage
    acknowledged: MappingProxyType[tuple[str, int], Sequence[bytes]]

    def desk(self) -> Desk:
        """Return a broker on a copy of that disk, with its calls numbered from 0."""
        desk = Desk(self.image)
        desk.acknowledged = {name: list(values) for name, values in self.acknowledged.items()}
        desk.start()
        desk.calls.count()
        return desk


@cache
def begun() -> Begun:
    """Return a disk with topics and records; it is made once.

    Its checkpoint names every partition, so that leftovers of a topic there would have an effect.
    """
    desk = Desk()
    desk.start()
    assert isinstance(desk.make(TOPIC, 2), Topic)
    assert isinstance(desk.make(OTHER, 1), Topic)
    compact = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0.01"}
    assert isinstance(desk.make(COMPACTED, 1, **compact), Topic)
    for number in range(6):
        for index in (0, 1):
            desk.write(TOPIC, index, b"old %d" % number)
        desk.write(OTHER, 0, b"other %d" % number)
        desk.write(COMPACTED, 0, b"value %d" % number, key=b"k%d" % (number % 2))
        if number % 2:
            for partition in desk.broker.topics.list_partitions():
                partition.log.roll(desk.machine.time.now_ms())
    desk.stop()
    return Begun(desk.machine.capture_image(), MappingProxyType(dict(desk.acknowledged)))


@cache
def begun_with_transaction() -> tuple[Begun, ProducerIdAndEpoch]:
    """Return `begun` with a transaction open in both topics, and its producer id and epoch."""
    desk = begun().desk()
    writer = desk.open_transaction(TopicPartition(TOPIC, 0), TopicPartition(OTHER, 0))
    for topic in (TOPIC, OTHER):
        desk.acknowledged[topic, 0].append(b"in doubt")
    desk.stop()
    return Begun(desk.machine.capture_image(), MappingProxyType(dict(desk.acknowledged))), writer


# ---- the changes


class Change:
    """One change to the disk, by an administrator or the broker itself."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk

    @classmethod
    def begun(cls) -> Begun:
        """Return the disk to start from."""
        return begun()

    def run(self) -> None:
        """Request the change once.

        Raises:
            PowerLost: power failed at the chosen call.
        """
        raise NotImplementedError

    def meddle(self) -> None:
        """Do what a client does right after the change failed."""

    def finish(self) -> None:
        """Request the change again if it was not done, and use what it has created or left behind."""
        raise NotImplementedError

    def check(self) -> None:
        """Check that no acknowledged record is lost, and that nothing seen to be deleted comes back."""
        self.desk.check(OTHER)

    def answered(self, work: Callable[[Broker], Awaitable[object]]) -> bool:
        """Return whether the change was done; after an exception or a Reject the outcome is unknown."""

        async def tried() -> bool:
            try:
                return not isinstance(await work(self.desk.broker), Reject)
            except Exception:
                return False

        return self.desk.run(tried())


class Deletion(Change):
    """Deletes a topic, and creates another one with the same name."""

    gone = False
    made_again = False

    def run(self) -> None:
        self.gone |= self.answered(lambda broker: broker.topic_controller.delete(TOPIC))

    def meddle(self) -> None:
        """Create the topic again and write to it, as a running producer does."""
        if self.desk.broker.topics.find(TOPIC) is None:
            self.gone = True
            if self.answered(lambda broker: broker.topic_controller.create(TopicSpec(TOPIC, 2))):
                self._is_made_again()
                self._write()

    def _is_made_again(self) -> None:
        self.made_again = True
        self.desk.forget(TOPIC)

    def _write(self) -> None:
        for index in (0, 1):
            self.desk.write(TOPIC, index, b"new")

    def finish(self) -> None:
        if not self.made_again:
            if self.desk.broker.topics.find(TOPIC) is not None:
                self.run()
                self.gone = True
                assert self.desk.broker.topics.find(TOPIC) is None
            assert isinstance(self.desk.make(TOPIC, 2), Topic)
            self._is_made_again()
        self._write()

    def check(self) -> None:
        super().check()
        topic = self.desk.broker.topics.find(TOPIC)
        if self.made_again or topic is not None:
            assert self.made_again or not self.gone, "what was deleted came back"
            self.desk.check(TOPIC)
        else:
            self.gone = True


class DeletionAtTheEnd(Deletion):
    """Deletes a topic while a transaction that wrote to it is committed."""

    def __init__(self, desk: Desk) -> None:
        super().__init__(desk)
        _, self.writer = begun_with_transaction()

    @classmethod
    def begun(cls) -> Begun:
        return begun_with_transaction()[0]

    def run(self) -> None:
        async def both() -> None:
            await asyncio.gather(
                broker.topic_controller.delete(TOPIC), self._end(broker), return_exceptions=True
            )

        broker = self.desk.broker
        self.desk.wait()  # until the ids are loaded
        self.desk.run(both())

    async def _end(self, broker: Broker) -> object:
        command = EndTxn(identity=self.writer, outcome=TransactionResult.COMMIT, transaction_version=2)
        return await broker.transactions.execute(TRANSACTIONAL_ID, command)

    def finish(self) -> None:
        self.desk.wait()
        if self.desk.broker.transactions.offline_partition_count:
            # It was unknown whether the decision is on the disk; the log tells.
            self.desk.crash("everything")
            self.desk.start()
            self.desk.wait()
        broker = self.desk.broker
        answers = []
        for _ in range(20):  # a client repeats a request that got no answer or came too early
            answers.append(self.desk.run(self._end(broker)))
            if isinstance(answers[-1], EndTxnResult):
                break
            self.desk.wait()
        assert isinstance(answers[-1], EndTxnResult), answers
        self.desk.wait()
        entry = broker.transactions.get_entry(TRANSACTIONAL_ID)
        assert isinstance(entry, TxnEntry)
        assert entry.state is TxnState.COMPLETE_COMMIT
        for partition in broker.topics.list_partitions():
            assert partition.log.reader.last_stable_offset == partition.log.reader.high_watermark, (
                "nothing is open any more"
            )
        super().finish()

    def check(self) -> None:
        super().check()
        self.desk.wait()
        comparison = self.desk.broker.startup_comparison
        assert comparison is None or comparison.hanging_transactions == ()


class Creation(Change):
    """Creates a topic."""

    made = False

    def run(self) -> None:
        self.made |= self.answered(lambda broker: broker.topic_controller.create(TopicSpec("fresh", 2)))

    def finish(self) -> None:
        if self.desk.broker.topics.find("fresh") is None:
            self.run()
        for index in (0, 1):
            self.desk.write("fresh", index, b"new")

    def check(self) -> None:
        super().check()
        assert not self.made or self.desk.broker.topics.find("fresh") is not None
        self.desk.check(TOPIC, "fresh")


class Growth(Change):
    """Adds two partitions to the topic."""

    grown = False

    def run(self) -> None:
        self.grown |= self.answered(lambda broker: broker.topic_controller.grow(TOPIC, 4))

    def finish(self) -> None:
        if len(self.desk.broker.topics.list_partitions_of(TOPIC)) < 4:
            self.run()
        for index in range(4):
            self.desk.write(TOPIC, index, b"later")

    def check(self) -> None:
        super().check()
        assert len(self.desk.broker.topics.list_partitions_of(TOPIC)) in ((4,) if self.grown else (2, 4))
        self.desk.check(TOPIC)


class Trimming(Change):
    """Deletes the records below an offset."""

    before = Offset(4)
    gone = False

    def run(self) -> None:
        async def trim(broker: Broker) -> object:
            partition = broker.topics.find_partition(TOPIC, 0)
            assert partition is not None
            return partition.delete_records_before(self.before)

        if self.answered(trim):
            self._is_gone()

    def _is_gone(self) -> None:
        if not self.gone:
            self.gone = True
            del self.desk.acknowledged[TOPIC, 0][: self.before]

    def finish(self) -> None:
        self.run()
        assert self.gone
        for index in (0, 1):
            self.desk.write(TOPIC, index, b"later")

    def check(self) -> None:
        super().check()
        partition = self.desk.broker.topics.find_partition(TOPIC, 0)
        assert partition is not None
        if partition.log.log_start_offset == self.before:
            self._is_gone()
        self.desk.check(TOPIC)


class Compaction(Change):
    """Exchanges old segments for compacted ones; the newest value of each key stays."""

    def __init__(self, desk: Desk) -> None:
        super().__init__(desk)
        self.newest = dict(self._records())

    def _records(self) -> list[tuple[bytes | None, bytes]]:
        return self.desk.read_pairs(COMPACTED, 0)

    def run(self) -> None:
        self.answered(lambda broker: broker.data_directory._log_cleaner.compact_once())

    def finish(self) -> None:
        self.run()
        self.desk.write(COMPACTED, 0, b"later", key=b"later")
        self.newest[b"later"] = b"later"

    def check(self) -> None:
        super().check()
        assert dict(self._records()) == self.newest
