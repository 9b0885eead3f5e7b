"""The authorizer of a broker that has one: ACLs in memory, verdicts remembered, decisions in the audit log.

Verdicts are remembered for as long as the ACLs stay what they are, so that a request like the one before it
costs one look-up for each resource. What is allowed is left with the connection as well (`KnownRights`), by
name alone. A change of the ACLs puts a new index and an empty memory in place, and empties what was left with
connections.

The audit log is the logger `kafka.authorizer.logger`, with the texts and levels of Kafka: INFO for what is
denied, DEBUG for what is allowed, TRACE for checks that only filter a list or report rights.

Source: StandardAuthorizer, StandardAuthorizerData.
"""

import logging
from typing import Final

from tallystick.broker.authorizer.acl_index import (
    ANY_RESOURCE,
    SUPPORTED_OPERATIONS,
    AclIndex,
    AclSettings,
    AuthorizationResult,
    format_operations,
)
from tallystick.broker.authorizer.audit_log import AUDIT_LOGGER, TRACE
from tallystick.broker.authorizer.authorizer import (
    AuthorizableRequestContext,
    Operation,
    References,
    ResourceType,
    count_one,
)
from tallystick.broker.authorizer.bindings import ResourcePattern
from tallystick.broker.authorizer.known_rights import AllowedNames, make_right
from tallystick.protocol.apis import API_SPECS, ApiKey

# Principals, hosts and names come from clients: what is remembered of them must have a bound.
VERDICTS_MAX: Final = 20_000
# Longer names are decided about each time: no topic has one, and 20,000 of them would take hundreds of MB.
REMEMBERED_NAME_CHARS_MAX: Final = 255

_audit_log = logging.getLogger(AUDIT_LOGGER)

# Source: SecurityUtils.resourceTypeName.
_TYPE_NAMES: Final = {kind: kind.name.title().replace("_", "") for kind in ResourceType}


class StandardAuthorizer:
    """Kafka's StandardAuthorizer. Owned by the broker; lives on the loop.

    denied   number of checks that denied the operation
    """

    is_configured = True

    def __init__(self, settings: AclSettings, index: AclIndex | None = None) -> None:
        self._settings = settings
        self._allowed = 0
        self.denied = 0
        self._allowed_names: dict[object, AllowedNames] = {}
        self.set_index(AclIndex() if index is None else index)

    @property
    def index(self) -> AclIndex:
        """The ACLs in force."""
        return self._index

    @property
    def allowed(self) -> int:
        """Number of checks that allowed the operation."""
        return self._allowed + sum(each.checks for each in self._allowed_names.values())

    @property
    def acl_count(self) -> int:
        """How many ACLs are in force."""
        return len(self._index)

    def set_index(self, index: AclIndex) -> None:
        """Put other ACLs in force: the next check of every connection decides by them."""
        self._index = index
        self._forget()

    def _forget(self) -> None:
        self._allowed = self.allowed
        for each in self._allowed_names.values():
            each.clear()  # in place: connections have it [ACL-1]
        self._verdicts: dict[object, AuthorizationResult] = {}
        # The names in `_verdicts` that are allowed, by principal, host, operation and type.
        self._allowed_names = {}

    def allows(
        self,
        context: AuthorizableRequestContext,
        operation: Operation,
        resource: ResourcePattern,
        *,
        references: References = count_one,
        log_denied: bool = True,
    ) -> bool:
        """Implement Authorizer.allows."""
        verdict = self._decide(context, operation, resource)
        if verdict.is_allowed:
            self._allowed += 1
            level = logging.DEBUG
        else:
            self.denied += 1
            level = logging.INFO if log_denied else TRACE
        if _audit_log.isEnabledFor(level):
            _audit_log.log(
                level, "%s", _format_audit(context, operation, resource, verdict, references(resource.name))
            )
        return verdict.is_allowed

    def allows_any(
        self, context: AuthorizableRequestContext, operation: Operation, resource_type: ResourceType
    ) -> bool:
        """Implement Authorizer.allows_any."""
        key = (context.principal, context.client_host, operation, resource_type)
        verdict = self._verdicts.get(key)
        if verdict is None:
            principal, host = str(context.principal), context.client_host
            verdict = self._index.decide_any(self._settings, principal, host, operation, resource_type)
            self._remember(key, verdict)
        if verdict.is_allowed:
            self._allowed += 1
        else:
            self.denied += 1
        level = logging.DEBUG if verdict.is_allowed else TRACE
        if _audit_log.isEnabledFor(level):
            resource = ResourcePattern(resource_type, ANY_RESOURCE)
            _audit_log.log(level, "%s", _format_audit(context, operation, resource, verdict, 0))
        return verdict.is_allowed

    def find_authorized_operations(
        self, context: AuthorizableRequestContext, resource: ResourcePattern
    ) -> int:
        """Implement Authorizer.find_authorized_operations."""
        allowed = []
        for operation in SUPPORTED_OPERATIONS[resource.resource_type]:
            verdict = self._decide(context, operation, resource)
            if verdict.is_allowed:
                allowed.append(operation)
            if _audit_log.isEnabledFor(TRACE):
                _audit_log.log(TRACE, "%s", _format_audit(context, operation, resource, verdict, 1))
        return format_operations(allowed)

    def _decide(
        self, context: AuthorizableRequestContext, operation: Operation, resource: ResourcePattern
    ) -> AuthorizationResult:
        requester = (context.principal, context.client_host, operation, resource.resource_type)
        key = (requester, resource.name)
        verdict = self._verdicts.get(key)
        if verdict is None:
            principal, host = str(context.principal), context.client_host
            verdict = self._index.decide(self._settings, principal, host, operation, resource)
            if len(resource.name) > REMEMBERED_NAME_CHARS_MAX:
                return verdict
            self._remember(key, verdict)
            if verdict.is_allowed:
                self._allowed_names.setdefault(requester, AllowedNames()).names.add(resource.name)
        if verdict.is_allowed:
            right = make_right(operation, resource.resource_type)
            context.known_rights[right] = self._allowed_names[requester]
        return verdict

    def _remember(self, key: object, verdict: AuthorizationResult) -> None:
        if len(self._verdicts) >= VERDICTS_MAX:
            self._forget()
        self._verdicts[key] = verdict


def _format_audit(
    context: AuthorizableRequestContext,
    operation: Operation,
    resource: ResourcePattern,
    verdict: AuthorizationResult,
    references: int,
) -> str:
    """Return a line of the audit log. Source: StandardAuthorizerData.buildAuditMessage."""
    result = "Allowed" if verdict.is_allowed else "Denied"
    request = API_SPECS[ApiKey(context.api_key)].name
    line = (
        f"Principal = {context.principal} is {result} operation = {operation.name} from host = "
        f"{context.client_host} on resource = {_TYPE_NAMES[resource.resource_type]}:"
        f"{resource.pattern_type.name}:{resource.name} for request = {request} with resourceRefCount = "
        f"{references} based on rule {verdict.rule}"
    )
    # Names come from clients: one with a line break must not look like a line of its own.
    return line if line.isprintable() else line.encode("unicode_escape").decode("ascii")
