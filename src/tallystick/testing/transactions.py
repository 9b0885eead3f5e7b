"""A driver for the transaction state machine without loop, socket or disk: an in-memory log, a fake clock.

It is deliberately minimal: one command at a time, and markers are written when a test says so. It shows what
the machine decides; tests of waiting and of failing appends use the real driver.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import count
from types import MappingProxyType

from tallystick.broker.txn.codec import decode_batches, encode_batch_of
from tallystick.broker.txn.machine.apply import apply
from tallystick.broker.txn.machine.commands import (
    Answer,
    Command,
    EntryExpired,
    EntryStored,
    Env,
    Event,
    Expire,
    MarkersNoted,
    MarkersWritten,
    SendMarkers,
    Step,
    TimeOut,
    TxnRecord,
)
from tallystick.broker.txn.machine.decide import decide
from tallystick.broker.txn.machine.end_txn import markers_of
from tallystick.broker.txn.machine.expiry import expired, timed_out
from tallystick.broker.txn.machine.model import Decided, TxnConfig, TxnEntry
from tallystick.kernel.check import check
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import Offset, ProducerId, TimestampMs, TopicPartition, TransactionalId

START_MS = 1_700_000_000_000


class TxnWorld:
    """Transactional ids of one partition of `__transaction_state`.

    log        every batch appended, each with the records of one Step
    sent       every order to write markers, in the order given
    in_flight  orders not written yet, in whole or in part
    spares     unused producer ids; a test that depends on them sets its own
    """

    def __init__(self, config: TxnConfig | None = None, spares: Iterable[int] | None = None) -> None:
        self.config = config or TxnConfig()
        self.entries: dict[TransactionalId, TxnEntry] = {}
        self.log: list[bytes] = []
        self.sent: list[SendMarkers] = []
        self.in_flight: dict[TransactionalId, SendMarkers] = {}
        self.elapsed_ms = 0
        self._spares = iter(count(1_000) if spares is None else spares)
        self._spare = ProducerId(next(self._spares))

    def now_ms(self) -> TimestampMs:
        return TimestampMs(START_MS + self.elapsed_ms)

    def env(self, transactional_id: TransactionalId) -> Env:
        return Env(
            transactional_id=transactional_id,
            config=self.config,
            now_ms=self.now_ms(),
            spare_id=self._spare,
        )

    def run(self, transactional_id: TransactionalId, command: Command) -> Answer:
        """Run one command: decide, append, apply, send, answer, always in this order [TXN-1]."""
        step = decide(self.entries.get(transactional_id), command, self.env(transactional_id))
        if isinstance(step, Reject):
            return step
        _check(transactional_id, step)
        if step.used_spare:
            self._spare = ProducerId(next(self._spares, self._spare + 1))
        self._append(step.append)
        self._apply(transactional_id, step.then_apply)
        if step.then_send is not None:
            self.sent.append(step.then_send)
            self.in_flight[transactional_id] = step.then_send
        return step.then_reply

    def _append(self, records: tuple[TxnRecord, ...]) -> None:
        if records:
            self.log.append(encode_batch_of(records, self.now_ms(), self.config.transaction_version))

    def _apply(self, transactional_id: TransactionalId, events: Iterable[Event]) -> None:
        for event in events:
            _keep(self.entries, transactional_id, event)
        entry = self.entries.get(transactional_id)
        if entry is None or not isinstance(entry.phase, Decided):
            self.in_flight.pop(transactional_id, None)

    def put(self, entry: TxnEntry) -> None:
        """Insert an entry that would take 32,766 commands to reach."""
        record = EntryStored(entry=entry)
        self._append((record,))
        self._apply(entry.transactional_id, (record,))

    # ---- events without a client

    def write_markers(
        self,
        transactional_id: TransactionalId,
        only: Iterable[TopicPartition] | None = None,
        gone: Iterable[TopicPartition] = (),
    ) -> Answer | None:
        """Let markers reach the partitions, all or `only` these; those in `gone` no longer exist."""
        send = self.in_flight.get(transactional_id)
        if send is None:
            return None
        absent = frozenset(gone)
        offsets: Mapping[TopicPartition, Offset | None] = MappingProxyType(
            {
                partition: None if partition in absent else Offset(len(self.log))
                for partition in sorted(send.partitions if only is None else only)
            }
        )
        return self.run(transactional_id, MarkersWritten(marker=send.marker, offsets=offsets))

    def pass_time(self, by_ms: int) -> None:
        """Let time pass, then act on what is due at its end."""
        self.elapsed_ms += by_ms
        for transactional_id, entry in list(self.entries.items()):
            if timed_out(entry, self.now_ms()):
                self.run(transactional_id, TimeOut())
            elif expired(entry, self.now_ms(), self.config):
                self.run(transactional_id, Expire())

    def restart(self) -> None:
        """Lose everything but the log, and send the markers of decided transactions again."""
        self.entries = self.replayed()
        sends = {name: send for name, entry in self.entries.items() if (send := markers_of(entry))}
        self.sent += sends.values()
        self.in_flight = sends

    def replayed(self) -> dict[TransactionalId, TxnEntry]:
        """Return the entries that a restart would read back from the log."""
        entries: dict[TransactionalId, TxnEntry] = {}
        for batch in self.log:
            for record in decode_batches(batch):
                _keep(entries, id_of(record), record)
        return entries


def _check(transactional_id: TransactionalId, step: Step) -> None:
    durable = tuple(event for event in step.then_apply if not isinstance(event, MarkersNoted))
    check(step.append == durable, "everything durable is appended, in order [TXN-1]")
    for record in step.append:
        check(id_of(record) == transactional_id, f"a step of {transactional_id!r} wrote {record}")


def _keep(entries: dict[TransactionalId, TxnEntry], transactional_id: TransactionalId, event: Event) -> None:
    entry = apply(entries.get(transactional_id), event)
    if entry is None:
        entries.pop(transactional_id, None)
    else:
        entries[transactional_id] = entry


def id_of(record: TxnRecord) -> TransactionalId:
    return record.transactional_id if isinstance(record, EntryExpired) else record.entry.transactional_id


def durable_view(entry: TxnEntry) -> TxnEntry:
    """Return the part of an entry that the log keeps, which excludes the markers already written."""
    if isinstance(entry.phase, Decided):
        return replace(entry, phase=replace(entry.phase, written=MappingProxyType({})))
    return entry
