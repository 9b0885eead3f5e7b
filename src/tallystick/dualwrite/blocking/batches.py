# Generated from dualwrite/aio/batches.py by tools/async_to_sync.py. Do not edit it:
# change the source and run `make format`.
"""Batches of a pool: units of concurrent callers that share one prepare, one COMMIT and one EndTxn.

A caller adds its unit and waits. Drivers, one for each writer of the pool, open batches and run the units,
one after the other; `batching` decides which. What becomes of a unit:

- it raises: its rows are rolled back to its savepoint, its records are not sent; the others go on. In a batch
  without savepoints all units are taken back instead, and run again in a batch that has them;
- it meets a deadlock or a serialization failure: the same, and it runs once more, alone;
- its batch is rolled back through a unit's fault: every unit runs once more, alone;
- its batch is in doubt: recovery decides for all of them;
- another unit holds up the batch: the server ends the transaction, the units that were ready run again in the
  next batch, and the slow one alone.
"""

import contextvars
import logging
import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, Final, Generic, TypeVar

from tallystick.client.errors import AbortRequired, NotSupported
from tallystick.dualwrite import tracing
from tallystick.dualwrite.batch_rules import (
    BatchRolledBack,
    UnitStopped,
    check_outside_unit,
    create_future,
    current_unit,
    join_driver,
    may_be_of_unit,
    run_in_context,
    settle_future,
    start_driver,
    wait_for_future,
    wait_notified,
)
from tallystick.dualwrite.blocking.unit import UnitTransaction
from tallystick.dualwrite.blocking.writer import DualWriter, Transaction
from tallystick.dualwrite.errors import (
    Halted,
    NoFreeId,
    NotRecovered,
    NotVisible,
    Outcome,
    Torn,
    WriteInDoubt,
)
from tallystick.dualwrite.rules.batching import (
    Batch,
    Batching,
    BatchPhase,
    BatchScheduler,
    SavepointPolicy,
)
from tallystick.dualwrite.stores.base import StoreTransaction
from tallystick.dualwrite.stores.refusals import is_conflict
from tallystick.dualwrite.transaction import flush_rows
from tallystick.kernel.clock import Clock, SystemClock
from tallystick.metrics.dual_writes import WriteEvent

D = TypeVar("D", bound=StoreTransaction)
R = TypeVar("R")

_log = logging.getLogger("tallystick.dualwrite")

UNKNOWN_TEXT: Final = (
    "the unit was in a batch by then: whether it is committed is not known to this caller; neither half is "
    "committed without the other"
)


class QueuedUnit(Generic[D]):
    """One caller's work, on its way to its outcome."""

    def __init__(
        self,
        work: Callable[[Any], Any],
        *,
        runner: object = None,
        retries: int = 0,
        wait_visible: bool = False,
    ) -> None:
        self.work = work
        self.runner = runner
        self.retries = retries
        self.wait_visible = wait_visible
        self.trace = tracing.UNTRACED
        self.context = contextvars.copy_context()
        self.context.run(current_unit.set, self)
        self.is_running = False
        self.future = create_future()
        self.task: Any = None
        self.result: object = None

    def keep_task(self, task: Any) -> None:
        self.task = task

    def run(self, txn: object) -> Any:
        """Run the work, with the caller's context variables."""
        self.is_running = True
        try:
            return run_in_context(self.context, self.work, txn, self.keep_task)
        finally:
            self.is_running = False

    def run_alone(self, txn: Transaction[D]) -> Any:
        """Run the work as the only one of its transaction."""
        self.trace.join_current()
        part = UnitTransaction(txn)
        try:
            result = self.run(part)
            flush_rows(txn.database)
        finally:
            part.mark_ended()
        for send in part.take_sends():
            send()
        return result

    def succeed(self) -> None:
        """Tell the caller that its unit is committed."""
        settle_future(self.future, self.result)

    def fail(self, exc: BaseException) -> None:
        """Tell the caller why its unit is not committed, or that it is in doubt."""
        settle_future(self.future, exc=exc.cause if isinstance(exc, UnitStopped) else exc)


