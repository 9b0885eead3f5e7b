"""A data directory: its lock, its identity, its logs and their checkpoints.

Kafka's files: `meta.properties`, `.lock`, `.kafka_cleanshutdown`, and the checkpoints of recovery points,
log start offsets and cleaned offsets. A partition's directory is `topic-partition`, with its topic id in
`partition.metadata`; a directory whose name ends with `-delete` belongs to a deleted topic and is removed.
"""

import threading
from collections.abc import Callable, Collection, Mapping, MutableMapping
from contextlib import suppress
from uuid import UUID, uuid4

from msgspec import field

from tallystick.kernel.ids import TopicPartition
from tallystick.kernel.value import Value, replace
from tallystick.storage.checkpoints.checkpoint_text import (
    MalformedFile,
    MetaProperties,
    format_meta_properties,
    format_offsets,
    format_partition_metadata,
    format_uuid,
    parse_meta_properties,
    parse_offsets,
    parse_partition_metadata,
)
from tallystick.storage.disk.fs import (
    CorruptLog,
    FileSystem,
    Lock,
    LogOffline,
    StorageFailure,
    is_disk_full,
    make_directory,
    replace_file,
)
from tallystick.storage.disk.reserve import SpaceGuard, UnlimitedSpace
from tallystick.storage.log.loader import PriorShutdown, create_log, open_log
from tallystick.storage.log.log import Log, LogHooks, remove_files_now
from tallystick.storage.log.recovery import RecoveryReport, Repair
from tallystick.storage.segments.log_segment import OpenSegmentCache
from tallystick.storage.state.validation import LogConfig

RECOVERY_POINT_FILE = "recovery-point-offset-checkpoint"
LOG_START_FILE = "log-start-offset-checkpoint"
CLEANER_OFFSET_FILE = "cleaner-offset-checkpoint"
META_PROPERTIES_FILE = "meta.properties"
LOCK_FILE = ".lock"
CLEAN_SHUTDOWN_FILE = ".kafka_cleanshutdown"
PARTITION_METADATA_FILE = "partition.metadata"
_DELETE_DIR_SUFFIX = "-delete"


class DirectoryInUse(StorageFailure):
    """Another process holds the lock."""


class ForeignDirectory(StorageFailure):
    """The directory belongs to another cluster, or a partition in it to another topic of that name."""


def make_random_id(new_uuid: Callable[[], UUID] = uuid4) -> UUID:
    """Return a random id whose text does not begin with a dash, which Kafka's tools take for an option."""
    while True:
        topic_id = new_uuid()
        if not format_uuid(topic_id).startswith("-"):
            return topic_id


def _ignore_sync_request(log: Log) -> None:
    """Ignore the request: without group commit, the owner syncs by itself."""


def _ignore_offline(failure: LogOffline) -> None:
    """Do nothing: the next use of the log raises the failure."""


class DirectoryOptions(Value, kw_only=True):
    """Options for opening a data directory. `cluster_id` None: the existing one, or a new directory's."""

    node_id: int = 1
    cluster_id: str | None = None
    space_guard: SpaceGuard = field(default_factory=UnlimitedSpace)
    request_sync: Callable[[Log], None] = _ignore_sync_request
    on_offline: Callable[[LogOffline], None] = _ignore_offline  # in any thread
    discard_files: Callable[[Log, list[str]], None] = remove_files_now
    open_segments_max: int = 256  # closed segments with open files, over all logs


