"""Dispatch of every command to its decision."""

from typing import assert_never

from tallystick.broker.txn.machine.add_partitions import (
    decide_add_by_leader,
    decide_add_partitions,
    decide_verify_partitions,
)
from tallystick.broker.txn.machine.apply import check_transition
from tallystick.broker.txn.machine.commands import (
    DONE,
    AbortTimedOut,
    AddPartitions,
    AddPartitionsByLeader,
    EndTxn,
    EntryRemoved,
    EntryStored,
    InitProducerId,
    MarkersWritten,
    PendingPolicy,
    RecordForcedMarker,
    RemoveExpiredId,
    TxnCommand,
    TxnEnv,
    TxnStep,
    VerifyPartitions,
    find_pending_policy,
)
from tallystick.broker.txn.machine.end_txn import (
    CONCURRENT_TRANSACTIONS,
    decide_abort_timed_out,
    decide_end_txn,
    decide_markers_written,
    decide_record_forced_marker,
    refuse_identity,
)
from tallystick.broker.txn.machine.init_producer_id import decide_init_producer_id
from tallystick.broker.txn.machine.model import TxnEntry, is_expired
from tallystick.kernel.errors import Reject

__all__ = ["CONCURRENT_TRANSACTIONS", "decide", "refuse_while_pending"]


def decide(entry: TxnEntry | None, command: TxnCommand, env: TxnEnv) -> TxnStep | Reject:
    """Decide what follows from `command`. Reads, never writes.

    Args:
        entry: as of the last durable Step; None when the id is not known.
        env: settings, time, and an unused producer id.

    Returns:
        A Step for the coordinator; or a Reject, and nothing changes.
    """
    step = _dispatch(entry, command, env)
    if isinstance(step, TxnStep):
        before = entry
        for record in step.records:
            if isinstance(record, EntryStored):
                check_transition(before, record.entry)
                before = record.entry
    return step


def _dispatch(entry: TxnEntry | None, command: TxnCommand, env: TxnEnv) -> TxnStep | Reject:
    match command:
        case InitProducerId():
            return decide_init_producer_id(entry, command, env)
        case AddPartitions():
            return decide_add_partitions(entry, command, env)
        case AddPartitionsByLeader():
            return decide_add_by_leader(entry, command, env)
        case VerifyPartitions():
            return decide_verify_partitions(entry, command, env)
        case EndTxn():
            return decide_end_txn(entry, command, env)
        case AbortTimedOut():
            return decide_abort_timed_out(entry, command, env)
        case MarkersWritten():
            return decide_markers_written(entry, command, env)
        case RecordForcedMarker():
            return decide_record_forced_marker(entry, command, env)
        case RemoveExpiredId():
            return _decide_expire(entry, env)
        case _:
            assert_never(command)


def refuse_while_pending(entry: TxnEntry | None, command: TxnCommand) -> Reject:
    """Return the answer to a command that may not wait.

    An EndTxn of a version before 2 has its producer id and epoch checked first [TXN-5].
    """
    # Kafka's EndTxn up to version 4 compares the identity before it looks for a pending change: a fenced
    # producer must not retry.
    if (
        isinstance(command, EndTxn)
        and entry is not None
        and find_pending_policy(command) is PendingPolicy.CHECK_IDENTITY
        and command.identity not in (entry.client, entry.described_identity)
    ):
        return refuse_identity(entry, command.identity)
    return CONCURRENT_TRANSACTIONS


def _decide_expire(entry: TxnEntry | None, env: TxnEnv) -> TxnStep | Reject:
    if entry is None or not is_expired(entry, env.now_ms, env.config):
        return TxnStep(reply=DONE)
    event = EntryRemoved(transactional_id=entry.transactional_id)
    return TxnStep(records=(event,), events=(event,), reply=DONE)
