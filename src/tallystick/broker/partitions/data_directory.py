"""The data directory in the broker: its logs, their syncing, and periodic housekeeping.

Appends that an answer waits for are synced by the group commit in its own thread, which reports back through
the loop. Everything else here belongs to the loop: a log has one owner.
"""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar, cast, get_args

from tallystick.broker.config.broker_config import BrokerConfig
from tallystick.broker.config.topic_config import TopicConfig
from tallystick.broker.metadata.store import FILE_NAME, MetadataStore, Topic
from tallystick.broker.partitions.descriptors import RESIDENTS_MAX
from tallystick.broker.partitions.log_cleaner import Child, Cleaning, CleaningConfig, start_child
from tallystick.broker.partitions.partition import Partition
from tallystick.broker.partitions.topics import GROUP_OFFSETS, INTERNAL
from tallystick.kernel.clock import Clock
from tallystick.kernel.errors import TallystickError
from tallystick.kernel.ids import LeaderEpoch, Offset, TopicPartition
from tallystick.kernel.limits import MIB
from tallystick.kernel.value import frozen
from tallystick.protocol.records import Codec, TimestampType
from tallystick.storage.fs import FileSystem, RealFileSystem, StorageFailure, is_broken
from tallystick.storage.group_commit import GroupCommit
from tallystick.storage.log import Log
from tallystick.storage.log_dir import DirectoryOptions, LogDir
from tallystick.storage.reserve import Reserve
from tallystick.storage.validation import FlushPolicy, LogConfig

T = TypeVar("T")

_log = logging.getLogger("tallystick.broker.files")

# Upper bound of a metadata change: a few pages of the write-ahead log, and as many at its checkpoint.
_METADATA_BYTES: Final = 256 * 1024
# Upper bound of an empty partition: its files, and the blocks of their names.
_PARTITION_BYTES: Final = 64 * 1024
# Concurrent syncs of different files share the slow part of the disk's work.
_THREADS: Final = 8
# Interval of progress reports while a start reads logs.
_PROGRESS_MS: Final = 5_000
# Interval of attempts to restore a reserve that was used.
RESERVE_CHECK_MS: Final = 1_000

_CODECS: Final[dict[str, Codec | None]] = {
    "producer": None,
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}


class DataDirectoryUnusable(TallystickError):
    """The files of a data directory do not belong together."""


class Syncer(Protocol):
    """Syncs requested logs soon, and reports each."""

    def start(self) -> None: ...

    def request(self, log: Log) -> None: ...

    def stop(self) -> None:
        """Serve all requests, then end. May block."""
        ...


def at_the_same_time(calls: Sequence[Callable[[], None]]) -> None:
    """Run all calls in threads, and return when all have ended. Raises what the first of them raised."""
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="start") as threads:
        for done in [threads.submit(call) for call in calls]:
            done.result()


@frozen(kw_only=True)
class Disk:
    """The machine that a data directory stands on: the real one, or a simulation.

    run_all   runs independent calls that wait for the disk
    syncer    built with callbacks for a log that is synced up to an offset, and for one that failed
    metadata  opens the metadata file: its path, the cluster it must belong to, a callback that frees room for
              a write
    cleaner   starts the process that compacts
    """

    fs: FileSystem = field(default_factory=RealFileSystem)
    run_all: Callable[[Sequence[Callable[[], None]]], None] = at_the_same_time
    syncer: Callable[[Callable[[Log, Offset], None], Callable[[Log, StorageFailure], None]], Syncer] = (
        GroupCommit
    )
    metadata: Callable[[Path, str, Callable[[], None]], MetadataStore] = MetadataStore
    cleaner: Callable[[], Awaitable[Child]] = start_child


