"""Requests about offsets: of logs, and of groups. The shell of `offsets`; retries follow `client.retry`."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from tallystick.client.errors import ClientError
from tallystick.client.net.cluster import Cluster
from tallystick.client.offsets import (
    COMMIT_VERSION_MAX,
    FETCH_VERSION_MAX,
    GroupMetadata,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    commit_refusals,
    commit_request,
    committed_and_refused,
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
"""Connection for requests that a group's coordinator holds back or must receive in time."""


def _always(_: TopicPartition) -> bool:
    return True


def _repeats(failure: BaseException) -> bool:
    """Tell whether a retry may help. Sorts failures that no retry can help to the front."""
    return isinstance(failure, ClientError) and failure.remedy.repeats


class OffsetRequests:
    """Offset requests of one consumer; its isolation level decides what it may see."""

    def __init__(self, cluster: Cluster, isolation_level: str) -> None:
        self._cluster = cluster
        self.isolation = ISOLATION[isolation_level]

    async def of_logs(
        self,
        times: Mapping[TopicPartition, int],
        deadline: Deadline,
        tell: Callable[[Mapping[TopicPartition, OffsetAndTimestamp | None]], None] | None = None,
        wanted: Callable[[TopicPartition], bool] = _always,
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return the first offset of a time (or EARLIEST_MS, LATEST_MS) in each log; None for none.

        Leaders are asked concurrently; those that answered are not asked again, and none waits for another.

        Args:
            tell: called with every answer as it arrives: a deleted partition does not delay the others.
            wanted: whether an answer for a partition is still needed; if not, it is no longer asked for.
        Raises: BrokerRefused, TimedOut.
        """
        shares: dict[int | None, dict[TopicPartition, int]] = {}
        for at, time in times.items():
            shares.setdefault(self._cluster.image.leader(at), {})[at] = time
        found: dict[TopicPartition, OffsetAndTimestamp | None] = {}
        searches = [
            asyncio.create_task(self._of_share(share, deadline, tell, wanted)) for share in shares.values()
        ]
        try:
            for search in asyncio.as_completed(searches):
                found |= await search
        finally:
            for task in searches:
                task.cancel()
            await asyncio.gather(*searches, return_exceptions=True)
        return found

    async def _of_share(
        self,
        times: Mapping[TopicPartition, int],
        deadline: Deadline,
        tell: Callable[[Mapping[TopicPartition, OffsetAndTimestamp | None]], None] | None,
        wanted: Callable[[TopicPartition], bool],
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Run `of_logs` for the partitions of one leader, or for those without a known leader."""
        found: dict[TopicPartition, OffsetAndTimestamp | None] = {}

        async def ask(node: int, there: dict[TopicPartition, int]) -> None:
            epochs = {at: p.leader_epoch for at in there if (p := self._cluster.image.partition(at))}
            request = list_request(there, epochs, self.isolation)
            told, errors = listed_of(await self._cluster.send(node, request, ListOffsetsResponse))
            found.update(told)
            if tell is not None:
                tell(told)
            for refusal in sorted(errors.values(), key=_repeats):
                raise refusal

        async def attempt() -> None:
            left = [at for at in times if at not in found and wanted(at)]
            led = await asyncio.gather(*map(self._cluster.node_for, left), return_exceptions=True)
            nodes: dict[int, dict[TopicPartition, int]] = {}
            failures: list[BaseException | None] = []
            for at, node in zip(left, led, strict=True):
                if isinstance(node, BaseException):
                    failures.append(node)
                else:
                    nodes.setdefault(node, {})[at] = times[at]
            asks = [ask(node, there) for node, there in nodes.items()]
            failures += await asyncio.gather(*asks, return_exceptions=True)
            for failure in sorted(filter(None, failures), key=_repeats):
                raise failure

        await self._cluster.retrying("ListOffsets", ", ".join(map(str, times)), attempt, deadline)
        return found

    async def of_group(
        self,
        group_id: str,
        partitions: Iterable[TopicPartition],
        deadline: Deadline,
        tell: Callable[[Mapping[TopicPartition, OffsetAndMetadata | None]], None] | None = None,
        wanted: Callable[[TopicPartition], bool] = _always,
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return the offsets that a group has committed; None for none.

        Args:
            tell: called with every answer: an offset held back by a transaction does not delay the others.
            wanted: as for `of_logs`.
        Raises: BrokerRefused, TimedOut.
        """
        named = tuple(partitions)
        found: dict[TopicPartition, OffsetAndMetadata | None] = {}

        async def attempt() -> None:
            left = [at for at in named if at not in found and wanted(at)]
            if not left:
                return
            request = committed_request(group_id, left, require_stable=self.isolation == 1)
            node = await self._cluster.coordinator("group", group_id)
            answer = await self._cluster.send(
                node, request, OffsetFetchResponse, max_version=FETCH_VERSION_MAX
            )
            committed, errors = committed_and_refused(answer, group_id)
            told = {at: committed.get(at) for at in left if at not in errors}
            found.update(told)
            if tell is not None:
                tell(told)
            for refusal in sorted(errors.values(), key=_repeats):
                raise refusal

        await self._cluster.retrying("OffsetFetch", group_id, attempt, deadline)
        return found

    def commit_unheard(
        self, group: GroupMetadata, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> None:
        """Send a commit if the coordinator is known, without waiting for the answer."""
        node = self._cluster.known_coordinator("group", group.group_id)
        if node is not None:
            answer = self._cluster.submit(
                node, commit_request(group, offsets), max_version=COMMIT_VERSION_MAX, lane=GROUP_LANE
            )
            answer.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def commit(
        self, group: GroupMetadata, offsets: Mapping[TopicPartition, OffsetAndMetadata], deadline: Deadline
    ) -> None:
        """Commit. Raises: BrokerRefused for the first partition that was refused; TimedOut.

        Partitions that are refused for good do not keep the others from being retried.
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
