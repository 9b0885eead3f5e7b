"""Producer state of one partition: duplicates, sequence numbers, fencing and open transactions.

For each producer id it holds the epoch, the last five batches, the first offset of an open transaction, and
the coordinator epoch of the last marker. These decide

* duplicates: a batch equal to one of the five is answered with the offsets it already has; a
  transactional one only while its transaction is open;
* order: sequence numbers have no gap within an epoch, 2147483647 is followed by 0, and a new epoch
  begins at 0. A producer id without state may begin anywhere, because retention or expiry may have
  removed its state. Only a transaction that the broker adds itself (KIP-890 part 2) must begin at 0;
* fencing: batches of an older epoch and markers of a replaced coordinator are refused;
* the last stable offset: it does not pass the first offset of an open transaction, nor that of a
  decided one whose marker is not yet below the high watermark.

The checks change nothing; `apply_batch` and `apply_marker` do, live and on replay alike, so that a replay of
the log gives the same state [PRD-1]. Verifications are the exception: they live in memory only, because
losing one only makes the producer retry.

Source: KIP-98, KIP-360, KIP-890; Kafka 4.3: ProducerAppendInfo, ProducerStateEntry,
    ProducerStateManager, UnifiedLog.analyzeAndValidateProducerState.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum, auto
from types import MappingProxyType
from typing import Final

from tallystick.kernel.check import check
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import EPOCH_BUMP_VERSION, INT32_MAX
from tallystick.kernel.limits import EPOCH_MAX, PRODUCER_BATCHES_CACHED
from tallystick.kernel.value import Value
from tallystick.protocol.records.batch import TRANSACTIONAL_BIT, BatchHeader
from tallystick.protocol.records.control import ControlType, EndTransactionMarker, read_marker
from tallystick.storage.checkpoints.snapshots import CachedBatch, ProducerSnapshotEntry
from tallystick.storage.state.transaction_index import AbortedTxn

# A transaction is late this long after transaction.max.timeout.ms, as in Kafka's ProducerStateManager.
LATE_TRANSACTION_BUFFER_MS: Final = 5 * 60 * 1000


class AppendOrigin(Enum):
    """The origin of an append, which decides what is checked."""

    CLIENT = auto()  # everything is checked
    COORDINATOR = auto()  # no sequence numbers, the group coordinator has none
    DECISION = auto()  # as COORDINATOR, without size or disk limits: a transaction must be able to end
    REPLICATION = auto()  # nothing, the leader has checked it


class Accepted(Value):
    """The batch or marker may be appended."""


class DuplicateBatch(Value):
    """The batch is already in the log; its original offsets and timestamp are the answer."""

    base_offset: int
    last_offset: int
    timestamp_ms: int


ACCEPTED: Final = Accepted()


class CompletedTxn(Value, kw_only=True):
    """A transaction with records in this partition, ended by a marker.

    `last_stable_offset`: first offset of the oldest transaction still open, or the offset after the marker.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int
    is_aborted: bool

    def to_aborted_txn(self) -> AbortedTxn:
        """Return the entry for the segment's transaction index."""
        return AbortedTxn(self.producer_id, self.first_offset, self.last_offset, self.last_stable_offset)


class VerificationStateEntry:
    """A pending verification: the coordinator is asked whether a transaction includes this partition.

    The object is itself the guard. The first batch of the transaction is appended with the very object that
    this partition issued, so the answer to an earlier verification admits nothing (ABA). Concurrent batches
    of one producer share it. Source: KIP-890 part 1; VerificationStateEntry.

    `request_count` counts the requests that share it, so that one failed request does not drop the guard of
    the others.
    """

    __slots__ = ("epoch", "lowest_sequence", "request_count", "started_ms", "supports_epoch_bump")

    def __init__(self, sequence: int, epoch: int, supports_epoch_bump: bool, started_ms: int) -> None:
        self.lowest_sequence = sequence
        self.epoch = epoch
        self.supports_epoch_bump = supports_epoch_bump
        self.started_ms = started_ms
        self.request_count = 0

    def is_after_marker(self, marker_epoch: int, transaction_version: int) -> bool:
        """Return whether this verification is for a transaction that begins after such a marker.

        KIP-890: under transaction version 2 every end bumps the epoch, and the next transaction uses the
        marker's producer id and epoch. The client learns them when the end is decided, so the first batch of
        the next transaction may arrive here before the marker.
        """
        return transaction_version >= EPOCH_BUMP_VERSION and self.epoch >= marker_epoch

    def update_lowest_sequence(self, sequence: int, epoch: int) -> None:
        """Record the lowest sequence seen, so that a later batch cannot overtake it into the log."""
        self.request_count += 1
        if epoch > self.epoch:
            self.epoch, self.lowest_sequence = epoch, sequence
        elif epoch == self.epoch and _is_before(sequence, self.lowest_sequence):
            self.lowest_sequence = sequence


