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
`request.timeout.ms`, by the connection limits, and inside `run_with_retries` by its deadline, too [CLI-2].
`send`, `find_leader`, `find_coordinator` and `refresh` make one attempt; only `run_with_retries` repeats.
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
    build_broker_error,
)
from tallystick.client.jitter import shuffle, uniform
from tallystick.client.net.broker_connection import BrokerConnection
from tallystick.client.net.coordinators import CoordinatorCache, CoordinatorType
from tallystick.client.net.metadata import MetadataImage, Node, TopicInfo, is_topic_name, with_leaders
from tallystick.client.net.metadata_refresh import MetadataRefresher
from tallystick.client.net.network import (
    CLOSE_TIMEOUT_S,
    Connection,
    ConnectionSettings,
    NetworkMetrics,
    PendingRequest,
    RequestBuilder,
)
from tallystick.client.net.protocol_state import NO_FEATURE_LEVELS, FeatureLevels, NodeApiVersions
from tallystick.client.retry import Deadline, compute_backoff_ms
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Effect, Remedy
from tallystick.kernel.ids import TopicPartition
from tallystick.kernel.limits import FRAME_BYTES_MAX_DEFAULT
from tallystick.protocol.apis import API_SPECS, ApiSpec
from tallystick.protocol.messages.find_coordinator import FindCoordinatorResponse
from tallystick.protocol.messages.metadata import MetadataRequest, MetadataResponse

R = TypeVar("R")
T = TypeVar("T")

_log = logging.getLogger("tallystick.client")

_SPEC_BY_REQUEST: Final[Mapping[type, ApiSpec]] = {spec.request: spec for spec in API_SPECS.values()}


class _RetryScope:
    """Time limit of one `run_with_retries`.

    Tasks begun inside inherit it, and are free of it when that ends.
    """

    __slots__ = ("deadline", "has_ended", "outer")

    def __init__(self, deadline: Deadline, outer: "_RetryScope | None") -> None:
        self.outer = outer
        earlier = outer is not None and outer.deadline.at_ms < deadline.at_ms
        self.deadline: Deadline = outer.deadline if outer is not None and earlier else deadline
        self.has_ended = False


_RETRY_SCOPE: ContextVar[_RetryScope | None] = ContextVar("tallystick.scope", default=None)


