"""Authorization: the interface that every handler asks before it acts.

A handler names the one operation of its request. The authorizer knows that WRITE or READ implies DESCRIBE,
and ALL everything, as in Kafka. TWO_PHASE_COMMIT is implied by ALL alone, and implies nothing (KIP-939): a
transaction that never times out is granted separately from the right to write one.

Without an authorizer everything is allowed: `ALLOW_ALL`.

Source: Kafka AclOperation, ResourceType; KIP-939 "ACL Changes".
"""

from typing import Final, Protocol

from tallystick.broker.server.request_context import RequestContext
from tallystick.kernel.value import Value
from tallystick.protocol.acls import AclOperation, AclResource

Operation = AclOperation
ResourceType = AclResource


class Resource(Value):
    """One resource by its name."""

    type: ResourceType
    name: str


CLUSTER_RESOURCE: Final = Resource(ResourceType.CLUSTER, "kafka-cluster")


def topic_resource(name: str) -> Resource:
    return Resource(ResourceType.TOPIC, name)


def group_resource(group_id: str) -> Resource:
    return Resource(ResourceType.GROUP, group_id)


def transactional_id_resource(name: str) -> Resource:
    return Resource(ResourceType.TRANSACTIONAL_ID, name)


class Authorizer(Protocol):
    """Interface of authorizers, which answer at once and from memory.

    The event loop calls them several times for each request.
    """

    def allows(self, context: RequestContext, operation: Operation, resource: Resource) -> bool:
        """Return whether the sender of the request may perform the operation on the resource."""
        ...

    def allows_any(self, context: RequestContext, operation: Operation, resource_type: ResourceType) -> bool:
        """Return whether it may on at least one resource of the type: Kafka's `authorizeByResourceType`."""
        ...


class _AllowAll:
    def allows(self, context: RequestContext, operation: Operation, resource: Resource) -> bool:
        return True

    def allows_any(self, context: RequestContext, operation: Operation, resource_type: ResourceType) -> bool:
        return True


ALLOW_ALL: Final[Authorizer] = _AllowAll()
