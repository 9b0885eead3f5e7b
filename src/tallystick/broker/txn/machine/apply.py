"""State changes of an entry: the only place where they happen, live and on replay alike [TXN-2]."""

from typing import assert_never

from tallystick.broker.txn.machine.commands import EntryRemoved, EntryStored, MarkerProgress, TxnEvent
from tallystick.broker.txn.machine.model import PREVIOUS_STATES, DecidedPhase, TxnEntry
from tallystick.kernel.check import check
from tallystick.kernel.value import replace


def apply_event(entry: TxnEntry | None, event: TxnEvent) -> TxnEntry | None:
    """Return the entry after `event`; None when the id is removed.

    A record of the log is a whole entry, so that compaction may drop earlier ones.
    """
    match event:
        case EntryStored(entry=stored):
            return stored
        case EntryRemoved():
            return None
        case MarkerProgress(marker_identity=marker, offsets=offsets):
            phase = entry and entry.phase
            if entry is None or not isinstance(phase, DecidedPhase) or phase.marker_identity != marker:
                return entry
            return replace(entry, phase=replace(phase, marker_offsets={**phase.marker_offsets, **offsets}))
        case _:
            assert_never(event)


def check_transition(before: TxnEntry | None, after: TxnEntry) -> None:
    """Raise InvariantBroken where an entry may not follow another [TXN-3] [TXN-4] [TXN-6]."""
    name = after.transactional_id
    if before is None:
        return
    if before.state not in PREVIOUS_STATES[after.state]:
        check(False, f"{name}: {before.state.label} -> {after.state.label}")
    older, newer = before.client, after.client
    if older.producer_id == newer.producer_id and older.epoch > newer.epoch:
        check(False, f"{name}: client {older} -> {newer}")
    if isinstance(before.phase, DecidedPhase) and isinstance(after.phase, DecidedPhase):
        check(before.phase.outcome is after.phase.outcome, f"{name}: decided twice")