class ProducerStateEntry:
    """The state of one producer id in this partition. Only `ProducerStateManager` changes it."""

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "current_txn_first_offset",
        "epoch",
        "has_written",
        "last_seen_ms",
        "last_timestamp_ms",
        "next_sequence",
        "producer_id",
    )

    def __init__(self, producer_id: int, epoch: int) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.batches: list[CachedBatch] = []  # oldest first, of this epoch only
        self.next_sequence = 0
        self.last_timestamp_ms = -1  # of data or marker: KAFKA-9144
        self.has_written = False  # data was appended since the last `remove_expired`
        self.last_seen_ms = -1  # the broker's time when `remove_expired` last found `has_written` set
        self.coordinator_epoch: int | None = None
        self.current_txn_first_offset: int | None = None

    @property
    def last_sequence(self) -> int | None:
        return self.batches[-1].last_sequence if self.batches else None

    @property
    def last_data_offset(self) -> int | None:
        """Offset of the last known record; the cleaner keeps its batch."""
        return self.batches[-1].last_offset if self.batches else None

    def to_snapshot_entry(self) -> ProducerSnapshotEntry:
        return ProducerSnapshotEntry(
            producer_id=self.producer_id,
            epoch=self.epoch,
            last_batch=self.batches[-1] if self.batches else None,
            last_timestamp_ms=self.last_timestamp_ms,
            coordinator_epoch=self.coordinator_epoch,
            current_txn_first_offset=self.current_txn_first_offset,
        )


