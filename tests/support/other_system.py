"""KIP-939's two recipes, between a cluster and a database that is one row in memory."""

from dataclasses import dataclass, field

from tests.support.plain_flow import PlainProducer

from tallystick.client.offsets import GroupMetadata, OffsetAndMetadata
from tallystick.client.transactions.engine import Completion
from tallystick.client.transactions.prepared import PreparedTxnState
from tallystick.kernel.ids import TopicPartition


@dataclass
class OtherSystem:
    """The database: the last committed token, and every value that was committed with one."""

    token: PreparedTxnState = field(default_factory=PreparedTxnState)
    values: list[str] = field(default_factory=list)


async def dual_write(one: PlainProducer, topic: str, other: OtherSystem, value: str) -> None:
    """Do KIP-939's "Normal processing recipe", with a group's offset."""
    await one.txn.begin()
    await one.send(topic, value)
    offsets = {TopicPartition(topic, 0): OffsetAndMetadata(len(other.values))}
    await one.txn.send_offsets(offsets, GroupMetadata(group_id=f"g-{topic}"))
    token = await one.txn.prepare()
    other.token, other.values = token, [*other.values, value]
    await one.txn.commit()


async def recover(two: PlainProducer, other: OtherSystem) -> Completion:
    """Do KIP-939's "Recovery recipe"."""
    await two.txn.init(keep_prepared_txn=True)
    return await two.txn.complete(other.token)
