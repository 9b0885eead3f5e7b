"""Detection of what a power loss took from transactions, by comparing the transaction log and the partitions.

Under `flush.policy` `os` and `interval` every log may lose its end, and each a different part of it. What is
left may then disagree:

    the marker is gone, the record of the end is there      the partition has a completed transaction open
    the record of the end is gone, a marker is there         the coordinator has an ended transaction open
    the record that added a partition is gone                the partition's transaction is never ended
    the records that bumped the epoch are gone               the coordinator would hand out an epoch twice

Under version 2 a producer id and epoch name one transaction, so each of these can be repaired where enough is
left; no transaction is ended on a guess [TXN-12]. A transaction that no coordinator can end is *hanging*: it
is listed, and its producer id is not used again, as the next marker would end both transactions at once.

Under `ack` only the third happens: a record is on the disk before anything that depends on it is written, but
for the record that adds a partition, which is forced to the disk together with the data (ADR 0050).

Source: no KIP has this; Kafka relies on replicas. KIP-664 for the meaning of hanging; ADR 0019.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum, auto
from types import MappingProxyType
from typing import Final

from msgspec import field

from tallystick.broker.txn.machine.commands import DONE, EntryRemoved, EntryStored, TxnEnv, TxnRecord, TxnStep
from tallystick.broker.txn.machine.model import (
    DecidedPhase,
    ForcedCause,
    IdlePhase,
    OngoingPhase,
    Partitions,
    TransactionResult,
    TxnEntry,
)
from tallystick.broker.txn.machine.producer_epochs import derive_marker_identity, start_producer_id
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import (
    EPOCH_BUMP_VERSION,
    Offset,
    ProducerEpoch,
    ProducerId,
    ProducerIdAndEpoch,
    TimestampMs,
    TopicPartition,
    TransactionalId,
)
from tallystick.kernel.value import Value, replace

# ---- inputs of the comparison


class ProducerStartState(Value, kw_only=True):
    """State of a producer id in a partition. `open_since_offset`: of its open transaction there."""

    epoch: ProducerEpoch
    last_timestamp_ms: TimestampMs
    open_since_offset: Offset | None = None


class PartitionStartState(Value, kw_only=True):
    """A partition as found at the start, before anything was written to it."""

    log_end_offset: Offset
    producers: Mapping[ProducerId, ProducerStartState]


PartitionStartStates = Mapping[TopicPartition, PartitionStartState]


def find_open_producers(start_states: PartitionStartStates) -> frozenset[ProducerId]:
    """Return the producer ids that have a transaction open in any partition."""
    return frozenset(
        producer_id
        for partition in start_states.values()
        for producer_id, producer in partition.producers.items()
        if producer.open_since_offset is not None
    )


class RecordedDecision(Value, kw_only=True):
    """End of a transaction, as recorded in the transaction log.

    marker_offsets  where its markers were written; empty where that is not known
    """

    transactional_id: TransactionalId
    writer: ProducerIdAndEpoch
    marker_identity: ProducerIdAndEpoch
    outcome: TransactionResult
    transaction_version: int
    partitions: Partitions
    marker_offsets: Mapping[TopicPartition, Offset] = field(default_factory=lambda: MappingProxyType({}))


class DecisionReplay:
    """The ends in the transaction log of which a partition may have lost something. Filled by one replay."""

    def __init__(self, start_states: PartitionStartStates) -> None:
        self.relevant_decisions: list[RecordedDecision] = []
        self._partition_states = start_states
        self._open_producer_ids = find_open_producers(start_states)
        # For each id: the writer of its open transaction, and the decision that is not completed yet.
        self._writers: dict[TransactionalId, ProducerIdAndEpoch] = {}
        self._pending: dict[TransactionalId, RecordedDecision] = {}

    def replay(self, record: TxnRecord) -> None:
        """Add one record; all records of an id in log order."""
        if isinstance(record, EntryRemoved):
            self._writers.pop(record.transactional_id, None)
            self._keep_if_relevant(self._pending.pop(record.transactional_id, None))
            return
        entry, phase = record.entry, record.entry.phase
        transactional_id = entry.transactional_id
        pending = self._pending.pop(transactional_id, None)
        match phase:
            case DecidedPhase():
                if pending is not None and pending.marker_identity == phase.marker_identity:
                    writer: ProducerIdAndEpoch | None = pending.writer  # stored again, with a marker noted
                else:
                    self._keep_if_relevant(pending)
                    writer = self._writers.pop(transactional_id, None)
                self._pending[transactional_id] = _build_decision(entry, phase, writer)
            case OngoingPhase():
                self._keep_if_relevant(pending)
                self._writers[transactional_id] = phase.writer
            case IdlePhase(marker_offsets=markers) if markers:
                self._keep_if_relevant(
                    replace(pending or _rebuild_decision(entry, phase), marker_offsets=markers)
                )
            case IdlePhase():
                self._keep_if_relevant(pending)

    def _keep_if_relevant(self, decision: RecordedDecision | None) -> None:
        """Keep the decision if a partition may lack its marker or the data before that."""
        if decision is None:
            return
        of_open = decision.writer.producer_id in self._open_producer_ids
        for partition in decision.partitions:
            start_state = self._partition_states.get(partition)
            if start_state is not None and (
                of_open or decision.marker_offsets.get(partition, -1) >= start_state.log_end_offset
            ):
                self.relevant_decisions.append(decision)
                return


def _build_decision(
    entry: TxnEntry, phase: DecidedPhase, writer: ProducerIdAndEpoch | None
) -> RecordedDecision:
    return RecordedDecision(
        transactional_id=entry.transactional_id,
        writer=writer or _derive_writer(phase.marker_identity, entry.transaction_version),
        marker_identity=phase.marker_identity,
        outcome=phase.outcome,
        transaction_version=entry.transaction_version,
        partitions=phase.partitions,
    )


def _rebuild_decision(entry: TxnEntry, phase: IdlePhase) -> RecordedDecision:
    """Rebuild a decision from the completion alone, where compaction removed the decision's record.

    For a kept transaction that record lacks the writer: `previous_identity` never wrote, and matches no open
    transaction.
    """
    has_epoch_bump = entry.transaction_version >= EPOCH_BUMP_VERSION and entry.previous_identity is not None
    writer = (
        entry.previous_identity if has_epoch_bump and entry.previous_identity is not None else entry.client
    )
    return RecordedDecision(
        transactional_id=entry.transactional_id,
        writer=writer,
        marker_identity=derive_marker_identity(writer) if has_epoch_bump else writer,
        outcome=phase.outcome or TransactionResult.ABORT,
        transaction_version=entry.transaction_version,
        partitions=frozenset(phase.marker_offsets),
    )


def _derive_writer(marker: ProducerIdAndEpoch, transaction_version: int) -> ProducerIdAndEpoch:
    if transaction_version < EPOCH_BUMP_VERSION or not marker.epoch:
        return marker
    return ProducerIdAndEpoch(marker.producer_id, ProducerEpoch(marker.epoch - 1))


# ---- findings


class TxnConsistency(Enum):
    """Relation of an open transaction of a partition, or of an id, to the coordinator's state."""

    CONSISTENT = auto()  # open at the coordinator, too, in this partition
    DECIDED = auto()  # its markers are sent again after every start
    MARKER_LOST = auto()  # it has ended, and this partition's marker is gone
    PARTITION_LOST = auto()  # of the id's present epoch; the record that added the partition is gone
    ORPHANED = auto()  # of a known producer id, which has no such transaction in this partition
    UNKNOWN_PRODUCER_ID = auto()  # of a producer id that no coordinator knows
    DECISION_LOST = auto()  # open at the coordinator, and a partition has seen the next epoch
    IDENTITY_IN_USE = auto()  # the id's next writes would collide with its own lost past in a partition


