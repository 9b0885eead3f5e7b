"""Scheduling of log cleaning: retention on a timer, compaction in a child process, one log at a time.

The loop picks the log that needs it most, requests a round from a child
(`storage.compaction.cleaner`) and puts each segment that comes back in place with a few renames;
blocking work runs in a thread. The rules of what is kept are in `storage.log.retention` and
`storage.compaction.rules`.

Source: Kafka's LogCleaner, LogCleanerManager, LogManager.cleanupLogs.
"""

import asyncio
import json
import logging
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping
from typing import Any, Final, Protocol

from tallystick.kernel.check import require
from tallystick.kernel.clock import Clock
from tallystick.kernel.ids import INT64_MAX, TopicPartition
from tallystick.kernel.value import Value
from tallystick.storage.compaction.cleaner import CleanedGroup, CleaningRequest, remove_files
from tallystick.storage.compaction.rules import CleaningLimits, LogToClean, plan_cleaning
from tallystick.storage.compaction.swap import BlockingStep, InlineStep, SegmentSwap
from tallystick.storage.disk.fs import StorageFailure, is_out_of_descriptors
from tallystick.storage.log.log import Log, delete_oldest_segments
from tallystick.storage.log.retention import RetentionLimits, RetentionPlan, SegmentInfo, plan_retention
from tallystick.storage.segments.segment_scan import CLEANED_SUFFIX, SWAP_SUFFIX
from tallystick.storage.state.validation import COMPACT, DELETE

_log = logging.getLogger("tallystick.broker.cleaning")

_WORKER: Final = "tallystick.storage.compaction.cleaner"
# A child that is silent for this long waits for a hanging disk; it is killed and the round is lost.
_WORKER_SILENCE_S_MAX: Final = 3600.0
# Backoff limit: a log whose compaction keeps failing is read in full at each attempt.
_BACKOFF_MS_MAX: Final = 3_600_000
# Number and interval of retries when the process lacks descriptors to put a segment in place.
_STEP_ATTEMPTS_MAX: Final = 600
_STEP_RETRY_S: Final = 0.1
# One group names at most 64 old segments.
_LINE_BYTES_MAX: Final = 64 * 1024


class CleaningConfig(Value, kw_only=True):
    """The broker's cleaning settings; those of one topic are in its log's config."""

    enabled: bool
    backoff_ms: int
    retention_interval_ms: int
    key_map_bytes: int


class CleanerProcessFailed(Exception):
    """The child could not finish; the message is its reason."""


class CleanerDiskFull(Exception):
    """The child found the disk full; the message is its reason."""


class LogChanged(Exception):
    """Records were deleted while the child read them; segments put in place before are valid."""


class WorkerStdin(Protocol):
    def write(self, data: bytes) -> None: ...

    async def drain(self) -> None: ...

    def close(self) -> None: ...


class WorkerStdout(Protocol):
    async def readline(self) -> bytes: ...


class CleanerProcess(Protocol):
    """A cleaner process: it reads one request and writes a line for each result."""

    @property
    def stdin(self) -> WorkerStdin | None: ...

    @property
    def stdout(self) -> WorkerStdout | None: ...

    @property
    def returncode(self) -> int | None: ...

    def kill(self) -> None: ...

    async def wait(self) -> int: ...


async def start_cleaner_process() -> CleanerProcess:
    """Start a cleaner process."""
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", _WORKER),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=_LINE_BYTES_MAX,
    )


