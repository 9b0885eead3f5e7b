"""What a partition leader knows about the producers that write to it, and what it therefore refuses.

For each producer id: the epoch, the last five batches, whether a transaction is open and since which
offset, and the coordinator epoch of its last marker. From this follow

* duplicates: a batch that is one of the five is answered with the offsets it already has; one of a
  transaction only as long as that transaction is open;
* order: sequence numbers have no gap within an epoch, 2147483647 is followed by 0, and a new epoch
  begins at 0. A producer id without state may begin anywhere: retention or expiry has removed what
  was known. Only a transaction that the broker itself adds (KIP-890 part 2) must begin at 0;
* fencing: an older epoch writes nothing, a replaced coordinator's marker ends nothing;
* the last stable offset: nothing at or above the first offset of an open transaction is stable, nor
  of a decided one whose marker has not passed the high watermark.

Checks read; `apply` and `apply_marker` change, live and on replay alike, so that a replay of the log
gives the same state [PRD-1]. Verifications are the exception: they live in memory alone, as a lost
one only makes the producer ask again.

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
from tallystick.kernel.ids import INT32_MAX
from tallystick.kernel.limits import EPOCH_MAX, PRODUCER_BATCHES_CACHED
from tallystick.kernel.value import frozen
from tallystick.protocol.records.batch import TRANSACTIONAL_BIT, BatchHeader
from tallystick.protocol.records.control import ControlType, Marker
from tallystick.storage.aborted import AbortedTxn
from tallystick.storage.snapshots import CachedBatch, ProducerEntry

# KIP-892's buffer above transaction.max.timeout.ms before a transaction counts as late.
LATE_TRANSACTION_BUFFER_MS: Final = 5 * 60 * 1000

# From this transaction version on, a marker carries an epoch above that of the data (KIP-890).
EPOCH_BUMP_VERSION: Final = 2


class AppendOrigin(Enum):
    """Who appends, which decides how much is checked."""

    CLIENT = auto()  # everything
    COORDINATOR = auto()  # no sequence numbers: the group coordinator has none
    DECISION = auto()  # as COORDINATOR, and neither size nor room: what is begun must be possible to end
    REPLICATION = auto()  # nothing: it was checked where it came from


@frozen
class Accepted:
    """The batch or marker may be appended."""


@frozen
class Duplicate:
    """The batch is in the log already; answer with what it got."""

    base_offset: int
    last_offset: int
    timestamp_ms: int


ACCEPTED: Final = Accepted()


@frozen(kw_only=True)
class CompletedTxn:
    """A marker ended a transaction that had records here.

    `last_stable_offset`: first offset of the oldest transaction still open, or the one after the marker.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int
    is_aborted: bool

    def as_aborted(self) -> AbortedTxn:
        """The entry for the segment's transaction index."""
        return AbortedTxn(self.producer_id, self.first_offset, self.last_offset, self.last_stable_offset)


class Verification:
    """A question to the coordinator, whether a transaction includes this partition, on its way.

    The object itself is the guard: whoever appends the first batch of the transaction shows the very
    object that this partition handed out, so that an answer to an earlier question opens nothing
    (ABA). Batches that are asked about at a time share it. Source: KIP-890 part 1; VerificationStateEntry.

    asked  how many were; one that is refused for good must not take the guard from the others
    """

    __slots__ = ("asked", "epoch", "lowest_sequence", "started_ms", "supports_epoch_bump")

    def __init__(self, sequence: int, epoch: int, supports_epoch_bump: bool, started_ms: int) -> None:
        self.lowest_sequence = sequence
        self.epoch = epoch
        self.supports_epoch_bump = supports_epoch_bump
        self.started_ms = started_ms
        self.asked = 0

    def follows(self, marker_epoch: int, transaction_version: int) -> bool:
        """Is the question about a transaction that begins behind such a marker?

        Where every end moves the epoch, the pair that signs the marker is the next transaction's. Its client
        was told so when the end was decided, so its first batch may be here before the marker is (KIP-890).
        """
        return transaction_version >= EPOCH_BUMP_VERSION and self.epoch >= marker_epoch

    def observe(self, sequence: int, epoch: int) -> None:
        """Remember the lowest sequence asked for: a later batch must not overtake it into the log."""
        self.asked += 1
        if epoch > self.epoch:
            self.epoch, self.lowest_sequence = epoch, sequence
        elif epoch == self.epoch and _is_before(sequence, self.lowest_sequence):
            self.lowest_sequence = sequence


