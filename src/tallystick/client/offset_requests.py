"""Asks brokers about offsets: of logs, and of groups. The shell of `offsets`; repeats as the rules say."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from tallystick.client.cluster import Cluster
from tallystick.client.errors import BrokerRefused
from tallystick.client.offsets import (
    COMMIT_VERSION_MAX,
    FETCH_VERSION_MAX,
    GroupMetadata,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    commit_refusals,
    commit_request,
    committed_of,
    committed_request,
    list_request,
    listed_of,
)
from tallystick.client.retry import Deadline
from tallystick.kernel.ids import TopicPartition
from tallystick.protocol.messages.list_offsets import ListOffsetsResponse
from tallystick.protocol.messages.offset_commit import OffsetCommitResponse
from tallystick.protocol.messages.offset_fetch import OffsetFetchResponse

ISOLATION: Final = {"read_uncommitted": 0, "read_committed": 1}
GROUP_LANE: Final = "group"
"""The connection for what a group's coordinator holds back or must hear in time."""


class OffsetRequests:
    """For one reader: what it may see depends on its isolation level."""

    def __init__(self, cluster: Cluster, isolation_level: str) -> None:
        self._cluster = cluster
        self.isolation = ISOLATION[isolation_level]

    async def of_logs(
        self,
        times: Mapping[TopicPartition, int],
        deadline: Deadline,
        tell: Callable[[Mapping[TopicPartition, OffsetAndTimestamp | None]], None] | None = None,
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Where logs have the first record of a time (or EARLIEST_MS, LATEST_MS); None for nowhere.

        Leaders are asked side by side; those that answered are not asked again.

        Args:
            tell: called with every answer as it comes: a partition that is gone keeps nobody waiting.
        Raises: BrokerRefused, TimedOut.
        """
        found: dict[TopicPartition, OffsetAndTimestamp | None] = {}

        async def ask(node: int, there: dict[TopicPartition, int]) -> None:
            epochs = {at: p.leader_epoch for at in there if (p := self._cluster.image.partition(at))}
            request = list_request(there, epochs, self.isolation)
            told, errors = listed_of(await self._cluster.send(node, request, ListOffsetsResponse))
            found.update(told)
            if tell is not None:
                tell(told)
            if errors:
                raise next(iter(errors.values()))

        async def attempt() -> None:
            nodes: dict[int, dict[TopicPartition, int]] = {}
            failures: list[BaseException | None] = []
            for at, time in times.items():
                if at not in found:
                    try:
                        nodes.setdefault(await self._cluster.node_for(at), {})[at] = time
                    except BrokerRefused as exc:
                        failures.append(exc)
            asks = [ask(node, there) for node, there in nodes.items()]
            failures += await asyncio.gather(*asks, return_exceptions=True)
            for failure in failures:
                if failure is not None:
                    raise failure

        await self._cluster.retrying("ListOffsets", ", ".join(map(str, times)), attempt, deadline)
        return found

    async def of_group(
        self, group_id: str, partitions: Iterable[TopicPartition], deadline: Deadline
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """What a group has committed; None for nothing. Raises: BrokerRefused, TimedOut."""
        request = committed_request(group_id, partitions, require_stable=self.isolation == 1)

        async def attempt() -> dict[TopicPartition, OffsetAndMetadata | None]:
            node = await self._cluster.coordinator("group", group_id)
            answer = await self._cluster.send(
                node, request, OffsetFetchResponse, max_version=FETCH_VERSION_MAX
            )
            return committed_of(answer, group_id)

        return await self._cluster.retrying("OffsetFetch", group_id, attempt, deadline)

    async def commit(
        self, group: GroupMetadata, offsets: Mapping[TopicPartition, OffsetAndMetadata], deadline: Deadline
    ) -> None:
        """Commit. Raises: BrokerRefused for the first partition that was refused; TimedOut.

        Partitions that are refused for good do not keep the others from being tried again.
        """
        request = commit_request(group, offsets)

        async def attempt() -> None:
            node = await self._cluster.coordinator("group", group.group_id)
            answer = await self._cluster.send(
                node, request, OffsetCommitResponse, max_version=COMMIT_VERSION_MAX, lane=GROUP_LANE
            )
            refusals = sorted(commit_refusals(answer).values(), key=lambda each: not each.remedy.repeats)
            for refusal in refusals:
                raise refusal

        await self._cluster.retrying("OffsetCommit", group.group_id, attempt, deadline)
