"""ListConfigResources: lists the topics and the broker; no client metrics or group settings exist here."""

from tallystick.broker.authorizer.authorizer import Operation
from tallystick.broker.handlers.authorization import may_on_cluster
from tallystick.broker.handlers.cluster.config_view import ConfigResourceType
from tallystick.broker.handlers.ports import TopicsPort
from tallystick.broker.server.request_context import RequestContext
from tallystick.kernel.codes import ErrorCode
from tallystick.protocol.messages.cluster.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)


def handle(
    broker: TopicsPort, request: ListConfigResourcesRequest, context: RequestContext
) -> ListConfigResourcesResponse:
    if not may_on_cluster(broker, context, Operation.DESCRIBE_CONFIGS):
        return ListConfigResourcesResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    # Version 0 lists client metrics only (KIP-714), and there are none.
    types = set(request.resource_types) or set(ConfigResourceType)
    if context.api_version == 0:
        types = {ConfigResourceType.CLIENT_METRICS}
    if not types <= set(ConfigResourceType):
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    resources = []
    if ConfigResourceType.TOPIC in types:
        resources += [(name, ConfigResourceType.TOPIC) for name in broker.topics.list_names()]
    for kind in (ConfigResourceType.BROKER, ConfigResourceType.BROKER_LOGGER):
        if kind in types:
            resources.append((str(broker.config.node_id), kind))
    return ListConfigResourcesResponse(
        config_resources=tuple(
            ConfigResource(resource_name=name, resource_type=kind) for name, kind in resources
        )
    )
