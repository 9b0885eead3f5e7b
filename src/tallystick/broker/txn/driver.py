"""The shell around the transaction machine: appends, waits, answers, keeps time.

It branches on what a Step contains and on the table WHILE_PENDING, never on what a transaction is in. One
lane per transactional id: from `decide` until its Step is durable and applied no other of the id is decided.

Where appending is all that `flush.policy` promises, a Step is through before `submit` returns: no lane is
taken, no task is made. Where it waits for the disk, all records of one partition that came meanwhile are on
the disk with the next sync, whatever ids they are of (ADR 0083).

Nothing waits for ever: a Step that a hanging disk keeps is answered after `answer_timeout_ms`, and so is
whoever queued behind it; a marker is tried until its partition has it or is gone (`sending.py`).
"""

import asyncio
import gc
import logging
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Final

from tallystick.broker.refused_appends import answered, append_or_refuse, decide_or_refuse
from tallystick.broker.reloading import Reloads, last_offset_of
from tallystick.broker.serving_time import ServingTimer
from tallystick.broker.topics import TRANSACTION_STATE
from tallystick.broker.txn.apply import apply
from tallystick.broker.txn.codec import decode_record, encode_batch_of, iter_stored, partition_of
from tallystick.broker.txn.commands import (
    AddImplicitly,
    Answer,
    Command,
    Env,
    MarkersWritten,
    Step,
    WhilePending,
    while_pending,
)
from tallystick.broker.txn.consistency import moved
from tallystick.broker.txn.decide import CONCURRENT, decide, refuse_while_pending
from tallystick.broker.txn.ending import markers_of
from tallystick.broker.txn.model import Decided, ForcedOutcome, TxnEntry
from tallystick.broker.txn.ports import Comparison, StatePartition, StateTopic, TxnSettings
from tallystick.broker.txn.sending import MarkerSender, MarkerSink
from tallystick.broker.txn.sweeping import Sweeps
from tallystick.kernel.clock import Clock
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import INT64_MAX, Identity, ProducerId, TransactionalId
from tallystick.kernel.value import replace
from tallystick.storage.producers import AppendOrigin

_log = logging.getLogger("tallystick.transactions")

# About a millisecond of work each; in between the broker serves others.
REPLAY_CHUNK_BYTES: Final = 128 * 1024
REPLAYED_PER_SLICE: Final = 64
# How long sweeps wait for the end of loading before they look again.
LOADING_MS: Final = 100
# Producer ids at hand, for decisions that cannot wait for one.
SPARES: Final = 16
# What is decided with while there is none. No block of ids has it; a Step that takes it waits for another.
_NO_SPARE: Final = ProducerId(INT64_MAX)