class LogCleaner:
    """Owner of all cleaning in one broker. Started and stopped by it, lives on the loop.

    Args:
        logs: every open log.
        checkpoints: where the last round of each ended; changed here, written to a file by the owner
            of the data directory.
    """

    def __init__(
        self,
        logs: Mapping[TopicPartition, Log],
        checkpoints: MutableMapping[TopicPartition, int],
        config: Callable[[], CleaningConfig],
        clock: Clock,
        start_child: Callable[[], Awaitable[CleanerProcess]] = start_cleaner_process,
    ) -> None:
        self._logs = logs
        self._checkpoints = checkpoints
        self._config = config
        self._clock = clock
        self._start_process = start_child
        self._tasks: list[asyncio.Task[None]] = []
        self._current_round: tuple[TopicPartition, asyncio.Task[None]] | None = None
        self._removal_tasks: dict[asyncio.Task[None], TopicPartition] = {}
        self._backoff_until_ms: dict[TopicPartition, int] = {}  # after a failed round: when to try again
        self._failure_counts: dict[TopicPartition, int] = {}  # number of consecutive failed rounds

    # -- life -----------------------------------------------------------------------------------------

    def start(self) -> None:
        self._tasks = [
            asyncio.create_task(self._run_retention(), name="retention"),
            asyncio.create_task(self._run_compaction(), name="compaction"),
        ]

    async def stop(self) -> None:
        """End the child and the timers. A log in a round is left either unchanged or fully exchanged."""
        tasks = [*self._tasks, *self._removal_tasks]
        for task in tasks:
            task.cancel()
        if self._current_round is not None:
            await self.abort_cleaning(self._current_round[0])
        await asyncio.gather(*tasks, return_exceptions=True)

    async def abort_cleaning(self, topic_partition: TopicPartition) -> None:
        """End all work on a log, before it is closed or deleted."""
        if self._current_round is not None and self._current_round[0] == topic_partition:
            task = self._current_round[1]
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        self._backoff_until_ms.pop(topic_partition, None)
        self._failure_counts.pop(topic_partition, None)
        # Their paths may soon belong to a new topic of the same name.
        drops = [drop for drop, name in self._removal_tasks.items() if name == topic_partition]
        for drop in drops:
            drop.cancel()
        await asyncio.gather(*drops, return_exceptions=True)

    # -- retention ---------------------------------------------------------------------------------------

    async def _run_retention(self) -> None:
        while True:
            await asyncio.sleep(self._config().retention_interval_ms / 1000)
            for topic_partition in list(self._logs):
                self.apply_retention(topic_partition)
                await asyncio.sleep(0)  # others first

    def apply_retention(self, topic_partition: TopicPartition) -> int:
        """Delete expired segments of one log, and return how many. Failures are logged, not raised."""
        log = self._logs.get(topic_partition)
        if log is None or log.failure is not None or self._is_cleaning(topic_partition):
            return 0
        now_ms = self._clock.now_ms()
        try:
            plan = _plan_retention(log, now_ms, log.reader.last_stable_offset)
            if plan.includes_last:
                log.roll(now_ms)
            if plan.delete_count:
                delete_oldest_segments(log, plan.delete_count)
                _log.info("%s: deleted %d segments: %s", topic_partition, plan.delete_count, plan.reason)
        except (StorageFailure, OSError) as exc:
            _log.error(
                "%s: retention failed, expired segments stay until the next run: %s", topic_partition, exc
            )
            return 0
        return plan.delete_count

    def _is_cleaning(self, topic_partition: TopicPartition) -> bool:
        return self._current_round is not None and self._current_round[0] == topic_partition

    # -- compaction ----------------------------------------------------------------------------------------

    async def _run_compaction(self) -> None:
        while True:
            if not (self._config().enabled and await self.compact_once()):
                await asyncio.sleep(max(self._config().backoff_ms, 1) / 1000)

    async def compact_once(self) -> bool:
        """Compact the log that needs it most; return False when no log does, or when waiting is better."""
        dirtiest = await self._find_dirtiest()
        if dirtiest is None:
            return False
        topic_partition, log, cleanable = dirtiest
        task = asyncio.create_task(
            self._clean(topic_partition, log, cleanable), name=f"clean {topic_partition}"
        )
        self._current_round = (topic_partition, task)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            ours = asyncio.current_task()
            if ours is not None and ours.cancelling():
                raise  # this task is cancelled; `stop` ends the round
            return False
        except LogChanged:
            return False
        except CleanerDiskFull as exc:
            rest_ms = self._config().backoff_ms
            _log.warning(
                "%s: no room to compact it, which is tried again in %d ms; its records are complete: %s",
                topic_partition,
                rest_ms,
                exc,
            )
            self._backoff_until_ms[topic_partition] = self._clock.monotonic_ms() + rest_ms
            return True  # another log may need less, and make room
        except (CleanerProcessFailed, StorageFailure, OSError) as exc:
            # Segments the child could not read or write are unchanged; those it finished before are valid.
            self._failure_counts[topic_partition] = failure_count = (
                self._failure_counts.get(topic_partition, 0) + 1
            )
            rest_ms = min(self._config().backoff_ms << min(failure_count, 32), _BACKOFF_MS_MAX)
            _log.error(
                "%s: compaction failed and is tried again in %d ms; its records are complete: %s",
                topic_partition,
                rest_ms,
                exc,
            )
            self._backoff_until_ms[topic_partition] = self._clock.monotonic_ms() + rest_ms
            return True
        finally:
            if task.done():
                self._current_round = None
        return True

    async def _find_dirtiest(self) -> tuple[TopicPartition, Log, LogToClean] | None:
        """Return the log to compact: overdue ones first, then the highest dirty ratio."""
        best: tuple[TopicPartition, Log, LogToClean] | None = None
        for topic_partition, log in list(self._logs.items()):
            if (
                COMPACT not in log.config.cleanup_policy
                or log.failure is not None
                or self._is_backing_off(topic_partition)
            ):
                continue
            try:
                plan = self._plan_cleaning(topic_partition, log)
            except (StorageFailure, OSError) as exc:
                _log.error("%s: compaction could not be planned: %s", topic_partition, exc)
                continue
            if plan.is_due and (
                best is None or _compute_cleaning_priority(plan) > _compute_cleaning_priority(best[2])
            ):
                best = (topic_partition, log, plan)
            await asyncio.sleep(0)  # others first
        if best is None or self._logs.get(best[0]) is not best[1]:
            return None
        return best

    def _is_backing_off(self, topic_partition: TopicPartition) -> bool:
        until = self._backoff_until_ms.get(topic_partition)
        if until is None:
            return False
        if until > self._clock.monotonic_ms():
            return True
        del self._backoff_until_ms[topic_partition]
        return False

    def _plan_cleaning(self, topic_partition: TopicPartition, log: Log) -> LogToClean:
        config = log.config
        needs_times = config.min_compaction_lag_ms > 0 or config.max_compaction_lag_ms < INT64_MAX
        return plan_cleaning(
            list(_iter_segment_infos(log, with_times=needs_times)),
            CleaningLimits(
                min_compaction_lag_ms=config.min_compaction_lag_ms,
                max_compaction_lag_ms=config.max_compaction_lag_ms,
                min_cleanable_dirty_ratio=config.min_cleanable_dirty_ratio,
            ),
            checkpoint=self._checkpoints.get(topic_partition),
            log_start_offset=log.log_start_offset,
            last_stable_offset=log.reader.last_stable_offset,
            now_ms=self._clock.now_ms(),
        )

    async def _clean(self, topic_partition: TopicPartition, log: Log, cleanable: LogToClean) -> None:
        for segment in log.reader.segments:
            # The records of an aborted transaction that nothing names would be kept as committed ones.
            segment.repair_transaction_index()
        request = self._build_request(log, cleanable)
        started_ms = self._clock.monotonic_ms()
        worker = await self._start_process()
        try:
            summary = await self._run_worker(worker, log, request)
        finally:
            if worker.returncode is None:
                worker.kill()
            await worker.wait()
            _remove_leftovers(log)
        self._checkpoints[topic_partition] = summary["end_offset"]
        self._failure_counts.pop(topic_partition, None)
        _log.info(
            "%s: compacted up to %d, %d bytes to %d, in %d ms",
            *(topic_partition, summary["end_offset"], summary["bytes_read"], summary["bytes_written"]),
            self._clock.monotonic_ms() - started_ms,
        )
        if unread := summary["unread_batches"]:
            _log.warning(
                "%s: %d batches unpack beyond the bound of records, or cannot be unpacked; they and the"
                " tombstones behind them were left as they are, and the rest is compacted. Nothing was lost",
                topic_partition,
                unread,
            )

    def _build_request(self, log: Log, cleanable: LogToClean) -> CleaningRequest:
        segments = [
            (facts.base_offset, facts.next_offset, facts.size_bytes)
            for facts in _iter_segment_infos(log, with_times=False)
            if facts.next_offset <= cleanable.first_uncleanable_offset
        ]
        producers = tuple(
            (state.producer_id, state.last_data_offset, state.epoch)
            for state in log.producer_state_manager.active_producers.values()
        )
        return CleaningRequest(
            directory=log.directory,
            segments=tuple(segments),
            first_dirty_offset=cleanable.first_dirty_offset,
            segment_bytes=log.config.segment_bytes,
            index_interval_bytes=log.config.index_interval_bytes,
            delete_retention_ms=log.config.delete_retention_ms,
            now_ms=self._clock.now_ms(),
            key_map_bytes=self._config().key_map_bytes,
            producers=producers,
        )

    async def _run_worker(self, worker: CleanerProcess, log: Log, request: CleaningRequest) -> dict[str, Any]:
        """Send the request to the child, put in place what it finishes, and return its last message."""
        requests, answers = require(worker.stdin, "it is a pipe"), require(worker.stdout, "it is a pipe")
        requests.write(f"{json.dumps(request.to_json())}\n".encode())
        await requests.drain()
        requests.close()
        while True:
            line = await asyncio.wait_for(answers.readline(), _WORKER_SILENCE_S_MAX)
            if not line:
                raise CleanerProcessFailed(f"the cleaner process ended with exit code {await worker.wait()}")
            message: dict[str, Any] = json.loads(line)
            match message.pop("kind"):
                case "done":
                    return message
                case "failed":
                    raise (CleanerDiskFull if message["full"] else CleanerProcessFailed)(message["reason"])
            message["old"] = tuple(message["old"])
            await self._swap_shielded(log, CleanedGroup(**message))

    async def _swap_shielded(self, log: Log, group: CleanedGroup) -> None:
        """Run all steps or none: a cancellation waits, as files and memory differ between steps."""
        await _wait_uninterrupted(asyncio.ensure_future(self._swap(log, group)))

    async def _swap(self, log: Log, group: CleanedGroup) -> None:
        swap = SegmentSwap(log, group)
        if not swap.is_current():
            # The log changed since the child read it. The round ends, and nothing counts as clean: later
            # groups may lack a tombstone that still deletes a value in this one.
            swap.remove_new_files()
            raise LogChanged
        try:
            for step in swap.iter_steps():
                await _run_step(step)
        except OSError as exc:
            # File names on disk and state in memory differ: the next start finishes the exchange.
            raise log.take_offline(f"compacted segments could not replace the old ones: {exc}") from exc
        drop = asyncio.create_task(
            _remove_replaced_files(swap, log.config.file_delete_delay_ms), name="drop replaced segments"
        )
        self._removal_tasks[drop] = log.topic_partition
        drop.add_done_callback(self._removal_tasks.pop)


