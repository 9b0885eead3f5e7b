"""User's half of a group membership: what the user's calls of a consumer do for its group.

`membership` has the phases of a member, and `consumer_coordinator` sends their requests in the background.
Here are callbacks, revocations and assignments, which happen in `poll`, `unsubscribe` and `close` only
[CLI-32], and the topics that match a pattern.

Source: Kafka ConsumerCoordinator.poll, ConsumerRebalanceListenerInvoker.
"""

import re
from collections.abc import Iterable
from typing import Final

from tallystick.client.consumer.commit_requests import CommitRequestManager
from tallystick.client.consumer.consumer_coordinator import ConsumerCoordinator
from tallystick.client.consumer.fetch_state import SubscriptionState
from tallystick.client.consumer.membership import (
    AssignmentChange,
    Membership,
    Phase,
    begin_join,
    drop_partitions,
    leave,
    plan_assignment_change,
    plan_revocation,
    subscribe,
    take_over_assignment,
)
from tallystick.client.errors import IllegalState
from tallystick.client.net.cluster import Cluster
from tallystick.client.net.metadata import MetadataImage
from tallystick.client.offsets import GroupMetadata
from tallystick.kernel.ids import TopicPartition

INTERNAL_TOPICS: Final = frozenset({"__consumer_offsets", "__transaction_state"})
_CLOSE_REASON: Final = "the consumer is being closed"


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


class _TopicPattern:
    """Pattern subscription: the topics of the newest metadata that match."""

    def __init__(self, pattern: re.Pattern[str], cluster: Cluster, hidden_topics: frozenset[str]) -> None:
        self._pattern, self._cluster, self._hidden_topics = pattern, cluster, hidden_topics
        self._matched_image: MetadataImage | None = None

    async def find_new_match(self) -> frozenset[str] | None:
        """Return the topics that match; None if metadata is the same as in the last call."""
        if self._matched_image is None:
            await self._cluster.refresh(None)
        image = self._cluster.image
        if image is self._matched_image:
            return None
        self._matched_image = image
        return frozenset(
            t for t in image.topics if t not in self._hidden_topics and self._pattern.fullmatch(t)
        )


class MembershipManager:
    """Membership of one consumer in its group, as its user's calls advance it.

    Life cycle: create, `subscribe`, `poll` ..., `close`, `cancel`. One task at a time.
    """

    def __init__(
        self,
        cluster: Cluster,
        subscriptions: SubscriptionState,
        coordinator: ConsumerCoordinator,
        commits: CommitRequestManager,
        *,
        exclude_internal_topics: bool,
    ) -> None:
        self.commits = commits
        self._cluster, self._subscriptions, self._coordinator = cluster, subscriptions, coordinator
        self._hidden_topics = INTERNAL_TOPICS if exclude_internal_topics else frozenset[str]()
        self._listener: RebalanceListener | None = None
        self._pattern: _TopicPattern | None = None

    @property
    def is_subscribed(self) -> bool:
        return self._coordinator.member.phase is not Phase.OUT

    @property
    def topics(self) -> frozenset[str]:
        """Topics that are subscribed to."""
        return self._coordinator.member.topics

    def group_metadata(self) -> GroupMetadata:
        """Return the metadata a producer needs to commit offsets in its transaction (KIP-447)."""
        return self._coordinator.group_metadata()

    def subscribe(
        self, topics: Iterable[str] | re.Pattern[str], listener: RebalanceListener | None = None
    ) -> None:
        """Share these topics with the group, or those that match the pattern."""
        self._listener = listener
        if isinstance(topics, re.Pattern):
            self._pattern = _TopicPattern(topics, self._cluster, self._hidden_topics)
            names = frozenset[str]()
        else:
            self._pattern = None
            self._cluster.forget_topics(None)
            names = frozenset(topics)
        self._coordinator.set_member(subscribe(self._coordinator.member, names))
        self._coordinator.start()

    async def poll(self) -> None:
        """Run the phases that need the user's call, until none is left; then commit if it is time."""
        self._coordinator.note_poll()
        await self._match_pattern()
        while await self._run_phase():
            pass
        self.commits.auto_commit_if_due()

    async def leave(self, reason: str, *, at_once: bool = False) -> None:
        """Leave the group, if subscribed. Callbacks run; positions are not committed.

        Args:
            at_once: send LeaveGroup without waiting for the answer.
        """
        if not self.is_subscribed:
            return
        member, change = leave(self._coordinator.member)
        try:
            await self._call_listener(change)
        finally:
            if at_once:
                self._coordinator.stop_now(member, reason)
            else:
                await self._coordinator.stop_and_leave(member, reason)

    async def close(self, timeout_ms: int) -> None:
        """Finish all commits, and leave the group; with 0, without waiting for answers."""
        await self.commits.finish_before_close(timeout_ms)
        await self.leave(_CLOSE_REASON, at_once=not timeout_ms)

    def cancel(self) -> None:
        """Stop immediately, with the commits."""
        self._coordinator.cancel()
        self.commits.cancel()

    # ------------------------------------------------------------------------- rebalancing

    async def _run_phase(self) -> bool:
        """Run the current phase. Return False if it does not need the user's call."""
        member = self._coordinator.member
        match member.phase:
            case Phase.PREPARING:
                change = plan_revocation(member, self._coordinator.settings)
                if change.has_removals:
                    await self._revoke_partitions(change)
                else:
                    self._apply_assignment(begin_join(member))
            case Phase.SETTLING:
                change = plan_assignment_change(member)
                if change.has_removals:
                    await self._revoke_partitions(AssignmentChange(revoked=change.revoked))
                else:
                    self._apply_assignment(take_over_assignment(member))
                    await self._call_listener(change)
            case Phase.FAILED:
                raise self._coordinator.error or IllegalState("the group member has failed")
            case _:
                return False
        return True

    async def _revoke_partitions(self, change: AssignmentChange) -> None:
        """Commit if auto-commit is on, run the callbacks, stop reading. The group may move on meanwhile."""
        if change.revoked:
            await self.commits.auto_commit_before_revocation(change.revoked)
        failure: Exception | None = None
        try:
            await self._call_listener(change)
        except Exception as exc:
            failure = exc  # the group does not wait for a callback that fails
        self._apply_assignment(drop_partitions(self._coordinator.member, change))
        if failure is not None:
            raise failure

    def _apply_assignment(self, member: Membership) -> None:
        """Read the partitions that the member owns now."""
        self._subscriptions.assign(member.owned_partitions, committed=True)
        self._coordinator.set_member(member)
        self.commits.restart_auto_commit_interval()

    async def _call_listener(self, change: AssignmentChange) -> None:
        if self._listener is None:
            return
        if change.revoked:
            await self._listener.on_partitions_revoked(change.revoked)
        if change.lost:
            await self._listener.on_partitions_lost(change.lost)
        if change.added is not None:
            await self._listener.on_partitions_assigned(change.added)

    async def _match_pattern(self) -> None:
        """Subscribe to the topics that match the pattern now."""
        topics = None if self._pattern is None else await self._pattern.find_new_match()
        if topics is not None and topics != self.topics:
            self._coordinator.set_member(subscribe(self._coordinator.member, topics))
