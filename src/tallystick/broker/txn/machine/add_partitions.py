"""Adding partitions to a transaction, and verifying for a partition leader that they belong to it."""

from tallystick.broker.txn.machine.commands import (
    DONE,
    AddPartitions,
    AddPartitionsByLeader,
    EntryStored,
    TxnEnv,
    TxnStep,
    VerifyPartitions,
    VerifyPartitionsResult,
)
from tallystick.broker.txn.machine.end_txn import CONCURRENT_TRANSACTIONS, refuse_identity, refuse_unknown_id
from tallystick.broker.txn.machine.model import (
    DecidedPhase,
    IdlePhase,
    OngoingPhase,
    Partitions,
    TxnEntry,
)
from tallystick.broker.txn.machine.producer_epochs import WRITER_EPOCH_MAX
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import EPOCH_BUMP_VERSION, ProducerIdAndEpoch
from tallystick.kernel.value import replace


def decide_add_partitions(entry: TxnEntry | None, command: AddPartitions, env: TxnEnv) -> TxnStep | Reject:
    """Decide AddPartitionsToTxn and AddOffsetsToTxn."""
    version = min(command.transaction_version, env.config.transaction_version)
    return _decide_addition(entry, command.identity, command.partitions, version, env)


def decide_add_by_leader(
    entry: TxnEntry | None, command: AddPartitionsByLeader, env: TxnEnv
) -> TxnStep | Reject:
    """Decide the addition of a partition by its leader on the client's behalf (KIP-890 part 2).

    A leader that waits for the record itself may be told as soon as the log has it (ADR 0050). If a power
    loss takes the record, and leaves the data, the data shows that it was there
    (`TxnConsistency.PARTITION_LOST`): a producer id and epoch name one transaction, if the last one bumped
    the epoch, too. Below version 2 the markers of the last one, sent again, would end this one.
    """
    version = min(EPOCH_BUMP_VERSION, env.config.transaction_version)
    step = _decide_addition(entry, command.identity, command.partitions, version, env)
    if isinstance(step, Reject) or entry is None or not step.records:
        return step
    is_unambiguous = min(version, entry.transaction_version) >= EPOCH_BUMP_VERSION
    return replace(
        step,
        needs_durable=command.needs_durable or not is_unambiguous,
        may_be_refused=command.may_be_refused,
    )


def _decide_addition(
    entry: TxnEntry | None, identity: ProducerIdAndEpoch, partitions: Partitions, version: int, env: TxnEnv
) -> TxnStep | Reject:
    if entry is None:
        return refuse_unknown_id(env.transactional_id)
    refusal = _check_may_write(entry, identity)
    if refusal is not None:
        return refusal
    if entry.timeout_ms is None and version < EPOCH_BUMP_VERSION:
        # KIP-939: before version 2 one epoch covers many transactions, so a token could not name one of them.
        return Reject(
            ErrorCode.UNSUPPORTED_VERSION,
            f"{entry.transactional_id!r} takes part in two-phase commit, which needs transaction version 2;"
            " nothing was added. Use a client that supports it",
        )
    phase = entry.phase
    if isinstance(phase, OngoingPhase):
        # KIP-98: partitions that are in the transaction already need no record.
        if partitions <= phase.partitions:
            return TxnStep(reply=DONE)
        phase = replace(phase, partitions=phase.partitions | partitions)
    else:
        # KIP-98: the first partition begins the transaction, and its timeout runs from here.
        phase = OngoingPhase(
            writer=identity, partitions=partitions, started_ms=env.now_ms, timeout_ms=entry.timeout_ms
        )
    event = EntryStored(
        entry=replace(
            entry, phase=phase, previous_identity=None, transaction_version=version, updated_ms=env.now_ms
        )
    )
    return TxnStep(records=(event,), events=(event,), reply=DONE, may_be_refused=True)


def decide_verify_partitions(
    entry: TxnEntry | None, command: VerifyPartitions, env: TxnEnv
) -> TxnStep | Reject:
    """Check that the transaction of an older client is open for these partitions. Changes nothing.

    Source: KIP-890 part 1; TransactionCoordinator.handleVerifyPartitionsInTransaction.
    """
    if entry is None:
        return refuse_unknown_id(env.transactional_id)
    refusal = _check_may_write(entry, command.identity)
    if refusal is not None:
        return refusal
    phase = entry.phase
    txn_partitions = phase.partitions if isinstance(phase, OngoingPhase) else frozenset()
    # KIP-890: 120, TRANSACTION_ABORTABLE, because the client can abort and go on.
    missing = command.partitions - txn_partitions
    return TxnStep(
        reply=VerifyPartitionsResult(errors=dict.fromkeys(missing, ErrorCode.TRANSACTION_ABORTABLE))
    )


def _check_may_write(entry: TxnEntry, identity: ProducerIdAndEpoch) -> Reject | None:
    """Refuse every identity but the client's, and the client while it has a transaction to settle.

    A kept transaction takes no more data, least of all from its old writer (KIP-939); partitions that have
    the transaction open verify by themselves (`verifying`).
    """
    if identity != entry.client:
        return refuse_identity(entry, identity)
    # KIP-98: the next transaction begins after the markers of the last one, or they would end it, too.
    if isinstance(entry.phase, DecidedPhase):
        return CONCURRENT_TRANSACTIONS
    if entry.is_kept:
        return Reject(
            ErrorCode.INVALID_TXN_STATE,
            f"{entry.transactional_id!r} has a prepared transaction of {entry.described_identity}, which"
            " takes no more records. Commit or abort it first",
        )
    if isinstance(entry.phase, IdlePhase) and entry.client.epoch > WRITER_EPOCH_MAX:
        # Left by an abort under an older version: no epoch is left for the markers of another transaction.
        return Reject(
            ErrorCode.PRODUCER_FENCED,
            f"the epochs of {identity} are used up; nothing was added. Initialize the producer again",
        )
    return None
