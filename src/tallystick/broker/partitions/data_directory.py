"""The data directory in the broker: its logs, their syncing, and periodic housekeeping.

Appends that an answer waits for are synced by the group commit in its own thread, which reports back through
the loop. Everything else here belongs to the loop: a log has one owner.
"""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final, Protocol, cast, get_args

from msgspec import field

from tallystick.broker.config.broker_config import BrokerConfig
from tallystick.broker.config.topic_config import TopicConfig
from tallystick.broker.metadata.store import FILE_NAME, MetadataStore, Topic, peek_cluster_id
from tallystick.broker.partitions.descriptors import OPEN_SEGMENTS_MAX
from tallystick.broker.partitions.housekeeping import BackgroundScheduler, Housekeeping
from tallystick.broker.partitions.log_cleaner import (
    CleanerProcess,
    CleaningConfig,
    LogCleaner,
    start_cleaner_process,
)
from tallystick.broker.partitions.partition import Partition
from tallystick.broker.partitions.topics import CONSUMER_OFFSETS_TOPIC, INTERNAL_TOPICS
from tallystick.kernel.clock import Clock
from tallystick.kernel.errors import TallystickError
from tallystick.kernel.ids import LeaderEpoch, Offset, TopicPartition
from tallystick.kernel.limits import MIB
from tallystick.kernel.value import Value
from tallystick.protocol.records import Codec, TimestampType
from tallystick.storage.disk.fs import FileSystem, RealFileSystem, StorageFailure
from tallystick.storage.disk.reserve import DiskReserve
from tallystick.storage.log.group_commit import GroupCommit
from tallystick.storage.log.log import Log
from tallystick.storage.log_dir import META_PROPERTIES_FILE, DirectoryOptions, LogDir
from tallystick.storage.state.validation import FlushPolicy, LogConfig

_log = logging.getLogger("tallystick.broker.files")

# Upper bound of a metadata change: a few pages of the write-ahead log, and as many at its checkpoint.
_METADATA_BYTES: Final = 256 * 1024
# Upper bound of an empty partition: its files, and the blocks of their names.
_PARTITION_BYTES: Final = 64 * 1024
# Concurrent syncs of different files share the slow part of the disk's work.
_THREAD_COUNT: Final = 8
# Interval of progress reports while a start reads logs.
_PROGRESS_MS: Final = 5_000

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


def run_in_threads(calls: Sequence[Callable[[], None]]) -> None:
    """Run all calls in threads, and return when all have ended. Raises what the first of them raised."""
    with ThreadPoolExecutor(_THREAD_COUNT, thread_name_prefix="start") as threads:
        for future in [threads.submit(call) for call in calls]:
            future.result()


class MetadataOpener(Protocol):
    """Opens the metadata file, as `MetadataStore` does."""

    def __call__(
        self, path: Path, cluster_id: str, make_room: Callable[[], None], *, may_create: bool
    ) -> MetadataStore: ...


class StorageEnvironment(Value, kw_only=True):
    """The machine that a data directory stands on: the real one, or a simulation.

    run_concurrently  runs independent calls that wait for the disk
    make_syncer       built with callbacks for a log that is synced up to an offset, and for one that failed
    open_metadata     opens the metadata file: its path, the cluster it must belong to, a callback that frees
                      room for a write, and whether it may be created (`MetadataStore`)
    start_cleaner     starts the process that compacts
    """

    fs: FileSystem = field(default_factory=RealFileSystem)
    run_concurrently: Callable[[Sequence[Callable[[], None]]], None] = run_in_threads
    make_syncer: Callable[[Callable[[Log, Offset], None], Callable[[Log, StorageFailure], None]], Syncer] = (
        GroupCommit
    )
    open_metadata: MetadataOpener = MetadataStore
    start_cleaner: Callable[[], Awaitable[CleanerProcess]] = start_cleaner_process