STOPPED: Final = Reject(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the coordinator is stopping")
LOADING: Final = Reject(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"{TRANSACTION_STATE} is being read")
LOST: Final = Reject(ErrorCode.NOT_COORDINATOR, f"the partition of {TRANSACTION_STATE} is offline")
SLOW: Final = Reject(ErrorCode.COORDINATOR_NOT_AVAILABLE, "__transaction_state did not answer in time")
NO_TOPIC: Final = Reject(ErrorCode.COORDINATOR_NOT_AVAILABLE, "there is no __transaction_state")
NO_PRODUCER_ID: Final = Reject(ErrorCode.COORDINATOR_NOT_AVAILABLE, "no producer id could be had")


AnswerFuture = asyncio.Future[Answer]


@dataclass(slots=True, eq=False)
class _Asked:
    command: Command
    future: AnswerFuture


@dataclass(slots=True, eq=False)
class _Lane:
    """A transactional id while its Step is becoming durable.

    current  whom the Step answers
    synced   done when it is durable
    queue    what is decided after it
    """

    current: Sequence[_Asked]
    synced: "asyncio.Future[None]"
    queue: deque[_Asked] = field(default_factory=deque)


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
        self._new_producer_id = new_producer_id
        self._settings = settings
        self._timer = ServingTimer(clock, self.tick, _log)
        self._forced = forced
        self._sender = MarkerSender(markers, self, self._timer)
        self._off = Reloads(TRANSACTION_STATE, self, self._timer, _log)
        self._comparison: Comparison | None = None
        self._uncompared: set[int] = set()  # partitions that no start or reading back has compared yet
        self._comparing: dict[int, int] = {}  # those that are compared now, and how often each was lost
        self._compares = asyncio.Lock()
        self._entries: dict[TransactionalId, TxnEntry] = {}
        self._writers: dict[ProducerId, TransactionalId] = {}
        self._lanes: dict[TransactionalId, _Lane] = {}
        # Asked for while the markers of the transaction before are on their way; decided again after.
        self._held: dict[TransactionalId, deque[_Asked]] = {}
        self._spares: deque[ProducerId] = deque()
        self._starving: deque[tuple[TransactionalId, Sequence[_Asked]]] = deque()
        self._restocking: asyncio.Task[None] | None = None
        self._loading: asyncio.Task[None] | None = None
        self._paused: deque[tuple[TransactionalId, _Asked]] | None = None
        self._stopped = False
        self._deadlines: deque[tuple[int, _Asked]] = deque()

    # ---- life

    def start(self, comparison: Comparison | None = None) -> None:
        """Begin to replay what is there and to keep time. Until all is replayed every id answers LOADING.

        A comparison with the partitions is part of that, even where there is no transaction log any more.
        """
        self._comparison = comparison
        self._loop = asyncio.get_running_loop()
        self._sweeps = Sweeps(self._entries, self._ask_in_passing, self._settings, self._timer)
        existing = self._topic.existing()
        self._uncompared = set() if comparison is None else set(range(len(existing)))
        if existing or comparison is not None:
            self._loading = self._loop.create_task(self._load(existing))
        self._restock()
        self._timer.arm(self._sweeps.next_ms)

    def release(self) -> None:
        """Refuse what comes, and whatever waits and has not been begun: the broker is stopping."""
        self._stopped = True
        self._timer.close()
        waiting = [asked for lane in self._lanes.values() for asked in lane.queue]
        waiting += [asked for held in self._held.values() for asked in held]
        waiting += [asked for _, group in self._starving for asked in group]
        waiting += [asked for _, asked in self._paused or ()]
        for asked in waiting:
            _answer(asked, STOPPED)

    async def stop(self) -> None:
        """Finish what is being appended, end the rest. Markers on their way are sent again after a start."""
        self.release()
        self._sender.stop()
        self._timer.cancel()
        await self._off.stop()
        appending = [lane.synced for lane in self._lanes.values()]
        if appending:
            await asyncio.wait(appending, timeout=self._settings().answer_timeout_ms / 1_000)
        for lane in self._lanes.values():
            for asked in lane.current:
                _answer(asked, STOPPED)
        tasks = [task for task in (self._loading, self._restocking) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _load(self, existing: Sequence[StatePartition]) -> None:
        async with self._compares:  # what is read back meanwhile is compared after the others
            await self._read_and_compare(len(existing))
            self._loading = None
        for entry in list(self._entries.values()):
            if self._place(entry) not in self._uncompared:
                self._send_markers(entry)

    async def _read_and_compare(self, partitions: int) -> None:
        collects = gc.isenabled()
        gc.disable()  # nothing of the much that is made here is garbage, and to find that out takes long
        try:
            for index in range(partitions):
                await self._off.read(index)
        finally:
            if collects:
                gc.enable()
        await self._compare([index for index in range(partitions) if not self._off.is_lost(index)])

    async def _compare(self, indexes: Sequence[int]) -> None:
        """Compare these partitions with those they are about. Order: none of their ids is served yet."""
        if self._comparison is None:
            return
        self._uncompared.difference_update(indexes)
        self._comparing = {index: self._off.losses[index] for index in indexes}
        try:
            await self._comparison.settle(self, indexes, is_last=not self._uncompared)
        except Exception as exc:
            _log.exception("partitions cannot be compared with __transaction_state: %s", exc)
        finally:
            self._comparing = {}
        if not self._uncompared:
            self._comparison = None

    async def read_back(self, index: int) -> None:
        """Apply the last record of every id; what is found is announced when all of it is applied."""
        partition, end = self._topic.existing()[index], None
        skipped: Counter[int] = Counter()
        stored: dict[bytes, bytes | None] = {}
        comparison = self._comparison if index in self._uncompared else None
        if comparison is not None:
            comparison.begin(index)
        for piece in partition.read_all(REPLAY_CHUNK_BYTES):
            if comparison is not None:
                await comparison.read(index, piece)
            stored.update(iter_stored(piece, skipped))
            end = last_offset_of(piece)
            await asyncio.sleep(0)
        waiting = partition.durable(end) if end is not None and self._off.is_lost(index) else None
        if waiting is not None:
            await waiting
        found: list[TxnEntry | None] = []
        for key, value in stored.items():
            found.append(apply(None, decode_record(key, value)))
            if len(found) % REPLAYED_PER_SLICE == 0:
                await asyncio.sleep(0)
        for entry in found:
            if entry is not None:
                self._keep(entry.transactional_id, entry)
        for version, number in skipped.items():
            _log.warning("%d records of __transaction_state have the unknown key version %d", number, version)
        if comparison is not None and self._off.is_lost(index):  # the start could not read it
            async with self._compares:
                await self._compare((index,))

    def resume(self, index: int) -> None:
        """Markers of what is decided are sent again; at a start when all is loaded, and compared."""
        if self._loading is None:
            for entry in [one for one in self._entries.values() if self._place(one) == index]:
                self._send_markers(entry)

    def _place(self, entry: TxnEntry) -> int:
        return self.partition_of(entry.transactional_id)

    def _send_markers(self, entry: TxnEntry) -> None:
        send = markers_of(entry)
        if send is not None:
            transactional_id = entry.transactional_id
            self._sender.send(transactional_id, send, self.coordinator_epoch(transactional_id))

    # ---- reading

    def partition_of(self, transactional_id: TransactionalId) -> int:
        """The partition of `__transaction_state` that keeps the id."""
        return _partition_of(transactional_id, self._topic.partition_count)

    def coordinator_epoch(self, transactional_id: TransactionalId) -> int:
        """Signs markers: the leader epoch of the partition that keeps the id."""
        partition = self._partition(self.partition_of(transactional_id))
        return 0 if partition is None else partition.leader_epoch

    def entry(self, transactional_id: TransactionalId) -> TxnEntry | Reject | None:
        """The entry as of its last durable Step, for reading."""
        return self._unavailable(transactional_id) or self._entries.get(transactional_id)

    def entries(self) -> tuple[TxnEntry, ...] | Reject:
        """All entries; LOADING while some are not known yet."""
        if self._stopped:
            return STOPPED
        is_loading = self._loading is not None or self._off.is_loading
        return LOADING if is_loading else tuple(self._entries.values())

    @property
    def offline_partitions(self) -> int:
        """Partitions of `__transaction_state` that are to be read back; their ids are refused till then."""
        return self._off.lost

    @property
    def reloads(self) -> int:
        """How often such a partition was read back, and served again."""
        return self._off.total

    def find_writer(self, producer_id: ProducerId) -> TxnEntry | None:
        """The entry whose transaction, or whose last one, this producer id is in the partitions for."""
        name = self._writers.get(producer_id)
        return None if name is None else self._entries.get(name)

    def _unavailable(self, transactional_id: TransactionalId) -> Reject | None:
        if self._stopped:
            return STOPPED
        if self._loading is not None:
            return LOADING
        return self._off.refusal(self.partition_of(transactional_id)) if self._off else None

    def _partition(self, index: int) -> StatePartition | None:
        existing = self._topic.existing()
        return existing[index] if index < len(existing) else None

    # ---- commands

    async def prepare(self) -> Reject | None:
        """See to it that transactional ids can be kept here: FindCoordinator's promise."""
        return STOPPED if self._stopped else await self._topic.ensure()

    async def execute(self, transactional_id: TransactionalId, command: Command) -> Answer:
        """Run one command. Returns when it is durable and applied, or refused, or its time came.

        A caller that is cancelled does not undo it.
        """
        return await self.submit(transactional_id, command)

    def submit(self, transactional_id: TransactionalId, command: Command) -> AnswerFuture:
        """As `execute`; the future is done already where nothing had to be waited for."""
        asked = _Asked(command, self._loop.create_future())
        unavailable = self._unavailable(transactional_id)
        if unavailable is not None:
            _answer(asked, unavailable)
        else:
            self._take_in(transactional_id, asked)
        return asked.future

    def _take_in(self, transactional_id: TransactionalId, asked: _Asked) -> None:
        if self._paused is not None:
            self._paused.append((transactional_id, asked))
            self._bound(asked)
        else:
            self._admit(transactional_id, asked)

    def _admit(self, transactional_id: TransactionalId, asked: _Asked) -> None:
        lane = self._lanes.get(transactional_id)
        if lane is None:
            self._run(transactional_id, (asked,))
        else:
            self._meet(transactional_id, asked, lane)

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[Reject | None]:
        """What is asked for waits until this is left; what was pending is durable, `entries` have it all.

        For a change of the rules that every decision rests on. One at a time. With a Reject the disk keeps
        something back.
        """
        self._paused = deque()
        try:
            yield await self._settled()
        finally:
            waiting, self._paused = self._paused, None
            for transactional_id, asked in waiting:
                if not asked.future.done():
                    self._admit(transactional_id, asked)

    async def _settled(self) -> Reject | None:
        """Wait until nothing is pending."""
        try:
            async with asyncio.timeout(self._settings().answer_timeout_ms / 1_000):
                while self._lanes or self._starving:
                    pending: list[asyncio.Future[None]] = [lane.synced for lane in self._lanes.values()]
                    if self._starving and self._restocking is not None:
                        pending.append(self._restocking)
                    await asyncio.wait(pending)
        except TimeoutError:
            return SLOW
        return LOST if self._off else None

    def _meet(self, transactional_id: TransactionalId, asked: _Asked, lane: _Lane) -> None:
        """What a command is told that comes while a Step is pending [TXN-5]."""
        match while_pending(asked.command):
            case WhilePending.REFUSE | WhilePending.IDENTITY_FIRST:
                entry = self._entries.get(transactional_id)
                _answer(asked, refuse_while_pending(entry, asked.command))
            case WhilePending.PASS:
                self._run(transactional_id, (asked,))
            case WhilePending.WAIT | WhilePending.MERGE:
                self._queue(lane.queue, asked)

    def _run(self, transactional_id: TransactionalId, group: Sequence[_Asked]) -> None:
        """One decision, guarded: a broken invariant takes the shard off in which it was found, no other."""
        if self._off and self._is_lost(self.partition_of(transactional_id)):
            _answer_all(group, LOST)  # it waited for something else while the partition was lost
            return
        try:
            self._decide(transactional_id, group)
        except Exception as exc:
            self._lose(self.partition_of(transactional_id), exc)
            _answer_all(group, LOST)

    def _is_lost(self, index: int) -> bool:
        """Lost, and not just being compared, after it was read back."""
        return self._off.is_lost(index) and self._comparing.get(index) != self._off.losses[index]

    def _decide(self, transactional_id: TransactionalId, group: Sequence[_Asked]) -> None:
        """Decide; then carry out, or take the lane until the records are durable [TXN-1]."""
        command = _merged(group)
        env = self._env(transactional_id)
        step = decide_or_refuse(lambda: decide(self._entries.get(transactional_id), command, env))
        if isinstance(step, Reject):
            self._refuse(transactional_id, group, step)
            return
        if step.used_spare:
            if len(self._spares) <= SPARES // 2:
                self._restock()
            if not self._spares:
                for asked in group:
                    self._bound(asked)
                self._starving.append((transactional_id, group))
                return
            self._spares.popleft()
        pending = self._append(transactional_id, step, env) if step.append else None
        if isinstance(pending, Reject):
            if step.used_spare:
                self._spares.appendleft(env.spare_id)  # nobody has seen it: a full disk uses none up
            _answer_all(group, pending)
        elif pending is None:
            self._finish(transactional_id, group, step)
        else:
            lane = self._lanes[transactional_id] = _Lane(group, pending)
            for asked in group:
                self._bound(asked)
            pending.add_done_callback(partial(self._durable, transactional_id, lane, step))

    def _env(self, transactional_id: TransactionalId) -> Env:
        return Env(
            transactional_id=transactional_id,
            config=self._settings().config,
            now_ms=self._timer.now_ms(),
            spare_id=self._spares[0] if self._spares else _NO_SPARE,
        )

    def _refuse(self, transactional_id: TransactionalId, group: Sequence[_Asked], why: Reject) -> None:
        """Tell them; but who may wait for the end of the transaction before is kept until then [TXN-5]."""
        if why is not CONCURRENT or while_pending(group[0].command) is not WhilePending.MERGE:
            _answer_all(group, why)
            return
        held = self._held.setdefault(transactional_id, deque())
        for asked in group:
            self._queue(held, asked)

    def _queue(self, waiting: deque[_Asked], asked: _Asked) -> None:
        """Have it wait, bounded in time; whose time came leaves, however long the disk or markers take."""
        while waiting and waiting[0].future.done():
            waiting.popleft()
        waiting.append(asked)
        self._bound(asked)

    def _append(
        self, transactional_id: TransactionalId, step: Step, env: Env
    ) -> "asyncio.Future[None] | Reject | None":
        """Append a Step's records in one batch. Returns what the Step must wait for, if anything."""
        partition = self._partition(self.partition_of(transactional_id))
        if partition is None:
            return NO_TOPIC
        origin = AppendOrigin.COORDINATOR if step.begins else AppendOrigin.DECISION
        appended = append_or_refuse(
            lambda: encode_batch_of(step.append, env.now_ms, env.config.transaction_version),
            lambda batch: partition.append(batch, origin),
        )
        if isinstance(appended, Reject):
            return answered(appended)
        return partition.durable(appended.last_offset) if step.needs_durable else None

    def _durable(
        self, transactional_id: TransactionalId, lane: _Lane, step: Step, synced: "asyncio.Future[None]"
    ) -> None:
        if self._lanes.get(transactional_id) is not lane:
            if not synced.cancelled():
                synced.exception()  # the partition was lost meanwhile, and whoever waited knows
            return
        try:
            synced.result()
            del self._lanes[transactional_id]
            self._finish(transactional_id, lane.current, step)
        except (Exception, asyncio.CancelledError) as exc:
            self._lose(self.partition_of(transactional_id), exc)
            _answer_all((*lane.current, *lane.queue), LOST)
        else:
            self._drain(transactional_id, lane.queue)

    def _finish(self, transactional_id: TransactionalId, group: Sequence[_Asked], step: Step) -> None:
        """Apply, then reply, then send [TXN-1]."""
        if step.then_apply:
            entry = before = self._entries.get(transactional_id)
            for event in step.then_apply:
                entry = apply(entry, event)
            self._keep(transactional_id, entry)
            if entry is not None and entry.forced and (before is None or before.forced != entry.forced):
                self._forced(entry.forced[-1])
        _answer_all(group, step.then_reply)
        if step.then_send is not None:
            self._sender.send(transactional_id, step.then_send, self.coordinator_epoch(transactional_id))
        elif step.append and transactional_id in self._held:
            self._drain(transactional_id, self._held.pop(transactional_id))

    def _drain(self, transactional_id: TransactionalId, queue: deque[_Asked]) -> None:
        """Decide what waits, in order, until one of them takes the lane."""
        while queue:
            lane = self._lanes.get(transactional_id)
            if lane is not None:
                lane.queue.extend(queue)
                return
            group = _next_group(queue)
            if group:
                self._run(transactional_id, group)

    def _keep(self, transactional_id: TransactionalId, entry: TxnEntry | None) -> None:
        """The only place that changes what is known."""
        before = self._entries.get(transactional_id)
        if before is not None:
            self._writers.pop(before.shown.producer_id, None)
        if entry is None:
            self._entries.pop(transactional_id, None)
        else:
            self._entries[transactional_id] = entry
            self._writers[entry.shown.producer_id] = transactional_id

    def _lose(self, index: int, exc: BaseException) -> None:
        """Durable or not? Unknown, or an invariant is broken. Nothing more is decided on this partition's
        state, and nobody waits for it any longer; its log is read back."""
        for name in [name for name in self._entries if self.partition_of(name) == index]:
            self._keep(name, None)
        for name in [name for name in self._lanes if self.partition_of(name) == index]:
            lane = self._lanes.pop(name)
            _answer_all((*lane.current, *lane.queue), LOST)
        for name in [name for name in self._held if self.partition_of(name) == index]:
            _answer_all(self._held.pop(name), LOST)
        self._off.lose(index, exc)

    # ---- at the end of loading, after an unclean start

    def loaded(self) -> Mapping[TransactionalId, TxnEntry]:
        return MappingProxyType(self._entries)

    def to_compare(self) -> Iterable[TxnEntry]:
        if len(self._comparing) == len(self._topic.existing()):
            return self._entries.values()
        return [entry for entry in self._entries.values() if self._place(entry) in self._comparing]

    def run_loading(self, transactional_id: TransactionalId, command: Command) -> AnswerFuture:
        asked = _Asked(command, self._loop.create_future())
        self._admit(transactional_id, asked)
        return asked.future

    async def move_loading(self, transactional_id: TransactionalId) -> Reject | None:
        if not self._spares and self._restocking is not None:
            await self._restocking
        if not self._spares:
            return NO_PRODUCER_ID
        env = self._env(transactional_id)
        step = moved(self._entries[transactional_id], env)
        if isinstance(step, Reject):
            return step
        self._spares.popleft()
        pending = self._append(transactional_id, step, env)
        if isinstance(pending, Reject):
            return pending
        if pending is not None:
            await pending
        for event in step.then_apply:
            self._keep(transactional_id, apply(None, event))
        return None

    # ---- producer ids

    def _restock(self) -> None:
        if self._restocking is None and not self._stopped:
            self._restocking = self._loop.create_task(self._take_spares())

    async def _take_spares(self) -> None:
        """Fill up the spare producer ids, and decide what could not be decided without, in order."""
        try:
            while self._starving or len(self._spares) < SPARES:
                self._spares.append(await self._new_producer_id())
                while self._starving and self._spares:
                    transactional_id, group = self._starving.popleft()
                    self._drain(transactional_id, deque(group))
        except Exception as exc:
            _log.exception("no producer ids: %s", exc)
            for _, group in self._starving:
                _answer_all(group, NO_PRODUCER_ID)
            self._starving.clear()
        self._restocking = None

    # ---- markers

    def markers_written(self, transactional_id: TransactionalId, command: MarkersWritten) -> AnswerFuture:
        """As `submit`, and also while the broker is stopping: what is decided may be completed."""
        asked = _Asked(command, self._loop.create_future())
        self._take_in(transactional_id, asked)
        return asked.future

    def is_decided(self, transactional_id: TransactionalId, marker: Identity) -> bool:
        entry = self._entries.get(transactional_id)
        return entry is not None and isinstance(entry.phase, Decided) and entry.phase.marker == marker

    def losses(self, transactional_id: TransactionalId) -> int:
        return self._off.losses[self.partition_of(transactional_id)]

    def wake_at(self, at_ms: int) -> None:
        self._timer.arm(at_ms)

    # ---- time

    def _bound(self, asked: _Asked) -> None:
        """See to it that it is answered in time, whatever happens."""
        deadlines = self._deadlines
        while deadlines and deadlines[0][1].future.done():
            deadlines.popleft()
        at_ms = self._timer.monotonic_ms() + self._settings().answer_timeout_ms
        deadlines.append((at_ms, asked))
        self._timer.arm(at_ms)

    def tick(self) -> int:
        """Let everything happen whose time has come.

        Returns: monotonic milliseconds of the next thing to happen.
        """
        now_ms = self._timer.monotonic_ms()
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            _, asked = self._deadlines.popleft()
            # One that is being appended may still happen; what queues or is held must not, and will not.
            merges = while_pending(asked.command) is WhilePending.MERGE
            _answer(asked, CONCURRENT if merges else SLOW)
        self._sender.retry_due(now_ms)
        if self._loading is not None:
            return now_ms + LOADING_MS
        self._off.run_due(now_ms)
        self._sweeps.run()
        next_ms = self._sweeps.next_ms
        return min(self._deadlines[0][0], next_ms) if self._deadlines else next_ms

    def _ask_in_passing(self, transactional_id: TransactionalId, command: Command) -> None:
        """What nobody waits for; an id that is busy is asked next time."""
        if transactional_id not in self._lanes:
            self.submit(transactional_id, command)


def _next_group(queue: deque[_Asked]) -> list[_Asked]:
    """What is decided next: one command; or several that differ in nothing but their partitions."""
    group: list[_Asked] = []
    while queue:
        asked = queue[0]
        if asked.future.done():
            queue.popleft()  # its time came while it queued: it was answered, so it must not happen
        elif not group or _may_merge(group[0].command, asked.command):
            group.append(queue.popleft())
        else:
            break
    return group


def _may_merge(first: Command, other: Command) -> bool:
    return (
        isinstance(first, AddImplicitly)
        and isinstance(other, AddImplicitly)
        and first.identity == other.identity
    )


def _merged(group: Sequence[_Asked]) -> Command:
    """The one command that does what all of the group ask for."""
    first = group[0].command
    if len(group) == 1 or not isinstance(first, AddImplicitly):
        return first
    wanted = [asked.command.partitions for asked in group if isinstance(asked.command, AddImplicitly)]
    return replace(first, partitions=frozenset().union(*wanted))


def _answer(asked: _Asked, answer: Answer) -> None:
    if not asked.future.done():
        asked.future.set_result(answer)


def _answer_all(group: Sequence[_Asked], answer: Answer) -> None:
    for asked in group:
        _answer(asked, answer)


_partition_of = lru_cache(maxsize=1 << 14)(partition_of)
