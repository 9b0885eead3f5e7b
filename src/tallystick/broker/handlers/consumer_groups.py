"""ConsumerGroupHeartbeat and ConsumerGroupDescribe: refused, because all groups are classic here.

Both are served so that they can be refused. With `group.protocol=consumer`, librdkafka waits for ever if
ApiVersions does not list the first, and fails at once on UNSUPPORTED_VERSION, which a Kafka cluster with
`group.version` 0 answers, too. Java's tools then describe a group by the classic API.

Source: KIP-848; KafkaApis.handleConsumerGroupHeartbeat and handleConsumerGroupDescribe.
"""

from typing import Final

from tallystick.broker.broker import Broker
from tallystick.broker.handlers.distinct import distinct
from tallystick.broker.handlers.listing import Listed
from tallystick.broker.server.request_context import RequestContext
from tallystick.kernel.codes import ErrorCode
from tallystick.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
)
from tallystick.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

WHY: Final = (
    "this broker does not have the consumer group protocol; set group.protocol=classic on the consumer"
)


def heartbeat(
    broker: Broker, request: ConsumerGroupHeartbeatRequest, context: RequestContext
) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION, error_message=WHY, member_epoch=0, heartbeat_interval_ms=0
    )


def describe(broker: Broker, request: ConsumerGroupDescribeRequest, context: RequestContext) -> Listed:
    return Listed(
        lambda groups: ConsumerGroupDescribeResponse(groups=groups),
        distinct(request.group_ids),
        lambda group_id: DescribedGroup(
            error_code=ErrorCode.UNSUPPORTED_VERSION,
            error_message=WHY,
            group_id=group_id,
            group_state="",
            group_epoch=0,
            assignment_epoch=0,
            assignor_name="",
        ),
    )