class DataDirectory:
    """Owner of the open logs. Lives on the loop; created by the broker, which it tells of a failed disk."""

    def __init__(
        self,
        path: Path,
        config: BrokerConfig,
        clock: Clock,
        on_failure: Callable[[Exception], None],
        disk: StorageEnvironment | None = None,
        *,
        residents_max: int = OPEN_SEGMENTS_MAX,
    ) -> None:
        self._path = path
        self._open_segments_max = residents_max
        self._disk = disk or StorageEnvironment()
        self._config = config
        self._clock = clock
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()
        self._partitions: dict[TopicPartition, Partition] = {}
        self._scheduler = BackgroundScheduler()
        self._epochs_to_begin: list[Callable[[], None]] = []
        self._progress_logged_ms = clock.monotonic_ms()

        def on_synced(log: Log, end: Offset) -> None:
            self._loop.call_soon_threadsafe(self._on_synced, log)

        def on_sync_failed(log: Log, failure: StorageFailure) -> None:
            self._on_failure_in_thread(failure)

        self._syncer = self._disk.make_syncer(on_synced, on_sync_failed)

    def open(self) -> MetadataStore:
        """Lock the directory and open its metadata. Blocking.

        Raises: DirectoryInUse, ForeignDirectory, DataDirectoryUnusable, MetadataUnusable, OSError.
        """
        fs = self._disk.fs
        self._reserve = DiskReserve(fs, str(self._path), self._config.log_reserve_bytes)
        cluster_id = None
        if not fs.exists(str(self._path / META_PROPERTIES_FILE)):
            cluster_id = peek_cluster_id(self._path / FILE_NAME)
        if cluster_id is not None:
            _log.warning(
                "%s is missing and is written again, with the cluster id of %s",
                META_PROPERTIES_FILE,
                FILE_NAME,
            )
        options = DirectoryOptions(
            node_id=self._config.node_id,
            cluster_id=cluster_id,
            space_guard=self._reserve,
            request_sync=self._syncer.request,
            on_offline=self._on_failure_in_thread,
            discard_files=partial(_remove_files_later, self._scheduler),
            open_segments_max=self._open_segments_max,
        )
        self._log_dir = LogDir.open(fs, str(self._path), options)
        if not self._log_dir.had_clean_shutdown and (partitions := self._log_dir.list_partitions()):
            _log.warning(
                "the last stop was not clean, so %d logs are scanned from their recovery points",
                len(partitions),
            )
        self._log_cleaner = LogCleaner(
            self._log_dir.logs,
            self._log_dir.cleaner_checkpoints,
            lambda: _make_cleaning_config(self._config),
            self._clock,
            self._disk.start_cleaner,
        )
        self._housekeeping = Housekeeping(
            self._log_dir,
            self._partitions,
            reserve=self._reserve,
            scheduler=self._scheduler,
            clock=self._clock,
            config=lambda: self._config,
            request_sync=self._syncer.request,
            on_failure=self._on_failure,
        )
        if not self._reserve.restore():
            _log.error(
                "the disk has no room for log.reserve.bytes, so producers are refused; free space on it"
            )
        try:
            store = _open_metadata(self._path / FILE_NAME, self._disk, self._log_dir, self._reserve)
        except TallystickError:
            self._log_dir.close_without_sync()
            raise
        self._syncer.start()
        return store

    def open_partition(self, topic: Topic, index: int, config: TopicConfig) -> Partition:
        """Open or create one log. Blocking. Raises: CorruptLog, ForeignDirectory, OSError."""
        name = TopicPartition(topic.name, index)
        if topic.name in INTERNAL_TOPICS:
            self._reserve.ensure_free(_PARTITION_BYTES)
        log = self._log_dir.get_or_create(name, self.make_log_config(topic.name, config), topic.topic_id)
        self._log_progress()
        latest = log.leader_epochs.latest_epoch
        # KIP-320: after a crash under `os` or `interval` records may be gone that a client has seen; a new
        # leader epoch lets it detect the truncation. A clean stop loses nothing.
        epoch = 0 if latest is None else latest if self._log_dir.had_clean_shutdown else latest + 1
        if latest is not None and epoch > latest:
            self._epochs_to_begin.append(partial(log.begin_epoch, LeaderEpoch(epoch)))
        is_acked_when_synced = self._config.flush_policy == "ack"
        partition = Partition(
            log,
            leader_epoch=LeaderEpoch(epoch),
            config=config,
            clock=self._clock,
            request_sync=self._syncer.request if is_acked_when_synced else None,
            offline=self._on_failure,
        )
        self._partitions[name] = partition
        return partition

    def begin_leader_epochs(self) -> None:
        """Put the new leader epochs on the disk before a client sees one, so that none is reused. Blocking.

        Two syncs each, which would take longer one after another than all the rest of a start.
        Raises: LogOffline.
        """
        calls, self._epochs_to_begin = self._epochs_to_begin, []
        if calls:
            self._disk.run_concurrently(calls)

    def _log_progress(self) -> None:
        now_ms, count = self._clock.monotonic_ms(), len(self._log_dir.reports)
        if self._log_dir.had_clean_shutdown or now_ms - self._progress_logged_ms < _PROGRESS_MS:
            return
        self._progress_logged_ms = now_ms
        size = sum(report.scanned_bytes for _, report in self._log_dir.reports)
        _log.info(
            "recovery: %d of %d logs, %d MB read", count, len(self._log_dir.list_partitions()), size // MIB
        )

    async def create_partition(self, topic: Topic, index: int, config: TopicConfig) -> Partition:
        """Create one log, with its syncs in a thread, and open it. Raises as `open_partition`."""
        name = TopicPartition(topic.name, index)
        if self._log_dir.is_new(name):
            log_config, topic_id = self.make_log_config(topic.name, config), topic.topic_id
            log = await self._scheduler.run_in_thread(
                lambda: self._log_dir.create_log(name, log_config, topic_id)
            )
            self._log_dir.add_log(log, topic_id)
        return self.open_partition(topic, index, config)

    def find_foreign_partitions(self, topic: Topic) -> tuple[TopicPartition, ...]:
        """Return directories under the topic's name that are not its own. Raises: StorageFailure, OSError."""
        return self._log_dir.find_foreign_partitions(topic.name, topic.topic_id)

    def transfer_directories(self, deleted: Topic, to: Topic) -> tuple[TopicPartition, ...]:
        """Give a topic the directories that a deleted topic of its name still owns.

        Raises: StorageFailure, OSError.
        """
        return self._log_dir.transfer_directories(deleted.name, deleted.topic_id, to.topic_id)

    async def rename_for_deletion(self, topic: Topic) -> None:
        """Free the names of a deleted topic's directories; may be repeated after a failure.

        All work on its logs ends before the first of them is renamed, in a thread.
        Raises: StorageFailure, OSError.
        """
        for name in self._list_partitions(topic):
            await self._log_cleaner.abort_cleaning(name)
            self._close_for_deletion(name)
        await self._scheduler.run_in_thread(
            lambda: self._log_dir.rename_for_deletion(topic.name, topic.topic_id)
        )

    def rename_for_deletion_now(self, topic: Topic) -> None:
        """Do as `rename_for_deletion`, blocking: the broker is starting."""
        for name in self._list_partitions(topic):
            self._close_for_deletion(name)
        self._log_dir.rename_for_deletion(topic.name, topic.topic_id)

    def _list_partitions(self, topic: Topic) -> list[TopicPartition]:
        """Return all partitions created for the topic: after a failed creation, maybe more than it has."""
        foreign = self.find_foreign_partitions(topic)
        return [
            name
            for name in self._log_dir.list_partitions()
            if name.topic == topic.name and name not in foreign
        ]

    def _close_for_deletion(self, name: TopicPartition) -> None:
        self._partitions.pop(name, None)
        self._log_dir.close_for_deletion(name)

    @property
    def has_pending_removals(self) -> bool:
        """Whether files of deleted partitions still exist."""
        return self._log_dir.has_pending_removals

    async def remove_deleted_logs(self) -> None:
        """Remove the files of deleted partitions, in a thread. Raises: OSError."""
        await self._scheduler.run_in_thread(self._log_dir.remove_deleted_logs)

    def report_failure(self, cause: Exception) -> None:
        """Report to the broker that the disk failed."""
        self._on_failure(cause)

    def make_log_config(self, topic: str, config: TopicConfig) -> LogConfig:
        return make_log_config(topic, config, self._config)

    def reconfigure(self, config: BrokerConfig) -> None:
        self._config = config

    def report_recovery(self) -> None:
        """Log the findings of recovery, and the directories of no known topic, which are left alone."""
        for name, report in self._log_dir.reports:
            if report.repairs:
                _log.warning("%s: %s", name, report)
        foreign_directories = [
            str(name) for name in self._log_dir.list_partitions() if name not in self._partitions
        ]
        if foreign_directories:
            _log.warning(
                "no topic has the ids of these directories, which are ignored: %s",
                ", ".join(foreign_directories),
            )

    @property
    def had_clean_shutdown(self) -> bool:
        """Whether the last process here stopped cleanly; False for a fresh directory."""
        return self._log_dir.had_clean_shutdown

    @property
    def reserve(self) -> DiskReserve:
        return self._reserve

    def measure_volume(self) -> tuple[int, int]:
        """Return the size of the volume, and its free bytes."""
        volume = os.statvfs(self._path)
        return volume.f_blocks * volume.f_frsize, volume.f_bavail * volume.f_frsize

    # ---------------------------------------------------------------- the group commit's thread

    def _on_failure_in_thread(self, failure: StorageFailure) -> None:
        self._loop.call_soon_threadsafe(self._on_failure, failure)

    def _on_synced(self, log: Log) -> None:
        partition = self._partitions.get(log.topic_partition)
        if partition is not None and partition.log is log:
            partition.notify_waiters()

    # -------------------------------------------------------------------- background work

    def start(self) -> None:
        """Start the periodic work."""
        self._housekeeping.start()
        self._log_cleaner.start()

    async def stop(self, *, clean: bool) -> None:
        """End the background work, then close every log. Raises: StorageFailure, OSError."""
        await self._log_cleaner.stop()
        self._scheduler.cancel_timers()
        await self._housekeeping.stop()
        await self._scheduler.join_threads()
        self._syncer.stop()
        if clean:
            self._log_dir.close()
        else:
            self._log_dir.close_without_sync()


