"""Dispatch of every command to its decision."""

from typing import assert_never

from tallystick.broker.txn.machine.add_partitions import decide_add, decide_add_implicitly, decide_verify
from tallystick.broker.txn.machine.apply import check_transition
from tallystick.broker.txn.machine.commands import (
    DONE,
    AddImplicitly,
    AddPartitions,
    Command,
    EndTxn,
    EntryExpired,
    EntryStored,
    Env,
    Expire,
    InitProducerId,
    MarkersWritten,
    NoteForcedMarker,
    Step,
    TimeOut,
    VerifyPartitions,
    WhilePending,
    while_pending,
)
from tallystick.broker.txn.machine.end_txn import (
    CONCURRENT,
    decide_end,
    decide_marked,
    decide_note_forced,
    decide_time_out,
    refuse_pair,
)
from tallystick.broker.txn.machine.expiry import expired
from tallystick.broker.txn.machine.init_producer_id import decide_init
from tallystick.broker.txn.machine.model import TxnEntry
from tallystick.kernel.errors import Reject

__all__ = ["CONCURRENT", "decide", "refuse_while_pending"]


def decide(entry: TxnEntry | None, command: Command, env: Env) -> Step | Reject:
    """Decide what follows from `command`. Reads, never writes.

    Args:
        entry: as of the last durable Step; None when the id is not known.
        env: settings, time, and an unused producer id.

    Returns:
        A Step for the coordinator; or a Reject, and nothing changes.
    """
    step = _decide(entry, command, env)
    if isinstance(step, Step):
        before = entry
        for record in step.append:
            if isinstance(record, EntryStored):
                check_transition(before, record.entry)
                before = record.entry
    return step


def _decide(entry: TxnEntry | None, command: Command, env: Env) -> Step | Reject:
    match command:
        case InitProducerId():
            return decide_init(entry, command, env)
        case AddPartitions():
            return decide_add(entry, command, env)
        case AddImplicitly():
            return decide_add_implicitly(entry, command, env)
        case VerifyPartitions():
            return decide_verify(entry, command, env)
        case EndTxn():
            return decide_end(entry, command, env)
        case TimeOut():
            return decide_time_out(entry, command, env)
        case MarkersWritten():
            return decide_marked(entry, command, env)
        case NoteForcedMarker():
            return decide_note_forced(entry, command, env)
        case Expire():
            return _decide_expire(entry, env)
        case _:
            assert_never(command)


def refuse_while_pending(entry: TxnEntry | None, command: Command) -> Reject:
    """Return the answer to a command that may not wait.

    An EndTxn of a version before 2 has its producer id and epoch checked first [TXN-5].
    """
    if (
        isinstance(command, EndTxn)
        and entry is not None
        and while_pending(command) is WhilePending.IDENTITY_FIRST
        and command.identity not in (entry.client, entry.shown)
    ):
        return refuse_pair(entry, command.identity)
    return CONCURRENT


def _decide_expire(entry: TxnEntry | None, env: Env) -> Step | Reject:
    if entry is None or not expired(entry, env.now_ms, env.config):
        return Step(then_reply=DONE)
    gone = EntryExpired(transactional_id=entry.transactional_id)
    return Step(append=(gone,), then_apply=(gone,), then_reply=DONE)
