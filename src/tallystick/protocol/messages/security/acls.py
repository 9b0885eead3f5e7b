"""DescribeAcls (29), CreateAcls (30) and DeleteAcls (31).

Numbers that all three ACL APIs use; 1 always means "any" and is for filters only:

    resource type    2 topic, 3 group, 4 cluster, 5 transactional id, 6 delegation token, 7 user
    pattern type     2 match (literal, prefixed and "*" that apply to a name), 3 literal, 4 prefixed
    operation        2 all, 3 read, 4 write, 5 create, 6 delete, 7 alter, 8 describe, 9 cluster action,
                     10 describe configs, 11 alter configs, 12 idempotent write, 13 create tokens,
                     14 describe tokens, 15 two-phase commit (KIP-939)
    permission type  2 deny, 3 allow

Source: Kafka ResourceType, PatternType, AclOperation, AclPermissionType.
"""

from typing import Annotated

from tallystick.protocol.wire import INT8, INT16, INT32, STRING, array, message, struct, wire


@message(api_key=29, versions="1-3", flexible="2+")
class DescribeAclsRequest:
    """A filter of ACLs; null matches every name, principal or host.

    Source: KIP-140, pattern types KIP-290, user principals KIP-373 (v3); Kafka DescribeAclsRequest.
    """

    resource_type_filter: Annotated[int, wire(INT8, "1+")]
    resource_name_filter: Annotated[str | None, wire(STRING, "1+", nullable="1+")]
    pattern_type_filter: Annotated[int, wire(INT8, "1+")] = 3
    principal_filter: Annotated[str | None, wire(STRING, "1+", nullable="1+")]
    host_filter: Annotated[str | None, wire(STRING, "1+", nullable="1+")]
    operation: Annotated[int, wire(INT8, "1+")]
    permission_type: Annotated[int, wire(INT8, "1+")]


@struct
class AclDescription:
    principal: Annotated[str, wire(STRING, "1+")]
    host: Annotated[str, wire(STRING, "1+")]
    operation: Annotated[int, wire(INT8, "1+")]
    permission_type: Annotated[int, wire(INT8, "1+")]


@struct
class DescribeAclsResource:
    resource_type: Annotated[int, wire(INT8, "1+")]
    resource_name: Annotated[str, wire(STRING, "1+")]
    pattern_type: Annotated[int, wire(INT8, "1+")] = 3
    acls: Annotated[tuple[AclDescription, ...], wire(array(AclDescription), "1+")] = ()


@message(api_key=29, versions="1-3", flexible="2+")
class DescribeAclsResponse:
    """The matching ACLs, by resource.

    Source: Kafka DescribeAclsResponse.
    """

    throttle_time_ms: Annotated[int, wire(INT32, "1+")] = 0
    error_code: Annotated[int, wire(INT16, "1+")] = 0
    error_message: Annotated[str | None, wire(STRING, "1+", nullable="1+")] = None
    resources: Annotated[tuple[DescribeAclsResource, ...], wire(array(DescribeAclsResource), "1+")] = ()


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
