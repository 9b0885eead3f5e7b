"""Requests about offsets: of logs, and of a group. The shell of `offsets`.

    LogOffsetRequests    ListOffsets
    GroupOffsetRequests  OffsetFetch, OffsetCommit

Retries follow `client.errors.rules`.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from tallystick.client.consumer.fetch_state import EARLIEST_MS, LATEST_MS
from tallystick.client.errors import BrokerRefused, ClientError
from tallystick.client.net.cluster import Cluster
from tallystick.client.net.retry_scope import Deadline
from tallystick.client.offsets import (
    OFFSET_COMMIT_VERSION_MAX,
    OFFSET_FETCH_VERSION_MAX,
    GroupMetadata,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    build_list_offsets_request,
    build_offset_commit_request,
    build_offset_fetch_request,
    parse_list_offsets_response,
    parse_offset_commit_errors,
    split_offset_fetch_response,
)
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.ids import GroupId, TopicPartition
from tallystick.kernel.value import Value
from tallystick.protocol.messages.data.list_offsets import ListOffsetsResponse
from tallystick.protocol.messages.groups.offset_commit import OffsetCommitResponse
from tallystick.protocol.messages.groups.offset_fetch import OffsetFetchResponse

HELD_MS: Final = 2000
"""Time that a transaction may hold offsets before that is logged."""
_log = logging.getLogger("tallystick.consumer")

ISOLATION_LEVELS: Final = {"read_uncommitted": 0, "read_committed": 1}
GROUP_CONNECTION: Final = "group"
"""Connection for requests that a group's coordinator holds back or must receive in time."""


def _accept_all(_: TopicPartition) -> bool:
    return True


def _is_retriable(failure: BaseException) -> bool:
    """Return whether a retry may help. Sorts failures that no retry can help to the front."""
    return isinstance(failure, ClientError) and failure.remedy.repeats


class HeldOffsetWarning:
    """Logs once that a transaction holds a group's offsets, long before the call that waits times out."""

    def __init__(self, group_id: GroupId, now_ms: Callable[[], int]) -> None:
        self._group_id = group_id
        self._now_ms = now_ms
        self._held_ms: int | None = None
        self._is_logged = False

    def note(self, refusals: Iterable[BrokerRefused]) -> None:
        """Take the refusals of one answer. Offsets of a writer that works are held for a moment only."""
        unstable = [each for each in refusals if each.code == ErrorCode.UNSTABLE_OFFSET_COMMIT]
        if not unstable:
            self._held_ms = None
            return
        now_ms = self._now_ms()
        self._held_ms = now_ms if self._held_ms is None else self._held_ms
        if now_ms - self._held_ms >= HELD_MS and not self._is_logged:
            self._is_logged = True
            _log.warning("group %r waits: %s", self._group_id, unstable[0].message)


class CallDeadlines(Value):
    """Start the deadlines of a consumer's calls."""

    cluster: Cluster
    default_api_timeout_ms: int

    def start(self, timeout_ms: int | None = None) -> Deadline:
        """Return the deadline of a call that begins now; None for default.api.timeout.ms."""
        if timeout_ms is not None:
            return self.cluster.start_deadline("timeout_ms", timeout_ms)
        return self.cluster.start_deadline("default.api.timeout.ms", self.default_api_timeout_ms)

    def compute_remaining_s(self, deadline: Deadline) -> float:
        """Return the time that is left."""
        return deadline.remaining_ms(self.cluster.now_ms()) / 1000


