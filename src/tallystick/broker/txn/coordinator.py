"""Public face of the transaction coordinator: its lifecycle, its state, its commands.

Commands are processed in `logic`; lanes, deadlines and lost partitions are in `broker.coordinator.runtime`.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final

from tallystick.broker.coordinator.runtime import answer
from tallystick.broker.txn.logic import REFUSALS, AnswerFuture, TransactionLogic, pending_of
from tallystick.broker.txn.machine.commands import Answer, Command
from tallystick.broker.txn.machine.model import ForcedOutcome, TxnEntry
from tallystick.broker.txn.marker_sender import MarkerSink
from tallystick.broker.txn.ports import Comparison, StateTopic, TxnSettings
from tallystick.broker.txn.sweeper import Sweeps
from tallystick.kernel.clock import Clock
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import ProducerId, TransactionalId

# Interval at which sweeps check whether loading is over.
LOADING_MS: Final = 100


class TransactionCoordinator:
    """Coordinator of all transactional ids of this broker. Used from the event loop's thread only.

    Lifecycle: create, `start`, `execute` commands, `release`, `stop`.
    """

    def __init__(
        self,
        topic: StateTopic,
        markers: MarkerSink,
        new_producer_id: Callable[[], Awaitable[ProducerId]],
        settings: Callable[[], TxnSettings],
        clock: Clock,
        *,
        forced: Callable[[ForcedOutcome], None] = lambda outcome: None,
    ) -> None:
        """Create a coordinator that is not started.

        Args:
            settings: returns the current settings; called at every decision, so it must be cheap.
            forced: called for every transaction that ends without its client, once that is durable.
        """
        self._topic = topic
        self._settings = settings
        self._logic = TransactionLogic(
            topic, markers, new_producer_id, settings, clock, tick=self.tick, forced=forced
        )
        self._runtime = self._logic.runtime
        self._timer = self._runtime.timer
        self._entries = self._logic.entries
        self._loader = self._logic.loader

    # ---- life

    def start(self, comparison: Comparison | None = None) -> None:
        """Begin to replay the log, and start the timers. Until all is replayed every id answers LOADING.

        A comparison with the partitions is part of that, even where the transaction log no longer exists.
        """
        self._sweeps = Sweeps(self._entries.by_id, self._ask_in_passing, self._settings, self._timer)
        self._loader.start(len(self._topic.existing()), comparison)
        self._logic.producer_ids.refill()
        self._timer.arm(self._sweeps.next_ms)

    def release(self) -> None:
        """Refuse new commands and those that wait undecided: the broker is stopping."""
        self._logic.release()

    async def stop(self) -> None:
        """Finish the appends in flight, cancel the rest. Unsent markers are sent again after a restart."""
        self.release()
        self._logic.sender.stop()
        await self._runtime.stop()
        await self._loader.stop()
        await self._logic.producer_ids.stop()

    # ---- reading

    def partition_of(self, transactional_id: TransactionalId) -> int:
        """Return the partition of `__transaction_state` that keeps the id."""
        return self._logic.partition_of(transactional_id)

    def entry(self, transactional_id: TransactionalId) -> TxnEntry | Reject | None:
        """Return the entry as of its last durable Step, for reading."""
        return self._unavailable(transactional_id) or self._entries.get(transactional_id)

    def entries(self) -> tuple[TxnEntry, ...] | Reject:
        """Return all entries; refuse with LOADING while some are not known yet."""
        if self._runtime.is_stopped:
            return REFUSALS.stopped
        is_loading = self.is_loading or self._runtime.partitions.is_loading
        return REFUSALS.loading if is_loading else tuple(self._entries.by_id.values())

    @property
    def is_loading(self) -> bool:
        """Whether the start has yet to read and compare all of the log."""
        return self._loader.loading is not None

    @property
    def offline_partitions(self) -> int:
        """Number of partitions of `__transaction_state` to be read back; their ids are refused until then."""
        return self._runtime.partitions.lost

    @property
    def reloads(self) -> int:
        """Number of times that such a partition was read back and served again."""
        return self._runtime.partitions.total

    def find_writer(self, producer_id: ProducerId) -> TxnEntry | None:
        """Return the entry whose current or last transaction has this producer id in the partitions."""
        return self._entries.find_writer(producer_id)

    def _unavailable(self, transactional_id: TransactionalId) -> Reject | None:
        if self._loader.loading is not None and not self._runtime.is_stopped:
            return REFUSALS.loading
        return self._runtime.refusal(transactional_id)

    # ---- commands

    async def prepare(self) -> Reject | None:
        """Make sure that `__transaction_state` exists, so that FindCoordinator may name this broker."""
        return REFUSALS.stopped if self._runtime.is_stopped else await self._topic.ensure()

    async def execute(self, transactional_id: TransactionalId, command: Command) -> Answer:
        """Run one command. Returns when it is durable and applied, or refused, or overdue.

        Cancelling the caller does not undo it.
        """
        return await self.submit(transactional_id, command)

    def submit(self, transactional_id: TransactionalId, command: Command) -> AnswerFuture:
        """Do as `execute`; the future is done already where nothing had to be waited for."""
        pending = pending_of(command)
        unavailable = self._unavailable(transactional_id)
        if unavailable is not None:
            answer(pending, unavailable)
        else:
            self._runtime.take_in(transactional_id, pending)
        return pending.future

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[Reject | None]:
        """Hold up new commands until exit; on entry, pending ones are durable and `entries` is complete.

        For a change of the rules that every decision rests on. One at a time. A Reject means that not all
        writes became durable in time, or that a partition is lost.
        """
        async with self._runtime.paused(self._unsettled) as is_settled:
            if is_settled:
                yield REFUSALS.lost if self._runtime.partitions else None
            else:
                yield REFUSALS.slow

    def _unsettled(self) -> Sequence["asyncio.Future[None]"]:
        refilling = self._logic.producer_ids.refilling
        return [refilling] if refilling is not None and any(self._logic.producer_ids.waiting()) else []

    def tick(self) -> int:
        """Run everything that is due.

        Returns:
            Monotonic milliseconds of the next deadline.
        """
        now_ms = self._timer.monotonic_ms()
        deadline_ms = self._runtime.answer_overdue(now_ms)
        self._logic.sender.retry_due(now_ms)
        if self._loader.loading is not None:
            return now_ms + LOADING_MS
        self._runtime.partitions.run_due(now_ms)
        self._sweeps.run()
        next_ms = self._sweeps.next_ms
        return next_ms if deadline_ms is None else min(deadline_ms, next_ms)

    def _ask_in_passing(self, transactional_id: TransactionalId, command: Command) -> None:
        """Submit a command without waiting for it; an id that is busy is left to the next sweep."""
        if transactional_id not in self._runtime.lanes:
            self.submit(transactional_id, command)
