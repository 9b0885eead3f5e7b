"""`DualWriter` and its `Transaction`: rows and records committed together, or not at all.

`AsyncAttempts` runs one piece of work, each time in a transaction of its own, of which at most one is
committed: `rules.retries` decides after each failure. With an idempotency key, a transaction begins with the
key and ends with the result next to it.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from types import TracebackType
from typing import Any, Concatenate, Final, Generic, ParamSpec, Protocol, Self, TypeVar

from tallystick.admin.aio import Admin
from tallystick.client.aio.consumer import Consumer
from tallystick.client.aio.producer import Producer, serialize_record, serialize_rows
from tallystick.client.errors import AbortRequired, SerializationFailed
from tallystick.client.net import backoff
from tallystick.client.producer.batches.columns import Column
from tallystick.client.producer.batches.delivery import BatchDelivery, Delivery
from tallystick.client.serializers import mark_serialized
from tallystick.client.transactions.modes import Mode
from tallystick.dualwrite import tracing
from tallystick.dualwrite.aio.session import AsyncDualWriteSession, AsyncSessionFactories
from tallystick.dualwrite.block.life import count_writer
from tallystick.dualwrite.block.offsets import OffsetsOfBlock
from tallystick.dualwrite.block.steps import AsyncStepRunner, Wait, Watch
from tallystick.dualwrite.block.transaction import (
    DatabaseSide,
    LeaveOnExit,
    Savepoint,
    begin_savepoint,
    bind_queued,
    call_work_async,
    flush_rows_async,
    keep_open_if_forked,
    notify_sent,
    select_producer,
)
from tallystick.dualwrite.errors import HeuristicMixed, RecoveryHalted, WriteInDoubt
from tallystick.dualwrite.rules.conclusions import describe_error
from tallystick.dualwrite.rules.idempotency import (
    IdempotencyKey,
    KeyFound,
    KeyOfCall,
    KeyResult,
    KeyRule,
    check_keys_supported,
    describe_call,
    encode_result,
    get_default_scope,
    note_key,
)
from tallystick.dualwrite.rules.recovery import Report
from tallystick.dualwrite.rules.refusals import is_conflict
from tallystick.dualwrite.rules.retries import (
    DEFAULT_RETRY,
    KEY_CONFLICTS_MAX,
    NextStep,
    Retry,
    decide_next_step,
    to_retry,
)
from tallystick.dualwrite.stores.base import AsyncStore, AsyncStoreTransaction
from tallystick.kernel.clock import SystemClock
from tallystick.metrics.dual_writes import WriteEvent

_log = logging.getLogger("tallystick.dualwrite")

D = TypeVar("D", bound=AsyncStoreTransaction)
R = TypeVar("R")
A = ParamSpec("A")

DEFAULT_CLUSTER: Final = "kafka"
"""Name of the only cluster of a writer that was configured without cluster names."""
_FACTORIES: Final = AsyncSessionFactories(
    create_producer=Producer, create_admin=Admin, pause=asyncio.sleep, clock=SystemClock()
)


class Transaction(DatabaseSide[D]):
    """One open dual write: rows through `session` or `connection`, records through `send`."""

    def __init__(
        self,
        database: D,
        producers: Mapping[str, Producer],
        steps: AsyncStepRunner,
        offsets: OffsetsOfBlock,
    ) -> None:
        super().__init__(database)
        self._producers = producers
        self._steps = steps
        self._offsets = offsets
        self._savepoints: list[Savepoint] = []  # that are open, the outermost first
        self._refusal: BaseException | None = None
        self.kept_result: tuple[IdempotencyKey, str] | None = None

    async def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Iterable[tuple[str, bytes | None]] = (),
        cluster: str | None = None,
    ) -> Delivery:
        """Send one record in this transaction; see `Producer.send`.

        `cluster` is required if the writer has several. Keys and values are bytes, or what the serializers
        of the producer's settings take: what they refuse is not sent, and their error ends the block.
        """
        with self._noting_refusals():
            return await self._steps.run(
                "send",
                topic,
                self._get_producer(cluster).send,
                topic,
                value,
                key,
                partition=partition,
                timestamp_ms=timestamp_ms,
                headers=headers,
            )

    async def send_batch(
        self,
        topic: str,
        values: Column | Sequence[Any],
        keys: Column | Sequence[Any] | None = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        cluster: str | None = None,
    ) -> BatchDelivery:
        """Send many records at once in this transaction; see `Producer.send_batch`."""
        with self._noting_refusals():
            return await self._steps.run(
                "send",
                topic,
                self._get_producer(cluster).send_batch,
                topic,
                values,
                keys,
                partition=partition,
                timestamp_ms=timestamp_ms,
            )

    async def send_offsets(self, consumer: Consumer[Any, Any], *, cluster: str | None = None) -> None:
        """Commit the positions of `consumer` for its group with this transaction (KIP-447).

        All records that the consumer has returned count as processed. Call it right after `poll`, inside the
        block: if anything fails from then on, the next `poll` returns the uncommitted records again. While
        the outcome is unknown the consumer is paused; this writer's `recover()` determines the outcome and
        resumes the consumer accordingly.

        Raises: NotRecovered while the outcome of this consumer's last offsets is not known.
        """
        with self._noting_refusals():
            producer, group = self._get_producer(cluster), consumer.group_metadata()
            entry = self._offsets.add(consumer)
            entry.positions = positions = {at: await consumer.position(at) for at in consumer.assignment}
            await self._steps.run(
                "send offsets", group.group_id, producer.send_offsets_to_transaction, positions, group
            )

    @contextmanager
    def _noting_refusals(self) -> Iterator[None]:
        try:
            yield
        except BaseException as exc:
            self._refusal = exc
            raise

    def check_sent(self) -> None:
        """Raise AbortRequired if a record or offsets were refused, and the block has gone on.

        Source: KafkaProducer.doSend, `maybeTransitionToErrorState`: then commitTransaction fails.
        """
        if self._refusal is not None:
            raise AbortRequired(
                f"the block went on after a refusal: {describe_error(self._refusal)}; neither side is "
                "committed. Let the error end the block"
            ) from self._refusal

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[Savepoint]:
        """Open a database savepoint whose records are sent only when its block ends without an error.

            async with txn.savepoint() as part:
                txn.session.add(...)
                part.send("payments", b"...")

        A record that is refused rolls the savepoint back; the whole transaction is then refused if its error
        does not end the block, since other records of the savepoint may have been sent. Inside another
        savepoint, records wait for the end of that one.
        Raises: ManagedByWriter for a store without savepoints.
        """
        part = Savepoint(self.send, self.send_batch)
        async with AsyncExitStack() as stack:
            flush = await stack.enter_async_context(begin_savepoint(self.database))
            with keep_open_if_forked(self.owning_process, stack):
                self._savepoints.append(part)
                try:
                    yield part
                finally:
                    self._savepoints.remove(part)
                self.check_process()
                if callable(flush):
                    await flush()
                for place, send in enumerate(part.queued_sends):  # before any is sent
                    part.queued_sends[place] = await self._serialize_queued(send)
                if not self._savepoints:
                    for send in part.queued_sends:  # a refusal still rolls the savepoint back
                        await send()
        if self._savepoints:
            self._savepoints[-1].queued_sends += part.queued_sends

    async def _serialize_queued(self, queued: Callable[[], Any]) -> Callable[[], Any]:
        """Return a queued send with bytes for keys and values. Raises: SerializationFailed."""
        call, arguments = bind_queued(queued)
        producer = select_producer(self._producers, arguments["cluster"])
        if producer.serializer is None:
            return queued
        if call == self.send:
            parts = (arguments[name] for name in ("topic", "value", "key", "headers"))
            value, key, headers = await serialize_record(producer, *parts)
            arguments |= {"value": mark_serialized(value), "key": mark_serialized(key), "headers": headers}
            return partial(self.send, **arguments)
        topic, values, keys = (arguments[name] for name in ("topic", "values", "keys"))
        rows, row_keys, headers = await serialize_rows(producer, topic, values, keys, ())
        if headers:
            raise SerializationFailed(topic, "headers", "a batch of a dual write has none; use send")
        arguments["values"] = [mark_serialized(row) for row in rows]
        arguments["keys"] = row_keys and [mark_serialized(key) for key in row_keys]
        return partial(self.send_batch, **arguments)

    async def run_step(
        self, name: str, call: Callable[A, Awaitable[R]], *args: A.args, **kwargs: A.kwargs
    ) -> R:
        """Run a step of the recipe that belongs to the block."""
        return await self._steps.run(name, "", call, *args, **kwargs)

    def _get_producer(self, cluster: str | None) -> Producer:
        self.check_open()
        notify_sent(self._database)
        return select_producer(self._producers, cluster)


class DualWriter(Generic[D]):
    """A writer whose transactions commit in both a database and Kafka, or in neither.

        config = {"bootstrap.servers": ..., "transactional.id": "payments-1"}
        writer = DualWriter(AsyncSqlStore(engine), config)
        print(await writer.recover())
        async with writer.transaction() as txn:
            txn.session.add(Payment(...))
            await txn.send("payments", b"...")

    Life cycle: created, recovered, used, closed; a `with` block of its own closes it. A writer has one
    transactional id and runs one transaction at a time; each concurrent writer needs an id of its own, which
    a WriterPool manages. The caller keeps ownership of the store and its engine.

    Two-phase commit is requested unless `tallystick.modes` lists weaker modes; docs/concepts/modes.md has the
    guarantees of each.

    Cancelling the task counts as an exception in the block. Cancelled while the database commits, the
    outcome is unknown until recover() determines it.
    """

    def __init__(
        self,
        store: AsyncStore[D],
        producer_config: Mapping[str, object] | None = None,
        *,
        clusters: Mapping[str, Mapping[str, object]] | None = None,
        wait: Wait = "committed",
        watch: Watch | None = None,
        pooled: bool = False,
    ) -> None:
        """Configure the writer without connecting.

        Args:
            producer_config: producer settings by Kafka's names, including `transactional.id`.
            clusters: instead of `producer_config`, such settings for several clusters, by names of the
                caller's choice. Each needs a transactional id of its own.
            wait: "committed": a block returns when both sides are committed. "decided": it returns when
                the database has committed, which decides both; the Kafka transaction is committed during what
                follows, and `wait_committed` waits for it.
            watch: an observer that measures, as `ClientMetrics.watch_writes` returns it; or a callback for
                every step, for tests that kill the process at one.
            pooled: the id belongs to a pool, which recovers the ids that a larger pool of its name left.
        Raises: BadConfig with all problems; ValueError.
        """
        if (producer_config is None) == (clusters is None):
            raise ValueError("either producer_config or clusters")
        configs = clusters if producer_config is None else {DEFAULT_CLUSTER: producer_config}
        self._store = store
        self._steps = AsyncStepRunner(watch, tracing.get_database_system(store))
        self._session = AsyncDualWriteSession(
            store, configs or {}, _FACTORIES, self._steps, alone=not pooled, wait=wait
        )
        self._steps.attach(self)

    async def recover(self, *, accept_mixed: bool = False) -> Report:
        """Bring both sides of this writer's id to the same outcome; required before a transaction.

        Any other writer of the id is fenced, in the database and in Kafka. Idempotent.

        Args:
            accept_mixed: continue although the sides differ for good, after a repair by hand: the cluster
                has aborted a transaction that the database committed, or the database has lost one that
                the cluster committed.
        Returns: a printable report of what was found and done.
        Raises: LogBehind or ForeignCluster; nothing was changed in Kafka. HeuristicMixed, DatabaseBehind,
            UnsafeDurability. Errors of the database and the client; call it again after those.
        """
        trace = tracing.trace_recovery(self._session.life.ids_text)
        with trace, LeaveOnExit(self._session) as block, block:
            return await self._session.recover(accept_mixed=accept_mixed, block=block)

    async def inspect(self) -> Report:
        """Report what recover() would find and do now, without claiming or changing anything.

        The report may be outdated as soon as it is returned.
        """
        return await self._session.inspect()

    @asynccontextmanager
    async def transaction(self, *, wait_visible: bool = False) -> AsyncIterator[Transaction[D]]:
        """Run a dual write: commit both sides when the block ends, neither if it raises.

        After the block the rows are readable and the records are decided: read_committed consumers see them
        as soon as the transaction markers are written. With `wait="decided"` a failure of the Kafka
        transaction is not raised by its block: the next one finishes that transaction first, and
        `wait_committed` or `close` raise it.

        Args:
            wait_visible: also wait for the markers.
        Raises: WriteInDoubt when an outcome is unknown: `recover()` determines it and finishes the write.
            WriterFenced when another writer has claimed the id. DatabaseBehind, NotRecovered, HeuristicMixed,
            NotVisible.
        """
        session = self._session
        trace = tracing.trace_write(session.life.ids_text, session.outcome)
        with trace, LeaveOnExit(session) as block, block:
            database = await session.begin(block)
            trace.mark_begun()
            producers = {name: branch.producer for name, branch in session.branches.items()}
            txn = Transaction(database, producers, self._steps, session.outcome.offsets)
            try:
                yield txn
                trace.rejoin()
                txn.check_process()
                await flush_rows_async(database)
                txn.check_sent()
            except BaseException as exc:
                trace.rejoin()
                txn.mark_ended()
                await session.rollback(database, exc)
                raise
            txn.mark_ended()
            key, result = txn.kept_result or (None, "")
            await session.commit(database, wait_visible=wait_visible, key=key, result=result)

    async def run(
        self,
        work: Callable[[Transaction[D]], Awaitable[R]],
        *,
        retries: Retry | int = 0,
        wait_visible: bool = False,
        idempotency_key: IdempotencyKey | None = None,
    ) -> R:
        """Run `work` in a transaction of its own, never apply it twice, and return its result.

        If the outcome is in doubt, `run` recovers. It repeats `work` only if it is certain that neither side
        was committed: after a deadlock or serialization failure, after what Kafka refused for now before the
        decision, and after a doubt with that outcome.

        Args:
            retries: maximum number of repetitions, or a Retry with pauses of other lengths.
            idempotency_key: if the database has this key, nothing is done, and the result is that of the call
                that was committed with it, whose records are looked for. Needs a result that JSON can hold.
        Raises: as `transaction`. WriteInDoubt if the outcome cannot be determined, or if the last attempt was
            not committed; `outcome()` distinguishes the two. BadResult; NotSupported by a store without keys.
        """
        rule = to_retry(retries)
        if idempotency_key is not None:
            idempotency_key.check()
            check_keys_supported(self._store)
        attempts = AsyncAttempts(self, work, retry=rule, key=idempotency_key)
        with note_key(self._store, idempotency_key):
            return await attempts.run(wait_visible=wait_visible)

    def transactional(
        self,
        *,
        retry: Retry | int = DEFAULT_RETRY,
        idempotency_key: KeyRule | None = None,
        scope: str | None = None,
        wait_visible: bool = False,
    ) -> Callable[[Callable[Concatenate[Transaction[D], A], Awaitable[R]]], Callable[A, Awaitable[R]]]:
        """Decorate a function that takes the transaction first: each call of it is a dual write.

            @writer.transactional(idempotency_key="order_id")
            async def pay(txn: Transaction, order_id: str, cents: int) -> None:
                txn.session.add(Payment(order_id=order_id, cents=cents))
                await txn.send("payments", b"...")

            await pay("order-7", 350)

        A call returns when both sides are committed; see `run` for what is repeated.

        Args:
            retry: as `retries` of `run`.
            idempotency_key: the name of a parameter, or a function of the call's arguments that returns text.
            scope: separates the keys of different functions; by default the function's module and name, so
                that renaming it forgets its keys.
        Raises: BadConfig, ValueError, NotSupported; the decorated function as `run`.
        """

        def decorate(
            work: Callable[Concatenate[Transaction[D], A], Awaitable[R]],
        ) -> Callable[A, Awaitable[R]]:
            return decorate_work(
                self,
                self._store,
                work,
                retry=retry,
                key_rule=idempotency_key,
                scope=scope,
                wait_visible=wait_visible,
            )

        return decorate

    async def wait_committed(self) -> None:
        """Wait until the last Kafka transaction is committed; with the default `wait` it is already.

        Raises: WriteInDoubt, whose outcome is COMMITTED: recover() finishes the write. HeuristicMixed.
        """
        with LeaveOnExit(self._session) as block, block:
            await self._session.wait_committed(block)

    @property
    def ready(self) -> bool:
        """Whether a transaction can begin. If not, the writer needs recover(), is in use, or is closed."""
        return self._session.life.is_ready

    @property
    def modes(self) -> Mapping[str, Mode | None]:
        """The mode that protects a prepared transaction in each cluster, known after recover()."""
        return {name: branch.producer.mode for name, branch in self._session.branches.items()}

    def metrics(self) -> dict[str, float]:
        """Return the state as numbers: `writers`, 0 once it is closed, `-in-doubt` and `-unsettled`."""
        return count_writer(self._session.life, self._session.outcome)

    async def check_key(self, kept: KeyResult) -> None:
        """Return if what was committed with an idempotency key is committed in Kafka, too.

        Raises: HeuristicMixed; WriteInDoubt.
        """
        await self._session.check_key(kept)

    def is_in_doubt(self, exc: BaseException) -> bool:
        """Return whether an error says that the outcome of this writer's last block is in doubt.

        The WriteInDoubt of another writer, which the block or a hook of its session has used, does not. After
        `recover()` the answer is always False.
        """
        return exc is self._session.outcome.doubt

    def emit(self, event: WriteEvent, value: float = 1) -> None:
        """Report an event of the writer's callers to the observer."""
        self._steps.emit(event, value)

    async def close(self) -> None:
        """Close the clients. Idempotent. Transactions in doubt are left to the next recover().

        Raises: with `wait="decided"`, as `wait_committed`; everything is closed by then.
        """
        await self._session.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.close()
        except (HeuristicMixed, WriteInDoubt) as exc:
            if value is None:
                raise
            value.add_note(f"{type(exc).__name__}: {exc}")

    def __repr__(self) -> str:
        return f"<DualWriter {self._session.life.ids_text}: {self._session.life.state.value}>"


