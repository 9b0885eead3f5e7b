"""Adding partitions to a transaction, and verifying for a partition leader that they belong to it."""

from tallystick.broker.txn.machine.commands import (
    DONE,
    AddImplicitly,
    AddPartitions,
    EntryStored,
    Env,
    PerPartition,
    Step,
    VerifyPartitions,
)
from tallystick.broker.txn.machine.end_txn import CONCURRENT, refuse_pair, unknown
from tallystick.broker.txn.machine.model import (
    EPOCH_BUMP_VERSION,
    Decided,
    Idle,
    Ongoing,
    Partitions,
    TxnEntry,
)
from tallystick.broker.txn.machine.producer_epochs import WRITER_EPOCH_MAX
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import Identity
from tallystick.kernel.value import replace


def decide_add(entry: TxnEntry | None, command: AddPartitions, env: Env) -> Step | Reject:
    """Decide AddPartitionsToTxn and AddOffsetsToTxn."""
    version = min(command.transaction_version, env.config.transaction_version)
    return _add(entry, command.identity, command.partitions, version, env)


def decide_add_implicitly(entry: TxnEntry | None, command: AddImplicitly, env: Env) -> Step | Reject:
    """Decide the addition of a partition by its leader on the client's behalf (KIP-890 part 2)."""
    version = min(EPOCH_BUMP_VERSION, env.config.transaction_version)
    return _add(entry, command.identity, command.partitions, version, env)


def _add(
    entry: TxnEntry | None, identity: Identity, partitions: Partitions, version: int, env: Env
) -> Step | Reject:
    if entry is None:
        return unknown(env.transactional_id)
    refused = _refuse_writing(entry, identity)
    if refused is not None:
        return refused
    if entry.timeout_ms is None and version < EPOCH_BUMP_VERSION:
        # KIP-939: before version 2 one epoch covers many transactions, so a token could not name one of them.
        return Reject(
            ErrorCode.UNSUPPORTED_VERSION,
            f"{entry.transactional_id!r} takes part in two-phase commit, which needs transaction version 2",
        )
    phase = entry.phase
    if isinstance(phase, Ongoing):
        if partitions <= phase.partitions:
            return Step(then_reply=DONE)
        phase = replace(phase, partitions=phase.partitions | partitions)
    else:
        phase = Ongoing(
            writer=identity, partitions=partitions, started_ms=env.now_ms, timeout_ms=entry.timeout_ms
        )
    stored = EntryStored(
        entry=replace(entry, phase=phase, superseded=None, transaction_version=version, updated_ms=env.now_ms)
    )
    return Step(append=(stored,), then_apply=(stored,), then_reply=DONE, begins=True)


def decide_verify(entry: TxnEntry | None, command: VerifyPartitions, env: Env) -> Step | Reject:
    """Check that the transaction of an older client is open for these partitions. Changes nothing.

    Source: KIP-890 part 1; TransactionCoordinator.handleVerifyPartitionsInTransaction.
    """
    if entry is None:
        return unknown(env.transactional_id)
    refused = _refuse_writing(entry, command.identity)
    if refused is not None:
        return refused
    phase = entry.phase
    included = phase.partitions if isinstance(phase, Ongoing) else frozenset()
    missing = command.partitions - included
    return Step(then_reply=PerPartition(refused=dict.fromkeys(missing, ErrorCode.TRANSACTION_ABORTABLE)))


def _refuse_writing(entry: TxnEntry, identity: Identity) -> Reject | None:
    """Refuse every identity but the client's, and the client while it has a transaction to settle.

    A kept transaction takes no more data, least of all from its old writer (KIP-939); partitions that have
    the transaction open verify by themselves (`verifying`).
    """
    if identity != entry.client:
        return refuse_pair(entry, identity)
    if isinstance(entry.phase, Decided):
        return CONCURRENT
    if entry.is_kept:
        return Reject(
            ErrorCode.INVALID_TXN_STATE,
            f"{entry.transactional_id!r} has a transaction of {entry.shown} to commit or abort first",
        )
    if isinstance(entry.phase, Idle) and entry.client.epoch > WRITER_EPOCH_MAX:
        # Left by an abort under an older version: no epoch is left for the markers of another transaction.
        return Reject(ErrorCode.PRODUCER_FENCED, f"the epochs of {identity} are used up")
    return None
