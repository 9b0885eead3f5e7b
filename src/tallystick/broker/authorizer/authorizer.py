"""Authorization: the interface that every handler asks before it acts.

A handler names the one operation of its request. The authorizer knows that WRITE or READ implies DESCRIBE,
and ALL everything, as in Kafka. TWO_PHASE_COMMIT is implied by ALL alone, and implies nothing (KIP-939): a
transaction that never times out is granted separately from the right to write one.

Without an authorizer everything is allowed: `ALLOW_ALL`.

A request that is like the one before it need not ask: `allows` leaves what it allowed in the `known_rights`
of the connection, and handlers look there first, unless the audit log wants a line.

Source: Kafka Authorizer, AuthorizableRequestContext, AclOperation, ResourceType; KIP-939 "ACL Changes".
"""

from collections.abc import Callable, Hashable
from typing import Final, Protocol

from tallystick.broker.authorizer.acl_index import SUPPORTED_OPERATIONS, format_operations
from tallystick.broker.authorizer.bindings import CLUSTER_NAME, ResourcePattern
from tallystick.broker.authorizer.known_rights import KnownRights
from tallystick.protocol.acls import AclOperation, AclResource

Operation = AclOperation
ResourceType = AclResource

# A member of an enum costs as much to look up as a short call: what each request asks with has a name here.
TOPIC: Final = ResourceType.TOPIC
GROUP: Final = ResourceType.GROUP
_TRANSACTIONAL_ID: Final = ResourceType.TRANSACTIONAL_ID

CLUSTER_RESOURCE: Final = ResourcePattern(ResourceType.CLUSTER, CLUSTER_NAME)
# Returns how often a request names the resource of a name.
References = Callable[[str], int]


def count_one(name: str) -> int:
    """Return how often a request names what it can name once."""
    return 1


def topic_resource(name: str) -> ResourcePattern:
    return ResourcePattern(TOPIC, name)


def group_resource(group_id: str) -> ResourcePattern:
    return ResourcePattern(GROUP, group_id)


def transactional_id_resource(name: str) -> ResourcePattern:
    return ResourcePattern(_TRANSACTIONAL_ID, name)


class AuthorizableRequestContext(Protocol):
    """Facts about a request for the authorizer: nothing that the client merely claims."""

    @property
    def api_key(self) -> int: ...

    @property
    def client_host(self) -> str: ...

    @property
    def principal(self) -> Hashable:
        """The sender, whose string is `User:name`."""
        ...

    @property
    def known_rights(self) -> KnownRights:
        """What the authorizer leaves with the connection: `is_known` answers from it without asking."""
        ...


class Authorizer(Protocol):
    """Interface of authorizers, which answer immediately and from memory.

    The event loop calls them several times for each request.
    """

    @property
    def is_configured(self) -> bool:
        """Whether there are rights at all. If not, everything is allowed, and ACL requests are refused."""
        ...

    def allows(
        self,
        context: AuthorizableRequestContext,
        operation: Operation,
        resource: ResourcePattern,
        *,
        references: References = count_one,
        log_denied: bool = True,
    ) -> bool:
        """Return whether the sender of the request may perform the operation on the resource.

        Args:
            references: returns how often the request names a resource; called for the audit log alone.
            log_denied: False if the answer only filters a list: the sender did not ask for this resource.
        """
        ...

    def allows_any(
        self, context: AuthorizableRequestContext, operation: Operation, resource_type: ResourceType
    ) -> bool:
        """Return whether it may on at least one resource of the type: Kafka's `authorizeByResourceType`."""
        ...

    def find_authorized_operations(
        self, context: AuthorizableRequestContext, resource: ResourcePattern
    ) -> int:
        """Return the operations that it may perform on the resource, as bits (KIP-430); 0 for none."""
        ...


class _AllowAll:
    is_configured = False

    def allows(
        self,
        context: AuthorizableRequestContext,
        operation: Operation,
        resource: ResourcePattern,
        *,
        references: References = count_one,
        log_denied: bool = True,
    ) -> bool:
        return True

    def allows_any(
        self, context: AuthorizableRequestContext, operation: Operation, resource_type: ResourceType
    ) -> bool:
        return True

    def find_authorized_operations(
        self, context: AuthorizableRequestContext, resource: ResourcePattern
    ) -> int:
        return format_operations(SUPPORTED_OPERATIONS[resource.resource_type])


ALLOW_ALL: Final[Authorizer] = _AllowAll()
