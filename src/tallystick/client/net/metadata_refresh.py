"""Metadata refresh: one request at a time, shared by all callers that need fresh metadata.

A refresh in flight may return a state older than the change a caller has just noticed. Such a caller
therefore shares the next one, and a thousand partitions that lost their leader cost two requests.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from contextvars import Context

from tallystick.client.errors import ClientError, Closed, build_broker_error
from tallystick.client.net.metadata import EMPTY_IMAGE, MetadataImage, merge_response, without_topics
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.value import replace
from tallystick.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

_log = logging.getLogger("tallystick.client")


class MetadataRefresher:
    """Metadata image of a cluster, and the rounds that refresh it. On one loop; starts when first asked."""

    def __init__(
        self,
        ask: Callable[[MetadataRequest], Awaitable[MetadataResponse]],
        max_age_ms: int,
        auto_create: bool,
        idle_ms: int | None,
    ) -> None:
        """Create a refresher with an empty image.

        Args:
            ask: asks one broker or another; raises ClientError.
            max_age_ms: a round begins at the latest this long after the last one.
            auto_create: whether asking may create a topic.
            idle_ms: a topic not followed for this long is left out.
        """
        self.image: MetadataImage = EMPTY_IMAGE
        self.tracks_all_topics = False
        self._send_request = ask
        self._max_age_ms = max_age_ms
        self._auto_create = auto_create
        self._idle_ms = idle_ms
        self._tracked_topics: dict[str, float] = {}  # topic, and when it was last wanted
        self._pending_refresh: asyncio.Future[ClientError | None] | None = None
        self._running_refresh: asyncio.Future[ClientError | None] | None = None
        self._refresh_task: asyncio.Task[None] | None = None
        self._max_age_timer: asyncio.TimerHandle | None = None
        self._closed = False

    def track(self, topics: Iterable[str]) -> None:
        """Ask for these topics from now on."""
        now = asyncio.get_running_loop().time()
        for topic in topics:
            self._tracked_topics[topic] = now

    def forget(self, topics: Iterable[str]) -> None:
        """Stop asking for these topics."""
        gone = list(topics)
        for topic in gone:
            self._tracked_topics.pop(topic, None)
        self.image = without_topics(self.image, gone)

    def request_update(self) -> "asyncio.Future[ClientError | None]":
        """Return a future for the next refresh not in flight yet; it yields the error, or None."""
        loop = asyncio.get_running_loop()
        if self._pending_refresh is None:
            self._pending_refresh = loop.create_future()
            if self._closed:
                self._pending_refresh.set_result(Closed("the client was closed"))
        if not self._closed and (self._refresh_task is None or self._refresh_task.done()):
            # In a fresh context: the first caller's limits do not apply to the others.
            self._refresh_task = loop.create_task(self._run_refreshes(), context=Context())
        return self._pending_refresh

    def close(self) -> list["asyncio.Task[None]"]:
        """Cancel the rounds; return the tasks to wait for."""
        self._closed = True
        if self._max_age_timer is not None:
            self._max_age_timer.cancel()
        for round_ in (self._running_refresh, self._pending_refresh):
            if round_ is not None and not round_.done():
                round_.set_result(Closed("the client was closed"))
        if self._refresh_task is None:
            return []
        self._refresh_task.cancel()
        return [self._refresh_task]

    async def _run_refreshes(self) -> None:
        while self._pending_refresh is not None and not self._closed:
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
            if not self._closed:
                self._max_age_timer = loop.call_later(self._max_age_ms / 1000, self.request_update)
        return None

    async def _fetch_metadata(self, now: float) -> None:
        if self._idle_ms is not None:
            idle = [t for t, at in self._tracked_topics.items() if at * 1000 + self._idle_ms < now * 1000]
            self.forget(idle)
        everything = self.tracks_all_topics
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
