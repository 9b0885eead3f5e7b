"""A driver for the transaction state machine without loop, socket or disk: an in-memory log, a fake clock.

It is deliberately minimal: one command at a time, and markers are written when a test says so. It shows what
the machine decides; tests of waiting and of failing appends use the real driver.
"""

from collections.abc import Iterable, Mapping
from itertools import count
from types import MappingProxyType

from tallystick.broker.txn.codec import decode_batches, encode_batch_of
from tallystick.broker.txn.history import TransactionHistory
from tallystick.broker.txn.machine.apply import apply_event
from tallystick.broker.txn.machine.commands import (
    AbortTimedOut,
    EntryRemoved,
    EntryStored,
    MarkerProgress,
    MarkerRequest,
    MarkersWritten,
    RemoveExpiredId,
    TxnAnswer,
    TxnCommand,
    TxnEnv,
    TxnEvent,
    TxnRecord,
    TxnStep,
)
from tallystick.broker.txn.machine.decide import decide
from tallystick.broker.txn.machine.end_txn import find_missing_markers
from tallystick.broker.txn.machine.model import DecidedPhase, TxnConfig, TxnEntry, is_expired, is_timed_out
from tallystick.kernel.check import check
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import Offset, ProducerId, TimestampMs, TopicPartition, TransactionalId
from tallystick.kernel.value import replace
from tallystick.protocol.records import decode_records
from tallystick.protocol.transaction_history import RecordedState, decode_recorded_state

START_MS = 1_700_000_000_000


