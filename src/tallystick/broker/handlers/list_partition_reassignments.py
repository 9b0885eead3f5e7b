"""ListPartitionReassignments: none with one broker; kafka-topics sends it before it describes."""

from tallystick.broker.broker import Broker
from tallystick.broker.server.request_context import RequestContext
from tallystick.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)


def handle(
    broker: Broker, request: ListPartitionReassignmentsRequest, context: RequestContext
) -> ListPartitionReassignmentsResponse:
    return ListPartitionReassignmentsResponse()
