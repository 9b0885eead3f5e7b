"""A toy cluster for the protocol of Spark's sink, and a scheduler that can stop any coroutine.

The cluster is made of dictionaries: transactional ids, what is open and what is committed, and one log of
decisions. Every effect yields to the scheduler before and after it happens, so a coroutine that is closed
there has crashed there.
"""

from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from tallystick.admin.model import TransactionDescription
from tallystick.client.errors import ClientError, TimedOut, build_broker_error
from tallystick.client.transactions.modes import TxnDecision
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import InDoubt
from tallystick.kernel.ids import ProducerEpoch, ProducerId, ProducerIdAndEpoch
from tallystick.spark.protocol.committable import (
    BatchLease,
    Decision,
    Participant,
    decode_decision,
    encode_decision,
)
from tallystick.spark.protocol.decision_fold import DecisionState
from tallystick.spark.protocol.errors import PrefixTaken
from tallystick.spark.protocol.transactional_ids import WorkerTransactionalId, format_coordinator_id
from tallystick.spark.sink.task.worker_ids import WorkerIdPool


class Step:
    """An awaitable that lets the scheduler run another coroutine."""

    def __await__(self) -> Generator[None, None, None]:
        yield


@dataclass
class ToyId:
    """One transactional id.

    pair    the producer id and epoch that is not fenced
    last    the one before it, where a retry may name it (KIP-360, KIP-890)
    writer  of the open transaction: `pair`, unless that was kept by a recovery (KIP-939)
    """

    pair: ProducerIdAndEpoch
    last: ProducerIdAndEpoch | None = None
    state: str = "Empty"
    rows: list[Any] = field(default_factory=list)
    writer: ProducerIdAndEpoch | None = None


@dataclass
class ToyCluster:
    """The state that survives every crash."""

    ids: dict[str, ToyId] = field(default_factory=dict)
    committed: Counter[Any] = field(default_factory=Counter)
    decisions: dict[str, bytes | None] = field(default_factory=dict)
    done: dict[str, str] = field(default_factory=dict)
    timeout_ms: int | None = None
    version: int = 2
    """transaction.version: from 2 on the end of a transaction bumps its epoch."""
    keeps: bool = True
    """Whether InitProducerId can keep an open transaction (KIP-939)."""
    effects: int = 0
    flaky: Callable[[], bool] = lambda: False
    """Returns whether this answer, or this request, is lost."""

    def initialise(self, name: str) -> ProducerIdAndEpoch:
        found = self.ids.get(name)
        if found is None:
            found = self.ids[name] = ToyId(ProducerIdAndEpoch(ProducerId(len(self.ids)), ProducerEpoch(-1)))
        found.rows.clear()
        found.state, found.last, found.pair, found.writer = "Empty", None, _next(found.pair), None
        return found.pair

    def keep(self, name: str) -> tuple[ProducerIdAndEpoch, ProducerIdAndEpoch | None]:
        """Do InitProducerId with KeepPreparedTxn.

        Returns the new client's producer id and epoch, and those of the open transaction, if any.
        """
        found = self.ids[name]
        if not self.keeps:
            raise build_broker_error("InitProducerId", name, ErrorCode.UNSUPPORTED_VERSION)
        found.pair = _next(found.pair)
        return found.pair, found.writer

    def produce(self, name: str, pair: ProducerIdAndEpoch, rows: Iterable[Any]) -> None:
        found = self.ids[name]
        if found.pair != pair:
            raise build_broker_error("Produce", name, ErrorCode.INVALID_PRODUCER_EPOCH)
        found.state, found.writer = "Ongoing", pair
        found.rows.extend(rows)

    def end(self, name: str, pair: ProducerIdAndEpoch, wish: TxnDecision) -> None:
        found = self.ids[name]
        complete = "CompleteCommit" if wish is TxnDecision.COMMIT else "CompleteAbort"
        if found.state == complete and pair == (found.last if self.version >= 2 else found.pair):
            return  # the answer was lost, and the request is repeated (KIP-890)
        if found.pair != pair:
            raise build_broker_error("EndTxn", name, ErrorCode.PRODUCER_FENCED)
        if found.state != "Ongoing":
            raise build_broker_error("EndTxn", name, ErrorCode.INVALID_TXN_STATE)
        if wish is TxnDecision.COMMIT:
            self.committed.update(found.rows)
        found.rows.clear()
        found.state, found.writer = complete, None
        if self.version >= 2:
            found.last, found.pair = pair, _next(pair)

    def time_out(self, name: str) -> None:
        """Abort an open transaction by the coordinator's timeout."""
        found = self.ids[name]
        found.rows.clear()
        found.state, found.last, found.pair, found.writer = "CompleteAbort", None, _next(found.pair), None

    def open_ids(self) -> list[str]:
        return [name for name, found in self.ids.items() if found.state == "Ongoing"]

    async def effect(self) -> None:
        self.effects += 1
        await Step()

    def may_fail(self, api: str) -> None:
        if self.flaky():
            raise TimedOut("max.block.ms", 1, api)


