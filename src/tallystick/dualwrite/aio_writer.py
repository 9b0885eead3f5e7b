"""The asyncio `DualWriter` and its `Transaction`."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from types import TracebackType
from typing import Final, Generic, Self, TypeVar, cast

from tallystick.admin.aio import Admin
from tallystick.client.aio.consumer import Consumer
from tallystick.client.aio.producer import Column, Producer
from tallystick.client.producer.delivery import BatchDelivery, Delivery
from tallystick.client.transactions.modes import Mode
from tallystick.dualwrite.errors import Halted, Outcome, Torn, WriteInDoubt
from tallystick.dualwrite.offsets import OffsetsOfBlock
from tallystick.dualwrite.recipes import AsyncRecipeRunner, RecipeStep, StepCallback
from tallystick.dualwrite.recovery import Report
from tallystick.dualwrite.session import DualWriteSession, SessionFactories
from tallystick.dualwrite.stores.base import AsyncStore, AsyncStoreTransaction
from tallystick.dualwrite.transaction import (
    DatabaseHalf,
    LeaveOnExit,
    Savepoint,
    begin_savepoint,
    flush_rows_async,
    keep_open_if_forked,
    notify_sent,
    select_producer,
)
from tallystick.dualwrite.writer import DEFAULT_CLUSTER
from tallystick.kernel.clock import SystemClock

D = TypeVar("D", bound=AsyncStoreTransaction)
R = TypeVar("R")

_log = logging.getLogger("tallystick.dualwrite")

_FACTORIES: Final = SessionFactories(
    create_producer=Producer, create_admin=Admin, pause=asyncio.sleep, clock=SystemClock()
)


class Transaction(DatabaseHalf[D]):
    """One open dual write: `tallystick.dualwrite.Transaction`, awaited."""

    def __init__(
        self,
        database: D,
        producers: Mapping[str, Producer],
        driver: AsyncRecipeRunner,
        offsets: OffsetsOfBlock,
    ) -> None:
        super().__init__(database)
        self._producers = producers
        self._driver = driver
        self._offsets = offsets

    async def send(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Iterable[tuple[str, bytes | None]] = (),
        cluster: str | None = None,
    ) -> Delivery:
        """Send one record in this transaction."""
        sent = partial(
            self._get_producer(cluster).send,
            topic,
            value,
            key,
            partition=partition,
            timestamp_ms=timestamp_ms,
            headers=headers,
        )
        return await self._driver.execute_async(RecipeStep("send", topic, sent), sent)

    async def send_batch(
        self,
        topic: str,
        values: Column,
        keys: Column | None = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        cluster: str | None = None,
    ) -> BatchDelivery:
        """Send many records at once in this transaction."""
        sent = partial(
            self._get_producer(cluster).send_batch,
            topic,
            values,
            keys,
            partition=partition,
            timestamp_ms=timestamp_ms,
        )
        return await self._driver.execute_async(RecipeStep("send", topic, sent), sent)

    async def send_offsets(self, consumer: Consumer, *, cluster: str | None = None) -> None:
        """Commit the positions of `consumer` for its group with this transaction (KIP-447)."""
        producer, group = self._get_producer(cluster), consumer.group_metadata()
        note = self._offsets.add(consumer)
        note.positions = positions = {at: await consumer.position(at) for at in consumer.assignment}
        sent = partial(producer.send_offsets_to_transaction, positions, group)
        await self._driver.execute_async(RecipeStep("send offsets", group.group_id, sent), sent)

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[Savepoint]:
        """Open a database savepoint; its `send` is not awaited and takes effect on release."""
        part = Savepoint(self.send, self.send_batch)
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(begin_savepoint(self.database))
            with keep_open_if_forked(self.owning_process, stack):
                yield part
        for send in part.queued_sends:
            await cast("Awaitable[object]", send())

    def _get_producer(self, cluster: str | None) -> Producer:
        self.check_open()
        notify_sent(self._database)
        return select_producer(self._producers, cluster)


class DualWriter(Generic[D]):
    """A writer whose transactions commit in both a database and Kafka, or in neither.

    `tallystick.dualwrite.DualWriter` documents the methods; here they are awaited. Cancelling the task
    counts as an exception in the block. Cancelled while the database commits, the outcome is unknown until
    recover() determines it.
    """

    def __init__(
        self,
        store: AsyncStore[D],
        producer_config: Mapping[str, object] | None = None,
        *,
        clusters: Mapping[str, Mapping[str, object]] | None = None,
        watch: StepCallback | None = None,
        pooled: bool = False,
    ) -> None:
        """Configure the writer without connecting. Raises: BadConfig with all problems; ValueError."""
        if (producer_config is None) == (clusters is None):
            raise ValueError("either producer_config or clusters")
        configs = clusters if producer_config is None else {DEFAULT_CLUSTER: producer_config}
        self._session: DualWriteSession[D, Producer] = DualWriteSession(
            store, configs or {}, _FACTORIES, alone=not pooled
        )
        self._driver = AsyncRecipeRunner(watch)

    async def recover(self, *, accept_torn: bool = False) -> Report:
        """Bring both halves of this writer's id to the same outcome; required before a transaction."""
        with LeaveOnExit(self._session) as block, block:
            return await self._driver.run_async(self._session.recover(accept_torn=accept_torn, block=block))

    async def look(self) -> Report:
        """Report what recover() would find and do now, without claiming or changing anything."""
        return await self._driver.run_async(self._session.look())

    @asynccontextmanager
    async def transaction(self, *, wait_visible: bool = False) -> AsyncIterator[Transaction[D]]:
        """Run a dual write: commit both halves when the block ends, neither if it raises."""
        driver, session = self._driver, self._session
        with LeaveOnExit(session) as block, block:
            database = await driver.run_async(session.begin(block))
            producers = {name: branch.producer for name, branch in session.branches.items()}
            txn = Transaction(database, producers, driver, session.offsets)
            try:
                yield txn
                txn.check_process()
                await flush_rows_async(database)
            except BaseException as exc:
                txn.mark_ended()
                await driver.run_async(session.rollback(database, exc))
                raise
            txn.mark_ended()
            await driver.run_async(session.commit(database, wait_visible=wait_visible))

    async def run(
        self,
        work: Callable[[Transaction[D]], Awaitable[R]],
        *,
        retries: int = 0,
        wait_visible: bool = False,
    ) -> R:
        """Run `work` in a transaction of its own, never apply it twice, and return its result."""
        for left in reversed(range(retries + 1)):
            done: list[R] = []
            try:
                async with self.transaction(wait_visible=wait_visible) as txn:
                    done.append(await work(txn))
            except WriteInDoubt as doubt:
                if not done:  # raised by another writer inside `work`
                    raise
                try:
                    _log.info("%s", await self.recover())
                except (Torn, Halted):
                    raise
                except Exception as exc:  # the outcome may be known by now: do not report a failed write
                    raise doubt from exc
                if doubt.outcome() is Outcome.COMMITTED:
                    return done[0]
                if doubt.outcome() is Outcome.UNKNOWN or not left:
                    raise
            else:
                return done[0]
        raise AssertionError("retries: at least 0")

    @property
    def ready(self) -> bool:
        """Whether a transaction can begin."""
        return self._session.is_ready

    @property
    def modes(self) -> Mapping[str, Mode | None]:
        """The mode that protects a prepared transaction in each cluster, known after recover()."""
        return {name: branch.producer.mode for name, branch in self._session.branches.items()}

    async def close(self) -> None:
        """Close the clients. Idempotent."""
        await self._driver.run_async(self._session.close())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<DualWriter {self._session.ids_text}: {self._session.state.value}>"
