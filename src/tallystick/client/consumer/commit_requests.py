"""Commits of one consumer: their order, the generation they are made in, and auto-commit.

Source: Kafka CommitRequestManager; ConsumerCoordinator for the classic protocol.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import Final

from tallystick.client.consumer.consumer_coordinator import ConsumerCoordinator
from tallystick.client.consumer.fetch_state import SubscriptionState, to_position
from tallystick.client.consumer.membership import ErrorReaction, Membership, classify_error
from tallystick.client.consumer.offset_requests import CallDeadlines, GroupOffsetRequests
from tallystick.client.errors import BrokerRefused, ClientError, CommitRefused, TimedOut
from tallystick.client.net.cluster import Cluster
from tallystick.client.net.retry_scope import Deadline
from tallystick.client.offsets import GroupMetadata, OffsetAndMetadata, Offsets, normalize_offsets
from tallystick.client.settings.config import ConsumerConfig
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.ids import TopicPartition
from tallystick.kernel.value import Value

_log = logging.getLogger("tallystick.consumer")

_LAST_COMMIT_TIME_SHARE: Final = 1 / 3
"""Longest time for the last commit of a partition, as a share of session.timeout.ms."""
_MISSING_TOPIC_CODES: Final = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})
_REJOIN_REACTIONS: Final = frozenset(
    {ErrorReaction.REJOIN, ErrorReaction.RESET_GENERATION, ErrorReaction.RESET_MEMBER_ID}
)


class _PendingCommit(Value):
    """Offsets to commit, and the member that read up to them: a later generation must not commit them."""

    member: Membership
    metadata: GroupMetadata
    offsets: Mapping[TopicPartition, OffsetAndMetadata]


class CommitRequestManager:
    """Commits of one consumer with a group, on its loop: one at a time, in the order of the calls."""

    def __init__(
        self,
        config: ConsumerConfig,
        cluster: Cluster,
        subscriptions: SubscriptionState,
        *,
        coordinator: ConsumerCoordinator,
        group_offsets: GroupOffsetRequests,
        deadlines: CallDeadlines,
    ) -> None:
        self._config, self._cluster, self._subscriptions = config, cluster, subscriptions
        self._coordinator, self._group_offsets, self._deadlines = coordinator, group_offsets, deadlines
        self._pending: dict[asyncio.Task[None], _PendingCommit] = {}
        self._lock = asyncio.Lock()
        self._next_auto_commit_ms = 0

    # ------------------------------------------------------------------------ for the user

    async def commit(self, offsets: Offsets | None, timeout_ms: int | None) -> None:
        """Commit these offsets for the group; the positions of all partitions if none are given.

        Raises: CommitRefused when the partitions belong to other members by now; BrokerRefused, TimedOut.
        """
        await self._commit_in_order(self._build_commit(offsets), self._deadlines.start(timeout_ms))

    def commit_soon(self, offsets: Offsets | None) -> "asyncio.Task[None]":
        """Start a `commit` without waiting for it. Commits are made in the order of these calls.

        A failure is also logged, since the task may never be awaited.
        """
        return self._start_commit(self._build_commit(offsets))

    async def fetch_committed(
        self, partitions: Iterable[TopicPartition], timeout_ms: int | None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return the group's committed offsets; None for none. Raises: TimedOut, BrokerRefused."""
        return await self._group_offsets.fetch_committed(partitions, self._deadlines.start(timeout_ms))

    # ------------------------------------------------------------------------- auto-commit

    def restart_auto_commit_interval(self) -> None:
        """Let a whole auto.commit.interval.ms pass before the next commit: the assignment has changed."""
        self._next_auto_commit_ms = self._cluster.now_ms() + self._config.auto_commit_interval_ms

    def auto_commit_if_due(self) -> None:
        """Commit the positions of the last `poll` when due: polling again means its records are processed."""
        if not self._config.enable_auto_commit or self._pending:
            return
        if self._cluster.now_ms() >= self._next_auto_commit_ms and self._coordinator.member.may_commit:
            self.restart_auto_commit_interval()
            self._start_commit(self._build_last_commit(self._subscriptions.assigned_partitions))

    async def auto_commit_before_revocation(self, partitions: Iterable[TopicPartition]) -> None:
        """Commit the positions of partitions that this consumer stops reading, if auto-commit is on."""
        if self._config.enable_auto_commit:
            await self._commit_last_positions(partitions, self._config.default_api_timeout_ms)

    async def finish_before_close(self, timeout_ms: int) -> None:
        """Commit the positions of all partitions, if auto-commit is on, and wait for the pending commits.

        They would be refused once the group is left. With 0, all are sent without waiting for an answer.

        Source: Kafka ConsumerCoordinator.close.
        """
        if not timeout_ms:
            self._commit_without_reply()
            return
        # Half of the time is for LeaveGroup; without it the others wait for the session timeout.
        limit_ms = timeout_ms // 2
        deadline = self._cluster.start_deadline("timeout_ms", limit_ms)
        if self._config.enable_auto_commit:
            await self._commit_last_positions(self._subscriptions.assigned_partitions, limit_ms)
        if self._pending:
            await asyncio.wait(self._pending, timeout=self._deadlines.compute_remaining_s(deadline))

    def _commit_without_reply(self) -> None:
        """Send the pending commits, and the positions if auto-commit is on, as one commit."""
        commits = [*self._pending.values()]
        if self._config.enable_auto_commit:
            commits.append(self._build_last_commit(self._subscriptions.assigned_partitions))
        offsets: dict[TopicPartition, OffsetAndMetadata] = {}
        for commit in commits:
            if commit.member.may_commit and self._is_same_generation(commit.member):
                offsets |= commit.offsets
        if offsets:
            metadata, connection_name = (
                self._coordinator.group_metadata(),
                self._coordinator.commit_connection,
            )
            self._group_offsets.commit_without_reply(metadata, offsets, connection_name)

    def cancel(self) -> None:
        """Cancel all commits."""
        for task in self._pending:
            task.cancel()

    async def _commit_last_positions(self, partitions: Iterable[TopicPartition], timeout_ms: int) -> None:
        """Commit positions that no later commit will include.

        The group and the records of other partitions wait meanwhile, so the time is limited to a share of the
        session timeout.
        """
        limit_ms = min(timeout_ms, int(self._config.session_timeout_ms * _LAST_COMMIT_TIME_SHARE))
        deadline = self._cluster.start_deadline("a third of session.timeout.ms", limit_ms)
        try:
            await self._commit_in_order(self._build_last_commit(partitions), deadline)
        except ClientError as exc:
            _log.warning("positions are given up uncommitted: %s", exc)

    # ------------------------------------------------------------------------------ commits

    def _build_commit(self, offsets: Offsets | None) -> _PendingCommit:
        positions = self._collect_positions() if offsets is None else normalize_offsets(offsets)
        return _PendingCommit(self._coordinator.member, self._coordinator.group_metadata(), positions)

    def _build_last_commit(self, partitions: Iterable[TopicPartition]) -> _PendingCommit:
        """Return a commit of the partitions' positions, except where metadata says the partition is gone.

        Offsets of such a partition cannot be committed.
        """
        image = self._cluster.image
        offsets: dict[TopicPartition, OffsetAndMetadata] = {}
        for at, position in self._collect_positions().items():
            is_known = at.topic in image.topics or at.topic in image.error_codes
            is_deleted = (
                is_known
                and image.find_leader_error(at) in _MISSING_TOPIC_CODES
                and image.find_partition(at) is None
            )
            if at in partitions and not is_deleted:
                offsets[at] = position
        return _PendingCommit(self._coordinator.member, self._coordinator.group_metadata(), offsets)

    def _collect_positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        positions = self._subscriptions.collect_consumed().items()
        return {at: OffsetAndMetadata(position.offset, position.leader_epoch) for at, position in positions}

    def _start_commit(self, commit: _PendingCommit) -> "asyncio.Task[None]":
        coroutine = self._commit_in_order(commit, self._deadlines.start())
        task = asyncio.get_running_loop().create_task(coroutine)
        self._pending[task] = commit
        task.add_done_callback(self._on_commit_done)
        return task

    def _on_commit_done(self, task: "asyncio.Task[None]") -> None:
        self._pending.pop(task, None)
        if not task.cancelled() and task.exception() is not None:
            _log.warning("a commit failed: %s", task.exception())

    async def _commit_in_order(self, commit: _PendingCommit, deadline: Deadline) -> None:
        if not commit.offsets:
            return
        try:
            async with asyncio.timeout(self._deadlines.compute_remaining_s(deadline)):
                await self._lock.acquire()
        except TimeoutError:
            doing = f"OffsetCommit {commit.metadata.group_id!r}, behind an earlier one"
            raise TimedOut(deadline.limit_name, deadline.length_ms, doing) from None
        try:
            await self._commit(commit, deadline)
        finally:
            self._lock.release()

    def _is_same_generation(self, member: Membership) -> bool:
        now = self._coordinator.member
        return (now.member_id, now.generation) == (member.member_id, member.generation)

    async def _commit(self, commit: _PendingCommit, deadline: Deadline) -> None:
        """Commit under the generation in which the positions were read.

        If the member joined again meanwhile, another member may have read the same partitions and committed
        in between: committing the old positions under the new generation would move the offsets back.
        """
        member = commit.member
        if not member.may_commit:
            raise CommitRefused("this consumer is not a member of its group now")
        if not self._is_same_generation(member):
            raise CommitRefused("this consumer joined its group anew after it read up to these offsets")
        try:
            await self._group_offsets.commit(
                commit.metadata, commit.offsets, deadline, lambda: self._coordinator.commit_connection
            )
        except BrokerRefused as exc:
            if classify_error("OffsetCommit", exc.code) not in _REJOIN_REACTIONS:
                raise
            self._coordinator.handle_error("OffsetCommit", exc.code, member.generation)
            raise CommitRefused(exc.what()) from exc
        self._subscriptions.note_committed({at: to_position(each) for at, each in commit.offsets.items()})
