"""Opening a log: gather the facts, let `recovery` decide, act. No rule is decided here.

After a clean shutdown only names, sizes and the end of the last segment are read. Otherwise segments from
the recovery point on are synced, dropped from the page cache and read from disk: a sync that failed in the
previous process may have left pages in the cache that never reached the disk [LOG-4].
"""

from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import pairwise

from tallystick.kernel.ids import INT64_MAX, Offset, TopicPartition
from tallystick.kernel.value import frozen
from tallystick.protocol.records import HEADER_SIZE, BatchHeader, RecordsError, read_header
from tallystick.storage import segment as naming
from tallystick.storage.checkpoints import parse_epochs
from tallystick.storage.epochs import LeaderEpochs
from tallystick.storage.fs import FileSystem
from tallystick.storage.log import EPOCH_FILE, Log, LogHooks
from tallystick.storage.malformed import MalformedFile
from tallystick.storage.producers import ProducerStates
from tallystick.storage.recovery import (
    LEFTOVERS,
    VERDICTS,
    CorruptLog,
    Leftover,
    LeftoverVerdict,
    RecoveryReport,
    Repair,
    Scan,
    Verdict,
    find,
    find_swap,
)
from tallystick.storage.segment import SCAN_BYTES, BadBatch, Scanner, file_name, parse_file_name
from tallystick.storage.segment_file import Segment
from tallystick.storage.snapshots import decode_snapshot
from tallystick.storage.validation import COMPACT, LogConfig

# How far back to look for the last five batches of each producer. Counted in index entries, which bounds the
# time for a log of small batches and reaches far enough in one of large batches.
_RECALL_ENTRIES = 32


@frozen(kw_only=True)
class Ended:
    """The state in which the previous process left a log, by its data directory's checkpoints."""

    clean: bool
    recovery_point: int = 0
    log_start_offset: int = 0


def create_log(
    fs: FileSystem, directory: str, topic_partition: TopicPartition, config: LogConfig, hooks: LogHooks
) -> Log:
    """Create an empty log. Order: its names are on disk after the first `sync`. Raises OSError."""
    fs.mkdir(directory)
    log = Log(fs, directory, topic_partition, config, hooks)
    segment = log.new_segment(0)
    segment.create()
    log.set_segments([segment])
    log.move_end(Offset(0))
    log.directory_unsynced = True
    return log


def open_log(
    fs: FileSystem,
    directory: str,
    topic_partition: TopicPartition,
    config: LogConfig,
    hooks: LogHooks,
    ended: Ended,
) -> tuple[Log, RecoveryReport]:
    """Open an existing log and repair it where that is safe.

    Order: on return the log's content is on disk. Idempotent: after a crash, opening repeats the repair.
    Raises: CorruptLog with file, position, expected and found; OSError.
    """
    return _Opening(Log(fs, directory, topic_partition, config, hooks), ended).run()