class AsyncAttempts(Generic[D, R]):
    """The runs of one piece of work on one writer."""

    def __init__(
        self,
        writer: DualWriter[D],
        work: Callable[[Transaction[D]], Awaitable[R]],
        *,
        retry: Retry,
        key: IdempotencyKey | None = None,
    ) -> None:
        self._writer = writer
        self._work = work
        self._retry = retry
        self._key = key
        self._run_count = 0
        self._key_conflict_count = 0
        self._results: list[R] = []

    async def run(self, *, wait_visible: bool = False) -> R:
        """Run the work until it is committed, or must not be run again. Return its result."""
        while True:
            self._run_count += 1
            self._results.clear()
            try:
                async with self._writer.transaction(wait_visible=wait_visible) as txn:
                    self._results.append(await self._run_work(txn))
            except KeyFound as exc:
                await self._writer.check_key(exc.kept)
                return exc.kept.result  # type: ignore[return-value]
            except Exception as exc:
                next_step = await self._conclude(exc)
                if next_step is NextStep.RETURN:
                    return self._results[0]
                if next_step is NextStep.RAISE:
                    raise
                _log.info("run %d is not committed, and is repeated: %r", self._run_count, exc)
            else:
                return self._results[0]
            self._writer.emit(WriteEvent.RETRIED)
            await self._pause()

    async def _run_work(self, txn: Transaction[D]) -> R:
        """Run the work, unless its key is there [DW-16]. Raises: KeyFound, which rolls both sides back."""
        key = self._key
        if key is None:
            return await call_work_async(self._work, txn)
        database: Any = txn.database
        try:
            stored = await txn.run_step("claim key", database.claim_key, key)
        except Exception as exc:
            # Another call with this key has ended meanwhile, so a further run sees what it has committed.
            if is_conflict(exc) and self._key_conflict_count < KEY_CONFLICTS_MAX:
                self._key_conflict_count += 1
            raise
        if stored is not None:
            raise KeyFound(KeyResult.parse(key, stored))
        result = await call_work_async(self._work, txn)
        txn.kept_result = key, encode_result(key, result)
        return result

    async def _conclude(self, failure: Exception) -> NextStep:
        """Decide what follows a failure, and recover if that is needed for it."""
        is_own_doubt = self._writer.is_in_doubt(failure)
        next_step = self._decide(failure, is_own_doubt=is_own_doubt, is_recovered=False)
        if next_step is NextStep.RECOVER:
            await recover_after(self._writer, failure)
            next_step = self._decide(failure, is_own_doubt=is_own_doubt, is_recovered=True)
        if next_step is NextStep.RUN_AGAIN and not self._writer.ready:
            await recover_after(self._writer, failure)
        return next_step

    def _decide(self, failure: Exception, *, is_own_doubt: bool, is_recovered: bool) -> NextStep:
        return decide_next_step(
            failure,
            is_own_doubt=is_own_doubt,
            is_recovered=is_recovered,
            is_last=self._run_count - self._key_conflict_count >= self._retry.attempts,
        )

    async def _pause(self) -> None:
        uniform = self._retry.random or backoff.uniform
        pause_ms = self._retry.pause_ms(self._run_count, uniform())
        if pause_ms > 0:
            await asyncio.sleep(pause_ms / 1000)


