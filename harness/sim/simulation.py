"""The simulation: clients, broker, disk, clock and faults in one thread, all from one seed (style R17).

    outcome = World(seed).run()

The broker is the real one. The same seed gives the same run in any process; a finding names its seed.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from random import Random
from typing import Final

from harness.memory_fs import UNLIMITED, PowerLost
from harness.sim import checkers
from harness.sim.administrators import SimAdministrator
from harness.sim.clients import ClientProfile, SimProducer
from harness.sim.dual_write import SimDatabase
from harness.sim.failing_disk import FailingDisk
from harness.sim.faults import FAULTS_OFF, FaultKind, FaultPlan, PowerLoss, add_faults, draw_faults
from harness.sim.history import History
from harness.sim.loop import START_MS, VirtualTime, new_loop
from harness.sim.machine import BrokerMachine, DiskImage
from harness.sim.members import SimGroup
from harness.sim.network import NoReply, RequestExchange, SimNetwork
from harness.sim.reader import ReadCommittedReader
from harness.sim.workers import SharedState, TransactionWorker
from tallystick.broker.partitions.partition import Partition
from tallystick.broker.partitions.topics import TRANSACTION_STATE_TOPIC, TopicSpec
from tallystick.broker.txn.codec import encode_batch_of, partition_for
from tallystick.broker.txn.machine.commands import EntryStored
from tallystick.broker.txn.machine.model import ForcedCause, IdlePhase, TransactionResult, TxnEntry
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import (
    INT16_MAX,
    ProducerEpoch,
    ProducerId,
    ProducerIdAndEpoch,
    TimestampMs,
    TopicPartition,
    TransactionalId,
)
from tallystick.protocol.messages.create_topics import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tallystick.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
)
from tallystick.protocol.messages.update_features import (
    FeatureUpdateKey,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from tallystick.storage.fs import StorageFailure
from tallystick.storage.producer_state import AppendOrigin

_TOPICS: Final = {"orders": 2, "stock": 1}
_REPLACED_TOPIC: Final = "stock"  # the topic that is deleted and recreated
PARTITIONS: Final = (TopicPartition("orders", 0), TopicPartition("orders", 1), TopicPartition("stock", 0))
# Epochs that each of these ids has left before the last: their producer ids are replaced soon.
EPOCHS_REMAINING: Final = (0, 1, 2, 3)
# A run that has not come to rest by then never will.
SIMULATION_TIMEOUT_S: Final = 900.0

_SETTINGS: Final = {
    "log.dirs": "data",
    "log.reserve.bytes": "65536",
    "log.cleaner.enable": "false",
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
    "transaction.two.phase.commit.enable": "true",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "300",
    "producer.id.expiration.check.interval.ms": "300",
}


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
    """One run.

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
        self._ids_expire = False
        self._scenario = scenario
        self.random = Random(seed)
        if faults is None:
            drawn = draw_faults(Random(seed + (1 << 32)))
            faults = add_faults(seed, drawn, [kind for kind in FaultKind if kind not in without])
        self.faults = faults
        self.time = VirtualTime()
        self.clients = new_loop(self.time)
        self.history = History(version_1_unproven=faults.may_confuse_topics)
        self.database = SimDatabase()
        self.transaction_version = self.random.choice((2, 2, 2, 2, 1, 0)) if kinds is None else 2
        if self.faults.fresh_disk:
            self.transaction_version = 2
        self._ids_expire = "transactional.id.expiration.ms" in self.faults.settings
        settings = {**_SETTINGS, "flush.policy": self.faults.flush_policy, **self.faults.settings}
        self.machine = BrokerMachine(
            settings,
            self.time,
            Random(seed + 1),
            None if self.faults.fresh_disk else build_disk_image(self.transaction_version),
            lambda: self.random.uniform(0, self.faults.sync_delay_max_s),
        )
        self.network = self._create_network(Random(seed + 2))
        around = SharedState(
            network=self.network,
            history=self.history,
            database=self.database,
            faults=self.faults,
            random=self.random,
            level=lambda: self.transaction_version,
        )
        self.workers = [
            TransactionWorker(owner, kind, self.random.randint(1, 4), PARTITIONS, around)
            for owner, kind in (self._draw_profiles() if kinds is None else kinds).items()
        ]
        self.reader = ReadCommittedReader("reader", PARTITIONS, self.network, self.history)
        self.administrator, self.disk = self._create_faulty_parts()
        self.result = SimulationResult(seed)
        self._remaining_losses = list(self.faults.power_losses)
        self._next_loss: PowerLoss | None = None
        self._is_calm = False
        self._hanging: set[tuple[TopicPartition, ProducerId]] = set()
        self._forced: dict[ProducerIdAndEpoch, ForcedCause] = {}
        self.effects_of_first_life = 0
        self._boots_failed = 0
        self._latest_ms = 0  # of the broker's clock

    def _create_network(self, random: Random) -> SimNetwork:
        network = SimNetwork(self.machine, self.clients, self.faults, random)
        if self._say is not None:
            network.log_line = self._log_event
            self._log_event(f"{self.faults}")
        network.on_answer += [
            lambda exchange: checkers.check_producer_id(self.history, exchange, forgets=self._ids_expire),
            self._on_exchange,
        ]
        return network

    def _create_faulty_parts(self) -> tuple[SimAdministrator, FailingDisk]:
        self.reader.is_expected_error, self.reader.start_of = self._is_expected_error, self._log_start_offset
        network, history, random = self.network, self.history, Random(self.seed + 3)
        administrator = SimAdministrator(
            network,
            history,
            random,
            look=self._find_partitions,
            scan=self._scan,
            deleted=self._topic_replaced,
        )
        self.reader.is_replaced = administrator.topics_in_replacement.__contains__
        self.machine.fs.fault = disk = FailingDisk(
            self.faults.failing_calls,
            lambda: self.time.now_s,
            Random(self.seed + 4),
            self.machine.note_disk_failure,
        )
        return administrator, disk

    def _draw_profiles(self) -> dict[str, ClientProfile]:
        random, made = self.random, dict[str, ClientProfile]()
        owners = ["plain-a", "plain-b", *(f"spent-{left}" for left in EPOCHS_REMAINING)]
        for owner in random.sample(owners, random.randint(1, 3)):
            version = random.choice((2, 2, 2, 1))
            keeps = version == 2 == self.transaction_version and random.random() < 0.5
            made[owner] = ClientProfile(
                version=version,
                keeps_prepared=keeps,
                two_phase=keeps and random.random() < 0.6,
                sends_offsets=random.random() < 0.4,
                timeout_ms=random.choice((60_000, 60_000, 300)),
            )
        return made

    def producer(self, owner: str) -> SimProducer:
        """Return a new incarnation of an id's client, which never dies by itself."""
        kind = next(worker.profile for worker in self.workers if worker.owner == owner)
        return SimProducer(owner, kind, self.network, self.history, lambda: None)

    # -- the run -------------------------------------------------------------------------------------------

    async def pass_time(self, seconds: float) -> None:
        """Wait for this many virtual seconds, while everything else goes on."""
        await asyncio.sleep(seconds)

    def run(self) -> SimulationResult:
        """Run everything from the first boot to the last check."""
        try:
            self._schedule_faults()
            self._boot_broker()
            self._run_until_done(self._spawn(self._run_clients()))
            self._finish()
        except TimeoutError as exc:
            self.history.report(f"did not come to rest: {exc}")
        self._count_outcomes()
        self.result.violations = self.history.violations
        self.result.digest = self.network.digest
        self.machine.loop.kill()
        self.clients.kill()
        return self.result

    def _finish(self) -> None:
        """End all faults, recover every id, restart the broker, and check that the history is consistent."""
        self._is_calm = self.network.is_quiet = self.disk.is_quiet = True
        fs = self.machine.fs
        fs.capacity, fs.crash_after, fs.sync_failure = UNLIMITED, None, None
        self._run_until_done(self._spawn(self._recover_all()))
        before = self._entries()
        self._restart()
        self._run_until_done(self._spawn(self._wait_until_idle()))
        self._compare_entries(before, self._entries())
        self._run_until_done(self._spawn(self._check_final_state()))

    def _spawn(self, work: "asyncio.Future[None] | object") -> "asyncio.Task[None]":
        return self.clients.create_task(work)  # type: ignore[arg-type]

    def _run_until_done(self, task: "asyncio.Task[None]") -> None:
        """Run both processes until a client's task is done; power losses and restarts happen meanwhile."""
        self._run_loops(task.done)
        task.result()

    def _run_loops(self, done: Callable[[], bool]) -> None:
        while not done():
            self.clients.run_ready()
            self.machine.loop.run_ready()
            self._supervise()
            if done():
                return
            due = [
                at for loop in (self.clients, self.machine.loop) if (at := loop.next_callback_s()) is not None
            ]
            if not due or min(due) > SIMULATION_TIMEOUT_S:
                raise TimeoutError(f"at {self.time.now_s:.3f} s there is nothing left to do")
            self.time.now_s = max(self.time.now_s, min(due))

    def _log_event(self, what: str) -> None:
        if self._say is not None:
            self._say(f"{self.time.now_s:8.4f} {what}")

    # -- the broker's lives --------------------------------------------------------------------------------

    def _schedule_faults(self) -> None:
        faults, call_at = self.faults, self.clients.call_at
        for begins, ends, room in faults.disk_full:
            call_at(begins, self._fill_disk, room)
            call_at(ends, self._fill_disk, None)
        for at in faults.disk_breaks_at_s:
            call_at(at, self._break_disk)
        for at, by_ms in faults.clock_jumps:
            call_at(at, self._set_clock, by_ms)

    def _fill_disk(self, room: int | None) -> None:
        fs = self.machine.fs
        used = UNLIMITED - fs.free_room() if fs.capacity == UNLIMITED else fs.capacity - fs.free_room()
        fs.capacity = UNLIMITED if room is None or self._is_calm else used + room

    def _break_disk(self) -> None:
        if not self._is_calm:
            self.machine.fs.sync_failure = OSError(5, "the disk is broken")

    def _set_clock(self, by_ms: int) -> None:
        self._log_event(f"the clock jumps by {by_ms} ms")
        self._record_clock()
        self.time.wall_clock_lag_ms -= by_ms

    def _record_clock(self) -> None:
        self._latest_ms = max(self._latest_ms, self.time.now_ms())

    def _boot_broker(self) -> None:
        self._next_loss = (
            self._remaining_losses.pop(0) if self._remaining_losses and not self._is_calm else None
        )
        if self._next_loss is not None:
            if self._next_loss.after_effects is not None:
                self.machine.fs.crash_after = len(self.machine.fs.effects) + self._next_loss.after_effects
            else:
                self.clients.call_later(
                    self._next_loss.after_s, self._lose_power, self.machine.boot_count + 1
                )
        self._log_event(f"life {self.machine.boot_count + 1} begins")
        self.machine.start()

    def _lose_power(self, life: int) -> None:
        if self.machine.boot_count == life and self._next_loss is not None and not self._is_calm:
            self._end_life(self._next_loss)

    def _supervise(self) -> None:
        """Handle a broker that died: its power or its disk failed, or it never started."""
        machine = self.machine
        if machine.has_died:
            self._end_life(self._next_loss or _BROKEN)
        elif machine.broker is not None and machine.broker.failure is not None:
            self._end_life(_BROKEN)
        elif machine.broker is None and machine.is_running and machine.booting.done():
            self._boot_failed()

    def _boot_failed(self) -> None:
        exc = None if self.machine.booting.cancelled() else self.machine.booting.exception()
        if isinstance(exc, PowerLost) or exc is None:
            return
        self._boots_failed += 1
        if not isinstance(exc, OSError | StorageFailure) or self._is_calm or self._boots_failed > 50:
            self.history.report(f"the broker does not start: {exc!r}")
            raise exc
        self._end_life(_BROKEN)

    def _end_life(self, loss: PowerLoss) -> None:
        self._next_loss = None
        effects = self.machine.fs.effects
        self.effects_of_first_life = self.effects_of_first_life or len(effects)
        self._log_event(
            f"life {self.machine.boot_count} ends, after {len(effects)} effects {effects[-2:]}: {loss}"
        )
        self._note_errors()
        self._note_reports()
        self.machine.end(loss.keep, loss.keep_seed)
        if self.faults.may_lose_acknowledged and loss.keep != "everything":
            self._forget_issued()
        self.clients.call_later(loss.down_s, self._boot_broker)

    def _forget_issued(self) -> None:
        """Forget producer ids given out and records shown: the power loss may have taken them back."""
        self.history.issued_identities.clear()
        self.reader.start_over()

    def _note_reports(self) -> None:
        """Note each hanging transaction an unclean start lists, and each entry's forced outcomes (7)."""
        broker = self.machine.broker
        if broker is None:
            return
        entries = broker.transactions.list_entries()
        for entry in () if isinstance(entries, Reject) else entries:
            self._forced.update((outcome.writer, outcome.cause) for outcome in entry.forced_outcomes)
        for open_ in (
            () if broker.startup_comparison is None else broker.startup_comparison.hanging_transactions
        ):
            if not self.faults.may_lose_acknowledged:
                self.history.report(f"hanging, though nothing can be lost: {open_}")
            self._hanging.add((open_.partition, open_.writer.producer_id))

    def _note_errors(self) -> None:
        for context in self.machine.loop.errors:
            if not isinstance(context.get("exception"), PowerLost):
                self.history.report(f"nobody handled: {context.get('message')}: {context.get('exception')!r}")
        self.machine.loop.errors.clear()

    def _restart(self) -> None:
        """Stop cleanly, or kill the process; everything must still be there afterwards."""
        broker = self.machine.broker
        if broker is not None and self.random.random() < 0.5:
            stopping = self.machine.loop.create_task(broker.stop())
            self._run_loops(stopping.done)
            stopping.result()
        self._end_life(_KILLED)

    # -- what clients do -----------------------------------------------------------------------------------

    async def _run_clients(self) -> None:
        if self.faults.fresh_disk:
            await self._create_topics()
        if self._scenario is None:
            running = [self.clients.create_task(worker.run()) for worker in self.workers]
        else:
            running = [self.clients.create_task(self._scenario(self))]
        reading = self.clients.create_task(self.reader.run(0.02 if self._scenario is None else 0.2))
        looking = self.clients.create_task(self._check_periodically(0.05))
        for number, at in enumerate(self.faults.terminations_at_s):
            running.append(self.clients.create_task(self._terminate(at, number)))
        running += [self.clients.create_task(work) for work in self._administrator_tasks()]
        if self.faults.upgrade_at_s is not None and self.transaction_version < 2:
            running.append(self.clients.create_task(self._upgrade(self.faults.upgrade_at_s)))
        for task in running:
            await task
        for task in (reading, looking):
            task.cancel()

    def _administrator_tasks(self) -> Iterator[Coroutine[object, object, None]]:
        faults, admin = self.faults, self.administrator
        if faults.deletions_at_s:
            yield self._replace_topic(faults.deletions_at_s)
        for number, at in enumerate(faults.delete_records_at_s):
            yield admin.delete_records(at, PARTITIONS[number % len(PARTITIONS)])
        if faults.members_until_s is not None:
            random, binds = Random(self.seed + 5), not faults.may_lose_acknowledged
            group = SimGroup(self.network, self.history, random, PARTITIONS[:2], binds)
            yield group.run(faults.members_until_s)
        for at in faults.markers_at_s:
            yield admin.abort_in_partition(at, PARTITIONS)

    async def _create_topics(self) -> None:
        topics = [CreatableTopic(name=n, num_partitions=p, replication_factor=1) for n, p in _TOPICS.items()]
        request = CreateTopicsRequest(topics=tuple(topics))
        missing = set(_TOPICS)
        while missing:
            try:
                answer = await self.network.call("admin", request, 5, CreateTopicsResponse)
            except NoReply:
                continue
            made = (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)
            missing -= {topic.name for topic in answer.topics if topic.error_code in made}
            await asyncio.sleep(0.02)

    async def _upgrade(self, at_s: float) -> None:
        """Finalize transaction.version 2 under older clients; clients that start later speak it."""
        await asyncio.sleep(at_s)
        key = FeatureUpdateKey(feature="transaction.version", max_version_level=2)
        request = UpdateFeaturesRequest(feature_updates=(key,))
        while self.transaction_version < 2:
            try:
                answer = await self.network.call("admin", request, 1, UpdateFeaturesResponse)
            except NoReply:
                continue
            if answer.error_code and self.machine.is_broken:
                continue
            if answer.error_code:
                self.history.report(f"UpdateFeatures: {answer.error_code} {answer.error_message}")
            self.transaction_version = 2

    async def _check_periodically(self, period_s: float) -> None:
        while True:
            await asyncio.sleep(period_s)
            self._check_stable_offsets()
            self._note_reports()

    def _check_stable_offsets(self) -> None:
        if self.machine.is_alive:
            for partition in self._find_partitions(PARTITIONS):
                with self.disk.suspended():
                    for wrong in checkers.check_stable_offset(partition):
                        self.history.report(wrong)

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
            self._note_reports()
        for worker in self.workers:
            await worker.finish()
        await self._wait_until_idle()

    async def _wait_until_idle(self) -> None:
        """Wait until nothing is open; a transaction that a start has reopened ends by its timeout."""
        for tries in range(600):
            if self.machine.is_alive and not self._find_busy_entries():
                return
            await asyncio.sleep(0.02 if tries < 200 else 0.5)
        self.history.report(f"still busy at the end: {self._find_busy_entries()}")

    def _find_busy_entries(self) -> list[str]:
        entries = self._coordinator_entries()
        if isinstance(entries, Reject):
            return [entries.reason]
        return [f"{entry.transactional_id} {entry.state.label}" for entry in entries if not _is_idle(entry)]

    # -- checking ------------------------------------------------------------------------------------------

    def _partitions(self, names: tuple[TopicPartition, ...]) -> list[Partition]:
        broker = self.machine.broker
        if broker is None:
            return []
        found = [broker.topics.find_partition(name.topic, name.partition) for name in names]
        return [partition for partition in found if partition is not None]

    def _coordinator_entries(self) -> tuple[TxnEntry, ...] | Reject:
        broker = self.machine.broker
        if broker is None:
            raise RuntimeError("the broker is down")
        return broker.transactions.list_entries()

    def _entries(self) -> dict[str, TxnEntry]:
        entries = self._coordinator_entries()
        if isinstance(entries, Reject):
            self.history.report(f"entries cannot be had: {entries.reason}")
            return {}
        return {entry.transactional_id: entry for entry in entries}

    def _compare_entries(self, before: Mapping[str, TxnEntry], after: Mapping[str, TxnEntry]) -> None:
        """Compare entries replayed with those live, apart from fields that version 0 has no place for (5).

        An unclean start also moves an id with a hanging transaction to another producer id.
        """
        self._note_reports()
        for owner in sorted(before.keys() | after.keys()):
            live, replayed = before.get(owner), after.get(owner)
            if self.transaction_version == 0 and live is not None and replayed is not None:
                live = replace(live, forced_outcomes=(), previous_identity=None, transaction_version=0)
                replayed = replace(replayed, previous_identity=None)
            if live != replayed and not self._hanging:
                self.history.report(f"replayed {replayed}, live it was {live}")

    async def _check_final_state(self) -> None:
        self._note_reports()
        broker, report = self.machine.broker, self.history.report
        if broker is None:
            report("the broker is down at the end")
            return
        partitions = {partition.topic_partition: partition for partition in broker.topics.list_partitions()}
        batches = {
            name: self._scan(partition)
            for name, partition in partitions.items()
            if name.topic != TRANSACTION_STATE_TOPIC
        }
        decided = {
            name: checkers.decide_transactions(found, partitions[name].log.log_end_offset)
            for name, found in batches.items()
        }
        visible = {name: decided[name].visible_texts for name in PARTITIONS}
        self._note_retention()
        await self._compare_readers(visible)
        entries = tuple(self._entries().values())
        found = [
            *checkers.check_texts(batches, self.history.texts_in_aborted_partitions()),
            *(() if self.faults.may_lose_acknowledged else checkers.check_deleted(self.history, visible)),
            *checkers.check_order(self.history, visible),
            *checkers.check_markers(self.history, decided, self._hanging),
            *checkers.check_entries(entries, decided, self._hanging),
        ]
        if self.faults.may_lose_acknowledged:
            found += checkers.check_aborted(self.history, visible)
        else:
            found += checkers.check_atomic(self.history, visible)
            found += checkers.check_database(self.history, self.database, visible, self._forced)
            await self._check_offsets()
        for wrong in found:
            report(wrong)
        self._check_stable_offsets()
        self._note_errors()

    async def _compare_readers(self, visible: Mapping[TopicPartition, list[str]]) -> None:
        """Compare what readers were shown, all along and now, with what the batches come to (1)."""
        anew = ReadCommittedReader("reader anew", PARTITIONS, self.network, self.history)
        anew.is_expected_error, anew.start_of = self._is_expected_error, self._log_start_offset
        may_go = self.history.may_be_deleted
        for reader in (self.reader, anew):
            await reader.read_to_end()
            for name, texts in visible.items():
                shown = [text for text in reader.views[name].texts if text not in may_go]
                texts = [text for text in texts if text not in may_go]
                held_back = any(partition == name for partition, _ in self._hanging)
                if shown != (texts[: len(shown)] if held_back else texts):
                    self.history.report(f"{reader.name} was shown {shown} of {name}, there are {texts}")

    async def _check_offsets(self) -> None:
        for worker in self.workers:
            if not worker.profile.sends_offsets:
                continue
            partition = PARTITIONS[0]
            topics = (
                OffsetFetchRequestTopic(name=partition.topic, partition_indexes=(partition.partition,)),
            )
            request = OffsetFetchRequest(group_id=worker.group, topics=topics, require_stable=True)
            answer = await self.network.call("checker", request, 7, OffsetFetchResponse)
            for topic in answer.topics:
                for found in topic.partitions:
                    number = int(found.metadata) if found.metadata else None
                    if found.error_code or answer.error_code:
                        self.history.report(f"{worker.group}: offset is answered with {found}")
                    for wrong in checkers.check_offset(self.history, worker.owner, number):
                        self.history.report(wrong)

    def _find_partitions(self, names: Collection[TopicPartition]) -> list[Partition]:
        return self._partitions(tuple(names)) if self.machine.is_alive else []

    async def _replace_topic(self, times_s: Sequence[float]) -> None:
        begun_s = asyncio.get_running_loop().time()
        for at_s in times_s:
            wait_s = begun_s + at_s - asyncio.get_running_loop().time()
            await self.administrator.replace_topic(
                max(0.0, wait_s), _REPLACED_TOPIC, [TopicPartition(_REPLACED_TOPIC, 0)]
            )

    def _topic_replaced(self, topic: str) -> None:
        self.reader.start_over(topic=topic)
        if self.faults.may_lose_acknowledged:
            return
        for partition in self._find_partitions([TopicPartition(topic, 0)]):
            texts = [text for batch in self._scan(partition) for text in batch.texts]
            for wrong in checkers.check_deleted(self.history, {partition.topic_partition: texts}):
                self.history.report(wrong)

    def _scan(self, partition: Partition) -> list[checkers.LogBatch]:
        with self.disk.suspended():
            return checkers.scan_partition(partition)

    def _note_retention(self) -> None:
        """Note which records retention may take, by their timestamps and the broker's latest time."""
        self._record_clock()
        if self.faults.retention_ms is not None:
            oldest_ms = self._latest_ms - self.faults.retention_ms
            self.history.may_be_deleted |= {
                text for text, at in self.history.sent_ms.items() if at <= oldest_ms
            }

    def _is_expected_error(self, partition: TopicPartition, code: ErrorCode) -> bool:
        """Return whether a reader may get this error: partitions and records are deleted, the disk fails."""
        faults = self.faults
        replaced = bool(faults.deletions_at_s) and partition.topic == _REPLACED_TOPIC
        match code:
            case ErrorCode.OFFSET_OUT_OF_RANGE:
                return replaced or bool(faults.delete_records_at_s) or faults.retention_ms is not None
            case ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                return replaced
            case _:
                return code is ErrorCode.KAFKA_STORAGE_ERROR and self.machine.is_broken

    def _log_start_offset(self, name: TopicPartition) -> int:
        found = self._find_partitions((name,))
        return found[0].log.log_start_offset if found else 0

    def _on_exchange(self, exchange: RequestExchange) -> None:
        self.result.requests += 1
        if not self.machine.is_broken:
            checkers.check_answer(self.history, exchange)

    def _count_outcomes(self) -> None:
        told = [txn.reported_outcome for txn in self.history.txns]
        self.result.boot_count = self.machine.boot_count
        self.result.committed, self.result.aborted = told.count(True), told.count(False)
        self.result.unknown = told.count(None)


