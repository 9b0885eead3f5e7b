"""One round of compaction over the files of one log: reads segments, writes new ones next to them.

`python -m tallystick.storage.compaction.cleaner` runs a round in a separate process, so that the broker's
loop never waits for it. The process reads one request, a line of JSON, from its input; it writes a line of
JSON for each finished group, then one line with `done` or `failed`, and ends with the broker, too, when its
output is closed. It writes only `.cleaned` files, so it can be killed at any moment. The broker puts
finished ones in place (`swap`); `rules` decides what is kept.

Memory [CLN-1]: the key map (`log.cleaner.dedupe.buffer.size`, 1.5 times that while it grows), one batch
compressed and decompressed, one write buffer, the transaction indexes of the log. When the map is full the
round ends early, and the next one continues from there.
"""

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any, Final, TextIO

from msgspec.structs import asdict

from tallystick.kernel.errors import TallystickError
from tallystick.kernel.value import Value
from tallystick.protocol.records import BatchHeader, RecordsError, read_header, read_marker, scan_keys
from tallystick.storage.compaction.rules import (
    BatchRetainer,
    CleanedTransactionMetadata,
    CleaningRules,
    KeyMap,
    LastRecord,
    group_segments,
)
from tallystick.storage.disk.fs import FileSystem, RealFileSystem, is_disk_full
from tallystick.storage.log.retention import SegmentInfo
from tallystick.storage.segments.indexes import NO_TIMESTAMP, OffsetIndex, TimeIndex
from tallystick.storage.segments.segment_scan import (
    CLEANED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    SegmentScanner,
    make_file_name,
)
from tallystick.storage.state.transaction_index import AbortedTxn, decode_aborted, encode_aborted

# The broker's loop has priority on a busy machine.
_NICENESS: Final = 10
_WRITE_BYTES: Final = 1 << 20


class CleaningFailed(TallystickError):
    """A round cannot be completed; nothing was changed. Attributes: directory, reason."""

    def __init__(self, directory: str, reason: str) -> None:
        super().__init__(directory, reason)
        self.directory, self.reason = directory, reason

    def __str__(self) -> str:
        return f"{self.directory}: {self.reason}"


class CleaningRequest(Value, kw_only=True):
    """The broker's request for one round.

    `segments`: (base offset, next offset, bytes) of those that may be cleaned, oldest first. `producers`:
    (producer id, offset of its last data or None, epoch) of the live ones.
    """

    directory: str
    segments: tuple[tuple[int, int, int], ...]
    first_dirty_offset: int
    segment_bytes: int
    index_interval_bytes: int
    delete_retention_ms: int
    now_ms: int
    key_map_bytes: int
    producers: tuple[tuple[int, int | None, int], ...]

    def to_json(self) -> dict[str, object]:
        return asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "CleaningRequest":
        """Rebuild a request from `to_json`; both ends belong to one installation."""
        values = dict(fields)
        for name in ("segments", "producers"):
            values[name] = tuple(tuple(item) for item in values[name])
        return cls(**values)

    def to_segment_infos(self) -> list[SegmentInfo]:
        return [SegmentInfo(base, next_base, size) for base, next_base, size in self.segments]


class CleanedGroup(Value, kw_only=True):
    """A complete new segment, synced as `<base>.*.cleaned`, ready to replace `old`."""

    base_offset: int
    old: tuple[int, ...]
    size_bytes: int


class RoundSummary(Value, kw_only=True):
    """The end of a round. `end_offset` is the new cleaner checkpoint once all groups are in place."""

    end_offset: int
    bytes_read: int
    bytes_written: int
    keys: int
    key_map_full: bool
    unread_batches: int = 0  # retained whole: their records unpack beyond the bound


def clean_log(fs: FileSystem, request: CleaningRequest) -> Iterator[CleanedGroup | RoundSummary]:
    """Clean one log; yield each group once it is on disk, in offset order, and RoundSummary at the end.

    Raises: CleaningFailed, RecordsError, OSError; the unfinished segment is removed.
    """
    return _CleaningRound(fs, request).run()