class ProducerStateManager:
    """All producers of one partition. Owned by its log, used by one thread.

    `verification_required` is Kafka's `transaction.partition.verification.enable`: the first transactional
    batch must then present the Verification from `begin_verification`. A Verification that is presented must
    be the right one, required or not [PRD-7].
    """

    __slots__ = (
        "_ongoing_txns",
        "_producers",
        "_unreplicated_txns",
        "_verifications",
        "verification_required",
    )

    def __init__(self, *, verification_required: bool = False) -> None:
        self.verification_required = verification_required
        self._producers: dict[int, ProducerStateEntry] = {}
        self._verifications: dict[int, VerificationStateEntry] = {}
        # First offset -> producer id of each open transaction. Appends open transactions, so
        # insertion order is offset order. An OrderedDict, because finding the first key of a
        # dict scans all removed entries.
        self._ongoing_txns: OrderedDict[int, int] = OrderedDict()
        # (marker offset, first offset) of decided transactions whose marker is not below the high
        # watermark; both ascend. A transaction that began after one decided later is left out,
        # because the earlier first offset holds the last stable offset back at least as long.
        self._unreplicated_txns: deque[tuple[int, int]] = deque()

    # -- what is known ----------------------------------------------------------------------------

    @property
    def active_producers(self) -> Mapping[int, ProducerStateEntry]:
        """Every known producer by id, for DescribeProducers and the cleaner."""
        return MappingProxyType(self._producers)

    def find_producer(self, producer_id: int) -> ProducerStateEntry | None:
        """Return the state of one producer id."""
        return self._producers.get(producer_id)

    @property
    def first_undecided_offset(self) -> int | None:
        """First offset of the oldest open transaction."""
        return next(iter(self._ongoing_txns)) if self._ongoing_txns else None

    @property
    def first_unstable_offset(self) -> int | None:
        """First offset of a transaction that is open, or decided at or above the high watermark [PRD-4]."""
        if self._ongoing_txns:
            oldest = next(iter(self._ongoing_txns))
            return min(oldest, self._unreplicated_txns[0][1]) if self._unreplicated_txns else oldest
        return self._unreplicated_txns[0][1] if self._unreplicated_txns else None

    def iter_open_transactions(self) -> Iterator[tuple[int, int]]:
        """Return first offset and producer id of every open transaction, oldest first."""
        return iter(self._ongoing_txns.items())

    # -- data ---------------------------------------------------------------------------------------

    def check_batch(
        self,
        header: BatchHeader,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        verification: VerificationStateEntry | None = None,
    ) -> Accepted | DuplicateBatch | Reject:
        """Check whether a data batch may be appended.

        Rejects with INVALID_PRODUCER_EPOCH, OUT_OF_ORDER_SEQUENCE_NUMBER, INVALID_TXN_STATE.
        Cost: constant.
        """
        state = self._producers.get(header.producer_id)
        if (
            state is not None
            and header.producer_epoch == state.epoch
            and header.base_sequence == state.next_sequence
            and (header.attributes & TRANSACTIONAL_BIT != 0) is (state.current_txn_first_offset is not None)
            and header.producer_id not in self._verifications
        ):
            # Fast path: the next expected batch. It cannot be a duplicate, because the sequence numbers of
            # the five cached batches lie before it.
            return ACCEPTED
        if header.producer_id < 0 or origin is AppendOrigin.REPLICATION:
            return ACCEPTED
        return self._check_unusual(header, state, origin, verification)

    def _check_unusual(
        self,
        header: BatchHeader,
        state: ProducerStateEntry | None,
        origin: AppendOrigin,
        verification: VerificationStateEntry | None,
    ) -> Accepted | DuplicateBatch | Reject:
        # KIP-98: a retry of an appended batch gets its first offsets, so that a lost response does no harm.
        if origin is AppendOrigin.CLIENT and state is not None:
            duplicate = _find_duplicate(header, state)
            if duplicate is not None:
                return duplicate
        if state is not None and header.producer_epoch < state.epoch:
            # KIP-98 fences older epochs. KAFKA-10687: producers get 47 (INVALID_PRODUCER_EPOCH) instead of 90
            # (PRODUCER_FENCED), so that they may abort and continue.
            return _reject_old_epoch(header, state)
        is_transactional = header.is_transactional
        in_transaction = state is not None and state.current_txn_first_offset is not None
        is_current = in_transaction and state is not None and state.epoch == header.producer_epoch
        pending = self._verifications.get(header.producer_id)
        needs_verification = self.verification_required or verification is not None
        is_verified = verification is not None and verification is pending
        # KIP-890 part 1: the first batch of a transaction must be verified with the coordinator.
        if needs_verification and is_transactional and not is_current and not is_verified:
            return Reject(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {header.producer_id} has no open transaction with epoch {header.producer_epoch}"
                " here, and the coordinator has not verified this batch; nothing was appended. Abort the"
                " transaction",
            )
        if origin is AppendOrigin.CLIENT:
            out_of_order = _check_sequence(header, state, pending)
            if out_of_order is not None:
                return out_of_order
        if in_transaction and state is not None and is_transactional and not is_current:
            return _reject_unfinished_txn(state, header.producer_epoch)
        # ProducerAppendInfo: an open transaction admits no non-transactional batch.
        if in_transaction and not is_transactional:
            return Reject(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {header.producer_id} has an open transaction in this partition and sent a batch"
                " outside of it; nothing was appended. End the transaction first",
            )
        return ACCEPTED

    def apply_batch(self, header: BatchHeader, base_offset: int, timestamp_ms: int) -> None:
        """Update the state with a batch appended at `base_offset`; batches come in offset order.

        Args:
            timestamp_ms: the largest in the batch as it was appended.
        Cost: constant.
        """
        producer_id = header.producer_id
        if producer_id < 0:
            return
        state = self._producers.get(producer_id)
        if state is None:
            state = self._producers[producer_id] = ProducerStateEntry(producer_id, header.producer_epoch)
        elif state.epoch != header.producer_epoch:
            _begin_epoch(state, header.producer_epoch)
        batches = state.batches
        if len(batches) == PRODUCER_BATCHES_CACHED:
            del batches[0]
        batches.append(_make_cached_batch(header, base_offset, timestamp_ms))
        if header.base_sequence >= 0:
            state.next_sequence = (header.base_sequence + header.last_offset_delta + 1) & INT32_MAX
        else:
            state.next_sequence = 0
        state.last_timestamp_ms = timestamp_ms
        state.has_written = True
        if header.attributes & TRANSACTIONAL_BIT:
            self._verifications.pop(producer_id, None)
            if state.current_txn_first_offset is None:
                check(base_offset not in self._ongoing_txns, f"offset {base_offset} opens two transactions")
                state.current_txn_first_offset = base_offset
                self._ongoing_txns[base_offset] = producer_id

    # -- markers ------------------------------------------------------------------------------------

    def check_marker(
        self,
        header: BatchHeader,
        marker: EndTransactionMarker,
        transaction_version: int,
        *,
        txn_start_offset: int | None = None,
    ) -> Accepted | Reject:
        """Check whether a transaction marker may be appended.

        Under transaction version 2 a marker has a higher epoch than the data it ends. A marker of the same
        epoch is a retry if no transaction is open, and is written again; it is also accepted when the epochs
        are exhausted. Source: KIP-890 part 2; KIP-1228; KAFKA-19999.

        Args:
            txn_start_offset: the marker may only end the transaction that began there, and must have its
                epoch (KIP-664); None: whichever is open.
        Rejects with INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED, INVALID_TXN_STATE.
        """
        state = self._producers.get(header.producer_id)
        if txn_start_offset is not None:
            return _check_guarded_marker(header, state, txn_start_offset)
        # KIP-98: a coordinator may end a transaction whose producer never wrote to this partition.
        if state is None:
            return ACCEPTED
        epoch = header.producer_epoch
        same_is_fine = (
            transaction_version < EPOCH_BUMP_VERSION
            or state.current_txn_first_offset is None
            or epoch == EPOCH_MAX
        )
        if epoch < state.epoch or (epoch == state.epoch and not same_is_fine):
            return Reject(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"the marker of producer {header.producer_id} has epoch {epoch}, but this partition has"
                f" epoch {state.epoch} (transaction version {transaction_version}); it was not written",
            )
        # KIP-98, ProducerAppendInfo.checkCoordinatorEpoch: a replaced coordinator writes no marker.
        if state.coordinator_epoch is not None and marker.coordinator_epoch < state.coordinator_epoch:
            return Reject(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"a marker of producer {header.producer_id} has coordinator epoch"
                f" {marker.coordinator_epoch}, but this partition has {state.coordinator_epoch}; it was not"
                " written",
            )
        return ACCEPTED

    def apply_marker(
        self,
        header: BatchHeader,
        marker: EndTransactionMarker,
        offset: int,
        timestamp_ms: int,
        *,
        transaction_version: int = 0,
    ) -> CompletedTxn | None:
        """Update the state with a marker appended at `offset`.

        Args:
            transaction_version: the version whose epoch rules the marker follows. Only verifications depend
                on it, and a replay has none.
        Returns: the transaction it ended; None if none was open, and then no index entry is due.
        """
        producer_id = header.producer_id
        state = self._producers.get(producer_id)
        if state is None:
            state = self._producers[producer_id] = ProducerStateEntry(producer_id, header.producer_epoch)
        elif state.epoch != header.producer_epoch:
            _begin_epoch(state, header.producer_epoch)
        if marker.coordinator_epoch >= 0:  # -1: an operator's abort (KIP-664) comes from no coordinator
            state.coordinator_epoch = marker.coordinator_epoch
        state.last_timestamp_ms = timestamp_ms
        verification = self._verifications.get(producer_id)
        if verification is not None and not verification.is_after_marker(
            header.producer_epoch, transaction_version
        ):
            del self._verifications[producer_id]
        first_offset, state.current_txn_first_offset = state.current_txn_first_offset, None
        if first_offset is None:
            return None
        del self._ongoing_txns[first_offset]
        while self._unreplicated_txns and self._unreplicated_txns[-1][1] > first_offset:
            self._unreplicated_txns.pop()
        self._unreplicated_txns.append((offset, first_offset))
        first_undecided = self.first_undecided_offset
        return CompletedTxn(
            producer_id=producer_id,
            first_offset=first_offset,
            last_offset=offset,
            last_stable_offset=offset + 1 if first_undecided is None else first_undecided,
            is_aborted=marker.control_type is ControlType.ABORT,
        )

    def on_high_watermark_updated(self, high_watermark: int) -> None:
        """Forget decided transactions whose marker is now below the high watermark."""
        unreplicated = self._unreplicated_txns
        while unreplicated and unreplicated[0][0] < high_watermark:
            unreplicated.popleft()

    # -- verification ---------------------------------------------------------------------------------

    def begin_verification(
        self, header: BatchHeader, *, supports_epoch_bump: bool, now_ms: int
    ) -> VerificationStateEntry | Reject | None:
        """Return the guard to verify a transaction's first batch with at the coordinator.

        Args:
            supports_epoch_bump: the broker adds the partition on the client's behalf (Produce 12+).
        Returns: None if the transaction is already open here, so that no verification is needed.
        Rejects with INVALID_PRODUCER_EPOCH.
        """
        producer_id, epoch = header.producer_id, header.producer_epoch
        state = self._producers.get(producer_id)
        if state is not None and epoch < state.epoch:
            return _reject_old_epoch(header, state)
        # KIP-890 part 1: only the first batch of a transaction in a partition is verified.
        if state is not None and state.current_txn_first_offset is not None and epoch == state.epoch:
            return None
        verification = self._verifications.get(producer_id)
        if verification is None:
            verification = VerificationStateEntry(header.base_sequence, epoch, supports_epoch_bump, now_ms)
            self._verifications[producer_id] = verification
        verification.update_lowest_sequence(header.base_sequence, epoch)
        return verification

    def drop_verification(self, producer_id: int, verification: VerificationStateEntry) -> None:
        """Drop one request's claim to a verification that the coordinator refused for an unknown producer.

        Any client can invent a producer id, so nothing is kept for it. A client that uses the producer id of
        another gets the same answer, so the guard stays while other requests, perhaps the owner's, wait for
        it.
        """
        verification.request_count -= 1
        if not verification.request_count and self._verifications.get(producer_id) is verification:
            del self._verifications[producer_id]

    # -- expiry, snapshots ------------------------------------------------------------------------------

    def remove_expired(self, now_ms: int, expiration_ms: int) -> int:
        """Forget producers silent for `expiration_ms`, never one with an open transaction [PRD-5].

        A producer is silent while it appends nothing, whatever its record timestamps are: a producer that
        writes last year's history keeps its duplicate detection as long as any other. Kafka uses record
        timestamps (docs/adr/0007); here they count only where no append was seen, after a replay [PRD-10].

        Returns: the number of producers forgotten. Cost: linear.
        """
        for state in self._producers.values():
            if state.has_written:
                state.has_written, state.last_seen_ms = False, now_ms
        idle = [
            state.producer_id
            for state in self._producers.values()
            if state.current_txn_first_offset is None
            and now_ms - max(state.last_timestamp_ms, state.last_seen_ms) >= expiration_ms
        ]
        for producer_id in idle:
            del self._producers[producer_id]
        verifications = self._verifications.items()
        for producer_id in [pid for pid, each in verifications if now_ms - each.started_ms >= expiration_ms]:
            del self._verifications[producer_id]
        return len(idle)

    def finish_replay(self) -> None:
        """Mark replayed batches as appended by an earlier process: `remove_expired` uses their timestamps."""
        for state in self._producers.values():
            state.has_written = False

    def take_snapshot(self) -> tuple[ProducerSnapshotEntry, ...]:
        """Return the entries of a `.snapshot` file at the log end. Cost: linear in producers."""
        return tuple(state.to_snapshot_entry() for state in self._producers.values())

    @classmethod
    def from_snapshot(
        cls, entries: Iterable[ProducerSnapshotEntry], *, verification_required: bool = False
    ) -> "ProducerStateManager":
        """Restore the state from a snapshot; the log from the snapshot's offset on is then applied to it."""
        states = cls(verification_required=verification_required)
        ongoing_txns: list[tuple[int, int]] = []
        for entry in entries:
            state = ProducerStateEntry(entry.producer_id, entry.epoch)
            if entry.last_batch is not None:
                state.batches.append(entry.last_batch)
                state.next_sequence = _get_next_sequence(entry.last_batch)
            state.last_timestamp_ms = entry.last_timestamp_ms
            state.coordinator_epoch = entry.coordinator_epoch
            state.current_txn_first_offset = entry.current_txn_first_offset
            states._producers[entry.producer_id] = state
            if entry.current_txn_first_offset is not None:
                ongoing_txns.append((entry.current_txn_first_offset, entry.producer_id))
        states._ongoing_txns = OrderedDict(sorted(ongoing_txns))
        return states

    def restore_cached_batches(self, headers: Iterable[BatchHeader]) -> None:
        """Refill the five cached batches of each producer from batches below the loaded snapshot.

        A snapshot holds only the last batch of each producer, but a client may have five in flight when the
        broker stops: without this, retries of the first four would be out of order.
        Kafka does not look back; see docs/adr/0007 [PRD-6].

        Args:
            headers: of the log's end before the snapshot, in offset order; control batches are skipped.
        """
        earlier: dict[int, deque[CachedBatch]] = {}
        for header in headers:
            state = self._producers.get(header.producer_id)
            if state is None or state.epoch != header.producer_epoch or header.is_control:
                continue
            if not state.batches or header.base_offset >= state.batches[0].first_offset:
                continue
            cached = earlier.setdefault(header.producer_id, deque(maxlen=PRODUCER_BATCHES_CACHED - 1))
            cached.append(_make_cached_batch(header, header.base_offset, header.max_timestamp))
        for producer_id, cached in earlier.items():
            batches = self._producers[producer_id].batches
            for batch in reversed(cached):
                in_order = batches[0].first_sequence == _get_next_sequence(batch)
                if len(batches) == PRODUCER_BATCHES_CACHED or not in_order:
                    break
                batches.insert(0, batch)