def _next(pair: ProducerIdAndEpoch) -> ProducerIdAndEpoch:
    return ProducerIdAndEpoch(pair.producer_id, ProducerEpoch(pair.epoch + 1))


class ToyParticipants:
    """Implements `ports.ParticipantsPort` on the toy cluster."""

    def __init__(self, cluster: ToyCluster, prefix: str) -> None:
        self._cluster, self._name, self._prefix = cluster, format_coordinator_id(prefix), prefix

    async def claim(self) -> tuple[ProducerIdAndEpoch, int]:
        await self._cluster.effect()
        pair = self._cluster.initialise(self._name)
        await self._cluster.effect()
        return pair, self._cluster.version

    async def reclaim(self, held: ProducerIdAndEpoch) -> ProducerIdAndEpoch | None:
        await self._cluster.effect()
        found = self._cluster.ids[self._name]
        if held == found.last:
            return found.pair
        if held != found.pair:
            return None
        pair = self._cluster.initialise(self._name)
        found.last = held
        await self._cluster.effect()
        return pair

    async def owns_prefix(self, held: ProducerIdAndEpoch) -> bool:
        await self._cluster.effect()
        return self._cluster.ids[self._name].pair == held

    async def describe(self, transactional_ids: Iterable[str]) -> Mapping[str, TransactionDescription | None]:
        await self._cluster.effect()
        return {name: self._describe(name) for name in transactional_ids}

    def _describe(self, name: str) -> TransactionDescription | None:
        found = self._cluster.ids.get(name)
        if found is None:
            return None
        return TransactionDescription(
            transactional_id=name,
            coordinator=0,
            state=found.state,
            writer=found.writer or found.pair,
            timeout_ms=self._cluster.timeout_ms,
            started_ms=0,
            partitions=frozenset(),
        )

    async def end(
        self, participants: Collection[Participant], transaction_version: int, wish: TxnDecision
    ) -> Mapping[str, ClientError]:
        failures = {}
        for each in participants:
            await self._cluster.effect()
            try:
                self._cluster.may_fail("EndTxn")
                self._cluster.end(each.transactional_id, each.identity, wish)
                self._cluster.may_fail("EndTxn")
            except ClientError as exc:
                failures[each.transactional_id] = exc
        await self._cluster.effect()
        return failures

    async def recover(
        self, participants: Collection[Participant], transaction_version: int, wish: TxnDecision
    ) -> Mapping[str, ClientError]:
        failures = {}
        for each in participants:
            await self._cluster.effect()
            name = each.transactional_id
            try:
                client, kept = self._cluster.keep(name)
                await self._cluster.effect()
                if kept != each.identity:
                    raise build_broker_error("InitProducerId", name, ErrorCode.INVALID_PRODUCER_EPOCH)
                self._cluster.end(name, client, wish)
            except ClientError as exc:
                failures[name] = exc
        await self._cluster.effect()
        return failures

    async def list_open_ids(self) -> Collection[str]:
        await self._cluster.effect()
        return self._cluster.open_ids()