def _open_metadata(
    file: Path, disk: StorageEnvironment, log_dir: LogDir, reserve: DiskReserve
) -> MetadataStore:
    """Open the metadata that these partitions were written under. Raises: DataDirectoryUnusable."""
    cluster_id, partitions = log_dir.meta.cluster_id, log_dir.list_partitions()
    if partitions and not disk.fs.exists(str(file)):
        raise DataDirectoryUnusable(
            f"{file} is missing, but there are {len(partitions)} partitions, {partitions[0]} first;"
            " nothing was changed. Restore the file from a backup",
        )
    store = disk.open_metadata(
        file,
        cluster_id,
        lambda: reserve.ensure_free(_METADATA_BYTES),
        may_create=not partitions,
    )
    if store.load_cluster_id() != cluster_id:
        raise DataDirectoryUnusable(
            f"{file} belongs to cluster {store.load_cluster_id()}, but meta.properties next to it to"
            f" {cluster_id}; nothing was changed. Restore the two files from one backup"
        )
    # A topic is stored before its directories are made, and forgotten after they are gone.
    topics = {topic.name for topic in (*store.load_topics(), *store.load_deleted_topics())}
    if partitions and not any(partition.topic in topics for partition in partitions):
        raise DataDirectoryUnusable(
            f"{file} names none of the {len(partitions)} partitions next to it, {partitions[0]} first: it"
            " is older, or another broker's; nothing was changed. Restore theirs from a backup"
        )
    return store


