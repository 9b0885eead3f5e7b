"""The periodic work on a broker's logs, and the scheduler that it and the data directory share.

Everything here lives on the loop; what blocks runs in threads, which `stop` of the data directory waits for.

Source: Kafka's KafkaScheduler; LogManager.startup, for what is done periodically.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from tallystick.broker.config.broker_config import BrokerConfig
from tallystick.broker.partitions.partition import Partition
from tallystick.kernel.clock import Clock
from tallystick.kernel.ids import TopicPartition
from tallystick.storage.disk.fs import StorageFailure, is_disk_failure
from tallystick.storage.disk.reserve import DiskReserve
from tallystick.storage.log.log import Log
from tallystick.storage.log_dir import LogDir

T = TypeVar("T")

_log = logging.getLogger("tallystick.broker.files")

# Interval of attempts to restore a reserve that was used.
RESERVE_CHECK_MS = 1_000


class BackgroundScheduler:
    """Timers, and work in threads that must end before the directory is released."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._timers: set[asyncio.TimerHandle] = set()
        self._thread_futures: set[asyncio.Future[Any]] = set()

    def schedule_once(self, delay_ms: int, work: Callable[[], object]) -> None:
        """Call `work` on the loop after a delay."""

        def due() -> None:
            self._timers.discard(timer)
            work()

        timer = self._loop.call_later(delay_ms / 1000, due)
        self._timers.add(timer)

    def schedule_every(
        self, period_ms: int, work: Callable[[], object], on_failure: Callable[[Exception], None]
    ) -> None:
        """Call `work` on the loop periodically; failures of the disk are reported, and do not end it."""

        def due() -> None:
            try:
                work()
            except (StorageFailure, OSError) as exc:
                on_failure(exc)
            finally:
                self.schedule_every(period_ms, work, on_failure)

        self.schedule_once(max(period_ms, 1), due)

    def start_in_thread(self, call: Callable[[], T]) -> "asyncio.Future[T]":
        """Start `call` in a thread; `join_threads` waits for it."""
        future = self._loop.run_in_executor(None, call)
        self._thread_futures.add(future)
        future.add_done_callback(self._thread_futures.discard)
        return future

    async def run_in_thread(self, call: Callable[[], T]) -> T:
        """Wait for `call` in a thread; `join_threads` waits for it even if the caller was cancelled."""
        return await asyncio.shield(self.start_in_thread(call))

    def cancel_timers(self) -> None:
        for timer in self._timers:
            timer.cancel()

    async def join_threads(self) -> None:
        """Wait until all work in threads has ended."""
        await asyncio.gather(*self._thread_futures, return_exceptions=True)


class Housekeeping:
    """Syncs by interval, checkpoints, expiry of producers, and restoring the reserve.

    Args:
        partitions: every open partition; changed by its owner.
        request_sync: has a log synced soon.
        on_failure: called when the disk failed.
    """

    def __init__(
        self,
        log_dir: LogDir,
        partitions: Mapping[TopicPartition, Partition],
        *,
        reserve: DiskReserve,
        scheduler: BackgroundScheduler,
        clock: Clock,
        config: Callable[[], BrokerConfig],
        request_sync: Callable[[Log], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        self._log_dir = log_dir
        self._partitions = partitions
        self._reserve = reserve
        self._scheduler = scheduler
        self._clock = clock
        self._config = config
        self._request_sync = request_sync
        self._on_failure = on_failure
        self._checkpoint_task: asyncio.Task[None] | None = None

    def start(self) -> None:
        config = self._config()
        if config.flush_policy == "interval":
            self._schedule_every(config.flush_interval_ms, self._request_syncs)
        self._schedule_every(config.log_flush_offset_checkpoint_interval_ms, self._start_checkpoint)
        self._schedule_every(config.producer_id_expiration_check_interval_ms, self._expire_producers)
        self._schedule_every(RESERVE_CHECK_MS, self._restore_reserve)

    async def stop(self) -> None:
        """Wait for a checkpoint that is being written; the scheduler starts no other."""
        if self._checkpoint_task is not None:
            await asyncio.gather(self._checkpoint_task, return_exceptions=True)

    def _schedule_every(self, period_ms: int, work: Callable[[], None]) -> None:
        self._scheduler.schedule_every(period_ms, work, self._report_failure)

    def _restore_reserve(self) -> None:
        if not self._reserve.is_whole and self._reserve.restore():
            _log.info("the disk reserve is complete again, so producers are accepted")

    def _request_syncs(self) -> None:
        for partition in self._partitions.values():
            if partition.log.reader.synced_end < partition.log.log_end_offset:
                self._request_sync(partition.log)

    def _start_checkpoint(self) -> None:
        if self._checkpoint_task is None or self._checkpoint_task.done():
            self._checkpoint_task = asyncio.create_task(self._write_checkpoint(), name="checkpoint")

    async def _write_checkpoint(self) -> None:
        try:
            for name in list(self._partitions):
                self._log_dir.flush_indexes(name)
                await asyncio.sleep(0)  # yield to other tasks
            await self._scheduler.run_in_thread(self._log_dir.checkpoint)
        except (StorageFailure, OSError) as exc:
            self._report_failure(exc)

    def _report_failure(self, exc: Exception) -> None:
        _log.error("housekeeping failed and is tried again: %s", exc)
        if is_disk_failure(exc):
            self._on_failure(exc)

    def _expire_producers(self) -> None:
        now_ms, expiration_ms = self._clock.now_ms(), self._config().producer_id_expiration_ms
        for partition in self._partitions.values():
            partition.log.producer_state_manager.remove_expired(now_ms, expiration_ms)