class _CleaningRound:
    def __init__(self, fs: FileSystem, request: CleaningRequest) -> None:
        self._fs = fs
        self._request = request
        self._directory = request.directory
        self._segments = request.to_segment_infos()
        self._keys = KeyMap(request.key_map_bytes)
        self._bytes_read = self._bytes_written = 0

    def run(self) -> Iterator[CleanedGroup | RoundSummary]:
        request = self._request
        aborted_txns = self._load_aborted()
        full = self._build_key_map(CleanedTransactionMetadata(aborted_txns))
        end_offset = self._keys.latest_offset + 1
        if end_offset <= request.first_dirty_offset:
            raise CleaningFailed(
                self._directory,
                f"the batch at offset {request.first_dirty_offset} has more keys than fit into"
                f" log.cleaner.dedupe.buffer.size={request.key_map_bytes}; nothing was removed. Raise this"
                " setting",
            )
        rules = CleaningRules(
            now_ms=request.now_ms,
            delete_retention_ms=request.delete_retention_ms,
            producers={pid: LastRecord(last, epoch) for pid, last, epoch in request.producers},
        )
        retainer = BatchRetainer(self._keys, CleanedTransactionMetadata(aborted_txns), rules)
        groups = group_segments(self._segments, segment_bytes=request.segment_bytes, end_offset=end_offset)
        for group in groups:
            size = self._clean_group(group, retainer)
            yield CleanedGroup(
                base_offset=group[0].base_offset,
                old=tuple(segment.base_offset for segment in group),
                size_bytes=size,
            )
        yield RoundSummary(
            end_offset=end_offset,
            bytes_read=self._bytes_read,
            bytes_written=self._bytes_written,
            keys=self._keys.key_count,
            key_map_full=full,
            unread_batches=retainer.unread_count,
        )

    def _load_aborted(self) -> list[AbortedTxn]:
        """Load aborted transactions of the whole log: a marker may lie above the part that is cleaned."""
        aborted_txns: list[AbortedTxn] = []
        closed = {make_file_name(segment.base_offset, TXN_INDEX_SUFFIX) for segment in self._segments}
        for name in self._fs.listdir(self._directory):
            if name.endswith(TXN_INDEX_SUFFIX):
                path = f"{self._directory}/{name}"
                data = self._fs.read_bytes(path)
                txns, size = decode_aborted(data, path)
                # That of the active segment may be just being written.
                if name in closed and size != len(data):
                    raise CleaningFailed(
                        path, f"corrupt at byte {size}: it ends within an entry; nothing was removed"
                    )
                aborted_txns += txns
        return aborted_txns

    def _iter_batches(self, segment: SegmentInfo) -> Iterator[tuple[int, BatchHeader, memoryview]]:
        path = f"{self._directory}/{make_file_name(segment.base_offset, LOG_SUFFIX)}"
        file = self._fs.open_read(path)
        try:
            scanner = SegmentScanner(file.pread, segment.size_bytes, segment.base_offset)
            yield from scanner.iter_batches()
            if scanner.fault is not None:
                fault = scanner.fault
                raise CleaningFailed(
                    path,
                    f"corrupt at byte {fault.position}: expected {fault.expected}, found {fault.found};"
                    " nothing was removed",
                )
        finally:
            file.close()

    # -- first pass ----------------------------------------------------------------------------------

    def _build_key_map(self, txns: CleanedTransactionMetadata) -> bool:
        """Record the newest offset of each key in the dirty part; return True if the map filled up first."""
        first_dirty, keys = self._request.first_dirty_offset, self._keys
        keys.latest_offset = first_dirty - 1
        for segment in self._segments:
            if segment.next_offset <= first_dirty:
                continue
            for _, header, batch in self._iter_batches(segment):
                if header.is_control:
                    marker = read_marker(batch)
                    txns.on_control_batch_read(header, None if marker is None else marker.control_type)
                elif not txns.on_batch_read(header) and not self._add_batch_keys(batch, first_dirty):
                    return True
                keys.latest_offset = max(keys.latest_offset, header.last_offset)
            keys.latest_offset = segment.next_offset - 1
        return False

    def _add_batch_keys(self, batch: memoryview, first_dirty: int) -> bool:
        put = self._keys.put
        try:
            return all(
                record.key is None or record.offset < first_dirty or put(record.key, record.offset)
                for record in scan_keys(batch)
            )
        except RecordsError:
            return True  # the second pass retains it whole, so that a key recorded here is not lost

    # -- second pass -----------------------------------------------------------------------------------

    def _clean_group(self, group: Sequence[SegmentInfo], retainer: BatchRetainer) -> int:
        """Write and sync the new segment of a group; return its size."""
        base_offset = group[0].base_offset
        remove_files(self._fs, self._directory, base_offset, CLEANED_SUFFIX)
        last_with_data = max((n for n, segment in enumerate(group) if segment.size_bytes), default=0)
        with ExitStack() as stack:
            stack.callback(remove_files, self._fs, self._directory, base_offset, CLEANED_SUFFIX)
            output = _CleanedSegmentWriter(
                self._fs, self._directory, base_offset, self._request.index_interval_bytes
            )
            stack.callback(output.close)
            for number, segment in enumerate(group):
                for position, header, batch in self._iter_batches(segment):
                    self._bytes_read += header.size_bytes
                    end = position + header.size_bytes
                    is_last = number == last_with_data and end == segment.size_bytes
                    retained = retainer.retain(header, batch, is_last=is_last)
                    if retained is not None:
                        output.append(retained, retainer.retained_abort)
            output.finish()
            stack.pop_all()
        self._fs.sync_dir(self._directory)
        self._bytes_written += output.size
        return output.size