class DataDirectory:
    """Owner of the open logs. Lives on the loop; created by the broker, which it tells of a failed disk."""

    def __init__(
        self,
        path: Path,
        config: BrokerConfig,
        clock: Clock,
        failed: Callable[[Exception], None],
        disk: Disk | None = None,
        *,
        residents_max: int = RESIDENTS_MAX,
    ) -> None:
        self._path = path
        self._residents_max = residents_max
        self._disk = disk or Disk()
        self._config = config
        self._clock = clock
        self._failed = failed
        self._loop = asyncio.get_running_loop()
        self._partitions: dict[TopicPartition, Partition] = {}
        self._timers: set[asyncio.TimerHandle] = set()
        self._in_threads: set[asyncio.Future[Any]] = set()  # work that must end before the release
        self._checkpointing: asyncio.Task[None] | None = None
        self._epochs_to_begin: list[Callable[[], None]] = []
        self._told_ms = clock.monotonic_ms()
        self._commit = self._disk.syncer(self._synced_in_thread, self._failed_in_thread)

    def open(self) -> MetadataStore:
        """Lock the directory and open its metadata. Blocking.

        Raises: DirectoryInUse, ForeignDirectory, DataDirectoryUnusable, MetadataUnusable, OSError.
        """
        fs = self._disk.fs
        self._reserve = Reserve(fs, str(self._path), self._config.log_reserve_bytes)
        options = DirectoryOptions(
            node_id=self._config.node_id,
            space=self._reserve,
            request_sync=self._commit.request,
            offline=self._failed_in_thread,
            discard=self._discard,
            residents_max=self._residents_max,
        )
        self._dir = LogDir.open(fs, str(self._path), options)
        if not self._dir.was_clean and (left := self._dir.partitions()):
            _log.warning(
                "the last stop was not clean: %d logs are read from where they were last synced", len(left)
            )
        self._cleaning = Cleaning(
            self._dir.logs, self._dir.cleaned, self._cleaning_config, self._clock, self._disk.cleaner
        )
        if not self._reserve.restore():
            _log.error("the disk is too full for log.reserve.bytes: data is refused until there is room")
        file, cluster_id = self._path / FILE_NAME, self._dir.meta.cluster_id
        left = self._dir.partitions()
        if left and not fs.exists(str(file)):
            self._dir.abandon()
            raise DataDirectoryUnusable(
                f"{file} is gone, and {len(left)} partitions are there, {left[0]} first"
            )
        store = self._disk.metadata(file, cluster_id, lambda: self._reserve.ensure(_METADATA_BYTES))
        if store.cluster_id() != cluster_id:
            self._dir.abandon()
            raise DataDirectoryUnusable(
                f"{file} belongs to cluster {store.cluster_id()}, meta.properties beside it to {cluster_id}"
            )
        self._commit.start()
        return store

    def open_partition(self, topic: Topic, index: int, config: TopicConfig) -> Partition:
        """Open or create one log. Blocking. Raises: CorruptLog, ForeignDirectory, OSError."""
        name = TopicPartition(topic.name, index)
        if topic.name in INTERNAL:
            self._reserve.ensure(_PARTITION_BYTES)
        log = self._dir.get_or_create(name, self.log_config(topic.name, config), topic.topic_id)
        self._say_progress()
        latest = log.epochs.latest
        # KIP-320: after a crash under `os` or `interval` records may be gone that a client has seen; a new
        # leader epoch lets it detect the truncation. A clean stop loses nothing.
        epoch = 0 if latest is None else latest if self._dir.was_clean else latest + 1
        if latest is not None and epoch > latest:
            self._epochs_to_begin.append(partial(log.begin_epoch, LeaderEpoch(epoch)))
        synced = self._config.flush_policy == "ack"
        partition = Partition(
            log,
            leader_epoch=LeaderEpoch(epoch),
            config=config,
            clock=self._clock,
            request_sync=self._commit.request if synced else None,
            offline=self._failed,
        )
        self._partitions[name] = partition
        return partition

    def begin_epochs(self) -> None:
        """Put the new leader epochs on the disk before a client sees one, so that none is reused. Blocking.

        Two syncs each, which would take longer one after another than all the rest of a start.
        Raises: LogOffline.
        """
        calls, self._epochs_to_begin = self._epochs_to_begin, []
        if calls:
            self._disk.run_all(calls)

    def _say_progress(self) -> None:
        now_ms, done = self._clock.monotonic_ms(), len(self._dir.reports)
        if self._dir.was_clean or now_ms - self._told_ms < _PROGRESS_MS:
            return
        self._told_ms = now_ms
        size = sum(report.scanned_bytes for _, report in self._dir.reports)
        _log.info("recovery: %d of %d logs, %d MB read", done, len(self._dir.partitions()), size // MIB)

    async def make_partition(self, topic: Topic, index: int, config: TopicConfig) -> Partition:
        """Create one log, with its syncs in a thread, and open it. Raises as `open_partition`."""
        name = TopicPartition(topic.name, index)
        if self._dir.is_new(name):
            log_config, topic_id = self.log_config(topic.name, config), topic.topic_id
            made = await self._in_thread(lambda: self._dir.make(name, log_config, topic_id))
            self._dir.adopt(made, topic_id)
        return self.open_partition(topic, index, config)

    def find_foreign(self, topic: Topic) -> tuple[TopicPartition, ...]:
        """Return directories under the topic's name that are not its own. Raises: StorageFailure, OSError."""
        return self._dir.find_foreign(topic.name, topic.topic_id)

    def hand_over(self, deleted: Topic, to: Topic) -> tuple[TopicPartition, ...]:
        """Give a topic the directories that a deleted topic of its name still owns.

        Raises: StorageFailure, OSError.
        """
        return self._dir.hand_over(deleted.name, deleted.topic_id, to.topic_id)

    async def give_up(self, topic: Topic) -> None:
        """Free the names of a deleted topic's directories; may be repeated after a failure.

        All work on its logs ends before the first of them is renamed, in a thread.
        Raises: StorageFailure, OSError.
        """
        for name in self._names_of(topic):
            await self._cleaning.cancel(name)
            self._forget(name)
        await self._in_thread(lambda: self._dir.give_up(topic.name, topic.topic_id))

    def give_up_now(self, topic: Topic) -> None:
        """Do as `give_up`, blocking: the broker is starting."""
        for name in self._names_of(topic):
            self._forget(name)
        self._dir.give_up(topic.name, topic.topic_id)

    def _names_of(self, topic: Topic) -> list[TopicPartition]:
        """Return all partitions created for the topic: after a failed creation, maybe more than it has."""
        foreign = self.find_foreign(topic)
        return [name for name in self._dir.partitions() if name.topic == topic.name and name not in foreign]

    def _forget(self, name: TopicPartition) -> None:
        self._partitions.pop(name, None)
        self._dir.forget(name)

    @property
    def has_given_up(self) -> bool:
        """Whether files of deleted partitions still exist."""
        return self._dir.has_given_up

    async def remove_given_up(self) -> None:
        """Remove the files of deleted partitions, in a thread. Raises: OSError."""
        await self._in_thread(self._dir.remove_given_up)

    def failed(self, cause: Exception) -> None:
        """Report to the broker that the disk failed."""
        self._failed(cause)

    async def _in_thread(self, call: Callable[[], T]) -> T:
        """Wait for `call` in a thread; `stop` waits for it even if the caller was cancelled."""
        future = self._loop.run_in_executor(None, call)
        self._in_threads.add(future)
        future.add_done_callback(self._in_threads.discard)
        return await asyncio.shield(future)

    def log_config(self, topic: str, config: TopicConfig) -> LogConfig:
        return storage_config(topic, config, self._config)

    def reconfigure(self, config: BrokerConfig) -> None:
        self._config = config

    def report_recovery(self) -> None:
        """Log the findings of recovery, and the directories of no known topic, which are left alone."""
        for name, report in self._dir.reports:
            if report.repairs:
                _log.warning("%s: %s", name, report)
        strangers = [str(name) for name in self._dir.partitions() if name not in self._partitions]
        if strangers:
            _log.warning("no topic owns these directories, they are left alone: %s", ", ".join(strangers))

    @property
    def was_clean(self) -> bool:
        """Whether the last process here stopped cleanly; False for a fresh directory."""
        return self._dir.was_clean

    @property
    def reserve(self) -> Reserve:
        return self._reserve

    def volume_bytes(self) -> tuple[int, int]:
        """Return the size of the volume, and its free bytes."""
        volume = os.statvfs(self._path)
        return volume.f_blocks * volume.f_frsize, volume.f_bavail * volume.f_frsize

    # ---------------------------------------------------------------- the group commit's thread

    def _synced_in_thread(self, log: Log, end: Offset) -> None:
        self._loop.call_soon_threadsafe(self._synced, log)

    def _failed_in_thread(self, log: Log, failure: StorageFailure) -> None:
        self._loop.call_soon_threadsafe(self._failed, failure)

    def _synced(self, log: Log) -> None:
        partition = self._partitions.get(log.topic_partition)
        if partition is not None and partition.log is log:
            partition.advanced()

    # -------------------------------------------------------------------------- timers

    def start(self) -> None:
        """Start the periodic work."""
        config = self._config
        if config.flush_policy == "interval":
            self._every(config.flush_interval_ms, self._request_syncs)
        self._every(config.log_flush_offset_checkpoint_interval_ms, self._checkpoint)
        self._every(config.producer_id_expiration_check_interval_ms, self._expire_producers)
        self._every(RESERVE_CHECK_MS, self._restore_reserve)
        self._cleaning.start()

    def _cleaning_config(self) -> CleaningConfig:
        config = self._config
        return CleaningConfig(
            enabled=config.log_cleaner_enable,
            backoff_ms=config.log_cleaner_backoff_ms,
            retention_interval_ms=config.log_retention_check_interval_ms,
            key_map_bytes=config.log_cleaner_dedupe_buffer_size,
        )

    def _restore_reserve(self) -> None:
        if not self._reserve.whole and self._reserve.restore():
            _log.info("the reserve is whole again, data is accepted")

    def _every(self, period_ms: int, work: Callable[[], None]) -> None:
        def due() -> None:
            self._timers.discard(timer)
            try:
                work()
            except (StorageFailure, OSError) as exc:
                self._housekeeping_failed(exc)
            finally:
                self._every(period_ms, work)

        timer = self._loop.call_later(max(period_ms, 1) / 1000, due)
        self._timers.add(timer)

    def _discard(self, log: Log, paths: list[str]) -> None:
        """Remove files of deleted segments after a delay, in a thread; a restart removes the rest."""

        def due() -> None:
            self._timers.discard(timer)
            removal = self._loop.run_in_executor(None, _remove, log, paths)
            self._in_threads.add(removal)
            removal.add_done_callback(self._in_threads.discard)

        timer = self._loop.call_later(log.config.file_delete_delay_ms / 1000, due)
        self._timers.add(timer)

    def _request_syncs(self) -> None:
        for partition in self._partitions.values():
            if partition.log.synced_end < partition.log.log_end_offset:
                self._commit.request(partition.log)

    def _checkpoint(self) -> None:
        if self._checkpointing is None or self._checkpointing.done():
            self._checkpointing = self._loop.create_task(self._write_checkpoint(), name="checkpoint")

    async def _write_checkpoint(self) -> None:
        try:
            for name in list(self._partitions):
                self._dir.flush_indexes(name)
                await asyncio.sleep(0)  # yield to other tasks
            await self._in_thread(self._dir.checkpoint)
        except (StorageFailure, OSError) as exc:
            self._housekeeping_failed(exc)

    def _housekeeping_failed(self, exc: Exception) -> None:
        _log.error("housekeeping failed: %s", exc)
        if is_broken(exc):
            self._failed(exc)

    def _expire_producers(self) -> None:
        now_ms = self._clock.now_ms()
        for partition in self._partitions.values():
            partition.log.producer_state.expire(now_ms, self._config.producer_id_expiration_ms)

    async def stop(self, *, clean: bool) -> None:
        """End the background work, then close every log. Raises: StorageFailure, OSError."""
        await self._cleaning.stop()
        for timer in self._timers:
            timer.cancel()
        if self._checkpointing is not None:
            await asyncio.gather(self._checkpointing, return_exceptions=True)
        await asyncio.gather(*self._in_threads, return_exceptions=True)
        self._commit.stop()
        if clean:
            self._dir.close()
        else:
            self._dir.abandon()


def _remove(log: Log, paths: list[str]) -> None:
    for path in paths:
        try:
            log.fs.remove(path)
        except FileNotFoundError:
            return  # the topic was deleted meanwhile, with its directory
        except OSError as exc:
            _log.warning("%s is left until the next start: %s", path, exc)


def storage_config(topic: str, config: TopicConfig, broker: BrokerConfig) -> LogConfig:
    """Return a topic's settings in the form that its logs use."""
    levels = {
        "gzip": None if config.compression_gzip_level < 0 else config.compression_gzip_level,
        "lz4": config.compression_lz4_level,
        "zstd": config.compression_zstd_level,
    }
    log_append_time = config.message_timestamp_type == "LogAppendTime"
    return LogConfig(
        segment_bytes=config.segment_bytes,
        segment_ms=config.segment_ms,
        segment_index_bytes=config.segment_index_bytes,
        index_interval_bytes=config.index_interval_bytes,
        retention_ms=config.retention_ms,
        retention_bytes=config.retention_bytes,
        cleanup_policy=frozenset(config.cleanup_policy),
        max_message_bytes=config.max_message_bytes,
        message_timestamp_type=(
            TimestampType.LOG_APPEND_TIME if log_append_time else TimestampType.CREATE_TIME
        ),
        message_timestamp_before_max_ms=config.message_timestamp_before_max_ms,
        message_timestamp_after_max_ms=config.message_timestamp_after_max_ms,
        compression_type=_CODECS[config.compression_type],
        compression_level=levels.get(config.compression_type),
        flush_policy=_flush_policy(broker.flush_policy),
        flush_interval_ms=broker.flush_interval_ms,
        min_compaction_lag_ms=config.min_compaction_lag_ms,
        max_compaction_lag_ms=config.max_compaction_lag_ms,
        delete_retention_ms=config.delete_retention_ms,
        min_cleanable_dirty_ratio=config.min_cleanable_dirty_ratio,
        file_delete_delay_ms=config.file_delete_delay_ms,
        producer_id_expiration_ms=broker.producer_id_expiration_ms,
        verification_required=broker.transaction_partition_verification_enable,
        # Beginning a transaction is refused on a full disk: the reserve is for ends [TXN-14].
        internal=topic == GROUP_OFFSETS,
    )


def _flush_policy(text: str) -> FlushPolicy:
    if text not in get_args(FlushPolicy):
        raise ValueError(f"flush.policy {text!r} is unknown")
    return cast(FlushPolicy, text)
