"""Concurrent callers that share dual writes, in a process that is killed between any two effects.

The code under test is the product's: `WriterPool.run_batched` with its drivers, the scheduler, units, the
writer's recipe and its recovery, all on the simulator's loop. Simulated are the producers, the administrator
and the database beneath them. A process that is killed reaches nothing any more and hears nothing: its tasks
wait for ever at their next effect, and the server ends its transactions a moment later.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any, Final, TypeVar, cast

from harness.sim.actors.clients import ClientProfile, SimProducer
from harness.sim.actors.dual_write import SimDatabase
from harness.sim.actors.product_clients import ProductAdmin, ProductProducer
from harness.sim.actors.units import BatchCounts, SimUnit
from harness.sim.batch_plan import CallerPlan, ProcessKill
from harness.sim.disk_image import PARTITIONS
from harness.sim.faults import FaultPlan, Repeats
from harness.sim.history import History
from harness.sim.network import NoReply, SimNetwork
from harness.sim.shared_database import BatchDatabase, BatchStore, BatchTransaction, StatementFailed
from tallystick.client.errors import AbortRequired, TooLarge
from tallystick.dualwrite.aio.batches import AsyncBatchRunner
from tallystick.dualwrite.aio.pool import WriterPool
from tallystick.dualwrite.aio.session import AsyncDualWriteSession, AsyncSessionFactories
from tallystick.dualwrite.aio.unit import UnitTransaction
from tallystick.dualwrite.aio.writer import DEFAULT_CLUSTER, DualWriter
from tallystick.dualwrite.errors import Halted, NotVisible, Outcome, Torn, WriteInDoubt
from tallystick.dualwrite.recipes import AsyncStepRunner, Wait
from tallystick.dualwrite.rules.batching import Batching, SavepointPolicy
from tallystick.errors import InDoubt
from tallystick.kernel.clock import Clock
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.ids import TopicPartition

R = TypeVar("R")

POOL_NAME: Final = "batch"
KEYS: Final = ("a", "b", "c")
_BAD_RECORD: Final = b"too large"
_PROFILE: Final = ClientProfile(two_phase=True, keeps_prepared=True)


class UnitRefused(Exception):
    """The work of a unit raises."""


class ProcessGone(GeneratorExit):
    """The run is over: coroutines of its processes are closed, and nothing that they still try happens."""


class CallerProcess:
    """One life of the process that the callers are in, as far as effects go.

    Args:
        kill: when it dies; None: it does not.
    """

    def __init__(self, kill: ProcessKill | None) -> None:
        self.is_dead = False
        self.is_over = False  # the whole run
        self.is_in_batch = False  # a batch of several units has been open
        self.begun_units: set[int] = set()  # whose callers have not been told
        self.death: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._kill = kill
        self._effect_count = 0

    async def pass_effect(self) -> None:
        """Pass a place between two effects. In a dead process nothing ever passes."""
        if self._kill is not None and (self.is_in_batch or not self._kill.in_batch):
            self._effect_count += 1
            if self._effect_count > self._kill.after_effects:
                self.die()
        await self.stay_if_dead()

    async def stay_if_dead(self) -> None:
        self.check_over()
        if self.is_dead:
            await asyncio.get_running_loop().create_future()

    def check_over(self) -> None:
        """Raise ProcessGone once the run is over."""
        if self.is_over:
            raise ProcessGone

    def die(self) -> None:
        """End the process, as `kill -9` does."""
        self.is_dead = True
        if not self.death.done():
            self.death.set_result(None)

    def note_unit(self, unit: SimUnit, count: int) -> None:
        """Note that a unit begins, as the `count`th of its batch: from the first second one effects count."""
        self.begun_units.add(unit.number)
        self.is_in_batch = self.is_in_batch or count > 1

    async def pause(self, seconds: float) -> None:
        """Let virtual time pass in this process."""
        self.check_over()
        await asyncio.sleep(seconds)
        await self.stay_if_dead()


class ProcessNetwork:
    """The network as one process uses it: it may die before each request, and before it hears the answer."""

    def __init__(self, network: SimNetwork, process: CallerProcess) -> None:
        self.process = process
        self._network = network

    async def call(
        self, caller: str, request: object, version: int, answer: type[R], repeats: Repeats = "none"
    ) -> R:
        """Send a request and wait for its reply; see `SimNetwork.call`."""
        await self.process.pass_effect()
        try:
            reply = await self._network.call(caller, request, version, answer, repeats)
        except NoReply:
            await self.process.pass_effect()
            raise
        await self.process.pass_effect()
        return reply


class UnitProducer(ProductProducer):
    """A producer that gathers records, and sends them at times or at the latest when it prepares."""

    def __init__(self, inner: SimProducer, shared_writers: "SharedWriters") -> None:
        super().__init__(inner, shared_writers.history)
        self._shared_writers = shared_writers
        self._buffered_records: list[tuple[TopicPartition, bytes]] = []
        self._failure: AbortRequired | None = None  # of the transaction, until it is aborted

    async def begin_transaction(self) -> None:
        self._buffered_records.clear()
        self._failure = None
        await super().begin_transaction()

    async def send(
        self, topic: str, value: bytes, key: bytes | None = None, *, partition: int, **_: object
    ) -> None:
        """Gather a record; `value` names its unit, attempt and count. Raises: TooLarge."""
        if self._failure is not None:
            raise self._failure
        if key == _BAD_RECORD:
            raise TooLarge("Produce", topic, ErrorCode.MESSAGE_TOO_LARGE)
        self._buffered_records.append((TopicPartition(topic, partition), value))
        if self._shared_writers.random.random() < 0.3:
            with suppress(AbortRequired):  # a record that is not delivered fails the transaction, not `send`
                await self.flush()

    async def flush(self) -> None:
        """Send what was gathered, in order. Raises: AbortRequired, Fenced."""
        if self._failure is not None:
            raise self._failure
        while self._buffered_records:
            partition, value = self._buffered_records.pop(0)
            txn = self.require_txn()
            number, attempt, count = map(int, value.split(b":"))
            # The name that the simulated client gives to its next record.
            text = f"{self.inner.name}:{txn.number}:{len(txn.records)}"
            self._shared_writers.units[number].texts[text] = attempt, count
            try:
                await self._call("Produce", self.inner.send([partition], 1))
            except AbortRequired as exc:
                self._failure = exc
                raise

    async def prepare_transaction(self) -> Any:
        await self.flush()
        return await super().prepare_transaction()


class SimWriter(DualWriter[BatchTransaction]):
    """The product's writer, over simulated clients."""

    def __init__(
        self,
        store: BatchStore,
        config: Mapping[str, object],
        factories: AsyncSessionFactories,
        wait: Wait,
    ) -> None:
        self._steps = AsyncStepRunner()
        self._session = AsyncDualWriteSession(
            store, {DEFAULT_CLUSTER: config}, factories, self._steps, alone=False, wait=wait
        )


