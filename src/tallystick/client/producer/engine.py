"""The producer's engine: takes records from any thread and delivers their outcomes.

    engine = ProducerEngine(cluster, config)        on the loop
    engine.accumulator.append("orders", b"...")     in any thread; after BufferFullOrUnknownTopic
                                                    `await engine.wait_for_space(...)`, then again
    await engine.flush(deadline)
    await engine.close(deadline)

`_pump` does whatever can be done now and sets a timer for what is due later. It runs when a caller opens or
fills a batch, when a response or new metadata arrives, and when the timer fires. `requests.sender` decides
what is sent and what a response means.

Every wait in this module has a named limit [CLI-2].
"""

import asyncio
import threading
import time
from collections.abc import Callable
from uuid import UUID

from tallystick.client.errors import ClientError, Closed, TimedOut
from tallystick.client.net.backoff import uniform
from tallystick.client.net.cluster import Cluster
from tallystick.client.net.metadata import TopicInfo
from tallystick.client.net.retry_scope import Deadline
from tallystick.client.net.waits import ProcessCheck
from tallystick.client.producer.batches.accumulator import (
    AccumulatorEnv,
    AccumulatorLimits,
    RecordAccumulator,
)
from tallystick.client.producer.batches.delivery import BatchOutcome
from tallystick.client.producer.requests.batch_completion import SenderHooks
from tallystick.client.producer.requests.sender import Sender
from tallystick.client.producer.sequences.identity import (
    IdempotentIdentity,
    NoIdentity,
    TransactionalIdentity,
)
from tallystick.client.producer.sequences.txn_context import TxnContext
from tallystick.client.settings.config import ProducerConfig
from tallystick.kernel.clock import Clock, SystemClock
from tallystick.kernel.errors import Effect
from tallystick.protocol.primitives import NIL