async def recover_after(writer: DualWriter[D], failure: Exception) -> None:
    """Recover a writer after a failure, which may be a doubt that this resolves.

    Raises: HeuristicMixed, RecoveryHalted. `failure`, caused by what the recovery raised: its outcome may be
        known by now.
    """
    try:
        _log.info("%s", await writer.recover())
    except HeuristicMixed as exc:
        doubt = failure.states if isinstance(failure, WriteInDoubt) else {}
        exc.is_of_this_block = any(doubt.get(name) == state for name, state in exc.states.items())
        raise
    except RecoveryHalted:
        raise
    except Exception as exc:
        raise failure from exc


async def resolve_doubt(writer: DualWriter[D], doubt: WriteInDoubt) -> None:
    """Return if the transaction of a writer that its commit left in doubt is committed after all.

    Raises: `doubt` if it is not, or is that of another writer; as `recover_after`.
    """
    if not writer.is_in_doubt(doubt):
        raise doubt
    await recover_after(writer, doubt)
    if decide_next_step(doubt, is_own_doubt=True, is_recovered=True, is_last=True) is not NextStep.RETURN:
        raise doubt


class AsyncWorkRunner(Protocol[D]):
    """A runner of work in transactions: a writer or a pool."""

    async def run(
        self,
        work: Callable[[Transaction[D]], Awaitable[R]],
        *,
        retries: Retry | int = 0,
        wait_visible: bool = False,
        idempotency_key: IdempotencyKey | None = None,
    ) -> R: ...


def decorate_work(
    runner: AsyncWorkRunner[D],
    store: object,
    work: Callable[Concatenate[Transaction[D], A], Awaitable[R]],
    *,
    retry: Retry | int,
    key_rule: KeyRule | None,
    scope: str | None,
    wait_visible: bool,
) -> Callable[A, Awaitable[R]]:
    """Return a function that runs `work` in a transaction of `runner`. It takes the other arguments.

    Raises: BadConfig, ValueError, NotSupported for rules that cannot hold.
    """
    rule, signature = to_retry(retry), describe_call(work)
    key_of_call: KeyOfCall | None = None
    if key_rule is not None:
        check_keys_supported(store)
        key_of_call = KeyOfCall(key_rule, scope or get_default_scope(work), signature)

    @functools.wraps(work)
    async def call(*args: A.args, **kwargs: A.kwargs) -> R:
        key = None if key_of_call is None else key_of_call(args, kwargs)

        async def work_once(txn: Transaction[D]) -> R:
            return await work(txn, *args, **kwargs)

        return await runner.run(work_once, retries=rule, wait_visible=wait_visible, idempotency_key=key)

    call.__signature__ = signature  # type: ignore[attr-defined]
    return call
