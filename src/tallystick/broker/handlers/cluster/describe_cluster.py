"""DescribeCluster: the cluster's one broker (KIP-700)."""

from tallystick.broker.handlers.authorization import find_cluster_operations
from tallystick.broker.handlers.ports import ClusterPort
from tallystick.broker.handlers.topics.metadata import OPERATIONS_NOT_REQUESTED
from tallystick.broker.server.request_context import RequestContext
from tallystick.kernel.codes import ErrorCode
from tallystick.protocol.messages.cluster.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)

BROKERS = 1
CONTROLLERS = 2


def handle(
    broker: ClusterPort, request: DescribeClusterRequest, context: RequestContext
) -> DescribeClusterResponse:
    if request.endpoint_type != BROKERS:
        # KIP-919: a broker listener answers for brokers only.
        is_mismatch = request.endpoint_type == CONTROLLERS
        return DescribeClusterResponse(
            error_code=(
                ErrorCode.MISMATCHED_ENDPOINT_TYPE if is_mismatch else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
            ),
            error_message=f"endpoint type {request.endpoint_type} asked, this listener is for brokers, 1",
            endpoint_type=BROKERS,
            cluster_id="",
        )
    config, address = broker.config, broker.get_address(context.listener)
    return DescribeClusterResponse(
        endpoint_type=BROKERS,
        cluster_id=broker.cluster_id,
        controller_id=config.node_id,
        brokers=(
            DescribeClusterBroker(
                broker_id=config.node_id, host=address.host, port=address.port, rack=config.broker_rack
            ),
        ),
        cluster_authorized_operations=(
            find_cluster_operations(broker, context)
            if request.include_cluster_authorized_operations
            else OPERATIONS_NOT_REQUESTED
        ),
    )
