"""A read-committed consumer that follows KIP-98 and remembers everything it was shown."""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from harness.sim.history import History
from harness.sim.network import NoReply, SimNetwork
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.ids import TopicPartition
from tallystick.protocol.messages.data.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from tallystick.protocol.records import ControlType, decode_records, iter_headers, read_marker

READ_COMMITTED = 1


@dataclass(slots=True)
class PartitionView:
    """The records one partition has shown so far: texts in order, and the last stable offset."""

    position: int = 0
    texts: list[str] = field(default_factory=list)
    last_stable_offset: int = 0


class ReadCommittedReader:
    """Reads every partition from its start, and reports a last stable offset that goes back."""

    def __init__(
        self, name: str, partitions: tuple[TopicPartition, ...], network: SimNetwork, history: History
    ) -> None:
        self.name = name
        self.views = {partition: PartitionView() for partition in partitions}
        self._network = network
        self._history = history
        self._starts = 0
        # Errors that are not the broker's fault: of a partition that is being deleted, or a broken disk.
        self.is_expected_error: Callable[[TopicPartition, ErrorCode], bool] = lambda partition, code: False
        # Whether the name may stand for either of two topics, so that an answer may be about either.
        self.is_replaced: Callable[[str], bool] = lambda topic: False
        self.start_of: Callable[[TopicPartition], int] = lambda partition: 0

    def start_over(self, *, topic: str | None = None) -> None:
        """Forget what was shown, of one topic or all, because the disk lost data or the topic is a new one.

        An answer that is under way is discarded, too.
        """
        self._starts += 1
        for partition in self.views:
            if topic in (None, partition.topic):
                self.views[partition] = PartitionView()

    async def poll(self) -> bool:
        """Read once; return whether anything moved.

        Raises:
            NoReply: the request or its reply was lost.
        """
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            isolation_level=READ_COMMITTED,
            topics=tuple(
                FetchTopic(
                    topic=partition.topic,
                    partitions=(
                        FetchPartition(
                            partition=partition.partition,
                            fetch_offset=view.position,
                            partition_max_bytes=1 << 20,
                        ),
                    ),
                )
                for partition, view in self.views.items()
            ),
        )
        starts = self._starts
        response = await self._network.call(self.name, request, 11, FetchResponse)
        if self._starts != starts:
            return True
        has_progress = False
        for topic in response.responses:
            for data in topic.partitions:
                has_progress |= self._apply_partition(TopicPartition(topic.topic, data.partition_index), data)
        return has_progress

    def _apply_partition(self, partition: TopicPartition, data: PartitionData) -> bool:
        if self.is_replaced(partition.topic):
            self.views[partition] = PartitionView()
            return False
        view = self.views[partition]
        code = ErrorCode(data.error_code)
        if code is ErrorCode.OFFSET_OUT_OF_RANGE and self.is_expected_error(partition, code):
            before, view.position = view.position, max(view.position, self.start_of(partition))
            return view.position != before
        if data.error_code and self.is_expected_error(partition, code):
            return False
        if data.error_code:
            self._history.report(
                f"{self.name}: {partition} at {view.position}: {ErrorCode(data.error_code).name}"
            )
            return False
        if data.last_stable_offset < view.last_stable_offset:
            self._history.report(
                f"{self.name}: {partition}'s last stable offset went from {view.last_stable_offset} "
                f"back to {data.last_stable_offset}"
            )
        view.last_stable_offset = data.last_stable_offset
        records, before = bytes(data.records or b""), view.position
        aborted_transactions = deque(
            sorted((txn.first_offset, txn.producer_id) for txn in data.aborted_transactions or ())
        )
        # KIP-98: an aborted transaction is skipped from its first offset up to its ABORT marker.
        aborting: set[int] = set()
        for at, header in iter_headers(records):
            if header.last_offset >= data.last_stable_offset:
                self._history.report(
                    f"{self.name}: {partition} showed offset {header.last_offset}, "
                    f"stable up to {data.last_stable_offset}"
                )
            while aborted_transactions and aborted_transactions[0][0] <= header.last_offset:
                aborting.add(aborted_transactions.popleft()[1])
            if header.is_control:
                marker = read_marker(records, at)
                if marker is not None and marker.control_type is ControlType.ABORT:
                    aborting.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in aborting):
                view.texts += [
                    (record.value or b"").decode()
                    for record in decode_records(records, at)
                    if record.offset >= view.position
                ]
            view.position = header.next_offset
        return view.position != before

    async def run(self, period_s: float) -> None:
        """Read periodically, for ever."""
        while True:
            try:
                await self.poll()
            except NoReply:
                pass
            await asyncio.sleep(period_s)

    async def read_to_end(self) -> None:
        """Read until nothing more comes."""
        while True:
            try:
                if not await self.poll():
                    return
            except NoReply:
                await asyncio.sleep(0.01)
