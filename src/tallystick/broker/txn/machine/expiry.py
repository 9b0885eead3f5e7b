"""What time does to a transactional id."""

from tallystick.broker.txn.machine.model import Idle, Ongoing, TxnConfig, TxnEntry
from tallystick.kernel.ids import TimestampMs


def timed_out(entry: TxnEntry, now_ms: TimestampMs) -> bool:
    """Whether its transaction has been open for longer than its client allowed; never one of 2PC [TXN-7]."""
    phase = entry.phase
    if not isinstance(phase, Ongoing) or phase.timeout_ms is None:
        return False
    return phase.started_ms + phase.timeout_ms < now_ms


def expired(entry: TxnEntry, now_ms: TimestampMs, config: TxnConfig) -> bool:
    """Whether nobody has used the id for so long that it is forgotten."""
    return isinstance(entry.phase, Idle) and (
        entry.updated_ms <= now_ms - config.transactional_id_expiration_ms
    )
