"""Reads the decision topic to its end, each time from where it stopped before."""

from collections.abc import Callable
from typing import Final, Generic, TypeVar

from tallystick.admin import topics
from tallystick.admin.admin_call import AdminCall
from tallystick.admin.topics import LATEST
from tallystick.client.errors import build_broker_error
from tallystick.client.net.cluster import Cluster
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.ids import TopicPartition
from tallystick.protocol.messages.data.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tallystick.spark.protocol.decision_fold import DecisionLogFold

F = TypeVar("F", bound=DecisionLogFold)

FETCH_BYTES: Final = 8 * 1024 * 1024
FETCH_BY_NAME_VERSION: Final = 12
"""Fetch version 13 and later name topics by id (KIP-516)."""


class DecisionTopicReader(Generic[F]):
    """A reader of one partition, on one event loop. `fold` is what was read."""

    def __init__(self, cluster: Cluster, partition: TopicPartition, create_fold: Callable[[int], F]) -> None:
        """Read with folds that `create_fold` makes for a first offset."""
        self._cluster, self._partition = cluster, partition
        self._create_fold = create_fold
        self.fold = create_fold(0)

    async def read_to_end(self, asker: AdminCall) -> None:
        """Read up to the high watermark. What was read stays read if this fails or is given up."""
        # KIP-207: ListOffsets fails until a new leader's high watermark has caught up with what its
        # predecessor acknowledged. The high watermark of a Fetch response may still lag behind.
        end = (await topics.list_offsets(asker, {self._partition: LATEST}, read_committed=False)).one(
            self._partition
        )
        end_offset = 0 if end is None else end.offset
        if end_offset < self.fold.next_offset:
            # The topic was recreated or truncated, so what was read before is no longer valid.
            self.forget()
        while self.fold.next_offset < end_offset:
            await self._cluster.run_with_retries("Fetch", self._partition, self._fetch, asker.deadline)

    def forget(self) -> None:
        """Read everything again the next time."""
        self.fold = self._create_fold(0)

    async def _fetch(self) -> None:
        node = await self._cluster.find_leader(self._partition)
        partition = FetchPartition(
            partition=self._partition.partition,
            fetch_offset=self.fold.next_offset,
            partition_max_bytes=FETCH_BYTES,
        )
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=FETCH_BYTES,
            topics=(FetchTopic(topic=self._partition.topic, partitions=(partition,)),),
        )
        answer = await self._cluster.send(node, request, FetchResponse, max_version=FETCH_BY_NAME_VERSION)
        if answer.error_code:
            raise build_broker_error("Fetch", self._partition, answer.error_code)
        (data,) = (each for topic in answer.responses for each in topic.partitions)
        if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE and data.log_start_offset > 0:
            self.fold = self._create_fold(data.log_start_offset)
            return
        if data.error_code:
            raise build_broker_error("Fetch", self._partition, data.error_code)
        before = self.fold.next_offset
        self.fold.feed(data.records or b"")
        if self.fold.next_offset == before:
            raise build_broker_error("Fetch", self._partition, ErrorCode.OFFSET_NOT_AVAILABLE)