def _make_cleaning_config(config: BrokerConfig) -> CleaningConfig:
    return CleaningConfig(
        enabled=config.log_cleaner_enable,
        backoff_ms=config.log_cleaner_backoff_ms,
        retention_interval_ms=config.log_retention_check_interval_ms,
        key_map_bytes=config.log_cleaner_dedupe_buffer_size,
    )


def _remove_files_later(scheduler: BackgroundScheduler, log: Log, paths: list[str]) -> None:
    """Remove files of deleted segments after a delay, in a thread; a restart removes the rest."""
    remove = partial(_remove_files, log, paths)
    scheduler.schedule_once(log.config.file_delete_delay_ms, lambda: scheduler.start_in_thread(remove))


def _remove_files(log: Log, paths: list[str]) -> None:
    for path in paths:
        try:
            log.fs.remove(path)
        except FileNotFoundError:
            return  # the topic was deleted meanwhile, with its directory
        except OSError as exc:
            _log.warning("%s could not be removed and stays until the next start: %s", path, exc)


def make_log_config(topic: str, config: TopicConfig, broker: BrokerConfig) -> LogConfig:
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
        flush_policy=_parse_flush_policy(broker.flush_policy),
        flush_interval_ms=broker.flush_interval_ms,
        min_compaction_lag_ms=config.min_compaction_lag_ms,
        max_compaction_lag_ms=config.max_compaction_lag_ms,
        delete_retention_ms=config.delete_retention_ms,
        min_cleanable_dirty_ratio=config.min_cleanable_dirty_ratio,
        file_delete_delay_ms=config.file_delete_delay_ms,
        producer_id_expiration_ms=broker.producer_id_expiration_ms,
        verification_required=broker.transaction_partition_verification_enable,
        # Beginning a transaction is refused on a full disk: the reserve is for ends [TXN-14].
        internal=topic == CONSUMER_OFFSETS_TOPIC,
    )


def _parse_flush_policy(text: str) -> FlushPolicy:
    if text not in get_args(FlushPolicy):
        raise ValueError(f"flush.policy {text!r} is unknown")
    return cast(FlushPolicy, text)
