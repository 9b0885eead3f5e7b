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

import asyncio
import contextvars
import logging
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Generic, TypeVar

from tallystick.client.errors import AbortRequired, NotSupported
from tallystick.dualwrite import tracing
from tallystick.dualwrite.aio.unit import UnitTransaction
from tallystick.dualwrite.aio.writer import DualWriter, Transaction
from tallystick.dualwrite.batch_rules import (
    BatchRolledBack,
    UnitStopped,
    check_outside_unit,
    create_future_async,
    current_unit,
    join_driver_async,
    may_be_of_unit,
    run_in_context_async,
    settle_future,
    start_driver_async,
    wait_for_future_async,
    wait_notified_async,
)
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
from tallystick.dualwrite.stores.base import AsyncStoreTransaction
from tallystick.dualwrite.stores.refusals import is_conflict
from tallystick.dualwrite.transaction import flush_rows_async
from tallystick.kernel.clock import Clock, SystemClock
from tallystick.metrics.dual_writes import WriteEvent

D = TypeVar("D", bound=AsyncStoreTransaction)
R = TypeVar("R")

_log = logging.getLogger("tallystick.dualwrite")

UNKNOWN_TEXT: Final = (
    "the unit was in a batch by then: whether it is committed is not known to this caller; neither half is "
    "committed without the other"
)


