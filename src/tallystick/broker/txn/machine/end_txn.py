"""Ends of transactions, by the client, by fencing or by timeout, and their way to completion."""

from types import MappingProxyType
from typing import Final

from tallystick.broker.txn.machine.commands import (
    DONE,
    Ended,
    EndTxn,
    EntryStored,
    Env,
    MarkersNoted,
    MarkersWritten,
    NoteForcedMarker,
    SendMarkers,
    Step,
    TimeOut,
)
from tallystick.broker.txn.machine.expiry import timed_out
from tallystick.broker.txn.machine.model import (
    EPOCH_BUMP_VERSION,
    FORCED_OUTCOMES_KEPT,
    NO_PARTITIONS,
    Decided,
    ForcedCause,
    ForcedOutcome,
    Idle,
    Ongoing,
    Outcome,
    Partitions,
    Phase,
    TxnConfig,
    TxnEntry,
)
from tallystick.broker.txn.machine.producer_epochs import WRITER_EPOCH_MAX, marker_of, next_pair
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import Identity
from tallystick.kernel.value import frozen, replace

CONCURRENT: Final = Reject(
    ErrorCode.CONCURRENT_TRANSACTIONS, "the outcome of the transaction is being written"
)


def unknown(transactional_id: str) -> Reject:
    return Reject(
        ErrorCode.INVALID_PRODUCER_ID_MAPPING, f"transactional id {transactional_id!r} is not known"
    )


def refuse_pair(entry: TxnEntry, identity: Identity) -> Reject:
    """Refuse a producer id and epoch that are not the newest, with one of two errors [TXN-8].

    If the producer id is or was this transactional id's, the caller is fenced; any other producer id is a
    mapping error. While a transaction is kept, a former client may have any producer id, as each crash may
    have used one up.
    """
    known = {entry.client.producer_id, entry.shown.producer_id}
    if entry.superseded is not None:
        known.add(entry.superseded.producer_id)
    reason = f"{entry.transactional_id!r} is used by {entry.client}, not by {identity}"
    if entry.is_kept or identity.producer_id in known:
        return Reject(ErrorCode.PRODUCER_FENCED, reason)
    return Reject(ErrorCode.INVALID_PRODUCER_ID_MAPPING, reason)


# ---- EndTxn


def decide_end(entry: TxnEntry | None, command: EndTxn, env: Env) -> Step | Reject:
    """Decide the client's EndTxn.

    A two-phase commit transaction, and one that was kept, is ended by the rules of version 2 whatever the
    request's version: its producer id and epoch must name no other transaction, its markers must not carry
    the epoch of its data, and a decision must never be impossible to deliver.

    Source: KIP-98; KIP-890 "Bump Epoch on Each Transaction"; KIP-939 "Persisted Data Format Changes".
    """
    if entry is None:
        return unknown(env.transactional_id)
    version = min(command.transaction_version, env.config.transaction_version)
    repeated = entry.timeout_ms is None and command.identity == entry.superseded
    if entry.is_kept or entry.is_two_phase or repeated or version >= EPOCH_BUMP_VERSION:
        return _end_with_bump(entry, command, env)
    return _end_without_bump(entry, command, env)


def _end_with_bump(entry: TxnEntry, command: EndTxn, env: Env) -> Step | Reject:
    """Decide by version 2: a retry carries the previous epoch, so it is never taken for a new end."""
    outcome, phase = command.outcome, entry.phase
    if command.identity == entry.client:
        match phase:
            case Ongoing():
                return _end(entry, phase, End(outcome, EPOCH_BUMP_VERSION), env)
            case Decided():
                # The client knows that its last transaction ended, and has written nothing since.
                return CONCURRENT
            case Idle():
                return _end_empty(entry, outcome, env)
    if command.identity != entry.superseded or isinstance(phase, Ongoing):
        return refuse_pair(entry, command.identity)
    match phase:
        case Decided():
            return CONCURRENT if phase.outcome is outcome else _decided_otherwise(entry, outcome)
        case Idle(outcome=None):
            return refuse_pair(entry, command.identity)
        case Idle():
            same = phase.outcome is outcome
            return Step(then_reply=Ended(client=entry.client)) if same else _decided_otherwise(entry, outcome)


