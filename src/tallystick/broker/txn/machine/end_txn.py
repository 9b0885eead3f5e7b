"""Ends of transactions, by the client, by fencing or by timeout, and their way to completion."""

from types import MappingProxyType
from typing import Final

from tallystick.broker.txn.machine.commands import (
    DONE,
    AbortTimedOut,
    EndTxn,
    EndTxnResult,
    EntryStored,
    MarkerProgress,
    MarkerRequest,
    MarkersWritten,
    RecordForcedMarker,
    TxnEnv,
    TxnStep,
)
from tallystick.broker.txn.machine.model import (
    FORCED_OUTCOMES_MAX,
    NO_PARTITIONS,
    DecidedPhase,
    ForcedCause,
    IdlePhase,
    OngoingPhase,
    Partitions,
    TransactionResult,
    TxnConfig,
    TxnEntry,
    TxnForcedOutcome,
    TxnPhase,
    is_timed_out,
)
from tallystick.broker.txn.machine.producer_epochs import WRITER_EPOCH_MAX, bump_epoch, derive_marker_identity
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import EPOCH_BUMP_VERSION, ProducerIdAndEpoch
from tallystick.kernel.value import Value, replace

CONCURRENT_TRANSACTIONS: Final = Reject(
    ErrorCode.CONCURRENT_TRANSACTIONS, "an earlier change of this transactional id is not complete yet; retry"
)


def refuse_unknown_id(transactional_id: str) -> Reject:
    return Reject(
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        f"transactional id {transactional_id!r} is unknown: it has expired, or was never initialized."
        " Initialize the producer again",
    )


def refuse_identity(entry: TxnEntry, identity: ProducerIdAndEpoch) -> Reject:
    """Refuse a producer id and epoch that are not the newest, with one of two errors [TXN-8].

    If the producer id is or was this transactional id's, the caller is fenced; any other producer id is a
    mapping error. While a transaction is kept, a former client may have any producer id, as each crash may
    have used one up.
    """
    producer_ids = {entry.client.producer_id, entry.described_identity.producer_id}
    if entry.previous_identity is not None:
        producer_ids.add(entry.previous_identity.producer_id)
    reason = f"{entry.transactional_id!r} belongs to {entry.client}, not to {identity}; nothing was changed. "
    if entry.is_kept:
        # KIP-939, example: the pair of the transaction in doubt is a zombie's once it was kept.
        pair = f"{entry.client.producer_id}:{entry.client.epoch}"
        reason += f"A later InitProducerId kept this transaction: end it as {pair}"
    else:
        reason += "Close this producer if another one has its transactional id"
    if entry.is_kept or identity.producer_id in producer_ids:
        return Reject(ErrorCode.PRODUCER_FENCED, reason)
    return Reject(ErrorCode.INVALID_PRODUCER_ID_MAPPING, reason)


# ---- EndTxn


def decide_end_txn(entry: TxnEntry | None, command: EndTxn, env: TxnEnv) -> TxnStep | Reject:
    """Decide the client's EndTxn.

    A two-phase commit transaction, and one that was kept, is ended by the rules of version 2 whatever the
    request's version: its producer id and epoch must name no other transaction, its markers must not carry
    the epoch of its data, and a decision must never be impossible to deliver.

    Source: KIP-98; KIP-890 "Bump Epoch on Each Transaction"; KIP-939 "Persisted Data Format Changes".
    """
    if entry is None:
        return refuse_unknown_id(env.transactional_id)
    # KIP-890: the request's version tells by which rules the client has run this transaction.
    version = min(command.transaction_version, env.config.transaction_version)
    is_two_phase_retry = entry.timeout_ms is None and command.identity == entry.previous_identity
    if entry.is_kept or entry.is_two_phase or is_two_phase_retry or version >= EPOCH_BUMP_VERSION:
        return _end_with_bump(entry, command, env)
    return _end_without_bump(entry, command, env)