class AsyncQueuedUnit(Generic[D]):
    """One caller's work, on its way to its outcome."""

    def __init__(
        self,
        work: Callable[[Any], Awaitable[Any]],
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
        self.future = create_future_async()
        self.task: Any = None
        self.result: object = None

    def keep_task(self, task: Any) -> None:
        self.task = task

    async def run(self, txn: object) -> Any:
        """Run the work, with the caller's context variables."""
        self.is_running = True
        try:
            return await run_in_context_async(self.context, self.work, txn, self.keep_task)
        finally:
            self.is_running = False

    async def run_alone(self, txn: Transaction[D]) -> Any:
        """Run the work as the only one of its transaction."""
        self.trace.join_current()
        part = UnitTransaction(txn)
        try:
            result = await self.run(part)
            await flush_rows_async(txn.database)
        finally:
            part.mark_ended()
        for send in part.take_sends():
            await send()
        return result

    def succeed(self) -> None:
        """Tell the caller that its unit is committed."""
        settle_future(self.future, self.result)

    def fail(self, exc: BaseException) -> None:
        """Tell the caller why its unit is not committed, or that it is in doubt."""
        settle_future(self.future, exc=exc.cause if isinstance(exc, UnitStopped) else exc)


class AsyncBatchRunner(Generic[D]):
    """Runs the units of concurrent callers in batches, each in one transaction of a writer."""

    def __init__(
        self,
        lend_writer: Callable[[], AbstractAsyncContextManager[DualWriter[D]]],
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
        self._scheduler: BatchScheduler[AsyncQueuedUnit[D]] = BatchScheduler(limits, savepoints)
        self._changed = asyncio.Condition()
        self._drivers: list[Any] = []
        self._running_count = 0
        self._open_txns: dict[Batch[AsyncQueuedUnit[D]], Transaction[D]] = {}
        self._is_closed = False

    async def run(
        self,
        work: Callable[[UnitTransaction[D]], Awaitable[R]],
        *,
        retries: int = 0,
        wait_visible: bool = False,
    ) -> R:
        """Run a unit in a batch and return its result, once both halves are committed."""
        check_outside_unit(self, "run_batched")
        with tracing.trace_unit() as trace:
            unit: AsyncQueuedUnit[D] = AsyncQueuedUnit(
                work, runner=self, retries=retries, wait_visible=wait_visible
            )
            unit.trace = trace
            result: R = await self._run_queued(unit)
            return result

    async def _run_queued(self, unit: AsyncQueuedUnit[D]) -> Any:
        """Add a unit, and wait for its outcome."""
        async with self._changed:
            if self._is_closed:
                raise NotRecovered("the pool is closed")
            self._start_drivers()
            self._scheduler.add(unit)
            self._changed.notify()
        try:
            return await wait_for_future_async(unit.future)
        except BaseException as exc:
            if not unit.future.done():
                await self._give_up(unit, exc)
            raise

    @property
    def waiting_count(self) -> int:
        """Number of units that wait for a batch."""
        return self._scheduler.waiting_count

    async def close(self) -> None:
        """Let open batches end, and refuse the units that wait for one. Idempotent.

        Raises: NotYours inside a unit.
        """
        check_outside_unit(self, "close")
        async with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        for driver in self._drivers:
            await join_driver_async(driver)
        for unit in self._scheduler.clear():
            unit.fail(NotRecovered("the pool was closed before this unit was committed"))

    async def _give_up(self, unit: AsyncQueuedUnit[D], exc: BaseException) -> None:
        """Withdraw the unit of a caller that was interrupted, or say that this is not possible."""
        async with self._changed:
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
            self._drivers.append(start_driver_async(name, self._drive))
            self._running_count += 1

    # ---- drivers

    async def _drive(self) -> None:
        """Open and run batches until the runner is closed."""
        try:
            while await self._wait_for_work():
                await self._overtake_late()
                await self._lend_and_run()
        except BaseException as exc:  # a hook of the user's session may raise anything
            async with self._changed:
                self._running_count -= 1
                if not self._running_count:
                    for unit in self._scheduler.clear():
                        unit.fail(exc)
            raise

    async def _lend_and_run(self) -> None:
        """Run a batch with a writer of the pool, or fail those that waited for one in vain."""
        async with self._changed:
            if not self._scheduler.has_work:
                return
            waiting = self._scheduler.list_waiting()
        try:
            async with self._lend_writer() as writer:
                await self._open_and_run(writer)
        except Exception as exc:
            async with self._changed:
                late = waiting if isinstance(exc, NoFreeId) else self._scheduler.list_waiting()
                for unit in filter(self._scheduler.withdraw, late):
                    unit.fail(exc)

    async def _wait_for_work(self) -> bool:
        """Wait until a batch can be opened or is late; return False once the runner is closed."""
        async with self._changed:
            while not self._is_closed:
                now_ms = self._clock.monotonic_ms()
                if self._scheduler.has_work or self._scheduler.find_late(now_ms) is not None:
                    if self._scheduler.needs_another_driver(now_ms):
                        self._changed.notify()
                    return True
                until_late_ms = self._scheduler.ms_until_late(now_ms)
                await wait_notified_async(
                    self._changed, None if until_late_ms is None else until_late_ms / 1000
                )
            return False

    async def _watch(self, batch: Batch[AsyncQueuedUnit[D]], txn: Transaction[D]) -> None:
        """Let an idle driver watch a batch, if its transaction can be ended in the server.

        Raises: NotSupported by a store that cannot take back one unit of a transaction.
        """
        if not hasattr(txn.database, "begin_unit"):
            name = type(txn.database).__name__
            raise NotSupported("run_batched", f"savepoints in {name}; use `run` with this store")
        async with self._changed:
            self._open_txns[batch] = txn
            batch.can_be_ended = getattr(txn.database, "can_be_terminated", False)
            self._changed.notify()

    async def _stop_watching(self, batch: Batch[AsyncQueuedUnit[D]]) -> None:
        """Let no driver end the transaction any more: its connection goes back to the pool, to others."""
        async with self._changed:
            self._scheduler.close(batch)
            while batch.is_being_ended:
                await wait_notified_async(self._changed, None)
            self._open_txns.pop(batch, None)

    async def _overtake_late(self) -> None:
        """End the transaction of a batch that one unit holds up, and go on without it."""
        async with self._changed:
            batch = self._scheduler.find_late(self._clock.monotonic_ms())
            if batch is None:
                return
            database: Any = self._open_txns[batch].database
            units = self._scheduler.overtake(batch)
        _log.warning("a unit holds up its batch: the server ends it, and %d units run again", len(units))
        try:
            await database.terminate()
        except Exception:  # they run again all the same, and wait for its locks
            _log.warning("the transaction of a batch could not be ended in the server", exc_info=True)
        finally:
            async with self._changed:
                batch.is_being_ended = False
                self._add_again(units, alone=False)
                self._changed.notify_all()

    def _add_again(self, units: Iterable[AsyncQueuedUnit[D]], *, alone: bool) -> None:
        """Add units once more, apart from those whose callers have gone."""
        self._scheduler.add_again([each for each in units if not each.future.done()], alone=alone)

    async def _open_and_run(self, writer: DualWriter[D]) -> None:
        async with self._changed:
            batch = self._scheduler.open()
        if batch is None:
            return
        with tracing.leave_caller():
            if batch.is_alone:
                await self._run_alone(writer, batch)
            else:
                await self._run_batch(writer, batch)
        async with self._changed:
            self._changed.notify()

    async def _take(self, batch: Batch[AsyncQueuedUnit[D]]) -> AsyncQueuedUnit[D] | None:
        async with self._changed:
            unit = self._scheduler.take(batch, self._clock.monotonic_ms())
            if unit is None:
                self._changed.notify()  # another driver may open the next batch while this one commits
            return unit

    async def _run_alone(self, writer: DualWriter[D], batch: Batch[AsyncQueuedUnit[D]]) -> None:
        """Run a unit in a transaction of its own, where any error is the unit's."""
        unit = await self._take(batch)
        if unit is None:
            return
        try:
            unit.result = await writer.run(
                unit.run_alone, retries=unit.retries, wait_visible=unit.wait_visible
            )
        except Exception as exc:
            unit.fail(exc)
        except BaseException as exc:
            unit.fail(exc)
            raise
        else:
            unit.succeed()

    async def _run_batch(self, writer: DualWriter[D], batch: Batch[AsyncQueuedUnit[D]]) -> None:
        """Run units in one dual write, and settle all of them by its outcome."""
        failure: BaseException | None = None
        held_back: list[Any] = []
        try:
            async with writer.transaction() as txn:
                await self._watch(batch, txn)
                try:
                    while (unit := await self._take(batch)) is not None:
                        held_back += await self._run_unit(txn, batch, unit)
                finally:
                    await self._stop_watching(batch)
                if batch.phase is BatchPhase.OVERTAKEN:
                    raise BatchRolledBack("a unit held it up")
                if not batch.ready:
                    raise BatchRolledBack("none of its units is to be committed")
                await self._send_all(batch, held_back)
                txn.wait_visible = any(each.wait_visible for each in batch.ready)
        except WriteInDoubt as doubt:
            failure = await self._resolve(writer, doubt) if writer.owns_doubt(doubt) else doubt
        except Exception as exc:
            failure = exc
        except BaseException as exc:
            await self._end_interrupted(batch, exc)
            raise
        if failure is None:
            writer.note(WriteEvent.BATCH, len(batch.ready))
        await self._settle(batch, failure)

    async def _end_interrupted(self, batch: Batch[AsyncQueuedUnit[D]], exc: BaseException) -> None:
        """Fail the units of a batch whose driver ends. Another driver runs those that it has not taken."""
        async with self._changed:
            running = batch.running
            units = self._scheduler.end(batch)
            self._changed.notify()
        for each in (*units, running):
            if each is not None:
                each.fail(exc)

    async def _run_unit(
        self, txn: Transaction[D], batch: Batch[AsyncQueuedUnit[D]], unit: AsyncQueuedUnit[D]
    ) -> list[Any]:
        """Run one unit [DW-14], and return its sends if they may wait for those of the others.

        Raises: what its savepoint cannot take back, or anything if it has none.
        """
        database: Any = txn.database
        await txn.run_step("begin unit", database.begin_unit, batch.has_savepoints)
        unit.trace.join_current()
        part = UnitTransaction(txn)
        sent_count = 0
        try:
            unit.result = await unit.run(part)
            await flush_rows_async(database)
            part.mark_ended()
            sends = part.take_sends()
            if batch.has_savepoints:  # whose error it is shows only now
                for send in sends:
                    await send()
                    sent_count += 1
            await database.end_unit()
        except Exception as exc:
            part.mark_ended()
            if batch.phase is BatchPhase.OVERTAKEN:
                raise
            if not batch.has_savepoints:
                async with self._changed:
                    self._scheduler.take_back(batch)
                raise BatchRolledBack("a unit failed, and it had no savepoint") from exc
            if sent_count or isinstance(exc, AbortRequired):
                raise BatchRolledBack("some records of a unit were sent, and others refused") from exc
            await txn.run_step("roll back unit", database.roll_back_unit)
            await self._drop(batch, unit, exc)
            return []
        async with self._changed:
            self._scheduler.finish(batch, ready=True)
        return [] if batch.has_savepoints else sends

    async def _send_all(self, batch: Batch[AsyncQueuedUnit[D]], sends: list[Any]) -> None:
        """Send the records of all units, which then share requests. Raises: BatchRolledBack."""
        try:
            for send in sends:
                await send()
        except Exception as exc:
            async with self._changed:
                self._scheduler.take_back(batch)
            raise BatchRolledBack("a record of one of the units was refused") from exc

    async def _drop(self, batch: Batch[AsyncQueuedUnit[D]], unit: AsyncQueuedUnit[D], exc: Exception) -> None:
        """Take a unit out of its batch, which has taken back its rows: it failed, or it runs again alone."""
        async with self._changed:
            self._scheduler.finish(batch, ready=False)
            if is_conflict(exc):
                self._add_again([unit], alone=True)
                self._changed.notify()
                return
        unit.fail(exc)

    async def _resolve(self, writer: DualWriter[D], doubt: WriteInDoubt) -> BaseException | None:
        """Recover after an outcome that is not known; return None if the batch is committed after all."""
        try:
            _log.info("%s", await writer.recover())
        except (Torn, Halted) as exc:
            return exc
        except Exception as exc:  # the outcome may be known by now all the same
            doubt.add_note(f"{type(exc).__name__}: {exc}")
        return None if doubt.outcome() is Outcome.COMMITTED else doubt

    async def _settle(self, batch: Batch[AsyncQueuedUnit[D]], failure: BaseException | None) -> None:
        """Settle every unit of a batch that has ended.

        If it could not even begin, that is true for every unit that waits.
        """
        async with self._changed:
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