class OffsetCheckpoints:
    """Recovery points, log start offsets and cleaned offsets, with their files. Owned by the data directory.

    Source: Kafka's OffsetCheckpointFile, LogManager.checkpointLogRecoveryOffsets, checkpointLogStartOffsets.

    The methods that write block, and may run in any thread. `cleaner_offsets` is changed by the cleaner.
    """

    def __init__(self, fs: FileSystem, directory: str, space_guard: SpaceGuard) -> None:
        self._fs = fs
        self._directory = directory
        self._space_guard = space_guard
        # Held while checkpoints are written, so that an older one never replaces a newer one [LOG-6].
        self._lock = threading.Lock()
        self.recovery_points = self._load(RECOVERY_POINT_FILE)
        self.log_starts = self._load(LOG_START_FILE)
        self.cleaner_offsets = self._load(CLEANER_OFFSET_FILE)

    def _load(self, name: str) -> dict[TopicPartition, int]:
        path = f"{self._directory}/{name}"
        if not self._fs.exists(path):
            return {}
        try:
            return parse_offsets(self._fs.read_bytes(path).decode(), path)
        except (MalformedFile, UnicodeDecodeError):
            return {}  # logs are then scanned from their start: slow but correct

    def retain(self, partitions: Collection[TopicPartition]) -> None:
        """Forget all other partitions, in memory: they were deleted."""
        for offsets in (self.recovery_points, self.log_starts, self.cleaner_offsets):
            for topic_partition in offsets.keys() - partitions:
                del offsets[topic_partition]

    def forget_topic(self, topic: str, retained: Collection[TopicPartition]) -> None:
        """Forget a deleted topic's partitions except `retained` ones; write the files. Raises OSError."""
        with self._lock:
            for offsets in (self.recovery_points, self.log_starts, self.cleaner_offsets):
                for each in [each for each in offsets if each.topic == topic and each not in retained]:
                    offsets.pop(each, None)
            # Before the name is reused: the old log's recovery point would make the new log look corrupt.
            self._save(RECOVERY_POINT_FILE, self.recovery_points)
            self._save(LOG_START_FILE, self.log_starts)
            self._save(CLEANER_OFFSET_FILE, dict(self.cleaner_offsets))

    def save(self, logs: Mapping[TopicPartition, Log]) -> None:
        """Write recovery points, log start offsets and cleaned offsets. Raises OSError."""
        with self._lock:
            for topic_partition, log in list(logs.items()):  # a copy: the loop's thread goes on
                if log.failure is None:
                    self.recovery_points[topic_partition] = log.recovery_point
            self._save(RECOVERY_POINT_FILE, self.recovery_points)
            self._save_log_starts(logs)
            self._save(CLEANER_OFFSET_FILE, dict(self.cleaner_offsets))

    def save_log_starts(self, logs: Mapping[TopicPartition, Log]) -> None:
        """Write the log start offsets. Raises OSError."""
        with self._lock:
            self._save_log_starts(logs)

    def _save_log_starts(self, logs: Mapping[TopicPartition, Log]) -> None:
        for topic_partition, log in list(logs.items()):
            if log.log_start_offset or topic_partition in self.log_starts:
                self.log_starts[topic_partition] = log.log_start_offset
        self._save(LOG_START_FILE, self.log_starts)

    def _save(self, name: str, offsets: dict[TopicPartition, int]) -> None:
        """Write a checkpoint; on a full disk, with a piece of the reserve [RSV-1].

        Otherwise nothing could be deleted from a full disk.
        """
        path, data = f"{self._directory}/{name}", format_offsets(offsets).encode()
        try:
            replace_file(self._fs, path, data)
        except OSError as exc:
            if not is_disk_full(exc):
                raise
            self._space_guard.release(len(data))
            replace_file(self._fs, path, data)


