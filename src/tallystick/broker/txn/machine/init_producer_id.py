"""InitProducerId: it fences former clients, and aborts or keeps an open transaction."""

from typing import Final

from tallystick.broker.txn.machine.commands import (
    EntryStored,
    InitProducerId,
    InitProducerIdResult,
    TxnEnv,
    TxnStep,
)
from tallystick.broker.txn.machine.end_txn import CONCURRENT_TRANSACTIONS, abort_for_init
from tallystick.broker.txn.machine.model import (
    DecidedPhase,
    IdlePhase,
    OngoingPhase,
    TxnEntry,
)
from tallystick.broker.txn.machine.producer_epochs import WRITER_EPOCH_MAX, bump_epoch, start_producer_id
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import EPOCH_BUMP_VERSION, INT32_MAX
from tallystick.kernel.limits import EPOCH_MAX
from tallystick.kernel.value import replace

# INT32_MAX in the log means two-phase commit: after a restart the transaction would never time out.
TIMEOUT_MS_MAX: Final = INT32_MAX - 1


def decide_init_producer_id(entry: TxnEntry | None, command: InitProducerId, env: TxnEnv) -> TxnStep | Reject:
    """Claim a transactional id.

    Source: KIP-98, KIP-360, KIP-939 "Proposed Changes".
    """
    timeout_ms = _check_timeout(command, env)
    if isinstance(timeout_ms, Reject):
        return timeout_ms
    if entry is None:
        return _create_entry(command, timeout_ms, env)
    phase = entry.phase
    match phase:
        case DecidedPhase():
            # KIP-939: before any epoch is compared, since up to three identities are valid while Decided.
            return CONCURRENT_TRANSACTIONS
        case IdlePhase():
            return _init_idle(entry, command, timeout_ms, env)
        case OngoingPhase() if command.keep_prepared:
            return _keep_transaction(entry, phase, command, timeout_ms, env)
        case OngoingPhase():
            # KIP-98: a new incarnation does not know what the former one wrote, so that it is aborted.
            return _abort_ongoing(entry, phase, command, env)


def _check_timeout(command: InitProducerId, env: TxnEnv) -> int | Reject | None:
    """Return the timeout; None for two-phase commit.

    KIP-939: "TransactionTimeoutMs value is ignored if Enable2Pc is specified".
    """
    config = env.config
    # KIP-939: an administrator has to allow transactions that no timeout ends.
    if command.enable_2pc and not config.transaction_two_phase_commit_enable:
        return Reject(
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            "two-phase commit is disabled on this broker; nothing was changed. Set"
            " transaction.two.phase.commit.enable=true to allow it",
        )
    # KIP-939 identifies a prepared transaction by producer id and epoch, which only version 2 makes unique.
    if (command.enable_2pc or command.keep_prepared) and config.transaction_version < EPOCH_BUMP_VERSION:
        return Reject(
            ErrorCode.UNSUPPORTED_VERSION,
            f"two-phase commit needs transaction.version 2, but {config.transaction_version} is finalized;"
            " nothing was changed. Raise the feature level",
        )
    if command.enable_2pc:
        return None
    if not 0 < command.timeout_ms <= config.transaction_max_timeout_ms:
        return Reject(
            ErrorCode.INVALID_TRANSACTION_TIMEOUT,
            f"transaction.timeout.ms is {command.timeout_ms}; it must be 1 to"
            f" {config.transaction_max_timeout_ms} (transaction.max.timeout.ms of the broker)",
        )
    return min(command.timeout_ms, TIMEOUT_MS_MAX)


def _create_entry(command: InitProducerId, timeout_ms: int | None, env: TxnEnv) -> TxnStep:
    """Begin an id that is new or has expired; a caller that names an epoch had it before the expiration."""
    entry = TxnEntry(
        transactional_id=env.transactional_id,
        phase=IdlePhase(),
        client=start_producer_id(env.spare_producer_id),
        previous_identity=command.expected_identity,
        timeout_ms=timeout_ms,
        transaction_version=0,
        updated_ms=env.now_ms,
    )
    event = EntryStored(entry=entry)
    reply = InitProducerIdResult(client=entry.client)
    return TxnStep(records=(event,), events=(event,), reply=reply, uses_spare_id=True, may_be_refused=True)


