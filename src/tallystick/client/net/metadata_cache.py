"""Cached metadata, and the requests that keep it fresh: one at a time, shared by all callers.

A refresh in flight may return a state older than the change a caller has just noticed. Such a caller
therefore shares the next one, and a thousand partitions that lost their leader cost two requests.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextvars import Context

from tallystick.client.errors import ClientError, Closed, build_broker_error
from tallystick.client.net.metadata import (
    EMPTY_IMAGE,
    MetadataImage,
    Node,
    TopicInfo,
    is_topic_name,
    merge_response,
    with_leaders,
    without_topics,
)
from tallystick.client.net.retry_scope import wait_for_shared
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.ids import TopicPartition
from tallystick.kernel.value import replace
from tallystick.protocol.messages.topics.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)

_log = logging.getLogger("tallystick.client")


class MetadataCache:
    """Metadata of one cluster: its image, and the topics that are asked for. On one loop.

    The first request is sent when a caller needs an answer.
    """

    def __init__(
        self,
        send_request: Callable[[MetadataRequest], Awaitable[MetadataResponse]],
        max_age_ms: int,
        *,
        auto_create_topics: bool,
        topics_idle_ms: int | None,
    ) -> None:
        """Create a cache with an empty image.

        Args:
            send_request: asks one broker or another; raises ClientError.
            max_age_ms: a refresh begins at the latest this long after the last one.
            auto_create_topics: whether asking may create a topic.
            topics_idle_ms: a topic that no call named for this long is no longer asked for.
        """
        self.image: MetadataImage = EMPTY_IMAGE
        self._tracks_all_topics = False
        self._send_request = send_request
        self._max_age_ms = max_age_ms
        self._auto_create = auto_create_topics
        self._idle_ms = topics_idle_ms
        self._tracked_topics: dict[str, float] = {}  # topic, and when it was last wanted
        self._pending_refresh: asyncio.Future[ClientError | None] | None = None
        self._running_refresh: asyncio.Future[ClientError | None] | None = None
        self._refresh_task: asyncio.Task[None] | None = None
        self._max_age_timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    # ----------------------------------------------------------------------- looking up

    async def get_topic(self, name: str) -> TopicInfo:
        """Return a topic, from the image or after one refresh. Raises: UnknownTopic, BrokerRefused."""
        self._track((name,))
        topic = self.image.topics.get(name)
        if topic is None:
            image = await self.refresh((name,))
            topic = image.topics.get(name)
            if topic is None:
                code = image.error_codes.get(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                raise build_broker_error("Metadata", name, code)
        return topic

    async def find_leader(self, at: TopicPartition) -> int:
        """Return the leader of a partition, from the image or after one refresh.

        Raises: UnknownTopic, BrokerRefused (LEADER_NOT_AVAILABLE and similar).
        """
        self._track((at.topic,))
        leader = self.image.find_leader(at)
        if leader is None:
            image = await self.refresh((at.topic,))
            leader = image.find_leader(at)
            if leader is None:
                raise build_broker_error("Metadata", at, image.find_leader_error(at))
        return leader

    def update_leaders(
        self, leaders: Mapping[TopicPartition, tuple[int, int]], nodes: Iterable[Node] = ()
    ) -> None:
        """Apply new leaders and their epochs from a response (KIP-951), without a metadata request."""
        self.image = with_leaders(self.image, leaders, nodes)

    # ----------------------------------------------------------------------- refreshing

    async def refresh(self, topics: Iterable[str] | None = ()) -> MetadataImage:
        """Ask for brokers and topics now; later refreshes ask for these topics, too.

        Calls during a refresh share the next one, so that its answer is newer than the call.

        Args:
            topics: names; None for all topics, now and from then on.
        Raises: Unreachable with the error of every broker that was tried, TimedOut, Closed.
        """
        if topics is None:
            self._tracks_all_topics = True
        else:
            self._track(topics)
        failure = await wait_for_shared(self.request_update(), "Metadata")
        if failure is not None:
            raise type(failure)(*failure.args) from failure
        return self.image

    def forget_topics(self, topics: Iterable[str] | None) -> None:
        """Stop asking for these topics; None: stop asking for all topics."""
        if topics is None:
            self._tracks_all_topics = False
            return
        names = list(topics)
        for topic in names:
            self._tracked_topics.pop(topic, None)
        self.image = without_topics(self.image, names)

    def _track(self, topics: Iterable[str]) -> None:
        """Ask for these topics from now on."""
        names = tuple(topics)
        for name in names:
            if name not in self.image.topics and not is_topic_name(name):
                raise build_broker_error("Metadata", name[:300], ErrorCode.INVALID_TOPIC_EXCEPTION)
        now = asyncio.get_running_loop().time()
        for name in names:
            self._tracked_topics[name] = now

    def request_update(self) -> "asyncio.Future[ClientError | None]":
        """Return a future for the next refresh not in flight yet; it yields the error, or None."""
        loop = asyncio.get_running_loop()
        if self._pending_refresh is None:
            self._pending_refresh = loop.create_future()
            if self._is_closed:
                self._pending_refresh.set_result(Closed("the client was closed"))
        refresh = self._pending_refresh  # an eager task begins at once, and takes it
        if not self._is_closed and (self._refresh_task is None or self._refresh_task.done()):
            # In a fresh context: the first caller's limits do not apply to the others.
            self._refresh_task = loop.create_task(self._run_refreshes(), context=Context())
        return refresh

    def close(self) -> list["asyncio.Task[None]"]:
        """Cancel the refreshes; return the tasks to wait for."""
        self._is_closed = True
        if self._max_age_timer is not None:
            self._max_age_timer.cancel()
        for refresh in (self._running_refresh, self._pending_refresh):
            if refresh is not None and not refresh.done():
                refresh.set_result(Closed("the client was closed"))
        if self._refresh_task is None:
            return []
        self._refresh_task.cancel()
        return [self._refresh_task]

    def forget_brokers(self) -> None:
        """Begin again from bootstrap.servers, soon. Topics stay until it is known whose they are."""
        self.image = replace(self.image, nodes={})
        self.request_update()

    async def _run_refreshes(self) -> None:
        while self._pending_refresh is not None and not self._is_closed:
            self._running_refresh, self._pending_refresh = self._pending_refresh, None
            failure: ClientError | None = Closed("the refresh broke off")
            try:
                failure = await self._refresh_once()
            finally:
                if not self._running_refresh.done():
                    self._running_refresh.set_result(failure)
                self._running_refresh = None

    async def _refresh_once(self) -> ClientError | None:
        loop = asyncio.get_running_loop()
        if self._max_age_timer is not None:
            self._max_age_timer.cancel()
        try:
            await self._fetch_metadata(loop.time())
        except ClientError as exc:
            _log.debug("no new metadata: %s", exc)
            return exc
        finally:
            if not self._is_closed:
                self._max_age_timer = loop.call_later(self._max_age_ms / 1000, self.request_update)
        return None

    async def _fetch_metadata(self, now: float) -> None:
        if self._idle_ms is not None:
            idle = [t for t, at in self._tracked_topics.items() if at * 1000 + self._idle_ms < now * 1000]
            self.forget_topics(idle)
        everything = self._tracks_all_topics
        topics = (
            None if everything else tuple(MetadataRequestTopic(name=name) for name in self._tracked_topics)
        )
        answer = await self._send_request(
            MetadataRequest(topics=topics, allow_auto_topic_creation=self._auto_create and not everything)
        )
        if answer.error_code:
            # KIP-1102: the broker asks the client to begin again from bootstrap.servers.
            if answer.error_code == ErrorCode.REBOOTSTRAP_REQUIRED:
                self.image = replace(self.image, nodes={})
            raise build_broker_error("Metadata", "", answer.error_code)
        self.image = merge_response(self.image, answer, all_topics=everything)