def _end_without_bump(entry: TxnEntry, command: EndTxn, env: Env) -> Step | Reject:
    """Decide by versions 0 and 1: the epoch stays, so a late retry looks like a new end (KAFKA-17754)."""
    if command.identity != entry.client:
        return refuse_pair(entry, command.identity)
    outcome, phase = command.outcome, entry.phase
    match phase:
        case Ongoing():
            return _end(entry, phase, End(outcome, 0), env)
        case Decided():
            return CONCURRENT if phase.outcome is outcome else _decided_otherwise(entry, outcome)
        case Idle():
            same = phase.outcome is outcome
            return Step(then_reply=Ended(client=entry.client)) if same else _decided_otherwise(entry, outcome)


def _decided_otherwise(entry: TxnEntry, outcome: Outcome) -> Reject:
    return Reject(
        ErrorCode.INVALID_TXN_STATE,
        f"{outcome.value} of {entry.transactional_id!r}, which is in state {entry.state.label}",
    )


def _end_empty(entry: TxnEntry, outcome: Outcome, env: Env) -> Step | Reject:
    """Abort with nothing open, which still bumps the epoch, as the client expects (KAFKA-18464)."""
    if outcome is Outcome.COMMIT:
        return _decided_otherwise(entry, outcome)
    nothing = Ongoing(
        writer=entry.client, partitions=NO_PARTITIONS, started_ms=env.now_ms, timeout_ms=entry.timeout_ms
    )
    if entry.client.epoch > WRITER_EPOCH_MAX:
        return refuse_pair(entry, entry.client)
    return _end(entry, nothing, End(outcome, EPOCH_BUMP_VERSION), env)


# ---- ends without an EndTxn


def take_over(entry: TxnEntry, phase: Ongoing, expected: Identity | None, env: Env) -> Step:
    """Abort for InitProducerId without keep, and answer that the caller should retry.

    Only the owner, who has shown its producer id and epoch, may get the next ones on a retry (KIP-360).
    """
    return _fence(entry, phase, ForcedCause.TERMINATED, expected, env)


def _fence(entry: TxnEntry, phase: Ongoing, cause: ForcedCause, owner: Identity | None, env: Env) -> Step:
    """Abort the open transaction and fence every client that has a producer id and epoch of it.

    One record, so that nothing needs repair if it cannot be written (KAFKA-9666). The next epoch follows the
    newest that was ever handed out, not the writer's (KIP-939: the highest next epoch).
    """
    version = EPOCH_BUMP_VERSION if entry.is_kept else env.config.transaction_version
    note = ForcedOutcome(writer=phase.writer, cause=cause, at_ms=env.now_ms)
    noted = replace(entry, forced=_with(entry, note))
    step = _end(noted, phase, End(Outcome.ABORT, version, forced=True, owner=owner), env)
    return replace(step, then_reply=CONCURRENT)


def decide_time_out(entry: TxnEntry | None, command: TimeOut, env: Env) -> Step | Reject:
    """Abort a transaction past its transaction.timeout.ms, unless it was decided before."""
    if entry is None or not isinstance(entry.phase, Ongoing) or not timed_out(entry, env.now_ms):
        return Step(then_reply=DONE)
    # No other client has taken over: under version 2 the client may abort again, and continue.
    owner = entry.client if env.config.transaction_version >= EPOCH_BUMP_VERSION else None
    return replace(_fence(entry, entry.phase, ForcedCause.TIMED_OUT, owner, env), then_reply=DONE)


def decide_note_forced(entry: TxnEntry | None, command: NoteForcedMarker, env: Env) -> Step | Reject:
    """Record that an administrator has aborted a part of this transaction, open or already committed."""
    if entry is None or not _is_torn(entry.phase, command):
        return Step(then_reply=DONE)
    note = ForcedOutcome(
        writer=command.writer, cause=ForcedCause.MARKER, at_ms=env.now_ms, partition=command.partition
    )
    stored = EntryStored(entry=replace(entry, forced=_with(entry, note), updated_ms=env.now_ms))
    return Step(append=(stored,), then_apply=(stored,), then_reply=DONE)


