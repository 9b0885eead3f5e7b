"""Ask a cluster for the facts, by requests that change nothing and end no application's transaction.

No request takes over the user's transactional id. Rights on it are learned from refusals: brokers check
rights before anything else, and what the requests ask for can never be carried out.

* FindCoordinator tells DESCRIBE.
* EndTxn, an abort by producer id 2^63-1, which no producer has, tells WRITE: a principal with the right gets
  INVALID_PRODUCER_ID_MAPPING (Kafka TransactionCoordinator.endTransaction compares the ids first).
* InitProducerId 6 with a producer id and without its epoch tells WRITE and TWO_PHASE_COMMIT: a principal with
  both gets INVALID_REQUEST (KafkaApis.handleInitProducerIdRequest, KIP-360: both or neither). It is sent
  only to brokers with version 6, whose authors follow KIP-939.

Rights on topics, groups and the cluster are the authorized operations of KIP-430.
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from tallystick.admin.admin_call import AdminCall
from tallystick.admin.configs import ConfigResource, ResourceType, describe
from tallystick.admin.doctor.checks import MAX_TIMEOUT, TWO_PHASE_SWITCH
from tallystick.admin.doctor.facts import (
    CLUSTER,
    ClientPlan,
    DoctorFacts,
    FailureCause,
    LoginFacts,
    Resource,
    ResourceRights,
    ServerFacts,
    TlsSession,
)
from tallystick.admin.doctor.production import SETTINGS as PRODUCTION_SETTINGS
from tallystick.client.errors import (
    AuthenticationFailed,
    BrokerRefused,
    ClientError,
    NotAuthorized,
    TlsFailed,
    Unreachable,
    build_broker_error,
)
from tallystick.client.net.broker_connection import connect
from tallystick.client.net.cluster import Cluster
from tallystick.client.net.login import ClientSecurity
from tallystick.client.net.network import Connection, ConnectionSettings, NetworkMetrics
from tallystick.client.net.protocol_state import NodeApiVersions
from tallystick.client.settings.config import Address, ClientConfig
from tallystick.client.settings.security_config import SecurityConfig
from tallystick.client.transactions.modes import KEEP_API_VERSION, ClusterCapabilities
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Remedy
from tallystick.kernel.ids import INT64_MAX
from tallystick.kernel.limits import MIB
from tallystick.protocol.acls import AclOperation, AclResource
from tallystick.protocol.apis import API_SPECS, ApiKey
from tallystick.protocol.messages.cluster.describe_cluster import (
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from tallystick.protocol.messages.groups.administration import DescribeGroupsRequest, DescribeGroupsResponse
from tallystick.protocol.messages.topics.metadata import (
    OPERATIONS_NOT_ASKED,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from tallystick.protocol.messages.txn.end_txn import EndTxnRequest, EndTxnResponse
from tallystick.protocol.messages.txn.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tallystick.security.sasl.oauthbearer import OAUTHBEARER

_CALL_LIMIT_MS: Final = 4_000
_WRITE_FIRST: Final = "brokers tell it only to those with Write; grant that and run this again"
_NO_EPOCH: Final = -1
_EVERYTHING: Final = frozenset(AclOperation)
# DescribeGroups 6 answers an error for unknown groups, without operations.
_GROUPS_VERSION_MAX: Final = 5
# EndTxn 5 treats some producer ids that are not the current one as a retry (KIP-890).
_END_TXN_VERSION_MAX: Final = 3


class Doctor:
    """Questions to one cluster, with a short limit each."""

    def __init__(self, config: ClientConfig, plan: ClientPlan) -> None:
        self._config, self._plan = config, plan
        self._login = describe_login(config.security)
        self._cluster = Cluster(config)
        self._refuses_keep = False

    async def gather(self, subjects: Sequence[Resource]) -> DoctorFacts:
        """Return the facts about the cluster and the subjects, as far as it answers."""
        servers, versions = await self._probe_servers()
        if versions is None:
            return DoctorFacts(servers=servers, login=self._login, plan=self._plan)
        try:
            settings, settings_failure, settings_denied = await self._fetch_settings()
            resources = (CLUSTER, *dict.fromkeys(subjects))
            rights = await asyncio.gather(*(self._fetch_rights(each, versions) for each in resources))
        finally:
            await self._cluster.close()
        levels = versions.features.levels
        return DoctorFacts(
            servers=servers,
            login=self._login,
            plan=self._plan,
            usable_apis={
                key: version for key in API_SPECS if (version := versions.find_latest_usable(key)) is not None
            },
            features=levels,
            capabilities=ClusterCapabilities(
                init_version=versions.find_latest_usable(ApiKey.INIT_PRODUCER_ID) or 0,
                transaction_version=levels.get("transaction.version", 0),
                can_describe=versions.find_latest_usable(ApiKey.DESCRIBE_TRANSACTIONS) is not None,
                refuses_keep=self._refuses_keep,
            ),
            settings=settings,
            settings_failure=settings_failure,
            settings_denied=settings_denied,
            rights=dict(zip(resources, rights, strict=True)),
        )

    # ---- connection

    async def _probe_servers(self) -> tuple[tuple[ServerFacts, ...], NodeApiVersions | None]:
        """Connect to each address once; after a refused login to no other: accounts get locked."""
        settings = ConnectionSettings(
            config=self._config,
            in_flight_max=1,
            response_bytes_max=100 * MIB,
            security=ClientSecurity(self._config.security),
        )
        first, *others = self._config.bootstrap_addresses
        facts, versions = await _probe(first, settings)
        if facts.failure and facts.cause is FailureCause.LOGIN:
            skipped = (
                ServerFacts(
                    address=str(each),
                    failure=f"not tried: the login at {first} was refused",
                    cause=FailureCause.NOT_TRIED,
                )
                for each in others
            )
            return (facts, *skipped), None
        rest = await asyncio.gather(*(_probe(each, settings) for each in others))
        answers = [versions, *(each[1] for each in rest)]
        usable = next((each for each in answers if each is not None), None)
        return (facts, *(each[0] for each in rest)), usable

    # ---- settings and rights

    async def _fetch_settings(self) -> tuple[Mapping[str, str | None], str, bool]:
        """Return the settings; why there are none, and whether it is for want of a right."""
        names = (MAX_TIMEOUT, TWO_PHASE_SWITCH, *PRODUCTION_SETTINGS)
        call = AdminCall(self._cluster, self._cluster.start_deadline("the doctor's limit", _CALL_LIMIT_MS))
        try:
            node_id = (await call.list_brokers())[0]
            broker = ConfigResource(ResourceType.BROKER, str(node_id))
            values = (await describe(call, [broker], names)).one(broker)
        except NotAuthorized:
            return {}, "DescribeConfigs on the cluster is missing", True
        except ClientError as exc:
            return {}, exc.what(), False
        return {name: value.value for name, value in values.items()}, "", False

    async def _fetch_rights(self, resource: Resource, versions: NodeApiVersions) -> ResourceRights:
        try:
            match resource.type:
                case AclResource.CLUSTER:
                    return await self._run("DescribeCluster", "", self._ask_cluster)
                case AclResource.TOPIC:
                    return await self._run("Metadata", resource.name, lambda: self._ask_topic(resource.name))
                case AclResource.GROUP:
                    return await self._run(
                        "DescribeGroups", resource.name, lambda: self._ask_group(resource.name)
                    )
                case _:
                    return await self._ask_id(resource.name, versions)
        except NotAuthorized:
            # Each operation that a client needs implies DESCRIBE, which is missing.
            return ResourceRights(denied=_EVERYTHING)
        except ClientError as exc:
            return ResourceRights(unknown_because=exc.what())

    async def _run(
        self, api: str, subject: str, attempt: Callable[[], Awaitable[ResourceRights]]
    ) -> ResourceRights:
        deadline = self._cluster.start_deadline("the doctor's limit", _CALL_LIMIT_MS)
        return await self._cluster.run_with_retries(api, subject, attempt, deadline)

    async def _ask_cluster(self) -> ResourceRights:
        request = DescribeClusterRequest(include_cluster_authorized_operations=True)
        answer = await self._cluster.send_to_any(request, DescribeClusterResponse)
        if answer.error_code:
            raise build_broker_error("DescribeCluster", "", answer.error_code, answer.error_message)
        bits = answer.cluster_authorized_operations
        # Without DESCRIBE the field is 0, and ALTER implies DESCRIBE.
        return parse_operations(bits)

    async def _ask_topic(self, name: str) -> ResourceRights:
        request = MetadataRequest(
            topics=(MetadataRequestTopic(name=name),),
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=True,
        )
        topic = (await self._cluster.send_to_any(request, MetadataResponse)).topics[0]
        if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return ResourceRights(unknown_because="there is no such topic")
        if topic.error_code not in (0, ErrorCode.LEADER_NOT_AVAILABLE):
            raise build_broker_error("Metadata", name, topic.error_code)
        return parse_operations(topic.topic_authorized_operations)

    async def _ask_group(self, name: str) -> ResourceRights:
        node_id = await self._cluster.find_coordinator("group", name)
        request = DescribeGroupsRequest(groups=(name,), include_authorized_operations=True)
        answer = await self._cluster.send(
            node_id, request, DescribeGroupsResponse, max_version=_GROUPS_VERSION_MAX
        )
        group = answer.groups[0]
        if group.error_code:
            raise build_broker_error("DescribeGroups", name, group.error_code)
        return parse_operations(group.authorized_operations)

    async def _ask_id(self, name: str, versions: NodeApiVersions) -> ResourceRights:
        async def find() -> ResourceRights:
            await self._cluster.find_coordinator("transaction", name)
            return ResourceRights()

        try:
            await self._run("FindCoordinator", name, find)
        except NotAuthorized:
            return ResourceRights(
                denied=frozenset((AclOperation.DESCRIBE, AclOperation.WRITE)), unknown_because=_WRITE_FIRST
            )
        allowed: set[AclOperation] = {AclOperation.DESCRIBE}
        denied: set[AclOperation] = set()
        probes = [(AclOperation.WRITE, self._ask_write)]
        if versions.find_latest_usable(ApiKey.INIT_PRODUCER_ID) == KEEP_API_VERSION:
            probes.append((AclOperation.TWO_PHASE_COMMIT, self._ask_two_phase))
            probes.append((AclOperation.WRITE, self._ask_keep))
        for operation, ask in probes:
            if AclOperation.WRITE in denied:
                return ResourceRights(
                    allowed=frozenset(allowed),
                    denied=frozenset(denied),
                    unknown_because=_WRITE_FIRST,
                )
            try:
                await self._run("rights", name, lambda ask=ask: ask(name))  # type: ignore[misc]
            except NotAuthorized:
                denied.add(operation)
            else:
                allowed.add(operation)
        return ResourceRights(allowed=frozenset(allowed), denied=frozenset(denied))

    async def _ask_write(self, name: str) -> ResourceRights:
        node_id = await self._cluster.find_coordinator("transaction", name)
        request = EndTxnRequest(
            transactional_id=name, producer_id=INT64_MAX, producer_epoch=0, committed=False
        )
        answer = await self._cluster.send(node_id, request, EndTxnResponse, max_version=_END_TXN_VERSION_MAX)
        return _check_refusal("EndTxn", name, answer.error_code)

    async def _ask_two_phase(self, name: str) -> ResourceRights:
        code = await self._ask_init(
            InitProducerIdRequest(
                transactional_id=name,
                transaction_timeout_ms=self._plan.transaction_timeout_ms,
                producer_id=INT64_MAX,
                producer_epoch=_NO_EPOCH,
                enable_2pc=True,
                keep_prepared_txn=True,  # should a broker carry it out after all, it aborts nothing
            )
        )
        return _check_refusal("InitProducerId", name, code)

    async def _ask_keep(self, name: str) -> ResourceRights:
        """Find out whether KeepPreparedTxn is refused. A broker that has it refuses the timeout."""
        code = await self._ask_init(
            InitProducerIdRequest(
                transactional_id=name,
                transaction_timeout_ms=0,
                producer_id=INT64_MAX,
                producer_epoch=0,
                keep_prepared_txn=True,
            )
        )
        self._refuses_keep |= code == ErrorCode.UNSUPPORTED_VERSION
        return _check_refusal("InitProducerId", name, code)

    async def _ask_init(self, request: InitProducerIdRequest) -> int:
        node_id = await self._cluster.find_coordinator("transaction", request.transactional_id or "")
        answer = await self._cluster.send(node_id, request, InitProducerIdResponse, version=KEEP_API_VERSION)
        return answer.error_code


async def _probe(
    address: Address, settings: ConnectionSettings
) -> tuple[ServerFacts, NodeApiVersions | None]:
    """Return what a connection to an address tells."""
    name = str(address)
    try:
        connection = await connect(address, settings, NetworkMetrics())
    except (Unreachable, AuthenticationFailed) as exc:
        return ServerFacts(address=name, failure=exc.why, cause=_find_cause(exc)), None
    facts = ServerFacts(
        address=name, tls=_describe_tls(connection), session_lifetime_ms=connection.session_lifetime_ms
    )
    connection.close()
    await asyncio.wait((connection.closed_future,), timeout=1)
    return facts, connection.protocol_state.versions


def _find_cause(exc: Unreachable | AuthenticationFailed) -> FailureCause:
    match exc:
        case TlsFailed():
            return FailureCause.TLS
        case AuthenticationFailed():
            return FailureCause.LOGIN
        case _:
            return FailureCause.UNREACHABLE


def _describe_tls(connection: Connection) -> TlsSession | None:
    session = connection.ssl_object
    if session is None:
        return None
    certificate: Mapping[str, Any] = session.getpeercert() or {}
    subject = [
        value for parts in certificate.get("subject", ()) for key, value in parts if key == "commonName"
    ]
    alternatives = [str(pair[1]) for pair in certificate.get("subjectAltName", ())]
    end = certificate.get("notAfter")
    return TlsSession(
        version=session.version() or "",
        names=tuple(dict.fromkeys([*subject, *alternatives])),
        expires_at_ms=ssl.cert_time_to_seconds(str(end)) * 1000 if end else None,
    )


def describe_login(security: SecurityConfig) -> LoginFacts:
    """Return the client's login, with the principal if its settings name it."""
    if not security.has_sasl:
        has_key = security.tls.ssl_keystore_location or security.tls.ssl_keystore_key
        is_unknown = security.has_tls and (has_key or security.ssl_context is not None)
        return LoginFacts(protocol=security.protocol, principal="" if is_unknown else "User:ANONYMOUS")
    login = security.sasl.login
    is_token = login.mechanism == OAUTHBEARER
    principal = "" if is_token else f"User:{login.username}"
    return LoginFacts(protocol=security.protocol, mechanism=login.mechanism, principal=principal)


def parse_operations(bits: int) -> ResourceRights:
    """Read the bits of an `authorized_operations` field (KIP-430)."""
    if bits == OPERATIONS_NOT_ASKED:
        return ResourceRights(unknown_because="this broker does not tell operations (KIP-430)")
    allowed = frozenset(each for each in AclOperation if bits >> each & 1)
    return ResourceRights(allowed=allowed, denied=_EVERYTHING - allowed)


def _check_refusal(api: str, name: str, code: int) -> ResourceRights:
    """Pass if the request was refused for anything but a missing right: that is checked first."""
    error = build_broker_error(api, name, code) if code else None
    if isinstance(error, NotAuthorized) or (
        isinstance(error, BrokerRefused) and error.remedy is Remedy.FIND_COORDINATOR
    ):
        raise error
    return ResourceRights()
