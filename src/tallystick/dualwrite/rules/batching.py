"""Which units of work share one dual write. Pure: no locks, no clock, no database.

A batch is one transaction of a writer: the units that are waiting run in it one after the other, and one
prepare, record, COMMIT and EndTxn decide all of them. One batch takes units at a time; while it commits, the
next one, of another writer, takes those that came meanwhile.

    WAITING -> RUNNING -> READY -> settled with its batch
                  |          `---> WAITING, if the batch was rolled back through no fault of the unit
                  `--> alone: a batch of its own, after a conflict or when it held up the others

A savepoint for each unit costs as much as a short unit itself. So batches do without while no unit fails; one
that fails then takes its batch with it, whose units run again, in savepoints.
"""

from collections import deque
from collections.abc import Iterable
from enum import Enum, auto
from typing import Final, Generic, TypeVar

from tallystick.kernel.settings import BadConfig
from tallystick.kernel.value import Value

U = TypeVar("U")

UNITS_MAX: Final = 1000
DEFAULT_UNITS: Final = 64  # PostgreSQL's cache of subtransactions of a backend (PGPROC_MAX_CACHED_SUBXIDS)


class Batching(Value, kw_only=True):
    """How the units of concurrent callers share a dual write.

    max_units          units in one transaction, 1..1000
    max_batch_wait_ms  how long a unit that is ready waits for the others of its batch, before the commit
    """

    max_units: int = DEFAULT_UNITS
    max_batch_wait_ms: int = 200

    def check(self) -> None:
        """Raise BadConfig unless the values are in range."""
        problems = []
        if type(self.max_units) is not int or not 1 <= self.max_units <= UNITS_MAX:
            problems.append(f"max_units: {self.max_units!r} is not a number from 1 to {UNITS_MAX}")
        if type(self.max_batch_wait_ms) is not int or self.max_batch_wait_ms < 1:
            problems.append(f"max_batch_wait_ms: {self.max_batch_wait_ms!r} is not a number of 1 or more")
        if problems:
            raise BadConfig("; ".join(problems))


DEFAULT_BATCHING: Final = Batching()


class BatchPhase(Enum):
    """What a batch is doing."""

    TAKING = auto()
    """It runs units and takes more of them."""
    CLOSED = auto()
    """It runs its last unit, commits, or has ended."""
    OVERTAKEN = auto()
    """A unit held it up, and its transaction was ended in the server: it must not commit."""
    TAKEN_BACK = auto()
    """A unit of it failed outside of a savepoint: it must not commit."""


class Batch(Generic[U]):
    """The units of one dual write."""

    def __init__(self, *, is_alone: bool, has_savepoints: bool = True) -> None:
        self.began_at_ms = 0  # when it took its first unit
        self.running_since_ms = 0
        self.is_alone = is_alone
        self.has_savepoints = has_savepoints
        self.phase = BatchPhase.TAKING
        self.can_be_ended = False  # whether the server can end its transaction from another connection
        self.is_being_ended = False  # while that is under way: its connection must not be used again
        self.running: U | None = None
        self.ready: list[U] = []
        self.unit_count = 0


SAVEPOINT_UNITS_MIN: Final = 256
SAVEPOINT_UNITS_MAX: Final = 65_536


