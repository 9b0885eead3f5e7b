"""DescribeConfigs: settings of topics and of the broker, with their sources (KIP-133, KIP-226)."""

from collections.abc import Iterable

from tallystick.broker.authorizer.authorizer import Operation
from tallystick.broker.handlers.cluster.config_view import (
    ConfigResourceType,
    DescribedSetting,
    check_config_right,
    describe_broker_settings,
    describe_default_settings,
    describe_topic_settings,
)
from tallystick.broker.handlers.ports import ConfigsPort
from tallystick.broker.handlers.sliced_response import SlicedListResponse
from tallystick.broker.partitions.topics import check_topic_name
from tallystick.broker.server.request_context import RequestContext
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.settings import SettingType
from tallystick.protocol.messages.cluster.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)


def handle(
    broker: ConfigsPort, request: DescribeConfigsRequest, context: RequestContext
) -> SlicedListResponse:
    # If a resource is requested twice with different keys, the last request counts.
    distinct = {(each.resource_type, each.resource_name): each for each in request.resources}
    return SlicedListResponse(
        lambda results: DescribeConfigsResponse(results=results),
        tuple(distinct.values()),
        lambda resource: _describe(broker, resource, request, context),
    )


def _describe(
    broker: ConfigsPort,
    resource: DescribeConfigsResource,
    request: DescribeConfigsRequest,
    context: RequestContext,
) -> DescribeConfigsResult:
    kind, name = resource.resource_type, resource.resource_name
    settings = check_config_right(
        broker, context, Operation.DESCRIBE_CONFIGS, kind, name
    ) or _describe_settings(broker, resource)
    if isinstance(settings, Reject):
        return DescribeConfigsResult(
            error_code=settings.code,
            error_message=settings.reason,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
        )
    keys = None if resource.configuration_keys is None else frozenset(resource.configuration_keys)
    return DescribeConfigsResult(
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        configs=tuple(
            _build_result(described, request)
            for described in settings
            if keys is None or described.setting.name in keys
        ),
    )


def _describe_settings(
    broker: ConfigsPort, resource: DescribeConfigsResource
) -> Iterable[DescribedSetting] | Reject:
    name = resource.resource_name
    match resource.resource_type:
        case ConfigResourceType.TOPIC:
            topic = broker.topics.find(name)
            if topic is not None:
                return describe_topic_settings(broker, topic)
            return check_topic_name(name) or Reject(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name!r} does not exist"
            )
        case ConfigResourceType.BROKER if name == "":
            return describe_default_settings(broker)
        case ConfigResourceType.BROKER if name == str(broker.config.node_id):
            return describe_broker_settings(broker)
        case ConfigResourceType.BROKER:
            return Reject(
                ErrorCode.INVALID_REQUEST,
                f"broker {name!r} does not exist; the only one is {broker.config.node_id}",
            )
        case ConfigResourceType.GROUP if name == "":
            return Reject(ErrorCode.INVALID_REQUEST, "the group id must not be empty")
        case ConfigResourceType.GROUP | ConfigResourceType.CLIENT_METRICS | ConfigResourceType.BROKER_LOGGER:
            return ()
        case other:
            return Reject(ErrorCode.INVALID_REQUEST, f"resource type {other} is unknown")


def _build_result(
    described: DescribedSetting, request: DescribeConfigsRequest
) -> DescribeConfigsResourceResult:
    synonyms = described.synonyms if request.include_synonyms else ()
    return DescribeConfigsResourceResult(
        name=described.setting.name,
        value=described.value,
        read_only=described.is_read_only,
        config_source=described.source,
        is_sensitive=described.setting.kind is SettingType.PASSWORD,
        synonyms=tuple(
            DescribeConfigsSynonym(name=origin.name, value=origin.value, source=origin.source)
            for origin in synonyms
        ),
        config_type=described.setting.kind,
        documentation=described.setting.doc if request.include_documentation else None,
    )