class SimPool(WriterPool[BatchTransaction]):
    """The product's pool, over simulated clients."""

    def __init__(self, store: BatchStore, factories: AsyncSessionFactories, plan: CallerPlan) -> None:
        batching = Batching(max_units=plan.max_units, max_batch_wait_ms=plan.max_batch_wait_ms)
        self._store_of_writers = store
        self._factories = factories
        config = {"bootstrap.servers": "simulated:1", "transactional.id": POOL_NAME}
        super().__init__(store, config, plan.pool_size, batching=batching, wait=plan.wait)
        self._batches = AsyncBatchRunner(
            self.writer,
            batching,
            driver_count=plan.pool_size,
            clock=factories.clock,
            savepoints=SavepointPolicy(plan.savepoint_units),
        )

    def _create_writer(self, transactional_id: str) -> SimWriter:
        config = {**self._config, "transactional.id": transactional_id}
        return SimWriter(self._store_of_writers, config, self._factories, self._wait)


class SharedWriters:
    """The callers' processes, one after the other, with one database.

    Attributes: `units`, all of the run, and `counts`.
    """

    def __init__(
        self,
        *,
        plan: CallerPlan,
        faults: FaultPlan,
        random: Random,
        network: SimNetwork,
        history: History,
        decisions: SimDatabase,
        clock: Clock,
    ) -> None:
        """Keep what the processes share.

        Args:
            plan: what the callers do.
            faults: the faults of the run.
            random: decides what callers do and meet, and nothing else.
            network: carries the requests.
            history: receives what clients did and were told.
            decisions: the simulated database that the checkers of every run read.
            clock: the virtual time.
        """
        self.plan = plan
        self.random = random
        self.history = history
        self.units: list[SimUnit] = []
        self.server = BatchDatabase(plan, random, history, decisions, asyncio.sleep)
        self._faults = faults
        self._network = network
        self._clock = clock
        self._is_calm = False
        self._processes: list[CallerProcess] = []

    @property
    def counts(self) -> BatchCounts:
        return self.server.counts

    async def run(self) -> None:
        """Run one process after the other, as the plan says; some live on beside their successor."""
        lives: list[asyncio.Task[None]] = []
        for number in range(self.plan.lives):
            kill = self.plan.kills[number] if number < self.plan.lives - 1 else None
            task = asyncio.get_running_loop().create_task(self._run_process(f"{POOL_NAME}-{number}", kill))
            lives.append(task)
            if kill is None and number < self.plan.lives - 1:
                await asyncio.sleep(self.random.uniform(0, 0.3))
            else:
                await task
        for task in lives:
            await task

    async def finish(self) -> None:
        """Recover every id a last time, without any fault."""
        self._is_calm = self.server.is_calm = True
        process = self._begin_process(None)
        pool = self._create_pool(BatchStore(self.server, process), process)
        await pool.recover()
        await pool.close()

    def end(self) -> None:
        """End the run: whatever dead processes still wait for, they never go on."""
        for each in self._processes:
            each.is_dead = each.is_over = True

    # -- a process ------------------------------------------------------------------------------------------

    def _begin_process(self, kill: ProcessKill | None) -> CallerProcess:
        self._processes.append(CallerProcess(kill))
        return self._processes[-1]

    async def _run_process(self, name: str, kill: ProcessKill | None) -> None:
        process = self._begin_process(kill)
        store = BatchStore(self.server, process)
        life = asyncio.get_running_loop().create_task(self._live(name, process, store))
        await asyncio.wait([life, process.death], return_when=asyncio.FIRST_COMPLETED)
        if not process.is_dead:
            life.result()
            process.die()  # it ends by itself, with its pool closed or not
        elif len(process.begun_units) > 1:
            self.counts["killed"] += 1
        await asyncio.sleep(self.random.choice((0.0, 0.0, 0.05)))
        store.disconnect()

    async def _live(self, name: str, process: CallerProcess, store: BatchStore) -> None:
        pool = self._create_pool(store, process)
        for _ in range(20):
            try:
                await pool.recover()
                break
            except (Torn, Halted) as exc:
                self.history.report(f"recovery of {name}: {exc!r}")
            except Exception:  # another process has claimed an id, or the database refused
                await process.pause(0.05)
        callers = [
            asyncio.get_running_loop().create_task(self._call_often(f"{name}-{number}", pool, process))
            for number in range(self.plan.callers)
        ]
        for each in callers:
            await each
        if self.random.random() < 0.5:
            with suppress(WriteInDoubt):  # of Kafka's half after a batch that waits for the decision alone
                await pool.close()

    def _create_pool(self, store: BatchStore, process: CallerProcess) -> SimPool:
        network = ProcessNetwork(self._network, process)
        factories = AsyncSessionFactories(
            create_producer=cast(Any, partial(self._create_producer, network)),
            create_admin=cast(Any, lambda _: ProductAdmin(network, process.pause)),
            pause=process.pause,
            clock=self._clock,
        )
        return SimPool(store, factories, self.plan)

    def _create_producer(self, network: ProcessNetwork, config: Mapping[str, object]) -> UnitProducer:
        inner = SimProducer(
            str(config["transactional.id"]),
            _PROFILE,
            network,
            self.history,
            network.process.check_over,
            gives_up=self._should_give_up,
        )
        return UnitProducer(inner, self)

    def _should_give_up(self) -> bool:
        return not self._is_calm and self.random.random() < self._faults.client_gives_up

    # -- a caller -------------------------------------------------------------------------------------------

    async def _call_often(self, name: str, pool: SimPool, process: CallerProcess) -> None:
        """Give one unit after the other to the pool, and note what was told of each."""
        random = self.random
        for _ in range(self.plan.units_per_caller):
            await process.pause(random.choice((0.0, 0.0, 0.0, 0.01, 0.1)))
            unit = SimUnit(
                len(self.units),
                name,
                random.choice(KEYS),
                random.randint(1, 3),
                tuple(random.choice(PARTITIONS) for _ in range(random.choice((0, 1, 1, 2, 3)))),
            )
            self.units.append(unit)
            work = UnitWork(unit, self, process)
            limit_s = random.uniform(0, 0.2) if random.random() < self.plan.gives_up else None
            was_told = await self._call(unit, work, pool, limit_s)
            if process.is_dead:
                return
            unit.was_told = was_told
            process.begun_units.discard(unit.number)
            if was_told is not None and unit.number in self.server.unanswered_units:
                self.counts["recovered"] += 1

    async def _call(
        self, unit: SimUnit, work: "UnitWork", pool: SimPool, limit_s: float | None
    ) -> bool | None:
        """Run a unit; return whether its caller was told that it is committed, or None for not known."""
        retries, wait_visible = self.random.choice((0, 0, 2)), self.random.random() < 0.1
        try:
            async with asyncio.timeout(limit_s):
                await pool.run_batched(work.run, retries=retries, wait_visible=wait_visible)
        except TimeoutError as exc:
            unit.was_left = True
            # The pool says so if the unit was in a batch by then.
            return None if getattr(exc.__cause__, "__notes__", ()) else False
        except WriteInDoubt as doubt:
            return {Outcome.COMMITTED: True, Outcome.NOT_COMMITTED: False}.get(doubt.outcome())
        except NotVisible:
            return True
        except (Torn, Halted) as exc:
            self.history.report(f"{unit}: {exc!r}")
            return None
        except InDoubt:
            return None
        except Exception:  # the unit's own, or the writer's: neither half is committed
            return False
        return True


