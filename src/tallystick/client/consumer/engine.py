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
from tallystick.client.consumer.arrow import build_record_batch
from tallystick.client.consumer.consumer_coordinator import ConsumerCoordinator
from tallystick.client.consumer.decode import ConsumerRecord
from tallystick.client.consumer.errors import CommitRefused, WokenUp
from tallystick.client.consumer.fetch_state import (
    EARLIEST_MS,
    LATEST_MS,
    Position,
    PositionSource,
    SubscriptionState,
)
from tallystick.client.consumer.fetcher import Fetcher
from tallystick.client.consumer.membership import (
    AssignmentChange,
    ErrorReaction,
    GroupRebalanceConfig,
    Membership,
    Phase,
    begin_join,
    classify_error,
    drop_partitions,
    leave,
    plan_assignment_change,
    plan_revocation,
    subscribe,
    take_over_assignment,
)
from tallystick.client.consumer.offset_requests import ISOLATION_LEVELS, OffsetRequests
from tallystick.client.consumer.position_search import PositionSearch
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

_LAST_COMMIT_TIME_SHARE: Final = 1 / 3
"""Longest time for the last commit of a partition, as a share of session.timeout.ms."""
_CLOSE_REASON: Final = "the consumer is being closed"
_MISSING_TOPIC_CODES: Final = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})

INTERNAL_TOPICS: Final = frozenset({"__consumer_offsets", "__transaction_state"})
_RESET_BY_NAME: Final = {"earliest": PositionSource.EARLIEST, "latest": PositionSource.LATEST, "none": None}

Offsets = Mapping[TopicPartition, OffsetAndMetadata | int]