@dataclass(slots=True)
class _Opening:
    log: Log
    ended: Ended
    repairs: list[Repair] = field(default_factory=list)
    scanned_bytes: int = 0

    def run(self) -> tuple[Log, RecoveryReport]:
        log = self.log
        self._clear_leftovers()
        segments = self._list_segments()
        log.set_segments(segments)
        log.epochs = self._load_epochs()
        epochs = log.epochs.entries
        clean = self.ended.clean and self._open_cleanly(segments[-1])
        if not clean:
            self._recover()
        self._end_before_start()
        log.log_start_offset = Offset(max(self.ended.log_start_offset, log.segments[0].base_offset))
        # An epoch that began at the log end stays although it wrote nothing: clients may know it.
        log.epochs.truncate_from_end(log.log_end_offset + 1)
        if log.epochs.entries != epochs:
            log.save_epochs()
        self._remove_stray_snapshots()
        if not clean:
            self._sync_all()
        log.mark_synced()
        log.producer_state.end_replay()
        report = RecoveryReport(clean=clean, scanned_bytes=self.scanned_bytes, repairs=tuple(self.repairs))
        return log, report

    def _note(self, name: str, done: str) -> None:
        self.repairs.append(Repair(f"{self.log.directory}/{name}", done))

    # -- names -------------------------------------------------------------------------------------------

    def _clear_leftovers(self) -> None:
        fs, directory = self.log.fs, self.log.directory
        names = fs.listdir(directory)
        parsed = {name: found for name in names if (found := parse_file_name(name)) is not None}
        cleaned = frozenset(f.base_offset for f in parsed.values() if f.state == naming.CLEANED)
        swaps: list[str] = []
        doomed: list[str] = [name for name in names if name.endswith(".tmp")]
        logs = {f.base_offset for f in parsed.values() if f.suffix == naming.LOG}
        for name, found in parsed.items():
            match found.state:
                case naming.DELETED:
                    leftover = Leftover.DELETED
                case naming.CLEANED:
                    leftover = Leftover.CLEANED
                case naming.SWAP:
                    leftover = find_swap(found.base_offset, cleaned)
                case _:
                    if found.suffix in (naming.LOG, naming.SNAPSHOT) or found.base_offset in logs:
                        continue
                    leftover = Leftover.ORPHAN_INDEX
            if LEFTOVERS[leftover] is LeftoverVerdict.RENAME:
                swaps.append(name)
            else:
                doomed.append(name)
        # A .cleaned file marks the .swap files beside it as an incomplete set, so it is removed after them.
        unfinished = [name for name in doomed if name.endswith(naming.SWAP)]
        for batch in (unfinished, [name for name in doomed if name not in unfinished]):
            for name in batch:
                fs.remove(f"{directory}/{name}")
                if not name.endswith(naming.DELETED):  # these were only waiting for removal
                    self._note(name, "left by an interrupted operation, removed")
            if batch:
                fs.sync_dir(directory)
        if swaps:
            self._swap_in(swaps)
            fs.sync_dir(directory)

    def _swap_in(self, swaps: list[str]) -> None:
        """Complete a compaction: remove the segments that the new ones cover, then rename the new ones."""
        fs, directory = self.log.fs, self.log.directory
        lowest, end = None, 0
        for name in swaps:
            found = parse_file_name(name)
            if found is not None and found.suffix == naming.LOG:
                lowest = found.base_offset if lowest is None else min(lowest, found.base_offset)
                end = max(end, self._end_of(f"{directory}/{name}", found.base_offset))
        for name in fs.listdir(directory):
            found = parse_file_name(name)
            covered = found and not found.state and found.suffix in naming.SEGMENT_SUFFIXES
            if covered and found and lowest is not None and lowest <= found.base_offset < end:
                fs.remove(f"{directory}/{name}")
        fs.sync_dir(directory)  # else a crash may show a new name beside a segment it covers
        for name in swaps:
            fs.rename(f"{directory}/{name}", f"{directory}/{name.removesuffix(naming.SWAP)}")
            self._note(name, "a compacted file, swapped in")

    def _end_of(self, path: str, base_offset: int) -> int:
        file = self.log.fs.open_read(path)
        try:
            scanner = Scanner(file.pread, file.size(), base_offset)
            for _ in scanner.batches():
                pass
            return scanner.offset_next
        finally:
            file.close()

    def _list_segments(self) -> list[Segment]:
        log = self.log
        parsed = map(parse_file_name, log.fs.listdir(log.directory))
        bases = sorted(f.base_offset for f in parsed if f and f.suffix == naming.LOG and not f.state)
        segments = []
        for base, following in pairwise([*bases, INT64_MAX]):
            segment = log.new_segment(base)
            if following <= self.ended.log_start_offset:
                segment.remove()
                self._note(file_name(base, naming.LOG), "is below the log start offset, removed")
                continue
            segment.size = log.fs.size(segment.path(naming.LOG))
            segments.append(segment)
        if not segments:
            segment = log.new_segment(self.ended.log_start_offset)
            segment.create()
            segments.append(segment)
        return segments

    def _load_epochs(self) -> LeaderEpochs:
        path = f"{self.log.directory}/{EPOCH_FILE}"
        if not self.log.fs.exists(path):
            return LeaderEpochs()
        try:
            return LeaderEpochs(parse_epochs(self.log.fs.read_bytes(path).decode(), path))
        except (MalformedFile, UnicodeDecodeError):
            self._note(EPOCH_FILE, "unreadable, made again from the log")
            return LeaderEpochs()

    # -- after a clean stop ---------------------------------------------------------------------------------

    def _open_cleanly(self, active: Segment) -> bool:
        """Return True if the log's end is as a clean shutdown leaves it."""
        log = self.log
        active.open_active()
        next_offset, end = active.base_offset, 0
        if active.size:
            end = active.index.find_position_before(active.size)
            for position, size, _, last_offset in active.spans(end):
                end, next_offset = position + size, last_offset + 1
        if end != active.size:
            self._note(file_name(active.base_offset, naming.LOG), "does not end with a whole batch")
            return False
        if next_offset < self.ended.recovery_point:
            self._note("", f"ends at {next_offset}, below the recovery point {self.ended.recovery_point}")
            return False
        states = self._load_snapshot(next_offset)
        if states is None:
            self._note(file_name(next_offset, naming.SNAPSHOT), "missing or damaged")
            return False
        log.producer_state = states
        self._recall(states, log.segments, next_offset)
        log.move_end(Offset(next_offset))
        return True

    def _recall(self, states: ProducerStates, segments: list[Segment], offset: int) -> None:
        """Refill the cached batches that the snapshot at `offset` lacks, reading back across segments."""
        if not states.active:
            return
        headers: list[BatchHeader] = []
        left = _RECALL_ENTRIES
        for segment in reversed(segments):
            if left <= 0:
                break
            if segment.base_offset < offset:
                end, positions = segment.find_position(offset), segment.index.positions
                slot = bisect_left(positions, end)
                start = positions[slot - left] if slot >= left else 0
                headers = [*self._headers(segment, start, end), *headers]
                left -= slot + 1
        states.recall(headers)

    def _headers(self, segment: Segment, position: int, end: int) -> list[BatchHeader]:
        spans = segment.spans(position, end)
        return [read_header(segment.file.pread(HEADER_SIZE, at)) for at, _, _, _ in spans]

    def _remove_stray_snapshots(self) -> None:
        """Remove snapshots of earlier shutdowns: recovery needs those of the segments and the newest one.

        Source: ProducerStateManager.removeStraySnapshots.
        """
        log = self.log
        found = [
            f
            for f in map(parse_file_name, log.fs.listdir(log.directory))
            if f and f.suffix == naming.SNAPSHOT
        ]
        kept = {segment.base_offset for segment in log.segments} | {
            max((f.base_offset for f in found), default=0)
        }
        for stray in found:
            if stray.base_offset not in kept:
                log.fs.remove(f"{log.directory}/{file_name(stray.base_offset, naming.SNAPSHOT)}")

    def _load_snapshot(self, offset: int) -> ProducerStates | None:
        log = self.log
        path = f"{log.directory}/{file_name(offset, naming.SNAPSHOT)}"
        if not log.fs.exists(path):
            return None
        try:
            entries = decode_snapshot(log.fs.read_bytes(path), path)
        except MalformedFile:
            return None
        return ProducerStates.from_snapshot(entries, verification_required=log.config.verification_required)

    # -- after any other end ----------------------------------------------------------------------------

    def _recover(self) -> None:
        log = self.log
        first = 0
        for slot, segment in enumerate(log.segments):
            segment.close()
            if segment.base_offset <= self.ended.recovery_point:
                first = slot
        self._replay_producers(log.segments[:first], log.segments[first].base_offset)
        log.log_end_offset = Offset(log.segments[first].base_offset)
        slot = first
        while slot < len(log.segments):
            self._recover_segment(slot)
            slot += 1
        log.active.become_active()
        log.move_end(log.log_end_offset)

    def _replay_producers(self, before: list[Segment], offset: int) -> None:
        """Rebuild producer state as of `offset` from the newest snapshot at or below it and the log.

        Missing snapshots on the way are written again, because a later deletion removes the batches they are
        made from.
        """
        log = self.log
        offsets = []
        for name in log.fs.listdir(log.directory):
            found = parse_file_name(name)
            if found is None or found.suffix != naming.SNAPSHOT:
                continue
            if found.base_offset > offset:
                log.fs.remove(f"{log.directory}/{name}")  # the scan writes it again
            else:
                offsets.append(found.base_offset)
        start = 0
        for snapshot in sorted(offsets, reverse=True):
            states = self._load_snapshot(snapshot)
            if states is not None:
                log.producer_state, start = states, snapshot
                self._recall(states, before, snapshot)
                break
            self._note(file_name(snapshot, naming.SNAPSHOT), "damaged, an older one is used")
        for segment in before:
            self._save_snapshot_at(segment.base_offset, start)
            for at, size, _, last_offset in segment.spans(segment.find_position(start)):
                if last_offset >= start:
                    data = segment.file.pread(size, at)
                    self._apply(data, segment, live_index=False)
        self._save_snapshot_at(offset, start)

    def _save_snapshot_at(self, offset: int, start: int) -> None:
        if offset > start:
            self.log.log_end_offset = Offset(offset)
            self.log.save_snapshot()

    def _apply(self, data: bytes | memoryview, segment: Segment, *, live_index: bool) -> None:
        try:
            header = read_header(data)
            if header.producer_id >= 0:
                target = segment if live_index else None
                self.log.apply_to_producers(header, data, header.base_offset, target)
        except RecordsError as exc:
            path = segment.path(naming.LOG)
            raise CorruptLog(path, exc.at, "a batch that can be read", exc.reason) from exc

    def _recover_segment(self, slot: int) -> None:
        log = self.log
        segment = log.segments[slot]
        segment.file.sync()
        segment.file.forget_cached()
        segment.reset_aborted()
        size = segment.size
        scanner = Scanner(segment.file.pread, size, max(log.log_end_offset, segment.base_offset))
        for header, data in segment.rebuild(scanner):
            epoch = header.partition_leader_epoch
            if epoch >= 0 and (log.epochs.latest is None or epoch > log.epochs.latest):
                log.epochs.assign(epoch, header.base_offset)
            if header.producer_id >= 0:
                self._apply(data, segment, live_index=True)
        segment.end_rebuild(scanner.valid_end)
        self.scanned_bytes += size
        self._settle(slot, scanner, size)
        log.log_end_offset = Offset(scanner.offset_next)
        self._remove_unused(slot)
        if slot + 1 < len(log.segments):
            log.log_end_offset = Offset(max(scanner.offset_next, log.segments[slot + 1].base_offset))
            log.save_snapshot()
        segment.sync_indexes()

    def _settle(self, slot: int, scanner: Scanner, size: int) -> None:
        """Act on the verdict for the first invalid batch."""
        log, bad = self.log, scanner.bad
        segment, later = log.segments[slot], log.segments[slot + 1 :]
        if bad is None and later and COMPACT not in log.config.cleanup_policy:
            bad = _missing_end(scanner, later[0].base_offset)
        finding = find(
            Scan(
                bad=bad is not None,
                ends_below_recovery_point=not later and scanner.offset_next < self.ended.recovery_point,
                below_recovery_point=bad is not None and bad.offset_next < self.ended.recovery_point,
                whole_batch_behind=bad is not None and bad.valid_after is not None,
                later_segments_hold_data=any(other.size for other in later),
                rolls_are_synced=log.config.flush_policy == "ack",
            )
        )
        verdict = VERDICTS[finding]
        if verdict is Verdict.KEEP:
            return
        path, name = segment.path(naming.LOG), file_name(segment.base_offset, naming.LOG)
        if bad is None:
            expected = f"records up to offset {self.ended.recovery_point}, which were synced"
            raise CorruptLog(path, size, expected, f"the end, at offset {scanner.offset_next}")
        if verdict is Verdict.REFUSE:
            raise CorruptLog(path, bad.position, bad.expected, bad.found)
        what = f"{verdict.value} at byte {bad.position}, {size - bad.position} bytes: {bad.found}"
        if verdict is Verdict.CUT_AND_SET_ASIDE:
            aside = f"{path}{naming.CUT}{bad.position}"
            self._copy(segment, bad.position, aside)
            what += f"; see {aside}"
        for other in later:
            if other.size:
                other_name = file_name(other.base_offset, naming.LOG)
                log.fs.rename(other.path(naming.LOG), f"{other.path(naming.LOG)}{naming.CUT}0")
                self._note(other_name, "lies behind a hole, set aside")
            other.remove()
        log.fs.sync_dir(log.directory)
        segment.cut(bad.position)
        self._note(name, what)
        log.set_segments(log.segments[: slot + 1])

    def _remove_unused(self, slot: int) -> None:
        """Remove empty segments after `slot` that begin below its end.

        A roll that finds no room removes its empty segment again, and the previous one grows on, but the disk
        may keep the file's name. A lookup of an offset above that name would find an empty segment.
        """
        log = self.log
        while slot + 1 < len(log.segments):
            following = log.segments[slot + 1]
            if following.size or following.base_offset >= log.log_end_offset:
                return
            following.remove()
            name = file_name(following.base_offset, naming.LOG)
            self._note(name, "is empty and begins before the one before it ends, removed")
            log.set_segments([*log.segments[: slot + 1], *log.segments[slot + 2 :]])

    def _copy(self, segment: Segment, position: int, target: str) -> None:
        # Durable before the original is cut: whole batches are never dropped without a copy [LOG-8].
        fs = self.log.fs
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
        fs.sync_dir(self.log.directory)

    def _end_before_start(self) -> None:
        """Start anew at the log start offset if the log ends below it: all was deleted, its end lost."""
        log, start = self.log, self.ended.log_start_offset
        if log.log_end_offset >= start:
            return
        self._note("", f"ends at {log.log_end_offset}, below its start {start}; begins anew there")
        for segment in log.segments:
            segment.remove()
        segment = log.new_segment(start)
        segment.create()
        log.set_segments([segment])
        log.producer_state = ProducerStates(verification_required=log.config.verification_required)
        log.move_end(Offset(start))
        log.fs.sync_dir(log.directory)

    def _sync_all(self) -> None:
        """Sync what was read back, before it counts as synced."""
        log = self.log
        for segment in log.segments:
            if segment.base_offset >= self.ended.recovery_point or segment is log.active:
                segment.file.sync()
                segment.sync_indexes()
        log.fs.sync_dir(log.directory)


def _missing_end(scanner: Scanner, following: int) -> BadBatch | None:
    """Return missing batches between a segment's end and the next one's start as a fault, if any.

    Not checked for compacted logs: cleaning leaves such gaps, though ours keeps the last batch [CLN-2].
    """
    if scanner.offset_next >= following:
        return None
    return BadBatch(
        position=scanner.valid_end,
        expected=f"records up to offset {following}, where the next segment begins",
        found=f"the end, at offset {scanner.offset_next}",
        offset_next=scanner.offset_next,
        valid_after=None,
    )