def remove_files(fs: FileSystem, directory: str, base_offset: int, state: str) -> None:
    """Remove the existing files of a segment in one state: `.cleaned`, `.swap`, `.deleted`."""
    for suffix in SEGMENT_SUFFIXES:
        path = f"{directory}/{make_file_name(base_offset, suffix)}{state}"
        if fs.exists(path):
            fs.remove(path)


class _CleanedSegmentWriter:
    """A new segment written under `.cleaned` names; all four files, so that no old one is left."""

    def __init__(self, fs: FileSystem, directory: str, base_offset: int, index_interval_bytes: int) -> None:
        self._fs = fs
        self._directory = directory
        self._base_offset = base_offset
        self._interval = index_interval_bytes
        self._file = fs.open_append(self._make_path(LOG_SUFFIX))
        self._buffer: list[bytes] = []
        self._buffered_bytes = 0
        self._since_entry = 0
        self._largest = (NO_TIMESTAMP, base_offset)
        self._index, self._times = OffsetIndex(), TimeIndex()
        self._aborted_txns: list[AbortedTxn] = []
        self.size = 0

    def _make_path(self, suffix: str) -> str:
        return f"{self._directory}/{make_file_name(self._base_offset, suffix)}{CLEANED_SUFFIX}"

    def append(self, batch: bytes, aborted_txn: AbortedTxn | None) -> None:
        header = read_header(batch)
        if header.max_timestamp > self._largest[0]:
            self._largest = (header.max_timestamp, header.last_offset)
        if self._since_entry > self._interval:
            self._index.append(header.last_offset - self._base_offset, self.size)
            self._append_largest_timestamp()
            self._since_entry = 0
        self._since_entry += len(batch)
        self.size += len(batch)
        if aborted_txn is not None:
            self._aborted_txns.append(aborted_txn)
        self._buffer.append(batch)
        self._buffered_bytes += len(batch)
        if self._buffered_bytes >= _WRITE_BYTES:
            self._flush()

    def _append_largest_timestamp(self) -> None:
        self._times.maybe_append(self._largest[0], self._largest[1] - self._base_offset)

    def _flush(self) -> None:
        if self._buffer:
            self._file.write(self._buffer)
            self._buffer, self._buffered_bytes = [], 0

    def finish(self) -> None:
        """Sync all files; the names are durable after a sync of the directory."""
        self._flush()
        self._file.sync()
        self._file.close()
        self._append_largest_timestamp()
        for suffix, data in (
            (INDEX_SUFFIX, self._index.encode_from(0)),
            (TIME_INDEX_SUFFIX, self._times.encode_from(0)),
            (TXN_INDEX_SUFFIX, b"".join(map(encode_aborted, self._aborted_txns))),
        ):
            file = self._fs.open_append(self._make_path(suffix))
            try:
                file.write([data])
                file.sync()
            finally:
                file.close()

    def close(self) -> None:
        self._file.close()


def run_request(fs: FileSystem, request_line: str, output: TextIO) -> bool:
    """Run the round that one line requests; return True if it was completed."""
    try:
        for step in clean_log(fs, CleaningRequest.from_json(json.loads(request_line))):
            kind = "group" if isinstance(step, CleanedGroup) else "done"
            _write_message(output, {"kind": kind, **asdict(step)})
    except BrokenPipeError:
        return False
    except Exception as exc:  # report every error, because the broker sees nothing but this output
        full = isinstance(exc, OSError) and is_disk_full(exc)
        _write_message(output, {"kind": "failed", "reason": f"{type(exc).__name__}: {exc}", "full": full})
        return False
    return True


def _write_message(output: TextIO, fields: dict[str, object]) -> None:
    output.write(f"{json.dumps(fields)}\n")
    output.flush()


def main() -> int:
    with suppress(OSError):
        os.nice(_NICENESS)
    return 0 if run_request(RealFileSystem(), sys.stdin.readline(), sys.stdout) else 1


if __name__ == "__main__":
    sys.exit(main())
