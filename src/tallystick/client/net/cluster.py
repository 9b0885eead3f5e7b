"""A cluster as one client sees it: sends requests, finds leaders and coordinators, and retries.

    cluster = Cluster(config)
    deadline = cluster.start_deadline("max.block.ms", 60_000)

    async def attempt() -> EndTxnResponse:
        node = await cluster.find_coordinator("transaction", "pay-7")
        response = await cluster.send(node, EndTxnRequest(...), EndTxnResponse, max_version=5)
        if response.error_code:
            raise build_broker_error("EndTxn", "pay-7", response.error_code)
        return response

    response = await cluster.run_with_retries("EndTxn", "pay-7", attempt, deadline)

Parts: `metadata_cache` (topics, leaders), `coordinators`, `retry_scope` (deadlines).

A Cluster lives on one loop and starts no task before its first call. Every wait in it is bounded: by
`request.timeout.ms`, by the connection limits, and inside `run_with_retries` by its deadline, too [CLI-2].
`send`, `find_leader`, `find_coordinator` and `refresh` make one attempt; only `run_with_retries` repeats.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextvars import Context
from functools import partial
from typing import Final, TypeVar

from tallystick.client.errors import (
    AuthenticationFailed,
    BadAnswer,
    BrokerRefused,
    ClientError,
    Closed,
    NotKafka,
    NotSupported,
    TimedOut,
    Unreachable,
    WrongBroker,
)
from tallystick.client.net.backoff import compute_backoff_ms, shuffle, uniform
from tallystick.client.net.broker_connection import BrokerConnection
from tallystick.client.net.coordinators import CoordinatorCache, CoordinatorType
from tallystick.client.net.login import ClientSecurity
from tallystick.client.net.metadata import MetadataImage, Node, TopicInfo
from tallystick.client.net.metadata_cache import MetadataCache
from tallystick.client.net.network import CLOSE_TIMEOUT_S, ConnectionSettings, NetworkMetrics
from tallystick.client.net.pending_request import PendingRequest, RequestBuilder
from tallystick.client.net.protocol_state import (
    ANY_BROKER,
    NO_FEATURE_LEVELS,
    BrokerIdentity,
    FeatureLevels,
    NodeApiVersions,
)
from tallystick.client.net.retry_scope import (
    Deadline,
    enter_retry_scope,
    is_in_retry_scope,
    limit_to_scope,
    read_clock_ms,
    wait_for_shared,
)
from tallystick.client.settings.config import Address, ClientConfig
from tallystick.kernel.errors import Effect, Remedy
from tallystick.kernel.ids import TopicPartition
from tallystick.kernel.limits import FRAME_BYTES_MAX_DEFAULT
from tallystick.protocol.apis import API_SPECS, ApiSpec
from tallystick.protocol.messages.cluster.find_coordinator import FindCoordinatorResponse
from tallystick.protocol.messages.topics.metadata import MetadataRequest, MetadataResponse

R = TypeVar("R")
T = TypeVar("T")

_log = logging.getLogger("tallystick.client")

_SPEC_BY_REQUEST: Final[Mapping[type, ApiSpec]] = {spec.request: spec for spec in API_SPECS.values()}


class ConnectionPool:
    """Connections to the brokers of a cluster, and the features that these announced.

    The addresses of bootstrap.servers have negative node ids.
    """

    def __init__(
        self,
        settings: ConnectionSettings,
        get_image: Callable[[], MetadataImage],
        forget_brokers: Callable[[], None],
    ) -> None:
        """Create a pool without connections.

        Args:
            get_image: returns the metadata as it is now.
            forget_brokers: makes the client begin again from bootstrap.servers.
        """
        self.network_metrics = NetworkMetrics()
        self.finalized_features: FeatureLevels = NO_FEATURE_LEVELS
        self._settings, self._config = settings, settings.config
        self._get_image, self._forget_brokers = get_image, forget_brokers
        self._bootstrap = settings.config.bootstrap_addresses
        self._connections: dict[tuple[Address, str], BrokerConnection] = {}
        self._is_closed = False

    def get_connection(self, node_id: int, connection_name: str = "") -> BrokerConnection:
        """Return the connection of a broker and name. Raises: Unreachable, Closed."""
        if self._is_closed:
            raise Closed("the client was closed")
        address = self.find_address(node_id)
        connection = self._connections.get((address, connection_name))
        if connection is None:
            connection = self._connections[address, connection_name] = BrokerConnection(
                address, self._settings, self.network_metrics, self
            )
        return connection

    def find_address(self, node_id: int) -> Address:
        """Return the address of a broker. Raises: Unreachable if metadata does not list it."""
        if node_id < 0:
            return self._bootstrap[-1 - node_id]
        node = self._get_image().nodes.get(node_id)
        if node is None:
            raise Unreachable(f"broker {node_id}", "the cluster does not list it")
        return node.address

    def list_candidates(self) -> list[int]:
        """Return brokers for requests that any can answer, the best first: reachable, connected, idle.

        The addresses of bootstrap.servers follow the known brokers.
        """
        if self._is_closed:
            raise Closed("the client was closed")
        nodes_by_id = self._get_image().nodes
        nodes = list(nodes_by_id)
        shuffle(nodes)
        nodes.sort(key=self._rank_candidate)
        if nodes and self._config.metadata_recovery_strategy == "none":
            return nodes
        addresses = {node.address for node in nodes_by_id.values()}
        other_ids = [-1 - i for i, address in enumerate(self._bootstrap) if address not in addresses]
        shuffle(other_ids)
        return [*nodes, *sorted(other_ids, key=self._rank_candidate)]

    def _rank_candidate(self, node_id: int) -> tuple[bool, bool, int]:
        connection = self._connections.get((self.find_address(node_id), ""))
        if connection is None:
            return False, True, 0
        return connection.is_failing, not connection.is_connected, connection.pending_count

    def describe_waits(self) -> str:
        """Describe what brokers have not done yet, for the text of a limit that passed."""
        texts = (connection.describe_wait() for connection in self._connections.values())
        return "; ".join(text for text in texts if text)

    def note_features(self, levels: FeatureLevels) -> None:
        """Record the finalized features that a broker reported; older ones change nothing."""
        self.finalized_features = self.finalized_features.pick_newer(levels)

    def forget_features(self) -> None:
        """Drop the features of another cluster: what the brokers connected to now reported is left."""
        self.finalized_features = NO_FEATURE_LEVELS
        for connection in self._connections.values():
            if connection.current_versions is not None:
                self.note_open(connection.current_versions)

    def close(self) -> list["asyncio.Future[None]"]:
        """Close every connection; return futures that are done when the sockets are closed."""
        self._is_closed = True
        return [end for link in self._connections.values() if (end := link.close()) is not None]

    # What its links ask and tell it.

    def identify(self, address: Address) -> BrokerIdentity:
        """Return the broker that metadata lists at an address, or ANY_BROKER (KIP-1242)."""
        config, image = self._config, self._get_image()
        if not config.metadata_cluster_check_enable or config.metadata_recovery_strategy == "none":
            return ANY_BROKER
        ids = [node.id for node in image.nodes.values() if node.address == address]
        # Behind one address of several brokers any of them may answer.
        return BrokerIdentity(image.cluster_id, ids[0]) if image.cluster_id and len(ids) == 1 else ANY_BROKER

    def note_open(self, versions: NodeApiVersions) -> None:
        """Record the features that a broker reported."""
        self.note_features(versions.features)

    def note_wrong_broker(self, failure: WrongBroker) -> None:
        """Forget the brokers: one of another cluster, or another of this one, has the address."""
        _log.warning("%s: beginning again from bootstrap.servers", failure.what())
        self._forget_brokers()


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
            topics_idle_ms: a topic that no call named for this long is no longer refreshed.
        Raises: BadConfig, if files that the security settings name are of no use.
        """
        self.config = config
        self.connections = ConnectionPool(
            ConnectionSettings(
                config=config,
                in_flight_max=in_flight_max,
                response_bytes_max=answer_bytes_max,
                security=ClientSecurity(config.security),
            ),
            lambda: self._metadata.image,
            self._forget_brokers,
        )
        self._metadata = MetadataCache(
            self._send_metadata_request,
            config.metadata_max_age_ms,
            auto_create_topics=auto_create_topics,
            topics_idle_ms=topics_idle_ms,
        )
        self._coordinators = CoordinatorCache(
            partial(self.send_to_any, answer=FindCoordinatorResponse),
            lambda node: self._metadata.update_leaders({}, [node]),
        )

    async def start(self) -> None:
        """Find the cluster, in one attempt. Optional, since every call does it. Raises: Unreachable."""
        await self.refresh()

    async def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Close every connection and end every wait, within `timeout_s`; harmless if repeated."""
        self._coordinators.close()
        ends = [*self.connections.close(), *self._metadata.close()]
        if ends:
            await asyncio.wait(ends, timeout=timeout_s)

    # -------------------------------------------------------------------------- limits

    def now_ms(self) -> int:
        """Return the loop's monotonic clock; its origin is arbitrary."""
        return read_clock_ms()

    def start_deadline(self, limit: str, length_ms: int) -> Deadline:
        """Return a deadline `length_ms` from now, with the name of the setting behind it."""
        return Deadline(self.now_ms() + length_ms, limit, length_ms)

    # --------------------------------------------------------------------------- sending

    def submit(
        self,
        node_id: int,
        request: object,
        *,
        max_version: int | None = None,
        version: int | None = None,
        timeout_ms: int | None = None,
        connection_name: str = "",
    ) -> "asyncio.Future[object]":
        """Send like `send`, but at once: requests over one connection leave in call order [CLI-5]."""
        now_ms = self.now_ms()
        if timeout_ms is None:
            timeout_ms = self.config.request_timeout_ms
            deadline = Deadline(now_ms + timeout_ms, "request.timeout.ms", timeout_ms)
        else:
            deadline = Deadline(now_ms + timeout_ms, "timeout_ms", timeout_ms)
        spec = (
            API_SPECS[request.api_key]
            if isinstance(request, RequestBuilder)
            else _SPEC_BY_REQUEST[type(request)]
        )
        pending = PendingRequest(spec, request, limit_to_scope(deadline))
        pending.max_version, pending.version = max_version, version
        pending.expires_at_ms = max(pending.deadline.at_ms, now_ms + timeout_ms)
        try:
            connection = self.connections.get_connection(node_id, connection_name)
        except ClientError as exc:
            pending.fail(exc)
            return pending.response_future
        pending.address = connection.address
        if pending.deadline.remaining_ms(now_ms):
            connection.submit(pending)
        else:
            pending.time_out()
        return pending.response_future

    async def send(
        self,
        node_id: int,
        request: object,
        answer: type[R],
        *,
        max_version: int | None = None,
        version: int | None = None,
        timeout_ms: int | None = None,
        connection_name: str = "",
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
            connection_name: of a separate connection. A broker answers a connection's requests in order, so
                a heartbeat behind a waiting fetch would be late.
        Raises: ConnectionLost, Unreachable, TimedOut, BadAnswer, NotSupported, Closed. Error codes in the
            answer are for the caller.
        """
        try:
            response = await self.submit(
                node_id,
                request,
                max_version=max_version,
                version=version,
                timeout_ms=timeout_ms,
                connection_name=connection_name,
            )
        except ClientError as exc:
            if exc.remedy is Remedy.REFRESH:
                self.mark_suspect(node_id)
            raise
        assert isinstance(response, answer)
        return response

    def mark_suspect(self, node_id: int) -> None:
        """Record that a broker did not answer: its coordinators and leaders may have moved."""
        self._coordinators.forget_node(node_id)
        self._metadata.request_update()

    async def wait_for_versions(self, node_id: int) -> NodeApiVersions:
        """Return a broker's API versions; connect if necessary. Raises: Unreachable, TimedOut, Closed."""
        try:
            connection = self.connections.get_connection(node_id)
            task = asyncio.get_running_loop().create_task(connection.wait_for_versions(), context=Context())
            try:
                return await wait_for_shared(task, f"connect to {connection.address}")
            finally:
                task.cancel()
        except ClientError as exc:
            if exc.remedy is Remedy.REFRESH:
                self.mark_suspect(node_id)
            raise

    def get_feature_level(self, name: str) -> int:
        """Return the finalized level of a feature, as the newest that any broker reported; 0 for none."""
        return self.connections.finalized_features.levels.get(name, 0)

    async def send_to_any(self, request: object, answer: type[R], *, max_version: int | None = None) -> R:
        """Send a request that any broker can answer; try the next one if an attempt had no effect.

        Raises: Unreachable with the error of each broker; NotSupported, Closed, TimedOut; ConnectionLost;
            BadAnswer if there is no cluster yet, and none of the addresses is a broker's.
        """
        failures: list[ClientError] = []
        for node_id in self.connections.list_candidates():
            try:
                response = await self.submit(node_id, request, max_version=max_version)
            except ClientError as exc:
                is_timeout = isinstance(exc, TimedOut) and is_in_retry_scope()
                # A login that one broker refuses is not tried at the others: accounts get locked by that.
                is_final = is_timeout or isinstance(exc, Closed | AuthenticationFailed)
                if is_final or exc.effect is not Effect.NONE:
                    raise
                failures.append(exc)
            else:
                assert isinstance(response, answer)
                return response
        if not self.image.nodes and all(isinstance(failure, NotKafka) for failure in failures):
            at_bootstrap = ",".join(map(str, self.config.bootstrap_addresses))
            raise BadAnswer(at_bootstrap, "ApiVersions", "; ".join(failure.what() for failure in failures))
        if len(failures) == 1 or all(isinstance(failure, NotSupported) for failure in failures):
            raise failures[0]
        addresses = map(self.connections.find_address, self.connections.list_candidates())
        raise Unreachable(", ".join(map(str, addresses)), "; ".join(failure.what() for failure in failures))

    def metrics(self) -> dict[str, float]:
        """Return the network's metrics, by Kafka's names."""
        return self.connections.network_metrics.as_metrics()

    # -------------------------------------------------------------------------- retrying

    async def run_with_retries(
        self, api: str, subject: object, attempt: Callable[[], Awaitable[T]], deadline: Deadline
    ) -> T:
        """Make attempts until one succeeds, an error rules out a retry, or time is up.

        The `remedy` of an attempt's error says what to do before the next: wait, refresh, or look up the
        coordinator of `subject` again. Within an attempt everything this class does stops at the deadline.

        Raises: the error of the last attempt, or TimedOut; its `effect` is the worst of all attempts [CLI-1].
        """
        effect, failures, last_error, last_timeout = Effect.NONE, 0, "", ""
        with enter_retry_scope(deadline) as limit:
            while True:
                try:
                    return await attempt()
                except ClientError as exc:
                    effect = effect.worst(exc.effect)
                    if not exc.remedy.repeats:
                        raise exc.after(effect)  # noqa: B904
                    if isinstance(exc, TimedOut):
                        last_timeout = exc.what()
                    else:
                        last_error = exc.what()
                    if not limit.remaining_ms(self.now_ms()):
                        doing = f"{api} {str(subject)!r}" if subject else api
                        silent = isinstance(exc, TimedOut) and not exc.is_sent
                        waits = self.connections.describe_waits() if silent else ""
                        last = last_error or waits or last_timeout
                        timeout = TimedOut(limit.limit_name, limit.length_ms, doing, last)
                        # Its text has the error; the traceback of one more wait that ended says nothing.
                        raise timeout.after(effect) from (None if isinstance(exc, TimedOut) else exc)
                    await _back_off(self.config, failures, limit)
                    failures += 1
                    await self._recover_from(exc, str(subject))

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
        return self._metadata.image

    async def refresh(self, topics: Iterable[str] | None = ()) -> MetadataImage:
        """Ask for brokers and topics now, as `MetadataCache.refresh`."""
        return await self._metadata.refresh(topics)

    def forget_topics(self, topics: Iterable[str] | None) -> None:
        """Stop asking for these topics; None: stop asking for all topics."""
        self._metadata.forget_topics(topics)

    async def get_topic(self, name: str) -> TopicInfo:
        """Return a topic, from metadata or after one refresh. Raises: UnknownTopic, BrokerRefused."""
        return await self._metadata.get_topic(name)

    async def find_leader(self, at: TopicPartition) -> int:
        """Return the leader of a partition, from metadata or after one refresh.

        Raises: UnknownTopic, BrokerRefused (LEADER_NOT_AVAILABLE and similar).
        """
        return await self._metadata.find_leader(at)

    def update_leaders(
        self, leaders: Mapping[TopicPartition, tuple[int, int]], nodes: Iterable[Node] = ()
    ) -> None:
        """Apply new leaders and their epochs from a response (KIP-951), without a metadata request."""
        self._metadata.update_leaders(leaders, nodes)

    def _forget_brokers(self) -> None:
        self._metadata.forget_brokers()
        self._coordinators.forget_node()

    async def _send_metadata_request(self, request: MetadataRequest) -> MetadataResponse:
        before, had_brokers = self.image.cluster_id, bool(self.image.nodes)
        try:
            response = await self.send_to_any(request, MetadataResponse)
        except Unreachable:
            if not had_brokers or self.image.nodes:
                raise
            # They were forgotten meanwhile, and only bootstrap.servers can tell whose brokers answer.
            response = await self.send_to_any(request, MetadataResponse)
        if before is not None and response.cluster_id not in (None, before):
            _log.warning("bootstrap.servers lead to cluster %s, before to %s", response.cluster_id, before)
            self._coordinators.forget_node()
            # The broker that answered reported its features when it was connected to, before this was known.
            self.connections.forget_features()
        return response

    # ---------------------------------------------------------------------- coordinators

    async def find_coordinator(self, kind: CoordinatorType, key: str) -> int:
        """Return the coordinator of a group or transactional id, in one attempt. Cached; lookups are shared.

        Raises: BrokerRefused (COORDINATOR_NOT_AVAILABLE: try again), NotAuthorized, Unreachable, TimedOut.
        """
        return await self._coordinators.find(kind, key)

    async def find_coordinators(
        self, kind: CoordinatorType, keys: Iterable[str]
    ) -> dict[str, int | ClientError]:
        """Return the coordinators of many keys, or the error of each, with few requests (KIP-699).

        Raises: the errors of `find_coordinator` that concern no single key.
        """
        return await self._coordinators.find_many(kind, keys)

    def get_cached_coordinator(self, kind: CoordinatorType, key: str) -> int | None:
        """Return the coordinator if it is cached."""
        return self._coordinators.get_cached(kind, key)

    def forget_coordinator(self, kind: CoordinatorType, key: str) -> None:
        """Drop the cached coordinator; the next call looks it up."""
        self._coordinators.forget((kind, key))


async def _back_off(config: ClientConfig, failures: int, deadline: Deadline) -> None:
    wait_ms = compute_backoff_ms(failures, config.retry_backoff_ms, config.retry_backoff_max_ms, uniform())
    await asyncio.sleep(min(wait_ms, deadline.remaining_ms(read_clock_ms())) / 1000)