class LogDir:
    """Owner of the logs of one data directory. Made by `LogDir.open`.

    Used by the loop's thread, except for the methods that sync: `create_log`, `rename_for_deletion`,
    `remove_deleted_logs` and `checkpoint` may run in any other thread.
    """

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        options: DirectoryOptions,
        *,
        lock: Lock,
        meta: MetaProperties,
        checkpoints: OffsetCheckpoints,
    ) -> None:
        self.fs = fs
        self.directory = directory
        self.logs: dict[TopicPartition, Log] = {}
        self.reports: list[tuple[TopicPartition, RecoveryReport]] = []
        self.had_clean_shutdown = False
        self.meta = meta
        self._lock = lock
        self._hooks = LogHooks(
            space_guard=options.space_guard,
            segment_cache=OpenSegmentCache(options.open_segments_max),
            request_sync=options.request_sync,
            before_delete=lambda log: checkpoints.save_log_starts(self.logs),
            on_offline=options.on_offline,
            discard_files=options.discard_files,
        )
        self._checkpoints = checkpoints
        self._unopened_partitions: set[TopicPartition] = set()
        self._topic_ids: dict[TopicPartition, UUID] = {}  # of open logs
        self._pending_removals: set[str] = set()  # renamed directories whose files may still exist

    @classmethod
    def open(cls, fs: FileSystem, directory: str, options: DirectoryOptions) -> "LogDir":
        """Open a data directory, making it if there is none. Logs are opened on demand.

        Raises: DirectoryInUse, ForeignDirectory, MalformedFile (meta.properties), OSError.
        """
        make_directory(fs, directory)
        lock = fs.lock(f"{directory}/{LOCK_FILE}")
        if lock is None:
            raise DirectoryInUse(
                directory, "another process uses this data directory; stop it, or choose another directory"
            )
        try:
            meta = _load_meta_properties(fs, directory, options)
            checkpoints = OffsetCheckpoints(fs, directory, options.space_guard)
            log_dir = cls(fs, directory, options, lock=lock, meta=meta, checkpoints=checkpoints)
            log_dir._find_partitions()
        except BaseException:
            lock.release()
            raise
        return log_dir

    def _find_partitions(self) -> None:
        fs, directory = self.fs, self.directory
        for name in fs.listdir(directory):
            path = f"{directory}/{name}"
            if not fs.is_dir(path):
                if name.endswith(".tmp"):
                    fs.remove(path)
            elif name.endswith(_DELETE_DIR_SUFFIX):
                self._pending_removals.add(path)
            elif (topic_partition := parse_directory_name(name)) is not None:
                self._unopened_partitions.add(topic_partition)
        self._checkpoints.retain(self._unopened_partitions)
        mark = f"{directory}/{CLEAN_SHUTDOWN_FILE}"
        self.had_clean_shutdown = fs.exists(mark)
        if self.had_clean_shutdown:
            fs.remove(mark)
        fs.sync_dir(directory)

    @property
    def cleaner_checkpoints(self) -> MutableMapping[TopicPartition, int]:
        """The offset up to which each log is cleaned; written with the other checkpoints."""
        return self._checkpoints.cleaner_offsets

    # -- logs ---------------------------------------------------------------------------------------------

    def list_partitions(self) -> tuple[TopicPartition, ...]:
        """Return every partition with a directory here, opened or not."""
        return tuple(sorted(self._unopened_partitions | set(self.logs)))

    def get_or_create(self, topic_partition: TopicPartition, config: LogConfig, topic_id: UUID) -> Log:
        """Return the partition's log, opening and repairing or creating it if needed.

        Order: a new log's names are on disk when this returns.
        Raises: CorruptLog, ForeignDirectory, OSError.
        """
        log = self.logs.get(topic_partition)
        path = f"{self.directory}/{topic_partition}"
        if log is not None:
            _check_owner(path, self._topic_ids.get(topic_partition, topic_id), topic_id)
            return log
        if topic_partition in self._unopened_partitions:
            repairs = self._check_topic_id(path, topic_id)
            prior_shutdown = self._get_prior_shutdown(topic_partition)
            log, report = open_log(self.fs, path, topic_partition, config, self._hooks, prior_shutdown)
            self.reports.append((topic_partition, replace(report, repairs=(*repairs, *report.repairs))))
            self._unopened_partitions.discard(topic_partition)
        else:
            log = self.create_log(topic_partition, config, topic_id)
        self.add_log(log, topic_id)
        return log

    def is_new(self, topic_partition: TopicPartition) -> bool:
        """Return whether this directory has no such partition."""
        return topic_partition not in self.logs and topic_partition not in self._unopened_partitions

    def create_log(self, topic_partition: TopicPartition, config: LogConfig, topic_id: UUID) -> Log:
        """Create the log of a new partition, not visible before `add_log`. Blocks; any thread.

        Order: its names are on disk when this returns. Raises OSError.
        """
        path = f"{self.directory}/{topic_partition}"
        log = create_log(self.fs, path, topic_partition, config, self._hooks)
        replace_file(
            self.fs, f"{path}/{PARTITION_METADATA_FILE}", format_partition_metadata(topic_id).encode()
        )
        self.fs.sync_dir(self.directory)
        return log

    def add_log(self, log: Log, topic_id: UUID) -> None:
        """Add a log from `create_log` to this directory's logs."""
        self.logs[log.topic_partition] = log
        self._topic_ids[log.topic_partition] = topic_id

    def _check_topic_id(self, path: str, topic_id: UUID) -> tuple[Repair, ...]:
        """Refuse another topic's directory; rewrite an unreadable id, and return what was done."""
        file, repairs = f"{path}/{PARTITION_METADATA_FILE}", tuple[Repair, ...]()
        try:
            owner = self._read_topic_id(path)
        except MalformedFile as exc:
            # The id is in the broker's metadata as well, and an id of another topic could be read.
            owner = None
            action = f"rewritten with topic id {format_uuid(topic_id)}; it was damaged: {exc.found}"
            repairs = (Repair(file, action),)
        if owner is None:  # or power failed while the partition was created: it is empty
            replace_file(self.fs, file, format_partition_metadata(topic_id).encode())
        else:
            _check_owner(path, owner, topic_id)
        return repairs

    def _read_topic_id(self, path: str) -> UUID | None:
        """Return the topic id of a partition's directory; None if its creation was interrupted.

        Raises: MalformedFile, OSError.
        """
        file = f"{path}/{PARTITION_METADATA_FILE}"
        if not self.fs.exists(file):
            return None
        try:
            return parse_partition_metadata(self.fs.read_bytes(file).decode(errors="replace"), file)
        except MalformedFile as exc:
            raise exc.with_remedy(
                "the directory is of no known topic: move it out of the data directory"
            ) from exc

    def find_foreign_partitions(self, topic: str, topic_id: UUID) -> tuple[TopicPartition, ...]:
        """Return the partitions of another topic of the same name, or of an unknown one. Raises: OSError."""
        return tuple(
            each
            for each in (*self._unopened_partitions, *self.logs)
            if each.topic == topic and not self._may_be_of(each, topic_id)
        )

    def _may_be_of(self, partition: TopicPartition, topic_id: UUID) -> bool:
        if (owner := self._topic_ids.get(partition)) is None:
            try:
                owner = self._read_topic_id(f"{self.directory}/{partition}")
            except MalformedFile:
                return False
        return owner in (None, topic_id)

    def transfer_directories(self, topic: str, topic_id: UUID, to: UUID) -> tuple[TopicPartition, ...]:
        """Assign a topic's unopened directories to another topic of its name; return the partitions.

        Raises: MalformedFile, OSError.
        """
        partitions = []
        for each in sorted(self._unopened_partitions):
            path = f"{self.directory}/{each}"
            if each.topic == topic and self._read_topic_id(path) == topic_id:
                replace_file(
                    self.fs, f"{path}/{PARTITION_METADATA_FILE}", format_partition_metadata(to).encode()
                )
                partitions.append(each)
        return tuple(partitions)

    # -- deleting -------------------------------------------------------------------------------------------

    def close_for_deletion(self, topic_partition: TopicPartition) -> None:
        """Close the log of a partition that is about to be given up."""
        log = self.logs.pop(topic_partition, None)
        self._topic_ids.pop(topic_partition, None)
        self._unopened_partitions.discard(topic_partition)
        if log is not None:
            with suppress(OSError):  # it will not be read again, and nothing in it needs to be synced
                log.close(clean=False)

    def rename_for_deletion(self, topic: str, topic_id: UUID) -> None:
        """Free the directory names of a deleted topic's forgotten partitions, however many were created.

        Order: all directories are renamed before anything else; when this returns the topic's name can be
            reused, whatever crashes. After a failure, a second call completes the work.
        Blocks; any thread. Raises: MalformedFile, OSError.
        """
        retained: set[TopicPartition] = set()
        for name in self.fs.listdir(self.directory):
            each, path = parse_directory_name(name), f"{self.directory}/{name}"
            if each is None or each.topic != topic or not self.fs.is_dir(path):
                continue
            if self._read_topic_id(path) not in (None, topic_id):
                retained.add(each)
                continue
            renamed_path = f"{self.directory}/{uuid4().hex}{_DELETE_DIR_SUFFIX}"
            self.fs.rename(path, renamed_path)
            self._pending_removals.add(renamed_path)
        self.fs.sync_dir(self.directory)
        self._checkpoints.forget_topic(topic, retained)

    @property
    def has_pending_removals(self) -> bool:
        """Whether files of deleted partitions are still to be removed."""
        return bool(self._pending_removals)

    def remove_deleted_logs(self) -> None:
        """Remove the files of deleted partitions. Blocks; any thread. Raises the first OSError at the end."""
        failures: list[OSError] = []
        for path in sorted(self._pending_removals):
            try:
                if self.fs.exists(path):
                    _remove_tree(self.fs, path)
                self._pending_removals.discard(path)
            except OSError as exc:
                failures.append(exc)
        if failures:
            raise failures[0]

    # -- checkpoints and the end -----------------------------------------------------------------------

    def checkpoint(self) -> None:
        """Write recovery points and log start offsets of all logs. Blocks; any thread. Raises OSError."""
        self._checkpoints.save(self.logs)

    def flush_indexes(self, topic_partition: TopicPartition) -> None:
        """Bring a log's index files up to date. Raises OSError."""
        log = self.logs.get(topic_partition)
        if log is not None and log.failure is None:
            log.flush_indexes()

    def close(self) -> None:
        """Shut down cleanly: close every log, then write the checkpoints and the mark, then release the lock.

        After an unclean start, unopened logs are recovered now, because the clean shutdown mark covers all of
        them. The mark is left out if a log failed or is corrupt: the next start must scan it.
        Raises: StorageFailure, OSError; the lock is released in any case.
        """
        try:
            self._recover_unopened()
            failed_logs = [log for log in self.logs.values() if log.failure is not None]
            for log in self.logs.values():
                log.close(clean=log.failure is None)
            self.checkpoint()
            if not failed_logs and (self.had_clean_shutdown or not self._unopened_partitions):
                replace_file(
                    self.fs, f"{self.directory}/{CLEAN_SHUTDOWN_FILE}", b'{"version":0,"brokerEpoch":-1}'
                )
        finally:
            self._lock.release()

    def _recover_unopened(self) -> None:
        for topic_partition in () if self.had_clean_shutdown else sorted(self._unopened_partitions):
            path = f"{self.directory}/{topic_partition}"
            try:
                log, report = open_log(
                    self.fs,
                    path,
                    topic_partition,
                    LogConfig(),
                    self._hooks,
                    self._get_prior_shutdown(topic_partition),
                )
            except CorruptLog:
                continue
            self.logs[topic_partition] = log
            self.reports.append((topic_partition, report))
            self._unopened_partitions.discard(topic_partition)

    def _get_prior_shutdown(self, topic_partition: TopicPartition) -> PriorShutdown:
        return PriorShutdown(
            was_clean=self.had_clean_shutdown,
            recovery_point=self._checkpoints.recovery_points.get(topic_partition, 0),
            log_start_offset=self._checkpoints.log_starts.get(topic_partition, 0),
            cleaned_offset=self._checkpoints.cleaner_offsets.get(topic_partition, 0),
        )

    def close_without_sync(self) -> None:
        """Close everything without syncing, as a killed process would."""
        for log in self.logs.values():
            log.close(clean=False)
        self._lock.release()