def _is_torn(phase: Phase, command: NoteForcedMarker) -> bool:
    match phase:
        case Ongoing(writer=writer, partitions=partitions):
            return writer == command.writer and command.partition in partitions
        case Decided(outcome=Outcome.COMMIT, marker=marker):
            signed = marker in (command.writer, marker_of(command.writer))
            return signed and command.partition in phase.unmarked
        case _:
            return False


def _with(entry: TxnEntry, note: ForcedOutcome) -> tuple[ForcedOutcome, ...]:
    return (*entry.forced, note)[-FORCED_OUTCOMES_KEPT:]


# ---- from the decision to its completion


@frozen
class End:
    """A decided end.

    version  the rules: from 2 on the epoch is bumped
    forced   the client did not ask, so that its epoch must not go on even where an end would not bump it
    owner    of a forced end: the identity whose retry gets the next producer id and epoch
    """

    outcome: Outcome
    version: int
    forced: bool = False
    owner: Identity | None = None


def _end(entry: TxnEntry, phase: Ongoing, end: End, env: Env) -> Step:
    """Return the step of an end: the decision and, where there is nothing to mark, its completion."""
    if end.version >= EPOCH_BUMP_VERSION:
        marker = marker_of(phase.writer)
        client = next_pair(entry.client, WRITER_EPOCH_MAX, env.spare_id)
        superseded = end.owner if end.forced else entry.client
    else:
        marker = client = marker_of(phase.writer) if end.forced else phase.writer
        superseded = end.owner
    decided = replace(
        entry,
        phase=Decided(
            outcome=end.outcome,
            marker=marker,
            partitions=phase.partitions,
            started_ms=phase.started_ms,
            timeout_ms=phase.timeout_ms,
        ),
        client=client,
        superseded=superseded,
        transaction_version=end.version,
        updated_ms=env.now_ms,
    )
    records = [EntryStored(entry=decided)]
    if not phase.partitions:
        records.append(EntryStored(entry=_completed(decided, env.config)))
    return Step(
        append=tuple(records),
        then_apply=tuple(records),
        then_reply=Ended(client=client),
        then_send=markers_of(decided),
        used_spare=client.producer_id == env.spare_id,
    )


def markers_of(entry: TxnEntry) -> SendMarkers | None:
    """Return the markers that a decided transaction still lacks; after a restart that is all of them."""
    phase = entry.phase
    if not isinstance(phase, Decided) or not phase.unmarked:
        return None
    return SendMarkers(
        marker=phase.marker,
        outcome=phase.outcome,
        partitions=phase.unmarked,
        transaction_version=entry.transaction_version,
    )


def decide_marked(entry: TxnEntry | None, command: MarkersWritten, env: Env) -> Step | Reject:
    """Note that markers are in their partitions; with the last one the transaction is complete [TXN-9]."""
    phase = entry and entry.phase
    if entry is None or not isinstance(phase, Decided) or phase.marker != command.marker:
        return Step(then_reply=DONE)
    noted = MarkersNoted(marker=command.marker, offsets=command.offsets)
    marked = replace(entry, phase=replace(phase, written={**phase.written, **command.offsets}))
    if _unmarked(marked):
        return Step(then_apply=(noted,), then_reply=DONE)
    stored = EntryStored(entry=replace(_completed(marked, env.config), updated_ms=env.now_ms))
    # A restart that does not find this record sends the markers again, which is harmless.
    return Step(append=(stored,), then_apply=(noted, stored), then_reply=DONE, needs_durable=False)


def _unmarked(entry: TxnEntry) -> Partitions:
    return entry.phase.unmarked if isinstance(entry.phase, Decided) else NO_PARTITIONS


def _completed(entry: TxnEntry, config: TxnConfig) -> TxnEntry:
    phase = entry.phase
    if not isinstance(phase, Decided):
        return entry
    offsets = phase.written.items() if config.remember_marker_offsets else ()
    found = {partition: offset for partition, offset in offsets if offset is not None}
    idle = Idle(outcome=phase.outcome, started_ms=phase.started_ms, markers=MappingProxyType(found))
    return replace(entry, phase=idle)
