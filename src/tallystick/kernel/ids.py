"""Identifiers, each with its own type, so that an offset is never passed for an epoch.

There are no sentinels: "none" is `None`. The wire's -1 is translated where it is read.
"""

from typing import Final, NewType

from tallystick.kernel.value import Value

Offset = NewType("Offset", int)
"""Position of a record in a partition, counted from 0."""

LeaderEpoch = NewType("LeaderEpoch", int)
ProducerId = NewType("ProducerId", int)
ProducerEpoch = NewType("ProducerEpoch", int)
CoordinatorEpoch = NewType("CoordinatorEpoch", int)
Sequence = NewType("Sequence", int)
"""Per-partition record number of an idempotent producer, 0 to INT32_MAX, then 0 again."""

TimestampMs = NewType("TimestampMs", int)
TransactionalId = NewType("TransactionalId", str)
GroupId = NewType("GroupId", str)
MemberId = NewType("MemberId", str)
BrokerId = NewType("BrokerId", int)

EPOCH_BUMP_VERSION: Final = 2
"""First `transaction.version` in which every transaction has its own producer epoch (KIP-890)."""

INT16_MAX: Final = 2**15 - 1
INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1
UINT32_MAX: Final = 2**32 - 1


class TopicPartition(Value, order=True):
    """One partition of one topic; prints as Kafka's directory name, `topic-0`."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class ProducerIdAndEpoch(Value, order=True):
    """A producer id and its epoch."""

    producer_id: ProducerId
    epoch: ProducerEpoch

    def __str__(self) -> str:
        return f"{self.producer_id}/{self.epoch}"


TABLE_FORMATS: Final = ("delta", "iceberg")
"""Formats of lake tables, with which their URLs begin."""


def is_table_url(text: str) -> bool:
    """Return whether a name of a table or store is the URL of a lake table, like `delta:/lake/delays`."""
    return text.partition(":")[0] in TABLE_FORMATS and ":" in text