class TxnRepairAction(Enum):
    NOTHING = auto()
    WRITE_MARKER = auto()  # the marker of the recorded decision
    ADD_PARTITION = auto()  # add the partition to the id's transaction
    REPORT_HANGING = auto()  # list it: only an administrator can decide
    RESTORE_DECISION = auto()  # with the outcome of the marker that exists
    REPLACE_PRODUCER_ID = auto()  # for the id: its old epochs are fenced, open transactions stay as they are


# STRAY: an epoch that the id has not reached, or has left, with no record of how the transaction ended. An
# abort might revert a commit that was acknowledged.
REPAIR_ACTIONS: Final[Mapping[TxnConsistency, TxnRepairAction]] = MappingProxyType(
    {
        TxnConsistency.CONSISTENT: TxnRepairAction.NOTHING,
        TxnConsistency.DECIDED: TxnRepairAction.NOTHING,
        TxnConsistency.MARKER_LOST: TxnRepairAction.WRITE_MARKER,
        TxnConsistency.PARTITION_LOST: TxnRepairAction.ADD_PARTITION,
        TxnConsistency.ORPHANED: TxnRepairAction.REPORT_HANGING,
        TxnConsistency.UNKNOWN_PRODUCER_ID: TxnRepairAction.REPORT_HANGING,
        TxnConsistency.DECISION_LOST: TxnRepairAction.RESTORE_DECISION,
        TxnConsistency.IDENTITY_IN_USE: TxnRepairAction.REPLACE_PRODUCER_ID,
    }
)