class ProducerState:
    """One producer id as the partition knows it. Read by others, changed by ProducerStates alone."""

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "epoch",
        "last_timestamp_ms",
        "next_sequence",
        "producer_id",
        "seen_ms",
        "txn_first_offset",
        "wrote",
    )

    def __init__(self, producer_id: int, epoch: int) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.batches: list[CachedBatch] = []  # oldest first; of this epoch alone
        self.next_sequence = 0
        self.last_timestamp_ms = -1  # of data or marker: KAFKA-9144
        self.wrote = False  # data was appended since `expire` looked last
        self.seen_ms = -1  # the broker's time when `expire` last met it so
        self.coordinator_epoch: int | None = None
        self.txn_first_offset: int | None = None

    @property
    def last_sequence(self) -> int | None:
        return self.batches[-1].last_sequence if self.batches else None

    @property
    def last_data_offset(self) -> int | None:
        """Offset of its last record that is still known; the cleaner keeps that batch."""
        return self.batches[-1].last_offset if self.batches else None

    def as_entry(self) -> ProducerEntry:
        return ProducerEntry(
            producer_id=self.producer_id,
            epoch=self.epoch,
            last_batch=self.batches[-1] if self.batches else None,
            last_timestamp_ms=self.last_timestamp_ms,
            coordinator_epoch=self.coordinator_epoch,
            txn_first_offset=self.txn_first_offset,
        )