def _end_with_bump(entry: TxnEntry, command: EndTxn, env: TxnEnv) -> TxnStep | Reject:
    """Decide by version 2: a retry carries the previous epoch, so it is never taken for a new end."""
    outcome, phase = command.outcome, entry.phase
    if command.identity == entry.client:
        match phase:
            case OngoingPhase():
                # KIP-890: every end bumps the epoch, so that a delayed request never ends the next
                # transaction.
                return _build_end_step(entry, phase, EndDecision(outcome, EPOCH_BUMP_VERSION), env)
            case DecidedPhase():
                # The client knows that its last transaction ended, and has written nothing since.
                return CONCURRENT_TRANSACTIONS
            case IdlePhase():
                return _abort_empty(entry, outcome, env)
    # KIP-890: only the identity that this end replaced may retry; once the next transaction is open, none
    # may.
    if command.identity != entry.previous_identity or isinstance(phase, OngoingPhase):
        return refuse_identity(entry, command.identity)
    match phase:
        case DecidedPhase():
            return (
                CONCURRENT_TRANSACTIONS if phase.outcome is outcome else _refuse_other_result(entry, outcome)
            )
        case IdlePhase(outcome=None):
            # InitProducerId came after the last end: its previous identity is fenced (KIP-360).
            return refuse_identity(entry, command.identity)
        case IdlePhase():
            same = phase.outcome is outcome
            return (
                TxnStep(reply=EndTxnResult(client=entry.client))
                if same
                else _refuse_other_result(entry, outcome)
            )


def _end_without_bump(entry: TxnEntry, command: EndTxn, env: TxnEnv) -> TxnStep | Reject:
    """Decide by versions 0 and 1: the epoch stays, so a late retry looks like a new end (KAFKA-17754)."""
    if command.identity != entry.client:
        return refuse_identity(entry, command.identity)
    outcome, phase = command.outcome, entry.phase
    match phase:
        case OngoingPhase():
            return _build_end_step(entry, phase, EndDecision(outcome, 0), env)
        case DecidedPhase():
            # KIP-98: a decision is final; only a retry of the same one waits for its markers.
            return (
                CONCURRENT_TRANSACTIONS if phase.outcome is outcome else _refuse_other_result(entry, outcome)
            )
        case IdlePhase():
            same = phase.outcome is outcome
            return (
                TxnStep(reply=EndTxnResult(client=entry.client))
                if same
                else _refuse_other_result(entry, outcome)
            )


def _refuse_other_result(entry: TxnEntry, outcome: TransactionResult) -> Reject:
    return Reject(
        ErrorCode.INVALID_TXN_STATE,
        f"{outcome.value} of {entry.transactional_id!r} is not possible in state {entry.state.label};"
        " nothing was changed",
    )


def _abort_empty(entry: TxnEntry, outcome: TransactionResult, env: TxnEnv) -> TxnStep | Reject:
    """Abort with nothing open, which still bumps the epoch, as the client expects (KAFKA-18464)."""
    if outcome is TransactionResult.COMMIT:
        return _refuse_other_result(entry, outcome)
    empty_phase = OngoingPhase(
        writer=entry.client, partitions=NO_PARTITIONS, started_ms=env.now_ms, timeout_ms=entry.timeout_ms
    )
    # KIP-890 "Overflow": without an epoch for its marker this identity can begin nothing, so it ends nothing.
    if entry.client.epoch > WRITER_EPOCH_MAX:
        return refuse_identity(entry, entry.client)
    return _build_end_step(entry, empty_phase, EndDecision(outcome, EPOCH_BUMP_VERSION), env)


# ---- ends without an EndTxn


def abort_for_init(
    entry: TxnEntry, phase: OngoingPhase, expected_identity: ProducerIdAndEpoch | None, env: TxnEnv
) -> TxnStep:
    """Abort for InitProducerId without keep, and answer that the caller should retry.

    Only the owner, who has shown its producer id and epoch, may get the next ones on a retry (KIP-360).
    """
    return _abort_and_fence(entry, phase, ForcedCause.TERMINATED, expected_identity, env)


