"""The producer's engine: takes records from any thread and delivers their outcomes.

    engine = ProducerEngine(cluster, config)        on the loop
    engine.append("orders", b"...")                 in any thread; NotNow: `await engine.admitted(...)` first
    await engine.flush(deadline)
    await engine.close(deadline)

`_pump` does whatever can be done now and sets a timer for what is due later. It runs when a caller opens or
fills a batch, when a response or new metadata arrives, and when the timer fires. `sender.py` decides what is
sent and what a response means.

Every wait in this module has a named limit [CLI-2].
"""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar
from uuid import UUID

from tallystick.client.config import ProducerConfig
from tallystick.client.errors import ClientError, Closed, TimedOut
from tallystick.client.jitter import noise
from tallystick.client.net.cluster import Cluster
from tallystick.client.net.metadata import TopicInfo
from tallystick.client.producer.accumulator import Accumulator, Ambient, Limits
from tallystick.client.producer.delivery import Outcome
from tallystick.client.producer.identity import InTransactions, OwnIdentity, Unsigned
from tallystick.client.producer.sender import Dispatcher, Hooks
from tallystick.client.producer.txn_context import TxnContext
from tallystick.client.retry import Deadline
from tallystick.kernel.clock import Clock, SystemClock
from tallystick.kernel.errors import Effect
from tallystick.protocol.primitives import NIL

P = ParamSpec("P")
T = TypeVar("T")

# Callers that wait for memory are woken together, once this share is free: one by one is slower.
_ROOM_SHARE: Final = 0.5