class ProducerStates:
    """All producers of one partition. Owned by its log, used by one thread.

    `verification_required` is Kafka's `transaction.partition.verification.enable`: the first
    transactional batch must then present the Verification that `begin_verification` gave. Whoever presents
    one presents the right one, required or not [PRD-7].
    """

    __slots__ = ("_decided", "_open", "_states", "_verifications", "verification_required")

    def __init__(self, *, verification_required: bool = False) -> None:
        self.verification_required = verification_required
        self._states: dict[int, ProducerState] = {}
        self._verifications: dict[int, Verification] = {}
        # First offset -> producer id of each open transaction. Transactions are opened by appends,
        # so insertion order is offset order; OrderedDict, because a dict looks for its first key
        # through all the removed ones.
        self._open: OrderedDict[int, int] = OrderedDict()
        # (marker offset, first offset) of decided transactions whose marker has not passed the high
        # watermark; both ascend. A transaction that began after one decided later is left out: as
        # long as it counts, so does the other.
        self._decided: deque[tuple[int, int]] = deque()

    # -- what is known ----------------------------------------------------------------------------

    @property
    def active(self) -> Mapping[int, ProducerState]:
        """Every known producer by its id: DescribeProducers, the cleaner."""
        return MappingProxyType(self._states)

    @property
    def first_undecided_offset(self) -> int | None:
        """First offset of the oldest open transaction."""
        return next(iter(self._open)) if self._open else None

    @property
    def first_unstable_offset(self) -> int | None:
        """Below it every transaction is decided, and the decision is below the high watermark [PRD-4]."""
        if self._open:
            undecided = next(iter(self._open))
            return min(undecided, self._decided[0][1]) if self._decided else undecided
        return self._decided[0][1] if self._decided else None

    @property
    def verifications(self) -> int:
        """How many questions to the coordinator have led to no append yet."""
        return len(self._verifications)

    def open_transactions(self) -> Iterator[tuple[int, int]]:
        """First offset and producer id of every open transaction, oldest first."""
        return iter(self._open.items())

    def has_late_transaction(self, now_ms: int, transaction_timeout_ms_max: int) -> bool:
        """Whether the oldest open transaction has been silent longer than any coordinator waits.

        Source: KIP-664; ProducerStateManager.hasLateTransaction.
        """
        if not self._open:
            return False
        state = self._states[next(iter(self._open.values()))]
        silent_ms = now_ms - state.last_timestamp_ms
        return state.last_timestamp_ms > 0 and silent_ms > (
            transaction_timeout_ms_max + LATE_TRANSACTION_BUFFER_MS
        )

    # -- data ---------------------------------------------------------------------------------------

    def check(
        self,
        header: BatchHeader,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        verification: Verification | None = None,
    ) -> Accepted | Duplicate | Reject:
        """Whether a batch of data, not yet in the log, may be appended.

        Rejects with INVALID_PRODUCER_EPOCH, OUT_OF_ORDER_SEQUENCE_NUMBER, INVALID_TXN_STATE.
        Cost: constant.
        """
        state = self._states.get(header.producer_id)
        if (
            state is not None
            and header.producer_epoch == state.epoch
            and header.base_sequence == state.next_sequence
            and (header.attributes & TRANSACTIONAL_BIT != 0) is (state.txn_first_offset is not None)
            and header.producer_id not in self._verifications
        ):
            # The next batch of a producer that has done nothing unusual. It is none of the five: their
            # sequence numbers lie before this one.
            return ACCEPTED
        if header.producer_id < 0 or origin is AppendOrigin.REPLICATION:
            return ACCEPTED
        return self._check_unusual(header, state, origin, verification)

    def _check_unusual(
        self,
        header: BatchHeader,
        state: ProducerState | None,
        origin: AppendOrigin,
        verification: Verification | None,
    ) -> Accepted | Duplicate | Reject:
        if origin is AppendOrigin.CLIENT and state is not None:
            duplicate = _find_duplicate(header, state)
            if duplicate is not None:
                return duplicate
        if state is not None and header.producer_epoch < state.epoch:
            # KAFKA-10687: 47 and not 90 towards producers, who may then abort and go on.
            return Reject(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {header.producer_id} writes with epoch {header.producer_epoch},"
                f" epoch {state.epoch} was seen here",
            )
        transactional = header.is_transactional
        in_transaction = state is not None and state.txn_first_offset is not None
        current = in_transaction and state is not None and state.epoch == header.producer_epoch
        expected = self._verifications.get(header.producer_id)
        asked = self.verification_required or verification is not None
        verified = verification is not None and verification is expected
        if asked and transactional and not current and not verified:
            return Reject(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {header.producer_id} has no transaction open here at epoch"
                f" {header.producer_epoch}, and this batch was not verified to start one",
            )
        if origin is AppendOrigin.CLIENT:
            out_of_order = _check_sequence(header, state, expected)
            if out_of_order is not None:
                return out_of_order
        if in_transaction and state is not None and transactional and not current:
            return _overdue(state, header.producer_epoch)
        if in_transaction and not transactional:
            return Reject(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {header.producer_id} has a transaction open here"
                " and sent a batch that is not part of it",
            )
        return ACCEPTED

    def apply(self, header: BatchHeader, base_offset: int, timestamp_ms: int) -> None:
        """Take in a batch that is now in the log at `base_offset`; batches come in offset order.

        Args:
            timestamp_ms: the largest in the batch as it was appended.
        Cost: constant.
        """
        producer_id = header.producer_id
        if producer_id < 0:
            return
        state = self._states.get(producer_id)
        if state is None:
            state = self._states[producer_id] = ProducerState(producer_id, header.producer_epoch)
        elif state.epoch != header.producer_epoch:
            _begin_epoch(state, header.producer_epoch)
        batches = state.batches
        if len(batches) == PRODUCER_BATCHES_CACHED:
            del batches[0]
        batches.append(_as_cached(header, base_offset, timestamp_ms))
        if header.base_sequence >= 0:
            state.next_sequence = (header.base_sequence + header.last_offset_delta + 1) & INT32_MAX
        else:
            state.next_sequence = 0
        state.last_timestamp_ms = timestamp_ms
        state.wrote = True
        if header.attributes & TRANSACTIONAL_BIT:
            self._verifications.pop(producer_id, None)
            if state.txn_first_offset is None:
                check(base_offset not in self._open, f"offset {base_offset} opens two transactions")
                state.txn_first_offset = base_offset
                self._open[base_offset] = producer_id

    # -- markers ------------------------------------------------------------------------------------

    def check_marker(
        self,
        header: BatchHeader,
        marker: Marker,
        transaction_version: int,
        *,
        txn_start_offset: int | None = None,
    ) -> Accepted | Reject:
        """Whether a marker, not yet in the log, may be appended.

        Under transaction version 2 a marker is newer than the data it ends. One of the same epoch is
        a repetition if nothing is open, and is written again; with the epochs used up there is no
        newer one. Source: KIP-890 part 2; KIP-1228; KAFKA-19999.

        Args:
            txn_start_offset: the marker is for the transaction that began there and for no other one, and
                has its epoch (KIP-664); None: whatever is open.
        Rejects with INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED, INVALID_TXN_STATE.
        """
        state = self._states.get(header.producer_id)
        if txn_start_offset is not None:
            return _check_guarded(header, state, txn_start_offset)
        if state is None:
            return ACCEPTED
        epoch = header.producer_epoch
        same_is_fine = (
            transaction_version < EPOCH_BUMP_VERSION or state.txn_first_offset is None or epoch == EPOCH_MAX
        )
        if epoch < state.epoch or (epoch == state.epoch and not same_is_fine):
            return Reject(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"marker of producer {header.producer_id} has epoch {epoch}, epoch {state.epoch} was seen"
                f" here, transaction version is {transaction_version}",
            )
        if state.coordinator_epoch is not None and marker.coordinator_epoch < state.coordinator_epoch:
            return Reject(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"marker of producer {header.producer_id} has coordinator epoch"
                f" {marker.coordinator_epoch}, {state.coordinator_epoch} was seen here",
            )
        return ACCEPTED

    def apply_marker(
        self,
        header: BatchHeader,
        marker: Marker,
        offset: int,
        timestamp_ms: int,
        *,
        transaction_version: int = 0,
    ) -> CompletedTxn | None:
        """Take in a marker that is now in the log at `offset`.

        Args:
            transaction_version: whose rules its epoch follows. It matters to verifications alone, which a
                replay knows nothing of.
        Returns: the transaction it ended; None if nothing was open, and then no index entry is due.
        """
        producer_id = header.producer_id
        state = self._states.get(producer_id)
        if state is None:
            state = self._states[producer_id] = ProducerState(producer_id, header.producer_epoch)
        elif state.epoch != header.producer_epoch:
            _begin_epoch(state, header.producer_epoch)
        if marker.coordinator_epoch >= 0:
            state.coordinator_epoch = marker.coordinator_epoch
        state.last_timestamp_ms = timestamp_ms
        asked = self._verifications.get(producer_id)
        if asked is not None and not asked.follows(header.producer_epoch, transaction_version):
            del self._verifications[producer_id]
        first_offset, state.txn_first_offset = state.txn_first_offset, None
        if first_offset is None:
            return None
        del self._open[first_offset]
        while self._decided and self._decided[-1][1] > first_offset:
            self._decided.pop()
        self._decided.append((offset, first_offset))
        undecided = self.first_undecided_offset
        return CompletedTxn(
            producer_id=producer_id,
            first_offset=first_offset,
            last_offset=offset,
            last_stable_offset=offset + 1 if undecided is None else undecided,
            is_aborted=marker.type is ControlType.ABORT,
        )

    def advance_high_watermark(self, high_watermark: int) -> None:
        """Markers below it count; what they decided holds the last stable offset back no longer."""
        decided = self._decided
        while decided and decided[0][0] < high_watermark:
            decided.popleft()

    # -- verification ---------------------------------------------------------------------------------

    def begin_verification(
        self, header: BatchHeader, *, supports_epoch_bump: bool, now_ms: int
    ) -> Verification | Reject | None:
        """Before the first batch of a transaction: the guard to ask the coordinator with.

        Args:
            supports_epoch_bump: the broker adds the partition on the client's behalf (Produce 12+).
        Returns: None if the transaction is open here, so that nothing needs to be asked.
        Rejects with INVALID_PRODUCER_EPOCH.
        """
        producer_id, epoch = header.producer_id, header.producer_epoch
        state = self._states.get(producer_id)
        if state is not None and epoch < state.epoch:
            return Reject(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {producer_id} starts with epoch {epoch}, epoch {state.epoch} was seen here",
            )
        if state is not None and state.txn_first_offset is not None and epoch == state.epoch:
            return None
        found = self._verifications.get(producer_id)
        if found is None:
            found = Verification(header.base_sequence, epoch, supports_epoch_bump, now_ms)
            self._verifications[producer_id] = found
        found.observe(header.base_sequence, epoch)
        return found

    def drop_verification(self, producer_id: int, verification: Verification) -> None:
        """The coordinator does not know who asked: nothing of that is kept, as anybody may make one up.

        Whoever names somebody else's producer id is told the same, and its owner may be waiting.
        """
        verification.asked -= 1
        if not verification.asked and self._verifications.get(producer_id) is verification:
            del self._verifications[producer_id]

    # -- expiry, snapshots ------------------------------------------------------------------------------

    def expire(self, now_ms: int, expiration_ms: int) -> int:
        """Forget producers silent for `expiration_ms`, never one with an open transaction [PRD-5].

        Silent is who appends nothing. Records may be of any time: whoever writes the history of last year
        is no more silent than others, and its repetitions are known as long. Kafka asks the records alone
        (docs/adr/0007). They count where no append was seen: after a replay [PRD-10].

        Returns: how many were forgotten. Cost: linear.
        """
        for state in self._states.values():
            if state.wrote:
                state.wrote, state.seen_ms = False, now_ms
        idle = [
            state.producer_id
            for state in self._states.values()
            if state.txn_first_offset is None
            and now_ms - max(state.last_timestamp_ms, state.seen_ms) >= expiration_ms
        ]
        for producer_id in idle:
            del self._states[producer_id]
        asked = self._verifications.items()
        for producer_id in [pid for pid, found in asked if now_ms - found.started_ms >= expiration_ms]:
            del self._verifications[producer_id]
        return len(idle)

    def end_replay(self) -> None:
        """What was applied so far was appended in an earlier life: when, its timestamps say alone."""
        for state in self._states.values():
            state.wrote = False

    def take_snapshot(self) -> tuple[ProducerEntry, ...]:
        """What a `.snapshot` file at the log's end holds. Cost: linear in producers."""
        return tuple(state.as_entry() for state in self._states.values())

    @classmethod
    def from_snapshot(
        cls, entries: Iterable[ProducerEntry], *, verification_required: bool = False
    ) -> "ProducerStates":
        """The state a snapshot holds; the log from its offset on is then applied to it."""
        states = cls(verification_required=verification_required)
        opened: list[tuple[int, int]] = []
        for entry in entries:
            state = ProducerState(entry.producer_id, entry.epoch)
            if entry.last_batch is not None:
                state.batches.append(entry.last_batch)
                state.next_sequence = _sequence_after(entry.last_batch)
            state.last_timestamp_ms = entry.last_timestamp_ms
            state.coordinator_epoch = entry.coordinator_epoch
            state.txn_first_offset = entry.txn_first_offset
            states._states[entry.producer_id] = state
            if entry.txn_first_offset is not None:
                opened.append((entry.txn_first_offset, entry.producer_id))
        states._open = OrderedDict(sorted(opened))
        return states

    def recall(self, headers: Iterable[BatchHeader]) -> None:
        """Fill up the five of each producer from batches that lie below the snapshot loaded.

        A snapshot has the last batch of each producer only, and a client may have five on their way
        when the broker ends: without this, the repetition of the first four would be out of order.
        Kafka does not look back; see docs/adr/0007 [PRD-6].

        Args:
            headers: of the log's end before the snapshot, in offset order; control batches are skipped.
        """
        earlier: dict[int, deque[CachedBatch]] = {}
        for header in headers:
            state = self._states.get(header.producer_id)
            if state is None or state.epoch != header.producer_epoch or header.is_control:
                continue
            if not state.batches or header.base_offset >= state.batches[0].first_offset:
                continue
            found = earlier.setdefault(header.producer_id, deque(maxlen=PRODUCER_BATCHES_CACHED - 1))
            found.append(_as_cached(header, header.base_offset, header.max_timestamp))
        for producer_id, found in earlier.items():
            batches = self._states[producer_id].batches
            for batch in reversed(found):
                in_order = batches[0].first_sequence == _sequence_after(batch)
                if len(batches) == PRODUCER_BATCHES_CACHED or not in_order:
                    break
                batches.insert(0, batch)