class LogOffsetRequests:
    """Look-ups of offsets in logs, by position or time; the isolation level decides where a log ends."""

    def __init__(self, cluster: Cluster, isolation_level: str, deadlines: CallDeadlines) -> None:
        self._cluster, self._deadlines = cluster, deadlines
        self.isolation_level = ISOLATION_LEVELS[isolation_level]

    async def beginning_offsets(
        self, partitions: Iterable[TopicPartition], timeout_ms: int | None = None
    ) -> dict[TopicPartition, int]:
        """Return the log start offset of each partition."""
        return await self._list_special(partitions, EARLIEST_MS, timeout_ms)

    async def end_offsets(
        self, partitions: Iterable[TopicPartition], timeout_ms: int | None = None
    ) -> dict[TopicPartition, int]:
        """Return the high watermark of each partition; under `read_committed`, the last stable offset."""
        return await self._list_special(partitions, LATEST_MS, timeout_ms)

    async def offsets_for_times(
        self, times_ms: Mapping[TopicPartition, int], timeout_ms: int | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return the first record of each time or later; None where there is none."""
        return await self.list_offsets(times_ms, self._deadlines.start(timeout_ms))

    async def _list_special(
        self, partitions: Iterable[TopicPartition], timestamp: int, timeout_ms: int | None
    ) -> dict[TopicPartition, int]:
        offsets = await self.list_offsets(
            dict.fromkeys(partitions, timestamp), self._deadlines.start(timeout_ms)
        )
        return {at: offset.offset for at, offset in offsets.items() if offset is not None}

    async def list_offsets(
        self,
        times: Mapping[TopicPartition, int],
        deadline: Deadline,
        tell: Callable[[Mapping[TopicPartition, OffsetAndTimestamp | None]], None] | None = None,
        is_wanted: Callable[[TopicPartition], bool] = _accept_all,
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return the first offset of a time (or EARLIEST_MS, LATEST_MS) in each log; None for none.

        Leaders are asked concurrently; those that answered are not asked again, and none waits for another.

        Args:
            tell: called with every answer as it arrives: a deleted partition does not delay the others.
            is_wanted: whether an answer for a partition is still needed; if not, it is no longer asked for.
        Raises: BrokerRefused, TimedOut.
        """
        shares: dict[int | None, dict[TopicPartition, int]] = {}
        for at, time in times.items():
            shares.setdefault(self._cluster.image.find_leader(at), {})[at] = time
        offsets: dict[TopicPartition, OffsetAndTimestamp | None] = {}
        searches = [
            asyncio.create_task(self._list_leader_offsets(share, deadline, tell, is_wanted))
            for share in shares.values()
        ]
        try:
            for search in asyncio.as_completed(searches):
                offsets |= await search
        finally:
            for task in searches:
                task.cancel()
            await asyncio.gather(*searches, return_exceptions=True)
        return offsets

    async def _list_leader_offsets(
        self,
        times: Mapping[TopicPartition, int],
        deadline: Deadline,
        tell: Callable[[Mapping[TopicPartition, OffsetAndTimestamp | None]], None] | None,
        is_wanted: Callable[[TopicPartition], bool],
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Run `list_offsets` for the partitions of one leader, or for those without a known leader."""
        offsets: dict[TopicPartition, OffsetAndTimestamp | None] = {}

        async def ask(node: int, times_there: dict[TopicPartition, int]) -> None:
            epochs = {
                at: p.leader_epoch for at in times_there if (p := self._cluster.image.find_partition(at))
            }
            request = build_list_offsets_request(times_there, epochs, self.isolation_level)
            answers, errors = parse_list_offsets_response(
                await self._cluster.send(node, request, ListOffsetsResponse)
            )
            offsets.update(answers)
            if tell is not None:
                tell(answers)
            for refusal in sorted(errors.values(), key=_is_retriable):
                raise refusal

        async def attempt() -> None:
            remainder = [at for at in times if at not in offsets and is_wanted(at)]
            leaders = await asyncio.gather(*map(self._cluster.find_leader, remainder), return_exceptions=True)
            nodes: dict[int, dict[TopicPartition, int]] = {}
            failures: list[BaseException | None] = []
            for at, node in zip(remainder, leaders, strict=True):
                if isinstance(node, BaseException):
                    failures.append(node)
                else:
                    nodes.setdefault(node, {})[at] = times[at]
            asks = [ask(node, times_there) for node, times_there in nodes.items()]
            failures += await asyncio.gather(*asks, return_exceptions=True)
            for failure in sorted(filter(None, failures), key=_is_retriable):
                raise failure

        await self._cluster.run_with_retries("ListOffsets", ", ".join(map(str, times)), attempt, deadline)
        return offsets


class GroupOffsetRequests:
    """Requests about one group's committed offsets; the isolation level decides which may be seen."""

    def __init__(self, cluster: Cluster, group_id: GroupId, isolation_level: str) -> None:
        self._cluster, self._group_id = cluster, group_id
        self.isolation_level = ISOLATION_LEVELS[isolation_level]

    async def fetch_committed(
        self,
        partitions: Iterable[TopicPartition],
        deadline: Deadline,
        tell: Callable[[Mapping[TopicPartition, OffsetAndMetadata | None]], None] | None = None,
        is_wanted: Callable[[TopicPartition], bool] = _accept_all,
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return the offsets that the group has committed; None for none.

        Args:
            tell: called with every answer: an offset held back by a transaction does not delay the others.
            is_wanted: as for `LogOffsetRequests.list_offsets`.
        Raises: BrokerRefused, TimedOut.
        """
        asked_partitions = tuple(partitions)
        offsets: dict[TopicPartition, OffsetAndMetadata | None] = {}
        warning = HeldOffsetWarning(self._group_id, self._cluster.now_ms)

        async def attempt() -> None:
            remainder = [at for at in asked_partitions if at not in offsets and is_wanted(at)]
            if not remainder:
                return
            request = build_offset_fetch_request(
                self._group_id, remainder, require_stable=self.isolation_level == 1
            )
            node = await self._cluster.find_coordinator("group", self._group_id)
            answer = await self._cluster.send(
                node, request, OffsetFetchResponse, max_version=OFFSET_FETCH_VERSION_MAX
            )
            fetched_offsets, errors = split_offset_fetch_response(answer, self._group_id)
            warning.note(errors.values())
            answers = {at: fetched_offsets.get(at) for at in remainder if at not in errors}
            offsets.update(answers)
            if tell is not None:
                tell(answers)
            for refusal in sorted(errors.values(), key=_is_retriable):
                raise refusal

        await self._cluster.run_with_retries("OffsetFetch", self._group_id, attempt, deadline)
        return offsets

    def commit_without_reply(
        self, group: GroupMetadata, offsets: Mapping[TopicPartition, OffsetAndMetadata], connection_name: str
    ) -> None:
        """Send a commit if the coordinator is known, without waiting for the answer."""
        node = self._cluster.get_cached_coordinator("group", group.group_id)
        if node is not None:
            answer = self._cluster.submit(
                node,
                build_offset_commit_request(group, offsets),
                max_version=OFFSET_COMMIT_VERSION_MAX,
                connection_name=connection_name,
            )
            answer.add_done_callback(lambda future: future.cancelled() or future.exception())

    async def commit(
        self,
        group: GroupMetadata,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        deadline: Deadline,
        choose_connection: Callable[[], str],
    ) -> None:
        """Commit. Raises: BrokerRefused for the first partition that was refused; TimedOut.

        Partitions that are refused for good do not keep the others from being retried.

        Args:
            choose_connection: returns the connection for the next attempt.
        """
        request = build_offset_commit_request(group, offsets)

        async def attempt() -> None:
            node = await self._cluster.find_coordinator("group", group.group_id)
            answer = await self._cluster.send(
                node,
                request,
                OffsetCommitResponse,
                max_version=OFFSET_COMMIT_VERSION_MAX,
                connection_name=choose_connection(),
            )
            refusals = sorted(
                parse_offset_commit_errors(answer).values(), key=lambda each: not each.remedy.repeats
            )
            for refusal in refusals:
                raise refusal

        await self._cluster.run_with_retries("OffsetCommit", group.group_id, attempt, deadline)
