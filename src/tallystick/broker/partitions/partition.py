"""A partition as the broker sees it: its log, and everyone who waits for that log to move on.

Two kinds wait. A future, for "this offset is durable": produce answers, and the coordinators' appends. A
callback, for "there may be more to read": long-polling fetches. Both are released by `advanced`, which the
group commit calls through the loop after a sync, and `append` itself where nothing is synced.

The high watermark is the log's: under `flush.policy=ack` the synced end, so that nobody reads what power
loss could take back [PRT-1].
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from tallystick.broker.config.topic_config import TopicConfig
from tallystick.kernel.clock import Clock
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import LeaderEpoch, Offset, TopicPartition
from tallystick.protocol.records import BatchHeader, iter_headers
from tallystick.storage.aborted import AbortedTxn
from tallystick.storage.fs import StorageFailure
from tallystick.storage.log import (
    NO_GUARD,
    AppendOrigin,
    AppendResult,
    Log,
    LogConfig,
    LogOffline,
    TxnGuard,
)
from tallystick.storage.log_start import delete_records_before
from tallystick.storage.producers import Verification

Buffer = bytes | memoryview


class Partition:
    """One partition. Lives on the loop; owned by the broker's Topics."""

    __slots__ = (
        "_clock",
        "_durable",
        "_offline",
        "_request_sync",
        "_waiters",
        "config",
        "leader_epoch",
        "lines",
        "log",
    )

    def __init__(
        self,
        log: Log,
        *,
        leader_epoch: LeaderEpoch,
        config: TopicConfig,
        clock: Clock,
        request_sync: Callable[[Log], None] | None,
        offline: Callable[[Exception], None],
    ) -> None:
        """Args:
        request_sync: has the log synced soon and `advanced` called; None: appending is enough.
        offline: told when nothing is known any more about what is on the disk.
        """
        self._offline = offline
        self.config = config
        self.log = log
        self.leader_epoch = leader_epoch
        self._clock = clock
        self._request_sync = request_sync
        self._durable: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._waiters: dict[Callable[[], None], None] = {}
        # Producer id -> done when the last of its batches that wait for a verification has left (`Turn`).
        self.lines: dict[int, asyncio.Future[None]] = {}

    @property
    def topic_partition(self) -> TopicPartition:
        return self.log.topic_partition

    def append(
        self,
        batches: Buffer,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        guard: TxnGuard = NO_GUARD,
    ) -> AppendResult | Reject:
        """Append batches; on the disk, where that is promised, when `durable(last_offset)` says so.

        Raises: StorageFailure.
        """
        try:
            result = self.log.append(
                batches,
                origin=origin,
                now_ms=self._clock.now_ms(),
                leader_epoch=self.leader_epoch,
                guard=guard,
            )
        except LogOffline as exc:
            self._offline(exc)
            raise
        if isinstance(result, AppendResult) and not result.duplicate:
            if self._request_sync is not None:
                self._request_sync(self.log)
            else:
                self.advanced()
        return result

    def durable(self, offset: Offset) -> "asyncio.Future[None] | None":
        """Done when `offset` is below the high watermark; None when it is already.

        The future fails with the sync's exception when the disk could not take the data.
        """
        if offset < self.log.high_watermark:
            return None
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._durable.append((offset, future))
        return future

    async def append_durably(
        self, batch: bytes, origin: AppendOrigin = AppendOrigin.COORDINATOR, guard: TxnGuard = NO_GUARD
    ) -> AppendResult | Reject:
        """Append and wait until it is durable; the coordinators' way to write."""
        result = self.append(batch, origin, guard)
        if isinstance(result, AppendResult):
            waiting = self.durable(result.last_offset)
            if waiting is not None:
                await waiting
        return result

    def begin_verification(
        self, header: BatchHeader, *, supports_epoch_bump: bool
    ) -> Verification | Reject | None:
        """The guard for the first batch of a transaction; see ProducerStates."""
        return self.log.producer_state.begin_verification(
            header, supports_epoch_bump=supports_epoch_bump, now_ms=self._clock.now_ms()
        )

    @property
    def min_insync_replicas(self) -> int:
        return self.config.min_insync_replicas

    def aborted_in(self, offset: Offset, records: bytes) -> Sequence[AbortedTxn]:
        """Aborted transactions with data in `records`, which were read from `offset` on."""
        end = offset
        for _, header in iter_headers(records):
            end = Offset(header.next_offset)
        return self.log.aborted_between(offset, end)

    def epoch_at(self, offset: Offset) -> int:
        """The leader epoch that wrote the record at `offset`; ours where none is known yet."""
        found = self.log.epochs.epoch_of(offset)
        return self.leader_epoch if found is None else found

    def epoch_end_offset(self, epoch: LeaderEpoch) -> tuple[int, int] | None:
        """The last epoch up to `epoch` and where it ended; the current one ends at the high watermark.

        Source: KIP-101; Partition.lastOffsetForLeaderEpoch.
        """
        log = self.log
        if epoch == self.leader_epoch:
            return epoch, log.high_watermark
        found = log.epoch_end_offset(epoch)
        return None if found is None else (found[0], min(found[1], log.high_watermark))

    def read_all(self, max_bytes: int) -> Iterator[bytes]:
        """Everything in the log now, in order, in pieces of whole batches; how coordinators replay.

        Raises: StorageFailure; also where the beginning of the log has moved past what is to be read next.
            What was read until then is not the whole: begin anew.
        """
        log, end = self.log, self.log.log_end_offset
        at = log.log_start_offset
        while at < end:
            result = log.read(at, max_bytes, upper=end)
            if isinstance(result, Reject):
                raise StorageFailure(log.directory, f"the log cannot be read to its end: {result.reason}")
            if not result.data:
                return  # compaction has left nothing before the end
            yield result.data
            for _, header in iter_headers(result.data):
                at = Offset(header.next_offset)

    def configure(self, config: TopicConfig, log_config: LogConfig) -> None:
        """Take over changed settings."""
        self.config = config
        self.log.config = log_config
        self.log.producer_state.verification_required = log_config.verification_required

    def delete_records_before(self, offset: Offset) -> Reject | None:
        """Move the beginning of the log forward. Rejects as `trimming` does. Raises: StorageFailure."""
        return delete_records_before(self.log, offset)

    def add_waiter(self, callback: Callable[[], None]) -> None:
        """Have `callback` called whenever there may be more to read."""
        self._waiters[callback] = None

    def remove_waiter(self, callback: Callable[[], None]) -> None:
        self._waiters.pop(callback, None)

    def advanced(self) -> None:
        """The high watermark or the last stable offset moved: release who waited for that."""
        durable, high_watermark = self._durable, self.log.high_watermark
        while durable and durable[0][0] < high_watermark:
            _, future = durable.popleft()
            if not future.done():
                future.set_result(None)
        for callback in list(self._waiters):
            callback()

    def fail(self, cause: Exception) -> None:
        """The log is lost to this process: nothing that waits will become durable."""
        while self._durable:
            _, future = self._durable.popleft()
            if not future.done():
                future.set_exception(cause)
        for callback in list(self._waiters):
            callback()
