"""ACLs as values, and the filters that select them.

An ACL binds an entry (principal, host, operation, permission) to a pattern of resources:

    LITERAL    the resource with exactly this name, or every resource of the type if the name is `*`
    PREFIXED   every resource whose name begins with this one

A filter may also say ANY, which is every value of a field, and for a name MATCH: all patterns that apply to
it. ANY and MATCH are never part of an ACL.

Source: Kafka AclBinding, AclBindingFilter, ResourcePatternFilter, AccessControlEntryFilter,
AclControlManager; KIP-140, KIP-290.
"""

from enum import IntEnum
from typing import Final, TypeVar

from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.value import Value
from tallystick.protocol.acls import AclOperation, AclPattern, AclPermission, AclResource

WILDCARD_RESOURCE: Final = "*"
WILDCARD_HOST: Final = "*"
WILDCARD_PRINCIPAL: Final = "User:*"
CLUSTER_NAME: Final = "kafka-cluster"

E = TypeVar("E", bound=IntEnum)


class ResourcePattern(Value):
    """Pattern that names one resource, all with a prefix, or all of a type."""

    resource_type: AclResource
    name: str
    pattern_type: AclPattern = AclPattern.LITERAL


class AccessControlEntry(Value):
    """Permission for a principal at a host to perform an operation, or the denial of it."""

    principal: str
    host: str
    operation: AclOperation
    permission: AclPermission


class AclBinding(Value):
    """One ACL."""

    pattern: ResourcePattern
    entry: AccessControlEntry

    def __str__(self) -> str:
        """Return the ACL as Kafka's audit log writes it."""
        pattern, entry = self.pattern, self.entry
        return (
            f"StandardAcl(resourceType={pattern.resource_type.name}, resourceName={pattern.name}, "
            f"patternType={pattern.pattern_type.name}, principal={entry.principal}, host={entry.host}, "
            f"operation={entry.operation.name}, permissionType={entry.permission.name})"
        )


class AclBindingFilter(Value, kw_only=True):
    """Filter of ACLs: None and ANY match everything, any other field must be equal.

    READ does not match an ACL of ALL: what an operation implies matters to authorization alone.
    """

    resource_type: AclResource = AclResource.ANY
    name: str | None = None
    pattern_type: AclPattern = AclPattern.ANY
    principal: str | None = None
    host: str | None = None
    operation: AclOperation = AclOperation.ANY
    permission: AclPermission = AclPermission.ANY

    def matches(self, acl: AclBinding) -> bool:
        """Return whether the filter selects the ACL."""
        entry = acl.entry
        return (
            self._matches_pattern(acl.pattern)
            and self.principal in (None, entry.principal)
            and self.host in (None, entry.host)
            and self.operation in (AclOperation.ANY, entry.operation)
            and self.permission in (AclPermission.ANY, entry.permission)
        )

    def _matches_pattern(self, pattern: ResourcePattern) -> bool:
        """Compare the patterns.

        MATCH selects every pattern that applies to the name, ANY that name under either type of pattern.

        Source: KIP-290; ResourcePatternFilter.matches.
        """
        if self.resource_type not in (AclResource.ANY, pattern.resource_type):
            return False
        if self.pattern_type not in (AclPattern.ANY, AclPattern.MATCH, pattern.pattern_type):
            return False
        if self.name is None or self.name == pattern.name:
            return True
        if self.pattern_type is not AclPattern.MATCH:
            return False
        if pattern.pattern_type is AclPattern.PREFIXED:
            return self.name.startswith(pattern.name)
        return pattern.name == WILDCARD_RESOURCE


def parse_binding(
    resource: tuple[int, str, int], principal: str, host: str, operation: int, permission: int
) -> AclBinding | Reject:
    """Return a new ACL, or why there can be none.

    Source: AclApis.handleCreateAcls, AclControlManager.validateNewAcl.

    Args:
        resource: number of the type, name and number of the pattern type, as on the wire.
    """
    kind = _parse_member(AclResource, resource[0], "resourceType", AclResource.ANY)
    pattern = _parse_member(AclPattern, resource[2], "patternType", AclPattern.ANY, AclPattern.MATCH)
    acl_operation = _parse_member(AclOperation, operation, "operation", AclOperation.ANY)
    acl_permission = _parse_member(AclPermission, permission, "permissionType", AclPermission.ANY)
    name = resource[1]
    if isinstance(kind, str):
        return _refuse(kind)
    if kind is AclResource.CLUSTER and name != CLUSTER_NAME:
        return _refuse(f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}")
    if not name:
        return _refuse("Invalid empty resource name")
    if isinstance(pattern, str):
        return _refuse(pattern)
    if isinstance(acl_operation, str):
        return _refuse(acl_operation)
    if isinstance(acl_permission, str):
        return _refuse(acl_permission)
    if ":" not in principal:
        return _refuse(
            f"Could not parse principal from `{principal}` (no colon is present separating the principal "
            "type from the principal name)"
        )
    entry = AccessControlEntry(principal, host, acl_operation, acl_permission)
    return AclBinding(ResourcePattern(kind, name, pattern), entry)


def parse_filter(
    resource: tuple[int, str | None, int],
    principal: str | None,
    host: str | None,
    operation: int,
    permission: int,
) -> AclBindingFilter | Reject:
    """Return a filter, or why there can be none: a number that this version does not know.

    Source: AclControlManager.validateFilter.
    """
    kind = _parse_member(AclResource, resource[0], "resourceType")
    pattern = _parse_member(AclPattern, resource[2], "patternType")
    if isinstance(kind, str) or isinstance(pattern, str):
        return _refuse("Unknown patternFilter.")
    acl_operation = _parse_member(AclOperation, operation, "operation")
    acl_permission = _parse_member(AclPermission, permission, "permissionType")
    if isinstance(acl_operation, str) or isinstance(acl_permission, str):
        return _refuse("Unknown entryFilter.")
    return AclBindingFilter(
        resource_type=kind,
        name=resource[1],
        pattern_type=pattern,
        principal=principal,
        host=host,
        operation=acl_operation,
        permission=acl_permission,
    )


def _parse_member(cls: type[E], number: int, field: str, *filters_only: E) -> E | str:
    """Return the member with this number, or Kafka's text if it is unknown, or has no meaning in an ACL."""
    try:
        member = cls(number)
    except ValueError:
        return f"Invalid {field} UNKNOWN"
    return f"Invalid {field} {member.name}" if member in filters_only else member


def _refuse(why: str) -> Reject:
    return Reject(ErrorCode.INVALID_REQUEST, why)
