"""Producer snapshots: a partition's producer state as Kafka's `.snapshot` file.

The file `<offset>.snapshot` holds the state that a replay of the log up to that offset, exclusive, would
give, except that only the last cached batch of each producer is kept. It is written when a segment is
rolled and when a log is closed, and saves the broker a scan of the log at start.

Layout (big endian): int16 version, uint32 CRC-32C of everything after it, int32 count, entries.

Source: Kafka's ProducerSnapshot.json, version 1; ProducerStateManager.writeSnapshot.
"""

from collections.abc import Iterable
from struct import Struct
from typing import Final, NamedTuple

from tallystick.kernel.ids import INT32_MAX
from tallystick.kernel.value import Value
from tallystick.protocol.records.crc import crc32c
from tallystick.storage.checkpoints.checkpoint_text import MalformedFile

SNAPSHOT_VERSION: Final = 1

_HEADER: Final = Struct(">hIi")
_ENTRY: Final = Struct(">qhiqiqiq")
_CRC_COVERS_FROM: Final = 6
_NONE: Final = -1


class CachedBatch(NamedTuple):
    """Sequence numbers and offsets of a producer's batch, kept to answer a duplicate of it.

    `first_sequence` and `last_sequence` are None for batches without sequence numbers, such as transactional
    offset commits.
    """

    first_sequence: int | None
    last_sequence: int | None
    first_offset: int
    last_offset: int
    timestamp_ms: int


class ProducerSnapshotEntry(Value, kw_only=True):
    """One producer in a snapshot.

    `coordinator_epoch` is that of its last marker, None before the first one. `current_txn_first_offset` is
    None unless a transaction is open. `last_batch` is None if only markers are known.
    """

    producer_id: int
    epoch: int
    last_batch: CachedBatch | None
    last_timestamp_ms: int
    coordinator_epoch: int | None
    current_txn_first_offset: int | None


def encode_snapshot(entries: Iterable[ProducerSnapshotEntry]) -> bytes:
    """Encode a `.snapshot` file."""
    packed_entries = [_pack(entry) for entry in entries]
    body = b"".join(packed_entries)
    count = _HEADER.pack(SNAPSHOT_VERSION, 0, len(packed_entries))[_CRC_COVERS_FROM:]
    crc = crc32c(body, crc32c(count))
    return _HEADER.pack(SNAPSHOT_VERSION, crc, len(packed_entries)) + body


def decode_snapshot(data: bytes, file: str = "producer snapshot") -> tuple[ProducerSnapshotEntry, ...]:
    """Decode a `.snapshot` file, also one that Kafka wrote.

    Raises: MalformedFile; the caller then reads an older snapshot or the whole log instead.
    """
    if len(data) < _HEADER.size:
        raise MalformedFile(file, 0, f"at least {_HEADER.size} bytes", f"{len(data)} bytes")
    version, crc, count = _HEADER.unpack_from(data)
    if version != SNAPSHOT_VERSION:
        raise MalformedFile(file, 0, f"version {SNAPSHOT_VERSION}", f"version {version}")
    actual = crc32c(memoryview(data)[_CRC_COVERS_FROM:])
    if actual != crc:
        raise MalformedFile(file, 2, f"CRC-32C {crc:#010x}", f"{actual:#010x}")
    size = _HEADER.size + count * _ENTRY.size
    if count < 0 or size != len(data):
        raise MalformedFile(file, _CRC_COVERS_FROM, f"{count} entries, {size} bytes", f"{len(data)} bytes")
    return tuple(map(_unpack, _ENTRY.iter_unpack(memoryview(data)[_HEADER.size :])))


def _pack(entry: ProducerSnapshotEntry) -> bytes:
    batch = entry.last_batch
    return _ENTRY.pack(
        entry.producer_id,
        entry.epoch,
        _NONE if batch is None or batch.last_sequence is None else batch.last_sequence,
        _NONE if batch is None else batch.last_offset,
        0 if batch is None else batch.last_offset - batch.first_offset,
        entry.last_timestamp_ms,
        _NONE if entry.coordinator_epoch is None else entry.coordinator_epoch,
        _NONE if entry.current_txn_first_offset is None else entry.current_txn_first_offset,
    )


def _unpack(fields: tuple[int, ...]) -> ProducerSnapshotEntry:
    producer_id, epoch, last_sequence, last_offset, delta, timestamp_ms, coordinator, txn_first = fields
    batch = None
    if last_offset >= 0:
        # Sequence numbers may wrap within a batch: the first is then the larger one [PRD-3].
        has_sequence = last_sequence >= 0
        batch = CachedBatch(
            (last_sequence - delta) & INT32_MAX if has_sequence else None,
            last_sequence if has_sequence else None,
            last_offset - delta,
            last_offset,
            timestamp_ms,
        )
    return ProducerSnapshotEntry(
        producer_id=producer_id,
        epoch=epoch,
        last_batch=batch,
        last_timestamp_ms=timestamp_ms,
        coordinator_epoch=None if coordinator < 0 else coordinator,
        current_txn_first_offset=None if txn_first < 0 else txn_first,
    )