class TxnMachineHarness:
    """Transactional ids of one partition of `__transaction_state`.

    log              every batch appended, each with the records of one Step
    sent_markers     every order to write markers, in the order given
    pending_markers  orders not written yet, in whole or in part
    spares           unused producer ids; a test that depends on them sets its own
    history          what was applied, as the coordinator notes it [HIS-1]
    """

    def __init__(self, config: TxnConfig | None = None, spares: Iterable[int] | None = None) -> None:
        self.config = config or TxnConfig()
        self.entries: dict[TransactionalId, TxnEntry] = {}
        self.log: list[bytes] = []
        self.history = TransactionHistory()
        self.sent_markers: list[MarkerRequest] = []
        self.pending_markers: dict[TransactionalId, MarkerRequest] = {}
        self.elapsed_ms = 0
        self._producer_ids = iter(count(1_000) if spares is None else spares)
        self._next_producer_id = ProducerId(next(self._producer_ids))

    def now_ms(self) -> TimestampMs:
        return TimestampMs(START_MS + self.elapsed_ms)

    def new_env(self, transactional_id: TransactionalId) -> TxnEnv:
        return TxnEnv(
            transactional_id=transactional_id,
            config=self.config,
            now_ms=self.now_ms(),
            spare_producer_id=self._next_producer_id,
        )

    def run(self, transactional_id: TransactionalId, command: TxnCommand) -> TxnAnswer:
        """Run one command: decide, append, apply, send, answer, always in this order [TXN-1]."""
        step = decide(self.entries.get(transactional_id), command, self.new_env(transactional_id))
        if isinstance(step, Reject):
            return step
        _check_step(transactional_id, step)
        if step.uses_spare_id:
            self._next_producer_id = ProducerId(next(self._producer_ids, self._next_producer_id + 1))
        self._append(step.records)
        self._apply(transactional_id, step.events)
        self.history.note_applied(step.records, None, self.now_ms)
        if step.marker_request is not None:
            self.sent_markers.append(step.marker_request)
            self.pending_markers[transactional_id] = step.marker_request
        return step.reply

    def _append(self, records: tuple[TxnRecord, ...]) -> None:
        if records:
            self.log.append(encode_batch_of(records, self.now_ms(), self.config.transaction_version))

    def _apply(self, transactional_id: TransactionalId, events: Iterable[TxnEvent]) -> None:
        for event in events:
            _apply_event(self.entries, transactional_id, event)
        entry = self.entries.get(transactional_id)
        if entry is None or not isinstance(entry.phase, DecidedPhase):
            self.pending_markers.pop(transactional_id, None)

    def insert_entry(self, entry: TxnEntry) -> None:
        """Insert an entry that would take 32,766 commands to reach."""
        record = EntryStored(entry=entry)
        self._append((record,))
        self._apply(entry.transactional_id, (record,))
        self.history.note_applied((record,), None, self.now_ms)

    # ---- events without a client

    def write_markers(
        self,
        transactional_id: TransactionalId,
        only: Iterable[TopicPartition] | None = None,
        deleted_partitions: Iterable[TopicPartition] = (),
    ) -> TxnAnswer | None:
        """Let markers reach the partitions, all or `only` these; those in `gone` no longer exist."""
        send = self.pending_markers.get(transactional_id)
        if send is None:
            return None
        absent = frozenset(deleted_partitions)
        offsets: Mapping[TopicPartition, Offset | None] = MappingProxyType(
            {
                partition: None if partition in absent else Offset(len(self.log))
                for partition in sorted(send.partitions if only is None else only)
            }
        )
        return self.run(
            transactional_id, MarkersWritten(marker_identity=send.marker_identity, offsets=offsets)
        )

    def pass_time(self, by_ms: int) -> None:
        """Let time pass, then act on what is due at its end."""
        self.elapsed_ms += by_ms
        for transactional_id, entry in list(self.entries.items()):
            if is_timed_out(entry, self.now_ms()):
                self.run(transactional_id, AbortTimedOut())
            elif is_expired(entry, self.now_ms(), self.config):
                self.run(transactional_id, RemoveExpiredId())

    def restart(self) -> None:
        """Lose everything but the log, and send the markers of decided transactions again."""
        self.entries = self.replay_entries()
        self.history = self.replay_history()
        sends = {name: send for name, entry in self.entries.items() if (send := find_missing_markers(entry))}
        self.sent_markers += sends.values()
        self.pending_markers = sends

    def replay_entries(self) -> dict[TransactionalId, TxnEntry]:
        """Return the entries that a restart would read back from the log."""
        entries: dict[TransactionalId, TxnEntry] = {}
        for batch in self.log:
            for record in decode_batches(batch):
                _apply_event(entries, transactional_id_of(record), record)
        return entries

    def replay_history(self) -> TransactionHistory:
        """Return the history that the log tells."""
        history = TransactionHistory()
        states: dict[str, list[RecordedState]] = {}
        for batch in self.log:
            for record in decode_records(batch):
                recorded_state = decode_recorded_state(record.key or b"", record.value, record.timestamp_ms)
                if recorded_state is not None:
                    states.setdefault(recorded_state[0], []).append(recorded_state[1])
        for name, some in states.items():
            history.note_recorded(TransactionalId(name), some)
        return history


def _check_step(transactional_id: TransactionalId, step: TxnStep) -> None:
    durable = tuple(event for event in step.events if not isinstance(event, MarkerProgress))
    check(step.records == durable, "everything durable is appended, in order [TXN-1]")
    for record in step.records:
        check(
            transactional_id_of(record) == transactional_id, f"a step of {transactional_id!r} wrote {record}"
        )


def _apply_event(
    entries: dict[TransactionalId, TxnEntry], transactional_id: TransactionalId, event: TxnEvent
) -> None:
    entry = apply_event(entries.get(transactional_id), event)
    if entry is None:
        entries.pop(transactional_id, None)
    else:
        entries[transactional_id] = entry


def transactional_id_of(record: TxnRecord) -> TransactionalId:
    return record.transactional_id if isinstance(record, EntryRemoved) else record.entry.transactional_id


def durable_view(entry: TxnEntry) -> TxnEntry:
    """Return the part of an entry that the log keeps, which excludes the markers already written."""
    if isinstance(entry.phase, DecidedPhase):
        return replace(entry, phase=replace(entry.phase, marker_offsets=MappingProxyType({})))
    return entry
