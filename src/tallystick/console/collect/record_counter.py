"""Fetches batches in order to count their records, within a limit of bytes."""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from tallystick.client.errors import ClientError, build_broker_error
from tallystick.client.net.cluster import Cluster
from tallystick.console.collect.lag_counts import (
    STEP_BYTES,
    Counts,
    PartitionCounts,
    RangeCounter,
)
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.ids import TopicPartition
from tallystick.kernel.limits import MIB
from tallystick.protocol.messages.data.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tallystick.protocol.records import Buffer, RecordsError
from tallystick.spark.decisions.topic_reader import FETCH_BY_NAME_VERSION

FETCH_BYTES: Final = MIB
CONCURRENT_MAX: Final = 8
READ_COMMITTED: Final = 1
EMPTY_ANSWERS_MAX: Final = 3
"""A broker that is short of memory answers without records; when it does so again, there are none."""

Failures = dict[TopicPartition, ClientError | RecordsError]


class Budget:
    """Bytes that may still be fetched; the last answer may go beyond."""

    def __init__(self, bytes_left: int) -> None:
        self.bytes_left = bytes_left


class RecordCounter:
    """Counts between committed offsets and the last stable offset of partitions. On one event loop.

    What was counted is kept: a group that stands costs nothing, and one that moves on a part of what it has
    passed. The bytes of a reading are limited; what does not fit stays uncounted.
    """

    def __init__(self, cluster: Cluster, limit_ms: int) -> None:
        self._cluster, self._limit_ms = cluster, limit_ms
        self._counts: dict[TopicPartition, PartitionCounts] = {}
        self._turn = 0

    async def update(
        self,
        wanted: Mapping[TopicPartition, Collection[int]],
        stable_offsets: Mapping[TopicPartition, int],
        bytes_max: int,
    ) -> Failures:
        """Count up to the stable offsets as far as the bytes suffice; return what failed.

        Each partition has its share of the bytes first, and then some may use what others have left: in
        turns, so that a group that is far behind keeps no other from being counted.

        Args:
            wanted: the offsets that groups have committed, by partition.
        """
        known = {
            at: (tuple(each for each in committed if each <= stable_offsets[at]), stable_offsets[at])
            for at, committed in wanted.items()
            if at in stable_offsets
        }
        self._counts = {at: self._counts.get(at) or PartitionCounts() for at in known}
        failures: Failures = {}
        behind = self._find_behind(known)
        share = bytes_max // max(1, len(behind))
        budgets = {at: Budget(share) for at in behind}
        await self._count({at: (*known[at], budgets[at]) for at in behind}, failures)
        rest = Budget(bytes_max - sum(share - budget.bytes_left for budget in budgets.values()))
        behind = [at for at in self._find_behind(known) if at not in failures]
        self._turn += 1
        first = self._turn % max(1, len(behind))
        turns = (*behind[first:], *behind[:first])
        await self._count({at: (*known[at], rest) for at in turns}, failures)
        for at, (committed, _) in known.items():
            self._counts[at].prune(committed)
        return failures

    def find(self, at: TopicPartition, committed: int) -> Counts | None:
        """Return what was counted from an offset on; None if it was not counted."""
        counts = self._counts.get(at)
        return None if counts is None else counts.count(committed)

    def _find_behind(
        self, known: Mapping[TopicPartition, tuple[Collection[int], int]]
    ) -> list[TopicPartition]:
        """Return the partitions of which something is to be read."""
        return [
            at
            for at, (committed, end) in known.items()
            if next(self._counts[at].plan(committed, end), None) is not None
        ]

    async def _count(
        self,
        partitions: Mapping[TopicPartition, tuple[Iterable[int], int, Budget]],
        failures: Failures,
    ) -> None:
        places = asyncio.Semaphore(CONCURRENT_MAX)

        async def one(at: TopicPartition, committed: Iterable[int], end: int, budget: Budget) -> None:
            async with places:
                try:
                    await self._count_partition(at, committed, end, budget)
                except (ClientError, RecordsError) as exc:
                    failures[at] = exc

        async with asyncio.TaskGroup() as group:
            for at, (committed, end, budget) in partitions.items():
                group.create_task(one(at, committed, end, budget))

    async def _count_partition(
        self, at: TopicPartition, committed: Iterable[int], end: int, budget: Budget
    ) -> None:
        counts = self._counts[at]
        for wanted in counts.plan(committed, end, max(0, min(STEP_BYTES, budget.bytes_left))):
            counter = RangeCounter(wanted)
            await self._read(at, counter, budget)
            if not counter.is_complete:
                counts.give_up(counter, wanted)
                return
            counts.add(counter, wanted)

    async def _read(self, at: TopicPartition, counter: RangeCounter, budget: Budget) -> None:
        deadline = self._cluster.start_deadline("the limit of a reading", self._limit_ms)
        empty_answers = 0

        async def attempt() -> None:
            nonlocal empty_answers
            data, aborted = await self._fetch(at, counter.position, min(FETCH_BYTES, budget.bytes_left))
            budget.bytes_left -= len(data)
            empty_answers = 0 if data else empty_answers + 1
            if not data and empty_answers < EMPTY_ANSWERS_MAX:
                raise build_broker_error("Fetch", at, ErrorCode.OFFSET_NOT_AVAILABLE)
            counter.feed(data, aborted)

        while not counter.is_complete and budget.bytes_left > 0:
            await self._cluster.run_with_retries("Fetch", at, attempt, deadline)

    async def _fetch(
        self, at: TopicPartition, offset: int, size: int
    ) -> tuple[Buffer, list[tuple[int, int]]]:
        """Fetch batches from an offset on, and the aborted transactions among them."""
        node = await self._cluster.find_leader(at)
        partition = FetchPartition(partition=at.partition, fetch_offset=offset, partition_max_bytes=size)
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=size,
            isolation_level=READ_COMMITTED,
            topics=(FetchTopic(topic=at.topic, partitions=(partition,)),),
        )
        answer = await self._cluster.send(node, request, FetchResponse, max_version=FETCH_BY_NAME_VERSION)
        if answer.error_code:
            raise build_broker_error("Fetch", at, answer.error_code)
        (data,) = (each for topic in answer.responses for each in topic.partitions)
        if data.error_code:
            raise build_broker_error("Fetch", at, data.error_code)
        return data.records or b"", [
            (each.producer_id, each.first_offset) for each in data.aborted_transactions or ()
        ]
