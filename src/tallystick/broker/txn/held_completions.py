"""Completions that wait for the next record of their id, for a bounded time (ADR 0055).

A transaction is complete when its last marker is written. Where the next transaction follows at once, the
record of that is left out: a record is the whole entry, so that the next one says all that this one would
have. Where a power loss may take markers back, the record has their offsets, and goes into the log in one
batch with the next one. What is held here has changed nothing yet [TXN-16]. A crash loses it; the markers are
sent again then.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from tallystick.broker.txn.machine.commands import EntryStored, MarkersWritten, TxnAnswer, TxnRecord, TxnStep
from tallystick.broker.txn.machine.model import TxnEntry
from tallystick.kernel.check import InvariantBroken
from tallystick.kernel.ids import TransactionalId
from tallystick.kernel.value import Value, replace

# An id that rests for this long gets its record.
HELD_MS_MAX: Final = 100
# Time until the next attempt, where the log did not take the record.
RETRY_MS: Final = 1_000
# About a millisecond of work.
RECORDED_PER_TICK: Final = 32


class Timer(Protocol):
    """The clock of the coordinator's deadlines."""

    def monotonic_ms(self) -> int: ...

    def arm(self, at_ms: int) -> None:
        """Call the coordinator's `tick` at this time or before."""
        ...


class HeldCompletion(Value):
    """The command that completes a transaction, and the step that was decided for it."""

    command: MarkersWritten
    step: TxnStep

    @property
    def entry(self) -> TxnEntry:
        """The entry that the step records: decisions about the id rest on it."""
        record = self.step.records[-1]
        if not isinstance(record, EntryStored):
            raise InvariantBroken("a completion stores an entry")
        return record.entry

    def list_later_records(self, step: TxnStep) -> Sequence[TxnRecord]:
        """Return the records of the id's next step without that of the completion, where it has that one."""
        return [each for each in step.records if each is not self.step.records[-1]]


def prepend_completion(completion: TxnStep, step: TxnStep) -> TxnStep:
    """Return a step that records the completion before its own records; itself where it has none."""
    if not step.records:
        return step
    records, events = (*completion.records, *step.records), (*completion.events, *step.events)
    return replace(step, records=records, events=events)


class HeldCompletions:
    """The completion of each id that has one to record. Lives on the loop."""

    def __init__(
        self,
        timer: Timer,
        submit: "Callable[[TransactionalId, MarkersWritten], asyncio.Future[TxnAnswer]]",
    ) -> None:
        """Create an empty table.

        Args:
            timer: clock of the coordinator; wakes it for `record_due`.
            submit: runs a command, also while the broker is stopping.
        """
        self._timer = timer
        self._submit = submit
        self._by_id: dict[TransactionalId, HeldCompletion] = {}
        # Due time, id and completion, in the order of arrival; those that are not held any more stay in it.
        self._due: deque[tuple[int, TransactionalId, HeldCompletion]] = deque()
        self.find = self._by_id.get

    def __len__(self) -> int:
        return len(self._by_id)

    @property
    def next_ms(self) -> int | None:
        """Monotonic milliseconds at which `record_due` should be called; None: nothing is held."""
        due, find = self._due, self._by_id.get
        while due and find(due[0][1]) is not due[0][2]:
            due.popleft()
        return due[0][0] if due else None

    def view(self, entry: TxnEntry) -> TxnEntry:
        """Return an entry as it is to be seen: complete with its last marker, recorded or not."""
        held = self._by_id.get(entry.transactional_id)
        return entry if held is None else held.entry

    def hold(
        self, transactional_id: TransactionalId, held: HeldCompletion, for_ms: int = HELD_MS_MAX
    ) -> None:
        """Hold a completion for a time. Order: all markers are written, and nothing of it is applied."""
        at_ms = self._timer.monotonic_ms() + for_ms
        self._by_id[transactional_id] = held
        self._due.append((at_ms, transactional_id, held))
        self._timer.arm(at_ms)

    def forget(self, transactional_id: TransactionalId) -> None:
        """Drop what is held for an id, whose entry has changed."""
        self._by_id.pop(transactional_id, None)

    def forget_where(self, is_lost: Callable[[TransactionalId], bool]) -> None:
        """Drop what is held for ids whose entries are lost."""
        for transactional_id in [name for name in self._by_id if is_lost(name)]:
            del self._by_id[transactional_id]

    def record_due(self, now_ms: int) -> None:
        """Record the completions that no other record followed soon, a few at a time."""
        due, count = self._due, RECORDED_PER_TICK
        while due and count and due[0][0] <= now_ms:
            _, transactional_id, held = due.popleft()
            if self._by_id.get(transactional_id) is held:
                count -= 1
                self._record(transactional_id, held)

    def record_all(self) -> None:
        """Record all completions now."""
        for transactional_id, held in tuple(self._by_id.items()):
            self._record(transactional_id, held)

    def _record(self, transactional_id: TransactionalId, held: HeldCompletion) -> None:
        def done(_: "asyncio.Future[TxnAnswer]") -> None:
            if self._by_id.get(transactional_id) is held:  # the log did not take the record
                self.hold(transactional_id, held, RETRY_MS)

        answered = self._submit(transactional_id, replace(held.command, may_wait=False))
        if answered.done():
            done(answered)
        else:
            answered.add_done_callback(done)
