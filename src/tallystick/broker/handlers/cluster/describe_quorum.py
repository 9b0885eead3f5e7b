"""DescribeQuorum: the broker is its own controller, and the only voter (KIP-595).

Topics and settings are in SQLite and not in a metadata log, so offsets and epoch are 0.
"""

from tallystick.broker.authorizer.authorizer import Operation
from tallystick.broker.handlers.authorization import may_on_cluster
from tallystick.broker.handlers.deduplicate import group_distinct
from tallystick.broker.handlers.ports import ClusterPort
from tallystick.broker.handlers.sliced_response import SlicedTopicResponse
from tallystick.broker.server.request_context import RequestContext
from tallystick.kernel.codes import ErrorCode
from tallystick.protocol.messages.cluster.describe_quorum import (
    CLUSTER_METADATA,
    DescribeQuorumListener,
    DescribeQuorumNode,
    DescribeQuorumPartition,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    DescribeQuorumTopic,
    ReplicaState,
)


async def handle(
    broker: ClusterPort, request: DescribeQuorumRequest, context: RequestContext
) -> DescribeQuorumResponse | SlicedTopicResponse:
    if not may_on_cluster(broker, context, Operation.DESCRIBE):
        return DescribeQuorumResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    address = broker.get_address(context.listener)
    listener = DescribeQuorumListener(name=context.listener, host=address.host, port=address.port)
    nodes = (DescribeQuorumNode(node_id=broker.config.node_id, listeners=(listener,)),)
    rows = ((topic.topic_name, topic.partitions) for topic in request.topics)
    return SlicedTopicResponse(
        lambda topics: DescribeQuorumResponse(topics=topics, nodes=nodes),
        lambda name, partitions: DescribeQuorumTopic(topic_name=name, partitions=partitions),
        await group_distinct(rows, lambda partition: partition.partition_index),
        lambda name, partition: _describe(broker, name, partition.partition_index),
    )


def _describe(broker: ClusterPort, topic: str, index: int) -> DescribeQuorumPartition:
    if (topic, index) != (CLUSTER_METADATA, 0):
        return DescribeQuorumPartition(
            partition_index=index,
            error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            error_message=f"only {CLUSTER_METADATA}-0 has a quorum",
            leader_id=0,
            leader_epoch=0,
            high_watermark=0,
        )
    node, now_ms = broker.config.node_id, broker.clock.now_ms()
    voter = ReplicaState(
        replica_id=node, log_end_offset=0, last_fetch_timestamp=now_ms, last_caught_up_timestamp=now_ms
    )
    return DescribeQuorumPartition(
        partition_index=index, leader_id=node, leader_epoch=0, high_watermark=0, current_voters=(voter,)
    )
