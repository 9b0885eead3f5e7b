"""Consumer engine on one loop. The facades call it; all decisions are in pure modules.

    membership   phases of a group member             group_runner     carries them out
    fetch_state  positions, meaning of answers        fetcher          fetches, buffers the data
                                                      position_search  looks for positions
    decode       bytes to records; isolation          offset_requests  requests about offsets, commits

The user's part happens in `poll`: it runs callbacks, raises errors and returns records. Between polls a task
maintains the membership, and fetches continue until data is buffered.

Only one task may be in `poll`, `subscribe`, `unsubscribe` or `close` at a time; `wakeup` and methods that do
not wait may be called by any task of the loop.
"""

import asyncio
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from tallystick.client.assignors.assign import ASSIGNORS
from tallystick.client.config import ConsumerConfig
from tallystick.client.consumer.arrow import batch_of
from tallystick.client.consumer.decode import ConsumerRecord
from tallystick.client.consumer.errors import CommitRefused, WokenUp
from tallystick.client.consumer.fetch_state import EARLIEST_MS, LATEST_MS, Position, Seeking, Tracks
from tallystick.client.consumer.fetcher import Fetcher
from tallystick.client.consumer.group_runner import GroupRunner
from tallystick.client.consumer.membership import (
    Change,
    GroupSettings,
    Member,
    Phase,
    Reaction,
    before_joining,
    gave_up,
    leave,
    prepared,
    reaction_to,
    settled,
    subscribe,
    to_settle,
)
from tallystick.client.consumer.offset_requests import ISOLATION, OffsetRequests
from tallystick.client.consumer.position_search import Locator
from tallystick.client.errors import BrokerRefused, ClientError, Closed, IllegalState, TimedOut
from tallystick.client.net.cluster import Cluster
from tallystick.client.offsets import GroupMetadata, OffsetAndMetadata, OffsetAndTimestamp
from tallystick.client.retry import Deadline
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.ids import GroupId, TopicPartition
from tallystick.kernel.value import frozen

if TYPE_CHECKING:
    from pyarrow import RecordBatch

_log = logging.getLogger("tallystick.consumer")

T = TypeVar("T")

ARROW_ROWS: Final = 65_536
"""Default number of rows in an Arrow batch."""

_LAST_COMMIT_SHARE: Final = 1 / 3
"""Longest time for the last commit of a partition, as a share of session.timeout.ms."""
_CLOSING: Final = "the consumer is being closed"
_GONE: Final = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})

INTERNAL: Final = frozenset({"__consumer_offsets", "__transaction_state"})
_RESETS: Final = {"earliest": Seeking.EARLIEST, "latest": Seeking.LATEST, "none": None}

Offsets = Mapping[TopicPartition, OffsetAndMetadata | int]


@frozen
class _Commit:
    """Offsets to commit, and the member that read up to them: a later generation must not commit them."""

    member: Member
    metadata: GroupMetadata
    offsets: Mapping[TopicPartition, OffsetAndMetadata]


class RebalanceListener:
    """Callbacks about changes of the assignment, run in `poll`, `unsubscribe` and `close` [CLI-32].

    Revoked partitions may still be committed; lost ones may already be assigned to other members. A callback
    about assigned partitions comes after the assignment, also if it is empty. Inherit, and override what is
    needed.
    """

    async def on_partitions_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        """Handle partitions that are read from now on, in addition to earlier ones."""

    async def on_partitions_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        """Handle partitions that go to other members when this returns."""

    async def on_partitions_lost(self, partitions: frozenset[TopicPartition]) -> None:
        """Handle partitions that went to other members without a revocation."""


