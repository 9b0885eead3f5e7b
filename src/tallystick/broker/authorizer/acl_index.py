"""Immutable index of a set of ACLs, and the rules by which they allow or deny.

The order of the rules, the first that applies (KIP-11, StandardAuthorizerData.authorize):

    1  the principal is a super user                             allowed, even against a DENY
    2  an ACL of kind DENY matches                               denied
    3  an ACL of kind ALLOW matches                              allowed
    4  no ACL at all has a pattern that matches the resource     allow.everyone.if.no.acl.found
    5  otherwise                                                 denied

An ACL matches when its pattern, its principal (or `User:*`), its host (or `*`) and its operation do. An ALLOW
also matches the operations that its own implies; a DENY never does: denying READ does not deny DESCRIBE.

The patterns that can match a name are its own, `*`, and one prefix for each length that prefixes of its type
have. So a decision costs a dictionary lookup for each of these, however many ACLs there are.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

from tallystick.broker.authorizer.bindings import (
    WILDCARD_HOST,
    WILDCARD_PRINCIPAL,
    WILDCARD_RESOURCE,
    AccessControlEntry,
    AclBinding,
    AclBindingFilter,
    ResourcePattern,
)
from tallystick.kernel.value import Value
from tallystick.protocol.acls import AclOperation, AclPattern, AclPermission, AclResource

# KIP-11, KIP-133. Source: StandardAuthorizerData, IMPLIES_DESCRIBE and IMPLIES_DESCRIBE_CONFIGS.
# TWO_PHASE_COMMIT is implied by ALL alone, and implies nothing (KIP-939).
_IMPLIED_BY: Final[Mapping[AclOperation, frozenset[AclOperation]]] = {
    AclOperation.DESCRIBE: frozenset(
        {AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER}
    ),
    AclOperation.DESCRIBE_CONFIGS: frozenset({AclOperation.ALTER_CONFIGS}),
}
_IMPLIED_BY_NONE: Final[frozenset[AclOperation]] = frozenset()

# Which operations a type of resource has. Source: AclEntry.supportedOperations.
SUPPORTED_OPERATIONS: Final[Mapping[AclResource, frozenset[AclOperation]]] = {
    AclResource.TOPIC: frozenset(
        {
            AclOperation.READ,
            AclOperation.WRITE,
            AclOperation.CREATE,
            AclOperation.DESCRIBE,
            AclOperation.DELETE,
            AclOperation.ALTER,
            AclOperation.DESCRIBE_CONFIGS,
            AclOperation.ALTER_CONFIGS,
        }
    ),
    AclResource.GROUP: frozenset(
        {
            AclOperation.READ,
            AclOperation.DESCRIBE,
            AclOperation.DELETE,
            AclOperation.DESCRIBE_CONFIGS,
            AclOperation.ALTER_CONFIGS,
        }
    ),
    AclResource.CLUSTER: frozenset(
        {
            AclOperation.CREATE,
            AclOperation.CLUSTER_ACTION,
            AclOperation.DESCRIBE_CONFIGS,
            AclOperation.ALTER_CONFIGS,
            AclOperation.IDEMPOTENT_WRITE,
            AclOperation.ALTER,
            AclOperation.DESCRIBE,
        }
    ),
    AclResource.TRANSACTIONAL_ID: frozenset(
        {AclOperation.DESCRIBE, AclOperation.WRITE, AclOperation.TWO_PHASE_COMMIT}
    ),
    AclResource.DELEGATION_TOKEN: frozenset({AclOperation.DESCRIBE}),
    AclResource.USER: frozenset({AclOperation.CREATE_TOKENS, AclOperation.DESCRIBE_TOKENS}),
}

# The name by which Kafka asks whether a principal may act on any resource of a type, whatever its name.
ANY_RESOURCE: Final = "hardcode"


def format_operations(operations: Iterable[AclOperation]) -> int:
    """Return operations as the bits of an `authorized_operations` field (KIP-430)."""
    return sum(1 << operation for operation in operations)


class AuthorizationResult(Value):
    """Whether an action is allowed, and the rule that says so, as the audit log names it."""

    is_allowed: bool
    rule: str


class AclSettings(Value):
    """Settings of the authorizer: principals as texts, `User:name`."""

    super_users: frozenset[str] = frozenset()
    allow_everyone_if_no_acl_found: bool = False


_SUPER_USER: Final = AuthorizationResult(True, "SuperUser")
_DEFAULT_ALLOW: Final = AuthorizationResult(True, "DefaultAllow")
_DEFAULT_DENY: Final = AuthorizationResult(False, "DefaultDeny")


class AclIndex:
    """ACLs by pattern. Immutable: a change makes a new index, whose `version` is greater."""

    def __init__(self, acls: Iterable[AclBinding] = (), *, version: int = 0) -> None:
        self.version = version
        entries: dict[ResourcePattern, dict[AccessControlEntry, None]] = {}
        for acl in acls:
            entries.setdefault(acl.pattern, {})[acl.entry] = None
        self._set_entries({pattern: tuple(each) for pattern, each in entries.items()})

    def _set_entries(self, entries: dict[ResourcePattern, tuple[AccessControlEntry, ...]]) -> None:
        self._entries = entries
        lengths: dict[AclResource, set[int]] = {}
        for pattern in entries:
            if pattern.pattern_type is AclPattern.PREFIXED:
                lengths.setdefault(pattern.resource_type, set()).add(len(pattern.name))
        # Longest first: the audit log then names the most specific rule.
        self._prefix_lengths = {kind: tuple(sorted(each, reverse=True)) for kind, each in lengths.items()}

    def __len__(self) -> int:
        return sum(map(len, self._entries.values()))

    def __iter__(self) -> Iterator[AclBinding]:
        return (AclBinding(pattern, entry) for pattern, each in self._entries.items() for entry in each)

    def __contains__(self, acl: AclBinding) -> bool:
        return acl.entry in self._entries.get(acl.pattern, ())

    def add(self, acls: Iterable[AclBinding]) -> "AclIndex":
        """Return an index that has these ACLs as well."""
        entries = dict(self._entries)
        for acl in acls:
            others = entries.get(acl.pattern, ())
            if acl.entry not in others:
                entries[acl.pattern] = (*others, acl.entry)
        return self._derive(entries)

    def remove(self, acls: Iterable[AclBinding]) -> "AclIndex":
        """Return an index without these ACLs, and with every other one (CVE-2024-27309)."""
        entries = dict(self._entries)
        for acl in acls:
            rest = tuple(entry for entry in entries.get(acl.pattern, ()) if entry != acl.entry)
            if rest:
                entries[acl.pattern] = rest
            else:
                entries.pop(acl.pattern, None)
        return self._derive(entries)

    def _derive(self, entries: dict[ResourcePattern, tuple[AccessControlEntry, ...]]) -> "AclIndex":
        index = AclIndex(version=self.version + 1)
        index._set_entries(entries)
        return index

    def find(self, acl_filter: AclBindingFilter) -> list[AclBinding]:
        """Return the ACLs that a filter selects."""
        return [acl for acl in self if acl_filter.matches(acl)]

    def _iter_patterns(self, kind: AclResource, name: str) -> Iterator[ResourcePattern]:
        """Yield the patterns that match a resource and have ACLs, the most specific first."""
        entries = self._entries
        if (pattern := ResourcePattern(kind, name)) in entries:
            yield pattern
        for length in self._prefix_lengths.get(kind, ()):
            if length <= len(name):
                pattern = ResourcePattern(kind, name[:length], AclPattern.PREFIXED)
                if pattern in entries:
                    yield pattern
        if name != WILDCARD_RESOURCE and (pattern := ResourcePattern(kind, WILDCARD_RESOURCE)) in entries:
            yield pattern

    def decide(
        self,
        settings: AclSettings,
        principal: str,
        host: str,
        operation: AclOperation,
        resource: ResourcePattern,
    ) -> AuthorizationResult:
        """Decide whether a principal may perform an operation on one resource.

        Source: StandardAuthorizerData.authorize, findAclRule, findResult.

        Args:
            principal: as `User:name`.
            host: textual IP address that the principal's connection comes from.
            resource: a LITERAL pattern.
        """
        if principal in settings.super_users:
            return _SUPER_USER
        allow: AclBinding | None = None
        has_acls = False
        for pattern in self._iter_patterns(resource.resource_type, resource.name):
            has_acls = True
            for entry in self._entries[pattern]:
                if not matches_requester(entry, principal, host) or not matches_operation(entry, operation):
                    continue
                if entry.permission is AclPermission.DENY:
                    return AuthorizationResult(False, f"MatchingAcl(acl={AclBinding(pattern, entry)})")
                allow = allow or AclBinding(pattern, entry)
        if allow is not None:
            return AuthorizationResult(True, f"MatchingAcl(acl={allow})")
        if not has_acls and settings.allow_everyone_if_no_acl_found:
            return _DEFAULT_ALLOW
        return _DEFAULT_DENY

    def decide_any(
        self, settings: AclSettings, principal: str, host: str, operation: AclOperation, kind: AclResource
    ) -> AuthorizationResult:
        """Decide whether a principal may perform an operation on at least one resource of a type.

        Only ACLs of the operation itself or of ALL count here, without what others imply. A DENY takes an
        ALLOW away only if it covers all of it: a resource that exists may still be denied.

        Source: Authorizer.authorizeByResourceType.
        """
        anywhere = self.decide(settings, principal, host, operation, ResourcePattern(kind, ANY_RESOURCE))
        if anywhere.is_allowed:
            return anywhere
        allowed: dict[ResourcePattern, AclBinding] = {}
        denied: set[ResourcePattern] = set()
        for pattern, entries in self._entries.items():
            if pattern.resource_type is not kind:
                continue
            for entry in entries:
                if not matches_requester(entry, principal, host):
                    continue
                if entry.operation not in (operation, AclOperation.ALL):
                    continue
                if entry.permission is AclPermission.ALLOW:
                    allowed.setdefault(pattern, AclBinding(pattern, entry))
                else:
                    denied.add(pattern)
        everything = ResourcePattern(kind, WILDCARD_RESOURCE)
        if everything in denied:
            return _DEFAULT_DENY
        for pattern, acl in allowed.items():
            if pattern == everything or not _is_covered(pattern, denied):
                return AuthorizationResult(True, f"MatchingAcl(acl={acl})")
        return _DEFAULT_DENY


def matches_requester(entry: AccessControlEntry, principal: str, host: str) -> bool:
    """Return whether an entry is about a principal at a host."""
    return entry.principal in (principal, WILDCARD_PRINCIPAL) and entry.host in (host, WILDCARD_HOST)


def matches_operation(entry: AccessControlEntry, operation: AclOperation) -> bool:
    """Return whether an entry is about an operation, or allows one that implies it."""
    if entry.operation in (operation, AclOperation.ALL):
        return True
    return entry.permission is AclPermission.ALLOW and entry.operation in _IMPLIED_BY.get(
        operation, _IMPLIED_BY_NONE
    )


def _is_covered(pattern: ResourcePattern, denied: Collection[ResourcePattern]) -> bool:
    """Return whether every resource that a pattern matches is denied by another pattern."""
    if pattern.pattern_type is AclPattern.LITERAL and pattern in denied:
        return True
    return any(
        ResourcePattern(pattern.resource_type, pattern.name[:length], AclPattern.PREFIXED) in denied
        for length in range(1, len(pattern.name) + 1)
    )
