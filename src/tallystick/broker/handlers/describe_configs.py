"""DescribeConfigs: settings of topics and of the broker, with their sources (KIP-133, KIP-226)."""

from collections.abc import Iterable

from tallystick.broker.broker import Broker
from tallystick.broker.handlers.config_view import (
    ResourceType,
    Shown,
    broker_settings,
    default_broker_settings,
    topic_settings,
)
from tallystick.broker.handlers.listing import Listed
from tallystick.broker.partitions.topics import check_name
from tallystick.broker.server.request_context import RequestContext
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)


def handle(broker: Broker, request: DescribeConfigsRequest, context: RequestContext) -> Listed:
    # If a resource is requested twice with different keys, the last request counts.
    wanted = {(each.resource_type, each.resource_name): each for each in request.resources}
    return Listed(
        lambda results: DescribeConfigsResponse(results=results),
        tuple(wanted.values()),
        lambda resource: _describe(broker, resource, request),
    )


def _describe(
    broker: Broker, resource: DescribeConfigsResource, request: DescribeConfigsRequest
) -> DescribeConfigsResult:
    found = _settings(broker, resource)
    if isinstance(found, Reject):
        return DescribeConfigsResult(
            error_code=found.code,
            error_message=found.reason,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
        )
    keys = None if resource.configuration_keys is None else frozenset(resource.configuration_keys)
    return DescribeConfigsResult(
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        configs=tuple(
            _result(shown, request) for shown in found if keys is None or shown.setting.name in keys
        ),
    )


def _settings(broker: Broker, resource: DescribeConfigsResource) -> Iterable[Shown] | Reject:
    name = resource.resource_name
    match resource.resource_type:
        case ResourceType.TOPIC:
            topic = broker.topics.find(name)
            if topic is not None:
                return topic_settings(broker, topic)
            return check_name(name) or Reject(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}"
            )
        case ResourceType.BROKER if name == "":
            return default_broker_settings(broker)
        case ResourceType.BROKER if name == str(broker.config.node_id):
            return broker_settings(broker)
        case ResourceType.BROKER:
            return Reject(
                ErrorCode.INVALID_REQUEST, f"broker {name!r} is not this one, {broker.config.node_id}"
            )
        case ResourceType.GROUP if name == "":
            return Reject(ErrorCode.INVALID_REQUEST, "a group's name must not be empty")
        case ResourceType.GROUP | ResourceType.CLIENT_METRICS | ResourceType.BROKER_LOGGER:
            return ()
        case other:
            return Reject(ErrorCode.INVALID_REQUEST, f"resource type {other} is unknown")


def _result(shown: Shown, request: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
    synonyms = shown.origins if request.include_synonyms else ()
    return DescribeConfigsResourceResult(
        name=shown.setting.name,
        value=shown.value,
        read_only=shown.read_only,
        config_source=shown.source,
        is_sensitive=False,
        synonyms=tuple(
            DescribeConfigsSynonym(name=origin.name, value=origin.value, source=origin.source)
            for origin in synonyms
        ),
        config_type=shown.setting.kind,
        documentation=shown.setting.doc if request.include_documentation else None,
    )