def _abort_and_fence(
    entry: TxnEntry, phase: OngoingPhase, cause: ForcedCause, owner: ProducerIdAndEpoch | None, env: TxnEnv
) -> TxnStep:
    """Abort the open transaction and fence every client that has a producer id and epoch of it.

    One record, so that nothing needs repair if it cannot be written (KAFKA-9666). The next epoch follows the
    newest that was ever handed out, not the writer's (KIP-939: the highest next epoch).
    """
    # KIP-939: a kept transaction has a client apart from its writer, which only version 2 can tell apart.
    version = EPOCH_BUMP_VERSION if entry.is_kept else env.config.transaction_version
    note = TxnForcedOutcome(writer=phase.writer, cause=cause, at_ms=env.now_ms)
    noted_entry = replace(entry, forced_outcomes=_append_forced_outcome(entry, note))
    step = _build_end_step(
        noted_entry,
        phase,
        EndDecision(TransactionResult.ABORT, version, is_forced=True, retry_identity=owner),
        env,
    )
    return replace(step, reply=CONCURRENT_TRANSACTIONS)


def decide_abort_timed_out(entry: TxnEntry | None, command: AbortTimedOut, env: TxnEnv) -> TxnStep | Reject:
    """Abort a transaction past its transaction.timeout.ms, unless it was decided before.

    Source: KIP-98; `is_timed_out` for KIP-939.
    """
    if entry is None or not isinstance(entry.phase, OngoingPhase) or not is_timed_out(entry, env.now_ms):
        return TxnStep(reply=DONE)
    # No other client has taken over: under version 2 the client may abort again, and continue.
    owner = entry.client if env.config.transaction_version >= EPOCH_BUMP_VERSION else None
    return replace(_abort_and_fence(entry, entry.phase, ForcedCause.TIMED_OUT, owner, env), reply=DONE)


def decide_record_forced_marker(
    entry: TxnEntry | None, command: RecordForcedMarker, env: TxnEnv
) -> TxnStep | Reject:
    """Record that an administrator has aborted a part of this transaction, open or already committed."""
    if entry is None or not _is_affected_by(entry.phase, command):
        return TxnStep(reply=DONE)
    note = TxnForcedOutcome(
        writer=command.writer, cause=ForcedCause.MARKER, at_ms=env.now_ms, partition=command.partition
    )
    event = EntryStored(
        entry=replace(entry, forced_outcomes=_append_forced_outcome(entry, note), updated_ms=env.now_ms)
    )
    return TxnStep(records=(event,), events=(event,), reply=DONE)


def _is_affected_by(phase: TxnPhase, command: RecordForcedMarker) -> bool:
    match phase:
        case OngoingPhase(writer=writer, partitions=partitions):
            return writer == command.writer and command.partition in partitions
        case DecidedPhase(outcome=TransactionResult.COMMIT, marker_identity=marker):
            is_signed_by_writer = marker in (command.writer, derive_marker_identity(command.writer))
            return is_signed_by_writer and command.partition in phase.unmarked_partitions
        case _:
            return False


def _append_forced_outcome(entry: TxnEntry, note: TxnForcedOutcome) -> tuple[TxnForcedOutcome, ...]:
    return (*entry.forced_outcomes, note)[-FORCED_OUTCOMES_MAX:]


# ---- from the decision to its completion


class EndDecision(Value):
    """A decided end.

    transaction_version  the rules: from 2 on the epoch is bumped
    is_forced            the client did not ask, so that its epoch must not go on even where an end would not
                         bump it
    retry_identity       of a forced end: the identity whose retry gets the next producer id and epoch
    """

    outcome: TransactionResult
    transaction_version: int
    is_forced: bool = False
    retry_identity: ProducerIdAndEpoch | None = None


