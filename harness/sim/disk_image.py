"""The topics and settings of every run, and the disk that most runs begin with."""

from functools import lru_cache
from random import Random
from typing import Final

from harness.sim.loop import START_MS, VirtualTime
from harness.sim.machine import BrokerMachine, DiskImage
from tallystick.broker.partitions.partition import Partition
from tallystick.broker.partitions.topics import TRANSACTION_STATE_TOPIC, TopicSpec
from tallystick.broker.txn.codec import encode_batch_of, partition_for
from tallystick.broker.txn.machine.commands import EntryStored
from tallystick.broker.txn.machine.model import IdlePhase, TransactionResult, TxnEntry
from tallystick.kernel.ids import (
    INT16_MAX,
    ProducerEpoch,
    ProducerIdAndEpoch,
    TimestampMs,
    TopicPartition,
    TransactionalId,
)
from tallystick.storage.log.log import AppendResult
from tallystick.storage.state.producer_state import AppendOrigin

TOPICS: Final = {"orders": 2, "stock": 1}
REPLACED_TOPIC: Final = "stock"  # the topic that is deleted and recreated
PARTITIONS: Final = (TopicPartition("orders", 0), TopicPartition("orders", 1), TopicPartition("stock", 0))
# Epochs that each of these ids has left before the last: their producer ids are replaced soon.
EPOCHS_REMAINING: Final = (0, 1, 2, 3)

SETTINGS: Final = {
    "log.dirs": "data",
    "log.reserve.bytes": "65536",
    "log.cleaner.enable": "false",
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
    "transaction.two.phase.commit.enable": "true",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "300",
    "producer.id.expiration.check.interval.ms": "300",
}


async def append_durably(partition: Partition, batch: bytes, origin: AppendOrigin) -> None:
    """Append a batch and wait until it is durable. Raises: RuntimeError if it is refused."""
    result = partition.append(batch, origin)
    if not isinstance(result, AppendResult):
        raise RuntimeError(f"the batch is refused: {result}")
    durable = partition.when_durable(result.last_offset)
    if durable is not None:
        await durable


@lru_cache
def build_disk_image(level: int) -> DiskImage:
    """Return a data directory with all topics, and ids whose epochs are nearly spent. Cost: 10 ms, once."""
    time = VirtualTime()
    machine = BrokerMachine(SETTINGS, time, Random(0))
    machine.start()

    async def furnish() -> None:
        await machine.booting
        broker = machine.broker
        if broker is None:
            raise RuntimeError("the broker did not start")
        broker.metadata_store.set_features(1, {"transaction.version": level})
        for name, partitions in TOPICS.items():
            await broker.topic_controller.create(TopicSpec(name, partitions))
        await broker.transactions.ensure_topic()
        for epochs in EPOCHS_REMAINING:
            owner = TransactionalId(f"spent-{epochs}")
            client = ProducerIdAndEpoch(
                await broker.generate_producer_id(), ProducerEpoch(INT16_MAX - 1 - epochs)
            )
            entry = TxnEntry(
                transactional_id=owner,
                phase=IdlePhase(outcome=TransactionResult.COMMIT, started_ms=TimestampMs(START_MS)),
                client=client,
                previous_identity=None,
                timeout_ms=60_000,
                transaction_version=level,
                updated_ms=TimestampMs(START_MS),
            )
            partition = broker.topics.find_partition(TRANSACTION_STATE_TOPIC, partition_for(owner, 2))
            if partition is None:
                raise RuntimeError("there is no __transaction_state")
            batch = encode_batch_of([EntryStored(entry=entry)], TimestampMs(START_MS), level)
            await append_durably(partition, batch, AppendOrigin.COORDINATOR)
        await broker.stop()

    task = machine.loop.create_task(furnish())
    while not task.done():
        machine.loop.run_ready()
        due = machine.loop.next_callback_s()
        if due is not None:
            time.now_s = max(time.now_s, due)
    task.result()
    machine.loop.kill()
    return machine.capture_image()
