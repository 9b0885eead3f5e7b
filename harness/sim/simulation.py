"""The simulation: clients, broker, disk, clock and faults in one thread, all from one seed (style R17).

    result = Simulation(seed).run()

The broker is the real one. The same seed gives the same run in any process; a finding names its seed.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field
from random import Random

from harness.sim import checkers
from harness.sim.actors.administrators import SimAdministrator
from harness.sim.actors.clients import ClientProfile, SimProducer, draw_profiles
from harness.sim.actors.dual_write import SimDatabase
from harness.sim.actors.members import SimGroup
from harness.sim.actors.reader import ReadCommittedReader
from harness.sim.actors.workers import SharedState, TransactionWorker
from harness.sim.broker_view import BrokerReports, BrokerView
from harness.sim.cluster_setup import ClusterSetup
from harness.sim.disk_image import (
    PARTITIONS,
    REPLACED_TOPIC,
    SETTINGS,
    TOPICS,
    build_disk_image,
)
from harness.sim.failing_disk import FailingDisk
from harness.sim.fault_schedule import FaultSchedule
from harness.sim.faults import FAULTS_OFF, FaultKind, FaultPlan, PowerLoss, add_faults, draw_faults
from harness.sim.final_checks import FinalChecks
from harness.sim.history import History
from harness.sim.loop import VirtualTime, new_loop
from harness.sim.machine import BrokerMachine
from harness.sim.network import RequestExchange, SimNetwork
from harness.sim.scheduler import Scheduler
from harness.sim.supervisor import BrokerSupervisor
from harness.small_units import small_units
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.ids import TopicPartition


@dataclass(slots=True)
class SimulationResult:
    """The outcome of one seed."""

    seed: int
    violations: list[str] = field(default_factory=list)
    boot_count: int = 0
    committed: int = 0
    aborted: int = 0
    unknown: int = 0
    requests: int = 0
    digest: int = 0  # the same in every run of the seed


class Simulation:
    """One run: its parts, and the order in which they act.

    Args:
        faults, kinds: used instead of those the seed draws, for tests that need specific ones.
        scenario: runs instead of the workers.
        say: called with a line for each event.
        without: faults that are not drawn.
    """

    def __init__(
        self,
        seed: int,
        *,
        faults: FaultPlan | None = None,
        kinds: Mapping[str, ClientProfile] | None = None,
        scenario: "Callable[[Simulation], Coroutine[object, object, None]] | None" = None,
        say: Callable[[str], None] | None = None,
        without: Collection[FaultKind] = FAULTS_OFF,
    ) -> None:
        self.seed = seed
        self._say = say
        self._scenario = scenario
        self.random = Random(seed)
        if faults is None:
            drawn_faults = draw_faults(Random(seed + (1 << 32)))
            faults = add_faults(seed, drawn_faults, [kind for kind in FaultKind if kind not in without])
        self.faults = faults
        self.time = VirtualTime()
        self.clients = new_loop(self.time)
        self.history = History(version_1_unproven=faults.may_confuse_topics)
        self.database = SimDatabase()
        self.result = SimulationResult(seed)
        level = self.random.choice((2, 2, 2, 2, 1, 0)) if kinds is None else 2
        level = 2 if faults.fresh_disk else level
        self.machine = self._create_machine(level)
        self.network = self._create_network(Random(seed + 2))
        self._setup = ClusterSetup(self.machine, self.network, self.history, level)
        shared_state = SharedState(
            network=self.network,
            history=self.history,
            database=self.database,
            faults=faults,
            random=self.random,
            level=lambda: self._setup.transaction_version,
        )
        self.workers = [
            TransactionWorker(owner, kind, self.random.randint(1, 4), PARTITIONS, shared_state)
            for owner, kind in (draw_profiles(self.random, level) if kinds is None else kinds).items()
        ]
        self._disk = self._create_failing_disk()
        self._view = BrokerView(self.machine, self._disk, self.history)
        self._reports = BrokerReports(self.machine, self.history, may_lose=faults.may_lose_acknowledged)
        self._administrator = SimAdministrator(
            self.network,
            self.history,
            Random(seed + 3),
            look=self._view.find_partitions,
            scan=self._view.scan,
            on_delete=self._start_over_topic,
        )
        self._reader = self._create_reader("reader")
        self._reader.is_replaced = self._administrator.topics_in_replacement.__contains__
        self._schedule = FaultSchedule(self.machine, self.time, faults, log_line=self._log_event)
        self.supervisor = self._create_supervisor()
        self._scheduler = Scheduler(self.time, self.clients, self.machine, self.supervisor.supervise)

    # -- its parts -----------------------------------------------------------------------------------------

    def _create_machine(self, level: int) -> BrokerMachine:
        faults = self.faults
        return BrokerMachine(
            {**SETTINGS, "flush.policy": faults.flush_policy, **faults.settings},
            self.time,
            Random(self.seed + 1),
            None if faults.fresh_disk else build_disk_image(level),
            lambda: self.random.uniform(0, faults.sync_delay_max_s),
        )

    def _create_network(self, random: Random) -> SimNetwork:
        network = SimNetwork(self.machine, self.clients, self.faults, random)
        if self._say is not None:
            network.log_line = self._log_event
            self._log_event(f"{self.faults}")
        ids_expire = "transactional.id.expiration.ms" in self.faults.settings
        network.on_answer += [
            lambda exchange: checkers.check_producer_id(self.history, exchange, forgets=ids_expire),
            self._check_exchange,
        ]
        return network

    def _create_failing_disk(self) -> FailingDisk:
        disk = FailingDisk(
            self.faults.failing_calls,
            lambda: self.time.now_s,
            Random(self.seed + 4),
            self.machine.note_disk_failure,
        )
        self.machine.fs.fault = disk
        return disk

    def _create_reader(self, name: str) -> ReadCommittedReader:
        reader = ReadCommittedReader(name, PARTITIONS, self.network, self.history)
        reader.is_expected_error, reader.start_of = self._is_expected_error, self._view.log_start_offset
        return reader

    def _create_supervisor(self) -> BrokerSupervisor:
        return BrokerSupervisor(
            self.machine,
            self.clients,
            self.history,
            self.faults.power_losses,
            before_end=self._collect_reports,
            after_end=self._forget_lost,
            log_line=self._log_event,
        )

    # -- for scenarios -------------------------------------------------------------------------------------

    def producer(self, owner: str) -> SimProducer:
        """Return a new incarnation of an id's client, which never dies by itself."""
        kind = next(worker.profile for worker in self.workers if worker.owner == owner)
        return SimProducer(owner, kind, self.network, self.history, lambda: None)

    async def pass_time(self, seconds: float) -> None:
        """Wait for this many virtual seconds, while everything else goes on."""
        await asyncio.sleep(seconds)

    # -- the run -------------------------------------------------------------------------------------------

    def run(self) -> SimulationResult:
        """Run everything from the first boot to the last check."""
        try:
            with small_units(Random(f"units {self.seed}")):
                self._schedule.start(self.clients)
                self.supervisor.boot()
                self._scheduler.run(self._run_clients())
                self._finish()
        except TimeoutError as exc:
            self.history.report(f"did not come to rest: {exc}")
        reported_outcomes = [txn.reported_outcome for txn in self.history.txns]
        self.result.boot_count = self.machine.boot_count
        self.result.committed, self.result.aborted = (
            reported_outcomes.count(True),
            reported_outcomes.count(False),
        )
        self.result.unknown = reported_outcomes.count(None)
        self.result.violations = self.history.violations
        self.result.digest = self.network.digest
        self.machine.loop.kill()
        self.clients.kill()
        return self.result

    def _finish(self) -> None:
        """End all faults, recover every id, restart the broker, and check that the history is consistent."""
        self.network.is_quiet = self._disk.is_quiet = True
        self._schedule.stop()
        self.supervisor.stop_power_losses()
        self._scheduler.run(self._recover_all())
        before = self._view.require_entries()
        self._restart()
        self._scheduler.run(self._wait_until_idle())
        checks = FinalChecks(
            faults=self.faults,
            history=self.history,
            view=self._view,
            reports=self._reports,
            network=self.network,
            database=self.database,
            workers=self.workers,
            reader=self._reader,
            anew=self._create_reader("reader anew"),
        )
        after, level = self._view.require_entries(), self._setup.transaction_version
        checks.compare_entries(before, after, transaction_version=level, now_ms=self.machine.time.now_ms())
        self._scheduler.run(self._check_final_state(checks))

    def _restart(self) -> None:
        """Stop cleanly, or kill the process; everything must still be there afterwards."""
        broker = self.machine.broker
        if broker is not None and self.random.random() < 0.5:
            stopping = self.machine.loop.create_task(broker.stop())
            self._scheduler.run_until(stopping.done)
            stopping.result()
        self.supervisor.kill()

    async def _run_clients(self) -> None:
        if self.faults.fresh_disk:
            await self._setup.create_topics(TOPICS)
        if self._scenario is None:
            client_tasks = [self.clients.create_task(worker.run()) for worker in self.workers]
        else:
            client_tasks = [self.clients.create_task(self._scenario(self))]
        reader_task = self.clients.create_task(self._reader.run(0.02 if self._scenario is None else 0.2))
        checking = self.clients.create_task(self._check_periodically(0.05))
        for number, at in enumerate(self.faults.terminations_at_s):
            client_tasks.append(self.clients.create_task(self._terminate(at, number)))
        client_tasks += [self.clients.create_task(work) for work in self._administrator_tasks()]
        if self.faults.upgrade_at_s is not None and self._setup.transaction_version < 2:
            client_tasks.append(self.clients.create_task(self._setup.upgrade(self.faults.upgrade_at_s)))
        for task in client_tasks:
            await task
        for task in (reader_task, checking):
            task.cancel()

    def _administrator_tasks(self) -> Iterator[Coroutine[object, object, None]]:
        faults, admin = self.faults, self._administrator
        if faults.deletions_at_s:
            partitions = [TopicPartition(REPLACED_TOPIC, 0)]
            yield admin.replace_topic_at(faults.deletions_at_s, REPLACED_TOPIC, partitions)
        for number, at in enumerate(faults.delete_records_at_s):
            yield admin.delete_records(at, PARTITIONS[number % len(PARTITIONS)])
        if faults.members_until_s is not None:
            random, binds = Random(self.seed + 5), not faults.may_lose_acknowledged
            group = SimGroup(self.network, self.history, random, PARTITIONS[:2], binds)
            yield group.run(faults.members_until_s)
        for at in faults.markers_at_s:
            yield admin.abort_in_partition(at, PARTITIONS)

    async def _terminate(self, at_s: float, number: int) -> None:
        """Send InitProducerId without keep and without 2PC, as forceTerminateTransaction does."""
        await asyncio.sleep(at_s)
        owner = self.workers[number % len(self.workers)].owner
        admin = SimProducer(owner, ClientProfile(timeout_ms=60_000), self.network, self.history, lambda: None)
        await admin.init()

    async def _recover_all(self) -> None:
        """Let late requests arrive, then recover every id, then wait until nothing is open."""
        for _ in range(20):
            await asyncio.sleep((self.faults.late_max_s + 0.5) / 20)
            self._reports.collect()
        for worker in self.workers:
            await worker.finish()
        await self._wait_until_idle()

    async def _wait_until_idle(self) -> None:
        """Wait until nothing is open; a transaction that a start has reopened ends by its timeout."""
        for tries in range(600):
            if self.machine.is_alive and not self._view.find_busy_entries():
                return
            await asyncio.sleep(0.02 if tries < 200 else 0.5)
        self.history.report(f"still busy at the end: {self._view.find_busy_entries()}")

    # -- what is noticed -----------------------------------------------------------------------------------

    def _log_event(self, what: str) -> None:
        if self._say is not None:
            self._say(f"{self.time.now_s:8.4f} {what}")

    def _check_exchange(self, exchange: RequestExchange) -> None:
        self.result.requests += 1
        if not self.machine.is_broken:
            checkers.check_answer(self.history, exchange)

    async def _check_periodically(self, period_s: float) -> None:
        while True:
            await asyncio.sleep(period_s)
            self._view.check_stable_offsets(PARTITIONS)
            self._reports.collect()

    async def _check_final_state(self, checks: FinalChecks) -> None:
        self._reports.collect()
        broker = self.machine.broker
        if broker is None:
            self.history.report("the broker is down at the end")
            return
        if self.faults.retention_ms is not None:
            self.history.note_retention(self._schedule.latest_wall_ms() - self.faults.retention_ms)
        await checks.check_logs(broker.topics)

    def _collect_reports(self) -> None:
        self._reports.collect_errors()
        self._reports.collect()

    def _forget_lost(self, loss: PowerLoss) -> None:
        """Forget producer ids given out and records shown, if the power loss may have taken them back."""
        if self.faults.may_lose_acknowledged and loss.keep != "everything":
            self.history.issued_identities.clear()
            self._reader.start_over()

    def _start_over_topic(self, topic: str) -> None:
        """Read a topic anew that was recreated, and check that no record of its predecessor is in it."""
        self._reader.start_over(topic=topic)
        if self.faults.may_lose_acknowledged:
            return
        for partition in self._view.find_partitions([TopicPartition(topic, 0)]):
            texts = [text for batch in self._view.scan(partition) for text in batch.texts]
            for violation in checkers.check_deleted(self.history, {partition.topic_partition: texts}):
                self.history.report(violation)

    def _is_expected_error(self, partition: TopicPartition, code: ErrorCode) -> bool:
        """Return whether a reader may get this error: partitions and records are deleted, the disk fails."""
        faults = self.faults
        is_replaced = bool(faults.deletions_at_s) and partition.topic == REPLACED_TOPIC
        match code:
            case ErrorCode.OFFSET_OUT_OF_RANGE:
                return is_replaced or bool(faults.delete_records_at_s) or faults.retention_ms is not None
            case ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                return is_replaced
            case _:
                return code is ErrorCode.KAFKA_STORAGE_ERROR and self.machine.is_broken