@frozen
class _PendingCommit:
    """Offsets to commit, and the member that read up to them: a later generation must not commit them."""

    member: Membership
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
        self._progress = asyncio.Event()
        self._subscriptions = SubscriptionState(_RESET_BY_NAME[config.auto_offset_reset])
        self._offsets = OffsetRequests(self._cluster, config.isolation_level)
        self._fetcher = Fetcher(config, self._cluster, self._subscriptions, self._progress.set)
        self._coordinator = self._create_coordinator()
        self._position_search = PositionSearch(
            self._offsets,
            self._subscriptions,
            config.group_id,
            partial(self._make_deadline, None),
            self._progress.set,
        )
        self._listener: RebalanceListener | None = None
        self._pattern: re.Pattern[str] | None = None
        self._matched_metadata: object = None
        self._pending_commits: set[asyncio.Task[None]] = set()
        self._commit_lock = asyncio.Lock()
        self._next_auto_commit_ms = 0
        self._wakeup_pending = self._rewind_pending = False
        self._closing = False  # callbacks may still commit
        self._closed = False

    def _create_coordinator(self) -> ConsumerCoordinator | None:
        config = self._config
        if config.group_id is None:
            return None
        settings = GroupRebalanceConfig(
            group_id=GroupId(config.group_id),
            instance_id=config.group_instance_id,
            rack=config.client_rack or None,
            session_timeout_ms=config.session_timeout_ms,
            rebalance_timeout_ms=config.max_poll_interval_ms,
            assignors=tuple(ASSIGNORS[name] for name in config.partition_assignment_strategy),
        )
        return ConsumerCoordinator(settings, self._cluster, config.heartbeat_interval_ms, self._progress.set)

    # ------------------------------------------------------------------------ subscription

    def subscribe(
        self, topics: Iterable[str] | re.Pattern[str], listener: RebalanceListener | None = None
    ) -> None:
        """Share these topics with the group; the partitions are assigned while polling.

        Args:
            topics: names; or a pattern, matched against the whole name of every topic, now and later.
        Raises: IllegalState without `group.id` or after `assign`.
        """
        group = self._require_group("subscribe")
        if self._subscriptions.assigned_partitions and group.member.phase is Phase.OUT:
            raise IllegalState("subscribe after assign: unsubscribe first")
        self._listener = listener
        self._pattern = topics if isinstance(topics, re.Pattern) else None
        if self._pattern is None:
            self._cluster.forget_topics(None)
        self._matched_metadata = None
        wanted = frozenset[str]() if isinstance(topics, re.Pattern) else frozenset(topics)
        group.set_member(subscribe(group.member, wanted))
        group.start()

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions, outside of group management. Known positions are kept.

        Raises: IllegalState while subscribed.
        """
        self._require_open()
        if self._is_subscribed:
            raise IllegalState("assign while subscribed: unsubscribe first")
        self._subscriptions.assign(frozenset(partitions), committed=self._coordinator is not None)

    async def unsubscribe(self) -> None:
        """Stop reading and leave the group. Callbacks run; positions are not committed."""
        self._require_open()
        await self._leave_group("the consumer unsubscribed")
        self._subscriptions.assign((), committed=False)

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        return self._subscriptions.assigned_partitions

    @property
    def subscription(self) -> frozenset[str]:
        return frozenset() if self._coordinator is None else self._coordinator.member.topics

    @property
    def paused(self) -> frozenset[TopicPartition]:
        return self._subscriptions.paused_partitions

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Return no records of these partitions; fetched data is kept for `resume`."""
        for partition in self._require_assigned(partitions):
            self._subscriptions[partition].is_paused = True

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Return records of these partitions again."""
        for partition in self._require_assigned(partitions):
            self._subscriptions[partition].is_paused = False
        self._progress.set()

    def seek(self, partition: TopicPartition, offset: int, leader_epoch: int | None = None) -> None:
        """Continue with the record at `offset`, or the first one after it."""
        if offset < 0:
            raise IllegalState(f"seek to offset {offset}: negative")
        (at,) = self._require_assigned([partition])
        self._subscriptions.seek(at, Position(offset, leader_epoch))

    def go_back(self, partition: TopicPartition, offset: int) -> None:
        """Return records from `offset` on again; records returned before it may still be committed."""
        (at,) = self._require_assigned([partition])
        self._subscriptions.go_back(at, Position(offset))

    def rewind(self) -> None:
        """From the next `poll` on, return records again that were returned and never committed [CLI-68].

        Not at once: a user who still holds the records may process and commit them.
        """
        self._require_open()
        self._rewind_pending = True

    def note_committed(self, offsets: Offsets) -> None:
        """Note offsets that a transaction committed for the group: `rewind` does not go back before them."""
        self._require_open()
        self._subscriptions.note_committed(
            {at: _to_position(each) for at, each in _normalize_offsets(offsets).items()}
        )

    def seek_to_beginning(self, partitions: Iterable[TopicPartition] = ()) -> None:
        """Seek to the first available record; in all assigned partitions if none are given."""
        for partition in self._require_assigned(partitions) or self._subscriptions.assigned_partitions:
            self._subscriptions.seek(partition, PositionSource.EARLIEST)

    def seek_to_end(self, partitions: Iterable[TopicPartition] = ()) -> None:
        """Seek past the last record; under `read_committed`, to the last stable offset."""
        for partition in self._require_assigned(partitions) or self._subscriptions.assigned_partitions:
            self._subscriptions.seek(partition, PositionSource.LATEST)

    def pin(self, partitions: Iterable[TopicPartition]) -> None:
        """Raise PositionUnknown for a position outside the log, whatever `auto.offset.reset` says.

        Holds until the partitions are assigned anew. For callers that store positions elsewhere.
        """
        for partition in self._require_assigned(partitions):
            self._subscriptions[partition].is_pinned = True

    def read_committed(self) -> None:
        """Read committed records only, as with `isolation.level`. Called before anything is read."""
        self._require_open()
        self._fetcher.isolation_level = self._offsets.isolation_level = ISOLATION_LEVELS["read_committed"]

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
            timeout_ms, partial(self._fetcher.take_records, most or self._config.max_poll_records)
        )

    async def poll_arrow(self, timeout_ms: int, most: int | None = None) -> "RecordBatch":
        """Poll like `poll`, and return an Arrow batch with the columns of `client.consumer.arrow`.

        The batch may have no rows.

        Args:
            most: maximum number of rows; 65,536 by default, since `max.poll.records` counts objects.
        Raises: as `poll`, and NotSupported without pyarrow.
        Cost: about 30 ns a record with the codec's extension, 1.1 us without.
        """
        return build_record_batch(
            await self._poll(timeout_ms, partial(self._fetcher.take_chunks, most or ARROW_ROWS))
        )

    async def _poll(self, timeout_ms: int, take: Callable[[], list[T]]) -> list[T]:
        if not self._is_subscribed and not self._subscriptions.assigned_partitions:
            self._require_not_closing()
            raise IllegalState("poll: nothing is subscribed or assigned")
        deadline = self._cluster.start_deadline("timeout_ms", timeout_ms)
        self._rewind_if_due()
        await asyncio.sleep(0)
        while True:
            self._progress.clear()
            self._require_not_closing()
            self._raise_if_woken()
            await self._run_group_phases()
            self._commit_if_due()
            self._position_search.start_searches()
            taken = take()
            if taken or self._fetcher.has_skipped_hidden:
                return taken
            left_ms = deadline.remaining_ms(self._cluster.now_ms())
            if not left_ms:
                return []
            try:
                async with asyncio.timeout(left_ms / 1000):
                    await self._progress.wait()
            except TimeoutError:
                pass

    def _rewind_if_due(self) -> None:
        if self._rewind_pending:
            self._rewind_pending = False
            self._subscriptions.rewind()

    def wakeup(self) -> None:
        """End the wait of the current `poll`, or of the next one, with WokenUp."""
        self._wakeup_pending = True
        self._progress.set()

    def _raise_if_woken(self) -> None:
        if self._wakeup_pending:
            self._wakeup_pending = False
            raise WokenUp("wakeup was called")

    async def _run_group_phases(self) -> None:
        """Run the phases of the membership that need the user's call, until none is left."""
        group = self._coordinator
        if group is None:
            return
        group.note_poll()
        await self._match_pattern(group)
        while True:
            member = group.member
            match member.phase:
                case Phase.PREPARING:
                    change = plan_revocation(member, group.settings)
                    if change.has_removals:
                        await self._revoke_partitions(group, change)
                    else:
                        self._apply_assignment(group, begin_join(member))
                case Phase.SETTLING:
                    change = plan_assignment_change(member)
                    if change.has_removals:
                        await self._revoke_partitions(group, AssignmentChange(revoked=change.revoked))
                    else:
                        self._apply_assignment(group, take_over_assignment(member))
                        await self._call_listener(change)
                case Phase.FAILED:
                    raise group.error or IllegalState("the group member has failed")
                case _:
                    return

    async def _revoke_partitions(self, group: ConsumerCoordinator, change: AssignmentChange) -> None:
        """Commit if auto-commit is on, run the callbacks, stop reading. The group may move on meanwhile."""
        if change.revoked and self._config.enable_auto_commit:
            timeout_ms = self._config.default_api_timeout_ms
            await self._commit_before_revocation(group, change.revoked, timeout_ms)
        failure: Exception | None = None
        try:
            await self._call_listener(change)
        except Exception as exc:
            failure = exc  # the group does not wait for a callback that fails
        self._apply_assignment(group, drop_partitions(group.member, change))
        if failure is not None:
            raise failure

    def _apply_assignment(self, group: ConsumerCoordinator, member: Membership) -> None:
        """Read the partitions that the member owns now."""
        self._subscriptions.assign(member.owned_partitions, committed=True)
        group.set_member(member)
        self._next_auto_commit_ms = self._cluster.now_ms() + self._config.auto_commit_interval_ms

    async def _call_listener(self, change: AssignmentChange) -> None:
        if self._listener is None:
            return
        if change.revoked:
            await self._listener.on_partitions_revoked(change.revoked)
        if change.lost:
            await self._listener.on_partitions_lost(change.lost)
        if change.added is not None:
            await self._listener.on_partitions_assigned(change.added)

    async def _match_pattern(self, group: ConsumerCoordinator) -> None:
        """Subscribe to the topics that match the pattern now."""
        if self._pattern is None:
            return
        if self._matched_metadata is None:
            await self._cluster.refresh(None)
        image = self._cluster.image
        if image is self._matched_metadata:
            return
        self._matched_metadata = image
        hidden = INTERNAL_TOPICS if self._config.exclude_internal_topics else frozenset[str]()
        wanted = frozenset(t for t in image.topics if t not in hidden and self._pattern.fullmatch(t))
        if wanted != group.member.topics:
            group.set_member(subscribe(group.member, wanted))

    # --------------------------------------------------------------------------- positions

    async def position(self, partition: TopicPartition, timeout_ms: int | None = None) -> int:
        """Return the offset of the next record `poll` would return. Raises: TimedOut, PositionUnknown."""
        (at,) = self._require_assigned([partition])
        limit = self._make_deadline(timeout_ms)
        while (track := self._subscriptions.get(at)) is not None:
            if track.position is not None:
                return track.position.offset
            self._progress.clear()
            self._position_search.start_searches()
            try:
                async with asyncio.timeout(limit.remaining_ms(self._cluster.now_ms()) / 1000):
                    await self._progress.wait()
            except TimeoutError:
                raise TimedOut(limit.limit_name, limit.length_ms, f"find the position in {at}") from None
        raise IllegalState(f"{at} is no longer assigned")

    async def beginning_offsets(
        self, partitions: Iterable[TopicPartition], timeout_ms: int | None = None
    ) -> dict[TopicPartition, int]:
        """Return the log start offset of each partition."""
        found = await self._offsets.list_offsets(
            dict.fromkeys(partitions, EARLIEST_MS), self._make_deadline(timeout_ms)
        )
        return {at: place.offset for at, place in found.items() if place is not None}

    async def end_offsets(
        self, partitions: Iterable[TopicPartition], timeout_ms: int | None = None
    ) -> dict[TopicPartition, int]:
        """Return the high watermark of each partition; under `read_committed`, the last stable offset."""
        found = await self._offsets.list_offsets(
            dict.fromkeys(partitions, LATEST_MS), self._make_deadline(timeout_ms)
        )
        return {at: place.offset for at, place in found.items() if place is not None}

    async def offsets_for_times(
        self, times_ms: Mapping[TopicPartition, int], timeout_ms: int | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return the first record of each time or later; None where there is none."""
        return await self._offsets.list_offsets(times_ms, self._make_deadline(timeout_ms))

    # ----------------------------------------------------------------------------- commits

    async def commit(self, offsets: Offsets | None = None, timeout_ms: int | None = None) -> None:
        """Commit these offsets for the group; the positions of all partitions if none are given.

        Raises: CommitRefused when the partitions belong to other members by now; BrokerRefused, TimedOut.
        """
        group = self._require_group("commit")
        await self._commit_in_order(
            group, self._build_commit(group, offsets), self._make_deadline(timeout_ms)
        )

    def commit_soon(self, offsets: Offsets | None = None) -> "asyncio.Task[None]":
        """Start a `commit` without waiting for it. Commits are made in the order of these calls.

        A failure is also logged, since the task may never be awaited.
        """
        group = self._require_group("commit")
        return self._start_commit(group, self._build_commit(group, offsets))

    def _start_commit(self, group: ConsumerCoordinator, commit: "_PendingCommit") -> "asyncio.Task[None]":
        made = self._commit_in_order(group, commit, self._make_deadline(None))
        task = asyncio.get_running_loop().create_task(made)
        self._pending_commits.add(task)
        task.add_done_callback(self._on_commit_done)
        return task

    def _build_commit(self, group: ConsumerCoordinator, offsets: Offsets | None) -> "_PendingCommit":
        wanted = self._collect_positions() if offsets is None else _normalize_offsets(offsets)
        return _PendingCommit(group.member, group.group_metadata(), wanted)

    def _on_commit_done(self, task: "asyncio.Task[None]") -> None:
        self._pending_commits.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.warning("a commit failed: %s", task.exception())

    async def _commit_in_order(
        self, group: ConsumerCoordinator, commit: "_PendingCommit", deadline: Deadline
    ) -> None:
        if not commit.offsets:
            return
        try:
            async with asyncio.timeout(deadline.remaining_ms(self._cluster.now_ms()) / 1000):
                await self._commit_lock.acquire()
        except TimeoutError:
            doing = f"OffsetCommit {group.settings.group_id!r}, behind an earlier one"
            raise TimedOut(deadline.limit_name, deadline.length_ms, doing) from None
        try:
            await self._commit(group, commit, deadline)
        finally:
            self._commit_lock.release()

    async def _commit(self, group: ConsumerCoordinator, commit: "_PendingCommit", deadline: Deadline) -> None:
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
            reaction = classify_error("OffsetCommit", exc.code)
            if reaction not in (
                ErrorReaction.REJOIN,
                ErrorReaction.RESET_GENERATION,
                ErrorReaction.RESET_MEMBER_ID,
            ):
                raise
            group.handle_error("OffsetCommit", exc.code, member.generation)
            raise CommitRefused(exc.what()) from exc
        self._subscriptions.note_committed({at: _to_position(each) for at, each in commit.offsets.items()})

    def _collect_positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        return {
            at: OffsetAndMetadata(position.offset, position.leader_epoch)
            for at in self._subscriptions.assigned_partitions
            if (position := self._subscriptions[at].position) is not None
        }

    def _collect_committable(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the partitions' positions, except where metadata says the partition is gone.

        Offsets of such a partition cannot be committed.
        """
        image = self._cluster.image
        there: dict[TopicPartition, OffsetAndMetadata] = {}
        for at, consumed in self._collect_positions().items():
            known = at.topic in image.topics or at.topic in image.error_codes
            gone = (
                known
                and image.find_leader_error(at) in _MISSING_TOPIC_CODES
                and image.find_partition(at) is None
            )
            if at in partitions and not gone:
                there[at] = consumed
        return there

    def _commit_if_due(self) -> None:
        """Commit the positions of the last `poll` when due: polling again means its records are processed."""
        if not self._config.enable_auto_commit or self._coordinator is None or self._pending_commits:
            return
        now_ms = self._cluster.now_ms()
        member = self._coordinator.member
        if now_ms >= self._next_auto_commit_ms and (
            member.phase is Phase.OUT or member.generation is not None
        ):
            self._next_auto_commit_ms = now_ms + self._config.auto_commit_interval_ms
            wanted = self._collect_committable(self._subscriptions.assigned_partitions)
            self._start_commit(
                self._coordinator, _PendingCommit(member, self._coordinator.group_metadata(), wanted)
            )

    async def _commit_before_revocation(
        self, group: ConsumerCoordinator, partitions: Iterable[TopicPartition], timeout_ms: int
    ) -> None:
        """Commit the positions of partitions that this consumer stops reading.

        The group and the records of other partitions wait meanwhile, so the time is limited to a share of the
        session timeout.
        """
        limit_ms = min(timeout_ms, int(self._config.session_timeout_ms * _LAST_COMMIT_TIME_SHARE))
        deadline = self._cluster.start_deadline("a third of session.timeout.ms", limit_ms)
        commit = _PendingCommit(group.member, group.group_metadata(), self._collect_committable(partitions))
        try:
            await self._commit_in_order(group, commit, deadline)
        except ClientError as exc:
            _log.warning("positions are given up uncommitted: %s", exc)

    def _send_last_commit(self, group: ConsumerCoordinator) -> None:
        """Send the last commit without waiting for its answer."""
        offsets = self._collect_committable(self._subscriptions.assigned_partitions)
        if offsets and (group.member.phase is Phase.OUT or group.member.generation is not None):
            self._offsets.commit_without_reply(group.group_metadata(), offsets)

    async def committed(
        self, partitions: Iterable[TopicPartition], timeout_ms: int | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return the group's committed offsets; None for none. Raises: TimedOut, BrokerRefused."""
        group = self._require_group("committed")
        return await self._offsets.fetch_committed(
            group.settings.group_id, partitions, self._make_deadline(timeout_ms)
        )

    def group_metadata(self) -> GroupMetadata:
        """Return the metadata a producer needs to commit offsets in its transaction (KIP-447)."""
        return self._require_group("group_metadata").group_metadata()

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
        self._progress.set()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                if self._coordinator is not None and self._config.enable_auto_commit and not timeout_ms:
                    self._send_last_commit(self._coordinator)
                elif self._coordinator is not None and self._config.enable_auto_commit:
                    # Half of the time is for LeaveGroup; without it the others wait for the session timeout.
                    await self._commit_before_revocation(
                        self._coordinator, self._subscriptions.assigned_partitions, timeout_ms // 2
                    )
                await self._leave_group(_CLOSE_REASON, at_once=not timeout_ms)
        except TimeoutError:
            _log.warning("closed before the group has confirmed it: %d ms were over", timeout_ms)
        finally:
            self._closed = True
            if self._coordinator is not None:
                self._coordinator.cancel()
            for task in self._pending_commits:
                task.cancel()
            self._position_search.cancel()
            self._fetcher.close()
            await self._cluster.close()

    async def _leave_group(self, reason: str, *, at_once: bool = False) -> None:
        group = self._coordinator
        if group is None or group.member.phase is Phase.OUT:
            return
        member, change = leave(group.member)
        try:
            await self._call_listener(change)
        finally:
            if at_once:
                group.stop_now(member, reason)
            else:
                await group.stop_and_leave(member, reason)

    # ------------------------------------------------------------------------------ questions

    def metrics(self) -> dict[str, float]:
        """Return the network's metrics and each partition's lag, by Kafka's names."""
        lags = {
            f"records-lag.{at}": float(track.high_watermark - track.position.offset)
            for at in self._subscriptions.assigned_partitions
            if (track := self._subscriptions[at]).high_watermark is not None and track.position is not None
        }
        return {**self._cluster.metrics(), **lags}

    @property
    def _is_subscribed(self) -> bool:
        return self._coordinator is not None and self._coordinator.member.phase is not Phase.OUT

    def _require_group(self, call: str) -> ConsumerCoordinator:
        self._require_open()
        if self._coordinator is None:
            raise IllegalState(f"{call} needs group.id")
        return self._coordinator

    def _require_assigned(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        self._require_open()
        asked = list(partitions)
        foreign = [str(at) for at in asked if at not in self._subscriptions]
        if foreign:
            raise IllegalState(f"not assigned to this consumer: {', '.join(foreign)}")
        return asked

    def _require_not_closing(self) -> None:
        if self._closing:
            raise Closed("the consumer was closed")

    def _require_open(self) -> None:
        if self._closed:
            raise Closed("the consumer was closed")

    def _make_deadline(self, timeout_ms: int | None) -> Deadline:
        if timeout_ms is not None:
            return self._cluster.start_deadline("timeout_ms", timeout_ms)
        return self._cluster.start_deadline("default.api.timeout.ms", self._config.default_api_timeout_ms)


def _normalize_offsets(offsets: Offsets) -> dict[TopicPartition, OffsetAndMetadata]:
    return {
        at: OffsetAndMetadata(given) if isinstance(given, int) else given for at, given in offsets.items()
    }


def _to_position(found: OffsetAndMetadata | OffsetAndTimestamp) -> Position:
    return Position(found.offset, found.leader_epoch)