def _find_retry_scope() -> _RetryScope | None:
    """Return the innermost scope that has not ended."""
    scope = _RETRY_SCOPE.get()
    while scope is not None and scope.has_ended:
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
            topics_idle_ms: a topic that `find_leader` and `get_topic` were not asked about for this long is
            no
                longer refreshed.
        """
        self.config = config
        self.network_metrics = NetworkMetrics()
        self.finalized_features: FeatureLevels = NO_FEATURE_LEVELS
        self._connection_settings = ConnectionSettings(
            config=config, in_flight_max=in_flight_max, response_bytes_max=answer_bytes_max
        )
        self._connections: dict[tuple[Address, str], BrokerConnection] = {}
        self._bootstrap = config.bootstrap_addresses
        self._refresher = MetadataRefresher(
            self._send_metadata_request, config.metadata_max_age_ms, auto_create_topics, topics_idle_ms
        )
        self._coordinators = CoordinatorCache(
            self._send_find_coordinator, lambda node: self.update_leaders({}, [node])
        )
        self._closed = False

    async def start(self) -> None:
        """Find the cluster, in one attempt. Optional, since every call does it. Raises: Unreachable."""
        await self.refresh()

    async def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Close every connection and end every wait, within `timeout_s`; harmless if repeated."""
        self._closed = True
        self._coordinators.close()
        ended = [end for link in self._connections.values() if (end := link.close()) is not None]
        ended += self._refresher.close()
        if ended:
            await asyncio.wait(ended, timeout=timeout_s)

    # -------------------------------------------------------------------------- limits

    def now_ms(self) -> int:
        """Return the loop's monotonic clock; its origin is arbitrary."""
        return int(asyncio.get_running_loop().time() * 1000)

    def start_deadline(self, limit: str, length_ms: int) -> Deadline:
        """Return a deadline `length_ms` from now, with the name of the setting behind it."""
        return Deadline(self.now_ms() + length_ms, limit, length_ms)

    def _build_deadline(self, timeout_ms: int | None = None) -> Deadline:
        own = (
            self.start_deadline("request.timeout.ms", self.config.request_timeout_ms)
            if timeout_ms is None
            else self.start_deadline("timeout_ms", timeout_ms)
        )
        outer = _find_retry_scope()
        return outer.deadline if outer is not None and outer.deadline.at_ms < own.at_ms else own

    async def _wait_for_shared(self, waited: "asyncio.Future[T]", doing: str) -> T:
        """Wait for a shared future: a limit ends this wait and not the work."""
        scope = _find_retry_scope()
        limit = None if scope is None else scope.deadline
        left_s = None if limit is None else limit.remaining_ms(self.now_ms()) / 1000
        await asyncio.wait((waited,), timeout=left_s)
        if limit is not None and not waited.done():
            raise TimedOut(limit.limit_name, limit.length_ms, doing)
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
        spec = (
            API_SPECS[request.api_key]
            if isinstance(request, RequestBuilder)
            else _SPEC_BY_REQUEST[type(request)]
        )
        ask, now = PendingRequest(spec, request, self._build_deadline(timeout_ms)), self.now_ms()
        ask.max_version, ask.version = max_version, version
        ask.expires_at_ms = max(ask.deadline.at_ms, now + timeout)
        try:
            link = self._get_connection(node_id, lane)
        except ClientError as exc:
            ask.fail(exc)
            return ask.response_future
        ask.address = link.address
        if ask.deadline.remaining_ms(now):
            link.submit(ask)
        else:
            ask.time_out()
        return ask.response_future

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
            node_id: from `find_leader`, `find_coordinator` or `image.nodes`.
            request: a message, or RequestBuilder.
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
            self._maybe_suspect(exc, node_id)
            raise
        assert isinstance(found, answer)
        return found

    def _maybe_suspect(self, failure: ClientError, node_id: int) -> None:
        if failure.remedy is Remedy.REFRESH:
            self.mark_suspect(node_id)

    def mark_suspect(self, node_id: int) -> None:
        """Note that a broker did not answer: its coordinators and leaders may have moved."""
        self._coordinators.forget_node(node_id)
        if not self._closed:
            self._refresher.request_update()

    async def wait_for_versions(self, node_id: int) -> NodeApiVersions:
        """Return a broker's API versions; connect if necessary. Raises: Unreachable, TimedOut, Closed."""
        try:
            link = self._get_connection(node_id, "")
            task = asyncio.get_running_loop().create_task(link.wait_for_versions(), context=Context())
            try:
                return await self._wait_for_shared(task, f"connect to {link.address}")
            finally:
                task.cancel()
        except ClientError as exc:
            self._maybe_suspect(exc, node_id)
            raise

    def get_feature_level(self, name: str) -> int:
        """Return the finalized level of a feature, as the newest that any broker reported; 0 for none."""
        return self.finalized_features.levels.get(name, 0)

    async def send_to_any(self, request: object, answer: type[R], *, max_version: int | None = None) -> R:
        """Send a request that any broker can answer; try the next one if an attempt had no effect.

        Raises: Unreachable with the error of each broker; NotSupported, Closed, TimedOut; ConnectionLost.
        """
        failures: list[ClientError] = []
        for node_id in self._order_candidates():
            try:
                found = await self.submit(node_id, request, max_version=max_version)
            except ClientError as exc:
                late = isinstance(exc, TimedOut) and _find_retry_scope() is not None
                if late or isinstance(exc, Closed) or exc.effect is not Effect.NONE:
                    raise
                failures.append(exc)
            else:
                assert isinstance(found, answer)
                return found
        if len(failures) == 1 or all(isinstance(failure, NotSupported) for failure in failures):
            raise failures[0]
        asked = ", ".join(str(self._find_address(node_id)) for node_id in self._order_candidates())
        raise Unreachable(asked, "; ".join(failure.what() for failure in failures))

    def metrics(self) -> dict[str, float]:
        """Return the network's metrics, by Kafka's names."""
        return self.network_metrics.as_metrics()

    # -------------------------------------------------------------------------- retrying

    async def run_with_retries(
        self, api: str, subject: object, attempt: Callable[[], Awaitable[T]], deadline: Deadline
    ) -> T:
        """Make attempts until one succeeds, an error rules out a retry, or time is up.

        The `remedy` of an attempt's error says what to do before the next: wait, refresh, or look up the
        coordinator of `subject` again. Within an attempt everything this class does stops at the deadline.

        Raises: the error of the last attempt, or TimedOut; its `effect` is the worst of all attempts [CLI-1].
        """
        scope = _RetryScope(deadline, _find_retry_scope())
        deadline = scope.deadline
        token = _RETRY_SCOPE.set(scope)
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
                    if not deadline.remaining_ms(self.now_ms()):
                        doing = f"{api} {str(subject)!r}" if subject else api
                        late = TimedOut(deadline.limit_name, deadline.length_ms, doing, last)
                        raise late.after(effect) from exc
                    await self._back_off(failures, deadline)
                    failures += 1
                    await self._recover_from(exc, str(subject))
        finally:
            scope.has_ended = True
            _RETRY_SCOPE.reset(token)

    async def _back_off(self, failures: int, deadline: Deadline) -> None:
        wait_ms = compute_backoff_ms(
            failures, self.config.retry_backoff_ms, self.config.retry_backoff_max_ms, uniform()
        )
        await asyncio.sleep(min(wait_ms, deadline.remaining_ms(self.now_ms())) / 1000)

    async def _recover_from(self, failure: ClientError, subject: str) -> None:
        match failure.remedy:
            case Remedy.FIND_COORDINATOR:
                about = failure.subject if isinstance(failure, BrokerRefused) else subject
                kinds: tuple[CoordinatorType, ...] = ("group", "transaction")
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
            self._refresher.tracks_all_topics = True
        else:
            self._track_topics(topics)
        failure = await self._wait_for_shared(self._refresher.request_update(), "Metadata")
        if failure is not None:
            raise type(failure)(*failure.args) from failure
        return self.image

    def forget_topics(self, topics: Iterable[str] | None) -> None:
        """Stop asking for these topics; None: stop asking for all topics."""
        if topics is None:
            self._refresher.tracks_all_topics = False
        else:
            self._refresher.forget(topics)

    async def get_topic(self, name: str) -> TopicInfo:
        """Return a topic, from metadata or after one refresh. Raises: UnknownTopic, BrokerRefused."""
        self._track_topics((name,))
        found = self.image.topics.get(name)
        if found is None:
            image = await self.refresh((name,))
            found = image.topics.get(name)
            if found is None:
                code = image.error_codes.get(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                raise build_broker_error("Metadata", name, code)
        return found

    async def find_leader(self, at: TopicPartition) -> int:
        """Return the leader of a partition, from metadata or after one refresh.

        Raises: UnknownTopic, BrokerRefused (LEADER_NOT_AVAILABLE and similar).
        """
        self._track_topics((at.topic,))
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
        self._refresher.image = with_leaders(self.image, leaders, nodes)

    def _track_topics(self, topics: Iterable[str]) -> None:
        names = tuple(topics)
        for name in names:
            if name not in self.image.topics and not is_topic_name(name):
                raise build_broker_error("Metadata", name[:300], ErrorCode.INVALID_TOPIC_EXCEPTION)
        self._refresher.track(names)

    async def _send_metadata_request(self, request: MetadataRequest) -> MetadataResponse:
        answer = await self.send_to_any(request, MetadataResponse)
        before = self.image.cluster_id
        if before is not None and answer.cluster_id not in (None, before):
            _log.warning("bootstrap.servers lead to cluster %s, before to %s", answer.cluster_id, before)
            self._coordinators.forget_node()
            # The broker that answered reported its features when it was connected to, before this was known.
            self.finalized_features = NO_FEATURE_LEVELS
            for link in self._connections.values():
                self._update_features(link.current_versions)
        return answer

    # ---------------------------------------------------------------------- coordinators

    async def find_coordinator(self, kind: CoordinatorType, key: str) -> int:
        """Return the coordinator of a group or transactional id, in one attempt. Cached; lookups are shared.

        Raises: BrokerRefused (COORDINATOR_NOT_AVAILABLE: try again), NotAuthorized, Unreachable, TimedOut.
        """
        node = self._coordinators.get_cached(kind, key)
        if node is not None:
            return node
        if self._closed:
            raise Closed("the client was closed")
        found = await self._wait_for_shared(
            self._coordinators.start_lookup(kind, key), f"FindCoordinator {key!r}"
        )
        if isinstance(found, ClientError):
            raise type(found)(*found.args) from found
        return found

    def get_cached_coordinator(self, kind: CoordinatorType, key: str) -> int | None:
        """Return the coordinator if it is cached."""
        return self._coordinators.get_cached(kind, key)

    def forget_coordinator(self, kind: CoordinatorType, key: str) -> None:
        """Drop the cached coordinator; the next call looks it up."""
        self._coordinators.forget((kind, key))

    async def _send_find_coordinator(self, request: RequestBuilder) -> FindCoordinatorResponse:
        return await self.send_to_any(request, FindCoordinatorResponse)

    # --------------------------------------------------------------------------- brokers

    def _order_candidates(self) -> list[int]:
        """Return brokers for requests that any can answer, the best first: reachable, connected, idle.

        The addresses of bootstrap.servers follow the known brokers, as negative ids.
        """
        if self._closed:
            raise Closed("the client was closed")
        nodes = list(self.image.nodes)
        shuffle(nodes)
        nodes.sort(key=self._rank_candidate)
        if nodes and self.config.metadata_recovery_strategy == "none":
            return nodes
        known = {node.address for node in self.image.nodes.values()}
        others = [-1 - i for i, address in enumerate(self._bootstrap) if address not in known]
        shuffle(others)
        return [*nodes, *sorted(others, key=self._rank_candidate)]

    def _rank_candidate(self, node_id: int) -> tuple[bool, bool, int]:
        link = self._connections.get((self._find_address(node_id), ""))
        return (
            (False, True, 0) if link is None else (link.is_failing, not link.is_connected, link.pending_count)
        )

    def _find_address(self, node_id: int) -> Address:
        if node_id < 0:
            return self._bootstrap[-1 - node_id]
        node = self.image.nodes.get(node_id)
        if node is None:
            raise Unreachable(f"broker {node_id}", "the cluster does not list it")
        return node.address

    def _get_connection(self, node_id: int, lane: str) -> BrokerConnection:
        if self._closed:
            raise Closed("the client was closed")
        address = self._find_address(node_id)
        link = self._connections.get((address, lane))
        if link is None:
            link = self._connections[address, lane] = BrokerConnection(
                address, self._connection_settings, self.network_metrics, self._on_open
            )
        return link

    def _on_open(self, connection: Connection) -> None:
        self._update_features(connection.protocol_state.versions)

    def _update_features(self, versions: NodeApiVersions | None) -> None:
        if versions is not None:
            self.finalized_features = self.finalized_features.pick_newer(versions.features)
