"""Where reading topics without a group begins: partitions and their first offsets, looked up once."""

from collections.abc import Collection, Mapping, Sequence

from tallystick.admin.client import Admin
from tallystick.admin.topics import EARLIEST, LATEST
from tallystick.client.errors import refused
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.ids import TopicPartition
from tallystick.kernel.value import frozen


@frozen
class AtOffset:
    """At this offset of every partition."""

    offset: int


@frozen
class AtTime:
    """At the first record of this time, in ms, or later; EARLIEST and LATEST stand for the two ends."""

    ms: int


Start = AtOffset | AtTime

FROM_BEGINNING = AtTime(EARLIEST)
FROM_END = AtTime(LATEST)


def partitions_of(
    admin: Admin, topics: Sequence[str], wanted: Collection[int] = ()
) -> tuple[TopicPartition, ...]:
    """All partitions of topics, or the wanted ones of each. Raises: UnknownTopic for one that is none."""
    found = admin.describe_topics(topics).all()
    for topic in topics:
        for index in wanted:
            if index not in found[topic].partitions:
                at = TopicPartition(topic, index)
                text = f"{topic} has {len(found[topic].partitions)} partitions"
                raise refused("Metadata", at, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)
    return tuple(
        TopicPartition(topic, index)
        for topic in topics
        for index in sorted(wanted or found[topic].partitions)
    )


def first_offsets(
    admin: Admin, partitions: Sequence[TopicPartition], start: Start, *, read_committed: bool
) -> Mapping[TopicPartition, int]:
    """The first offset to read of each partition; where nothing is as late as a time, the end."""
    if isinstance(start, AtOffset):
        return dict.fromkeys(partitions, start.offset)
    times = dict.fromkeys(partitions, start.ms)
    found = admin.list_offsets(times, read_committed=read_committed).all()
    late = [at for at in partitions if (each := found[at]) is None or each.offset < 0]
    ends = admin.list_offsets(dict.fromkeys(late, LATEST), read_committed=read_committed).all()
    return {at: each.offset for at in partitions if (each := ends.get(at, found[at])) is not None}
