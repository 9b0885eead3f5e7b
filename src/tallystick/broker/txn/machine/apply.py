"""State changes of entries: the only place where they happen, live and on replay alike [TXN-2]."""

from collections.abc import Callable, Collection, Mapping
from typing import assert_never

from tallystick.broker.txn.machine.commands import EntryRemoved, EntryStored, MarkerProgress, TxnEvent
from tallystick.broker.txn.machine.model import PREVIOUS_STATES, DecidedPhase, TxnEntry
from tallystick.kernel.check import check
from tallystick.kernel.ids import ProducerId, TransactionalId
from tallystick.kernel.value import replace


def apply_event(entry: TxnEntry | None, event: TxnEvent) -> TxnEntry | None:
    """Return the entry after `event`; None when the id is removed.

    A record of the log is a whole entry, so that compaction may drop earlier ones.
    """
    match event:
        case EntryStored(entry=new_entry):
            return new_entry
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
    state_before, state_after = before.state, after.state
    if state_before not in PREVIOUS_STATES[state_after]:
        check(False, f"{name}: {state_before.label} -> {state_after.label}")
    older, newer = before.client, after.client
    if older.producer_id == newer.producer_id and older.epoch > newer.epoch:
        check(False, f"{name}: client {older} -> {newer}")
    phase, next_phase = before.phase, after.phase
    if (
        isinstance(phase, DecidedPhase)
        and isinstance(next_phase, DecidedPhase)
        and phase.outcome is not next_phase.outcome
    ):
        check(False, f"{name}: decided twice")


class TxnEntryTable:
    """State of every transactional id as of its last durable Step, found by producer id, too.

    by_id          read-only view; `put` changes it
    partition_for  returns the partition of the transaction log that keeps an id
    """

    def __init__(self, partition_for: Callable[[TransactionalId], int]) -> None:
        self.partition_for = partition_for
        self._by_id: dict[TransactionalId, TxnEntry] = {}
        self._id_by_producer_id: dict[ProducerId, TransactionalId] = {}
        self.by_id: Mapping[TransactionalId, TxnEntry] = self._by_id
        self.get = self._by_id.get

    def put(self, transactional_id: TransactionalId, entry: TxnEntry | None) -> None:
        """Replace an entry; None removes it. All changes go through here."""
        before = self._by_id.get(transactional_id)
        if before is not None:
            self._id_by_producer_id.pop(before.described_identity.producer_id, None)
        if entry is None:
            self._by_id.pop(transactional_id, None)
        else:
            self._by_id[transactional_id] = entry
            self._id_by_producer_id[entry.described_identity.producer_id] = transactional_id

    def remove_partition(self, index: int) -> None:
        """Remove every entry that a partition of the transaction log keeps."""
        for entry in self.list_by_partitions((index,)):
            self.put(entry.transactional_id, None)

    def list_by_partitions(self, indexes: Collection[int]) -> list[TxnEntry]:
        """Return the entries that these partitions of the transaction log keep."""
        return [entry for name, entry in self._by_id.items() if self.partition_for(name) in indexes]

    def find_by_producer_id(self, producer_id: ProducerId) -> TxnEntry | None:
        """Return the entry whose transaction, current or last, has this producer id in the partitions."""
        transactional_id = self._id_by_producer_id.get(producer_id)
        return None if transactional_id is None else self._by_id.get(transactional_id)
