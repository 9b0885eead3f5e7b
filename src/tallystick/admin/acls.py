"""Who may do what: rules as values, listed, made and deleted (KIP-140, KIP-290).

A rule allows or denies a principal, from a host, an operation on resources: those of one name, or those whose
name begins so. In a filter None, or ANY, matches everything.
"""

from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import TypeVar

from tallystick.admin.listing import Answers, Asker
from tallystick.client.errors import ClientError, refused
from tallystick.kernel.value import frozen
from tallystick.protocol.messages import create_acls as ca
from tallystick.protocol.messages import delete_acls as da
from tallystick.protocol.messages import describe_acls as ds

E = TypeVar("E", bound=IntEnum)


class AclOperation(IntEnum):
    """What a rule is about; the numbers are the wire's, of all four."""

    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class AclResource(IntEnum):
    """What it is done to."""

    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class AclPattern(IntEnum):
    """How a resource's name is meant; ANY and MATCH (whatever applies to a name) are for filters."""

    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class AclPermission(IntEnum):
    """Deny wins over allow."""

    ANY = 1
    DENY = 2
    ALLOW = 3


@frozen(kw_only=True)
class Acl:
    """One rule. Numbers are those of a later version."""

    resource: AclResource | int
    name: str
    pattern: AclPattern | int = AclPattern.LITERAL
    principal: str
    host: str = "*"
    operation: AclOperation | int
    permission: AclPermission | int = AclPermission.ALLOW


@frozen(kw_only=True)
class AclFilter:
    """Rules that agree with everything that is not None or ANY."""

    resource: AclResource = AclResource.ANY
    name: str | None = None
    pattern: AclPattern = AclPattern.ANY
    principal: str | None = None
    host: str | None = None
    operation: AclOperation = AclOperation.ANY
    permission: AclPermission = AclPermission.ANY


async def describe(asker: Asker, wanted: AclFilter) -> tuple[Acl, ...]:
    request = ds.DescribeAclsRequest(
        resource_type_filter=wanted.resource,
        resource_name_filter=wanted.name,
        pattern_type_filter=wanted.pattern,
        principal_filter=wanted.principal,
        host_filter=wanted.host,
        operation=wanted.operation,
        permission_type=wanted.permission,
    )

    async def attempt() -> tuple[Acl, ...]:
        answer = await asker.cluster.send(await asker.controller(), request, ds.DescribeAclsResponse)
        if answer.error_code:
            raise refused("DescribeAcls", "", answer.error_code, answer.error_message)
        return tuple(
            _acl((found.resource_type, found.resource_name, found.pattern_type), each)
            for found in answer.resources
            for each in found.acls
        )

    return await asker.cluster.retrying("DescribeAcls", "", attempt, asker.deadline)


async def create(asker: Asker, acls: Iterable[Acl]) -> Answers[Acl, None]:
    async def ask(some: Sequence[Acl]) -> dict[Acl, ClientError | None]:
        request = ca.CreateAclsRequest(creations=tuple(_creation(each) for each in some))
        answer = await asker.cluster.send(await asker.controller(), request, ca.CreateAclsResponse)
        return {
            acl: refused("CreateAcls", _words(acl), each.error_code, each.error_message)
            if each.error_code
            else None
            for acl, each in zip(some, answer.results, strict=False)
        }

    return await asker.rounds("CreateAcls", acls, ask)


async def delete(asker: Asker, filters: Iterable[AclFilter]) -> Answers[AclFilter, tuple[Acl, ...]]:
    async def ask(some: Sequence[AclFilter]) -> dict[AclFilter, tuple[Acl, ...] | ClientError]:
        request = da.DeleteAclsRequest(filters=tuple(_filter(each) for each in some))
        answer = await asker.cluster.send(await asker.controller(), request, da.DeleteAclsResponse)
        return {wanted: _deleted(found) for wanted, found in zip(some, answer.filter_results, strict=False)}

    return await asker.rounds("DeleteAcls", filters, ask)


def _deleted(found: da.DeleteAclsFilterResult) -> tuple[Acl, ...] | ClientError:
    failed = ((each.error_code, each.error_message) for each in found.matching_acls if each.error_code)
    code, text = next(failed, (found.error_code, found.error_message))
    if code:
        return refused("DeleteAcls", "", code, text)
    return tuple(
        _acl((each.resource_type, each.resource_name, each.pattern_type), each)
        for each in found.matching_acls
    )


def _creation(acl: Acl) -> ca.AclCreation:
    return ca.AclCreation(
        resource_type=acl.resource,
        resource_name=acl.name,
        resource_pattern_type=acl.pattern,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission_type=acl.permission,
    )


def _filter(wanted: AclFilter) -> da.DeleteAclsFilter:
    return da.DeleteAclsFilter(
        resource_type_filter=wanted.resource,
        resource_name_filter=wanted.name,
        pattern_type_filter=wanted.pattern,
        principal_filter=wanted.principal,
        host_filter=wanted.host,
        operation=wanted.operation,
        permission_type=wanted.permission,
    )


def _acl(resource: tuple[int, str, int], each: ds.AclDescription | da.DeleteAclsMatchingAcl) -> Acl:
    kind, name, pattern = resource
    return Acl(
        resource=_known(AclResource, kind),
        name=name,
        pattern=_known(AclPattern, pattern),
        principal=each.principal,
        host=each.host,
        operation=_known(AclOperation, each.operation),
        permission=_known(AclPermission, each.permission_type),
    )


def _known(cls: type[E], number: int) -> E | int:
    return cls(number) if number in set(cls) else number


def _words(acl: Acl) -> str:
    return f"{acl.principal} on {acl.name!r}"
