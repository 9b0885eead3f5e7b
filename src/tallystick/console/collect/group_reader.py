"""Reads groups, what they have committed, and how many records they have not read yet."""

from collections.abc import Callable, Mapping

from tallystick.admin.aio import Admin
from tallystick.admin.model import GroupDescription, GroupListing, GroupOffsets
from tallystick.client.errors import ClientError
from tallystick.console.collect.failures import describe_failure, describe_failures, limit_sentences
from tallystick.console.collect.record_counter import RecordCounter
from tallystick.console.model.snapshot import GroupFacts, GroupOffset, PartitionOffsets, PartStatus
from tallystick.kernel.ids import TopicPartition

_DESCRIBED_TYPES = ("", "classic", "consumer")
"""Types of groups that can be described and have offsets; Kafka has others, such as share groups."""


class GroupReader:
    """Reads over one Admin and one counter, whose cluster its owner closes."""

    def __init__(
        self,
        admin: Admin,
        counter: RecordCounter,
        find_offsets: Callable[[], Mapping[TopicPartition, PartitionOffsets]],
        *,
        bytes_max: int,
    ) -> None:
        """Read over `admin`.

        Args:
            find_offsets: the newest offsets of partitions; records are counted up to these.
            bytes_max: fetched in one reading in order to count.
        """
        self._admin, self._counter = admin, counter
        self._find_offsets, self._bytes_max = find_offsets, bytes_max

    async def read(self) -> GroupFacts:
        """Read all groups. Raises: ClientError if no broker answers."""
        listed = await self._admin.list_groups()
        if listed.failures and not listed.found:
            raise next(iter(listed.failures.values()))
        failures = {f"broker {node}": why for node, why in listed.failures.items()}
        listings = {each.group_id: each for some in listed.found.values() for each in some}
        names = [name for name, each in listings.items() if each.type in _DESCRIBED_TYPES]
        described = await self._admin.describe_groups(names)
        offsets = await self._admin.describe_group_offsets(names)
        failures |= described.failures
        failures |= {name: why for name, why in offsets.failures.items() if name not in failures}
        partitions = self._find_offsets()
        sentences = await self._count(offsets.found, partitions)
        groups = {name: described.found.get(name, _describe_listed(each)) for name, each in listings.items()}
        return GroupFacts(
            status=PartStatus(failures=limit_sentences([*describe_failures(failures), *sentences])),
            groups=groups,
            offsets={
                name: {at: self._describe(at, each, partitions) for at in each.committed}
                for name, each in offsets.found.items()
            },
        )

    async def _count(
        self, groups: Mapping[str, GroupOffsets], partitions: Mapping[TopicPartition, PartitionOffsets]
    ) -> tuple[str, ...]:
        """Count what the groups have not read; return a sentence for each topic that cannot be read."""
        wanted: dict[TopicPartition, set[int]] = {}
        for group in groups.values():
            for at, each in group.committed.items():
                if at in partitions:
                    wanted.setdefault(at, set()).add(max(each.offset, partitions[at].start))
        stable = {at: each.last_stable for at, each in partitions.items()}
        refused = await self._counter.update(wanted, stable, self._bytes_max)
        topics: dict[str, str] = {}
        for at, why in refused.items():
            topics.setdefault(at.topic, describe_failure(why) if isinstance(why, ClientError) else str(why))
        return tuple(f"records of {topic} are not counted: {why}" for topic, why in topics.items())

    def _describe(
        self, at: TopicPartition, group: GroupOffsets, partitions: Mapping[TopicPartition, PartitionOffsets]
    ) -> GroupOffset:
        is_pending = at in group.pending
        committed = group.committed[at]
        limits = partitions.get(at)
        if limits is None:
            return GroupOffset(committed=committed.offset, data_lag=None, is_pending=is_pending)
        if committed.offset >= limits.last_stable:
            return GroupOffset(committed=committed.offset, data_lag=0, is_pending=is_pending)
        counts = self._counter.find(at, max(committed.offset, limits.start))
        if counts is None:
            return GroupOffset(committed=committed.offset, data_lag=None, is_pending=is_pending)
        return GroupOffset(
            committed=committed.offset,
            data_lag=counts.data,
            passed_markers=counts.markers,
            passed_aborted=counts.aborted,
            is_pending=is_pending,
        )


def _describe_listed(listing: GroupListing) -> GroupDescription:
    """Describe a group by what the list has of it."""
    return GroupDescription(
        group_id=listing.group_id,
        coordinator=listing.coordinator,
        state=listing.state,
        type=listing.type,
        assignor="",
        members=(),
    )
