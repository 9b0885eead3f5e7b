"""ListConfigResources (74): list the resources that have configs."""

from typing import Annotated

from tallystick.protocol.wire import INT8, INT16, INT32, STRING, array, message, struct, wire


@message(api_key=74, versions="0-1", flexible="0+")
class ListConfigResourcesRequest:
    """Resource types to list; none means all.

    Version 0 lists client metrics only (KIP-714, then named ListClientMetricsResources); 1 is KIP-1142.

    Source: Kafka ListConfigResourcesRequest.
    """

    resource_types: Annotated[tuple[int, ...], wire(array(INT8), "1+")] = ()


@struct
class ConfigResource:
    resource_name: Annotated[str, wire(STRING, "0+")]
    # 16 client metrics; otherwise as in DescribeConfigs.
    resource_type: Annotated[int, wire(INT8, "1+", ignorable=True)] = 16


@message(api_key=74, versions="0-1", flexible="0+")
class ListConfigResourcesResponse:
    """Names of resources and, from version 1 on, their types.

    Source: Kafka ListConfigResourcesResponse.
    """

    throttle_time_ms: Annotated[int, wire(INT32, "0+")] = 0
    error_code: Annotated[int, wire(INT16, "0+")] = 0
    config_resources: Annotated[tuple[ConfigResource, ...], wire(array(ConfigResource), "0+")] = ()
