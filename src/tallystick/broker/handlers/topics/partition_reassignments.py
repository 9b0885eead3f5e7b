"""AlterPartitionReassignments and ListPartitionReassignments: with one broker there is nothing to reassign.

The present assignment, to this broker, is accepted, and no other: tools that balance a cluster send the whole
assignment, most of it unchanged. None is ever under way; kafka-topics asks for them before it describes.
"""

from typing import Final

from tallystick.broker.authorizer.authorizer import Operation
from tallystick.broker.handlers.authorization import may_on_cluster
from tallystick.broker.handlers.deduplicate import group_distinct
from tallystick.broker.handlers.ports import TopicsPort
from tallystick.broker.handlers.sliced_response import SlicedTopicResponse
from tallystick.broker.server.request_context import RequestContext
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.protocol.messages.topics.partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)

_NOT_AUTHORIZED: Final = Reject(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed.")


async def alter(
    broker: TopicsPort, request: AlterPartitionReassignmentsRequest, context: RequestContext
) -> AlterPartitionReassignmentsResponse | SlicedTopicResponse:
    """Answer AlterPartitionReassignments."""
    if not may_on_cluster(broker, context, Operation.ALTER):
        return AlterPartitionReassignmentsResponse(
            error_code=_NOT_AUTHORIZED.code, error_message=_NOT_AUTHORIZED.reason
        )
    return SlicedTopicResponse(
        lambda responses: AlterPartitionReassignmentsResponse(
            allow_replication_factor_change=request.allow_replication_factor_change, responses=responses
        ),
        lambda name, partitions: ReassignableTopicResponse(name=name, partitions=partitions),
        await group_distinct(
            ((each.name, each.partitions) for each in request.topics), lambda p: p.partition_index
        ),
        lambda name, part_request: _reassign(broker, name, part_request),
    )


def list_under_way(
    broker: TopicsPort, request: ListPartitionReassignmentsRequest, context: RequestContext
) -> ListPartitionReassignmentsResponse:
    """Answer ListPartitionReassignments."""
    if not may_on_cluster(broker, context, Operation.DESCRIBE):
        return ListPartitionReassignmentsResponse(
            error_code=_NOT_AUTHORIZED.code, error_message=_NOT_AUTHORIZED.reason
        )
    return ListPartitionReassignmentsResponse()


def _reassign(
    broker: TopicsPort, topic: str, request: ReassignablePartition
) -> ReassignablePartitionResponse:
    index = request.partition_index
    if broker.topics.find_partition(topic, index) is None:
        refusal: Reject | None = Reject(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"partition {topic}-{index} does not exist"
        )
    else:
        refusal = _check_replicas(request.replicas, broker.config.node_id)
    if refusal is None:
        return ReassignablePartitionResponse(partition_index=index)
    return ReassignablePartitionResponse(
        partition_index=index, error_code=refusal.code, error_message=refusal.reason
    )


def _check_replicas(replicas: tuple[int, ...] | None, node: int) -> Reject | None:
    """Return why a partition cannot have these replicas, or None if it has them.

    Null replicas cancel a reassignment.

    Source: KIP-455; ReplicationControlManager.alterPartitionReassignment.
    """
    if replicas is None:
        return Reject(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "no reassignment is in progress")
    if replicas == (node,):
        return None
    return Reject(
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        f"the requested replicas are {list(replicas)}, but the only broker is {node}",
    )
