"""DescribeConfigs (32): configs of topics, brokers and groups, with the source of each value."""

from typing import Annotated

from tallystick.protocol.wire import BOOL, INT8, INT16, INT32, STRING, array, message, struct, wire


@struct
class DescribeConfigsResource:
    # 2 topic, 4 broker, 8 broker logger, 16 client metrics, 32 group.
    resource_type: Annotated[int, wire(INT8, "1+")]
    resource_name: Annotated[str, wire(STRING, "1+")]
    configuration_keys: Annotated[tuple[str, ...] | None, wire(array(STRING), "1+", nullable="1+")]


@message(api_key=32, versions="1-4", flexible="4+")
class DescribeConfigsRequest:
    """Resources and their config keys; null keys mean all.

    1 adds synonyms (KIP-226), 3 documentation and types (KIP-569).

    Source: KIP-133; Kafka DescribeConfigsRequest.
    """

    resources: Annotated[tuple[DescribeConfigsResource, ...], wire(array(DescribeConfigsResource), "1+")] = ()
    include_synonyms: Annotated[bool, wire(BOOL, "1+")] = False
    include_documentation: Annotated[bool, wire(BOOL, "3+")] = False


@struct
class DescribeConfigsSynonym:
    name: Annotated[str, wire(STRING, "1+")]
    value: Annotated[str | None, wire(STRING, "1+", nullable="1+")]
    source: Annotated[int, wire(INT8, "1+")]


@struct
class DescribeConfigsResourceResult:
    name: Annotated[str, wire(STRING, "1+")]
    value: Annotated[str | None, wire(STRING, "1+", nullable="1+")]
    read_only: Annotated[bool, wire(BOOL, "1+")]
    # 1 topic, 2 broker, 3 all brokers, 4 server.properties, 5 default, 8 group.
    config_source: Annotated[int, wire(INT8, "1+")] = -1
    is_sensitive: Annotated[bool, wire(BOOL, "1+")]
    # Fallback sources of the value, nearest first.
    synonyms: Annotated[tuple[DescribeConfigsSynonym, ...], wire(array(DescribeConfigsSynonym), "1+")] = ()
    # 1 boolean, 2 string, 3 int, 4 short, 5 long, 6 double, 7 list, 8 class, 9 password.
    config_type: Annotated[int, wire(INT8, "3+", ignorable=True)] = 0
    documentation: Annotated[str | None, wire(STRING, "3+", nullable="3+", ignorable=True)] = None


@struct
class DescribeConfigsResult:
    error_code: Annotated[int, wire(INT16, "1+")] = 0
    error_message: Annotated[str | None, wire(STRING, "1+", nullable="1+")] = None
    resource_type: Annotated[int, wire(INT8, "1+")]
    resource_name: Annotated[str, wire(STRING, "1+")]
    configs: Annotated[
        tuple[DescribeConfigsResourceResult, ...], wire(array(DescribeConfigsResourceResult), "1+")
    ] = ()


@message(api_key=32, versions="1-4", flexible="4+")
class DescribeConfigsResponse:
    """Configs with their source; a sensitive value is null.

    Source: Kafka DescribeConfigsResponse.
    """

    throttle_time_ms: Annotated[int, wire(INT32, "1+")] = 0
    results: Annotated[tuple[DescribeConfigsResult, ...], wire(array(DescribeConfigsResult), "1+")] = ()