class UnitWork:
    """The work of one unit: rows, a count and records, and the faults that its caller makes."""

    def __init__(self, unit: SimUnit, shared_writers: SharedWriters, process: CallerProcess) -> None:
        random, plan = shared_writers.random, shared_writers.plan
        self._unit = unit
        self._shared_writers = shared_writers
        self._process = process
        self._is_late_error = random.random() < plan.late_constraint
        is_bad = bool(unit.partitions) and random.random() < plan.bad_record
        self._bad_record = random.randrange(len(unit.partitions)) if is_bad else None

    async def run(self, txn: UnitTransaction[BatchTransaction]) -> int:
        """Do the work once more; return the count."""
        unit, random, plan = self._unit, self._shared_writers.random, self._shared_writers.plan
        unit.attempts += 1
        attempt = unit.attempts
        self._process.note_unit(unit, txn.handle.unit_count + 1)
        try:
            if random.random() < plan.slow_unit:
                await self._process.pause(random.uniform(0, 4 * plan.max_batch_wait_ms / 1000))
            for _ in range(unit.row_count):
                await txn.handle.insert(unit, attempt, is_late_error=self._is_late_error)
            count = await txn.handle.count_up(unit.key)
            for number, partition in enumerate(unit.partitions):
                key = _BAD_RECORD if number == self._bad_record else None
                value = f"{unit.number}:{attempt}:{count}".encode()
                await txn.send(partition.topic, value, key, partition=partition.partition)
            if random.random() < plan.unit_raises:
                raise UnitRefused(str(unit))
        except (UnitRefused, StatementFailed):
            unit.raised_attempts.add(attempt)
            raise
        return count
