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

from tallystick.broker.partitions.partition import Partition
from tallystick.broker.partitions.topics import TRANSACTION_STATE, NewTopic
from tallystick.broker.txn.codec import encode_batch_of, partition_of
from tallystick.broker.txn.machine.commands import EntryStored
from tallystick.broker.txn.machine.model import ForcedCause, Idle, Outcome, TxnEntry
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import (
    INT16_MAX,
    Identity,
    ProducerEpoch,
    ProducerId,
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
from tallystick.storage.producers import AppendOrigin
from tallystick.testing.memory_fs import UNLIMITED, PowerLost
from tallystick.testing.sim import checkers
from tallystick.testing.sim.administrators import Administrator
from tallystick.testing.sim.clients import Kind, Producer
from tallystick.testing.sim.dual_write import Database
from tallystick.testing.sim.failing_disk import FailingDisk
from tallystick.testing.sim.faults import OFF, Disturbance, FaultPlan, PowerLoss, disturb, draw
from tallystick.testing.sim.history import History
from tallystick.testing.sim.loop import START_MS, VirtualTime, new_loop
from tallystick.testing.sim.machine import Image, Machine
from tallystick.testing.sim.members import Group
from tallystick.testing.sim.network import Exchange, Network, NoReply
from tallystick.testing.sim.reader import Reader
from tallystick.testing.sim.workers import Around, Worker

_TOPICS: Final = {"orders": 2, "stock": 1}
_SCRAP: Final = "stock"  # the topic that is deleted and recreated
PARTITIONS: Final = (TopicPartition("orders", 0), TopicPartition("orders", 1), TopicPartition("stock", 0))
# Epochs that each of these ids has left before the last: their producer ids are replaced soon.
NEARLY_SPENT: Final = (0, 1, 2, 3)
# A run that has not come to rest by then never will.
REST_BY_S: Final = 900.0

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
class Result:
    """The outcome of one seed."""

    seed: int
    found: list[str] = field(default_factory=list)
    lives: int = 0
    committed: int = 0
    aborted: int = 0
    unknown: int = 0
    requests: int = 0
    digest: int = 0  # the same in every run of the seed


class World:
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
        kinds: Mapping[str, Kind] | None = None,
        scenario: "Callable[[World], Coroutine[object, object, None]] | None" = None,
        say: Callable[[str], None] | None = None,
        without: Collection[Disturbance] = OFF,
    ) -> None:
        self.seed = seed
        self._say = say
        self._ids_expire = False
        self._scenario = scenario
        self.random = Random(seed)
        if faults is None:
            drawn = draw(Random(seed + (1 << 32)))
            faults = disturb(seed, drawn, [kind for kind in Disturbance if kind not in without])
        self.faults = faults
        self.time = VirtualTime()
        self.clients = new_loop(self.time)
        self.history = History(version_1_unproven=faults.confuses_topics)
        self.database = Database()
        self.level = self.random.choice((2, 2, 2, 2, 1, 0)) if kinds is None else 2
        if self.faults.fresh_disk:
            self.level = 2
        self._ids_expire = "transactional.id.expiration.ms" in self.faults.settings
        settings = {**_SETTINGS, "flush.policy": self.faults.flush_policy, **self.faults.settings}
        self.machine = Machine(
            settings,
            self.time,
            Random(seed + 1),
            None if self.faults.fresh_disk else image_of(self.level),
            lambda: self.random.uniform(0, self.faults.sync_delay_max_s),
        )
        self.network = self._wire(Random(seed + 2))
        around = Around(
            network=self.network,
            history=self.history,
            database=self.database,
            faults=self.faults,
            random=self.random,
            level=lambda: self.level,
        )
        self.workers = [
            Worker(owner, kind, self.random.randint(1, 4), PARTITIONS, around)
            for owner, kind in (self._kinds() if kinds is None else kinds).items()
        ]
        self.reader = Reader("reader", PARTITIONS, self.network, self.history)
        self.administrator, self.disk = self._trouble()
        self.result = Result(seed)
        self._losses = list(self.faults.power_losses)
        self._loss: PowerLoss | None = None
        self._calm = False
        self._hanging: set[tuple[TopicPartition, ProducerId]] = set()
        self._forced: dict[Identity, ForcedCause] = {}
        self.effects_of_first_life = 0
        self._boots_failed = 0
        self._latest_ms = 0  # of the broker's clock

    def _wire(self, random: Random) -> Network:
        network = Network(self.machine, self.clients, self.faults, random)
        if self._say is not None:
            network.say = self._tell
            self._tell(f"{self.faults}")
        network.answered += [
            lambda exchange: checkers.check_pair(self.history, exchange, forgets=self._ids_expire),
            self._look_at,
        ]
        return network

    def _trouble(self) -> tuple[Administrator, FailingDisk]:
        self.reader.expects, self.reader.start_of = self._expects, self._start_of
        network, history, random = self.network, self.history, Random(self.seed + 3)
        administrator = Administrator(
            network, history, random, look=self._find, scan=self._scan, deleted=self._topic_replaced
        )
        self.reader.is_replaced = administrator.replacing.__contains__
        self.machine.fs.fault = disk = FailingDisk(
            self.faults.failing_calls,
            lambda: self.time.now_s,
            Random(self.seed + 4),
            self.machine.meet_failure,
        )
        return administrator, disk

    def _kinds(self) -> dict[str, Kind]:
        random, made = self.random, dict[str, Kind]()
        owners = ["plain-a", "plain-b", *(f"spent-{left}" for left in NEARLY_SPENT)]
        for owner in random.sample(owners, random.randint(1, 3)):
            version = random.choice((2, 2, 2, 1))
            keeps = version == 2 == self.level and random.random() < 0.5
            made[owner] = Kind(
                version=version,
                keeps=keeps,
                two_phase=keeps and random.random() < 0.6,
                offsets=random.random() < 0.4,
                timeout_ms=random.choice((60_000, 60_000, 300)),
            )
        return made

    def producer(self, owner: str) -> Producer:
        """Return a new incarnation of an id's client, which never dies by itself."""
        kind = next(worker.kind for worker in self.workers if worker.owner == owner)
        return Producer(owner, kind, self.network, self.history, lambda: None)

    # -- the run -------------------------------------------------------------------------------------------

    async def pass_time(self, seconds: float) -> None:
        """Wait for this many virtual seconds, while everything else goes on."""
        await asyncio.sleep(seconds)

    def run(self) -> Result:
        """Run everything from the first boot to the last check."""
        try:
            self._plan()
            self._start()
            self._until(self._spawn(self._work()))
            self._finish()
        except TimeoutError as exc:
            self.history.report(f"did not come to rest: {exc}")
        self._count_outcomes()
        self.result.found = self.history.wrong
        self.result.digest = self.network.digest
        self.machine.loop.kill()
        self.clients.kill()
        return self.result

    def _finish(self) -> None:
        """End all faults, recover every id, restart the broker, and check that the history is consistent."""
        self._calm = self.network.quiet = self.disk.quiet = True
        fs = self.machine.fs
        fs.capacity, fs.crash_after, fs.sync_failure = UNLIMITED, None, None
        self._until(self._spawn(self._settle()))
        before = self._entries()
        self._restart()
        self._until(self._spawn(self._settled()))
        self._compare_entries(before, self._entries())
        self._until(self._spawn(self._check()))

    def _spawn(self, work: "asyncio.Future[None] | object") -> "asyncio.Task[None]":
        return self.clients.create_task(work)  # type: ignore[arg-type]

    def _until(self, task: "asyncio.Task[None]") -> None:
        """Run both processes until a client's task is done; power losses and restarts happen meanwhile."""
        self._drive(task.done)
        task.result()

    def _drive(self, done: Callable[[], bool]) -> None:
        while not done():
            self.clients.turn()
            self.machine.loop.turn()
            self._supervise()
            if done():
                return
            due = [at for loop in (self.clients, self.machine.loop) if (at := loop.next_s()) is not None]
            if not due or min(due) > REST_BY_S:
                raise TimeoutError(f"at {self.time.now_s:.3f} s there is nothing left to do")
            self.time.now_s = max(self.time.now_s, min(due))

    def _tell(self, what: str) -> None:
        if self._say is not None:
            self._say(f"{self.time.now_s:8.4f} {what}")

    # -- the broker's lives --------------------------------------------------------------------------------

    def _plan(self) -> None:
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
        used = UNLIMITED - fs.room() if fs.capacity == UNLIMITED else fs.capacity - fs.room()
        fs.capacity = UNLIMITED if room is None or self._calm else used + room

    def _break_disk(self) -> None:
        if not self._calm:
            self.machine.fs.sync_failure = OSError(5, "the disk is broken")

    def _set_clock(self, by_ms: int) -> None:
        self._tell(f"the clock jumps by {by_ms} ms")
        self._note_time()
        self.time.set_back_ms -= by_ms

    def _note_time(self) -> None:
        self._latest_ms = max(self._latest_ms, self.time.now_ms())

    def _start(self) -> None:
        self._loss = self._losses.pop(0) if self._losses and not self._calm else None
        if self._loss is not None:
            if self._loss.after_effects is not None:
                self.machine.fs.crash_after = len(self.machine.fs.effects) + self._loss.after_effects
            else:
                self.clients.call_later(self._loss.after_s, self._lose_power, self.machine.lives + 1)
        self._tell(f"life {self.machine.lives + 1} begins")
        self.machine.start()

    def _lose_power(self, life: int) -> None:
        if self.machine.lives == life and self._loss is not None and not self._calm:
            self._down(self._loss)

    def _supervise(self) -> None:
        """Handle a broker that died: its power or its disk failed, or it never started."""
        machine = self.machine
        if machine.died:
            self._down(self._loss or _BROKEN)
        elif machine.broker is not None and machine.broker.failure is not None:
            self._down(_BROKEN)
        elif machine.broker is None and machine.running and machine.booting.done():
            self._boot_failed()

    def _boot_failed(self) -> None:
        exc = None if self.machine.booting.cancelled() else self.machine.booting.exception()
        if isinstance(exc, PowerLost) or exc is None:
            return
        self._boots_failed += 1
        if not isinstance(exc, OSError | StorageFailure) or self._calm or self._boots_failed > 50:
            self.history.report(f"the broker does not start: {exc!r}")
            raise exc
        self._down(_BROKEN)

    def _down(self, loss: PowerLoss) -> None:
        self._loss = None
        effects = self.machine.fs.effects
        self.effects_of_first_life = self.effects_of_first_life or len(effects)
        self._tell(f"life {self.machine.lives} ends, after {len(effects)} effects {effects[-2:]}: {loss}")
        self._note_errors()
        self._note_reports()
        self.machine.end(loss.keep, loss.keep_seed)
        if self.faults.may_forget and loss.keep != "everything":
            self._forget()
        self.clients.call_later(loss.down_s, self._start)

    def _forget(self) -> None:
        """Forget producer ids given out and records shown: the power loss may have taken them back."""
        self.history.pairs.clear()
        self.reader.start_over()

    def _note_reports(self) -> None:
        """Note each hanging transaction an unclean start lists, and each entry's forced outcomes (7)."""
        broker = self.machine.broker
        if broker is None:
            return
        entries = broker.transactions.entries()
        for entry in () if isinstance(entries, Reject) else entries:
            self._forced.update((outcome.writer, outcome.cause) for outcome in entry.forced)
        for open_ in () if broker.comparison is None else broker.comparison.hanging:
            if not self.faults.may_forget:
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
            self._drive(stopping.done)
            stopping.result()
        self._down(_KILLED)

    # -- what clients do -----------------------------------------------------------------------------------

    async def _work(self) -> None:
        if self.faults.fresh_disk:
            await self._make_topics()
        if self._scenario is None:
            running = [self.clients.create_task(worker.run()) for worker in self.workers]
        else:
            running = [self.clients.create_task(self._scenario(self))]
        reading = self.clients.create_task(self.reader.run(0.02 if self._scenario is None else 0.2))
        looking = self.clients.create_task(self._look(0.05))
        for number, at in enumerate(self.faults.terminations_at_s):
            running.append(self.clients.create_task(self._terminate(at, number)))
        running += [self.clients.create_task(work) for work in self._administrate()]
        if self.faults.upgrade_at_s is not None and self.level < 2:
            running.append(self.clients.create_task(self._upgrade(self.faults.upgrade_at_s)))
        for task in running:
            await task
        for task in (reading, looking):
            task.cancel()

    def _administrate(self) -> Iterator[Coroutine[object, object, None]]:
        faults, admin = self.faults, self.administrator
        if faults.deletions_at_s:
            yield self._replace_topic(faults.deletions_at_s)
        for number, at in enumerate(faults.delete_records_at_s):
            yield admin.delete_records(at, PARTITIONS[number % len(PARTITIONS)])
        if faults.members_until_s is not None:
            random, binds = Random(self.seed + 5), not faults.may_forget
            group = Group(self.network, self.history, random, PARTITIONS[:2], binds)
            yield group.run(faults.members_until_s)
        for at in faults.markers_at_s:
            yield admin.end_in_one_partition(at, PARTITIONS)

    async def _make_topics(self) -> None:
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
        while self.level < 2:
            try:
                answer = await self.network.call("admin", request, 1, UpdateFeaturesResponse)
            except NoReply:
                continue
            if answer.error_code and self.machine.is_broken:
                continue
            if answer.error_code:
                self.history.report(f"UpdateFeatures: {answer.error_code} {answer.error_message}")
            self.level = 2

    async def _look(self, period_s: float) -> None:
        while True:
            await asyncio.sleep(period_s)
            self._check_stable_offsets()
            self._note_reports()

    def _check_stable_offsets(self) -> None:
        if self.machine.alive:
            for partition in self._find(PARTITIONS):
                with self.disk.suspended():
                    for wrong in checkers.check_stable_offset(partition):
                        self.history.report(wrong)

    async def _terminate(self, at_s: float, number: int) -> None:
        """Send InitProducerId without keep and without 2PC, as forceTerminateTransaction does."""
        await asyncio.sleep(at_s)
        owner = self.workers[number % len(self.workers)].owner
        admin = Producer(owner, Kind(timeout_ms=60_000), self.network, self.history, lambda: None)
        await admin.init()

    async def _settle(self) -> None:
        """Let late requests arrive, then recover every id, then wait until nothing is open."""
        for _ in range(20):
            await asyncio.sleep((self.faults.late_max_s + 0.5) / 20)
            self._note_reports()
        for worker in self.workers:
            await worker.finish()
        await self._settled()

    async def _settled(self) -> None:
        """Wait until nothing is open; a transaction that a start has reopened ends by its timeout."""
        for tries in range(600):
            if self.machine.alive and not self._busy():
                return
            await asyncio.sleep(0.02 if tries < 200 else 0.5)
        self.history.report(f"still busy at the end: {self._busy()}")

    def _busy(self) -> list[str]:
        entries = self._coordinator_entries()
        if isinstance(entries, Reject):
            return [entries.reason]
        return [f"{entry.transactional_id} {entry.state.label}" for entry in entries if not _is_idle(entry)]

    # -- checking ------------------------------------------------------------------------------------------

    def _partitions(self, names: tuple[TopicPartition, ...]) -> list[Partition]:
        broker = self.machine.broker
        if broker is None:
            return []
        found = [broker.topics.partition(name.topic, name.partition) for name in names]
        return [partition for partition in found if partition is not None]

    def _coordinator_entries(self) -> tuple[TxnEntry, ...] | Reject:
        broker = self.machine.broker
        if broker is None:
            raise RuntimeError("the broker is down")
        return broker.transactions.entries()

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
            if self.level == 0 and live is not None and replayed is not None:
                live = replace(live, forced=(), superseded=None, transaction_version=0)
                replayed = replace(replayed, superseded=None)
            if live != replayed and not self._hanging:
                self.history.report(f"replayed {replayed}, live it was {live}")

    async def _check(self) -> None:
        self._note_reports()
        broker, report = self.machine.broker, self.history.report
        if broker is None:
            report("the broker is down at the end")
            return
        partitions = {partition.topic_partition: partition for partition in broker.topics.all_partitions()}
        batches = {
            name: self._scan(partition)
            for name, partition in partitions.items()
            if name.topic != TRANSACTION_STATE
        }
        decided = {
            name: checkers.decide(found, partitions[name].log.log_end_offset)
            for name, found in batches.items()
        }
        visible = {name: decided[name].visible for name in PARTITIONS}
        self._note_retention()
        await self._compare_reading(visible)
        entries = tuple(self._entries().values())
        found = [
            *checkers.check_texts(batches, self.history.texts_of_torn()),
            *(() if self.faults.may_forget else checkers.check_gone(self.history, visible)),
            *checkers.check_order(self.history, visible),
            *checkers.check_markers(self.history, decided, self._hanging),
            *checkers.check_entries(entries, decided, self._hanging),
        ]
        if self.faults.may_forget:
            found += checkers.check_aborted(self.history, visible)
        else:
            found += checkers.check_atomic(self.history, visible)
            found += checkers.check_database(self.history, self.database, visible, self._forced)
            await self._check_offsets()
        for wrong in found:
            report(wrong)
        self._check_stable_offsets()
        self._note_errors()

    async def _compare_reading(self, visible: Mapping[TopicPartition, list[str]]) -> None:
        """Compare what readers were shown, all along and now, with what the batches come to (1)."""
        anew = Reader("reader anew", PARTITIONS, self.network, self.history)
        anew.expects, anew.start_of = self._expects, self._start_of
        may_go = self.history.may_go
        for reader in (self.reader, anew):
            await reader.read_to_end()
            for name, texts in visible.items():
                shown = [text for text in reader.shown[name].texts if text not in may_go]
                texts = [text for text in texts if text not in may_go]
                held_back = any(partition == name for partition, _ in self._hanging)
                if shown != (texts[: len(shown)] if held_back else texts):
                    self.history.report(f"{reader.name} was shown {shown} of {name}, there are {texts}")

    async def _check_offsets(self) -> None:
        for worker in self.workers:
            if not worker.kind.offsets:
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

    def _find(self, names: Collection[TopicPartition]) -> list[Partition]:
        return self._partitions(tuple(names)) if self.machine.alive else []

    async def _replace_topic(self, times_s: Sequence[float]) -> None:
        begun_s = asyncio.get_running_loop().time()
        for at_s in times_s:
            wait_s = begun_s + at_s - asyncio.get_running_loop().time()
            await self.administrator.replace_topic(max(0.0, wait_s), _SCRAP, [TopicPartition(_SCRAP, 0)])

    def _topic_replaced(self, topic: str) -> None:
        self.reader.start_over(topic=topic)
        if self.faults.may_forget:
            return
        for partition in self._find([TopicPartition(topic, 0)]):
            texts = [text for batch in self._scan(partition) for text in batch.texts]
            for wrong in checkers.check_gone(self.history, {partition.topic_partition: texts}):
                self.history.report(wrong)

    def _scan(self, partition: Partition) -> list[checkers.Batch]:
        with self.disk.suspended():
            return checkers.scan(partition)

    def _note_retention(self) -> None:
        """Note which records retention may take, by their timestamps and the broker's latest time."""
        self._note_time()
        if self.faults.retention_ms is not None:
            oldest_ms = self._latest_ms - self.faults.retention_ms
            self.history.may_go |= {text for text, at in self.history.sent_ms.items() if at <= oldest_ms}

    def _expects(self, partition: TopicPartition, code: ErrorCode) -> bool:
        """Return whether a reader may get this error: partitions and records are deleted, the disk fails."""
        faults = self.faults
        replaced = bool(faults.deletions_at_s) and partition.topic == _SCRAP
        match code:
            case ErrorCode.OFFSET_OUT_OF_RANGE:
                return replaced or bool(faults.delete_records_at_s) or faults.retention_ms is not None
            case ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                return replaced
            case _:
                return code is ErrorCode.KAFKA_STORAGE_ERROR and self.machine.is_broken

    def _start_of(self, name: TopicPartition) -> int:
        found = self._find((name,))
        return found[0].log.log_start_offset if found else 0

    def _look_at(self, exchange: Exchange) -> None:
        self.result.requests += 1
        if not self.machine.is_broken:
            checkers.check_answer(self.history, exchange)

    def _count_outcomes(self) -> None:
        told = [txn.told for txn in self.history.txns]
        self.result.lives = self.machine.lives
        self.result.committed, self.result.aborted = told.count(True), told.count(False)
        self.result.unknown = told.count(None)


