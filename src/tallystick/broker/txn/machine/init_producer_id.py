"""InitProducerId: fencing of former clients, and the fate of an open transaction."""

from typing import Final

from tallystick.broker.txn.machine.commands import EntryStored, Env, Initialised, InitProducerId, Step
from tallystick.broker.txn.machine.end_txn import CONCURRENT, take_over
from tallystick.broker.txn.machine.model import (
    EPOCH_BUMP_VERSION,
    Decided,
    Idle,
    Ongoing,
    TxnEntry,
)
from tallystick.broker.txn.machine.producer_epochs import WRITER_EPOCH_MAX, first_pair, next_pair
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import INT32_MAX
from tallystick.kernel.limits import EPOCH_MAX
from tallystick.kernel.value import replace

# INT32_MAX in the log means two-phase commit: after a restart the transaction would never time out.
TIMEOUT_MS_MAX: Final = INT32_MAX - 1


def decide_init(entry: TxnEntry | None, command: InitProducerId, env: Env) -> Step | Reject:
    """Claim a transactional id.

    Source: KIP-98, KIP-360, KIP-939 "Proposed Changes".
    """
    timeout_ms = _checked_timeout(command, env)
    if isinstance(timeout_ms, Reject):
        return timeout_ms
    if entry is None:
        return _begin(command, timeout_ms, env)
    phase = entry.phase
    match phase:
        case Decided():
            # Before any epoch is compared: while Decided, up to three identities are valid.
            return CONCURRENT
        case Idle():
            return _init_idle(entry, command, timeout_ms, env)
        case Ongoing() if command.keep_prepared:
            return _keep(entry, phase, command, timeout_ms, env)
        case Ongoing():
            return _take_over(entry, phase, command, env)


def _checked_timeout(command: InitProducerId, env: Env) -> int | Reject | None:
    """Return the timeout; None for two-phase commit.

    KIP-939: "TransactionTimeoutMs value is ignored if Enable2Pc is specified".
    """
    config = env.config
    if command.enable_2pc and not config.transaction_two_phase_commit_enable:
        return Reject(
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            "transaction.two.phase.commit.enable is false on this broker",
        )
    if (command.enable_2pc or command.keep_prepared) and config.transaction_version < EPOCH_BUMP_VERSION:
        return Reject(
            ErrorCode.UNSUPPORTED_VERSION,
            f"transaction.version is {config.transaction_version}; a pair names one transaction from 2 on",
        )
    if command.enable_2pc:
        return None
    if not 0 < command.timeout_ms <= config.transaction_max_timeout_ms:
        return Reject(
            ErrorCode.INVALID_TRANSACTION_TIMEOUT,
            f"timeout {command.timeout_ms} ms; 1 to {config.transaction_max_timeout_ms} are allowed",
        )
    return min(command.timeout_ms, TIMEOUT_MS_MAX)


def _begin(command: InitProducerId, timeout_ms: int | None, env: Env) -> Step:
    """Begin an id that is new or has expired; a caller that names an epoch had it before the expiration."""
    entry = TxnEntry(
        transactional_id=env.transactional_id,
        phase=Idle(),
        client=first_pair(env.spare_id),
        superseded=command.expected,
        timeout_ms=timeout_ms,
        transaction_version=0,
        updated_ms=env.now_ms,
    )
    stored = EntryStored(entry=entry)
    reply = Initialised(client=entry.client)
    return Step(append=(stored,), then_apply=(stored,), then_reply=reply, used_spare=True, begins=True)


def _init_idle(entry: TxnEntry, command: InitProducerId, timeout_ms: int | None, env: Env) -> Step | Reject:
    """Return the next epoch; or the present one, when the owner of the previous one retries (KIP-360)."""
    if _is_repeated(entry, command, timeout_ms):
        # Nothing is stored, so that the outcome of the last transaction stays visible.
        return Step(then_reply=Initialised(client=entry.client))
    if command.expected not in (None, entry.client):
        return _fenced(entry, command)
    client = next_pair(entry.client, WRITER_EPOCH_MAX, env.spare_id)
    stored = EntryStored(
        entry=replace(
            entry,
            phase=Idle(),
            client=client,
            superseded=command.expected,
            timeout_ms=timeout_ms,
            updated_ms=env.now_ms,
        )
    )
    return Step(
        append=(stored,),
        then_apply=(stored,),
        then_reply=Initialised(client=client),
        used_spare=client.producer_id == env.spare_id,
        begins=True,
    )


def _keep(
    entry: TxnEntry, phase: Ongoing, command: InitProducerId, timeout_ms: int | None, env: Env
) -> Step | Reject:
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
            f" {entry.transaction_version}, where {phase.writer} may name several",
        )
    if _is_repeated(entry, command, timeout_ms):
        return Step(then_reply=Initialised(client=entry.client, ongoing=phase.writer))
    if command.expected not in (None, entry.client):
        return _fenced(entry, command)
    # A writer's epochs end one earlier, for the marker; a client that is not the writer writes nothing yet.
    last_epoch = EPOCH_MAX if entry.is_kept else WRITER_EPOCH_MAX
    client = next_pair(entry.client, last_epoch, env.spare_id)
    # A promise to wait for a decision is never withdrawn; one made now also covers the open transaction.
    open_timeout_ms = None if timeout_ms is None else phase.timeout_ms
    stored = EntryStored(
        entry=replace(
            entry,
            phase=replace(phase, timeout_ms=open_timeout_ms),
            client=client,
            superseded=command.expected,
            timeout_ms=timeout_ms,
            updated_ms=env.now_ms,
        )
    )
    return Step(
        append=(stored,),
        then_apply=(stored,),
        then_reply=Initialised(client=client, ongoing=phase.writer),
        used_spare=client.producer_id == env.spare_id,
    )


def _take_over(entry: TxnEntry, phase: Ongoing, command: InitProducerId, env: Env) -> Step | Reject:
    """Abort the open transaction; the caller retries until that is done.

    Unlike Kafka, refuse a caller with an older epoch before it aborts its successor's transaction.
    """
    if command.expected not in (None, entry.client):
        return _fenced(entry, command)
    return take_over(entry, phase, command.expected, env)


def _is_repeated(entry: TxnEntry, command: InitProducerId, timeout_ms: int | None) -> bool:
    """Return whether this request made the present epoch, and is retried as its answer was lost (KIP-360).

    A request with another timeout is no retry: under an epoch that is not the newest nothing changes [TXN-8].
    Taken as a retry, it would lift or set a timeout, and the first request, delayed, would undo that, even a
    promise never to time out (KIP-939). Kafka stores the timeout instead (ADR 0018).
    """
    repeats = command.expected is not None and command.expected == entry.superseded
    return repeats and timeout_ms == entry.timeout_ms


def _fenced(entry: TxnEntry, command: InitProducerId) -> Reject:
    return Reject(
        ErrorCode.PRODUCER_FENCED,
        f"{entry.transactional_id!r} is used by {entry.client}, the caller has {command.expected}",
    )
