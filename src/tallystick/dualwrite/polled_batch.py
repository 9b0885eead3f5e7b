"""The records of one poll, and how far they move the offsets in the database. Pure."""

from collections.abc import Iterable, Mapping

from tallystick.client.consumer.decode import ConsumerRecord
from tallystick.dualwrite.stores.base import OffsetAdvance
from tallystick.kernel.ids import TopicPartition
from tallystick.kernel.value import frozen


@frozen
class PolledBatch:
    """The result of one poll: records, and how far they move each partition."""

    records: tuple[ConsumerRecord, ...]
    offset_moves: Mapping[TopicPartition, OffsetAdvance]


def first_offsets(records: Iterable[ConsumerRecord]) -> dict[TopicPartition, int]:
    """Return the first offset of each partition."""
    first: dict[TopicPartition, int] = {}
    for each in records:
        first.setdefault(TopicPartition(each.topic, each.partition), each.offset)
    return first
