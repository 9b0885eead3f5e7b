"""Opening a log: gather the facts, let `recovery` decide, act. No rule is decided here.

After a clean shutdown only names, sizes and the end of the last segment are read. Otherwise segments from
the recovery point on are synced, dropped from the page cache and read from disk: a sync that failed in the
previous process may have left pages in the cache that never reached the disk [LOG-4].
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import pairwise

from tallystick.kernel.ids import INT64_MAX, Offset, TopicPartition
from tallystick.kernel.value import Value
from tallystick.protocol.records import HEADER_SIZE, BatchHeader, RecordsError, read_header
from tallystick.storage.checkpoints.checkpoint_text import MalformedFile, parse_epochs
from tallystick.storage.checkpoints.leader_epochs import LeaderEpochCache
from tallystick.storage.checkpoints.snapshots import decode_snapshot
from tallystick.storage.disk.fs import CorruptLog, FileSystem
from tallystick.storage.log.files import LEADER_EPOCH_FILE, LogFiles
from tallystick.storage.log.log import LoadedLog, Log, LogHooks
from tallystick.storage.log.recovery import (
    LEFTOVER_ACTIONS,
    RECOVERY_ACTIONS,
    LeftoverAction,
    LeftoverFile,
    RecoveryReport,
    Repair,
    SegmentRecoveryAction,
    SegmentScan,
    classify_scan,
    classify_swap_file,
)
from tallystick.storage.segments import segment_scan as naming
from tallystick.storage.segments.log_segment import ActiveSegment, ClosedSegment, SegmentReader
from tallystick.storage.segments.segment_scan import (
    SCAN_BYTES,
    ScanFault,
    SegmentScanner,
    make_file_name,
    parse_file_name,
)
from tallystick.storage.state.producer_state import ProducerStateManager, update_producers
from tallystick.storage.state.validation import COMPACT, LogConfig

# How far back to look for the last five batches of each producer. Counted in index entries, which bounds the
# time for a log of small batches and reaches far enough in one of large batches.
_RESTORE_INDEX_ENTRIES = 32

# Records what was done to a file, by its name.
RecordRepair = Callable[[str, str], None]


class PriorShutdown(Value, kw_only=True):
    """The state in which the previous process left a log, by its data directory's checkpoints."""

    was_clean: bool
    recovery_point: int = 0
    log_start_offset: int = 0
    cleaned_offset: int = 0  # compaction may have left gaps below it, whatever cleanup.policy is now


def create_log(
    fs: FileSystem, directory: str, topic_partition: TopicPartition, config: LogConfig, hooks: LogHooks
) -> Log:
    """Create an empty log. Order: its names are on disk after the first `sync`. Raises OSError."""
    fs.mkdir(directory)
    files = LogFiles(fs, directory, hooks.space_guard, hooks.segment_cache, hooks.on_offline)
    loaded_log = LoadedLog(
        active_segment=ActiveSegment.create(files.make_segment_reader(0, config.index_interval_bytes)),
        log_start_offset=Offset(0),
        log_end_offset=Offset(0),
        producer_state_manager=ProducerStateManager(verification_required=config.verification_required),
        leader_epochs=LeaderEpochCache(),
        is_directory_unsynced=True,
    )
    return Log(files, topic_partition, config, hooks, loaded_log)


def open_log(
    fs: FileSystem,
    directory: str,
    topic_partition: TopicPartition,
    config: LogConfig,
    hooks: LogHooks,
    prior_shutdown: PriorShutdown,
) -> tuple[Log, RecoveryReport]:
    """Open an existing log and repair it where that is safe.

    Order: on return the log's content is on disk. Idempotent: after a crash, opening repeats the repair.
    Raises: CorruptLog with file, position, expected and found; OSError.
    """
    files = LogFiles(fs, directory, hooks.space_guard, hooks.segment_cache, hooks.on_offline)
    loaded_log, report = _LogLoader(files, config, prior_shutdown).load()
    return Log(files, topic_partition, config, hooks, loaded_log), report


