"""A reader of the committed records of a topic."""

from collections.abc import Mapping

from tallystick import Consumer, ConsumerRecord, TopicPartition


def committed_records(client: Mapping[str, str], topic: str, partitions: int = 1) -> list[ConsumerRecord]:
    """Return all committed records up to the first open transaction.

    Args:
        client: configuration of a client: `bootstrap.servers`, and anything else it needs to connect.
        topic: the topic to read.
        partitions: the number of its partitions.
    """
    ats = [TopicPartition(topic, number) for number in range(partitions)]
    with Consumer({**client, "isolation.level": "read_committed"}) as consumer:
        consumer.assign(ats)
        consumer.seek_to_beginning()
        ends = consumer.end_offsets(ats)
        found: list[ConsumerRecord] = []
        while any(consumer.position(at) < end for at, end in ends.items()):
            found += consumer.poll(1.0)
        return found
