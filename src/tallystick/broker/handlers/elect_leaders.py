"""ElectLeaders: every partition is led by its only replica, so no election is ever needed (KIP-460)."""

from typing import Final

from tallystick.broker.authorizer.authorizer import Operation
from tallystick.broker.handlers.authorization import may_on_cluster
from tallystick.broker.handlers.deduplicate import group_distinct, identity_key
from tallystick.broker.handlers.ports import TopicsPort
from tallystick.broker.handlers.sliced_response import SlicedTopicResponse
from tallystick.broker.server.request_context import RequestContext
from tallystick.kernel.codes import ErrorCode
from tallystick.protocol.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)

_PREFERRED, _UNCLEAN = 0, 1
_NOT_NEEDED: Final = "the broker leads the partition; it has the only replica"


async def handle(
    broker: TopicsPort, request: ElectLeadersRequest, context: RequestContext
) -> ElectLeadersResponse | SlicedTopicResponse:
    if not may_on_cluster(broker, context, Operation.ALTER):
        return _refuse(request)
    kind, wanted = request.election_type, request.topic_partitions
    known = kind in (_PREFERRED, _UNCLEAN)
    code = ErrorCode.NONE if known or wanted == () else ErrorCode.INVALID_REQUEST
    if wanted is None:
        # For all topics, Kafka lists each with the partitions that needed an election: none here.
        every = tuple(ReplicaElectionResult(topic=name) for name in broker.topics.list_names() if known)
        return ElectLeadersResponse(error_code=code, replica_election_results=every)
    return SlicedTopicResponse(
        lambda results: ElectLeadersResponse(error_code=code, replica_election_results=results),
        lambda name, elected: ReplicaElectionResult(topic=name, partition_result=elected),
        await group_distinct(((topic.topic, topic.partitions) for topic in wanted), identity_key),
        lambda name, index: _elect(broker, name, index, kind),
    )


def _refuse(request: ElectLeadersRequest) -> ElectLeadersResponse:
    """Refuse the whole request, and each partition that it names. Source: ElectLeadersRequest."""
    code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    return ElectLeadersResponse(
        error_code=code,
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
        code, why = ErrorCode.INVALID_REQUEST, f"election type {kind} is unknown"
    elif broker.topics.find_partition(topic, index) is None:
        code, why = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {topic}-{index}"
    else:
        code, why = ErrorCode.ELECTION_NOT_NEEDED, _NOT_NEEDED
    return PartitionResult(partition_id=index, error_code=code, error_message=why)