class _LogLoader:
    """The opening of one log: what was found so far. `segments` are all closed until the log is known."""

    def __init__(self, files: LogFiles, config: LogConfig, prior_shutdown: PriorShutdown) -> None:
        self.files = files
        self.fs = files.fs
        self.config = config
        self.prior_shutdown = prior_shutdown
        self.repairs: list[Repair] = []
        self.scanned_bytes = 0
        self.segments: list[ClosedSegment] = []
        self.deleted_segments: list[ClosedSegment] = []  # below the log start; removed at the end
        self.log_end_offset = 0
        self.producers = ProducerStateManager(verification_required=config.verification_required)
        self.leader_epochs = LeaderEpochCache()

    def load(self) -> tuple[LoadedLog, RecoveryReport]:
        _remove_leftovers(self.files, self._record_repair)
        self.segments = self._list_segments()
        self.leader_epochs = self._load_epochs()
        epochs = self.leader_epochs.entries
        active = self._try_clean_open() if self.prior_shutdown.was_clean else None
        clean = active is not None
        if active is None:
            active = self._recover()
        active = self._reset_to_log_start(active)
        # An epoch that began at the log end stays although it wrote nothing: clients may know it.
        self.leader_epochs.truncate_from_end(self.log_end_offset + 1)
        if self.leader_epochs.entries != epochs:
            self.files.save_epochs(self.leader_epochs)
        self._remove_stray_snapshots()
        if not clean:
            self._sync_all()
        self._remove_deleted_segments()
        self.producers.finish_replay()
        start = max(self.prior_shutdown.log_start_offset, self.segments[0].base_offset)
        loaded_log = LoadedLog(
            closed_segments=self.segments[:-1],
            active_segment=active,
            log_start_offset=Offset(start),
            log_end_offset=Offset(self.log_end_offset),
            producer_state_manager=self.producers,
            leader_epochs=self.leader_epochs,
        )
        report = RecoveryReport(
            was_clean=clean, scanned_bytes=self.scanned_bytes, repairs=tuple(self.repairs)
        )
        return loaded_log, report

    def _record_repair(self, name: str, action: str) -> None:
        self.repairs.append(Repair(self.files.make_path(name), action))

    def _make_reader(self, base_offset: int) -> SegmentReader:
        return self.files.make_segment_reader(base_offset, self.config.index_interval_bytes)

    # -- files -------------------------------------------------------------------------------------------

    def _list_segments(self) -> list[ClosedSegment]:
        files = map(parse_file_name, self.fs.listdir(self.files.directory))
        bases = sorted(f.base_offset for f in files if f and f.suffix == naming.LOG_SUFFIX and not f.state)
        segments: list[ClosedSegment] = []
        for base, next_base in pairwise([*bases, INT64_MAX]):
            reader = self._make_reader(base)
            segment = ClosedSegment(reader, self.fs.size(reader.files.make_path(naming.LOG_SUFFIX)))
            is_deleted = next_base <= self.prior_shutdown.log_start_offset
            (self.deleted_segments if is_deleted else segments).append(segment)
        if not segments:
            reader = self._make_reader(self.prior_shutdown.log_start_offset)
            ActiveSegment.create(reader)
            segments.append(ClosedSegment(reader, 0))
        return segments

    def _load_epochs(self) -> LeaderEpochCache:
        path = self.files.make_path(LEADER_EPOCH_FILE)
        if not self.fs.exists(path):
            return LeaderEpochCache()
        try:
            return LeaderEpochCache(parse_epochs(self.fs.read_bytes(path).decode(), path))
        except (MalformedFile, UnicodeDecodeError):
            self._record_repair(LEADER_EPOCH_FILE, "unreadable; rebuilt from the log")
            return LeaderEpochCache()

    # -- after a clean stop ---------------------------------------------------------------------------------

    def _try_clean_open(self) -> ActiveSegment | None:
        """Open the last segment if the log's end is as a clean shutdown leaves it; return None otherwise.

        Raises: CorruptLog if a closed segment does not end where the next one begins.
        """
        self._check_closed_segments()
        active = self.segments[-1].activate()
        reader = active.reader
        _, end, next_offset = _find_last_batch(reader)
        if end != reader.size:
            self._record_repair(
                make_file_name(reader.base_offset, naming.LOG_SUFFIX),
                "does not end with a whole batch; the log is scanned",
            )
            return None
        if next_offset < self.prior_shutdown.recovery_point:
            self._record_repair(
                "",
                f"ends at {next_offset}, below the recovery point {self.prior_shutdown.recovery_point}; it"
                " is scanned",
            )
            return None
        states = self._load_snapshot(next_offset)
        if states is None:
            self._record_repair(
                make_file_name(next_offset, naming.SNAPSHOT_SUFFIX), "missing or damaged; the log is scanned"
            )
            return None
        self.producers = states
        self._restore_cached_batches(states, self.segments, next_offset)
        self.log_end_offset = next_offset
        return active

    def _check_closed_segments(self) -> None:
        """Refuse a log with a closed segment that was cut, emptied, or extended [LOG-7].

        Readers would be led past the records that are missing, without an error.

        Cost: three small reads a segment. One without its index is not checked: it is scanned when it is
            first read, since the index has to be rebuilt.
        """
        for segment, following in pairwise(self.segments):
            reader, size = segment.reader, segment.reader.size
            if size and not self.fs.exists(reader.files.make_path(naming.INDEX_SUFFIX)):
                continue
            last, end, next_offset = _find_last_batch(reader)
            segment.close()
            path = reader.files.make_path(naming.LOG_SUFFIX)
            if end != size:
                raise CorruptLog(path, min(last, size), f"a batch that ends at byte {end}", f"{size} bytes")
            if next_offset < following.base_offset and not self._may_be_cleaned(following.base_offset):
                expected = f"records up to offset {following.base_offset}, where the next segment begins"
                raise CorruptLog(path, size, expected, f"the end, at offset {next_offset}")

    def _may_be_cleaned(self, end: int) -> bool:
        """Return whether compaction may have removed the last batches below `end`, a segment's end.

        Kafka's does; ours keeps the last one [CLN-2].
        """
        return COMPACT in self.config.cleanup_policy or end <= self.prior_shutdown.cleaned_offset

    def _restore_cached_batches(
        self, states: ProducerStateManager, segments: list[ClosedSegment], offset: int
    ) -> None:
        """Refill the cached batches that the snapshot at `offset` lacks, reading back across segments."""
        if not states.active_producers:
            return
        headers: list[BatchHeader] = []
        budget = _RESTORE_INDEX_ENTRIES
        for segment in (closed.reader for closed in reversed(segments)):
            if budget <= 0:
                break
            if segment.base_offset < offset:
                end, positions = segment.find_position(offset), segment.index.positions
                slot = bisect_left(positions, end)
                start = positions[slot - budget] if slot >= budget else 0
                headers = [*self._read_headers(segment, start, end), *headers]
                budget -= slot + 1
        states.restore_cached_batches(headers)

    def _read_headers(self, segment: SegmentReader, position: int, end: int) -> list[BatchHeader]:
        headers = []
        for at, _, _, _ in segment.iter_batch_spans(position, end):
            try:
                headers.append(read_header(segment.file.pread(HEADER_SIZE, at)))
            except RecordsError as exc:
                path = segment.files.make_path(naming.LOG_SUFFIX)
                raise CorruptLog(path, at, "a readable batch", exc.reason) from exc
        return headers

    def _remove_stray_snapshots(self) -> None:
        """Remove snapshots of earlier shutdowns: recovery needs those of the segments and the newest one.

        Source: ProducerStateManager.removeStraySnapshots.
        """
        offsets = [
            f.base_offset
            for f in map(parse_file_name, self.fs.listdir(self.files.directory))
            if f and f.suffix == naming.SNAPSHOT_SUFFIX
        ]
        needed_offsets = {segment.base_offset for segment in self.segments} | {max(offsets, default=0)}
        for offset in offsets:
            if offset not in needed_offsets:
                self.fs.remove(self.files.make_path(make_file_name(offset, naming.SNAPSHOT_SUFFIX)))

    def _load_snapshot(self, offset: int) -> ProducerStateManager | None:
        path = self.files.make_path(make_file_name(offset, naming.SNAPSHOT_SUFFIX))
        if not self.fs.exists(path):
            return None
        try:
            entries = decode_snapshot(self.fs.read_bytes(path), path)
        except MalformedFile:
            return None
        return ProducerStateManager.from_snapshot(
            entries, verification_required=self.config.verification_required
        )

    # -- after any other end ----------------------------------------------------------------------------

    def _recover(self) -> ActiveSegment:
        first = 0
        for slot, segment in enumerate(self.segments):
            segment.close()
            if segment.base_offset <= self.prior_shutdown.recovery_point:
                first = slot
        before = [*self.deleted_segments, *self.segments[:first]]
        self._replay_producers(before, self.segments[first].base_offset)
        self.log_end_offset = self.segments[first].base_offset
        slot = first
        while slot < len(self.segments):
            self._recover_segment(slot)
            slot += 1
        return self.segments[-1].activate()

    def _replay_producers(self, before: list[ClosedSegment], offset: int) -> None:
        """Rebuild producer state as of `offset` from the newest snapshot at or below it and the log.

        Missing snapshots on the way are written again, because a later deletion removes the batches they are
        made from.
        """
        offsets = []
        for name in self.fs.listdir(self.files.directory):
            file = parse_file_name(name)
            if file is None or file.suffix != naming.SNAPSHOT_SUFFIX:
                continue
            if file.base_offset > offset:
                self.fs.remove(self.files.make_path(name))  # the scan writes it again
            else:
                offsets.append(file.base_offset)
        start = 0
        for snapshot in sorted(offsets, reverse=True):
            states = self._load_snapshot(snapshot)
            if states is not None:
                self.producers, start = states, snapshot
                remaining_segments = [segment for segment in before if segment not in self.deleted_segments]
                self._restore_cached_batches(states, remaining_segments, snapshot)
                break
            self._record_repair(
                make_file_name(snapshot, naming.SNAPSHOT_SUFFIX), "damaged; an older one is used"
            )
        next_offsets = [*(closed.base_offset for closed in before[1:]), offset]
        for closed, next_offset in zip(before, next_offsets, strict=False):
            if next_offset <= start:
                continue
            self._save_snapshot_at(closed.base_offset, start)
            try:
                self._replay_segment(closed.reader, start)
            except CorruptLog:
                if closed not in self.deleted_segments:
                    raise
                name = make_file_name(closed.base_offset, naming.LOG_SUFFIX)
                self._record_repair(name, "damaged; its producers are not restored, as it was deleted")
        self._save_snapshot_at(offset, start)

    def _replay_segment(self, segment: SegmentReader, start: int) -> None:
        for at, size, _, last_offset in segment.iter_batch_spans(segment.find_position(start)):
            if last_offset >= start:
                self._replay_batch(segment.file.pread(size, at), segment, find_aborted=False)

    def _save_snapshot_at(self, offset: int, start: int) -> None:
        if offset > start:
            self.files.save_snapshot(self.producers, offset)

    def _replay_batch(self, data: bytes | memoryview, segment: SegmentReader, *, find_aborted: bool) -> None:
        """Apply a batch to the producers. `find_aborted`: the segment's transaction index is rebuilt."""
        try:
            header = read_header(data)
            if header.producer_id < 0:
                return
            aborted_txn = update_producers(self.producers, header, data, header.base_offset)
            if aborted_txn is not None and find_aborted:
                self.files.save_aborted_txn(segment.transaction_index, aborted_txn)
        except RecordsError as exc:
            path = segment.files.make_path(naming.LOG_SUFFIX)
            raise CorruptLog(path, exc.at, "a readable batch", exc.reason) from exc

    def _recover_segment(self, slot: int) -> None:
        segment = self.segments[slot]
        reader, size = segment.reader, segment.reader.size
        reader.file.sync()
        reader.file.drop_page_cache()
        reader.transaction_index.reset()
        scanner = SegmentScanner(reader.file.pread, size, max(self.log_end_offset, segment.base_offset))
        for header, data in segment.iter_recovered_batches(scanner):
            epoch, latest = header.partition_leader_epoch, self.leader_epochs.latest_epoch
            if epoch >= 0 and (latest is None or epoch > latest):
                self.leader_epochs.assign(epoch, header.base_offset)
            if header.producer_id >= 0:
                self._replay_batch(data, reader, find_aborted=True)
        self.scanned_bytes += size
        self._repair_segment(slot, scanner, size)
        self.log_end_offset = scanner.next_offset
        self._remove_empty_segments(slot)
        if slot + 1 < len(self.segments):
            self.log_end_offset = max(scanner.next_offset, self.segments[slot + 1].base_offset)
            self.files.save_snapshot(self.producers, self.log_end_offset)
        reader.files.sync_indexes()

    def _repair_segment(self, slot: int, scanner: SegmentScanner, size: int) -> None:
        """Perform the recovery action for the first invalid batch."""
        fault = scanner.fault
        segment, later = self.segments[slot], self.segments[slot + 1 :]
        if fault is None and later and not self._may_be_cleaned(later[0].base_offset):
            fault = _find_missing_end(scanner, later[0].base_offset)
        condition = classify_scan(
            SegmentScan(
                has_invalid_batch=fault is not None,
                is_end_below_recovery_point=not later
                and scanner.next_offset < self.prior_shutdown.recovery_point,
                is_below_recovery_point=fault is not None
                and fault.next_offset < self.prior_shutdown.recovery_point,
                has_valid_batch_after=fault is not None and fault.valid_after is not None,
                has_later_data=any(other.reader.size for other in later),
                are_rolls_synced=self.config.flush_policy == "ack",
            )
        )
        action = RECOVERY_ACTIONS[condition]
        if action is SegmentRecoveryAction.KEEP:
            return
        path, name = (
            segment.reader.files.make_path(naming.LOG_SUFFIX),
            make_file_name(segment.base_offset, naming.LOG_SUFFIX),
        )
        if fault is None:
            expected = f"synced records up to offset {self.prior_shutdown.recovery_point}"
            raise CorruptLog(path, size, expected, f"the end, at offset {scanner.next_offset}")
        if action is SegmentRecoveryAction.REFUSE:
            raise CorruptLog(path, fault.position, fault.expected, fault.found)
        description = f"{action.value} at byte {fault.position}, {size - fault.position} bytes: {fault.found}"
        if action is SegmentRecoveryAction.TRUNCATE_AND_SET_ASIDE:
            aside = f"{path}{naming.CUT_SUFFIX}{fault.position}"
            self._copy_tail(segment.reader, fault.position, aside)
            description += f"; see {aside}"
        for other in later:
            if other.reader.size:
                other_path = other.reader.files.make_path(naming.LOG_SUFFIX)
                self.fs.rename(other_path, f"{other_path}{naming.CUT_SUFFIX}0")
                other_name = make_file_name(other.base_offset, naming.LOG_SUFFIX)
                self._record_repair(other_name, "renamed; it lies behind a hole in the log")
            other.remove()
        self.fs.sync_dir(self.files.directory)
        segment.truncate_to(fault.position)
        self._record_repair(name, description)
        del self.segments[slot + 1 :]

    def _remove_empty_segments(self, slot: int) -> None:
        """Remove empty segments after `slot` that begin below its end.

        A roll that finds no room removes its empty segment again, and the previous one grows on, but the disk
        may keep the file's name. A lookup of an offset above that name would find an empty segment.
        """
        while slot + 1 < len(self.segments):
            next_segment = self.segments[slot + 1]
            if next_segment.reader.size or next_segment.base_offset >= self.log_end_offset:
                return
            next_segment.remove()
            name = make_file_name(next_segment.base_offset, naming.LOG_SUFFIX)
            self._record_repair(name, "removed; it is empty and begins before the previous segment ends")
            del self.segments[slot + 1]

    def _copy_tail(self, segment: SegmentReader, position: int, target: str) -> None:
        # Durable before the original is cut: whole batches are never dropped without a copy [LOG-8].
        fs = self.fs
        if fs.exists(target):
            fs.remove(target)
        file = fs.open_append(target)
        try:
            while data := segment.file.pread(SCAN_BYTES, position):
                file.write([data])
                position += len(data)
            file.sync()
        finally:
            file.close()
        fs.sync_dir(self.files.directory)

    def _reset_to_log_start(self, active: ActiveSegment) -> ActiveSegment:
        """Start over at the log start offset if the log ends below it: all was deleted, its end lost."""
        end, start = self.log_end_offset, self.prior_shutdown.log_start_offset
        if end >= start:
            return active
        self._record_repair(
            "", f"ends at {end}, below its start {start}; all its records were deleted, and it restarts there"
        )
        for segment in self.segments:
            segment.remove()
        active = ActiveSegment.create(self._make_reader(start))
        self.segments = [ClosedSegment(active.reader, 0)]
        self.producers = ProducerStateManager(verification_required=self.config.verification_required)
        self.log_end_offset = start
        self.fs.sync_dir(self.files.directory)
        return active

    def _remove_deleted_segments(self) -> None:
        """Remove segments below the log start.

        Only now: where the snapshot behind them was lost, the end of a transaction was read from them. It is
        on the disk before they go [LOG-10].
        """
        if not self.deleted_segments:
            return
        snapshot = self.files.make_path(make_file_name(self.segments[0].base_offset, naming.SNAPSHOT_SUFFIX))
        if self.fs.exists(snapshot):
            file = self.fs.open_append(snapshot)
            try:
                file.sync()
            finally:
                file.close()
            self.fs.sync_dir(self.files.directory)
        for segment in self.deleted_segments:
            segment.remove()
            name = make_file_name(segment.base_offset, naming.LOG_SUFFIX)
            self._record_repair(name, "removed; it lies below the log start offset")

    def _sync_all(self) -> None:
        """Sync what was read back, before it counts as synced."""
        for segment in self.segments:
            if segment.base_offset >= self.prior_shutdown.recovery_point or segment is self.segments[-1]:
                segment.reader.file.sync()
                segment.reader.files.sync_indexes()
        self.fs.sync_dir(self.files.directory)