class OpenTransactionState(Value, kw_only=True):
    """A transaction that is open in a partition.

    transactional_id   id that owns the producer id, or did when it ended; None: no id does
    recorded_decision  for MARKER_LOST
    """

    consistency: TxnConsistency
    partition: TopicPartition
    writer: ProducerIdAndEpoch
    first_offset: Offset
    last_timestamp_ms: TimestampMs
    transactional_id: TransactionalId | None = None
    recorded_decision: RecordedDecision | None = None

    def __str__(self) -> str:
        whose = "no transactional id" if self.transactional_id is None else repr(self.transactional_id)
        return f"{self.partition} from offset {self.first_offset}, written by {self.writer} of {whose}"


class StaleTransactionalId(Value, kw_only=True):
    """A transactional id whose state is behind the state of partitions.

    updated_ms         when the coordinator last updated it
    marker_partitions  for DECISION_LOST the partitions that may have the marker of `writer`
    """

    consistency: TxnConsistency
    transactional_id: TransactionalId
    writer: ProducerIdAndEpoch
    updated_ms: TimestampMs
    marker_partitions: tuple[TopicPartition, ...] = ()


class LostCommittedRecords(Value, kw_only=True):
    """Records missing at the end of a partition, below the markers of acknowledged commits.

    A topic that was deleted and created again looks like this once, for the commits in its predecessor.
    """

    partition: TopicPartition
    first_offset: Offset
    last_offset: Offset
    transactional_ids: tuple[TransactionalId, ...]


class ConsistencyReport(Value, kw_only=True):
    open_transactions: tuple[OpenTransactionState, ...] = ()
    stale_ids: tuple[StaleTransactionalId, ...] = ()
    lost_records: tuple[LostCommittedRecords, ...] = ()


# ---- comparing


def check_consistency(
    entries: Iterable[TxnEntry], decisions: Sequence[RecordedDecision], start_states: PartitionStartStates
) -> ConsistencyReport:
    """Find the open transactions of partitions, the ids that are behind a partition, and lost records.

    Args:
        entries: as the transaction log leaves them.
        decisions: from `DecisionReplay`, in the order of the log.

    Cost: linear in producers known to partitions.
    """
    all_entries = tuple(entries)
    owners = {entry.described_identity.producer_id: entry for entry in all_entries}
    owners |= {entry.client.producer_id: entry for entry in all_entries}
    epochs_by_producer = _collect_epochs(owners, start_states)
    open_transactions = tuple(
        _classify_open_transactions(owners, epochs_by_producer, decisions, start_states)
    )
    of_id: dict[TransactionalId | None, list[OpenTransactionState]] = {}
    for open_txn in open_transactions:
        of_id.setdefault(open_txn.transactional_id, []).append(open_txn)
    return ConsistencyReport(
        open_transactions=open_transactions,
        stale_ids=tuple(
            behind
            for entry in all_entries
            for behind in _check_transactional_id(
                entry, epochs_by_producer, of_id.get(entry.transactional_id, ())
            )
        ),
        lost_records=_find_lost_records(decisions, start_states),
    )


EpochsByProducer = Mapping[ProducerId, Sequence[tuple[TopicPartition, ProducerEpoch]]]


def _collect_epochs(
    owners: Mapping[ProducerId, TxnEntry], start_states: PartitionStartStates
) -> EpochsByProducer:
    epochs: dict[ProducerId, list[tuple[TopicPartition, ProducerEpoch]]] = {}
    for partition, state in start_states.items():
        for producer_id, producer in state.producers.items():
            if producer_id in owners:
                epochs.setdefault(producer_id, []).append((partition, producer.epoch))
    return epochs


