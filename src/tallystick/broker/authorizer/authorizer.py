"""Authorization: the interface that every handler asks before it acts.

A handler names the one operation of its request. The authorizer knows that WRITE or READ implies DESCRIBE,
and ALL everything, as in Kafka. TWO_PHASE_COMMIT is implied by ALL alone, and implies nothing (KIP-939): a
transaction that never times out is granted separately from the right to write one.

Without an authorizer everything is allowed: `ALLOW_ALL`.

A request that is like the one before it need not ask: `allows` leaves what it allowed in the `known_rights`
of the connection, and handlers look there first, unless the audit log wants a line.

Source: Kafka Authorizer, AuthorizableRequestContext, AclOperation, ResourceType; KIP-939 "ACL Changes".
"""

import logging
from collections.abc import Callable, Hashable
from typing import Final, NewType, Protocol
from uuid import UUID

from tallystick.broker.authorizer.acl_index import SUPPORTED_OPERATIONS, format_operations
from tallystick.broker.authorizer.bindings import CLUSTER_NAME, ResourcePattern
from tallystick.protocol.acls import AclOperation, AclResource

Operation = AclOperation
ResourceType = AclResource

# A member of an enum costs as much to look up as a short call: what each request asks with has a name here.
TOPIC: Final = ResourceType.TOPIC
GROUP: Final = ResourceType.GROUP
_TRANSACTIONAL_ID: Final = ResourceType.TRANSACTIONAL_ID

# An operation on a type of resource, as a number, because it is a key of dictionaries on hot paths.
Right = NewType("Right", int)


def make_right(operation: Operation, resource_type: ResourceType) -> Right:
    return Right(operation << 8 | resource_type)


WRITE_TOPIC: Final = make_right(Operation.WRITE, TOPIC)
READ_TOPIC: Final = make_right(Operation.READ, TOPIC)
READGROUP: Final = make_right(Operation.READ, GROUP)
WRITE_TRANSACTIONAL_ID: Final = make_right(Operation.WRITE, _TRANSACTIONAL_ID)

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


class AllowedNames:
    """Names of resources on which one requester is known to have one right.

    Made, filled and emptied by an authorizer, which shares it among the connections of the requester. It is
    emptied in place before other ACLs are in force [ACL-1]: a connection that still has it finds nothing.

    names       of resources
    topic_ids   of some of those topics, as numbers, which hash faster than UUIDs
    checks      how often a handler has found an answer here, and asked no further
    """

    __slots__ = ("checks", "names", "topic_ids")

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.topic_ids: set[int] = set()
        self.checks = 0

    def add_id(self, topic_id: UUID, name: str) -> None:
        """Remember the id of a topic as well. The ids are of topics that exist, or did: they need a bound."""
        if name in self.names:
            if len(self.topic_ids) >= TOPIC_IDS_MAX:
                self.topic_ids.clear()
            self.topic_ids.add(topic_id.int)

    def clear(self) -> None:
        """Forget all names."""
        self.names.clear()
        self.topic_ids.clear()
        self.checks = 0


# What is known of a connection's requester. It belongs to one principal at one host, and ends with them.
KnownRights = dict[Right, AllowedNames]
TOPIC_IDS_MAX: Final = 20_000
# Of a right of which nothing is known.
NO_NAMES: Final = AllowedNames()


class AuthorizableRequestContext(Protocol):
    """What an authorizer may know of a request: nothing that the client merely claims."""

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
    """Interface of authorizers, which answer at once and from memory.

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

AUDIT_LOGGER: Final = "kafka.authorizer.logger"
# Whether the audit log wants lines of a level. Asked with every request, because levels change at any time.
is_audited: Final = logging.getLogger(AUDIT_LOGGER).isEnabledFor


def is_known(context: AuthorizableRequestContext, right: Right, name: str) -> bool:
    """Return whether a right is known to exist, and leaves nothing to log; if not, `allows` must be asked."""
    known = context.known_rights.get(right)
    if known is None or name not in known.names or is_audited(logging.DEBUG):
        return False
    known.checks += 1
    return True


def keep_id(context: AuthorizableRequestContext, right: Right, topic_id: UUID, name: str) -> None:
    """Leave the id of a topic with the connection if the right to its name is known to exist."""
    known = context.known_rights.get(right)
    if known is not None:
        known.add_id(topic_id, name)
