"""ACLs as values: list, create and delete them (KIP-140, KIP-290).

A rule allows or denies a principal, from a host, an operation on the resources with one name (LITERAL) or a
name prefix (PREFIXED). In a filter, None and ANY match everything.
"""

from collections.abc import Iterable, Sequence
from enum import IntEnum
from itertools import chain
from typing import TypeVar

from tallystick.admin.admin_call import AdminCall, Answers
from tallystick.client.errors import ClientError, build_broker_error
from tallystick.kernel.errors import Effect, Remedy
from tallystick.kernel.value import Value
from tallystick.protocol.acls import AclOperation, AclPattern, AclPermission, AclResource
from tallystick.protocol.messages.security import acls as acls_api

E = TypeVar("E", bound=IntEnum)


class Acl(Value, kw_only=True):
    """One ACL. A field is a plain number if it comes from a newer version."""

    resource: AclResource | int
    name: str
    pattern: AclPattern | int = AclPattern.LITERAL
    principal: str
    host: str = "*"
    operation: AclOperation | int
    permission: AclPermission | int = AclPermission.ALLOW

    def __str__(self) -> str:
        rule = f"{_display_name(self.permission)} {_display_name(self.operation)}"
        return f"{rule} to {self.principal} on {_display_name(self.resource)} {self.name!r}"


class AclFilter(Value, kw_only=True):
    """A filter that matches the rules equal in every field that is not None or ANY."""

    resource: AclResource = AclResource.ANY
    name: str | None = None
    pattern: AclPattern = AclPattern.ANY
    principal: str | None = None
    host: str | None = None
    operation: AclOperation = AclOperation.ANY
    permission: AclPermission = AclPermission.ANY


class PartlyDeleted(ClientError):
    """Only some of the rules that a filter matches were deleted: those in `deleted`."""

    effect = Effect.UNKNOWN
    remedy = Remedy.LOOK_UP

    def __init__(self, why: str, deleted: tuple[Acl, ...]) -> None:
        super().__init__(why, deleted)
        self.why, self.deleted = why, deleted

    def what(self) -> str:
        return f"{self.why}; deleted of that filter: {len(self.deleted)} rules"


async def describe(call: AdminCall, acl_filter: AclFilter) -> tuple[Acl, ...]:
    request = acls_api.DescribeAclsRequest(
        resource_type_filter=acl_filter.resource,
        resource_name_filter=acl_filter.name,
        pattern_type_filter=acl_filter.pattern,
        principal_filter=acl_filter.principal,
        host_filter=acl_filter.host,
        operation=acl_filter.operation,
        permission_type=acl_filter.permission,
    )

    async def attempt() -> tuple[Acl, ...]:
        answer = await call.cluster.send(await call.find_controller(), request, acls_api.DescribeAclsResponse)
        if answer.error_code:
            raise build_broker_error("DescribeAcls", "", answer.error_code, answer.error_message)
        return tuple(
            _to_acl((resource.resource_type, resource.resource_name, resource.pattern_type), each)
            for resource in answer.resources
            for each in resource.acls
        )

    return await call.cluster.run_with_retries("DescribeAcls", "", attempt, call.deadline)


async def create(call: AdminCall, acls: Iterable[Acl]) -> Answers[Acl, None]:
    async def ask(some: Sequence[Acl]) -> dict[Acl, ClientError | None]:
        request = acls_api.CreateAclsRequest(creations=tuple(_to_acl_creation(each) for each in some))
        answer = await call.cluster.send(await call.find_controller(), request, acls_api.CreateAclsResponse)
        return {
            acl: build_broker_error("CreateAcls", acl, each.error_code, each.error_message)
            if each.error_code
            else None
            for acl, each in zip(some, answer.results, strict=False)
        }

    return await call.send_with_retries("CreateAcls", acls, ask)


async def delete(call: AdminCall, filters: Iterable[AclFilter]) -> Answers[AclFilter, tuple[Acl, ...]]:
    deleted: dict[AclFilter, list[Acl]] = {acl_filter: [] for acl_filter in filters}

    async def ask(some: Sequence[AclFilter]) -> dict[AclFilter, ClientError | None]:
        request = acls_api.DeleteAclsRequest(filters=tuple(_to_wire_filter(each) for each in some))
        answer = await call.cluster.send(await call.find_controller(), request, acls_api.DeleteAclsResponse)
        results = zip(some, answer.filter_results, strict=False)
        return {acl_filter: _collect_deletions(result, deleted[acl_filter]) for acl_filter, result in results}

    answers = await call.send_with_retries("DeleteAcls", deleted, ask)
    return Answers(
        found={acl_filter: tuple(deleted[acl_filter]) for acl_filter in answers.found},
        failures={
            acl_filter: PartlyDeleted(why.what(), tuple(deleted[acl_filter])) if deleted[acl_filter] else why
            for acl_filter, why in answers.failures.items()
        },
    )


def collect_deleted(answers: Answers[AclFilter, tuple[Acl, ...]]) -> tuple[Acl, ...]:
    """Return every deleted rule, including those of filters that failed in part."""
    partly = (each.deleted for each in answers.failures.values() if isinstance(each, PartlyDeleted))
    return tuple(dict.fromkeys(chain(*answers.found.values(), *partly)))


def _collect_deletions(result: acls_api.DeleteAclsFilterResult, deleted: list[Acl]) -> ClientError | None:
    """Add the deleted rules to `deleted`, because a repeated request does not find them again."""
    failure = (
        build_broker_error("DeleteAcls", "", result.error_code, result.error_message)
        if result.error_code
        else None
    )
    for each in result.matching_acls:
        rule = _to_acl((each.resource_type, each.resource_name, each.pattern_type), each)
        if not each.error_code:
            deleted.append(rule)
        elif failure is None:
            failure = build_broker_error("DeleteAcls", rule, each.error_code, each.error_message)
    return failure


def _to_acl_creation(acl: Acl) -> acls_api.AclCreation:
    return acls_api.AclCreation(
        resource_type=acl.resource,
        resource_name=acl.name,
        resource_pattern_type=acl.pattern,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission_type=acl.permission,
    )


def _to_wire_filter(acl_filter: AclFilter) -> acls_api.DeleteAclsFilter:
    return acls_api.DeleteAclsFilter(
        resource_type_filter=acl_filter.resource,
        resource_name_filter=acl_filter.name,
        pattern_type_filter=acl_filter.pattern,
        principal_filter=acl_filter.principal,
        host_filter=acl_filter.host,
        operation=acl_filter.operation,
        permission_type=acl_filter.permission,
    )


def _to_acl(
    resource: tuple[int, str, int], each: acls_api.AclDescription | acls_api.DeleteAclsMatchingAcl
) -> Acl:
    kind, name, pattern = resource
    return Acl(
        resource=_to_enum(AclResource, kind),
        name=name,
        pattern=_to_enum(AclPattern, pattern),
        principal=each.principal,
        host=each.host,
        operation=_to_enum(AclOperation, each.operation),
        permission=_to_enum(AclPermission, each.permission_type),
    )


def _to_enum(cls: type[E], number: int) -> E | int:
    return cls(number) if number in set(cls) else number


def _display_name(number: int) -> str:
    return number.name if isinstance(number, IntEnum) else str(number)
