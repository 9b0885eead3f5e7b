"""Facts about a cluster and a principal, as far as harmless requests tell them. Pure."""

from collections.abc import Mapping
from enum import Enum

from tallystick.client.transactions.modes import ClusterCapabilities, Mode
from tallystick.kernel.value import Value
from tallystick.protocol.acls import AclOperation, AclResource


class TlsSession(Value, kw_only=True):
    """The TLS session with a broker; `expires_at_ms` is None where the certificate was not checked."""

    version: str
    names: tuple[str, ...]
    expires_at_ms: int | None


class FailureCause(Enum):
    """The step at which a connection failed, which decides the advice."""

    UNREACHABLE = "unreachable"
    TLS = "TLS"
    LOGIN = "login"
    NOT_TRIED = "not tried"


class ServerFacts(Value, kw_only=True):
    """Result of one connection to an address of bootstrap.servers; an empty `failure` if it answered."""

    address: str
    failure: str = ""
    cause: FailureCause = FailureCause.UNREACHABLE
    tls: TlsSession | None = None
    session_lifetime_ms: int = 0


class LoginFacts(Value, kw_only=True):
    """The client's authentication; the principal is empty if only the broker knows it."""

    protocol: str = "PLAINTEXT"
    mechanism: str = ""
    principal: str = "User:ANONYMOUS"


class Resource(Value):
    """A topic, group or transactional id by name, or the cluster."""

    type: AclResource
    name: str


CLUSTER = Resource(AclResource.CLUSTER, "kafka-cluster")


class ResourceRights(Value, kw_only=True):
    """Operations that the principal has on a resource, those it lacks, and why the others are unknown."""

    allowed: frozenset[AclOperation] = frozenset()
    denied: frozenset[AclOperation] = frozenset()
    unknown_because: str = ""


class ClientPlan(Value, kw_only=True):
    """Settings of the application that the cluster must suit."""

    modes: tuple[Mode, ...] = (Mode.TWO_PHASE,)
    transaction_timeout_ms: int = 60_000


class DoctorFacts(Value, kw_only=True):
    """Everything that was learned. Without a broker that answers only `servers` and `login` mean something.

    usable_apis  the highest version that both sides support, by API key
    settings     settings of a broker by name
    settings_denied  whether the principal may not read them
    """

    servers: tuple[ServerFacts, ...]
    login: LoginFacts = LoginFacts()
    plan: ClientPlan = ClientPlan()
    usable_apis: Mapping[int, int] = {}
    features: Mapping[str, int] = {}
    capabilities: ClusterCapabilities | None = None
    settings: Mapping[str, str | None] = {}
    settings_failure: str = ""
    settings_denied: bool = False
    rights: Mapping[Resource, ResourceRights] = {}