class ProducerEngine:
    """One producer's records between `append` and their outcomes.

    Made, used and closed on one loop, except that any thread may append to `accumulator`. The owner of the
    cluster closes it, after this engine.
    """

    def __init__(
        self,
        cluster: Cluster,
        config: ProducerConfig,
        clock: Clock | None = None,
    ) -> None:
        self._cluster, self._config = cluster, config
        self._clock = clock or SystemClock()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._is_pump_scheduled = False
        self._pump_timer: asyncio.TimerHandle | None = None
        self._refresh_task: asyncio.Task[None] | None = None
        self._stale_topics: dict[str, None] = {}
        self._image = cluster.image
        self._topic_ids: dict[str, UUID] = {}
        self._is_closing = self._is_closed = False
        self._check_process = ProcessCheck()
        self.accumulator = RecordAccumulator(
            AccumulatorLimits(
                batch_bytes=min(config.batch_size, config.max_request_size),
                linger_ms=config.linger_ms,
                buffer_bytes=config.buffer_memory,
                record_bytes_max=config.max_request_size,
            ),
            AccumulatorEnv(
                now=time.time,
                monotonic_ms=self._clock.monotonic_ms,
                uniform=uniform,
                lock=threading.Lock(),
                wake=self.wake,
            ),
        )
        signer = IdempotentIdentity(cluster, self.wake) if config.enable_idempotence else NoIdentity()
        hooks = SenderHooks(self._schedule_pump, self._request_metadata)
        self._sender = Sender(cluster, config, self.accumulator, signer, clock=self._clock, hooks=hooks)

    def use_transactions(self, txn: TxnContext) -> None:
        """Send in transactions: no record is accepted before the first begins. Called before any record."""
        self._sender.producer_identity = TransactionalIdentity(txn, self.wake)
        self.close_gate(txn.build_send_error)

    # -------------------------------------------------------------------- in any thread

    def wake(self) -> None:
        """Schedule the pump. Cheap when it is already scheduled."""
        if not self._is_pump_scheduled:
            try:
                self._is_pump_scheduled = True
                if threading.get_ident() == self._thread:
                    self._loop.call_soon(self._pump)
                else:
                    self._loop.call_soon_threadsafe(self._pump)
            except RuntimeError as exc:
                self._is_pump_scheduled = False
                if not self._loop.is_closed():
                    raise
                if not self._is_closed:  # the loop ended first: `asyncio.run` twice with one client
                    self.accumulator.refuse_forever(_build_loop_error)
                    raise _build_loop_error() from exc
            except BaseException:  # an interrupt of the thread that sends: else it would never be woken again
                self._is_pump_scheduled = False
                raise

    # ----------------------------------------------------------------------- on the loop

    async def wait_for_space(self, topic: str, deadline: Deadline) -> None:
        """Wait until `append` can take a record for `topic`: partitions known, memory free.

        Raises: TimedOut (max.block.ms); UnknownTopic and other errors that a retry does not mend; Closed.
        """
        started_ns = time.monotonic_ns()
        measures = self._sender.metrics
        while not self._is_closed:
            if topic not in self.accumulator.topic_names:
                await self._cluster.run_with_retries(
                    "Metadata", topic, lambda: self._fetch_topic(topic), deadline
                )
                measures.metadata_wait_ns += time.monotonic_ns() - started_ns
            elif self.accumulator.pool.is_full:
                await self._wait_for_memory(deadline)
                measures.block_ms.add((time.monotonic_ns() - started_ns) / 1_000_000)
            else:
                return
        raise Closed("the producer was closed")

    async def connect(self, topic: str, deadline: Deadline) -> None:
        """Fetch the topic's metadata unless it is known, and connect to the leaders of its partitions.

        Raises: as `wait_for_space`; Unreachable.
        """
        await self.wait_for_space(topic, deadline)
        info = await self._cluster.get_topic(topic)
        leaders = {each.leader for each in info.partitions.values()}
        for node_id in sorted(leader for leader in leaders if leader is not None):
            await self._cluster.wait_for_versions(node_id)

    async def flush(self, deadline: Deadline | None = None) -> None:
        """Send all records taken so far at once, and wait until each has its outcome.

        The deliveries carry the outcomes. Without a deadline, delivery.timeout.ms ends the wait.
        Raises: TimedOut; the records then stay in flight.
        """
        started_ns = time.monotonic_ns()
        if deadline is None:
            deadline = self._cluster.start_deadline(
                "delivery.timeout.ms", 2 * self._config.delivery_timeout_ms
            )
        outcomes = [*self.accumulator.seal_open_batches(), *self._sender.list_outstanding_outcomes()]
        if outcomes:
            self._sender.flush_count += 1
            self._pump()
            try:
                await _wait_for_outcomes(outcomes, deadline, self._cluster.now_ms())
            finally:
                self._sender.flush_count -= 1
        self._sender.metrics.flush_ns += time.monotonic_ns() - started_ns

    async def abort_unsent(self, why: ClientError) -> None:
        """Fail the records not in flight, and wait for the answers to the others. Precedes an abort."""
        self._sender.fail_not_in_flight(why)
        await self.flush()

    def restart_sequences(self) -> None:
        """Begin every partition at sequence 0: the producer id or epoch has changed."""
        self._sender.restart_sequences()

    def close_gate(self, why: Callable[[], Exception]) -> None:
        """Refuse further records with the error that `why` makes [CLI-25]; earlier records are still sent."""
        if not self._is_closing:
            self.accumulator.close_gate(why)

    def open_gate(self) -> None:
        """Accept records again, unless the producer closes."""
        if not self._is_closing:
            self.accumulator.open_gate()

    def begin_close(self) -> None:
        """Refuse further records for good, as Closed; earlier records are still sent."""
        self._is_closing = True
        self.accumulator.close_gate(lambda: Closed("the producer is closed"))

    async def close(self, deadline: Deadline) -> None:
        """Send what was taken, for as long as `start_deadline` allows; fail the rest.

        Never raises, never hangs.
        """
        self.begin_close()
        try:
            await self.flush(deadline)
        except TimedOut:
            pass
        finally:
            self._is_closed = True
            self._sender.fail_all(Closed("the producer was closed before this was written"))
            self.accumulator.pool.wake_all()
            if self._pump_timer is not None:
                self._pump_timer.cancel()
            if self._refresh_task is not None:
                self._refresh_task.cancel()
            if isinstance(self._sender.producer_identity, IdempotentIdentity):
                self._sender.producer_identity.close()

    def metrics(self) -> dict[str, float]:
        """Return the metrics by Kafka's names, those of the network included."""
        pool = self.accumulator.pool
        return {
            **self._cluster.metrics(),
            **self._sender.metrics.as_metrics(),
            "requests-in-flight": self._sender.requests_in_flight,
            "buffer-total-bytes": pool.total_bytes,
            "buffer-available-bytes": pool.available_bytes,
            "waiting-threads": pool.waiting_count,
        }

    # -------------------------------------------------------------------------- the pump

    def _schedule_pump(self) -> None:
        """Schedule the pump once, at the end of this turn of the loop: something was answered or settled."""
        if not self._is_pump_scheduled:
            self._is_pump_scheduled = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._is_pump_scheduled = False
        if self._is_closed or self._check_process.is_forked:  # on a copy of the parent's loop
            return
        if self._cluster.image is not self._image:
            self._apply_metadata()
        next_ms = self._sender.send_producer_data()
        if self._pump_timer is not None:
            self._pump_timer.cancel()
        wait_s = max(next_ms - self._clock.monotonic_ms(), 0) / 1000
        self._pump_timer = self._loop.call_later(wait_s, self._pump)
        self.accumulator.pool.wake_if_free()

    async def _wait_for_memory(self, deadline: Deadline) -> None:
        pool = self.accumulator.pool
        self.accumulator.seal_open_batches()
        self._schedule_pump()
        if not await pool.wait_for_release(deadline.remaining_ms(self._cluster.now_ms()) / 1000):
            doing = f"waiting for room in buffer.memory = {pool.total_bytes}"
            raise TimedOut(deadline.limit_name, deadline.length_ms, doing)

    # -------------------------------------------------------------------------- metadata

    async def _fetch_topic(self, topic: str) -> None:
        self._apply_topic(await self._cluster.get_topic(topic))

    def _apply_metadata(self) -> None:
        """Apply a new metadata image: more partitions, other leaders, or a recreated topic."""
        self._image = self._cluster.image
        for topic in self.accumulator.topic_names:
            info = self._image.topics.get(topic)
            if info is not None:
                self._apply_topic(info)

    def _apply_topic(self, info: TopicInfo) -> None:
        """Apply one topic's metadata; fewer partitions are stale news unless the topic id has changed."""
        before = self._topic_ids.get(info.name, NIL)
        self._topic_ids[info.name] = info.id
        if before != info.id or info.id == NIL:
            self._sender.drop_partitions(info.name, len(info.partitions))
        led_partitions = tuple(p for p in sorted(info.partitions) if info.partitions[p].leader is not None)
        self.accumulator.update_topic(info.name, len(info.partitions), led_partitions)

    def _request_metadata(self, topic: str) -> None:
        """Ask for fresh metadata: a leader is unknown, or is no longer the leader."""
        self._stale_topics[topic] = None
        if self._refresh_task is None and not self._is_closed:
            self._refresh_task = self._loop.create_task(self._refresh_stale_topics())

    async def _refresh_stale_topics(self) -> None:
        try:
            topics, self._stale_topics = list(self._stale_topics), {}
            await self._cluster.refresh(topics)
        except ClientError:
            pass  # requested again as long as a leader is missing
        finally:
            await asyncio.sleep(self._config.client.retry_backoff_ms / 1000)
            self._refresh_task = None
            self._schedule_pump()


def _build_loop_error() -> Closed:
    return Closed("the event loop on which this producer was made has ended: make one on each loop")


async def _wait_for_outcomes(outcomes: list[BatchOutcome], deadline: Deadline, now_ms: int) -> None:
    all_complete = asyncio.get_running_loop().create_future()
    open_count = len(outcomes)

    def count_down(_: object) -> None:
        nonlocal open_count
        open_count -= 1
        if not open_count and not all_complete.done():
            all_complete.set_result(None)

    for outcome in outcomes:
        outcome.add_callback(count_down, 0)
    await asyncio.wait((all_complete,), timeout=deadline.remaining_ms(now_ms) / 1000)
    if open_count:
        error = TimedOut(
            deadline.limit_name, deadline.length_ms, f"flush: {open_count} batches have no answer yet"
        )
        raise error.after(Effect.UNKNOWN)