def _build_end_step(entry: TxnEntry, phase: OngoingPhase, end: EndDecision, env: TxnEnv) -> TxnStep:
    """Return the step of an end: the decision and, where there is nothing to mark, its completion."""
    if end.transaction_version >= EPOCH_BUMP_VERSION:
        # KIP-890: markers carry the writer's epoch plus 1. KIP-939: the client's epoch is bumped once more,
        # also after a keep, or a delayed EndTxn of a retry could end the transaction that follows.
        marker = derive_marker_identity(phase.writer)
        client = bump_epoch(entry.client, WRITER_EPOCH_MAX, env.spare_producer_id)
        previous_identity = end.retry_identity if end.is_forced else entry.client
    else:
        # KIP-98: markers carry the producer's epoch; a fencing abort bumps it, and with it the markers'
        # epoch.
        marker = client = derive_marker_identity(phase.writer) if end.is_forced else phase.writer
        previous_identity = end.retry_identity
    decided_entry = replace(
        entry,
        phase=DecidedPhase(
            outcome=end.outcome,
            marker_identity=marker,
            partitions=phase.partitions,
            started_ms=phase.started_ms,
            timeout_ms=phase.timeout_ms,
        ),
        client=client,
        previous_identity=previous_identity,
        transaction_version=end.transaction_version,
        updated_ms=env.now_ms,
    )
    # KIP-98: no partition, no marker, so that the transaction is complete as soon as it is decided.
    records = [EntryStored(entry=decided_entry)]
    if not phase.partitions:
        records.append(EntryStored(entry=_complete_entry(decided_entry, env.config)))
    return TxnStep(
        records=tuple(records),
        events=tuple(records),
        reply=EndTxnResult(client=client),
        marker_request=find_missing_markers(decided_entry),
        uses_spare_id=client.producer_id == env.spare_producer_id,
    )


def find_missing_markers(entry: TxnEntry) -> MarkerRequest | None:
    """Return the markers that a decided transaction still lacks; after a restart that is all of them."""
    phase = entry.phase
    if not isinstance(phase, DecidedPhase) or not phase.unmarked_partitions:
        return None
    return MarkerRequest(
        marker_identity=phase.marker_identity,
        outcome=phase.outcome,
        partitions=phase.unmarked_partitions,
        transaction_version=entry.transaction_version,
    )


def decide_markers_written(entry: TxnEntry | None, command: MarkersWritten, env: TxnEnv) -> TxnStep | Reject:
    """Record that markers are in their partitions; with the last one the transaction is complete [TXN-9].

    Source: KIP-939: no other transaction of the id starts "until the transaction decision is delivered to all
        participating partitions".
    """
    phase = entry and entry.phase
    if (
        entry is None
        or not isinstance(phase, DecidedPhase)
        or phase.marker_identity != command.marker_identity
    ):
        return TxnStep(reply=DONE)
    progress = MarkerProgress(marker_identity=command.marker_identity, offsets=command.offsets)
    marked_entry = replace(
        entry, phase=replace(phase, marker_offsets={**phase.marker_offsets, **command.offsets})
    )
    if _find_unmarked_partitions(marked_entry):
        return TxnStep(events=(progress,), reply=DONE)
    event = EntryStored(entry=replace(_complete_entry(marked_entry, env.config), updated_ms=env.now_ms))
    # A restart that does not find this record sends the markers again, which is harmless.
    return TxnStep(records=(event,), events=(progress, event), reply=DONE, needs_durable=False)


def _find_unmarked_partitions(entry: TxnEntry) -> Partitions:
    return entry.phase.unmarked_partitions if isinstance(entry.phase, DecidedPhase) else NO_PARTITIONS


def _complete_entry(entry: TxnEntry, config: TxnConfig) -> TxnEntry:
    phase = entry.phase
    if not isinstance(phase, DecidedPhase):
        return entry
    offsets = phase.marker_offsets.items() if config.remember_marker_offsets else ()
    marker_offsets = {partition: offset for partition, offset in offsets if offset is not None}
    idle = IdlePhase(
        outcome=phase.outcome, started_ms=phase.started_ms, marker_offsets=MappingProxyType(marker_offsets)
    )
    return replace(entry, phase=idle)