class ProducerEngine:
    """One producer's records between `append` and their outcomes.

    Made, used and closed on one loop, except for `append` and `extend`. The owner of the cluster closes it,
    after this engine.
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
        self._woken = False
        self._timer: asyncio.TimerHandle | None = None
        self._refresh: asyncio.Task[None] | None = None
        self._stale: dict[str, None] = {}
        self._image = cluster.image
        self._ids: dict[str, UUID] = {}
        self._room: list[asyncio.Future[None]] = []
        self._closed = False
        self.accumulator = Accumulator(
            Limits(
                batch_bytes=min(config.batch_size, config.max_request_size),
                linger_ms=config.linger_ms,
                buffer_bytes=config.buffer_memory,
                record_bytes_max=config.max_request_size,
            ),
            Ambient(
                now=time.time,
                monotonic_ms=self._clock.monotonic_ms,
                noise=noise,
                lock=threading.Lock(),
                wake=self.wake,
            ),
        )
        self.append_value = self.accumulator.append_value
        self.append = self.accumulator.append
        self.extend = self.accumulator.extend
        signer = OwnIdentity(cluster, self.wake) if config.enable_idempotence else Unsigned()
        hooks = Hooks(self._changed, self._want_metadata)
        self._dispatcher = Dispatcher(
            cluster, config, self.accumulator, signer, clock=self._clock, hooks=hooks
        )

    def use(self, txn: TxnContext) -> None:
        """Send in transactions: `append` and `extend` ask `txn` first. Called before the first record."""
        self._dispatcher.signer = InTransactions(txn, self.wake)
        self.append_value = _after(self._sendable(txn), self.accumulator.append_value)
        self.append = _after(self._sendable(txn), self.accumulator.append)
        self.extend = _after(self._sendable(txn), self.accumulator.extend)

    def _sendable(self, txn: TxnContext) -> Callable[[], None]:
        def check() -> None:
            try:
                txn.check_sendable()
            except ClientError:
                if self._closed:
                    raise Closed("the producer is closed") from None
                raise

        return check

    # -------------------------------------------------------------------- in any thread

    def wake(self) -> None:
        """Schedule the pump. Cheap when it is already scheduled."""
        if not self._woken:
            self._woken = True
            try:
                if threading.get_ident() == self._thread:
                    self._loop.call_soon(self._pump)
                else:
                    self._loop.call_soon_threadsafe(self._pump)
            except RuntimeError:  # the loop is closed, and so is this engine
                self._woken = False

    # ----------------------------------------------------------------------- on the loop

    async def admitted(self, topic: str, deadline: Deadline) -> None:
        """Wait until `append` can take a record for `topic`: its partitions are known and there is memory.

        Raises: TimedOut (max.block.ms); UnknownTopic and other errors that a retry does not mend; Closed.
        """
        started_ns = time.monotonic_ns()
        measures = self._dispatcher.measures
        while not self._closed:
            if not self.accumulator.knows(topic):
                await self._cluster.retrying("Metadata", topic, lambda: self._learn(topic), deadline)
                measures.metadata_wait_ns += time.monotonic_ns() - started_ns
            elif self.accumulator.buffered >= self.accumulator.limits.buffer_bytes:
                await self._await_room(deadline)
                measures.block_ms.add((time.monotonic_ns() - started_ns) / 1_000_000)
            else:
                return
        raise Closed("the producer was closed")

    async def flush(self, deadline: Deadline | None = None) -> None:
        """Send all records taken so far at once, and wait until each has its outcome.

        The deliveries carry the outcomes. Without a deadline, delivery.timeout.ms ends the wait.
        Raises: TimedOut; the records then stay in flight.
        """
        started_ns = time.monotonic_ns()
        if deadline is None:
            deadline = self._cluster.deadline("delivery.timeout.ms", 2 * self._config.delivery_timeout_ms)
        self.accumulator.seal_all()
        awaited = [*self.accumulator.waiting(), *(b.outcome for b in self._dispatcher.outstanding())]
        if awaited:
            self._dispatcher.flushing += 1
            self._pump()
            try:
                await _all_settled(awaited, deadline, self._cluster.now_ms())
            finally:
                self._dispatcher.flushing -= 1
        self._dispatcher.measures.flush_ns += time.monotonic_ns() - started_ns

    async def discard(self, why: ClientError) -> None:
        """Fail the records not in flight, and wait for the answers to the others. Precedes an abort."""
        self._dispatcher.abandon(why)
        await self.flush()

    def restart_sequences(self) -> None:
        """Begin every partition at sequence 0: the producer id or epoch has changed."""
        self._dispatcher.restart_sequences()

    def close_gate(self, why: Callable[[], Exception]) -> None:
        """Refuse further records with the error that `why` makes [CLI-25]; earlier records are still sent."""
        self.accumulator.close_gate(why)

    def open_gate(self) -> None:
        self.accumulator.open_gate()

    async def close(self, deadline: Deadline) -> None:
        """Send what was taken, for as long as `deadline` allows; fail the rest. Never raises, never hangs."""
        self.close_gate(lambda: Closed("the producer is closed"))
        try:
            await self.flush(deadline)
        except TimedOut:
            pass
        finally:
            self._closed = True
            self._dispatcher.abandon_all(Closed("the producer was closed before this was written"))
            for waiting in self._room:
                if not waiting.done():
                    waiting.set_result(None)
            if self._timer is not None:
                self._timer.cancel()
            if self._refresh is not None:
                self._refresh.cancel()
            if isinstance(self._dispatcher.signer, OwnIdentity):
                self._dispatcher.signer.close()

    def metrics(self) -> dict[str, float]:
        """Return the metrics by Kafka's names, those of the network included."""
        limits = self.accumulator.limits
        return {
            **self._cluster.metrics(),
            **self._dispatcher.measures.as_metrics(),
            "requests-in-flight": self._dispatcher.requests_in_flight,
            "buffer-total-bytes": limits.buffer_bytes,
            "buffer-available-bytes": max(limits.buffer_bytes - self.accumulator.buffered, 0),
            "waiting-threads": sum(not waiting.done() for waiting in self._room),
        }

    # -------------------------------------------------------------------------- the pump

    def _changed(self) -> None:
        """Schedule the pump once, at the end of this turn of the loop: something was answered or settled."""
        if not self._woken:
            self._woken = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._woken = False
        if self._closed:
            return
        if self._cluster.image is not self._image:
            self._learn_all()
        next_ms = self._dispatcher.pump()
        if self._timer is not None:
            self._timer.cancel()
        wait_s = max(next_ms - self._clock.monotonic_ms(), 0) / 1000
        self._timer = self._loop.call_later(wait_s, self._pump)
        if self._room and self.accumulator.buffered <= self.accumulator.limits.buffer_bytes * _ROOM_SHARE:
            for waiting in self._room:
                if not waiting.done():
                    waiting.set_result(None)
            self._room.clear()

    async def _await_room(self, deadline: Deadline) -> None:
        waiting = self._loop.create_future()
        self._room.append(waiting)
        self.accumulator.seal_all()
        self._changed()
        await asyncio.wait((waiting,), timeout=deadline.left_ms(self._cluster.now_ms()) / 1000)
        if not waiting.done():
            self._room.remove(waiting)
            what = f"waiting for room in buffer.memory = {self.accumulator.limits.buffer_bytes}"
            raise TimedOut(deadline.limit, deadline.length_ms, what)

    # -------------------------------------------------------------------------- metadata

    async def _learn(self, topic: str) -> None:
        self._learn_of(await self._cluster.topic(topic))

    def _learn_all(self) -> None:
        """Apply a new metadata image: more partitions, other leaders, or a recreated topic."""
        self._image = self._cluster.image
        for topic in self.accumulator.topics:
            info = self._image.topics.get(topic)
            if info is not None:
                self._learn_of(info)

    def _learn_of(self, info: TopicInfo) -> None:
        """Apply one topic's metadata; fewer partitions are stale news unless the topic id has changed."""
        before = self._ids.get(info.name, NIL)
        self._ids[info.name] = info.id
        if before != info.id or info.id == NIL:
            self._dispatcher.cut(info.name, len(info.partitions))
        led = tuple(p for p in sorted(info.partitions) if info.partitions[p].leader is not None)
        self.accumulator.learn(info.name, len(info.partitions), led)

    def _want_metadata(self, topic: str) -> None:
        """Ask for fresh metadata: a leader is unknown, or is no longer the leader."""
        self._stale[topic] = None
        if self._refresh is None and not self._closed:
            self._refresh = self._loop.create_task(self._refresh_soon())

    async def _refresh_soon(self) -> None:
        try:
            topics, self._stale = list(self._stale), {}
            await self._cluster.refresh(topics)
        except ClientError:
            pass  # requested again as long as a leader is missing
        finally:
            await asyncio.sleep(self._config.client.retry_backoff_ms / 1000)
            self._refresh = None
            self._changed()


def _after(check: Callable[[], None], take: Callable[P, T]) -> Callable[P, T]:
    def checked(*args: P.args, **kwargs: P.kwargs) -> T:
        check()
        return take(*args, **kwargs)

    return checked


async def _all_settled(outcomes: list[Outcome], deadline: Deadline, now_ms: int) -> None:
    done = asyncio.get_running_loop().create_future()
    left = len(outcomes)

    def one(_: object) -> None:
        nonlocal left
        left -= 1
        if not left and not done.done():
            done.set_result(None)

    for outcome in outcomes:
        outcome.watch(one, 0)
    await asyncio.wait((done,), timeout=deadline.left_ms(now_ms) / 1000)
    if left:
        late = TimedOut(deadline.limit, deadline.length_ms, f"flush: {left} batches have no answer yet")
        raise late.after(Effect.UNKNOWN)