def update_producers(
    states: ProducerStateManager,
    header: BatchHeader,
    data: bytes | bytearray | memoryview,
    offset: int,
    *,
    transaction_version: int = 0,
) -> AbortedTxn | None:
    """Apply an appended batch, live and on replay alike; return the transaction that it aborted, if any."""
    if not header.is_control:
        states.apply_batch(header, offset, header.max_timestamp)
        return None
    marker = read_marker(data)
    if marker is None:
        return None
    txn = states.apply_marker(
        header, marker, offset, header.max_timestamp, transaction_version=transaction_version
    )
    return txn.to_aborted_txn() if txn is not None and txn.is_aborted else None


def _make_cached_batch(header: BatchHeader, base_offset: int, timestamp_ms: int) -> CachedBatch:
    last_offset = base_offset + header.last_offset_delta
    first_sequence = header.base_sequence
    if first_sequence < 0:
        return CachedBatch(None, None, base_offset, last_offset, timestamp_ms)
    last_sequence = (first_sequence + header.last_offset_delta) & INT32_MAX  # [PRD-3]
    return CachedBatch(first_sequence, last_sequence, base_offset, last_offset, timestamp_ms)


def _get_next_sequence(batch: CachedBatch) -> int:
    return 0 if batch.last_sequence is None else (batch.last_sequence + 1) & INT32_MAX