def _find_later_epochs(
    epochs_by_producer: EpochsByProducer, pair: ProducerIdAndEpoch
) -> tuple[TopicPartition, ...]:
    """Return the partitions that have seen a later epoch."""
    return tuple(
        partition for partition, epoch in epochs_by_producer.get(pair.producer_id, ()) if epoch > pair.epoch
    )


def _classify_open_transactions(
    owners: Mapping[ProducerId, TxnEntry],
    epochs_by_producer: EpochsByProducer,
    decisions: Sequence[RecordedDecision],
    start_states: PartitionStartStates,
) -> Iterable[OpenTransactionState]:
    by_writer: dict[ProducerIdAndEpoch, list[RecordedDecision]] = {}
    for decision in decisions:
        by_writer.setdefault(decision.writer, []).append(decision)
    for partition, state in start_states.items():
        for producer_id, producer in state.producers.items():
            if producer.open_since_offset is None:
                continue
            writer = ProducerIdAndEpoch(producer_id, producer.epoch)
            entry = owners.get(producer_id)
            candidates = [d for d in by_writer.get(writer, ()) if partition in d.partitions]
            classification = classify_open_transaction(
                partition, writer, entry, is_overtaken=bool(_find_later_epochs(epochs_by_producer, writer))
            )
            lost_decision = find_lost_marker(partition, state.log_end_offset, candidates, classification)
            owner_id = (
                lost_decision.transactional_id if lost_decision else entry.transactional_id if entry else None
            )
            yield OpenTransactionState(
                consistency=TxnConsistency.MARKER_LOST if lost_decision else classification,
                partition=partition,
                writer=writer,
                first_offset=producer.open_since_offset,
                last_timestamp_ms=producer.last_timestamp_ms,
                transactional_id=owner_id,
                recorded_decision=lost_decision,
            )


def classify_open_transaction(
    partition: TopicPartition, writer: ProducerIdAndEpoch, entry: TxnEntry | None, *, is_overtaken: bool
) -> TxnConsistency:
    """Classify a transaction that `writer` has open in a partition.

    Args:
        entry: of the owner of the producer id.
        is_overtaken: a partition has seen a later epoch of it.
    """
    if entry is None:
        return TxnConsistency.UNKNOWN_PRODUCER_ID
    phase = entry.phase
    has_epoch_bump = entry.transaction_version >= EPOCH_BUMP_VERSION
    if isinstance(phase, OngoingPhase) and writer == phase.writer and partition in phase.partitions:
        return TxnConsistency.CONSISTENT
    if (
        isinstance(phase, DecidedPhase)
        and partition in phase.partitions
        and _is_ended_by(phase, writer, has_epoch_bump)
    ):
        return TxnConsistency.DECIDED
    if writer != entry.client or entry.is_kept:
        return TxnConsistency.ORPHANED
    # Below version 2 the previous transaction may have had the same epoch. That is excluded if there was none
    # under this epoch, or if the log has its marker offsets: then this partition has its marker.
    is_fresh = isinstance(phase, IdlePhase) and (phase.outcome is None or bool(phase.marker_offsets))
    return (
        TxnConsistency.PARTITION_LOST
        if has_epoch_bump or (is_fresh and not is_overtaken)
        else TxnConsistency.ORPHANED
    )


def _is_ended_by(phase: DecidedPhase, writer: ProducerIdAndEpoch, has_epoch_bump: bool) -> bool:
    """Return whether the markers end what `writer` wrote. Below version 2 only a fence bumps the epoch."""
    before = phase.marker_identity.epoch - writer.epoch
    return writer.producer_id == phase.marker_identity.producer_id and before in (
        (1,) if has_epoch_bump else (0, 1)
    )


def find_lost_marker(
    partition: TopicPartition,
    log_end_offset: Offset,
    candidates: Sequence[RecordedDecision],
    classification: TxnConsistency,
) -> RecordedDecision | None:
    """Return the first end whose marker was beyond the end of the partition, and is lost.

    Without a recorded offset, the marker counts as lost only if nothing else explains the open transaction:
    below version 2 the same epoch may have begun another one.
    """
    for decision in candidates:
        offset = decision.marker_offsets.get(partition)
        if offset is not None and offset >= log_end_offset:
            return decision
    if REPAIR_ACTIONS[classification] is not TxnRepairAction.REPORT_HANGING:
        return None
    return next((decision for decision in candidates if partition not in decision.marker_offsets), None)