def _init_idle(
    entry: TxnEntry, command: InitProducerId, timeout_ms: int | None, env: TxnEnv
) -> TxnStep | Reject:
    """Return the next epoch; or the present one, when the owner of the previous one retries (KIP-360)."""
    if _is_retry(entry, command, timeout_ms):
        # Nothing is stored, so that the outcome of the last transaction stays visible.
        return TxnStep(reply=InitProducerIdResult(client=entry.client))
    # KIP-360: a client may bump its own epoch; without one it is a new incarnation, which fences the former.
    if command.expected_identity not in (None, entry.client):
        return _refuse_fenced(entry, command)
    client = bump_epoch(entry.client, WRITER_EPOCH_MAX, env.spare_producer_id)
    event = EntryStored(
        entry=replace(
            entry,
            phase=IdlePhase(),
            client=client,
            previous_identity=command.expected_identity,
            timeout_ms=timeout_ms,
            updated_ms=env.now_ms,
        )
    )
    return TxnStep(
        records=(event,),
        events=(event,),
        reply=InitProducerIdResult(client=client),
        uses_spare_id=client.producer_id == env.spare_producer_id,
        may_be_refused=True,
    )


def _keep_transaction(
    entry: TxnEntry, phase: OngoingPhase, command: InitProducerId, timeout_ms: int | None, env: TxnEnv
) -> TxnStep | Reject:
    """Hand a transaction in doubt to a new incarnation of its client [TXN-4].

    `writer` stays: the data and its markers must keep matching, and so must the token in a database. `client`
    moves, so that the previous incarnation is fenced. Moving neither was considered and rejected: two live
    clients on one epoch share sequence numbers, and each swallows the other's records.

    Source: KIP-939 "Proposed Changes", the example with two overflows, steps 4 to 8, and "Skip Epoch Bump
        When KeepPreparedTxn=true".
    """
    if entry.transaction_version < EPOCH_BUMP_VERSION:
        return Reject(
            ErrorCode.UNSUPPORTED_VERSION,
            f"the open transaction of {entry.transactional_id!r} was begun under transaction version"
            f" {entry.transaction_version}, where {phase.writer} may name several transactions; it stays"
            " open. Initialize without keepPreparedTxn to abort it",
        )
    if _is_retry(entry, command, timeout_ms):
        return TxnStep(reply=InitProducerIdResult(client=entry.client, ongoing_identity=phase.writer))
    if command.expected_identity not in (None, entry.client):
        return _refuse_fenced(entry, command)
    # A writer's epochs end one earlier, for the marker; a client that is not the writer writes nothing yet.
    last_epoch = EPOCH_MAX if entry.is_kept else WRITER_EPOCH_MAX
    client = bump_epoch(entry.client, last_epoch, env.spare_producer_id)
    # KIP-939: a participant that is prepared "must remain in-doubt until it receives the coordinator's
    # decision": a promise to wait is never withdrawn, and one made now also covers the open transaction.
    open_timeout_ms = None if timeout_ms is None else phase.timeout_ms
    event = EntryStored(
        entry=replace(
            entry,
            phase=replace(phase, timeout_ms=open_timeout_ms),
            client=client,
            previous_identity=command.expected_identity,
            timeout_ms=timeout_ms,
            updated_ms=env.now_ms,
        )
    )
    return TxnStep(
        records=(event,),
        events=(event,),
        reply=InitProducerIdResult(client=client, ongoing_identity=phase.writer),
        uses_spare_id=client.producer_id == env.spare_producer_id,
    )


def _abort_ongoing(
    entry: TxnEntry, phase: OngoingPhase, command: InitProducerId, env: TxnEnv
) -> TxnStep | Reject:
    """Abort the open transaction; the caller retries until that is done.

    Unlike Kafka, refuse a caller with an older epoch before it aborts its successor's transaction.
    """
    if command.expected_identity not in (None, entry.client):
        return _refuse_fenced(entry, command)
    return abort_for_init(entry, phase, command.expected_identity, env)


def _is_retry(entry: TxnEntry, command: InitProducerId, timeout_ms: int | None) -> bool:
    """Return whether this request made the present epoch, and is retried as its answer was lost (KIP-360).

    A request with another timeout is no retry: under an epoch that is not the newest nothing changes [TXN-8].
    Taken as a retry, it would lift or set a timeout, and the first request, delayed, would undo that, even a
    promise never to time out (KIP-939). Kafka stores the timeout instead (ADR 0018).
    """
    repeats = command.expected_identity is not None and command.expected_identity == entry.previous_identity
    return repeats and timeout_ms == entry.timeout_ms


def _refuse_fenced(entry: TxnEntry, command: InitProducerId) -> Reject:
    return Reject(
        ErrorCode.PRODUCER_FENCED,
        f"{entry.transactional_id!r} belongs to {entry.client}, but the caller has"
        f" {command.expected_identity}; nothing was changed. Close this producer, as another one has its"
        " transactional id",
    )
