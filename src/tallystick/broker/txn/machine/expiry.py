"""Timeout of transactions and expiration of transactional ids."""

from tallystick.broker.txn.machine.model import IdlePhase, OngoingPhase, TxnConfig, TxnEntry
from tallystick.kernel.ids import TimestampMs


def is_timed_out(entry: TxnEntry, now_ms: TimestampMs) -> bool:
    """Return whether the transaction is past its timeout; never true with two-phase commit [TXN-7]."""
    phase = entry.phase
    if not isinstance(phase, OngoingPhase) or phase.timeout_ms is None:
        return False
    return phase.started_ms + phase.timeout_ms < now_ms


def is_expired(entry: TxnEntry, now_ms: TimestampMs, config: TxnConfig) -> bool:
    """Return whether the id has been unused for transactional.id.expiration.ms."""
    return isinstance(entry.phase, IdlePhase) and (
        entry.updated_ms <= now_ms - config.transactional_id_expiration_ms
    )