def _as_cached(header: BatchHeader, base_offset: int, timestamp_ms: int) -> CachedBatch:
    last_offset = base_offset + header.last_offset_delta
    first_sequence = header.base_sequence
    if first_sequence < 0:
        return CachedBatch(None, None, base_offset, last_offset, timestamp_ms)
    last_sequence = (first_sequence + header.last_offset_delta) & INT32_MAX  # [PRD-3]
    return CachedBatch(first_sequence, last_sequence, base_offset, last_offset, timestamp_ms)


def _sequence_after(batch: CachedBatch) -> int:
    return 0 if batch.last_sequence is None else (batch.last_sequence + 1) & INT32_MAX


def _begin_epoch(state: ProducerState, epoch: int) -> None:
    # Sequence numbers are counted per epoch: what is cached says nothing about the new one.
    state.epoch = epoch
    state.batches.clear()
    state.next_sequence = 0


def _check_guarded(
    header: BatchHeader, state: ProducerState | None, txn_start_offset: int
) -> Accepted | Reject:
    # KIP-664: "The partition leader will accept the request only if there is an open transaction beginning
    # at the offset specified in the request. Additionally we require the producer epoch in the request to
    # exactly match the latest value." No coordinator epoch is compared: no coordinator sent it.
    if state is None or state.txn_first_offset != txn_start_offset:
        found = None if state is None else state.txn_first_offset
        return Reject(
            ErrorCode.INVALID_TXN_STATE,
            f"no transaction of producer {header.producer_id} begins at offset {txn_start_offset};"
            f" {'none is open' if found is None else f'the open one begins at {found}'}",
        )
    if header.producer_epoch != state.epoch:
        return Reject(
            ErrorCode.INVALID_PRODUCER_EPOCH,
            f"the transaction of producer {header.producer_id} at offset {txn_start_offset} has epoch"
            f" {state.epoch}, not {header.producer_epoch}",
        )
    return ACCEPTED