async def _run_step(step: InlineStep | BlockingStep) -> None:
    """Run a step of an exchange; retry while the process is out of descriptors.

    A lack of descriptors says nothing about the disk, and every step can be repeated. Raises: as the step.
    """
    for tries_left in range(_STEP_ATTEMPTS_MAX, 0, -1):
        try:
            if isinstance(step, InlineStep):
                step.run()
            else:
                await asyncio.to_thread(step.run)
            return
        except OSError as exc:
            if not is_out_of_descriptors(exc) or tries_left == 1:
                raise
            await asyncio.sleep(_STEP_RETRY_S)


async def _remove_replaced_files(swap: SegmentSwap, delay_ms: int) -> None:
    await asyncio.sleep(delay_ms / 1000)
    try:
        await asyncio.to_thread(swap.remove_old_files)
    except OSError as exc:
        # The directory is gone with its topic; other leftovers are removed at the next start.
        _log.info("replaced segments could not be removed and stay until the next start: %s", exc)


async def _wait_uninterrupted(task: "asyncio.Future[None]") -> None:
    """Wait for a task to end; re-raise our own cancellation afterwards."""
    cancellation: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as exc:
            cancellation = exc
        except Exception:
            break  # `result` raises it
    if cancellation is not None and task.exception() is None:
        raise cancellation
    task.result()


