"""CreateAcls (30): add ACLs.

The numbers are those of `describe_acls`.
"""

from typing import Annotated

from tallystick.protocol.wire import INT8, INT16, INT32, STRING, array, message, struct, wire


@struct
class AclCreation:
    resource_type: Annotated[int, wire(INT8, "1+")]
    resource_name: Annotated[str, wire(STRING, "1+")]
    resource_pattern_type: Annotated[int, wire(INT8, "1+")] = 3
    principal: Annotated[str, wire(STRING, "1+")]
    host: Annotated[str, wire(STRING, "1+")]
    operation: Annotated[int, wire(INT8, "1+")]
    permission_type: Annotated[int, wire(INT8, "1+")]


@message(api_key=30, versions="1-3", flexible="2+")
class CreateAclsRequest:
    """ACLs to add; each is accepted or refused on its own.

    Source: KIP-140, pattern types KIP-290; Kafka CreateAclsRequest.
    """

    creations: Annotated[tuple[AclCreation, ...], wire(array(AclCreation), "1+")] = ()


@struct
class AclCreationResult:
    error_code: Annotated[int, wire(INT16, "1+")] = 0
    error_message: Annotated[str | None, wire(STRING, "1+", nullable="1+")] = None


@message(api_key=30, versions="1-3", flexible="2+")
class CreateAclsResponse:
    """One result per ACL, in the order of the request.

    Source: Kafka CreateAclsResponse.
    """

    throttle_time_ms: Annotated[int, wire(INT32, "1+")] = 0
    results: Annotated[tuple[AclCreationResult, ...], wire(array(AclCreationResult), "1+")] = ()
