"""Reads the cluster itself, and the offsets of its topics."""

from collections.abc import Collection, Mapping
from typing import Final, Protocol

from tallystick.admin import log_dirs
from tallystick.admin.admin_call import AdminCall, Answers
from tallystick.admin.aio import Admin
from tallystick.admin.log_dirs import BrokerDirectory
from tallystick.admin.topics import EARLIEST, LATEST
from tallystick.client.errors import ClientError, NotAuthorized, NotSupported
from tallystick.client.net.cluster import Cluster
from tallystick.client.net.metadata import TopicInfo
from tallystick.client.offsets import OffsetAndTimestamp
from tallystick.console.collect.failures import describe_failure, describe_failures, limit_sentences
from tallystick.console.model.snapshot import ClusterFacts, PartitionOffsets, PartStatus, TopicFacts, Volume
from tallystick.kernel.ids import TopicPartition

Found = Mapping[TopicPartition, OffsetAndTimestamp | None]


ROOM_LIMIT_MS: Final = 1_000
"""A broker that takes longer is left for the next reading: what is left of its disk delays nothing else."""


class DescribeDirectories(Protocol):
    """Asks brokers for their directories; None: all of them."""

    async def __call__(
        self, brokers: Collection[int] | None, *, sizes: bool
    ) -> Answers[int, tuple[BrokerDirectory, ...]]: ...


class RoomReader:
    """Reads the room of brokers. What one does not tell in time stays as it was last told."""

    def __init__(self, describe: DescribeDirectories) -> None:
        self._describe = describe
        self._volumes: Mapping[int, tuple[Volume, ...]] = {}

    async def read(self) -> Mapping[int, tuple[Volume, ...]]:
        """Return the volumes of brokers by their ids, without those that do not tell this user."""
        try:
            answers = await self._describe(None, sizes=False)
            volumes = {node_id: tuple(map(_to_volume, each)) for node_id, each in answers.found.items()}
            full = [node_id for node_id, some in volumes.items() if any(each.is_full for each in some)]
            if full:  # and then it is worth the while to say of what
                sized = await self._describe(full, sizes=True)
                volumes |= {node_id: tuple(map(_to_volume, each)) for node_id, each in sized.found.items()}
        except ClientError:  # what keeps brokers from being listed is said of the cluster
            return self._volumes
        silent = {
            node_id: self._volumes[node_id]
            for node_id, failure in answers.failures.items()
            if node_id in self._volumes and not isinstance(failure, NotAuthorized | NotSupported)
        }
        self._volumes = {**silent, **volumes}
        return self._volumes


class ClusterReader:
    """Reads over one Admin, and a cluster for what it does not ask; their owner closes them."""

    def __init__(self, admin: Admin, cluster: Cluster) -> None:
        self._admin, self._cluster = admin, cluster
        self._room = RoomReader(self._describe_directories)

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
            volumes=await self._room.read(),
        )

    async def _describe_directories(
        self, brokers: Collection[int] | None, *, sizes: bool
    ) -> Answers[int, tuple[BrokerDirectory, ...]]:
        deadline = self._cluster.start_deadline("the limit of a look at disks", ROOM_LIMIT_MS)
        return await log_dirs.describe(AdminCall(self._cluster, deadline), brokers, sizes=sizes)

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


def _to_volume(directory: BrokerDirectory) -> Volume:
    topics = {name: size for name, size in directory.topic_bytes.items() if not name.startswith("__")}
    return Volume(
        path=directory.path,
        failure="" if directory.failure is None else describe_failure(directory.failure),
        total_bytes=directory.total_bytes,
        usable_bytes=directory.usable_bytes,
        topic_bytes=topics,
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
