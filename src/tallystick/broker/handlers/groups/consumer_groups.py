"""ConsumerGroupHeartbeat and ConsumerGroupDescribe: refused, because all groups are classic here.

Both are served so that they can be refused. With `group.protocol=consumer`, librdkafka waits for ever if
ApiVersions does not list the first, and fails immediately on UNSUPPORTED_VERSION, which a Kafka cluster with
`group.version` 0 answers, too. Java's tools then describe a group by the classic API.

Source: KIP-848; KafkaApis.handleConsumerGroupHeartbeat and handleConsumerGroupDescribe.
"""

from typing import Final

from tallystick.broker.handlers.deduplicate import deduplicate
from tallystick.broker.handlers.ports import HasAuthorizer
from tallystick.broker.handlers.sliced_response import SlicedListResponse
from tallystick.broker.server.request_context import RequestContext
from tallystick.kernel.codes import ErrorCode
from tallystick.protocol.messages.groups.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
)
from tallystick.protocol.messages.groups.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

UNSUPPORTED_REASON: Final = (
    "this broker does not have the consumer group protocol; set group.protocol=classic on the consumer"
)


def heartbeat(
    broker: HasAuthorizer, request: ConsumerGroupHeartbeatRequest, context: RequestContext
) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION,
        error_message=UNSUPPORTED_REASON,
        member_epoch=0,
        heartbeat_interval_ms=0,
    )


def describe(
    broker: HasAuthorizer, request: ConsumerGroupDescribeRequest, context: RequestContext
) -> SlicedListResponse:
    return SlicedListResponse(
        lambda groups: ConsumerGroupDescribeResponse(groups=groups),
        deduplicate(request.group_ids),
        # As in Kafka without a text, which would be many times the name of each group.
        lambda group_id: DescribedGroup(
            error_code=ErrorCode.UNSUPPORTED_VERSION,
            error_message=None,
            group_id=group_id,
            group_state="",
            group_epoch=0,
            assignment_epoch=0,
            assignor_name="",
        ),
    )