def _check_transactional_id(
    entry: TxnEntry, epochs_by_producer: EpochsByProducer, own_transactions: Sequence[OpenTransactionState]
) -> Iterable[StaleTransactionalId]:
    forgotten = any(open_txn.consistency is TxnConsistency.PARTITION_LOST for open_txn in own_transactions)
    writer, client = entry.described_identity, entry.client
    # An administrator's marker may have any epoch, and does not decide the transaction as a whole.
    forced_partitions = {note.partition for note in entry.forced_outcomes if note.cause is ForcedCause.MARKER}
    witnesses: tuple[TopicPartition, ...] = ()
    if isinstance(entry.phase, OngoingPhase) or (isinstance(entry.phase, IdlePhase) and forgotten):
        has_epoch_bump = entry.transaction_version >= EPOCH_BUMP_VERSION
        witnesses = tuple(
            at
            for at in _find_later_epochs(epochs_by_producer, writer)
            if has_epoch_bump and at not in forced_partitions
        )
    if witnesses:
        yield _build_stale_id(TxnConsistency.DECISION_LOST, entry, witnesses)
    # Deciding an end again bumps the client's epoch by one, to the epoch of the marker that was seen.
    reached_identity = ProducerIdAndEpoch(client.producer_id, ProducerEpoch(client.epoch + bool(witnesses)))
    has_stray_transactions = any(
        REPAIR_ACTIONS[open_txn.consistency] is TxnRepairAction.REPORT_HANGING
        and open_txn.writer.producer_id == client.producer_id
        for open_txn in own_transactions
    )
    if has_stray_transactions or any(
        at not in forced_partitions for at in _find_later_epochs(epochs_by_producer, reached_identity)
    ):
        yield _build_stale_id(TxnConsistency.IDENTITY_IN_USE, entry)


def _build_stale_id(
    consistency: TxnConsistency, entry: TxnEntry, witnesses: tuple[TopicPartition, ...] = ()
) -> StaleTransactionalId:
    return StaleTransactionalId(
        consistency=consistency,
        transactional_id=entry.transactional_id,
        writer=entry.described_identity,
        updated_ms=entry.updated_ms,
        marker_partitions=witnesses,
    )


def _find_lost_records(
    decisions: Sequence[RecordedDecision], start_states: PartitionStartStates
) -> tuple[LostCommittedRecords, ...]:
    losses: dict[TopicPartition, tuple[Offset, list[TransactionalId]]] = {}
    for decision in decisions:
        if decision.outcome is not TransactionResult.COMMIT:
            continue
        for partition, marker in decision.marker_offsets.items():
            if partition in start_states and marker > start_states[partition].log_end_offset:
                before, names = losses.get(partition, (marker, []))
                losses[partition] = (max(before, marker), [*names, decision.transactional_id])
    return tuple(
        LostCommittedRecords(
            partition=partition,
            first_offset=start_states[partition].log_end_offset,
            last_offset=Offset(marker - 1),
            transactional_ids=tuple(dict.fromkeys(names)),
        )
        for partition, (marker, names) in sorted(losses.items())
    )


def decide_replace_producer_id(entry: TxnEntry, env: TxnEnv) -> TxnStep | Reject:
    """Give the id another producer id (NEW_PRODUCER_ID): its clients are fenced, open work stays in doubt.

    Refused where the finalized version has no room for a client apart from its transaction; the client or the
    timeout ends that transaction then.
    """
    idle, version = isinstance(entry.phase, IdlePhase), env.config.transaction_version
    if not idle and version < EPOCH_BUMP_VERSION:
        return Reject(
            ErrorCode.UNSUPPORTED_VERSION,
            f"the open transaction needs transaction.version 2, but {version} is finalized",
        )
    after = replace(
        entry, client=start_producer_id(env.spare_producer_id), previous_identity=None, updated_ms=env.now_ms
    )
    event = EntryStored(entry=replace(after, phase=IdlePhase()) if idle else after)
    return TxnStep(records=(event,), events=(event,), reply=DONE, uses_spare_id=True)