def _find_last_batch(segment: SegmentReader) -> tuple[int, int, int]:
    """Return where the last batch begins and ends, and the offset after it; reads a few headers."""
    start = end = 0
    next_offset = segment.base_offset
    if segment.size:
        start = end = segment.index.find_position_before(segment.size)
        for position, size, _, last_offset in segment.iter_batch_spans(end):
            start, end, next_offset = position, position + size, last_offset + 1
    return start, end, next_offset


def _find_missing_end(scanner: SegmentScanner, next_base: int) -> ScanFault | None:
    """Return missing batches between a segment's end and the next one's start as a fault, if any."""
    if scanner.next_offset >= next_base:
        return None
    return ScanFault(
        position=scanner.valid_end,
        expected=f"records up to offset {next_base}, where the next segment begins",
        found=f"the end, at offset {scanner.next_offset}",
        next_offset=scanner.next_offset,
        valid_after=None,
    )


def _remove_leftovers(files: LogFiles, record_repair: RecordRepair) -> None:
    """Remove what interrupted operations left in a log's directory, and complete a swap.

    Raises: CorruptLog, OSError.
    """
    fs, directory = files.fs, files.directory
    names = fs.listdir(directory)
    parsed = {name: file for name in names if (file := parse_file_name(name)) is not None}
    cleaned_offsets = frozenset(f.base_offset for f in parsed.values() if f.state == naming.CLEANED_SUFFIX)
    swaps: list[str] = []
    removals: list[str] = [name for name in names if name.endswith(".tmp")]
    logs = {f.base_offset for f in parsed.values() if f.suffix == naming.LOG_SUFFIX}
    for name, file in parsed.items():
        match file.state:
            case naming.DELETED_SUFFIX:
                leftover = LeftoverFile.DELETED
            case naming.CLEANED_SUFFIX:
                leftover = LeftoverFile.CLEANED
            case naming.SWAP_SUFFIX:
                leftover = classify_swap_file(file.base_offset, cleaned_offsets)
            case _:
                if file.suffix in (naming.LOG_SUFFIX, naming.SNAPSHOT_SUFFIX) or file.base_offset in logs:
                    continue
                leftover = LeftoverFile.ORPHAN_INDEX
        if LEFTOVER_ACTIONS[leftover] is LeftoverAction.RENAME:
            swaps.append(name)
        else:
            removals.append(name)
    # First: it refuses a damaged new segment, whose records may be nowhere else but in a .deleted file.
    old_offsets = _find_old_offsets(fs, directory, swaps)
    # A .cleaned file marks the .swap files next to it as an incomplete set, so it is removed after them.
    swap_removals = [name for name in removals if name.endswith(naming.SWAP_SUFFIX)]
    for batch in (swap_removals, [name for name in removals if name not in swap_removals]):
        for name in batch:
            fs.remove(f"{directory}/{name}")
            if not name.endswith(naming.DELETED_SUFFIX):  # these were only waiting for removal
                record_repair(name, "removed; an interrupted operation had left it")
        if batch:
            fs.sync_dir(directory)
    if swaps:
        _complete_swaps(fs, directory, swaps, old_offsets, record_repair)
        fs.sync_dir(directory)