class BatchRunner(Generic[D]):
    """Runs the units of concurrent callers in batches, each in one transaction of a writer."""

    def __init__(
        self,
        lend_writer: Callable[[], AbstractContextManager[DualWriter[D]]],
        limits: Batching,
        *,
        driver_count: int,
        clock: Clock | None = None,
        savepoints: SavepointPolicy | None = None,
    ) -> None:
        """Configure the runner; its drivers start with the first unit.

        Args:
            lend_writer: lends a writer that is ready, for one batch.
            driver_count: number of batches that are open at the same time.
            savepoints: whether units run in savepoints; by default until one fails they do not.
        Raises: BadConfig.
        """
        limits.check()
        self._lend_writer = lend_writer
        self._driver_count = driver_count
        self._clock = clock or SystemClock()
        self._scheduler: BatchScheduler[QueuedUnit[D]] = BatchScheduler(limits, savepoints)
        self._changed = threading.Condition()
        self._drivers: list[Any] = []
        self._running_count = 0
        self._open_txns: dict[Batch[QueuedUnit[D]], Transaction[D]] = {}
        self._is_closed = False

    def run(
        self,
        work: Callable[[UnitTransaction[D]], R],
        *,
        retries: int = 0,
        wait_visible: bool = False,
    ) -> R:
        """Run a unit in a batch and return its result, once both halves are committed."""
        check_outside_unit(self, "run_batched")
        with tracing.trace_unit() as trace:
            unit: QueuedUnit[D] = QueuedUnit(work, runner=self, retries=retries, wait_visible=wait_visible)
            unit.trace = trace
            result: R = self._run_queued(unit)
            return result

    def _run_queued(self, unit: QueuedUnit[D]) -> Any:
        """Add a unit, and wait for its outcome."""
        with self._changed:
            if self._is_closed:
                raise NotRecovered("the pool is closed")
            self._start_drivers()
            self._scheduler.add(unit)
            self._changed.notify()
        try:
            return wait_for_future(unit.future)
        except BaseException as exc:
            if not unit.future.done():
                self._give_up(unit, exc)
            raise

    @property
    def waiting_count(self) -> int:
        """Number of units that wait for a batch."""
        return self._scheduler.waiting_count

    def close(self) -> None:
        """Let open batches end, and refuse the units that wait for one. Idempotent.

        Raises: NotYours inside a unit.
        """
        check_outside_unit(self, "close")
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        for driver in self._drivers:
            join_driver(driver)
        for unit in self._scheduler.clear():
            unit.fail(NotRecovered("the pool was closed before this unit was committed"))

    def _give_up(self, unit: QueuedUnit[D], exc: BaseException) -> None:
        """Withdraw the unit of a caller that was interrupted, or say that this is not possible."""
        with self._changed:
            is_withdrawn = self._scheduler.withdraw(unit)
        unit.future.cancel()
        if is_withdrawn:
            return
        if unit.task is not None and not unit.task.done():
            unit.task.cancel()
        exc.add_note(UNKNOWN_TEXT)

    def _start_drivers(self) -> None:
        """Start the drivers, and another for each that was stopped."""
        while self._running_count < self._driver_count:
            name = f"tallystick-batches-{len(self._drivers)}"
            self._drivers.append(start_driver(name, self._drive))
            self._running_count += 1

    # ---- drivers

    def _drive(self) -> None:
        """Open and run batches until the runner is closed."""
        try:
            while self._wait_for_work():
                self._overtake_late()
                self._lend_and_run()
        except BaseException as exc:  # a hook of the user's session may raise anything
            with self._changed:
                self._running_count -= 1
                if not self._running_count:
                    for unit in self._scheduler.clear():
                        unit.fail(exc)
            raise

    def _lend_and_run(self) -> None:
        """Run a batch with a writer of the pool, or fail those that waited for one in vain."""
        with self._changed:
            if not self._scheduler.has_work:
                return
            waiting = self._scheduler.list_waiting()
        try:
            with self._lend_writer() as writer:
                self._open_and_run(writer)
        except Exception as exc:
            with self._changed:
                late = waiting if isinstance(exc, NoFreeId) else self._scheduler.list_waiting()
                for unit in filter(self._scheduler.withdraw, late):
                    unit.fail(exc)

    def _wait_for_work(self) -> bool:
        """Wait until a batch can be opened or is late; return False once the runner is closed."""
        with self._changed:
            while not self._is_closed:
                now_ms = self._clock.monotonic_ms()
                if self._scheduler.has_work or self._scheduler.find_late(now_ms) is not None:
                    if self._scheduler.needs_another_driver(now_ms):
                        self._changed.notify()
                    return True
                until_late_ms = self._scheduler.ms_until_late(now_ms)
                wait_notified(self._changed, None if until_late_ms is None else until_late_ms / 1000)
            return False

    def _watch(self, batch: Batch[QueuedUnit[D]], txn: Transaction[D]) -> None:
        """Let an idle driver watch a batch, if its transaction can be ended in the server.

        Raises: NotSupported by a store that cannot take back one unit of a transaction.
        """
        if not hasattr(txn.database, "begin_unit"):
            name = type(txn.database).__name__
            raise NotSupported("run_batched", f"savepoints in {name}; use `run` with this store")
        with self._changed:
            self._open_txns[batch] = txn
            batch.can_be_ended = getattr(txn.database, "can_be_terminated", False)
            self._changed.notify()

    def _stop_watching(self, batch: Batch[QueuedUnit[D]]) -> None:
        """Let no driver end the transaction any more: its connection goes back to the pool, to others."""
        with self._changed:
            self._scheduler.close(batch)
            while batch.is_being_ended:
                wait_notified(self._changed, None)
            self._open_txns.pop(batch, None)

    def _overtake_late(self) -> None:
        """End the transaction of a batch that one unit holds up, and go on without it."""
        with self._changed:
            batch = self._scheduler.find_late(self._clock.monotonic_ms())
            if batch is None:
                return
            database: Any = self._open_txns[batch].database
            units = self._scheduler.overtake(batch)
        _log.warning("a unit holds up its batch: the server ends it, and %d units run again", len(units))
        try:
            database.terminate()
        except Exception:  # they run again all the same, and wait for its locks
            _log.warning("the transaction of a batch could not be ended in the server", exc_info=True)
        finally:
            with self._changed:
                batch.is_being_ended = False
                self._add_again(units, alone=False)
                self._changed.notify_all()

    def _add_again(self, units: Iterable[QueuedUnit[D]], *, alone: bool) -> None:
        """Add units once more, apart from those whose callers have gone."""
        self._scheduler.add_again([each for each in units if not each.future.done()], alone=alone)

    def _open_and_run(self, writer: DualWriter[D]) -> None:
        with self._changed:
            batch = self._scheduler.open()
        if batch is None:
            return
        with tracing.leave_caller():
            if batch.is_alone:
                self._run_alone(writer, batch)
            else:
                self._run_batch(writer, batch)
        with self._changed:
            self._changed.notify()

    def _take(self, batch: Batch[QueuedUnit[D]]) -> QueuedUnit[D] | None:
        with self._changed:
            unit = self._scheduler.take(batch, self._clock.monotonic_ms())
            if unit is None:
                self._changed.notify()  # another driver may open the next batch while this one commits
            return unit

    def _run_alone(self, writer: DualWriter[D], batch: Batch[QueuedUnit[D]]) -> None:
        """Run a unit in a transaction of its own, where any error is the unit's."""
        unit = self._take(batch)
        if unit is None:
            return
        try:
            unit.result = writer.run(unit.run_alone, retries=unit.retries, wait_visible=unit.wait_visible)
        except Exception as exc:
            unit.fail(exc)
        except BaseException as exc:
            unit.fail(exc)
            raise
        else:
            unit.succeed()

    def _run_batch(self, writer: DualWriter[D], batch: Batch[QueuedUnit[D]]) -> None:
        """Run units in one dual write, and settle all of them by its outcome."""
        failure: BaseException | None = None
        held_back: list[Any] = []
        try:
            with writer.transaction() as txn:
                self._watch(batch, txn)
                try:
                    while (unit := self._take(batch)) is not None:
                        held_back += self._run_unit(txn, batch, unit)
                finally:
                    self._stop_watching(batch)
                if batch.phase is BatchPhase.OVERTAKEN:
                    raise BatchRolledBack("a unit held it up")
                if not batch.ready:
                    raise BatchRolledBack("none of its units is to be committed")
                self._send_all(batch, held_back)
                txn.wait_visible = any(each.wait_visible for each in batch.ready)
        except WriteInDoubt as doubt:
            failure = self._resolve(writer, doubt) if writer.owns_doubt(doubt) else doubt
        except Exception as exc:
            failure = exc
        except BaseException as exc:
            self._end_interrupted(batch, exc)
            raise
        if failure is None:
            writer.note(WriteEvent.BATCH, len(batch.ready))
        self._settle(batch, failure)

    def _end_interrupted(self, batch: Batch[QueuedUnit[D]], exc: BaseException) -> None:
        """Fail the units of a batch whose driver ends. Another driver runs those that it has not taken."""
        with self._changed:
            running = batch.running
            units = self._scheduler.end(batch)
            self._changed.notify()
        for each in (*units, running):
            if each is not None:
                each.fail(exc)

    def _run_unit(self, txn: Transaction[D], batch: Batch[QueuedUnit[D]], unit: QueuedUnit[D]) -> list[Any]:
        """Run one unit [DW-14], and return its sends if they may wait for those of the others.

        Raises: what its savepoint cannot take back, or anything if it has none.
        """
        database: Any = txn.database
        txn.run_step("begin unit", database.begin_unit, batch.has_savepoints)
        unit.trace.join_current()
        part = UnitTransaction(txn)
        sent_count = 0
        try:
            unit.result = unit.run(part)
            flush_rows(database)
            part.mark_ended()
            sends = part.take_sends()
            if batch.has_savepoints:  # whose error it is shows only now
                for send in sends:
                    send()
                    sent_count += 1
            database.end_unit()
        except Exception as exc:
            part.mark_ended()
            if batch.phase is BatchPhase.OVERTAKEN:
                raise
            if not batch.has_savepoints:
                with self._changed:
                    self._scheduler.take_back(batch)
                raise BatchRolledBack("a unit failed, and it had no savepoint") from exc
            if sent_count or isinstance(exc, AbortRequired):
                raise BatchRolledBack("some records of a unit were sent, and others refused") from exc
            txn.run_step("roll back unit", database.roll_back_unit)
            self._drop(batch, unit, exc)
            return []
        with self._changed:
            self._scheduler.finish(batch, ready=True)
        return [] if batch.has_savepoints else sends

    def _send_all(self, batch: Batch[QueuedUnit[D]], sends: list[Any]) -> None:
        """Send the records of all units, which then share requests. Raises: BatchRolledBack."""
        try:
            for send in sends:
                send()
        except Exception as exc:
            with self._changed:
                self._scheduler.take_back(batch)
            raise BatchRolledBack("a record of one of the units was refused") from exc

    def _drop(self, batch: Batch[QueuedUnit[D]], unit: QueuedUnit[D], exc: Exception) -> None:
        """Take a unit out of its batch, which has taken back its rows: it failed, or it runs again alone."""
        with self._changed:
            self._scheduler.finish(batch, ready=False)
            if is_conflict(exc):
                self._add_again([unit], alone=True)
                self._changed.notify()
                return
        unit.fail(exc)

    def _resolve(self, writer: DualWriter[D], doubt: WriteInDoubt) -> BaseException | None:
        """Recover after an outcome that is not known; return None if the batch is committed after all."""
        try:
            _log.info("%s", writer.recover())
        except (Torn, Halted) as exc:
            return exc
        except Exception as exc:  # the outcome may be known by now all the same
            doubt.add_note(f"{type(exc).__name__}: {exc}")
        return None if doubt.outcome() is Outcome.COMMITTED else doubt

    def _settle(self, batch: Batch[QueuedUnit[D]], failure: BaseException | None) -> None:
        """Settle every unit of a batch that has ended.

        If it could not even begin, that is true for every unit that waits.
        """
        with self._changed:
            if not (failure is None or batch.unit_count or isinstance(failure, BatchRolledBack)):
                for each in self._scheduler.clear():
                    each.fail(failure)
            held_up = [] if batch.running is None else [batch.running]
            units = self._scheduler.end(batch)
            if batch.phase is BatchPhase.TAKEN_BACK and failure is not None:
                is_conflicting = is_conflict(failure.__cause__)
                self._add_again(held_up, alone=is_conflicting)
                self._add_again(units, alone=False)
                self._changed.notify()
                return
            if batch.phase is BatchPhase.OVERTAKEN or (failure is not None and _runs_again(failure)):
                self._add_again([*units, *held_up], alone=True)
                self._changed.notify()
                return
        for unit in (*units, *held_up):
            if failure is None or (isinstance(failure, NotVisible) and not unit.wait_visible):
                unit.succeed()
            else:
                unit.fail(failure)


def _runs_again(failure: BaseException) -> bool:
    """Return whether the units of a batch that failed run once more, each alone."""
    if isinstance(failure, WriteInDoubt):
        return failure.outcome() is Outcome.NOT_COMMITTED
    return not isinstance(failure, NotVisible) and may_be_of_unit(failure)
