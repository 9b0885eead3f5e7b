"""Public face of the transaction coordinator: its lifecycle, its state, its commands.

Commands are processed in `logic`; queues, deadlines and lost partitions are in `broker.coordinator.runtime`.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final

from tallystick.broker.coordinator.runtime import answer
from tallystick.broker.server.request_context import RequestContext
from tallystick.broker.txn.logic import REFUSALS, AnswerFuture, TransactionLogic, make_pending
from tallystick.broker.txn.machine.commands import TxnAnswer, TxnCommand
from tallystick.broker.txn.machine.model import TxnEntry, TxnForcedOutcome
from tallystick.broker.txn.marker_sender import MarkerWriter
from tallystick.broker.txn.ports import StartComparison, TransactionStateTopic, TxnSettings
from tallystick.broker.txn.sweeper import TransactionSweeper
from tallystick.kernel.clock import Clock
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import ProducerId, TransactionalId
from tallystick.protocol.transaction_history import TransactionTransition

# Interval at which sweeps check whether loading is over.
LOADING_CHECK_INTERVAL_MS: Final = 100


class TransactionCoordinator:
    """Coordinator of all transactional ids of this broker. Used from the event loop's thread only.

    Lifecycle: create, `start`, `execute` commands, `begin_shutdown`, `stop`.
    """

    def __init__(
        self,
        topic: TransactionStateTopic,
        markers: MarkerWriter,
        new_producer_id: Callable[[], Awaitable[ProducerId]],
        settings: Callable[[], TxnSettings],
        clock: Clock,
        *,
        on_forced_outcome: Callable[[TxnForcedOutcome], None] = lambda outcome: None,
    ) -> None:
        """Create a coordinator that is not started.

        Args:
            settings: returns the current settings; called at every decision, so it must be cheap.
            on_forced_outcome: called once a transaction has ended without its client, durably.
        """
        self._topic = topic
        self._settings = settings
        self._logic = TransactionLogic(
            topic,
            markers,
            new_producer_id,
            settings,
            clock,
            tick=self.tick,
            on_forced_outcome=on_forced_outcome,
        )
        self._runtime = self._logic.runtime
        self._timer = self._runtime.timer
        self._entries = self._logic.entries
        self._loader = self._logic.loader

    # ---- life

    def start(self, comparison: StartComparison | None = None) -> None:
        """Begin to replay the log, and start the timers. Until all is replayed every id answers LOADING.

        A comparison with the partitions is part of that, even where the transaction log no longer exists.
        """
        self._sweeper = TransactionSweeper(
            self._entries.by_id, self._submit_if_idle, self._settings, self._timer
        )
        self._loader.start(len(self._topic.list_partitions()), comparison)
        self._logic.producer_id_pool.refill()
        self._timer.arm(self._sweeper.next_ms)

    def begin_shutdown(self) -> None:
        """Refuse new commands and those that wait undecided: the broker is stopping."""
        self._logic.begin_shutdown()

    async def stop(self) -> None:
        """Finish the appends in flight, cancel the rest. Unsent markers are sent again after a restart."""
        self.begin_shutdown()
        self._logic.marker_sender.stop()
        await self._runtime.stop()
        await self._loader.stop()
        await self._logic.producer_id_pool.stop()

    # ---- reading

    def partition_for(self, transactional_id: TransactionalId) -> int:
        """Return the partition of `__transaction_state` that keeps the id."""
        return self._logic.partition_for(transactional_id)

    def get_entry(self, transactional_id: TransactionalId) -> TxnEntry | Reject | None:
        """Return the entry for reading; an addition or a completion in it may not be durable yet."""
        return self._find_refusal(transactional_id) or self._entries.get(transactional_id)

    def list_entries(self) -> tuple[TxnEntry, ...] | Reject:
        """Return all entries; refuse with LOADING while some are not known yet."""
        if self._runtime.is_stopped:
            return REFUSALS.stopped
        is_loading = self.is_loading or self._runtime.reloader.is_loading
        return REFUSALS.loading if is_loading else tuple(self._entries.by_id.values())

    def list_transitions(self, transactional_id: TransactionalId) -> tuple[TransactionTransition, ...]:
        """Return what has happened to an id, oldest first, as far as it is remembered."""
        return self._logic.history.list_transitions(transactional_id)

    @property
    def is_loading(self) -> bool:
        """Whether the start has yet to read and compare all of the log."""
        return self._loader.loading_task is not None

    @property
    def offline_partition_count(self) -> int:
        """Number of partitions of `__transaction_state` to be read back; their ids are refused until then."""
        return self._runtime.reloader.lost_count

    @property
    def reload_count(self) -> int:
        """Number of times that such a partition was read back and served again."""
        return self._runtime.reloader.reload_count

    def find_by_producer_id(self, producer_id: ProducerId) -> TxnEntry | None:
        """Return the entry whose current or last transaction has this producer id in the partitions."""
        return self._entries.find_by_producer_id(producer_id)

    def _find_refusal(self, transactional_id: TransactionalId) -> Reject | None:
        if self._loader.loading_task is not None and not self._runtime.is_stopped:
            return REFUSALS.loading
        return self._runtime.find_refusal(transactional_id)

    # ---- commands

    async def ensure_topic(self) -> Reject | None:
        """Make sure that `__transaction_state` exists, so that FindCoordinator may name this broker."""
        return REFUSALS.stopped if self._runtime.is_stopped else await self._topic.ensure_exists()

    async def execute(
        self, transactional_id: TransactionalId, command: TxnCommand, requester: RequestContext | None = None
    ) -> TxnAnswer:
        """Run one command. Returns when it is durable and applied, or refused, or overdue.

        Cancelling the caller does not undo it.

        Args:
            requester: the client that asked, for the id's history; None: the broker itself.
        """
        return await self.submit(transactional_id, command, requester)

    def submit(
        self, transactional_id: TransactionalId, command: TxnCommand, requester: RequestContext | None = None
    ) -> AnswerFuture:
        """Do as `execute`; the future is done already where nothing had to be waited for."""
        pending = make_pending(command, requester)
        unavailable = self._find_refusal(transactional_id)
        if unavailable is not None:
            answer(pending, unavailable)
        else:
            self._runtime.submit_internal(transactional_id, pending)
        return pending.future

    def when_durable(self, transactional_id: TransactionalId) -> "asyncio.Future[None] | None":
        """Return a future, done when the answers given so far about the id are durable; None: they are.

        For partition leaders, whose additions to a transaction are answered before (ADR 0050).
        """
        return self._logic.when_durable(transactional_id)

    @asynccontextmanager
    async def pause_commands(self) -> AsyncIterator[Reject | None]:
        """Hold up new commands until exit; on entry, pending ones are durable and `list_entries` is complete.

        For a change of the rules that every decision rests on. One at a time. A Reject means that not all
        writes became durable in time, or that a partition is lost.
        """
        async with self._runtime.pause_commands(self._list_unfinished) as is_settled:
            if is_settled:
                yield REFUSALS.lost if self._runtime.reloader else None
            else:
                yield REFUSALS.timed_out

    def _list_unfinished(self) -> Sequence["asyncio.Future[None]"]:
        refill = self._logic.producer_id_pool.refill_task
        is_awaited = refill is not None and any(self._logic.producer_id_pool.iter_waiting())
        return [
            *([refill] if refill is not None and is_awaited else []),
            *self._logic.list_unsynced(),
        ]

    def tick(self) -> int:
        """Run everything that is due.

        Returns:
            Monotonic milliseconds of the next deadline.
        """
        now_ms = self._timer.monotonic_ms()
        deadline_ms = self._runtime.answer_overdue(now_ms)
        self._logic.marker_sender.retry_due(now_ms)
        if self._loader.loading_task is not None:
            return now_ms + LOADING_CHECK_INTERVAL_MS
        self._runtime.reloader.run_due(now_ms)
        self._sweeper.run()
        next_ms = self._sweeper.next_ms
        return next_ms if deadline_ms is None else min(deadline_ms, next_ms)

    def _submit_if_idle(self, transactional_id: TransactionalId, command: TxnCommand) -> None:
        """Submit a command without waiting for it; an id that is busy is left to the next sweep."""
        if transactional_id not in self._runtime.command_queues:
            self.submit(transactional_id, command)
