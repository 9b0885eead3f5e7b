"""Compaction rules. Pure, no I/O.

A round of cleaning reads the log twice between its start and the first uncleanable offset. First it records,
for the dirty part, the newest offset of each key. Then it copies everything up to the last offset recorded,
except

* records whose key has a newer offset, and records without a key;
* tombstones whose delete horizon has passed. The first round that meets the tombstone as the newest
  record of its key sets the horizon, `delete.retention.ms` from then: a reader that began before has that
  long to see the deletion (KIP-534);
* the records of aborted transactions;
* markers, once no batch of their transaction is left in the log, and one horizon later.

Never removed: anything at or above the last stable offset, the last segment, and the part younger than
`min.compaction.lag.ms`; a batch whose records cannot be read, as they unpack beyond the bound, and the
tombstones behind it; the last batch of each live producer, emptied if need be, for its sequence number and
epoch [CLN-5]; the last batch of each new segment, emptied if need be, because its last offset tells recovery
which segments it replaces [CLN-2].

Source: Kafka's Cleaner, CleanedTransactionMetadata, LogCleanerManager, MemoryRecords.filterTo; KIP-58,
    KIP-354, KIP-534; KAFKA-4523 and KAFKA-6854 for producers and markers.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Final

from tallystick.kernel.check import check
from tallystick.kernel.ids import INT32_MAX, INT64_MAX
from tallystick.kernel.value import Value
from tallystick.protocol.records import (
    BatchHeader,
    Buffer,
    ControlType,
    RecordsError,
    ScannedKey,
    build_empty_batch,
    filter_batch,
    read_marker,
)
from tallystick.storage.log.retention import SegmentInfo
from tallystick.storage.state.transaction_index import AbortedTxn

DIGEST_SIZE: Final = 16
# An entry is a digest and an int64 offset.
SLOT_BYTES: Final = DIGEST_SIZE + 8
# Kafka's log.cleaner.io.buffer.load.factor. Above it, probing for a free slot gets slow.
LOAD_FACTOR: Final = 0.9
_SLOTS_FIRST: Final = 1024
_EMPTY: Final = bytes(DIGEST_SIZE)

# Old segments per new one: each is held open while it is replaced.
GROUP_SEGMENTS_MAX: Final = 64


# -- which part, and which log first -----------------------------------------------------------------


class CleaningLimits(Value, kw_only=True):
    """Settings of one topic that decide when and how far it is cleaned."""

    min_compaction_lag_ms: int
    max_compaction_lag_ms: int
    min_cleanable_dirty_ratio: float


class LogToClean(Value, kw_only=True):
    """The part of a log that a round may clean, and how much of it is new since the last one."""

    first_dirty_offset: int
    first_uncleanable_offset: int
    clean_bytes: int
    dirty_bytes: int
    is_overdue: bool  # a record has waited longer than max.compaction.lag.ms
    is_due: bool  # overdue, or dirty enough

    @property
    def dirty_ratio(self) -> float:
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0


def plan_cleaning(
    segments: Sequence[SegmentInfo],
    limits: CleaningLimits,
    *,
    checkpoint: int | None,
    log_start_offset: int,
    last_stable_offset: int,
    now_ms: int,
) -> LogToClean:
    """Find the cleanable part of one log.

    Args:
        segments: oldest first; the last one is active.
        checkpoint: where the last round ended; None, or an offset outside the log, means there was none.
    Source: LogCleanerManager.cleanableOffsets, calculateCleanableBytes, maxCompactionDelay.
    """
    end = segments[-1].next_offset
    # LogCleanerManager: a checkpoint outside the log is from before a truncation or deletion; start over.
    is_usable = checkpoint is not None and log_start_offset <= checkpoint <= end
    first_dirty = checkpoint if is_usable and checkpoint is not None else log_start_offset
    # Whole segments only: the first that reaches above the last stable offset stays [CLN-4].
    limit = 0
    for segment in segments[:-1]:
        newest = segment.largest_timestamp_ms
        # KIP-58: records younger than min.compaction.lag.ms stay uncompacted, so that a consumer that keeps
        # up sees every one of them.
        is_young = (
            limits.min_compaction_lag_ms > 0
            and newest is not None
            and newest > now_ms - limits.min_compaction_lag_ms
        )
        if segment.next_offset > last_stable_offset or (is_young and segment.next_offset > first_dirty):
            break
        limit += 1
    cleanable = segments[:limit]
    first_uncleanable = max(segments[limit].base_offset, first_dirty)
    clean = sum(segment.size_bytes for segment in cleanable if segment.next_offset <= first_dirty)
    dirty = [segment for segment in cleanable if segment.next_offset > first_dirty]
    dirty_bytes = sum(segment.size_bytes for segment in dirty)
    times = [segment.largest_timestamp_ms for segment in dirty if segment.largest_timestamp_ms is not None]
    # KIP-354: a record waits no longer than max.compaction.lag.ms, however clean the log is.
    is_overdue = bool(times) and min(times) < now_ms - limits.max_compaction_lag_ms
    total = clean + dirty_bytes
    is_dirty_enough = dirty_bytes > 0 and dirty_bytes / total > limits.min_cleanable_dirty_ratio
    return LogToClean(
        first_dirty_offset=first_dirty,
        first_uncleanable_offset=first_uncleanable,
        clean_bytes=clean,
        dirty_bytes=dirty_bytes,
        is_overdue=is_overdue,
        is_due=dirty_bytes > 0 and (is_dirty_enough or is_overdue),
    )


def group_segments(
    segments: Sequence[SegmentInfo], *, segment_bytes: int, end_offset: int
) -> list[list[SegmentInfo]]:
    """Group adjacent segments that fit into one new segment, by their sizes before cleaning.

    Source: Cleaner.groupSegmentsBySize. The indexes fit if the log does: the new ones are no denser.
    """
    groups: list[list[SegmentInfo]] = []
    size = 0
    for segment in segments:
        if segment.base_offset >= end_offset:
            break
        group = groups[-1] if groups else []
        fits = (
            group
            and size + segment.size_bytes <= segment_bytes
            and len(group) < GROUP_SEGMENTS_MAX
            and segment.next_offset - 1 - group[0].base_offset <= INT32_MAX
        )
        if fits:
            group.append(segment)
            size += segment.size_bytes
        else:
            groups.append([segment])
            size = segment.size_bytes
    return groups


# -- the newest offset of each key ----------------------------------------------------------------------


class KeyMap:
    """Map from key to its newest offset, with bounded memory.

    A hash table with open addressing over two flat arrays: 24 bytes per slot, never more than
    `size_bytes_max` in all, and 1.5 times that for a moment while it grows [CLN-1]. Keys are held as 16-byte
    BLAKE2b digests: a collision would lose a record, so it must be infeasible even for an attacker, which
    Kafka's MD5 does not ensure.
    """

    def __init__(self, size_bytes_max: int) -> None:
        self._slots_max = size_bytes_max // SLOT_BYTES
        self._keys_max = int(self._slots_max * LOAD_FACTOR)
        check(self._keys_max >= 1, f"{size_bytes_max} bytes hold no key")
        self.latest_offset = -1  # everything up to it is recorded
        self._allocate(min(_SLOTS_FIRST, self._slots_max))
        self.key_count = 0

    def _allocate(self, slots: int) -> None:
        self._slots = slots
        self._digests = bytearray(slots * DIGEST_SIZE)
        self._offsets = memoryview(bytearray(slots * 8)).cast("q")
        self._grow_at = min(int(slots * LOAD_FACTOR), self._keys_max)

    @property
    def size_bytes(self) -> int:
        return self._slots * SLOT_BYTES

    def put(self, key: bytes, offset: int) -> bool:
        """Record that `key` is at `offset`; return False, recording nothing, if the map is full."""
        digest = _hash_key(key)
        slot, is_present = self._find(digest)
        if not is_present:
            if self.key_count >= self._grow_at:
                if self.key_count >= self._keys_max:
                    return False
                self._grow()
                slot, _ = self._find(digest)
            self._digests[slot * DIGEST_SIZE : (slot + 1) * DIGEST_SIZE] = digest
            self.key_count += 1
        self._offsets[slot] = offset
        return True

    def find_newest_offset(self, key: bytes) -> int | None:
        slot, is_present = self._find(_hash_key(key))
        return self._offsets[slot] if is_present else None

    def _find(self, digest: bytes) -> tuple[int, bool]:
        """Return the slot of a digest, or the free slot for it, and whether it is in the map."""
        digests, slots = self._digests, self._slots
        slot = int.from_bytes(digest[:8], "big") % slots
        while True:
            stored_digest = digests[slot * DIGEST_SIZE : (slot + 1) * DIGEST_SIZE]
            if stored_digest == digest:
                return slot, True
            if stored_digest == _EMPTY:
                return slot, False
            slot = slot + 1 if slot + 1 < slots else 0

    def _grow(self) -> None:
        digests, offsets = self._digests, self._offsets
        self._allocate(min(self._slots * 2, self._slots_max))
        for old in range(len(offsets)):
            digest = bytes(digests[old * DIGEST_SIZE : (old + 1) * DIGEST_SIZE])
            if digest != _EMPTY:
                slot, _ = self._find(digest)
                self._digests[slot * DIGEST_SIZE : (slot + 1) * DIGEST_SIZE] = digest
                self._offsets[slot] = offsets[old]


def _hash_key(key: bytes) -> bytes:
    digest = blake2b(key, digest_size=DIGEST_SIZE).digest()
    # Sixteen zero bytes mean a free slot.
    return digest if digest != _EMPTY else b"\x01" * DIGEST_SIZE


# -- transactions -------------------------------------------------------------------------------------------


class CleanedTransactionMetadata:
    """Tracks transactions through batches in offset order: aborted data, and markers that may go.

    A marker may go if no batch of its transaction was met before it: all are gone, or there never were any.
    """

    def __init__(self, aborted_txns: Iterable[AbortedTxn]) -> None:
        self._aborted_txns = deque(sorted(aborted_txns, key=lambda txn: txn.first_offset))
        self._ongoing_aborted: dict[int, AbortedTxn] = {}
        self._producers_seen: set[int] = set()  # producers with a batch of their current transaction

    def on_batch_read(self, header: BatchHeader) -> bool:
        """Return whether a data batch belongs to an aborted transaction; record its producer as met."""
        self._advance(header)
        if not header.is_transactional:
            return False
        self._producers_seen.add(header.producer_id)
        return header.producer_id in self._ongoing_aborted

    def on_control_batch_read(
        self, header: BatchHeader, kind: ControlType | None
    ) -> tuple[bool, AbortedTxn | None]:
        """Return whether a marker may go, and the transaction it aborts if records of that are left.

        `kind` is None for an emptied control batch, or one that ends no transaction.
        """
        self._advance(header)
        if kind is None:
            return header.record_count == 0, None
        has_records = header.producer_id in self._producers_seen
        self._producers_seen.discard(header.producer_id)
        txn = self._ongoing_aborted.pop(header.producer_id, None)
        return not has_records, txn if has_records else None

    def _advance(self, header: BatchHeader) -> None:
        while self._aborted_txns and self._aborted_txns[0].first_offset <= header.last_offset:
            txn = self._aborted_txns.popleft()
            # A transaction that ended before the start of the round does not affect later batches.
            if txn.last_offset >= header.base_offset:
                self._ongoing_aborted[txn.producer_id] = txn


# -- what is kept ----------------------------------------------------------------------------------------


class LastRecord(Value):
    """A live producer's last batch: by its offset, or, if only a marker is known, by its epoch."""

    last_data_offset: int | None
    epoch: int