def _load_meta_properties(fs: FileSystem, directory: str, options: DirectoryOptions) -> MetaProperties:
    path = f"{directory}/{META_PROPERTIES_FILE}"
    if fs.exists(path):
        try:
            meta = parse_meta_properties(fs.read_bytes(path).decode(errors="replace"), path)
        except MalformedFile as exc:
            raise exc.with_remedy(
                "nothing was changed. Restore it from a backup, or remove it: the next start writes a new one"
                " with the cluster id of the broker's metadata"
            ) from exc
        if options.cluster_id is not None and meta.cluster_id != options.cluster_id:
            raise ForeignDirectory(
                path,
                f"belongs to cluster {meta.cluster_id}, not to cluster {options.cluster_id}; nothing was"
                " changed. Correct cluster.id or log.dirs",
            )
        if meta.node_id != options.node_id:
            raise ForeignDirectory(
                path,
                f"belongs to node {meta.node_id}, not to node {options.node_id}; nothing was changed."
                " Correct node.id or log.dirs",
            )
        return meta
    partitions = [name for name in fs.listdir(directory) if parse_directory_name(name) is not None]
    if partitions and options.cluster_id is None:
        raise ForeignDirectory(
            path,
            f"is missing, but there are {len(partitions)} partitions next to it, {partitions[0]} first;"
            " nothing was changed. Restore it from a backup",
        )
    cluster_id = options.cluster_id or format_uuid(make_random_id())
    meta = MetaProperties(cluster_id=cluster_id, node_id=options.node_id, directory_id=uuid4())
    replace_file(fs, path, format_meta_properties(meta).encode())
    return meta


def _remove_tree(fs: FileSystem, path: str) -> None:
    for name in fs.listdir(path):
        fs.remove(f"{path}/{name}")
    fs.rmdir(path)


def _check_owner(path: str, owner: UUID, topic_id: UUID) -> None:
    if owner != topic_id:
        raise ForeignDirectory(
            path,
            f"belongs to topic id {format_uuid(owner)}, not to {format_uuid(topic_id)}; nothing was changed."
            f" Move it out of the data directory. If only its {PARTITION_METADATA_FILE} is another's or"
            " damaged, remove that file: the next start writes a new one",
        )


def parse_directory_name(name: str) -> TopicPartition | None:
    """Parse a directory name: `orders-7` is partition 7 of `orders`; None for any other name."""
    topic, dash, number = name.rpartition("-")
    if not dash or not topic or not number.isascii() or not number.isdigit():
        return None
    return TopicPartition(topic, int(number))
