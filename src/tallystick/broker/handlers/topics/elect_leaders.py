"""ElectLeaders: every partition is led by its only replica, so no election is ever needed (KIP-460)."""

from typing import Final

from tallystick.broker.authorizer.authorizer import Operation
from tallystick.broker.handlers.authorization import may_on_cluster
from tallystick.broker.handlers.deduplicate import group_distinct, identity_key
from tallystick.broker.handlers.ports import TopicsPort
from tallystick.broker.handlers.sliced_response import SlicedTopicResponse
from tallystick.broker.server.request_context import RequestContext
from tallystick.kernel.codes import ErrorCode
from tallystick.protocol.messages.topics.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)

_PREFERRED, _UNCLEAN = 0, 1
REQUEST_ERROR_SINCE: Final = 1
_NOT_NEEDED: Final = "the broker leads the partition; it has the only replica"


async def handle(
    broker: TopicsPort, request: ElectLeadersRequest, context: RequestContext
) -> ElectLeadersResponse | SlicedTopicResponse:
    if not may_on_cluster(broker, context, Operation.ALTER):
        return _refuse(request, context)
    kind, topic_partitions = request.election_type, request.topic_partitions
    is_valid = kind in (_PREFERRED, _UNCLEAN)
    code = ErrorCode.NONE if is_valid or topic_partitions == () else ErrorCode.INVALID_REQUEST
    if topic_partitions is None:
        # For all topics, Kafka lists each with the partitions that needed an election: none here.
        every = tuple(ReplicaElectionResult(topic=name) for name in broker.topics.list_names() if is_valid)
        return ElectLeadersResponse(error_code=code, replica_election_results=every)
    return SlicedTopicResponse(
        lambda results: ElectLeadersResponse(error_code=code, replica_election_results=results),
        lambda name, result: ReplicaElectionResult(topic=name, partition_result=result),
        await group_distinct(((topic.topic, topic.partitions) for topic in topic_partitions), identity_key),
        lambda name, index: _elect(broker, name, index, kind),
    )


def _refuse(request: ElectLeadersRequest, context: RequestContext) -> ElectLeadersResponse:
    """Refuse the whole request, and each partition that it names. Source: ElectLeadersRequest."""
    code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    return ElectLeadersResponse(
        error_code=code if context.api_version >= REQUEST_ERROR_SINCE else ErrorCode.NONE,
        replica_election_results=tuple(
            ReplicaElectionResult(
                topic=topic.topic,
                partition_result=tuple(
                    PartitionResult(partition_id=index, error_code=code, error_message=None)
                    for index in topic.partitions
                ),
            )
            for topic in request.topic_partitions or ()
        ),
    )


def _elect(broker: TopicsPort, topic: str, index: int, kind: int) -> PartitionResult:
    if kind not in (_PREFERRED, _UNCLEAN):
        code, message = ErrorCode.INVALID_REQUEST, f"election type {kind} is unknown"
    elif broker.topics.find_partition(topic, index) is None:
        code, message = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"partition {topic}-{index} does not exist"
    else:
        code, message = ErrorCode.ELECTION_NOT_NEEDED, _NOT_NEEDED
    return PartitionResult(partition_id=index, error_code=code, error_message=message)
