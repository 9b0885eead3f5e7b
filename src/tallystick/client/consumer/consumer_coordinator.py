"""Group runner: sends the requests of a group member's phase and passes the answers to its state machine.

One task, from `start` to `stop_and_leave`, joins, syncs and sends heartbeats. PREPARING and SETTLING are
left to `poll`, which calls `set_member` with the result of the user's callbacks.

The requests have a connection of their own: JoinGroup is answered when the rebalance is over, and
heartbeats must not wait behind a fetch.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

from tallystick.client.consumer.assignors.subscription import PartitionRacks
from tallystick.client.consumer.membership import (
    ErrorReaction,
    GroupRebalanceConfig,
    Membership,
    Phase,
    apply_error,
    apply_join_response,
    apply_sync_response,
    build_heartbeat_request,
    build_join_request,
    build_leave_request,
    classify_error,
    collect_group_topics,
    expire_member,
    handle_missing_response,
    perform_assignment,
    rejoin_if_topics_changed,
)
from tallystick.client.consumer.offset_requests import GROUP_CONNECTION
from tallystick.client.errors import BrokerRefused, ClientError, build_broker_error
from tallystick.client.net.cluster import Cluster
from tallystick.client.net.metadata import MetadataImage
from tallystick.client.offsets import GroupMetadata
from tallystick.kernel.errors import TallystickError
from tallystick.kernel.value import replace
from tallystick.protocol.messages.groups.membership import (
    HeartbeatResponse,
    JoinGroupResponse,
    LeaveGroupResponse,
    SyncGroupResponse,
)

_log = logging.getLogger("tallystick.consumer")

# JoinGroup is answered when the slowest member has joined, which may take the rebalance timeout.
JOIN_TIMEOUT_MARGIN_MS: Final = 5_000
POLL_TIMEOUT_REASON: Final = "consumer poll timeout has expired"


class ConsumerCoordinator:
    """Membership of one consumer. `member` changes only here and in `set_member`."""

    def __init__(
        self, settings: GroupRebalanceConfig, cluster: Cluster, heartbeat_ms: int, news: Callable[[], None]
    ) -> None:
        """Create a member that is in no group.

        Args:
            news: called whenever the phase has changed.
        """
        self.settings = settings
        self.member = Membership()
        self.error: BaseException | None = None
        self._cluster, self._heartbeat_ms, self._notify = cluster, heartbeat_ms, news
        self._phase_changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._last_poll_ms = 0
        self._assignment_snapshot: tuple[MetadataImage, frozenset[str]] | None = None

    # ------------------------------------------------------------------- for the consumer

    def start(self) -> None:
        """Start to take part in the group."""
        self.note_poll()
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())
            self._task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: "asyncio.Task[None]") -> None:
        """Report the end of the task to the user, unless it was cancelled."""
        if not task.cancelled() and (exc := task.exception()) is not None:
            _log.error("group %s: the member ended", self.settings.group_id, exc_info=exc)
            self.error = exc
            self.set_member(replace(self.member, phase=Phase.FAILED))

    def note_poll(self) -> None:
        """Record a poll, for max.poll.interval.ms."""
        self._last_poll_ms = self._cluster.now_ms()

    def set_member(self, member: Membership) -> None:
        """Replace the member by its next state."""
        before, self.member = self.member, member
        if before.phase is not member.phase:
            _log.info("group %s: %s -> %s", self.settings.group_id, before.phase.name, member.phase.name)
            self._phase_changed.set()
            self._notify()

    def group_metadata(self) -> GroupMetadata:
        """Return the group metadata for commits."""
        member, settings = self.member, self.settings
        generation = -1 if member.generation is None else member.generation
        return GroupMetadata(
            group_id=settings.group_id,
            generation_id=generation,
            member_id=member.member_id,
            group_instance_id=settings.instance_id,
        )

    async def stop_and_leave(self, member: Membership, reason: str) -> None:
        """Stop the task and make one attempt to leave the group. `member` is from `leave`."""
        request, connection_name = (
            build_leave_request(self.member, self.settings, reason),
            self._leave_connection,
        )
        self.cancel()
        self.error = None
        self.set_member(member)
        if request is None:
            return
        try:
            node = await self._cluster.find_coordinator("group", self.settings.group_id)
            await self._cluster.send(node, request, LeaveGroupResponse, connection_name=connection_name)
        except ClientError as exc:
            _log.info("group %s: left without a word: %s", self.settings.group_id, exc)

    def stop_now(self, member: Membership, reason: str) -> None:
        """Stop without waiting; LeaveGroup is sent if the coordinator is known. `member` is from `leave`.

        Source: Kafka AbstractCoordinator.close, which sends LeaveGroup whatever time there is.
        """
        request, connection_name = (
            build_leave_request(self.member, self.settings, reason),
            self._leave_connection,
        )
        node = self._cluster.get_cached_coordinator("group", self.settings.group_id)
        self.cancel()
        self.set_member(member)
        if request is not None and node is not None:
            answer = self._cluster.submit(node, request, connection_name=connection_name)
            answer.add_done_callback(lambda future: future.cancelled() or future.exception())

    @property
    def commit_connection(self) -> str:
        """Connection for OffsetCommit: another one while a JoinGroup may hold up the group's.

        Until all members have joined, the coordinator accepts offsets of the old generation. While SYNCING it
        accepts none: on the group's connection they arrive behind SyncGroup, when it accepts them again.
        """
        return "" if self.member.phase is Phase.JOINING else GROUP_CONNECTION

    @property
    def _leave_connection(self) -> str:
        """Connection for LeaveGroup: another one while a JoinGroup or SyncGroup may hold up the group's.

        A broker answers the requests of a connection in order, and a JoinGroup when every member has joined.
        """
        return "" if self.member.phase in (Phase.JOINING, Phase.SYNCING) else GROUP_CONNECTION

    def cancel(self) -> None:
        """Stop the task immediately."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def handle_error(self, api: str, code: int, generation: int | None) -> None:
        """Apply the error code of a request other than those of a rebalance."""
        self._handle_error_code(api, code, generation)

    # ------------------------------------------------------------------------- the task

    async def _run(self) -> None:
        failures = 0
        while True:
            self._phase_changed.clear()
            member = self.member
            try:
                if member.phase is Phase.JOINING:
                    must_retry = await self._send_join(member)
                elif member.phase is Phase.SYNCING:
                    must_retry = await self._send_sync(member)
                elif member.needs_heartbeats:
                    must_retry = await self._send_heartbeat()
                else:
                    await self._phase_changed.wait()
                    must_retry = False
            except TallystickError as exc:
                must_retry = self._handle_missing_response(member, exc)
            failures = failures + 1 if must_retry else 0
            if must_retry:
                await asyncio.sleep(self._cluster.config.retry_backoff_ms * min(failures, 10) / 1000)

    def _handle_missing_response(self, member: Membership, exc: TallystickError) -> bool:
        """Handle a missing or unreadable answer. Return whether to try again."""
        _log.debug("group %s: %s", self.settings.group_id, exc)
        api = {Phase.JOINING: "JoinGroup", Phase.SYNCING: "SyncGroup"}.get(member.phase, "Heartbeat")
        self._cluster.forget_coordinator("group", self.settings.group_id)
        if isinstance(exc, ClientError) and exc.remedy.repeats:
            self.set_member(handle_missing_response(self.member, api))
            return True
        self.error = exc
        self.set_member(replace(self.member, phase=Phase.FAILED))
        return False

    def _handle_error_code(self, api: str, code: int, generation: int | None, member_id: str = "") -> bool:
        """Act on an error code. Return whether the request is to be repeated after a backoff."""
        reaction = classify_error(api, code)
        _log.info(
            "group %s: %s",
            self.settings.group_id,
            build_broker_error(api, self.settings.group_id, code).what(),
        )
        if reaction is ErrorReaction.FIND_COORDINATOR:
            self._cluster.forget_coordinator("group", self.settings.group_id)
        after = apply_error(self.member, api, code, generation=generation, member_id=member_id)
        if after.failure is not None and self.error is None:
            self.error = build_broker_error(api, self.settings.group_id, code)
        self.set_member(after)
        return reaction in (ErrorReaction.RETRY, ErrorReaction.FIND_COORDINATOR)

    async def _send_join(self, member: Membership) -> bool:
        limit = max(
            self._cluster.config.request_timeout_ms,
            self.settings.rebalance_timeout_ms + JOIN_TIMEOUT_MARGIN_MS,
        )
        node = await self._cluster.find_coordinator("group", self.settings.group_id)
        answer = await self._cluster.send(
            node,
            build_join_request(member, self.settings),
            JoinGroupResponse,
            timeout_ms=limit,
            connection_name=GROUP_CONNECTION,
        )
        if answer.error_code:
            return self._handle_error_code(
                "JoinGroup", answer.error_code, member.generation, answer.member_id
            )
        self.set_member(apply_join_response(self.member, answer))
        return False

    async def _send_sync(self, member: Membership) -> bool:
        topics: PartitionRacks = {}
        if member.is_leader:
            names = collect_group_topics(member)
            image = await self._fetch_metadata(names)
            topics = collect_racks(image, names)
            self._assignment_snapshot = (image, names)
        _, request = perform_assignment(member, self.settings, topics)
        self.set_member(replace(self.member, assignment_snapshot=topics if member.is_leader else None))
        node = await self._cluster.find_coordinator("group", self.settings.group_id)
        answer = await self._cluster.send(node, request, SyncGroupResponse, connection_name=GROUP_CONNECTION)
        if answer.error_code:
            return self._handle_error_code("SyncGroup", answer.error_code, member.generation)
        self.set_member(apply_sync_response(self.member, answer))
        return False

    async def _fetch_metadata(self, names: frozenset[str]) -> MetadataImage:
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

    async def _send_heartbeat(self) -> bool:
        """Send a heartbeat when its time has come. A change of the phase ends the wait."""
        try:
            async with asyncio.timeout(self._heartbeat_ms / 1000):
                await self._phase_changed.wait()
            return False
        except TimeoutError:
            pass
        if self._cluster.now_ms() - self._last_poll_ms > self.settings.rebalance_timeout_ms:
            return await self._leave_on_poll_timeout()
        self._check_topics()
        member = self.member
        node = await self._cluster.find_coordinator("group", self.settings.group_id)
        answer = await self._cluster.send(
            node,
            build_heartbeat_request(member, self.settings),
            HeartbeatResponse,
            connection_name=GROUP_CONNECTION,
        )
        if answer.error_code:
            return self._handle_error_code("Heartbeat", answer.error_code, member.generation)
        return False

    async def _leave_on_poll_timeout(self) -> bool:
        """Leave the group: the user has not polled for max.poll.interval.ms."""
        _log.warning(
            "group %s: no poll for more than max.poll.interval.ms = %d ms; leaving the group",
            self.settings.group_id,
            self.settings.rebalance_timeout_ms,
        )
        request = build_leave_request(self.member, self.settings, POLL_TIMEOUT_REASON)
        self.set_member(expire_member(self.member))
        if request is not None:
            node = await self._cluster.find_coordinator("group", self.settings.group_id)
            await self._cluster.send(node, request, LeaveGroupResponse, connection_name=GROUP_CONNECTION)
        return False

    def _check_topics(self) -> None:
        """Let the leader check the group's topics for new partitions."""
        image = self._cluster.image
        if self._assignment_snapshot is not None and self._assignment_snapshot[0] is not image:
            names = self._assignment_snapshot[1]
            self._assignment_snapshot = (image, names)
            self.set_member(rejoin_if_topics_changed(self.member, collect_racks(image, names)))


def collect_racks(image: MetadataImage, names: Iterable[str]) -> PartitionRacks:
    """Return the partitions of those topics that exist, each with the racks of its replicas."""
    return {
        name: tuple(
            frozenset(node.rack for r in partition.replicas if (node := image.nodes.get(r)) and node.rack)
            for _, partition in sorted(image.topics[name].partitions.items())
        )
        for name in names
        if name in image.topics
    }