def _is_idle(entry: TxnEntry) -> bool:
    return isinstance(entry.phase, Idle)


_KILLED: Final = PowerLoss(after_effects=None, after_s=0, keep="everything", keep_seed=0, down_s=0.0)
_BROKEN: Final = PowerLoss(after_effects=None, after_s=0, keep="nothing", keep_seed=0, down_s=0.1)


@lru_cache
def image_of(level: int) -> Image:
    """Return a data directory with all topics, and ids whose epochs are nearly spent. Cost: 10 ms, once."""
    time = VirtualTime()
    machine = Machine(_SETTINGS, time, Random(0))
    machine.start()

    async def furnish() -> None:
        await machine.booting
        broker = machine.broker
        if broker is None:
            raise RuntimeError("the broker did not start")
        broker.store.set_features(1, {"transaction.version": level})
        for name, partitions in _TOPICS.items():
            await broker.topics.create(NewTopic(name, partitions))
        await broker.transactions.prepare()
        for left in NEARLY_SPENT:
            owner = TransactionalId(f"spent-{left}")
            client = Identity(await broker.new_producer_id(), ProducerEpoch(INT16_MAX - 1 - left))
            entry = TxnEntry(
                transactional_id=owner,
                phase=Idle(outcome=Outcome.COMMIT, started_ms=TimestampMs(START_MS)),
                client=client,
                superseded=None,
                timeout_ms=60_000,
                transaction_version=level,
                updated_ms=TimestampMs(START_MS),
            )
            found = broker.topics.partition(TRANSACTION_STATE, partition_of(owner, 2))
            if found is None:
                raise RuntimeError("there is no __transaction_state")
            batch = encode_batch_of([EntryStored(entry=entry)], TimestampMs(START_MS), level)
            await found.append_durably(batch, AppendOrigin.COORDINATOR)
        await broker.stop()

    task = machine.loop.create_task(furnish())
    while not task.done():
        machine.loop.turn()
        due = machine.loop.next_s()
        if due is not None:
            time.now_s = max(time.now_s, due)
    task.result()
    machine.loop.kill()
    return machine.image()
