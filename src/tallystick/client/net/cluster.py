"""A cluster as one client sees it: sends requests, finds leaders and coordinators, and retries.

    cluster = Cluster(config)
    deadline = cluster.deadline("max.block.ms", 60_000)

    async def attempt() -> EndTxnResponse:
        node = await cluster.coordinator("transaction", "pay-7")
        answer = await cluster.send(node, EndTxnRequest(...), EndTxnResponse, max_version=5)
        if answer.error_code:
            raise refused("EndTxn", "pay-7", answer.error_code)
        return answer

    answer = await cluster.retrying("EndTxn", "pay-7", attempt, deadline)

A Cluster lives on one loop and starts no task before its first call. Every wait in it is bounded: by
`request.timeout.ms`, by the connection limits, and inside `retrying` by its deadline, too [CLI-2].
`send`, `node_for`, `coordinator` and `refresh` make one attempt; only `retrying` repeats.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextvars import Context, ContextVar
from typing import Final, TypeVar

from tallystick.client.config import Address, ClientConfig
from tallystick.client.errors import (
    BrokerRefused,
    ClientError,
    Closed,
    NotSupported,
    TimedOut,
    Unreachable,
    refused,
)
from tallystick.client.jitter import noise, shuffle
from tallystick.client.net.connection import NO_FEATURES, BrokerVersions, Features
from tallystick.client.net.coordinators import CoordinatorKind, Coordinators
from tallystick.client.net.links import Link
from tallystick.client.net.metadata import MetadataImage, Node, TopicInfo, is_topic_name, with_leaders
from tallystick.client.net.metadata_refresh import Refresher
from tallystick.client.net.network import CLOSE_S, Ask, ByVersion, Connection, Measures, Terms
from tallystick.client.retry import Deadline, backoff_ms
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Effect, Remedy
from tallystick.kernel.ids import TopicPartition
from tallystick.kernel.limits import FRAME_BYTES_MAX_DEFAULT
from tallystick.protocol.apis import API, ApiSpec
from tallystick.protocol.messages.find_coordinator import FindCoordinatorResponse
from tallystick.protocol.messages.metadata import MetadataRequest, MetadataResponse

R = TypeVar("R")
T = TypeVar("T")

_log = logging.getLogger("tallystick.client")

_SPECS: Final[Mapping[type, ApiSpec]] = {spec.request: spec for spec in API.values()}


class _Scope:
    """Time limit of one `retrying`. Tasks begun inside inherit it, and are free of it when that ends."""

    __slots__ = ("deadline", "ended", "outer")

    def __init__(self, deadline: Deadline, outer: "_Scope | None") -> None:
        self.outer = outer
        earlier = outer is not None and outer.deadline.at_ms < deadline.at_ms
        self.deadline: Deadline = outer.deadline if outer is not None and earlier else deadline
        self.ended = False


_SCOPE: ContextVar[_Scope | None] = ContextVar("tallystick.scope", default=None)


def _scope() -> _Scope | None:
    """Return the innermost scope that has not ended."""
    scope = _SCOPE.get()
    while scope is not None and scope.ended:
        scope = scope.outer
    return scope


class Cluster:
    """Brokers, metadata and coordinators. One per client, on one loop."""

    def __init__(
        self,
        config: ClientConfig,
        *,
        in_flight_max: int = 5,
        answer_bytes_max: int = FRAME_BYTES_MAX_DEFAULT,
        auto_create_topics: bool = False,
        topics_idle_ms: int | None = None,
    ) -> None:
        """Create a cluster without connections.

        Args:
            in_flight_max: requests in flight on one connection.
            answer_bytes_max: largest response accepted; must be above fetch.max.bytes.
            auto_create_topics: whether asking about a missing topic may create it, if the broker allows.
            topics_idle_ms: a topic that `node_for` and `topic` were not asked about for this long is no
                longer refreshed.
        """
        self.config = config
        self.measures = Measures()
        self.features: Features = NO_FEATURES
        self._terms = Terms(config=config, in_flight_max=in_flight_max, answer_bytes_max=answer_bytes_max)
        self._links: dict[tuple[Address, str], Link] = {}
        self._bootstrap = config.bootstrap
        self._refresher = Refresher(
            self._ask_metadata, config.metadata_max_age_ms, auto_create_topics, topics_idle_ms
        )
        self._coordinators = Coordinators(self._ask_coordinator, lambda node: self.learn_leaders({}, [node]))
        self._closed = False

    async def start(self) -> None:
        """Find the cluster, in one attempt. Optional, since every call does it. Raises: Unreachable."""
        await self.refresh()

    async def close(self, timeout_s: float = CLOSE_S) -> None:
        """Close every connection and end every wait, within `timeout_s`; harmless if repeated."""
        self._closed = True
        self._coordinators.close()
        ended = [end for link in self._links.values() if (end := link.close()) is not None]
        ended += self._refresher.close()
        if ended:
            await asyncio.wait(ended, timeout=timeout_s)

    # -------------------------------------------------------------------------- limits

    def now_ms(self) -> int:
        """Return the loop's monotonic clock; its origin is arbitrary."""
        return int(asyncio.get_running_loop().time() * 1000)

    def deadline(self, limit: str, length_ms: int) -> Deadline:
        """Return a deadline `length_ms` from now, with the name of the setting behind it."""
        return Deadline(self.now_ms() + length_ms, limit, length_ms)

    def _limit(self, timeout_ms: int | None = None) -> Deadline:
        own = (
            self.deadline("request.timeout.ms", self.config.request_timeout_ms)
            if timeout_ms is None
            else self.deadline("timeout_ms", timeout_ms)
        )
        outer = _scope()
        return outer.deadline if outer is not None and outer.deadline.at_ms < own.at_ms else own

    async def _within(self, waited: "asyncio.Future[T]", doing: str) -> T:
        """Wait for a shared future: a limit ends this wait and not the work."""
        scope = _scope()
        limit = None if scope is None else scope.deadline
        left_s = None if limit is None else limit.left_ms(self.now_ms()) / 1000
        await asyncio.wait((waited,), timeout=left_s)
        if limit is not None and not waited.done():
            raise TimedOut(limit.limit, limit.length_ms, doing)
        if waited.cancelled():
            raise Closed("the client was closed")
        return waited.result()

    # --------------------------------------------------------------------------- sending

    def submit(
        self,
        node_id: int,
        request: object,
        *,
        max_version: int | None = None,
        version: int | None = None,
        timeout_ms: int | None = None,
        lane: str = "",
    ) -> "asyncio.Future[object]":
        """Send like `send`, but at once: requests to one node and lane leave in call order [CLI-5]."""
        timeout = self.config.request_timeout_ms if timeout_ms is None else timeout_ms
        spec = API[request.key] if isinstance(request, ByVersion) else _SPECS[type(request)]
        ask, now = Ask(spec, request, self._limit(timeout_ms)), self.now_ms()
        ask.max_version, ask.version = max_version, version
        ask.expires_ms = max(ask.limit.at_ms, now + timeout)
        try:
            link = self._link(node_id, lane)
        except ClientError as exc:
            ask.fail(exc)
            return ask.answer
        ask.where = link.address
        if ask.limit.left_ms(now):
            link.submit(ask)
        else:
            ask.time_out()
        return ask.answer

    async def send(
        self,
        node_id: int,
        request: object,
        answer: type[R],
        *,
        max_version: int | None = None,
        version: int | None = None,
        timeout_ms: int | None = None,
        lane: str = "",
    ) -> R:
        """Send a request to a broker and wait for its answer. One attempt.

        Produce with acks=0 has no answer: use `submit`, whose future then yields None.

        Args:
            node_id: from `node_for`, `coordinator` or `image.nodes`.
            request: a message, or ByVersion.
            answer: the class of the response that belongs to `request`.
            max_version: upper bound for the version; the highest one that both sides support is used.
            version: exactly this one, or NotSupported.
            timeout_ms: instead of request.timeout.ms, for requests that brokers hold back (JoinGroup).
            lane: name of a separate connection. A broker answers a connection's requests in order, so a
                heartbeat behind a waiting fetch would be late.
        Raises: ConnectionLost, Unreachable, TimedOut, BadAnswer, NotSupported, Closed. Error codes in the
            answer are for the caller.
        """
        try:
            found = await self.submit(
                node_id, request, max_version=max_version, version=version, timeout_ms=timeout_ms, lane=lane
            )
        except ClientError as exc:
            self._suspect_after(exc, node_id)
            raise
        assert isinstance(found, answer)
        return found

    def _suspect_after(self, failure: ClientError, node_id: int) -> None:
        if failure.remedy is Remedy.REFRESH:
            self.suspect(node_id)

    def suspect(self, node_id: int) -> None:
        """Note that a broker did not answer: its coordinators and leaders may have moved."""
        self._coordinators.forget_on(node_id)
        if not self._closed:
            self._refresher.next_round()

    async def versions(self, node_id: int) -> BrokerVersions:
        """Return a broker's API versions; connect if necessary. Raises: Unreachable, TimedOut, Closed."""
        try:
            link = self._link(node_id, "")
            task = asyncio.get_running_loop().create_task(link.versions(), context=Context())
            try:
                return await self._within(task, f"connect to {link.address}")
            finally:
                task.cancel()
        except ClientError as exc:
            self._suspect_after(exc, node_id)
            raise

    def feature(self, name: str) -> int:
        """Return the finalized level of a feature, as the newest that any broker reported; 0 for none."""
        return self.features.levels.get(name, 0)

    async def send_any(self, request: object, answer: type[R], *, max_version: int | None = None) -> R:
        """Send a request that any broker can answer; try the next one if an attempt had no effect.

        Raises: Unreachable with the error of each broker; NotSupported, Closed, TimedOut; ConnectionLost.
        """
        failures: list[ClientError] = []
        for node_id in self._candidates():
            try:
                found = await self.submit(node_id, request, max_version=max_version)
            except ClientError as exc:
                late = isinstance(exc, TimedOut) and _scope() is not None
                if late or isinstance(exc, Closed) or exc.effect is not Effect.NONE:
                    raise
                failures.append(exc)
            else:
                assert isinstance(found, answer)
                return found
        if len(failures) == 1 or all(isinstance(failure, NotSupported) for failure in failures):
            raise failures[0]
        asked = ", ".join(str(self._address(node_id)) for node_id in self._candidates())
        raise Unreachable(asked, "; ".join(failure.what() for failure in failures))

    def metrics(self) -> dict[str, float]:
        """Return the network's metrics, by Kafka's names."""
        return self.measures.as_metrics()

    # -------------------------------------------------------------------------- retrying

    async def retrying(
        self, api: str, subject: object, attempt: Callable[[], Awaitable[T]], deadline: Deadline
    ) -> T:
        """Make attempts until one succeeds, an error rules out a retry, or time is up.

        The `remedy` of an attempt's error says what to do before the next: wait, refresh, or look up the
        coordinator of `subject` again. Within an attempt everything this class does stops at the deadline.

        Raises: the error of the last attempt, or TimedOut; its `effect` is the worst of all attempts [CLI-1].
        """
        scope = _Scope(deadline, _scope())
        deadline = scope.deadline
        token = _SCOPE.set(scope)
        effect, failures, last = Effect.NONE, 0, ""
        try:
            while True:
                try:
                    return await attempt()
                except ClientError as exc:
                    effect = effect.worst(exc.effect)
                    if not exc.remedy.repeats:
                        raise exc.after(effect)  # noqa: B904
                    if not last or not isinstance(exc, TimedOut):
                        last = exc.what()
                    if not deadline.left_ms(self.now_ms()):
                        doing = f"{api} {str(subject)!r}" if subject else api
                        late = TimedOut(deadline.limit, deadline.length_ms, doing, last)
                        raise late.after(effect) from exc
                    await self._pause(failures, deadline)
                    failures += 1
                    await self._mend(exc, str(subject))
        finally:
            scope.ended = True
            _SCOPE.reset(token)

    async def _pause(self, failures: int, deadline: Deadline) -> None:
        wait_ms = backoff_ms(
            failures, self.config.retry_backoff_ms, self.config.retry_backoff_max_ms, noise()
        )
        await asyncio.sleep(min(wait_ms, deadline.left_ms(self.now_ms())) / 1000)

    async def _mend(self, failure: ClientError, subject: str) -> None:
        match failure.remedy:
            case Remedy.FIND_COORDINATOR:
                about = failure.subject if isinstance(failure, BrokerRefused) else subject
                kinds: tuple[CoordinatorKind, ...] = ("group", "transaction")
                self._coordinators.forget(*((kind, key) for kind in kinds for key in (subject, about)))
            case Remedy.REFRESH:
                try:
                    await self.refresh()
                except ClientError as exc:
                    _log.debug("no new metadata: %s", exc)
            case _:
                pass

    # -------------------------------------------------------------------------- metadata

    @property
    def image(self) -> MetadataImage:
        """Cluster metadata as last seen."""
        return self._refresher.image

    async def refresh(self, topics: Iterable[str] | None = ()) -> MetadataImage:
        """Ask for brokers and topics now; later refreshes ask for these topics, too.

        Calls during a refresh share the next one, so that its answer is newer than the call.

        Args:
            topics: names; None for all topics, now and from then on.
        Raises: Unreachable with the error of every broker that was tried, TimedOut, Closed.
        """
        if topics is None:
            self._refresher.all_topics = True
        else:
            self._follow(topics)
        failure = await self._within(self._refresher.next_round(), "Metadata")
        if failure is not None:
            raise type(failure)(*failure.args) from failure
        return self.image

    def forget_topics(self, topics: Iterable[str] | None) -> None:
        """Stop asking for these topics; None: stop asking for all topics."""
        if topics is None:
            self._refresher.all_topics = False
        else:
            self._refresher.forget(topics)

    async def topic(self, name: str) -> TopicInfo:
        """Return a topic, from metadata or after one refresh. Raises: UnknownTopic, BrokerRefused."""
        self._follow((name,))
        found = self.image.topics.get(name)
        if found is None:
            image = await self.refresh((name,))
            found = image.topics.get(name)
            if found is None:
                code = image.errors.get(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                raise refused("Metadata", name, code)
        return found

    async def node_for(self, at: TopicPartition) -> int:
        """Return the leader of a partition, from metadata or after one refresh.

        Raises: UnknownTopic, BrokerRefused (LEADER_NOT_AVAILABLE and similar).
        """
        self._follow((at.topic,))
        leader = self.image.leader(at)
        if leader is None:
            image = await self.refresh((at.topic,))
            leader = image.leader(at)
            if leader is None:
                raise refused("Metadata", at, image.why_not(at))
        return leader

    def learn_leaders(
        self, leaders: Mapping[TopicPartition, tuple[int, int]], nodes: Iterable[Node] = ()
    ) -> None:
        """Apply new leaders and their epochs from a response (KIP-951), without a metadata request."""
        self._refresher.image = with_leaders(self.image, leaders, nodes)

    def _follow(self, topics: Iterable[str]) -> None:
        names = tuple(topics)
        for name in names:
            if name not in self.image.topics and not is_topic_name(name):
                raise refused("Metadata", name[:300], ErrorCode.INVALID_TOPIC_EXCEPTION)
        self._refresher.follow(names)

    async def _ask_metadata(self, request: MetadataRequest) -> MetadataResponse:
        answer = await self.send_any(request, MetadataResponse)
        before = self.image.cluster_id
        if before is not None and answer.cluster_id not in (None, before):
            _log.warning("bootstrap.servers lead to cluster %s, before to %s", answer.cluster_id, before)
            self._coordinators.forget_on()
            # The broker that answered reported its features when it was connected to, before this was known.
            self.features = NO_FEATURES
            for link in self._links.values():
                self._learn(link.versions_now)
        return answer

    # ---------------------------------------------------------------------- coordinators

    async def coordinator(self, kind: CoordinatorKind, key: str) -> int:
        """Return the coordinator of a group or transactional id, in one attempt. Cached; lookups are shared.

        Raises: BrokerRefused (COORDINATOR_NOT_AVAILABLE: try again), NotAuthorized, Unreachable, TimedOut.
        """
        node = self._coordinators.known(kind, key)
        if node is not None:
            return node
        if self._closed:
            raise Closed("the client was closed")
        found = await self._within(self._coordinators.look_up(kind, key), f"FindCoordinator {key!r}")
        if isinstance(found, ClientError):
            raise type(found)(*found.args) from found
        return found

    def known_coordinator(self, kind: CoordinatorKind, key: str) -> int | None:
        """Return the coordinator if it is cached."""
        return self._coordinators.known(kind, key)

    def forget_coordinator(self, kind: CoordinatorKind, key: str) -> None:
        """Drop the cached coordinator; the next call looks it up."""
        self._coordinators.forget((kind, key))

    async def _ask_coordinator(self, request: ByVersion) -> FindCoordinatorResponse:
        return await self.send_any(request, FindCoordinatorResponse)

    # --------------------------------------------------------------------------- brokers

    def _candidates(self) -> list[int]:
        """Return brokers for requests that any can answer, the best first: reachable, connected, idle.

        The addresses of bootstrap.servers follow the known brokers, as negative ids.
        """
        if self._closed:
            raise Closed("the client was closed")
        nodes = list(self.image.nodes)
        shuffle(nodes)
        nodes.sort(key=self._dislike)
        if nodes and self.config.metadata_recovery_strategy == "none":
            return nodes
        known = {node.address for node in self.image.nodes.values()}
        others = [-1 - i for i, address in enumerate(self._bootstrap) if address not in known]
        shuffle(others)
        return [*nodes, *sorted(others, key=self._dislike)]

    def _dislike(self, node_id: int) -> tuple[bool, bool, int]:
        link = self._links.get((self._address(node_id), ""))
        return (False, True, 0) if link is None else (link.failing, not link.connected, link.load)

    def _address(self, node_id: int) -> Address:
        if node_id < 0:
            return self._bootstrap[-1 - node_id]
        node = self.image.nodes.get(node_id)
        if node is None:
            raise Unreachable(f"broker {node_id}", "the cluster does not list it")
        return node.address

    def _link(self, node_id: int, lane: str) -> Link:
        if self._closed:
            raise Closed("the client was closed")
        address = self._address(node_id)
        link = self._links.get((address, lane))
        if link is None:
            link = self._links[address, lane] = Link(address, self._terms, self.measures, self._opened)
        return link

    def _opened(self, connection: Connection) -> None:
        self._learn(connection.session.versions)

    def _learn(self, versions: BrokerVersions | None) -> None:
        if versions is not None:
            self.features = self.features.newest(versions.features)