def _begin_epoch(state: ProducerStateEntry, epoch: int) -> None:
    # Sequence numbers restart at 0 with each epoch, so the cached batches do not apply to it.
    state.epoch = epoch
    state.batches.clear()
    state.next_sequence = 0


def _check_guarded_marker(
    header: BatchHeader, state: ProducerStateEntry | None, txn_start_offset: int
) -> Accepted | Reject:
    # KIP-664: "The partition leader will accept the request only if there is an open transaction beginning
    # at the offset specified in the request. Additionally we require the producer epoch in the request to
    # exactly match the latest value." The coordinator epoch is not compared, since no
    # coordinator sent it.
    if state is None or state.current_txn_first_offset != txn_start_offset:
        first_offset = None if state is None else state.current_txn_first_offset
        return Reject(
            ErrorCode.INVALID_TXN_STATE,
            f"producer {header.producer_id} has no transaction that begins at offset {txn_start_offset}:"
            f" {'none is open' if first_offset is None else f'its open one begins at {first_offset}'};"
            " nothing was aborted. List the hanging transactions again",
        )
    if header.producer_epoch != state.epoch:
        return Reject(
            ErrorCode.INVALID_PRODUCER_EPOCH,
            f"the transaction of producer {header.producer_id} at offset {txn_start_offset} has epoch"
            f" {state.epoch}, not {header.producer_epoch}; nothing was aborted. List the hanging"
            " transactions again",
        )
    return ACCEPTED