class SavepointPolicy:
    """Decides whether the units of the next batch run in savepoints.

    They do not, until one fails: at most `max_units` have run in vain then. The next `units_min` units have
    savepoints, and after another failure without them twice as many, so that little is repeated however often
    units fail.
    """

    def __init__(self, units_min: int = SAVEPOINT_UNITS_MIN) -> None:
        self._units_min = self._next_units = units_min
        self._units_left = 0

    @property
    def is_due(self) -> bool:
        """Whether units are to run in savepoints."""
        return self._units_left > 0

    def count_failure(self) -> None:
        """Count a batch that was taken back because it had no savepoints."""
        self._units_left = self._next_units
        self._next_units = min(2 * self._next_units, SAVEPOINT_UNITS_MAX)

    def count_units(self, count: int, *, has_savepoints: bool) -> None:
        """Count the units of a batch that has ended, with or without savepoints."""
        if has_savepoints:
            self._units_left = max(0, self._units_left - count)
        elif count:
            self._next_units = max(self._next_units // 2, self._units_min)


class BatchScheduler(Generic[U]):
    """Decides which batch runs which unit. The caller holds a lock around each call."""

    def __init__(self, limits: Batching, savepoints: SavepointPolicy | None = None) -> None:
        self._limits = limits
        self._savepoints = savepoints or SavepointPolicy()
        self._waiting: deque[U] = deque()
        self._alone: deque[U] = deque()
        self._taking: Batch[U] | None = None

    def add(self, unit: U) -> None:
        """Add a unit of a caller."""
        self._waiting.append(unit)

    def add_again(self, units: Iterable[U], *, alone: bool) -> None:
        """Add units once more, whose batch was rolled back.

        Args:
            alone: run each in a batch of its own, because one of them may have been the cause.
        """
        if alone:
            self._alone.extend(units)
        else:
            self._waiting.extendleft(reversed(list(units)))

    def withdraw(self, unit: U) -> bool:
        """Remove a unit whose caller has gone; return False if it is in a batch by now."""
        for queue in (self._waiting, self._alone):
            if unit in queue:
                queue.remove(unit)
                return True
        return False

    def clear(self) -> list[U]:
        """Remove and return all units that have not been started."""
        units = self.list_waiting()
        self._alone.clear()
        self._waiting.clear()
        return units

    @property
    def waiting_count(self) -> int:
        """Number of units that have not been started."""
        return len(self._waiting) + len(self._alone)

    def list_waiting(self) -> list[U]:
        """Return all units that have not been started."""
        return [*self._alone, *self._waiting]

    @property
    def has_work(self) -> bool:
        """Whether a batch can be opened now."""
        return bool(self._alone) or (bool(self._waiting) and self._taking is None)

    def needs_another_driver(self, now_ms: int) -> bool:
        """Return whether there is something to do, or to watch, beside what one driver is about to do."""
        can_take = bool(self._waiting) and self._taking is None
        return len(self._alone) + can_take > 1 or self.ms_until_late(now_ms) is not None

    def open(self) -> Batch[U] | None:
        """Open a batch; None if there are no units, or another batch takes them."""
        if self._alone:
            return Batch(is_alone=True)
        if not self.has_work:
            return None
        self._taking = Batch(is_alone=False, has_savepoints=self._savepoints.is_due)
        return self._taking

    def take(self, batch: Batch[U], now_ms: int) -> U | None:
        """Take the next unit for a batch; None closes the batch, and it is to commit what is ready."""
        queue = self._alone if batch.is_alone else self._waiting
        is_full = batch.unit_count >= (1 if batch.is_alone else self._limits.max_units)
        if batch.phase is not BatchPhase.TAKING or is_full or not queue or self._is_late(batch, now_ms):
            self.close(batch)
            return None
        if not batch.unit_count:
            batch.began_at_ms = now_ms
        batch.unit_count += 1
        batch.running_since_ms = now_ms
        batch.running = queue.popleft()
        return batch.running

    def finish(self, batch: Batch[U], *, ready: bool) -> None:
        """Note that the running unit is over.

        Args:
            ready: its rows and records are in the transaction; otherwise it has taken them back.
        """
        if batch.running is not None and ready:
            batch.ready.append(batch.running)
        batch.running = None

    def end(self, batch: Batch[U]) -> list[U]:
        """End a batch; return the units that were ready, to be settled or added again."""
        self.close(batch)
        if not batch.is_alone and batch.phase is not BatchPhase.TAKEN_BACK:
            self._savepoints.count_units(batch.unit_count, has_savepoints=batch.has_savepoints)
        units, batch.ready, batch.running = batch.ready, [], None
        return units

    def close(self, batch: Batch[U]) -> None:
        """Let a batch take no more units, nor be overtaken. Idempotent."""
        if batch.phase is BatchPhase.TAKING:
            batch.phase = BatchPhase.CLOSED
        if self._taking is batch:
            self._taking = None

    def find_late(self, now_ms: int) -> Batch[U] | None:
        """Return the batch that one unit holds up and that can be ended; None if there is none."""
        batch = self._taking
        if batch is None or batch.running is None or not self._may_be_overtaken(batch):
            return None
        return batch if now_ms >= self._late_at_ms(batch, now_ms) else None

    def overtake(self, batch: Batch[U]) -> list[U]:
        """Let another batch take units: the transaction of this one is to be ended, and must not commit.

        The caller clears `is_being_ended` once it has tried to.
        Returns: what was ready in it, to be added again once the transaction has ended.
        """
        if batch.phase is not BatchPhase.TAKING:
            return []
        self.close(batch)
        batch.phase = BatchPhase.OVERTAKEN
        batch.is_being_ended = True
        units, batch.ready = batch.ready, []
        return units

    def take_back(self, batch: Batch[U]) -> None:
        """Let a batch whose running unit failed without a savepoint take no more units, nor commit."""
        self.close(batch)
        batch.phase = BatchPhase.TAKEN_BACK
        self._savepoints.count_failure()

    def ms_until_late(self, now_ms: int) -> int | None:
        """Return after how many milliseconds `find_late` may return a batch; None if it cannot."""
        batch = self._taking
        if batch is None or not self._may_be_overtaken(batch):
            return None
        return max(1, self._late_at_ms(batch, now_ms) - now_ms)

    def _may_be_overtaken(self, batch: Batch[U]) -> bool:
        """Return whether anyone is held up by the batch, and its transaction can be ended."""
        return batch.can_be_ended and bool(batch.ready or self._waiting)

    def _late_at_ms(self, batch: Batch[U], now_ms: int) -> int:
        """Return when a batch may be overtaken, if its running unit does not end before.

        That unit has half of the limit for itself: on a machine that is overloaded, many units that are
        quick take as long as a slow one, and running them again would overload it the more.
        """
        wait_ms = self._limits.max_batch_wait_ms
        if not batch.unit_count:
            return now_ms + wait_ms
        alone_ms = batch.running_since_ms + wait_ms // 2 if batch.running is not None else 0
        return max(batch.began_at_ms + wait_ms, alone_ms)

    def _is_late(self, batch: Batch[U], now_ms: int) -> bool:
        return bool(batch.unit_count) and now_ms - batch.began_at_ms >= self._limits.max_batch_wait_ms
