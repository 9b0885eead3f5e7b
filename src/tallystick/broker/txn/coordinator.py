"""The transaction coordinator, as the rest of the broker knows it: its life, its state, its commands.

What becomes of a command is in `logic`; lanes, deadlines and lost partitions in `broker.coordinator.runtime`.
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

# How long sweeps wait for the end of loading before they look again.
LOADING_MS: Final = 100


class TransactionCoordinator:
    """All transactional ids of this broker. Owned by the event loop's thread; not to be shared.

    Life: create, `start`, `execute` commands, `release`, `stop`.
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
        """Args:
        settings: as they are now; asked at every decision, so it must be cheap.
        forced: told of every transaction that ends without its client, once that is durable.
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
        """Begin to replay what is there and to keep time. Until all is replayed every id answers LOADING.

        A comparison with the partitions is part of that, even where there is no transaction log any more.
        """
        self._sweeps = Sweeps(self._entries.by_id, self._ask_in_passing, self._settings, self._timer)
        self._loader.start(len(self._topic.existing()), comparison)
        self._logic.producer_ids.refill()
        self._timer.arm(self._sweeps.next_ms)

    def release(self) -> None:
        """Refuse what comes, and whatever waits and has not been begun: the broker is stopping."""
        self._logic.release()

    async def stop(self) -> None:
        """Finish what is being appended, end the rest. Markers on their way are sent again after a start."""
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
        """The entry as of its last durable Step, for reading."""
        return self._unavailable(transactional_id) or self._entries.get(transactional_id)

    def entries(self) -> tuple[TxnEntry, ...] | Reject:
        """All entries; LOADING while some are not known yet."""
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
        """Partitions of `__transaction_state` that are to be read back; their ids are refused till then."""
        return self._runtime.partitions.lost

    @property
    def reloads(self) -> int:
        """How often such a partition was read back, and served again."""
        return self._runtime.partitions.total

    def find_writer(self, producer_id: ProducerId) -> TxnEntry | None:
        """The entry whose transaction, or whose last one, this producer id is in the partitions for."""
        return self._entries.find_writer(producer_id)

    def _unavailable(self, transactional_id: TransactionalId) -> Reject | None:
        if self._loader.loading is not None and not self._runtime.is_stopped:
            return REFUSALS.loading
        return self._runtime.refusal(transactional_id)

    # ---- commands

    async def prepare(self) -> Reject | None:
        """See to it that transactional ids can be kept here: FindCoordinator's promise."""
        return REFUSALS.stopped if self._runtime.is_stopped else await self._topic.ensure()

    async def execute(self, transactional_id: TransactionalId, command: Command) -> Answer:
        """Run one command. Returns when it is durable and applied, or refused, or its time came.

        A caller that is cancelled does not undo it.
        """
        return await self.submit(transactional_id, command)

    def submit(self, transactional_id: TransactionalId, command: Command) -> AnswerFuture:
        """As `execute`; the future is done already where nothing had to be waited for."""
        pending = pending_of(command)
        unavailable = self._unavailable(transactional_id)
        if unavailable is not None:
            answer(pending, unavailable)
        else:
            self._runtime.take_in(transactional_id, pending)
        return pending.future

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[Reject | None]:
        """What is asked for waits until this is left; what was pending is durable, `entries` have it all.

        For a change of the rules that every decision rests on. One at a time. With a Reject the disk keeps
        something back.
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
        """Let everything happen whose time has come.

        Returns: monotonic milliseconds of the next thing to happen.
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
        """What nobody waits for; an id that is busy is asked next time."""
        if transactional_id not in self._runtime.lanes:
            self.submit(transactional_id, command)
