"""The shell around the group machine: appends, waits, answers, keeps time.

It branches on what a Step contains, never on what a group is in. One lane per group:
from `decide` until its Step is durable and applied no other command of the group is
decided. Nothing here costs a task but the first records of all, for which the topic is made.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final
from uuid import uuid4

from tallystick.broker.group.codec import (
    decode_batches,
    encode_batch_of,
    partition_of,
    record_count,
)
from tallystick.broker.group.commands import (
    Answer,
    Command,
    CommitOffsets,
    CommitTxnOffsets,
    Env,
    ExpireOffsets,
    ForgetPartitions,
    Join,
    Revive,
    Settle,
    Step,
)
from tallystick.broker.group.deadlines import Deadlines
from tallystick.broker.group.decide import decide
from tallystick.broker.group.events import (
    DurableEvent,
    Event,
    GenerationStarted,
    GroupStored,
    MemberPending,
    RebalancePrepared,
    SessionExtended,
)
from tallystick.broker.group.expiry import due, next_deadline
from tallystick.broker.group.log_order import LogOrder
from tallystick.broker.group.model import Group, GroupConfig, Now, Ticket
from tallystick.broker.group.ports import OffsetsPartition, OffsetsTopic
from tallystick.broker.group.sharing import BatchRoom
from tallystick.broker.group.table import GroupTable
from tallystick.broker.refused_appends import answered, append_or_refuse, decide_or_refuse
from tallystick.broker.reloading import Reloads, last_offset_of
from tallystick.broker.serving_time import ServingTimer
from tallystick.broker.topics import GROUP_OFFSETS
from tallystick.kernel.clock import Clock
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import GroupId, Offset, ProducerId
from tallystick.storage.log import NO_GUARD, AppendOrigin, AppendResult, TxnGuard

log = logging.getLogger("tallystick.groups")

REPLAY_CHUNK_BYTES: Final = 256 * 1024
# About a millisecond of work; in between the broker serves others.
REPLAYED_PER_SLICE: Final = 64
EXPIRED_GROUPS_PER_TICK: Final = 64
# Refusals of a batch for what is in it.
_OF_CONTENT: Final = (
    ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.RECORD_LIST_TOO_LARGE,
    ErrorCode.UNKNOWN_SERVER_ERROR,
)

STOPPED: Final = Reject(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the coordinator is stopping")
LOADING: Final = Reject(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"{GROUP_OFFSETS} is being read")
LOST: Final = Reject(ErrorCode.NOT_COORDINATOR, f"the partition of {GROUP_OFFSETS} is offline")
SLOW: Final = Reject(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the offsets topic did not answer in time")


AnswerFuture = asyncio.Future[Answer]
Refusal = Callable[[], Reject | None]


def _nothing() -> None:
    """No reason to refuse."""


@dataclass(slots=True)
class _Waiting:
    """A command, who waits for its answer, and for a transactional one what its append has to show.

    refused  why it may not be appended now, after all
    """

    command: Command
    future: AnswerFuture
    since_ms: int
    guard: TxnGuard = NO_GUARD
    refused: Refusal = _nothing


@dataclass(slots=True)
class _Shard:
    """One partition of `__consumer_offsets`: its groups, and what was appended and is not applied yet."""

    table: GroupTable
    order: LogOrder


# Commands and their Steps whose records become one batch.
_Part = list[tuple[_Waiting, Step]]


@dataclass(slots=True)
class _Lane:
    """A group while its Step, or those of several commits, are becoming durable.

    applied  done when the last of them is applied
    """

    current: list[_Waiting]
    queue: deque[_Waiting] = field(default_factory=deque)
    applied: "asyncio.Future[bool] | None" = None


class GroupCoordinator:
    """All groups of this broker. Owned by the event loop's thread; not to be shared between threads.

    Life: create, `start`, `execute` commands, `stop`.
    """

    def __init__(
        self,
        topic: OffsetsTopic,
        config: GroupConfig,
        clock: Clock,
        new_id: Callable[[], str] = lambda: str(uuid4()),
    ) -> None:
        self.config = config
        self._topic = topic
        self._timer = ServingTimer(clock, self.tick, log)
        self._off = Reloads(GROUP_OFFSETS, self, self._timer, log)
        self._off.begin(range(len(topic.existing())))
        self._new_id = new_id
        self._groups: dict[GroupId, Group] = {}
        self._in_memory = GroupTable(self._groups)  # for what no log has
        self._shards: dict[int, _Shard] = {}
        self._lanes: dict[GroupId, _Lane] = {}
        self._parked: dict[Ticket, AnswerFuture] = {}
        self._tickets = 0
        self._forgotten: dict[int, set[str]] = {}  # topics deleted while a partition was off
        self._stopped = False
        self._deadlines = Deadlines()
        self._expire_at_ms = 0
        self._to_expire: deque[GroupId] = deque()
        self._tasks: set[asyncio.Task[None]] = set()

    # ---- life

    def start(self) -> None:
        """Begin to replay what is there and to keep time. Until replayed, a group answers LOADING."""
        existing = self._topic.existing()
        self._expire_at_ms = self._timer.monotonic_ms() + self.config.offsets_retention_check_interval_ms
        self._spawn(self._load(len(existing)))
        self._timer.arm(self._expire_at_ms)

    def release(self) -> None:
        """Answer everything that is parked and refuse what comes: the broker is stopping."""
        self._stopped = True
        self._timer.close()
        for future in self._parked.values():
            _answer(future, STOPPED)
        self._parked.clear()

    async def stop(self) -> None:
        """Finish what is being appended, answer what waits for that, end the tasks."""
        self.release()
        self._timer.cancel()
        await self._off.stop()
        appending = [lane.applied for lane in self._lanes.values() if lane.applied is not None]
        if appending:
            await asyncio.wait(appending, timeout=self.config.offset_commit_timeout_ms / 1_000)
        for lane in self._lanes.values():
            for waiting in (*lane.current, *lane.queue):
                _answer(waiting.future, STOPPED)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _spawn(self, work: Awaitable[None]) -> asyncio.Task[None]:
        async def run() -> None:
            await work

        task = asyncio.get_running_loop().create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _load(self, count: int) -> None:
        for index in range(count):
            await self._off.read(index)

    async def read_back(self, index: int) -> None:
        """Apply the log to nothing; the groups found are announced when all of it is applied."""
        partition, end, table = self._topic.existing()[index], None, GroupTable({})
        for piece in partition.read_all(REPLAY_CHUNK_BYTES):
            for number, entry in enumerate(decode_batches(piece)):
                table.replay(entry)
                if number % REPLAYED_PER_SLICE == 0:
                    await asyncio.sleep(0)
            end = last_offset_of(piece)
        waiting = partition.durable(end) if end is not None and self._off.is_lost(index) else None
        if waiting is not None:
            await waiting
        found, table.groups = table.groups, self._groups
        self._groups.update(found)
        self._shards[index] = self._new_shard(index, table)

    def resume(self, index: int) -> None:
        """Members of the groups have a session from now on; offsets of topics that went meanwhile go."""
        found = [name for name in self._groups if self.partition_of(name) == index]
        for group_id in found:
            self._submit(group_id, Revive())
        for topic in self._forgotten.pop(index, ()):
            self._forget(topic, found)

    def _new_shard(self, index: int, table: GroupTable) -> _Shard:
        return _Shard(table, LogOrder(partial(self._lose, index)))

    def _shard(self, index: int) -> _Shard:
        shard = self._shards.get(index)
        if shard is None:
            shard = self._shards[index] = self._new_shard(index, GroupTable(self._groups))
        return shard

    # ---- commands

    def partition_of(self, group_id: GroupId) -> int:
        """The partition of `__consumer_offsets` that keeps the group."""
        return partition_of(group_id, self._topic.partition_count)

    async def prepare(self) -> Reject | None:
        """See to it that groups can be kept here: FindCoordinator's promise."""
        return STOPPED if self._stopped else await self._topic.ensure()

    def forget_topic(self, topic: str) -> None:
        """The topic was deleted: its offsets go, in every group, that a namesake does not inherit them."""
        for index in self._off.indexes:
            self._forgotten.setdefault(index, set()).add(topic)
        self._forget(topic, list(self._groups))

    def _forget(self, topic: str, group_ids: Sequence[GroupId]) -> None:
        for group_id in group_ids:
            group = self._groups.get(group_id)
            if group is not None and any(each.topic == topic for each in group.all_partitions()):
                self._submit(group_id, ForgetPartitions(topics=frozenset({topic})))

    def new_ticket(self) -> Ticket:
        """A name for a request that may be parked."""
        self._tickets += 1
        return Ticket(self._tickets)

    def group(self, group_id: GroupId) -> Group | Reject | None:
        """The group as of its last durable step, for reading."""
        return self.unavailable(group_id) or self._groups.get(group_id)

    def groups(self) -> tuple[Group, ...] | Reject:
        """All groups; LOADING while some are not known yet."""
        if self._stopped:
            return STOPPED
        return LOADING if self._off.is_loading else tuple(self._groups.values())

    @property
    def offline_partitions(self) -> int:
        """Partitions of `__consumer_offsets` that are to be read back; their groups are refused till then."""
        return self._off.lost

    @property
    def reloads(self) -> int:
        """How often such a partition was read back, and served again."""
        return self._off.total

    async def settled(self, group_id: GroupId) -> Group | Reject | None:
        """The group with everything applied that was asked for before, for a stable read (KIP-447)."""
        if group_id in self._lanes:
            answer = await self._submit(group_id, Settle())
            if isinstance(answer, Reject):
                return answer
        return self.group(group_id)

    def pending_producers(self, group_id: GroupId) -> frozenset[ProducerId]:
        """Whose open transactions have offsets of the group."""
        group = self._groups.get(group_id)
        return frozenset() if group is None else frozenset(group.pending_offsets)

    async def execute(self, group_id: GroupId, command: Command) -> Answer:
        """Run one command. Returns when it is durable and applied, or refused, or its time came.

        A caller that is cancelled does not undo it.
        """
        unavailable = self.unavailable(group_id)
        return unavailable or await self._submit(group_id, command)

    async def commit_transactional(
        self, group_id: GroupId, command: CommitTxnOffsets, guard: TxnGuard, refused: Refusal = _nothing
    ) -> Answer:
        """Append offsets as part of a transaction; they are pending until `write_marker` ends it.

        Order: the transaction includes the group's partition, and `guard` shows that to the log.
        Args:
            refused: asked when its turn has come: why its producer may not write any more.
        """
        unavailable = self.unavailable(group_id)
        return unavailable or await self._submit(group_id, command, guard, refused)

    async def write_marker(self, index: int, batch: bytes, guard: TxnGuard) -> AppendResult | Reject:
        """Append an end marker to a partition, and end the transaction in the groups there.

        It takes no lane: all it changes is offsets that are pending, and no Step rests on those (ADR 0088).
        A caller that is cancelled does not undo it.

        Order: on return the marker is durable, and applied after everything that is before it in the
            partition's log, and before everything behind it [GRP-7].
        Rejects with: COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, UNKNOWN_TOPIC_OR_PARTITION
            when there is no such partition, NOT_COORDINATOR when nobody knows, and what the log says.
        """
        if self._stopped:
            return STOPPED
        if self._off.is_reading(index):
            return LOADING
        existing = self._topic.existing()
        if index >= len(existing):
            return Reject(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no __consumer_offsets-{index}")
        partition, table, offline = existing[index], self._shard(index).table, self._off.is_lost(index)

        def end_transaction(_: Offset) -> None:
            for entry in decode_batches(batch):
                table.replay(entry)

        try:
            appended = self._append_in_turn(index, partition, lambda: batch, guard, end_transaction)
            if isinstance(appended, Reject):
                return appended
            result, applied = appended
            if await applied:
                return result
            if not offline:
                return LOST
            # The groups are off, and the log need not be: a transaction must be able to end. What is read
            # back has the marker like any other.
            durable = partition.durable(result.last_offset)
            if durable is not None:
                await durable
            return result
        except Exception as exc:
            self._lose(index, exc)
            return LOST

    def unavailable(self, group_id: GroupId) -> Reject | None:
        """Why nothing can be asked about the group now; None: it can."""
        if self._stopped:
            return STOPPED
        return self._off.refusal(self.partition_of(group_id)) if self._off else None

    def _submit(
        self, group_id: GroupId, command: Command, guard: TxnGuard = NO_GUARD, refused: Refusal = _nothing
    ) -> AnswerFuture:
        future: AnswerFuture = asyncio.get_running_loop().create_future()
        waiting = _Waiting(command, future, self._timer.monotonic_ms(), guard, refused)
        lane = self._lanes.get(group_id)
        if lane is None:
            self._run(group_id, waiting)
        else:
            while lane.queue and lane.queue[0].future.done():
                lane.queue.popleft()  # its time came; the disk may hang for long
            lane.queue.append(waiting)
        return future

    def _run(self, group_id: GroupId, waiting: _Waiting, queue: deque[_Waiting] | None = None) -> None:
        """One command, guarded: a broken invariant takes off the shard it was found in, and no other.

        A commit takes along the commits that queue right behind it.
        """
        if self._off and self._off.is_lost(self.partition_of(group_id)):
            _answer(waiting.future, LOST)  # it waited for something else while the partition was lost
            return
        commits = _commits(waiting, queue) if queue and group_id in self._groups else [waiting]
        try:
            if len(commits) > 1:
                self._decide_commits(group_id, commits)
            else:
                self._decide(group_id, waiting)
        except Exception as exc:
            for commit in commits:
                _answer(commit.future, LOST)
            self._lose(self.partition_of(group_id), exc)

    def _decide(self, group_id: GroupId, waiting: _Waiting) -> None:
        """Decide; carry out at once, or take the lane until the records are durable [GRP-1]."""
        step = self._decided(group_id, waiting)
        if step is not None:
            self._take_lane(group_id, [[(waiting, step)]])

    def _decided(self, group_id: GroupId, waiting: _Waiting) -> Step | None:
        """The Step, if it has records to append; else it is carried out."""
        env = Env(group_id=group_id, config=self.config, now=self._now(), spare_id=self._new_id())
        step = decide_or_refuse(lambda: decide(self._groups.get(group_id), waiting.command, env))
        if isinstance(step, Reject):
            _answer(waiting.future, step)
            return None
        if step.append:
            return step
        self._finish(group_id, waiting, step, None)
        return None

    def _decide_commits(self, group_id: GroupId, commits: list[_Waiting]) -> None:
        """Commits that queued behind an append share the next sync: no decision about a commit depends on
        another commit. Plain ones share a batch; a batch of a transaction is its producer's alone."""
        parts: list[_Part] = []
        for commit in commits:
            step = self._decided(group_id, commit)
            if step is None:
                continue
            plain = isinstance(commit.command, CommitOffsets)
            if plain and parts and isinstance(parts[-1][0][0].command, CommitOffsets):
                parts[-1].append((commit, step))
            else:
                parts.append([(commit, step)])
        if parts:
            self._take_lane(group_id, parts)

    def _take_lane(self, group_id: GroupId, parts: list[_Part]) -> None:
        lane = _Lane([waiting for part in parts for waiting, _ in part])
        self._lanes[group_id] = lane
        index, existing = self.partition_of(group_id), self._topic.existing()
        if index < len(existing):
            self._append(group_id, lane, parts, existing[index])
        else:
            self._spawn(self._append_when_made(group_id, lane, parts))
            self._limit(group_id, lane)

    def _limit(self, group_id: GroupId, lane: _Lane) -> None:
        """Nobody waits for a lane for longer than offsets.commit.timeout.ms."""
        self._wake(group_id, lane.current[0].since_ms + self.config.offset_commit_timeout_ms)

    async def _append_when_made(self, group_id: GroupId, lane: _Lane, parts: list[_Part]) -> None:
        """The first records of all: the topic is made for them."""
        index = self.partition_of(group_id)
        try:
            partition = await self._topic.partition(index)
            if self._lanes.get(group_id) is lane:  # else the partition was lost meanwhile
                self._append(group_id, lane, parts, partition)
        except Exception as exc:
            self._lose(index, exc)

    def _append(
        self, group_id: GroupId, lane: _Lane, parts: list[_Part], partition: OffsetsPartition | Reject
    ) -> None:
        """Append every part before anybody waits, so that they share a sync. The lane is given up when the
        last one is applied, which may be now. Raises: LogOffline."""
        for part in parts:
            turn = self._append_part(group_id, part, partition)
            if turn is not None and not turn.done():
                lane.applied = turn
        if lane.applied is not None:
            lane.applied.add_done_callback(partial(self._on_applied, group_id, lane))
            self._limit(group_id, lane)
        elif self._lanes.get(group_id) is lane:
            self._release(group_id, lane)

    def _on_applied(self, group_id: GroupId, lane: _Lane, _: "asyncio.Future[bool]") -> None:
        if self._lanes.get(group_id) is lane:  # else the partition was lost
            self._release(group_id, lane)

    def _append_part(
        self, group_id: GroupId, part: _Part, partition: OffsetsPartition | Reject
    ) -> "asyncio.Future[bool] | None":
        """Append one batch, to be finished in turn. None: it was refused, and so are its commands.

        Returns: done when the last of it is applied.
        """
        index, (first, _) = self.partition_of(group_id), part[0]
        producer = first.command.identity if isinstance(first.command, CommitTxnOffsets) else None
        events = tuple(event for _, step in part for event in step.append)
        appended: tuple[AppendResult, asyncio.Future[bool]] | Reject
        if isinstance(partition, Reject):
            appended = partition
        elif (refused := first.refused()) is not None:
            appended = refused
        else:
            encode = partial(encode_batch_of, events, self._timer.now_ms(), producer)
            finish = partial(self._finish_part, group_id, part)
            appended = self._append_in_turn(index, partition, encode, first.guard, finish)
        if not isinstance(appended, Reject):
            return appended[1]
        if appended.code in _OF_CONTENT and len(part) > 1:
            # Too large together, or one of them cannot be written: none is refused for its neighbours.
            turns = [self._append_part(group_id, [one], partition) for one in part]
            return next((turn for turn in reversed(turns) if turn is not None), None)
        refused = answered(appended)
        for waiting, _ in part:
            _answer(waiting.future, refused)
        return None

    def _append_in_turn(
        self,
        index: int,
        partition: OffsetsPartition,
        encode: Callable[[], bytes],
        guard: TxnGuard,
        apply: Callable[[Offset], None],
    ) -> "tuple[AppendResult, asyncio.Future[bool]] | Reject":
        """Append now, apply when it is this append's turn [GRP-7]. Raises: LogOffline."""
        result = append_or_refuse(
            encode, lambda batch: partition.append(batch, AppendOrigin.COORDINATOR, guard)
        )
        if isinstance(result, Reject):
            return result
        turn = partial(apply, Offset(result.base_offset))
        return result, self._shard(index).order.apply_in_turn(partition.durable(result.last_offset), turn)

    def _finish_part(self, group_id: GroupId, part: _Part, at: Offset) -> None:
        for waiting, step in part:
            self._finish(group_id, waiting, step, at)
            at = Offset(at + sum(map(record_count, step.append)))

    def _release(self, group_id: GroupId, lane: _Lane) -> None:
        """Give up the lane and decide what queued behind it, until one of those takes it again."""
        del self._lanes[group_id]
        queue = lane.queue
        while queue:
            waiting = queue.popleft()
            if waiting.future.done():
                continue  # its time came while it queued: it was answered, so it must not happen
            self._run(group_id, waiting, queue)
            successor = self._lanes.get(group_id)
            if successor is not None:
                successor.queue = queue
                return
        self._schedule(group_id)

    def _finish(self, group_id: GroupId, waiting: _Waiting, step: Step, at: Offset | None) -> None:
        """Apply, then reply, then send [GRP-1]."""
        table = self._in_memory if at is None else self._shard(self.partition_of(group_id)).table
        for event in step.then_apply:
            table.apply(group_id, event, at)
            if at is not None and isinstance(event, DurableEvent):
                at = Offset(at + record_count(event))
        if step.then_reply is not None:
            _answer(waiting.future, step.then_reply)
        else:
            ticket = getattr(waiting.command, "ticket", None)
            if ticket is not None and not waiting.future.done():
                self._park(ticket, waiting.future)
        for send in step.then_send:
            parked = self._parked.pop(send.ticket, None)
            if parked is not None:
                _answer(parked, send.answer)
        _report(group_id, waiting.command, step)
        self._plan(group_id, step.then_apply)

    def _park(self, ticket: Ticket, future: AnswerFuture) -> None:
        if self._stopped:
            _answer(future, STOPPED)
        else:
            self._parked[ticket] = future

    def _lose(self, index: int, cause: Exception) -> None:
        """An append is durable or not, nobody knows; or an invariant is broken. Nothing more is decided on
        this state, and nobody waits for it any longer; the partition's log is read back."""
        self._shard(index).order.close()
        gone = [name for name in self._groups if self.partition_of(name) == index]
        gone += [name for name in self._lanes if self.partition_of(name) == index]
        for group_id in gone:
            group = self._groups.pop(group_id, None)
            self._deadlines.forget(group_id)
            for member in group.members.values() if group else ():
                for ticket in (member.awaiting_join, member.awaiting_sync):
                    parked = self._parked.pop(ticket, None) if ticket is not None else None
                    if parked is not None:
                        _answer(parked, LOST)
            lane = self._lanes.pop(group_id, None)
            for waiting in (*lane.current, *lane.queue) if lane else ():
                _answer(waiting.future, LOST)
        self._off.lose(index, cause)

    # ---- time

    def wake_at(self, at_ms: int) -> None:
        """See to it that `tick` is called then."""
        self._timer.arm(at_ms)

    def _now(self) -> Now:
        return Now(self._timer.now_ms(), self._timer.monotonic_ms())

    def _schedule(self, group_id: GroupId) -> None:
        """See to it that somebody looks at the group when its next deadline passes."""
        group = self._groups.get(group_id)
        deadline = next_deadline(group) if group is not None else None
        if deadline is not None:
            self._wake(group_id, self._deadlines.after_backoff(group_id, deadline))
        else:
            self._deadlines.forget(group_id)

    def _plan(self, group_id: GroupId, events: Sequence[Event]) -> None:
        """Look at the group in time, after these. Cost: linear in members, but for what members do often."""
        for event in events:
            match event:
                case SessionExtended():
                    pass  # it only moves a deadline away; the wake-up finds out
                case MemberPending(deadline_ms=deadline):
                    self._wake(group_id, deadline)
                case _:
                    self._schedule(group_id)
                    return

    def _wake(self, group_id: GroupId, at_ms: int) -> None:
        if self._deadlines.wake(group_id, at_ms):
            self._timer.arm(at_ms)

    def tick(self) -> int:
        """Let everything happen whose time has come.

        Returns: monotonic milliseconds of the next thing to happen.
        """
        now_ms = self._timer.monotonic_ms()
        self._off.run_due(now_ms)
        for group_id in self._deadlines.take_due(now_ms):
            self._look_at(group_id, now_ms)
        self._expire_some(now_ms)
        if self._to_expire:
            return now_ms
        next_ms = self._deadlines.next_ms
        return self._expire_at_ms if next_ms is None else min(next_ms, self._expire_at_ms)

    def _look_at(self, group_id: GroupId, now_ms: int) -> None:
        lane = self._lanes.get(group_id)
        if lane is not None:
            # Timeouts wait for the lane, which schedules them again; clients do not wait that long.
            limit_ms = self.config.offset_commit_timeout_ms
            for waiting in (*lane.current, *lane.queue):
                if now_ms - waiting.since_ms >= limit_ms:
                    _answer(waiting.future, SLOW)
            self._wake(group_id, now_ms + limit_ms)
            return
        group = self._groups.get(group_id)
        timeouts = due(group, now_ms) if group is not None else ()
        if timeouts:
            self._deadlines.tried(group_id, now_ms)
        for timeout in timeouts:
            self._submit(group_id, timeout)
        if group_id not in self._lanes:
            self._schedule(group_id)

    def _expire_some(self, now_ms: int) -> None:
        """offsets.retention.check.interval.ms: all groups get their turn, a few a tick."""
        if now_ms >= self._expire_at_ms:
            self._expire_at_ms = now_ms + self.config.offsets_retention_check_interval_ms
            self._to_expire = deque(self._groups)
        for _ in range(min(EXPIRED_GROUPS_PER_TICK, len(self._to_expire))):
            self._submit(self._to_expire.popleft(), ExpireOffsets())


def _commits(first: _Waiting, queue: deque[_Waiting]) -> list[_Waiting]:
    """`first` and, if it is a commit, the commits right behind it, taken out of the queue."""
    taken, room = [first], BatchRoom(first.command)
    while queue and room.takes(queue[0].command):
        waiting = queue.popleft()
        if not waiting.future.done():
            taken.append(waiting)
    return taken


def _answer(future: AnswerFuture, answer: Answer) -> None:
    if not future.done():
        future.set_result(answer)


def _report(group_id: GroupId, command: Command, step: Step) -> None:
    """One log line for what an operator asks about: why a group rebalanced, and what came of it (KIP-800)."""
    for event in step.then_apply:
        match event:
            case RebalancePrepared():
                reason = command.reason if isinstance(command, Join) else None
                log.info("group %s rebalances after %s: %s", group_id, type(command).__name__, reason or "-")
            case GenerationStarted(generation=generation, protocol_name=protocol):
                log.info("group %s: generation %d with protocol %s", group_id, generation, protocol)
            case GroupStored(generation=generation, members=members):
                log.info("group %s: generation %d stored, %d members", group_id, generation, len(members))
            case _:
                pass