class ToyLog:
    """Implements `ports.DecisionLogPort` on the toy cluster.

    Written in a transaction of the coordinator's id.
    """

    def __init__(self, cluster: ToyCluster, prefix: str) -> None:
        self._cluster, self._prefix, self._name = cluster, prefix, format_coordinator_id(prefix)
        self._own: Decision | None = None

    async def open(self) -> None:
        pass

    async def find_location(self) -> str | None:
        return "toy"

    async def read(self) -> DecisionState:
        await self._cluster.effect()
        data = self._cluster.decisions.get(self._prefix)
        if not data:
            return DecisionState()
        decision = decode_decision(data)
        return DecisionState(
            decision=decision, is_complete=self._cluster.done.get(self._prefix) == decision.nonce
        )

    async def append(self, decision: Decision, held: ProducerIdAndEpoch, transaction_version: int) -> None:
        await self._write(encode_decision(decision), held)
        self._own = decision

    def recall(self, nonce: str) -> Decision | None:
        return self._own if self._own is not None and self._own.nonce == nonce else None

    async def forget(self, held: ProducerIdAndEpoch, transaction_version: int) -> None:
        await self._write(None, held)

    async def _write(self, data: bytes | None, held: ProducerIdAndEpoch) -> None:
        await self._cluster.effect()
        try:
            self._cluster.produce(self._name, held, ())
            await self._cluster.effect()
            self._cluster.may_fail("Produce")
            self._cluster.end(self._name, held, TxnDecision.COMMIT)
        except TimedOut:
            raise
        except ClientError as exc:
            raise PrefixTaken(self._prefix, exc.what()) from exc
        self._cluster.decisions[self._prefix] = data
        await self._cluster.effect()
        if self._cluster.flaky():
            raise InDoubt("the answer to the decision was lost")

    async def note(self, decision: Decision | None) -> None:
        pass

    async def mark_done(self, nonce: str) -> None:
        await self._cluster.effect()
        self._cluster.done[self._prefix] = nonce


ORDERS: Final[dict[str, Callable[[int], int]]] = {
    "the first first": lambda _: 0,
    "the second first": lambda _: 1,
    "in turn": lambda steps: steps % 2,
}


@dataclass
class Interleaving:
    """A `BothRunner` with the effects of both coroutines in a chosen order.

    choose  returns which one goes on, after so many steps; the other one if that has ended
    """

    choose: Callable[[int], int] = ORDERS["in turn"]

    async def __call__(self, *both: Coroutine[Any, Any, Any]) -> tuple[Any, Any]:
        results: dict[int, Any] = {}
        steps = 0
        try:
            while len(results) < len(both):
                chosen = self.choose(steps)
                chosen = 1 - chosen if chosen in results else chosen
                steps += 1
                try:
                    both[chosen].send(None)
                except StopIteration as stop:
                    results[chosen] = stop.value
                else:
                    await Step()
        finally:
            for each in both:
                each.close()
        return results[0], results[1]


class ToyWorker:
    """A worker process: its ids, and the one that it initialises when its task is over (`next_producer`)."""

    def __init__(self, cluster: ToyCluster, prefix: str, draw: Callable[[], str]) -> None:
        self.ids = WorkerIdPool(prefix, draw)
        self._cluster = cluster
        self._lease: BatchLease | None = None
        self._reserved: WorkerTransactionalId | None = None
        self._ready: tuple[WorkerTransactionalId, ProducerIdAndEpoch] | None = None

    def initialise_next(self, lease: BatchLease) -> None:
        """Begin this when a task of `lease` is over."""
        self._lease = lease

    def advance(self) -> bool:
        """Do the next of its two effects; return whether there was one."""
        if self._lease is not None:
            self._reserved, self._lease = self.ids.acquire(self._lease), None
        elif self._reserved is not None:
            pair = self._cluster.initialise(str(self._reserved))
            self._ready, self._reserved = (self._reserved, pair), None
        else:
            return False
        return True

    def take(self, lease: BatchLease) -> tuple[str, ProducerIdAndEpoch] | None:
        """Wait for what is under way; return the id that was initialised, or None."""
        while self.advance():
            pass
        ready, self._ready = self._ready, None
        if ready is None or not self.ids.acquire_reserved(ready[0], lease):
            return None
        return str(ready[0]), ready[1]


class Scheduler:
    """Runs coroutines a step at a time, in random order, and kills some."""

    def __init__(self, random: Random, kill_chance: float = 0.0) -> None:
        self._random, self._kill_chance = random, kill_chance
        self.live: list[Coroutine[Any, Any, None]] = []

    def add(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Start a coroutine and run it up to its first effect."""
        self.live.append(coroutine)
        self._step(coroutine)

    def step(self) -> None:
        """Run one step of one coroutine; a coroutine that ends is dropped."""
        chosen = self._random.choice(self.live)
        if self._random.random() < self._kill_chance:
            chosen.close()
            self.live.remove(chosen)
        else:
            self._step(chosen)

    def _step(self, coroutine: Coroutine[Any, Any, None]) -> None:
        try:
            coroutine.send(None)
        except StopIteration:
            self.live.remove(coroutine)


def run_alone(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run one coroutine to its end, undisturbed, and return its result."""
    while True:
        try:
            coroutine.send(None)
        except StopIteration as stop:
            return stop.value
