"""IncrementalAlterConfigs (44): change individual configs of a resource."""

from typing import Annotated

from tallystick.protocol.wire import BOOL, INT8, INT16, INT32, STRING, array, message, struct, wire


@struct
class AlterableConfig:
    name: Annotated[str, wire(STRING, "0+")]
    config_operation: Annotated[int, wire(INT8, "0+")]  # 0 set, 1 delete, 2 append, 3 subtract
    value: Annotated[str | None, wire(STRING, "0+", nullable="0+", secret=True)]  # may be a password


@struct
class AlterConfigsResource:
    resource_type: Annotated[int, wire(INT8, "0+")]
    resource_name: Annotated[str, wire(STRING, "0+")]
    configs: Annotated[tuple[AlterableConfig, ...], wire(array(AlterableConfig), "0+")] = ()


@message(api_key=44, versions="0-1", flexible="1+")
class IncrementalAlterConfigsRequest:
    """Configs to change; the others stay as they are.

    Source: KIP-339; Kafka IncrementalAlterConfigsRequest.
    """

    resources: Annotated[tuple[AlterConfigsResource, ...], wire(array(AlterConfigsResource), "0+")] = ()
    validate_only: Annotated[bool, wire(BOOL, "0+")]


@struct
class AlterConfigsResourceResponse:
    error_code: Annotated[int, wire(INT16, "0+")] = 0
    error_message: Annotated[str | None, wire(STRING, "0+", nullable="0+")] = None
    resource_type: Annotated[int, wire(INT8, "0+")]
    resource_name: Annotated[str, wire(STRING, "0+")]


@message(api_key=44, versions="0-1", flexible="1+")
class IncrementalAlterConfigsResponse:
    """One result per resource.

    Source: Kafka IncrementalAlterConfigsResponse.
    """

    throttle_time_ms: Annotated[int, wire(INT32, "0+")] = 0
    responses: Annotated[
        tuple[AlterConfigsResourceResponse, ...], wire(array(AlterConfigsResourceResponse), "0+")
    ] = ()
