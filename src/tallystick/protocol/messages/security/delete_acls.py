"""DeleteAcls (31): remove the ACLs that match filters.

The numbers are those of `describe_acls`.
"""

from typing import Annotated

from tallystick.protocol.wire import INT8, INT16, INT32, STRING, array, message, struct, wire


@struct
class DeleteAclsFilter:
    resource_type_filter: Annotated[int, wire(INT8, "1+")]
    resource_name_filter: Annotated[str | None, wire(STRING, "1+", nullable="1+")]
    pattern_type_filter: Annotated[int, wire(INT8, "1+")] = 3
    principal_filter: Annotated[str | None, wire(STRING, "1+", nullable="1+")]
    host_filter: Annotated[str | None, wire(STRING, "1+", nullable="1+")]
    operation: Annotated[int, wire(INT8, "1+")]
    permission_type: Annotated[int, wire(INT8, "1+")]


@message(api_key=31, versions="1-3", flexible="2+")
class DeleteAclsRequest:
    """Filters; every ACL that matches one of them is removed.

    Source: KIP-140, pattern types KIP-290; Kafka DeleteAclsRequest.
    """

    filters: Annotated[tuple[DeleteAclsFilter, ...], wire(array(DeleteAclsFilter), "1+")] = ()


@struct
class DeleteAclsMatchingAcl:
    error_code: Annotated[int, wire(INT16, "1+")] = 0
    error_message: Annotated[str | None, wire(STRING, "1+", nullable="1+")] = None
    resource_type: Annotated[int, wire(INT8, "1+")]
    resource_name: Annotated[str, wire(STRING, "1+")]
    pattern_type: Annotated[int, wire(INT8, "1+")] = 3
    principal: Annotated[str, wire(STRING, "1+")]
    host: Annotated[str, wire(STRING, "1+")]
    operation: Annotated[int, wire(INT8, "1+")]
    permission_type: Annotated[int, wire(INT8, "1+")]


@struct
class DeleteAclsFilterResult:
    error_code: Annotated[int, wire(INT16, "1+")] = 0
    error_message: Annotated[str | None, wire(STRING, "1+", nullable="1+")] = None
    matching_acls: Annotated[tuple[DeleteAclsMatchingAcl, ...], wire(array(DeleteAclsMatchingAcl), "1+")] = ()


@message(api_key=31, versions="1-3", flexible="2+")
class DeleteAclsResponse:
    """The ACLs that each filter matched, in the order of the request.

    Source: Kafka DeleteAclsResponse.
    """

    throttle_time_ms: Annotated[int, wire(INT32, "1+")] = 0
    filter_results: Annotated[
        tuple[DeleteAclsFilterResult, ...], wire(array(DeleteAclsFilterResult), "1+")
    ] = ()