def _reject_old_epoch(header: BatchHeader, state: ProducerStateEntry) -> Reject:
    return Reject(
        ErrorCode.INVALID_PRODUCER_EPOCH,
        f"producer {header.producer_id} writes with epoch {header.producer_epoch}, but this partition has"
        f" epoch {state.epoch}; nothing was appended. Abort the transaction, or close this producer if"
        " another one has its transactional id",
    )


def _reject_unfinished_txn(state: ProducerStateEntry, epoch: int) -> Reject:
    """Reject a batch of a new epoch whose producer still has a transaction of the old epoch open.

    The marker always comes before the first batch of the next epoch. But power loss can remove the marker,
    and the next marker must not decide two transactions at once [PRD-8].
    """
    return Reject(
        ErrorCode.INVALID_TXN_STATE,
        f"producer {state.producer_id} writes with epoch {epoch}, but its transaction of epoch"
        f" {state.epoch}, open since offset {state.current_txn_first_offset}, has no marker in this"
        " partition; nothing was appended. An operator can abort it",
    )


def _is_before(sequence: int, other: int) -> bool:
    """Compare sequence numbers of concurrent batches, which are never far apart: 2147483647 is before 0."""
    return 0 < (other - sequence) & INT32_MAX < 2**30


def _find_duplicate(header: BatchHeader, state: ProducerStateEntry) -> DuplicateBatch | None:
    if header.producer_epoch != state.epoch or header.base_sequence < 0:
        return None
    # Both sequence numbers must be equal: clients retry whole batches [PRD-2].
    first, last = header.base_sequence, header.last_sequence
    batches: Iterable[CachedBatch] = state.batches
    if header.is_transactional:
        # Before transaction version 2 an epoch has many transactions. A client that missed the response and
        # aborted may reuse sequence numbers of the ended transaction for other records. Answered as
        # duplicates, they would be lost silently, as on Apache Kafka. Stricter on purpose, see
        # docs/adr/0007 [PRD-9].
        first_offset = state.current_txn_first_offset
        batches = () if first_offset is None else (b for b in batches if b.first_offset >= first_offset)
    for batch in batches:
        if batch.first_sequence == first and batch.last_sequence == last:
            return DuplicateBatch(batch.first_offset, batch.last_offset, batch.timestamp_ms)
    return None