class CleaningRules(Value, kw_only=True):
    """The parameters of a round, fixed when it begins."""

    now_ms: int
    delete_retention_ms: int
    producers: Mapping[int, LastRecord]

    @property
    def delete_horizon_ms(self) -> int | None:
        """The delete horizon for tombstones met now; None, for ever, beyond the largest timestamp."""
        horizon_ms = self.now_ms + self.delete_retention_ms
        return horizon_ms if horizon_ms <= INT64_MAX else None

    def is_last_of_producer(self, header: BatchHeader) -> bool:
        """Return whether a batch is the last one of a live producer, which is kept.

        Source: KAFKA-4523, and KAFKA-9144 for producers with only a marker left.
        """
        last = self.producers.get(header.producer_id) if header.producer_id >= 0 else None
        if last is None:
            return False
        if last.last_data_offset is not None:
            return header.last_offset == last.last_data_offset
        return header.is_control and header.producer_epoch == last.epoch


class BatchRetainer:
    """Decides on each batch of a round, in offset order."""

    def __init__(self, keys: KeyMap, txns: CleanedTransactionMetadata, rules: CleaningRules) -> None:
        self._keys = keys
        self._txns = txns
        self._rules = rules
        self.retained_abort: AbortedTxn | None = None  # the index entry for the batch retained last
        self.unread_count = 0  # batches retained whole, because their records cannot be read

    def retain(self, header: BatchHeader, batch: Buffer, *, is_last: bool) -> bytes | None:
        """Return the batch as it goes into the new segment; None if it is dropped.

        Args:
            is_last: it is the last in the new segment, so it is kept, emptied if need be [CLN-2].
        """
        self.retained_abort = None
        live = self._rules.is_last_of_producer(header)
        if header.is_control:
            return self._retain_marker(header, batch, is_last, live)
        keep_empty = is_last or live
        # KIP-98: records of an aborted transaction are invisible, so they go immediately.
        if self._txns.on_batch_read(header):
            return build_empty_batch(header) if keep_empty else None
        past = header.delete_horizon_ms is not None and header.delete_horizon_ms <= self._rules.now_ms
        # A batch that was not read may hold the value that a tombstone behind it deletes.
        past = past and not self.unread_count

        def keep(record: ScannedKey) -> bool:
            return self._should_retain_record(record, past)

        horizon_ms = self._rules.delete_horizon_ms
        try:
            return filter_batch(batch, 0, keep, retain_empty=keep_empty, horizon_ms=horizon_ms)
        except RecordsError:
            # Its CRC is right, and other readers may have other bounds: it is theirs as it is.
            self.unread_count += 1
            return bytes(batch)

    def _retain_marker(self, header: BatchHeader, batch: Buffer, is_last: bool, live: bool) -> bytes | None:
        """Retain or drop a marker; with `live` it is all that is known of a producer, and is kept whole.

        Kafka empties it, and the epoch it was kept for goes with the record.
        """
        marker = read_marker(batch)
        may_go, aborts = self._txns.on_control_batch_read(
            header, None if marker is None else marker.control_type
        )
        horizon_ms = header.delete_horizon_ms
        is_expired = (horizon_ms is not None and horizon_ms <= self._rules.now_ms) or not header.record_count
        # KIP-534: a marker whose records are gone goes, too, but only after its delete horizon: a consumer
        # that has read some of the records must still see how the transaction ended.
        if may_go and is_expired and not live:
            return filter_batch(batch, 0, frozenset(), retain_empty=is_last)
        self.retained_abort = aborts
        horizon_ms = self._rules.delete_horizon_ms if may_go and not live else None
        return filter_batch(batch, 0, lambda _: True, retain_empty=is_last, horizon_ms=horizon_ms)

    def _should_retain_record(self, record: ScannedKey, horizon_passed: bool) -> bool:
        if record.offset > self._keys.latest_offset:
            return True  # not recorded in this round
        if record.key is None:
            return False
        newest = self._keys.find_newest_offset(record.key)
        if newest is not None and record.offset < newest:
            return False
        # KIP-534: a tombstone outlives its key by delete.retention.ms, from the first cleaning on.
        return not (record.value_is_null and horizon_passed)