def _is_idle(entry: TxnEntry) -> bool:
    return isinstance(entry.phase, IdlePhase)


_KILLED: Final = PowerLoss(after_effects=None, after_s=0, keep="everything", keep_seed=0, down_s=0.0)
_BROKEN: Final = PowerLoss(after_effects=None, after_s=0, keep="nothing", keep_seed=0, down_s=0.1)


@lru_cache
def build_disk_image(level: int) -> DiskImage:
    """Return a data directory with all topics, and ids whose epochs are nearly spent. Cost: 10 ms, once."""
    time = VirtualTime()
    machine = BrokerMachine(_SETTINGS, time, Random(0))
    machine.start()

    async def furnish() -> None:
        await machine.booting
        broker = machine.broker
        if broker is None:
            raise RuntimeError("the broker did not start")
        broker.metadata_store.set_features(1, {"transaction.version": level})
        for name, partitions in _TOPICS.items():
            await broker.topic_controller.create(TopicSpec(name, partitions))
        await broker.transactions.ensure_topic()
        for left in EPOCHS_REMAINING:
            owner = TransactionalId(f"spent-{left}")
            client = ProducerIdAndEpoch(
                await broker.generate_producer_id(), ProducerEpoch(INT16_MAX - 1 - left)
            )
            entry = TxnEntry(
                transactional_id=owner,
                phase=IdlePhase(outcome=TransactionResult.COMMIT, started_ms=TimestampMs(START_MS)),
                client=client,
                previous_identity=None,
                timeout_ms=60_000,
                transaction_version=level,
                updated_ms=TimestampMs(START_MS),
            )
            found = broker.topics.find_partition(TRANSACTION_STATE_TOPIC, partition_for(owner, 2))
            if found is None:
                raise RuntimeError("there is no __transaction_state")
            batch = encode_batch_of([EntryStored(entry=entry)], TimestampMs(START_MS), level)
            await found.append_durably(batch, AppendOrigin.COORDINATOR)
        await broker.stop()

    task = machine.loop.create_task(furnish())
    while not task.done():
        machine.loop.run_ready()
        due = machine.loop.next_callback_s()
        if due is not None:
            time.now_s = max(time.now_s, due)
    task.result()
    machine.loop.kill()
    return machine.capture_image()
