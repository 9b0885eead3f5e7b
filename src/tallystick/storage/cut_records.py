"""`python -m tallystick.storage.cut_records FILE...`: the records of `.log.cut-` files, as lines of JSON.

Recovery cuts a log at a hole and keeps what lies behind it in these files. The lines are those that
`tallystick produce --format json` reads. Records of a transaction are printed if its COMMIT marker is in one
of the files; the others are only reported, to the standard error, as is every gap. Give all files of a
partition together: a marker may be in a later file than its records. Nothing is changed.

Any segment file can be read in the same way, that of a stopped broker, too.
"""

import json
import sys
from base64 import b64encode
from collections.abc import Iterator, Sequence
from typing import Final

from tallystick.protocol.records import (
    BatchHeader,
    ControlType,
    Record,
    RecordsError,
    decode_records,
    read_marker,
)
from tallystick.storage.disk.fs import FileSystem, RealFileSystem
from tallystick.storage.segments.segment_scan import LOG_SUFFIX, SegmentScanner

_OUTCOMES: Final = {ControlType.COMMIT: "committed", ControlType.ABORT: "aborted"}
_UNDECIDED: Final = "no marker in these files"

# Producer id -> (offset of the marker, outcome), in the order of the offsets.
Outcomes = dict[int, list[tuple[int, str]]]


def iter_batches(fs: FileSystem, path: str) -> Iterator[tuple[BatchHeader, memoryview] | str]:
    """Yield every valid batch of a file, and a sentence for each gap between them. Raises OSError."""
    file = fs.open_read(path)
    try:
        at: int | None = 0
        size, next_offset = file.size(), 0
        while at is not None:
            scanner = SegmentScanner(file.pread, size, next_offset, at=at)
            for _, header, batch in scanner.iter_batches():
                yield header, batch
            at, next_offset = None, scanner.next_offset
            if (fault := scanner.fault) is not None:
                at = fault.valid_after
                until = "the end" if at is None else f"byte {at}"
                yield f"no whole batch from byte {fault.position} to {until}: {fault.found}"
    finally:
        file.close()


def find_outcomes(fs: FileSystem, paths: Sequence[str]) -> Outcomes:
    """Return the markers of all files. Raises OSError."""
    outcomes: Outcomes = {}
    for path in paths:
        for item in iter_batches(fs, path):
            if isinstance(item, str) or not item[0].is_control:
                continue
            header, batch = item
            marker = read_marker(batch)
            if marker is not None and marker.control_type in _OUTCOMES:
                markers = outcomes.setdefault(header.producer_id, [])
                markers.append((header.base_offset, _OUTCOMES[marker.control_type]))
    return outcomes


def print_file(fs: FileSystem, path: str, outcomes: Outcomes) -> None:
    """Print a file's records to the standard output, and what is left out to the standard error."""
    directory, name = path.rpartition("/")[::2]
    topic, _, index = directory.rpartition("/")[2].rpartition("-")
    partition = (
        int(index) if index.isdecimal() else None
    )  # None: the file was moved, and the producer chooses
    for item in iter_batches(fs, path):
        if isinstance(item, str):
            print(f"{name}: {item}", file=sys.stderr)
            continue
        header, batch = item
        outcome = _find_outcome(header, outcomes)
        if header.is_control or not header.record_count:
            continue
        if outcome not in ("", "committed"):
            offsets = f"{name}: offsets {header.base_offset} to {header.last_offset} left out"
            pair = f"{header.producer_id}:{header.producer_epoch}"
            print(f"{offsets}: transaction of producer {pair}, {outcome}", file=sys.stderr)
            continue
        try:
            for record in decode_records(batch):
                print(_format_line(topic, partition, record))
        except RecordsError as exc:
            print(f"{name}: offset {header.base_offset}: {exc}", file=sys.stderr)


def _find_outcome(header: BatchHeader, outcomes: Outcomes) -> str:
    """Return the outcome of a batch's transaction; empty if it has none."""
    if not header.is_transactional:
        return ""
    markers = outcomes.get(header.producer_id, [])
    return next((outcome for offset, outcome in markers if offset > header.base_offset), _UNDECIDED)


def _format_line(topic: str, partition: int | None, record: Record) -> str:
    fields = {
        "topic": topic,
        "partition": partition,
        "offset": record.offset,
        "timestamp": record.timestamp_ms,
        "headers": [[name, _encode_content(value)] for name, value in record.headers],
        "key": _encode_content(record.key),
        "value": _encode_content(record.value),
    }
    return json.dumps(fields, separators=(",", ":"))


def _encode_content(content: bytes | None) -> str | dict[str, str] | None:
    if content is None:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(content).decode()}


def main(arguments: Sequence[str], fs: FileSystem | None = None) -> int:
    """Print the records of these files, in the order of their names."""
    fs = fs or RealFileSystem()
    paths = sorted(arguments)
    if not paths or not all(LOG_SUFFIX in path.rpartition("/")[2] for path in paths):
        print(f"{__doc__}", file=sys.stderr)
        return 2
    outcomes = find_outcomes(fs, paths)
    for path in paths:
        print_file(fs, path, outcomes)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