def _check_sequence(
    header: BatchHeader, state: ProducerStateEntry | None, verification: VerificationStateEntry | None
) -> Reject | None:
    sequence = header.base_sequence
    if verification is not None:
        if verification.supports_epoch_bump and sequence != 0 and (state is None or not state.batches):
            # KAFKA-18202: a first sequence other than 0 means that an earlier batch was lost.
            return _reject_out_of_order(header, "0, its first in this partition")
        same_epoch = verification.epoch == header.producer_epoch
        if same_epoch and _is_before(verification.lowest_sequence, sequence):
            return _reject_out_of_order(header, f"at most {verification.lowest_sequence}, which came before")
    # KIP-360: without producer state any first sequence is accepted.
    if state is None:
        return None
    # ProducerAppendInfo.checkSequence: a new epoch begins at sequence 0.
    if header.producer_epoch != state.epoch:
        return None if sequence == 0 else _reject_out_of_order(header, f"0, as epoch {state.epoch} has ended")
    return None if sequence == state.next_sequence else _reject_out_of_order(header, str(state.next_sequence))


def _reject_out_of_order(header: BatchHeader, expected: str) -> Reject:
    return Reject(
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        f"producer {header.producer_id} at epoch {header.producer_epoch} sent sequence"
        f" {header.base_sequence}, expected {expected}; nothing was appended",
    )