def count_held_back_bytes(log: Log, now_ms: int) -> int:
    """Return the bytes that retention would delete if no transaction were open.

    Raises: StorageFailure, OSError.
    """
    deletable_now = _plan_retention(log, now_ms, log.reader.last_stable_offset).delete_count
    deletable_if_decided = _plan_retention(log, now_ms, log.reader.high_watermark).delete_count
    return sum(segment.size for segment in log.segments[deletable_now:deletable_if_decided])


def _plan_retention(log: Log, now_ms: int, up_to: int) -> RetentionPlan:
    return plan_retention(
        _iter_segment_infos(log, with_times=log.config.retention_ms is not None),
        RetentionLimits(
            may_delete=DELETE in log.config.cleanup_policy,
            retention_ms=log.config.retention_ms,
            retention_bytes=log.config.retention_bytes,
        ),
        size_bytes=log.size_bytes,
        log_start_offset=log.log_start_offset,
        last_stable_offset=up_to,
        now_ms=now_ms,
    )


def _iter_segment_infos(log: Log, *, with_times: bool) -> Iterator[SegmentInfo]:
    """Yield facts of each segment, oldest first; timestamps are read from the index only on request."""
    for number, segment in enumerate(log.segments):
        last = number + 1 == len(log.segments)
        newest = segment.largest_timestamp[0] if with_times else -1
        yield SegmentInfo(
            segment.base_offset,
            log.log_end_offset if last else log.segments[number + 1].base_offset,
            segment.size,
            newest if newest >= 0 else None,
        )


def _compute_cleaning_priority(cleanable: LogToClean) -> tuple[bool, float]:
    return cleanable.is_overdue, cleanable.dirty_ratio


def _remove_leftovers(log: Log) -> None:
    """Remove the files of a child that failed or was killed; a finished round leaves none."""
    if not log.fs.exists(log.directory) or log.failure is not None:
        return
    for segment in log.segments:
        remove_files(log.fs, log.directory, segment.base_offset, CLEANED_SUFFIX)
        remove_files(log.fs, log.directory, segment.base_offset, SWAP_SUFFIX)
