"""The aborted transactions of a segment, found again in its log when their index is damaged or missing.

A marker says which producer it ends, not where that producer's transaction began: that is in the producer
state at the segment's base, which its `.snapshot` holds, and in the batches from there on.

Source: Kafka's LogSegment.recover, which makes the transaction index anew together with the others.
"""

from tallystick.protocol.records import BatchHeader, RecordsError
from tallystick.protocol.records.control import ControlType, read_marker
from tallystick.storage.checkpoints.snapshots import decode_snapshot
from tallystick.storage.malformed import MalformedFile
from tallystick.storage.producer_state import ProducerStateManager, update_producers
from tallystick.storage.recovery import CorruptLog
from tallystick.storage.segments.segment_files import SegmentFiles
from tallystick.storage.segments.segment_scan import (
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    TXN_INDEX_SUFFIX,
    ReadAt,
    SegmentScanner,
)
from tallystick.storage.segments.transaction_index import AbortedTxn


def find_aborted_in_log(files: SegmentFiles, read: ReadAt, size: int) -> list[AbortedTxn]:
    """Return the aborted transactions whose marker is in a segment.

    Raises: CorruptLog if the log is damaged, or if it has such markers and the snapshot is gone: aborted
        records would be shown as committed. OSError.

    Cost: the whole segment is read.
    """
    path = files.make_path(LOG_SUFFIX)
    producers = _load_producers(files)
    scanner = SegmentScanner(read, size, files.base_offset)
    aborted_txns: list[AbortedTxn] = []
    for position, header, data in scanner.iter_batches():
        if header.producer_id < 0:
            continue
        try:
            if producers is None:
                _refuse_abort(files, header, data)
            elif txn := update_producers(producers, header, data, header.base_offset):
                aborted_txns.append(txn)
        except RecordsError as exc:
            raise CorruptLog(path, position, "a readable batch", exc.reason) from exc
    if (bad := scanner.fault) is not None:
        raise CorruptLog(path, bad.position, bad.expected, bad.found)
    return aborted_txns


def _load_producers(files: SegmentFiles) -> ProducerStateManager | None:
    """Return the producers as of the segment's base, None if they are not known."""
    data = files.read(SNAPSHOT_SUFFIX)
    if data is None:
        return None if files.base_offset else ProducerStateManager()
    try:
        return ProducerStateManager.from_snapshot(decode_snapshot(data, files.make_path(SNAPSHOT_SUFFIX)))
    except MalformedFile:
        return None


def _refuse_abort(files: SegmentFiles, header: BatchHeader, data: memoryview) -> None:
    marker = read_marker(data) if header.is_control else None
    if marker is not None and marker.control_type is ControlType.ABORT:
        raise CorruptLog(
            files.make_path(TXN_INDEX_SUFFIX),
            0,
            f"the transaction that the marker at offset {header.base_offset} aborted",
            f"a damaged or missing file, and no usable {files.make_path(SNAPSHOT_SUFFIX)} to make it anew",
        )
