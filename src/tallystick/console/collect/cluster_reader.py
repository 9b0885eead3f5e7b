"""Reads the cluster itself, and the offsets of its topics."""

from collections.abc import Mapping

from tallystick.admin.aio import Admin
from tallystick.admin.topics import EARLIEST, LATEST
from tallystick.client.errors import ClientError
from tallystick.client.net.metadata import TopicInfo
from tallystick.client.offsets import OffsetAndTimestamp
from tallystick.console.collect.failures import describe_failure, describe_failures, limit_sentences
from tallystick.console.snapshot import ClusterFacts, PartitionOffsets, PartStatus, TopicFacts
from tallystick.kernel.ids import TopicPartition

Found = Mapping[TopicPartition, OffsetAndTimestamp | None]


class ClusterReader:
    """Reads over one Admin, which its owner closes."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin

    async def read_cluster(self) -> ClusterFacts:
        """Read brokers and features. Raises: ClientError if no broker answers."""
        cluster = await self._admin.describe_cluster()
        failures: list[str] = []
        features: Mapping[str, int] = {}
        try:
            features = await self._admin.describe_features()
        except ClientError as exc:
            failures.append(f"features: {describe_failure(exc)}")
        return ClusterFacts(
            status=PartStatus(failures=tuple(failures)),
            cluster_id=cluster.cluster_id,
            controller=cluster.controller,
            brokers=cluster.brokers,
            features=features,
        )

    async def read_topics(self) -> TopicFacts:
        """Read the partitions of all topics, and their offsets.

        A partition without a leader is said and not asked for: the client would wait for its leader, and so
        would all other partitions.
        """
        topics = await self._admin.list_topics(internal=True)
        leaderless = _find_leaderless(topics)
        led = [
            TopicPartition(name, index)
            for name, topic in topics.items()
            for index in topic.partitions
            if TopicPartition(name, index) not in leaderless
        ]
        # A partition's stable offset is read before its end, so that it cannot seem to be behind it.
        starts = await self._admin.list_offsets(dict.fromkeys(led, EARLIEST))
        stable = await self._admin.list_offsets(dict.fromkeys(led, LATEST), read_committed=True)
        ends = await self._admin.list_offsets(dict.fromkeys(led, LATEST))
        failures = {str(at): why for each in (starts, stable, ends) for at, why in each.failures.items()}
        sentences = [f"{at} has no leader" for at in map(str, sorted(leaderless, key=str))]
        return TopicFacts(
            status=PartStatus(failures=limit_sentences([*sentences, *describe_failures(failures)])),
            internal_topics=frozenset(name for name, topic in topics.items() if topic.is_internal),
            partition_counts={name: len(topic.partitions) for name, topic in topics.items()},
            offsets=_join_offsets(starts.found, stable.found, ends.found),
        )


def _find_leaderless(topics: Mapping[str, TopicInfo]) -> frozenset[TopicPartition]:
    return frozenset(
        TopicPartition(name, index)
        for name, topic in topics.items()
        for index, partition in topic.partitions.items()
        if partition.leader is None
    )


def _join_offsets(starts: Found, stable: Found, ends: Found) -> dict[TopicPartition, PartitionOffsets]:
    """Join the three offsets of each partition that has told them all."""
    joined: dict[TopicPartition, PartitionOffsets] = {}
    for at, start in starts.items():
        last_stable, end = stable.get(at), ends.get(at)
        if start is not None and last_stable is not None and end is not None:
            joined[at] = PartitionOffsets(start=start.offset, last_stable=last_stable.offset, end=end.offset)
    return joined
