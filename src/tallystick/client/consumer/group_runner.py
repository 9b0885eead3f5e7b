"""Group runner: sends the requests of a group member's phase and passes the answers to its state machine.

One task, from `start` to `stop`, joins, syncs and sends heartbeats. PREPARING and SETTLING are left to
`poll`, which calls `adopt` with the result of the user's callbacks.

The requests have a connection of their own: JoinGroup is answered when the rebalance is over, and
heartbeats must not wait behind a fetch.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

from tallystick.client.assignors.racks import Topics
from tallystick.client.consumer.membership import (
    GroupSettings,
    Member,
    Phase,
    Reaction,
    expire,
    heartbeat_request,
    join_request,
    joined,
    lead,
    leave_request,
    reaction_to,
    seen,
    synced,
    topics_of,
    unanswered,
)
from tallystick.client.consumer.membership import (
    refused as refuse,
)
from tallystick.client.consumer.offset_requests import GROUP_LANE
from tallystick.client.errors import BrokerRefused, ClientError, refused
from tallystick.client.net.cluster import Cluster
from tallystick.client.net.metadata import MetadataImage
from tallystick.client.offsets import GroupMetadata
from tallystick.kernel.errors import TallystickError
from tallystick.kernel.value import replace
from tallystick.protocol.messages.heartbeat import HeartbeatResponse
from tallystick.protocol.messages.join_group import JoinGroupResponse
from tallystick.protocol.messages.leave_group import LeaveGroupResponse
from tallystick.protocol.messages.sync_group import SyncGroupResponse

_log = logging.getLogger("tallystick.consumer")

# JoinGroup is answered when the slowest member has joined, which may take the rebalance timeout.
JOIN_MARGIN_MS: Final = 5_000
EXPIRED: Final = "consumer poll timeout has expired"


class GroupRunner:
    """Membership of one consumer. `member` changes only here and in `adopt`."""

    def __init__(
        self, settings: GroupSettings, cluster: Cluster, heartbeat_ms: int, news: Callable[[], None]
    ) -> None:
        """Create a member that is in no group.

        Args:
            news: called whenever the phase has changed.
        """
        self.settings = settings
        self.member = Member()
        self.error: BaseException | None = None
        self._cluster, self._heartbeat_ms, self._news = cluster, heartbeat_ms, news
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._polled_ms = 0
        self._watched: tuple[MetadataImage, frozenset[str]] | None = None

    # ------------------------------------------------------------------- for the consumer

    def start(self) -> None:
        """Start to take part in the group."""
        self.polled()
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())
            self._task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        """Report the end of the task to the user, unless it was cancelled."""
        if not task.cancelled() and (exc := task.exception()) is not None:
            _log.error("group %s: the member ended", self.settings.group_id, exc_info=exc)
            self.error = exc
            self.adopt(replace(self.member, phase=Phase.FAILED))

    def polled(self) -> None:
        """Note a poll, for max.poll.interval.ms."""
        self._polled_ms = self._cluster.now_ms()

    def adopt(self, member: Member) -> None:
        """Replace the member by its next state."""
        before, self.member = self.member, member
        if before.phase is not member.phase:
            _log.info("group %s: %s -> %s", self.settings.group_id, before.phase.name, member.phase.name)
            self._changed.set()
            self._news()

    def metadata(self) -> GroupMetadata:
        """Return the group metadata for commits."""
        member, settings = self.member, self.settings
        generation = -1 if member.generation is None else member.generation
        return GroupMetadata(
            group_id=settings.group_id,
            generation_id=generation,
            member_id=member.member_id,
            group_instance_id=settings.instance_id,
        )

    async def stop(self, member: Member, reason: str) -> None:
        """Stop the task and make one attempt to leave the group. `member` is from `leave`."""
        request, lane = leave_request(self.member, self.settings, reason), self._free_lane
        self.cancel()
        self.error = None
        self.adopt(member)
        if request is None:
            return
        try:
            node = await self._cluster.coordinator("group", self.settings.group_id)
            await self._cluster.send(node, request, LeaveGroupResponse, lane=lane)
        except ClientError as exc:
            _log.info("group %s: left without a word: %s", self.settings.group_id, exc)

    def stop_now(self, member: Member, reason: str) -> None:
        """Stop without waiting; LeaveGroup is sent if the coordinator is known. `member` is from `leave`.

        Source: Kafka AbstractCoordinator.close, which sends LeaveGroup whatever time there is.
        """
        request, lane = leave_request(self.member, self.settings, reason), self._free_lane
        node = self._cluster.known_coordinator("group", self.settings.group_id)
        self.cancel()
        self.adopt(member)
        if request is not None and node is not None:
            answer = self._cluster.submit(node, request, lane=lane)
            answer.add_done_callback(lambda done: done.cancelled() or done.exception())

    @property
    def _free_lane(self) -> str:
        """Connection for LeaveGroup: another one while a JoinGroup or SyncGroup may hold up the group's.

        A broker answers the requests of a connection in order, and a JoinGroup when every member has joined.
        """
        return "" if self.member.phase in (Phase.JOINING, Phase.SYNCING) else GROUP_LANE

    def cancel(self) -> None:
        """Stop the task immediately."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def refuse(self, api: str, code: int, generation: int | None) -> None:
        """Apply the error code of a request other than those of a rebalance."""
        self._refuse(api, code, generation)

    # ------------------------------------------------------------------------- the task

    async def _run(self) -> None:
        failures = 0
        while True:
            self._changed.clear()
            member = self.member
            try:
                if member.phase is Phase.JOINING:
                    again = await self._join(member)
                elif member.phase is Phase.SYNCING:
                    again = await self._sync(member)
                elif member.beats:
                    again = await self._beat()
                else:
                    await self._changed.wait()
                    again = False
            except TallystickError as exc:
                again = self._unanswered(member, exc)
            failures = failures + 1 if again else 0
            if again:
                await asyncio.sleep(self._cluster.config.retry_backoff_ms * min(failures, 10) / 1000)

    def _unanswered(self, member: Member, exc: TallystickError) -> bool:
        """Handle a missing or unreadable answer. Return whether to try again."""
        _log.debug("group %s: %s", self.settings.group_id, exc)
        api = {Phase.JOINING: "JoinGroup", Phase.SYNCING: "SyncGroup"}.get(member.phase, "Heartbeat")
        self._cluster.forget_coordinator("group", self.settings.group_id)
        if isinstance(exc, ClientError) and exc.remedy.repeats:
            self.adopt(unanswered(self.member, api))
            return True
        self.error = exc
        self.adopt(replace(self.member, phase=Phase.FAILED))
        return False

    def _refuse(self, api: str, code: int, generation: int | None, member_id: str = "") -> bool:
        """Act on an error code. Return whether the request is to be repeated after a backoff."""
        reaction = reaction_to(api, code)
        _log.info("group %s: %s", self.settings.group_id, refused(api, self.settings.group_id, code).what())
        if reaction is Reaction.FIND_COORDINATOR:
            self._cluster.forget_coordinator("group", self.settings.group_id)
        after = refuse(self.member, api, code, generation=generation, member_id=member_id)
        if after.failure is not None and self.error is None:
            self.error = refused(api, self.settings.group_id, code)
        self.adopt(after)
        return reaction in (Reaction.AGAIN, Reaction.FIND_COORDINATOR)

    async def _join(self, member: Member) -> bool:
        limit = max(
            self._cluster.config.request_timeout_ms, self.settings.rebalance_timeout_ms + JOIN_MARGIN_MS
        )
        node = await self._cluster.coordinator("group", self.settings.group_id)
        answer = await self._cluster.send(
            node, join_request(member, self.settings), JoinGroupResponse, timeout_ms=limit, lane=GROUP_LANE
        )
        if answer.error_code:
            return self._refuse("JoinGroup", answer.error_code, member.generation, answer.member_id)
        self.adopt(joined(self.member, answer))
        return False

    async def _sync(self, member: Member) -> bool:
        topics: Topics = {}
        if member.leads:
            names = topics_of(member)
            image = await self._look_for(names)
            topics = racks_of(image, names)
            self._watched = (image, names)
        _, request = lead(member, self.settings, topics)
        self.adopt(replace(self.member, watched=topics if member.leads else None))
        node = await self._cluster.coordinator("group", self.settings.group_id)
        answer = await self._cluster.send(node, request, SyncGroupResponse, lane=GROUP_LANE)
        if answer.error_code:
            return self._refuse("SyncGroup", answer.error_code, member.generation)
        self.adopt(synced(self.member, answer))
        return False

    async def _look_for(self, names: frozenset[str]) -> MetadataImage:
        """Return metadata of the group's topics, without those whose names are invalid.

        An invalid name is left to the member that subscribes to it.
        """
        while True:
            try:
                return await self._cluster.refresh(names)
            except BrokerRefused as exc:
                if exc.remedy.repeats or exc.subject not in names:
                    raise
                names -= {exc.subject}

    async def _beat(self) -> bool:
        """Send a heartbeat when its time has come. A change of the phase ends the wait."""
        try:
            async with asyncio.timeout(self._heartbeat_ms / 1000):
                await self._changed.wait()
            return False
        except TimeoutError:
            pass
        if self._cluster.now_ms() - self._polled_ms > self.settings.rebalance_timeout_ms:
            return await self._expire()
        self._look_at_topics()
        member = self.member
        node = await self._cluster.coordinator("group", self.settings.group_id)
        answer = await self._cluster.send(
            node, heartbeat_request(member, self.settings), HeartbeatResponse, lane=GROUP_LANE
        )
        if answer.error_code:
            return self._refuse("Heartbeat", answer.error_code, member.generation)
        return False

    async def _expire(self) -> bool:
        """Leave the group: the user has not polled for max.poll.interval.ms."""
        _log.warning(
            "group %s: no poll for more than max.poll.interval.ms = %d ms; leaving the group",
            self.settings.group_id,
            self.settings.rebalance_timeout_ms,
        )
        request = leave_request(self.member, self.settings, EXPIRED)
        self.adopt(expire(self.member))
        if request is not None:
            node = await self._cluster.coordinator("group", self.settings.group_id)
            await self._cluster.send(node, request, LeaveGroupResponse, lane=GROUP_LANE)
        return False

    def _look_at_topics(self) -> None:
        """Let the leader check the group's topics for new partitions."""
        image = self._cluster.image
        if self._watched is not None and self._watched[0] is not image:
            names = self._watched[1]
            self._watched = (image, names)
            self.adopt(seen(self.member, racks_of(image, names)))


def racks_of(image: MetadataImage, names: Iterable[str]) -> Topics:
    """Return the partitions of those topics that exist, each with the racks of its replicas."""
    return {
        name: tuple(
            frozenset(node.rack for r in partition.replicas if (node := image.nodes.get(r)) and node.rack)
            for _, partition in sorted(image.topics[name].partitions.items())
        )
        for name in names
        if name in image.topics
    }
