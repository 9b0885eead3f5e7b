"""A partition in the broker: its log, and the waiters for the log's progress.

There are two kinds of waiters: futures that wait until an offset is durable (produce answers, and the
coordinators' appends), and callbacks for "there may be more to read" (long-polling fetches). `notify_waiters`
releases both; the group commit calls it through the loop after a sync, and `append` itself where nothing is
synced.

The high watermark is the log's: under `flush.policy=ack` the synced end, so that no consumer reads a record
that power loss could take back [PRT-1].
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from tallystick.broker.config.topic_config import TopicConfig
from tallystick.kernel.clock import Clock
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import LeaderEpoch, Offset, TopicPartition
from tallystick.kernel.log_throttle import LogThrottle
from tallystick.protocol.records import BatchHeader
from tallystick.storage.disk.fs import CorruptLog, LogOffline, StorageFailure
from tallystick.storage.log.log import NO_GUARD, AppendResult, Log, TxnGuard, delete_records_before
from tallystick.storage.state.producer_state import AppendOrigin, VerificationStateEntry
from tallystick.storage.state.transaction_index import AbortedTxn
from tallystick.storage.state.validation import LogConfig

_log = logging.getLogger("tallystick.broker.partitions")
_refusals = LogThrottle(time.monotonic)  # of all partitions, which share a disk

Buffer = bytes | memoryview


class Partition:
    """One partition. Lives on the loop; owned by the broker's Topics."""

    __slots__ = (
        "_clock",
        "_durable_waiters",
        "_offline",
        "_reported_damage",
        "_request_sync",
        "_waiters",
        "append_turns",
        "config",
        "leader_epoch",
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
        """Create the partition of an open log.

        Args:
            request_sync: has the log synced soon and `notify_waiters` called; None: appending is enough.
            offline: called when the state of the log on disk is unknown.
        """
        self._offline = offline
        self.config = config
        self.log = log
        self.leader_epoch = leader_epoch
        self._clock = clock
        self._request_sync = request_sync
        self._durable_waiters: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._waiters: dict[Callable[[], None], None] = {}
        self._reported_damage = ""
        # Producer id -> done when the last of its batches that wait for verification has left (`Turn`).
        self.append_turns: dict[int, asyncio.Future[None]] = {}

    @property
    def topic_partition(self) -> TopicPartition:
        return self.log.topic_partition

    def append(
        self,
        batches: Buffer,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        guard: TxnGuard = NO_GUARD,
    ) -> AppendResult | Reject:
        """Append batches; `durable(last_offset)` says when they are on disk, where that is promised.

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
        except StorageFailure as exc:
            if (more := _refusals.take()) is not None:
                _log.error("an append was refused: %s%s", exc, more)
            raise
        if isinstance(result, AppendResult) and not result.duplicate:
            if self._request_sync is not None:
                self._request_sync(self.log)
            else:
                self.notify_waiters()
        return result

    def when_durable(self, offset: Offset) -> "asyncio.Future[None] | None":
        """Return a future, done when `offset` is below the high watermark; None when it is already.

        The future fails with the sync's exception when the disk could not take the data.
        """
        if offset < self.log.reader.high_watermark:
            return None
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._durable_waiters.append((offset, future))
        return future

    def begin_verification(
        self, header: BatchHeader, *, supports_epoch_bump: bool
    ) -> VerificationStateEntry | Reject | None:
        """Return the guard for the first batch of a transaction; see ProducerStateManager."""
        return self.log.producer_state_manager.begin_verification(
            header, supports_epoch_bump=supports_epoch_bump, now_ms=self._clock.now_ms()
        )

    @property
    def min_insync_replicas(self) -> int:
        return self.config.min_insync_replicas

    def find_aborted_txns(self, offset: Offset, records: bytes) -> Sequence[AbortedTxn]:
        """Return the aborted transactions with data in `records`, which were read from `offset` on.

        Raises: StorageFailure.
        """
        end = offset
        for header in self.log.reader.iter_headers(offset, records):
            end = Offset(header.next_offset)
        return self.log.reader.collect_aborted_txns(offset, end)

    def report_damage(self, damage: CorruptLog) -> None:
        """Log where stored bytes cannot be read: once, however often they are asked for."""
        if self._reported_damage != str(damage):
            self._reported_damage = str(damage)
            _log.error("%s: %s", self.topic_partition, damage)

    def find_epoch_at(self, offset: Offset) -> int:
        """Return the leader epoch that wrote the record at `offset`; the current one if none is known."""
        epoch = self.log.leader_epochs.find_epoch(offset)
        return self.leader_epoch if epoch is None else epoch

    def find_epoch_end(self, epoch: LeaderEpoch) -> tuple[int, int] | None:
        """Return the last epoch up to `epoch` and its end; the current one ends at the high watermark.

        Source: KIP-101; Partition.lastOffsetForLeaderEpoch.
        """
        log = self.log
        if epoch == self.leader_epoch:
            return epoch, log.reader.high_watermark
        epoch_end = log.find_epoch_end(epoch)
        return None if epoch_end is None else (epoch_end[0], min(epoch_end[1], log.reader.high_watermark))

    def iter_batches(self, max_bytes: int) -> Iterator[bytes]:
        """Yield all that is in the log now, in order, in pieces of whole batches, for a coordinator's replay.

        Every batch is verified, as decisions rest on it.
        Raises: CorruptLog; StorageFailure, also when the log start offset has moved past the next piece. The
            pieces read until then are incomplete: the caller begins again.
        """
        log, end = self.log, self.log.log_end_offset
        at = log.log_start_offset
        while at < end:
            result = log.reader.read(at, max_bytes, upper=end)
            if isinstance(result, Reject):
                raise StorageFailure(log.directory, f"the log could not be read to its end: {result.reason}")
            if not result.data:
                return  # compaction removed everything up to the end
            log.reader.check_batches(at, result.data)
            for header in log.reader.iter_headers(at, result.data):
                at = Offset(header.next_offset)
            yield result.data

    def apply_config(self, config: TopicConfig, log_config: LogConfig) -> None:
        """Apply changed settings."""
        self.config = config
        self.log.update_config(log_config)
        self.log.producer_state_manager.verification_required = log_config.verification_required

    def delete_records_before(self, offset: Offset) -> Reject | None:
        """Advance the log start offset. Rejects as `trimming` does. Raises: StorageFailure."""
        return delete_records_before(self.log, offset)

    def add_waiter(self, callback: Callable[[], None]) -> None:
        """Call `callback` whenever there may be more to read."""
        self._waiters[callback] = None

    def remove_waiter(self, callback: Callable[[], None]) -> None:
        self._waiters.pop(callback, None)

    def notify_waiters(self) -> None:
        """Release the waiters: the high watermark or the last stable offset moved."""
        durable, high_watermark = self._durable_waiters, self.log.reader.high_watermark
        while durable and durable[0][0] < high_watermark:
            _, future = durable.popleft()
            if not future.done():
                future.set_result(None)
        if self._waiters:
            for callback in list(self._waiters):
                callback()

    def fail(self, cause: Exception) -> None:
        """Fail everything that waits: the log is lost to this process."""
        while self._durable_waiters:
            _, future = self._durable_waiters.popleft()
            if not future.done():
                future.set_exception(cause)
        for callback in list(self._waiters):
            callback()
