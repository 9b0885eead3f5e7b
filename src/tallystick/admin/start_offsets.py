"""Start offsets for reading topics without a group: the partitions and their first offsets."""

from collections.abc import Collection, Mapping, Sequence

from tallystick.admin.client import Admin
from tallystick.admin.topics import EARLIEST, LATEST
from tallystick.client.errors import build_broker_error
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.ids import TopicPartition
from tallystick.kernel.value import Value


class AtOffset(Value):
    """The same offset in every partition."""

    offset: int


class AtTimestamp(Value):
    """The first record at or after a time in ms; EARLIEST and LATEST stand for the two ends."""

    timestamp_ms: int


StartSpec = AtOffset | AtTimestamp

FROM_BEGINNING = AtTimestamp(EARLIEST)
FROM_END = AtTimestamp(LATEST)


def list_partitions(
    admin: Admin, topics: Sequence[str], partitions: Collection[int] = ()
) -> tuple[TopicPartition, ...]:
    """Return all partitions of topics, or the wanted ones of each.

    Raises: UnknownTopic for a topic or partition that does not exist.
    """
    topic_infos = admin.describe_topics(topics).all()
    for topic in topics:
        for index in partitions:
            if index not in topic_infos[topic].partitions:
                at = TopicPartition(topic, index)
                text = f"{topic} has {len(topic_infos[topic].partitions)} partitions"
                raise build_broker_error("Metadata", at, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)
    return tuple(
        TopicPartition(topic, index)
        for topic in topics
        for index in sorted(partitions or topic_infos[topic].partitions)
    )


def find_start_offsets(
    admin: Admin, partitions: Sequence[TopicPartition], start: StartSpec, *, read_committed: bool
) -> Mapping[TopicPartition, int]:
    """Return the first offset to read in each partition: its end, if no record is as late as the time."""
    if isinstance(start, AtOffset):
        return dict.fromkeys(partitions, start.offset)
    times = dict.fromkeys(partitions, start.timestamp_ms)
    offsets = admin.list_offsets(times, read_committed=read_committed).all()
    without_offset = [at for at in partitions if (each := offsets[at]) is None or each.offset < 0]
    ends = admin.list_offsets(dict.fromkeys(without_offset, LATEST), read_committed=read_committed).all()
    return {at: each.offset for at in partitions if (each := ends.get(at, offsets[at])) is not None}