def _overdue(state: ProducerState, epoch: int) -> Reject:
    """A marker comes before the next epoch's first batch, always. But power loss can take one, and the next
    must not decide two transactions at once [PRD-8]."""
    return Reject(
        ErrorCode.INVALID_TXN_STATE,
        f"producer {state.producer_id} writes with epoch {epoch}, and its transaction of epoch {state.epoch},"
        f" open since offset {state.txn_first_offset}, has never been ended here",
    )


def _is_before(sequence: int, other: int) -> bool:
    """Of two numbers of batches under way at one time, which are never far apart: 2147483647 is before 0."""
    return 0 < (other - sequence) & INT32_MAX < 2**30


def _find_duplicate(header: BatchHeader, state: ProducerState) -> Duplicate | None:
    if header.producer_epoch != state.epoch or header.base_sequence < 0:
        return None
    # The very same sequence numbers, not some of them: a batch is repeated whole [PRD-2].
    first, last = header.base_sequence, header.last_sequence
    known: Iterable[CachedBatch] = state.batches
    if header.is_transactional:
        # Before transaction version 2 an epoch has many transactions. A client that lost the answer, aborted
        # and counts on from what it knows sends other records under numbers of the one that has ended:
        # answered as a duplicate they would be lost without a word, as on Apache Kafka. Stricter on
        # purpose, see docs/adr/0007 [PRD-9].
        opened = state.txn_first_offset
        known = () if opened is None else (each for each in known if each.first_offset >= opened)
    for batch in known:
        if batch.first_sequence == first and batch.last_sequence == last:
            return Duplicate(batch.first_offset, batch.last_offset, batch.timestamp_ms)
    return None


def _check_sequence(
    header: BatchHeader, state: ProducerState | None, verification: Verification | None
) -> Reject | None:
    sequence = header.base_sequence
    if verification is not None:
        if verification.supports_epoch_bump and sequence != 0 and (state is None or not state.batches):
            # KAFKA-18202: here a first sequence that is not 0 means that an earlier batch was lost.
            return _out_of_order(header, "0, the first of this producer here")
        same_epoch = verification.epoch == header.producer_epoch
        if same_epoch and _is_before(verification.lowest_sequence, sequence):
            return _out_of_order(header, f"at most {verification.lowest_sequence}, seen before")
    if state is None:
        return None
    if header.producer_epoch != state.epoch:
        return None if sequence == 0 else _out_of_order(header, f"0, after epoch {state.epoch}")
    return None if sequence == state.next_sequence else _out_of_order(header, str(state.next_sequence))


def _out_of_order(header: BatchHeader, expected: str) -> Reject:
    return Reject(
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        f"producer {header.producer_id} at epoch {header.producer_epoch} sent sequence"
        f" {header.base_sequence}, expected {expected}",
    )