def _find_old_offsets(fs: FileSystem, directory: str, swaps: Sequence[str]) -> range:
    """Return the offsets that a compaction's new segments cover. Raises: CorruptLog, OSError."""
    lowest, end = INT64_MAX, 0
    for name in swaps:
        file = parse_file_name(name)
        if file is not None and file.suffix == naming.LOG_SUFFIX:
            lowest = min(lowest, file.base_offset)
            end = max(end, _find_end_offset(fs, f"{directory}/{name}", file.base_offset))
    return range(lowest, end)


def _complete_swaps(
    fs: FileSystem, directory: str, swaps: Sequence[str], old_offsets: range, record_repair: RecordRepair
) -> None:
    """Complete a compaction: remove the segments that the new ones cover, then rename the new ones.

    A disk may have renamed any of a new segment's files before its log. They are in place already: such a
    transaction index exists nowhere else.
    """
    new_offsets = {file.base_offset for file in map(parse_file_name, swaps) if file is not None}
    for name in fs.listdir(directory):
        file = parse_file_name(name)
        if file is None or file.state or file.suffix not in naming.SEGMENT_SUFFIXES:
            continue
        is_new = file.base_offset in new_offsets and f"{name}{naming.SWAP_SUFFIX}" not in swaps
        if file.base_offset in old_offsets and not is_new:
            fs.remove(f"{directory}/{name}")
    fs.sync_dir(directory)  # else a crash may show a new name next to a segment it covers
    for name in swaps:
        fs.rename(f"{directory}/{name}", f"{directory}/{name.removesuffix(naming.SWAP_SUFFIX)}")
        record_repair(name, "renamed; the broker had stopped while a compaction was replacing segments")


def _find_end_offset(fs: FileSystem, path: str, base_offset: int) -> int:
    file = fs.open_read(path)
    try:
        scanner = SegmentScanner(file.pread, file.size(), base_offset)
        for _ in scanner.iter_batches():
            pass
        if (fault := scanner.fault) is not None:
            raise CorruptLog(path, fault.position, fault.expected, fault.found)
        return scanner.next_offset
    finally:
        file.close()
