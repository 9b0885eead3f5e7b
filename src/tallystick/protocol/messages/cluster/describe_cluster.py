"""DescribeCluster (60): id and brokers of the cluster."""

from typing import Annotated

from tallystick.protocol.messages.topics.metadata import OPERATIONS_NOT_ASKED
from tallystick.protocol.wire import BOOL, INT8, INT16, INT32, STRING, array, message, struct, wire


@message(api_key=60, versions="0-2", flexible="0+")
class DescribeClusterRequest:
    """A request for brokers; 1 can ask for controllers (KIP-919), 2 for fenced brokers (KIP-1073).

    Source: KIP-700; Kafka DescribeClusterRequest.
    """

    include_cluster_authorized_operations: Annotated[bool, wire(BOOL, "0+")]
    endpoint_type: Annotated[int, wire(INT8, "1+")] = 1  # 1 brokers, 2 controllers
    include_fenced_brokers: Annotated[bool, wire(BOOL, "2+")] = False


@struct
class DescribeClusterBroker:
    broker_id: Annotated[int, wire(INT32, "0+")]
    host: Annotated[str, wire(STRING, "0+")]
    port: Annotated[int, wire(INT32, "0+")]
    rack: Annotated[str | None, wire(STRING, "0+", nullable="0+")] = None
    is_fenced: Annotated[bool, wire(BOOL, "2+")] = False


@message(api_key=60, versions="0-2", flexible="0+")
class DescribeClusterResponse:
    """The cluster as the responding broker knows it.

    Source: Kafka DescribeClusterResponse.
    """

    throttle_time_ms: Annotated[int, wire(INT32, "0+")] = 0
    error_code: Annotated[int, wire(INT16, "0+")] = 0
    error_message: Annotated[str | None, wire(STRING, "0+", nullable="0+")] = None
    endpoint_type: Annotated[int, wire(INT8, "1+")] = 1
    cluster_id: Annotated[str, wire(STRING, "0+")]
    controller_id: Annotated[int, wire(INT32, "0+")] = -1
    brokers: Annotated[tuple[DescribeClusterBroker, ...], wire(array(DescribeClusterBroker), "0+")] = ()
    cluster_authorized_operations: Annotated[int, wire(INT32, "0+")] = OPERATIONS_NOT_ASKED
