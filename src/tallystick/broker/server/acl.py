"""Who may do what: the question every handler asks, and the one interface that answers it.

A handler names the one operation that its request is; that WRITE or READ implies DESCRIBE, or ALL everything,
is for the authorizer to know, as in Kafka. TWO_PHASE_COMMIT is implied by ALL alone, and implies nothing
(KIP-939): a transaction that never times out is granted apart from the right to write one.

Without an authorizer everybody may do everything: `ALLOW_ALL`.

Source: Kafka AclOperation, ResourceType; KIP-939 "ACL Changes".
"""

from typing import Final, Protocol

from tallystick.broker.server.request_context import RequestContext
from tallystick.kernel.value import frozen
from tallystick.protocol.acls import AclOperation, AclResource

Operation = AclOperation
ResourceType = AclResource


@frozen
class Resource:
    """One thing by its name."""

    type: ResourceType
    name: str


CLUSTER: Final = Resource(ResourceType.CLUSTER, "kafka-cluster")


def topic(name: str) -> Resource:
    return Resource(ResourceType.TOPIC, name)


def group(group_id: str) -> Resource:
    return Resource(ResourceType.GROUP, group_id)


def transactional_id(name: str) -> Resource:
    return Resource(ResourceType.TRANSACTIONAL_ID, name)


class Authorizer(Protocol):
    """Answers at once, and from memory: it is asked on the event loop, several times a request."""

    def allows(self, context: RequestContext, operation: Operation, resource: Resource) -> bool:
        """May whoever sent the request do this to that?"""
        ...

    def allows_any(self, context: RequestContext, operation: Operation, resource_type: ResourceType) -> bool:
        """May they do this to at least one resource of the type? Kafka's `authorizeByResourceType`."""
        ...


class _AllowAll:
    def allows(self, context: RequestContext, operation: Operation, resource: Resource) -> bool:
        return True

    def allows_any(self, context: RequestContext, operation: Operation, resource_type: ResourceType) -> bool:
        return True


ALLOW_ALL: Final[Authorizer] = _AllowAll()