class ConsumerEngine:
    """One consumer. Life cycle: create, `subscribe` or `assign`, `poll` ..., `close`."""

    def __init__(self, config: ConsumerConfig) -> None:
        self._config = config
        self._cluster = Cluster(config.client, auto_create_topics=config.allow_auto_create_topics)
        self._news = asyncio.Event()
        self._tracks = Tracks(_RESETS[config.auto_offset_reset])
        self._offsets = OffsetRequests(self._cluster, config.isolation_level)
        self._fetcher = Fetcher(config, self._cluster, self._tracks, self._news.set)
        self._group = self._make_group()
        self._locator = Locator(
            self._offsets, self._tracks, config.group_id, partial(self._limit, None), self._news.set
        )
        self._listener: RebalanceListener | None = None
        self._pattern: re.Pattern[str] | None = None
        self._pattern_seen: object = None
        self._commits: set[asyncio.Task[None]] = set()
        self._commit_order = asyncio.Lock()
        self._commit_due_ms = 0
        self._woken = self._rewinding = False
        self._closing = False  # callbacks may still commit
        self._closed = False

    def _make_group(self) -> GroupRunner | None:
        config = self._config
        if config.group_id is None:
            return None
        settings = GroupSettings(
            group_id=GroupId(config.group_id),
            instance_id=config.group_instance_id,
            rack=config.client_rack or None,
            session_timeout_ms=config.session_timeout_ms,
            rebalance_timeout_ms=config.max_poll_interval_ms,
            assignors=tuple(ASSIGNORS[name] for name in config.partition_assignment_strategy),
        )
        return GroupRunner(settings, self._cluster, config.heartbeat_interval_ms, self._news.set)

    # ------------------------------------------------------------------------ subscription

    def subscribe(
        self, topics: Iterable[str] | re.Pattern[str], listener: RebalanceListener | None = None
    ) -> None:
        """Share these topics with the group; the partitions are assigned while polling.

        Args:
            topics: names; or a pattern, matched against the whole name of every topic, now and later.
        Raises: IllegalState without `group.id` or after `assign`.
        """
        group = self._of_group("subscribe")
        if self._tracks.assigned and group.member.phase is Phase.OUT:
            raise IllegalState("subscribe after assign: unsubscribe first")
        self._listener = listener
        self._pattern = topics if isinstance(topics, re.Pattern) else None
        if self._pattern is None:
            self._cluster.forget_topics(None)
        self._pattern_seen = None
        wanted = frozenset[str]() if isinstance(topics, re.Pattern) else frozenset(topics)
        group.adopt(subscribe(group.member, wanted))
        group.start()

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions, outside of group management. Known positions are kept.

        Raises: IllegalState while subscribed.
        """
        self._not_closed()
        if self._subscribed:
            raise IllegalState("assign while subscribed: unsubscribe first")
        self._tracks.assign(frozenset(partitions), committed=self._group is not None)

    async def unsubscribe(self) -> None:
        """Stop reading and leave the group. Callbacks run; positions are not committed."""
        self._not_closed()
        await self._leave("the consumer unsubscribed")
        self._tracks.assign((), committed=False)

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        return self._tracks.assigned

    @property
    def subscription(self) -> frozenset[str]:
        return frozenset() if self._group is None else self._group.member.topics

    @property
    def paused(self) -> frozenset[TopicPartition]:
        return self._tracks.paused

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Return no records of these partitions; fetched data is kept for `resume`."""
        for partition in self._of_mine(partitions):
            self._tracks[partition].paused = True

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Return records of these partitions again."""
        for partition in self._of_mine(partitions):
            self._tracks[partition].paused = False
        self._news.set()

    def seek(self, partition: TopicPartition, offset: int, leader_epoch: int | None = None) -> None:
        """Continue with the record at `offset`, or the first one after it."""
        if offset < 0:
            raise IllegalState(f"seek to offset {offset}: negative")
        (at,) = self._of_mine([partition])
        self._tracks.seek(at, Position(offset, leader_epoch))

    def go_back(self, partition: TopicPartition, offset: int) -> None:
        """Return records from `offset` on again; records returned before it may still be committed."""
        (at,) = self._of_mine([partition])
        self._tracks.go_back(at, Position(offset))

    def rewind(self) -> None:
        """From the next `poll` on, return records again that were returned and never committed [CLI-68].

        Not at once: a user who still holds the records may process and commit them.
        """
        self._not_closed()
        self._rewinding = True

    def note_committed(self, offsets: Offsets) -> None:
        """Note offsets that a transaction committed for the group: `rewind` does not go back before them."""
        self._not_closed()
        self._tracks.committed({at: _place(each) for at, each in _with_metadata(offsets).items()})

    def seek_to_beginning(self, partitions: Iterable[TopicPartition] = ()) -> None:
        """Seek to the first available record; in all assigned partitions if none are given."""
        for partition in self._of_mine(partitions) or self._tracks.assigned:
            self._tracks.seek(partition, Seeking.EARLIEST)

    def seek_to_end(self, partitions: Iterable[TopicPartition] = ()) -> None:
        """Seek past the last record; under `read_committed`, to the last stable offset."""
        for partition in self._of_mine(partitions) or self._tracks.assigned:
            self._tracks.seek(partition, Seeking.LATEST)

    def pin(self, partitions: Iterable[TopicPartition]) -> None:
        """Raise PositionUnknown for a position outside the log, whatever `auto.offset.reset` says.

        Holds until the partitions are assigned anew. For callers that store positions elsewhere.
        """
        for partition in self._of_mine(partitions):
            self._tracks[partition].pinned = True

    def read_committed(self) -> None:
        """Read committed records only, as with `isolation.level`. Called before anything is read."""
        self._not_closed()
        self._fetcher.isolation = self._offsets.isolation = ISOLATION["read_committed"]

    # -------------------------------------------------------------------------------- poll

    async def poll(self, timeout_ms: int, most: int | None = None) -> list[ConsumerRecord]:
        """Return records as soon as there are any; an empty list after `timeout_ms`.

        Also return an empty list as soon as the position moved past markers and aborted records only, as
        Kafka's consumer does: a caller that reads up to an offset then sees that it is reached.

        The timeout does not cut short callbacks, nor the commit before partitions are given up. Every call
        yields to other tasks of the loop, heartbeats among them.

        Args:
            most: maximum number of records; `max.poll.records` by default.
        Raises: WokenUp; BrokerRefused (a grant is missing, a topic is invalid, this member was fenced),
            PositionUnknown, RecordUnreadable; Closed; any error of a callback.
        """
        return await self._poll(
            timeout_ms, partial(self._fetcher.take, most or self._config.max_poll_records)
        )

    async def poll_arrow(self, timeout_ms: int, most: int | None = None) -> "RecordBatch":
        """Poll like `poll`, and return an Arrow batch with the columns of `client.consumer.arrow`.

        The batch may have no rows.

        Args:
            most: maximum number of rows; 65,536 by default, since `max.poll.records` counts objects.
        Raises: as `poll`, and NotSupported without pyarrow.
        Cost: about 30 ns a record with the codec's extension, 1.1 us without.
        """
        return batch_of(await self._poll(timeout_ms, partial(self._fetcher.take_pieces, most or ARROW_ROWS)))

    async def _poll(self, timeout_ms: int, take: Callable[[], list[T]]) -> list[T]:
        if not self._subscribed and not self._tracks.assigned:
            self._not_closing()
            raise IllegalState("poll: nothing is subscribed or assigned")
        deadline = self._cluster.deadline("timeout_ms", timeout_ms)
        self._rewind_if_due()
        await asyncio.sleep(0)
        while True:
            self._news.clear()
            self._not_closing()
            self._raise_if_woken()
            await self._take_part()
            self._auto_commit()
            self._locator.look()
            taken = take()
            if taken or self._fetcher.passed_hidden:
                return taken
            left_ms = deadline.left_ms(self._cluster.now_ms())
            if not left_ms:
                return []
            try:
                async with asyncio.timeout(left_ms / 1000):
                    await self._news.wait()
            except TimeoutError:
                pass

    def _rewind_if_due(self) -> None:
        if self._rewinding:
            self._rewinding = False
            self._tracks.rewind()

    def wakeup(self) -> None:
        """End the wait of the current `poll`, or of the next one, with WokenUp."""
        self._woken = True
        self._news.set()

    def _raise_if_woken(self) -> None:
        if self._woken:
            self._woken = False
            raise WokenUp("wakeup was called")

    async def _take_part(self) -> None:
        """Run the phases of the membership that need the user's call, until none is left."""
        group = self._group
        if group is None:
            return
        group.polled()
        await self._match_topics(group)
        while True:
            member = group.member
            match member.phase:
                case Phase.PREPARING:
                    change = before_joining(member, group.settings)
                    if change.gives_up:
                        await self._give_up(group, change)
                    else:
                        self._adopt(group, prepared(member))
                case Phase.SETTLING:
                    change = to_settle(member)
                    if change.gives_up:
                        await self._give_up(group, Change(revoked=change.revoked))
                    else:
                        self._adopt(group, settled(member))
                        await self._tell(change)
                case Phase.FAILED:
                    raise group.error or IllegalState("the group member has failed")
                case _:
                    return

    async def _give_up(self, group: GroupRunner, change: Change) -> None:
        """Commit if auto-commit is on, run the callbacks, stop reading. The group may move on meanwhile."""
        if change.revoked and self._config.enable_auto_commit:
            timeout_ms = self._config.default_api_timeout_ms
            await self._commit_at_the_end(group, change.revoked, timeout_ms)
        failure: Exception | None = None
        try:
            await self._tell(change)
        except Exception as exc:
            failure = exc  # the group does not wait for a callback that fails
        self._adopt(group, gave_up(group.member, change))
        if failure is not None:
            raise failure

    def _adopt(self, group: GroupRunner, member: Member) -> None:
        """Read the partitions that the member owns now."""
        self._tracks.assign(member.owned, committed=True)
        group.adopt(member)
        self._commit_due_ms = self._cluster.now_ms() + self._config.auto_commit_interval_ms

    async def _tell(self, change: Change) -> None:
        if self._listener is None:
            return
        if change.revoked:
            await self._listener.on_partitions_revoked(change.revoked)
        if change.lost:
            await self._listener.on_partitions_lost(change.lost)
        if change.added is not None:
            await self._listener.on_partitions_assigned(change.added)

    async def _match_topics(self, group: GroupRunner) -> None:
        """Subscribe to the topics that match the pattern now."""
        if self._pattern is None:
            return
        if self._pattern_seen is None:
            await self._cluster.refresh(None)
        image = self._cluster.image
        if image is self._pattern_seen:
            return
        self._pattern_seen = image
        hidden = INTERNAL if self._config.exclude_internal_topics else frozenset[str]()
        wanted = frozenset(t for t in image.topics if t not in hidden and self._pattern.fullmatch(t))
        if wanted != group.member.topics:
            group.adopt(subscribe(group.member, wanted))

    # --------------------------------------------------------------------------- positions

    async def position(self, partition: TopicPartition, timeout_ms: int | None = None) -> int:
        """Return the offset of the next record `poll` would return. Raises: TimedOut, PositionUnknown."""
        (at,) = self._of_mine([partition])
        limit = self._limit(timeout_ms)
        while (track := self._tracks.get(at)) is not None:
            if track.position is not None:
                return track.position.offset
            self._news.clear()
            self._locator.look()
            try:
                async with asyncio.timeout(limit.left_ms(self._cluster.now_ms()) / 1000):
                    await self._news.wait()
            except TimeoutError:
                raise TimedOut(limit.limit, limit.length_ms, f"find the position in {at}") from None
        raise IllegalState(f"{at} is no longer assigned")

    async def beginning_offsets(
        self, partitions: Iterable[TopicPartition], timeout_ms: int | None = None
    ) -> dict[TopicPartition, int]:
        """Return the log start offset of each partition."""
        found = await self._offsets.of_logs(dict.fromkeys(partitions, EARLIEST_MS), self._limit(timeout_ms))
        return {at: place.offset for at, place in found.items() if place is not None}

    async def end_offsets(
        self, partitions: Iterable[TopicPartition], timeout_ms: int | None = None
    ) -> dict[TopicPartition, int]:
        """Return the high watermark of each partition; under `read_committed`, the last stable offset."""
        found = await self._offsets.of_logs(dict.fromkeys(partitions, LATEST_MS), self._limit(timeout_ms))
        return {at: place.offset for at, place in found.items() if place is not None}

    async def offsets_for_times(
        self, times_ms: Mapping[TopicPartition, int], timeout_ms: int | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return the first record of each time or later; None where there is none."""
        return await self._offsets.of_logs(times_ms, self._limit(timeout_ms))

    # ----------------------------------------------------------------------------- commits

    async def commit(self, offsets: Offsets | None = None, timeout_ms: int | None = None) -> None:
        """Commit these offsets for the group; the positions of all partitions if none are given.

        Raises: CommitRefused when the partitions belong to other members by now; BrokerRefused, TimedOut.
        """
        group = self._of_group("commit")
        await self._commit_in_order(group, self._commit_of(group, offsets), self._limit(timeout_ms))

    def commit_soon(self, offsets: Offsets | None = None) -> "asyncio.Task[None]":
        """Start a `commit` without waiting for it. Commits are made in the order of these calls.

        A failure is also logged, since the task may never be awaited.
        """
        group = self._of_group("commit")
        return self._commit_later(group, self._commit_of(group, offsets))

    def _commit_later(self, group: GroupRunner, commit: "_Commit") -> "asyncio.Task[None]":
        made = self._commit_in_order(group, commit, self._limit(None))
        task = asyncio.get_running_loop().create_task(made)
        self._commits.add(task)
        task.add_done_callback(self._committed_later)
        return task

    def _commit_of(self, group: GroupRunner, offsets: Offsets | None) -> "_Commit":
        wanted = self._consumed() if offsets is None else _with_metadata(offsets)
        return _Commit(group.member, group.metadata(), wanted)

    def _committed_later(self, task: "asyncio.Task[None]") -> None:
        self._commits.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.warning("a commit failed: %s", task.exception())

    async def _commit_in_order(self, group: GroupRunner, commit: "_Commit", deadline: Deadline) -> None:
        if not commit.offsets:
            return
        try:
            async with asyncio.timeout(deadline.left_ms(self._cluster.now_ms()) / 1000):
                await self._commit_order.acquire()
        except TimeoutError:
            doing = f"OffsetCommit {group.settings.group_id!r}, behind an earlier one"
            raise TimedOut(deadline.limit, deadline.length_ms, doing) from None
        try:
            await self._commit(group, commit, deadline)
        finally:
            self._commit_order.release()

    async def _commit(self, group: GroupRunner, commit: "_Commit", deadline: Deadline) -> None:
        """Commit under the generation in which the positions were read.

        If the member joined again meanwhile, another member may have read the same partitions and committed
        in between: committing the old positions under the new generation would move the offsets back.
        """
        member = commit.member
        if member.phase is not Phase.OUT and member.generation is None:
            raise CommitRefused("this consumer is not a member of its group now")
        now = group.member
        if (now.member_id, now.generation) != (member.member_id, member.generation):
            raise CommitRefused("this consumer joined its group anew after it read up to these offsets")
        try:
            await self._offsets.commit(commit.metadata, commit.offsets, deadline)
        except BrokerRefused as exc:
            reaction = reaction_to("OffsetCommit", exc.code)
            if reaction not in (Reaction.REJOIN, Reaction.NEW_GENERATION, Reaction.NEW_MEMBER):
                raise
            group.refuse("OffsetCommit", exc.code, member.generation)
            raise CommitRefused(exc.what()) from exc
        self._tracks.committed({at: _place(each) for at, each in commit.offsets.items()})

    def _consumed(self) -> dict[TopicPartition, OffsetAndMetadata]:
        return {
            at: OffsetAndMetadata(position.offset, position.leader_epoch)
            for at in self._tracks.assigned
            if (position := self._tracks[at].position) is not None
        }

    def _still_there(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the partitions' positions, except where metadata says the partition is gone.

        Offsets of such a partition cannot be committed.
        """
        image = self._cluster.image
        there: dict[TopicPartition, OffsetAndMetadata] = {}
        for at, consumed in self._consumed().items():
            known = at.topic in image.topics or at.topic in image.errors
            gone = known and image.why_not(at) in _GONE and image.partition(at) is None
            if at in partitions and not gone:
                there[at] = consumed
        return there

    def _auto_commit(self) -> None:
        """Commit the positions of the last `poll` when due: polling again means its records are processed."""
        if not self._config.enable_auto_commit or self._group is None or self._commits:
            return
        now_ms = self._cluster.now_ms()
        member = self._group.member
        if now_ms >= self._commit_due_ms and (member.phase is Phase.OUT or member.generation is not None):
            self._commit_due_ms = now_ms + self._config.auto_commit_interval_ms
            wanted = self._still_there(self._tracks.assigned)
            self._commit_later(self._group, _Commit(member, self._group.metadata(), wanted))

    async def _commit_at_the_end(
        self, group: GroupRunner, partitions: Iterable[TopicPartition], timeout_ms: int
    ) -> None:
        """Commit the positions of partitions that this consumer stops reading.

        The group and the records of other partitions wait meanwhile, so the time is limited to a share of the
        session timeout.
        """
        limit_ms = min(timeout_ms, int(self._config.session_timeout_ms * _LAST_COMMIT_SHARE))
        deadline = self._cluster.deadline("a third of session.timeout.ms", limit_ms)
        commit = _Commit(group.member, group.metadata(), self._still_there(partitions))
        try:
            await self._commit_in_order(group, commit, deadline)
        except ClientError as exc:
            _log.warning("positions are given up uncommitted: %s", exc)

    def _commit_unheard(self, group: GroupRunner) -> None:
        """Send the last commit without waiting for its answer."""
        offsets = self._still_there(self._tracks.assigned)
        if offsets and (group.member.phase is Phase.OUT or group.member.generation is not None):
            self._offsets.commit_unheard(group.metadata(), offsets)

    async def committed(
        self, partitions: Iterable[TopicPartition], timeout_ms: int | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return the group's committed offsets; None for none. Raises: TimedOut, BrokerRefused."""
        group = self._of_group("committed")
        return await self._offsets.of_group(group.settings.group_id, partitions, self._limit(timeout_ms))

    def group_metadata(self) -> GroupMetadata:
        """Return the metadata a producer needs to commit offsets in its transaction (KIP-447)."""
        return self._of_group("group_metadata").metadata()

    # ------------------------------------------------------------------------------- closing

    async def close(self, timeout_ms: int = 30_000) -> None:
        """Commit if auto-commit is on, leave the group, close the connections; harmless if repeated.

        Takes at most `timeout_ms`; with 0 the commit and LeaveGroup are sent without waiting for an answer,
        as Kafka's consumer does. Callbacks run, and their errors are raised when everything is closed.
        If cancelled, it sends nothing more to the group and still closes everything.
        """
        if self._closing:
            return
        self._closing = True
        self._rewind_if_due()  # else the last commit would include records that are to be returned again
        self._news.set()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                if self._group is not None and self._config.enable_auto_commit and not timeout_ms:
                    self._commit_unheard(self._group)
                elif self._group is not None and self._config.enable_auto_commit:
                    # Half of the time is for LeaveGroup; without it the others wait for the session timeout.
                    await self._commit_at_the_end(self._group, self._tracks.assigned, timeout_ms // 2)
                await self._leave(_CLOSING, at_once=not timeout_ms)
        except TimeoutError:
            _log.warning("closed before the group has confirmed it: %d ms were over", timeout_ms)
        finally:
            self._closed = True
            if self._group is not None:
                self._group.cancel()
            for task in self._commits:
                task.cancel()
            self._locator.cancel()
            self._fetcher.close()
            await self._cluster.close()

    async def _leave(self, reason: str, *, at_once: bool = False) -> None:
        group = self._group
        if group is None or group.member.phase is Phase.OUT:
            return
        member, change = leave(group.member)
        try:
            await self._tell(change)
        finally:
            if at_once:
                group.stop_now(member, reason)
            else:
                await group.stop(member, reason)

    # ------------------------------------------------------------------------------ questions

    def metrics(self) -> dict[str, float]:
        """Return the network's metrics and each partition's lag, by Kafka's names."""
        lags = {
            f"records-lag.{at}": float(track.high_watermark - track.position.offset)
            for at in self._tracks.assigned
            if (track := self._tracks[at]).high_watermark is not None and track.position is not None
        }
        return {**self._cluster.metrics(), **lags}

    @property
    def _subscribed(self) -> bool:
        return self._group is not None and self._group.member.phase is not Phase.OUT

    def _of_group(self, call: str) -> GroupRunner:
        self._not_closed()
        if self._group is None:
            raise IllegalState(f"{call} needs group.id")
        return self._group

    def _of_mine(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        self._not_closed()
        asked = list(partitions)
        foreign = [str(at) for at in asked if at not in self._tracks]
        if foreign:
            raise IllegalState(f"not assigned to this consumer: {', '.join(foreign)}")
        return asked

    def _not_closing(self) -> None:
        if self._closing:
            raise Closed("the consumer was closed")

    def _not_closed(self) -> None:
        if self._closed:
            raise Closed("the consumer was closed")

    def _limit(self, timeout_ms: int | None) -> Deadline:
        if timeout_ms is not None:
            return self._cluster.deadline("timeout_ms", timeout_ms)
        return self._cluster.deadline("default.api.timeout.ms", self._config.default_api_timeout_ms)


def _with_metadata(offsets: Offsets) -> dict[TopicPartition, OffsetAndMetadata]:
    return {
        at: OffsetAndMetadata(given) if isinstance(given, int) else given for at, given in offsets.items()
    }


def _place(found: OffsetAndMetadata | OffsetAndTimestamp) -> Position:
    return Position(found.offset, found.leader_epoch)
