"""The index of ACLs beside a naive model: a list that is scanned."""

from hypothesis import given
from hypothesis import strategies as st

from tallystick.broker.authorizer.acl_index import AclIndex, AclSettings
from tallystick.broker.authorizer.bindings import (
    AccessControlEntry,
    AclBinding,
    AclBindingFilter,
    ResourcePattern,
)
from tallystick.broker.authorizer.known_rights import make_right
from tallystick.broker.authorizer.standard_authorizer import StandardAuthorizer
from tallystick.broker.handlers.authorization import is_known
from tallystick.broker.server.request_context import RequestContext
from tallystick.protocol.acls import AclOperation, AclPattern, AclPermission, AclResource
from tallystick.security.principals import Principal

KINDS = [AclResource.TOPIC, AclResource.GROUP]
OPERATIONS = [
    AclOperation.ALL,
    AclOperation.READ,
    AclOperation.DESCRIBE,
    AclOperation.ALTER_CONFIGS,
    AclOperation.DESCRIBE_CONFIGS,
    AclOperation.TWO_PHASE_COMMIT,
]
PRINCIPALS = ["User:a", "User:b", "User:*"]
HOSTS = ["1.1.1.1", "2.2.2.2"]
names = st.sampled_from(["", "a", "b", "aa", "ab", "aab", "hard", "hardcode", "*", "*a"])

entries = st.builds(
    AccessControlEntry,
    st.sampled_from(PRINCIPALS),
    st.sampled_from([*HOSTS, "*"]),
    st.sampled_from(OPERATIONS),
    st.sampled_from([AclPermission.DENY, AclPermission.ALLOW]),
)
patterns = st.builds(
    ResourcePattern,
    st.sampled_from(KINDS),
    names.filter(bool),
    st.sampled_from([AclPattern.LITERAL, AclPattern.PREFIXED]),
)
acls = st.builds(AclBinding, patterns, entries)
settings = st.builds(AclSettings, st.sampled_from([frozenset(), frozenset({"User:b"})]), st.booleans())
requesters = st.tuples(st.sampled_from(PRINCIPALS[:2]), st.sampled_from(HOSTS))
operations = st.sampled_from(OPERATIONS[1:])
filters = st.builds(
    AclBindingFilter,
    resource_type=st.sampled_from([AclResource.ANY, *KINDS]),
    name=st.none() | names,
    pattern_type=st.sampled_from(list(AclPattern)),
    principal=st.none() | st.sampled_from(PRINCIPALS),
    host=st.none() | st.sampled_from([*HOSTS, "*"]),
    operation=st.sampled_from([AclOperation.ANY, *OPERATIONS]),
    permission=st.sampled_from(list(AclPermission)),
)

Query = tuple[tuple[str, str], AclOperation, AclResource, set[str]]

IMPLIES = {
    (AclOperation.READ, AclOperation.DESCRIBE),
    (AclOperation.ALTER_CONFIGS, AclOperation.DESCRIBE_CONFIGS),
}


def names_resource(pattern: ResourcePattern, kind: AclResource, name: str) -> bool:
    if pattern.resource_type is not kind:
        return False
    if pattern.pattern_type is AclPattern.PREFIXED:
        return name.startswith(pattern.name)
    return pattern.name in (name, "*")


def is_about(entry: AccessControlEntry, requester: tuple[str, str]) -> bool:
    return entry.principal in (requester[0], "User:*") and entry.host in (requester[1], "*")


def decide_naively(
    some: set[AclBinding],
    settings: AclSettings,
    requester: tuple[str, str],
    operation: AclOperation,
    resource: ResourcePattern,
) -> bool:
    if requester[0] in settings.super_users:
        return True
    on_resource = [acl for acl in some if names_resource(acl.pattern, resource.resource_type, resource.name)]
    if not on_resource:
        return settings.allow_everyone_if_no_acl_found
    about = [acl.entry for acl in on_resource if is_about(acl.entry, requester)]
    denied = any(
        entry.permission is AclPermission.DENY and entry.operation in (operation, AclOperation.ALL)
        for entry in about
    )
    allowed = any(
        entry.permission is AclPermission.ALLOW
        and (entry.operation in (operation, AclOperation.ALL) or (entry.operation, operation) in IMPLIES)
        for entry in about
    )
    return allowed and not denied


@given(st.sets(acls, max_size=12), settings, requesters, operations, st.sampled_from(KINDS), names)
def test_decisions_are_those_of_a_scan(
    some: set[AclBinding],
    settings: AclSettings,
    requester: tuple[str, str],
    operation: AclOperation,
    kind: AclResource,
    name: str,
) -> None:
    resource = ResourcePattern(kind, name)
    verdict = AclIndex(some).decide(settings, *requester, operation, resource)
    assert verdict.is_allowed == decide_naively(some, settings, requester, operation, resource)


@given(st.sets(acls, max_size=8), requesters, operations, names.filter(lambda name: name not in ("", "*")))
def test_what_one_resource_allows_some_resource_allows(
    some: set[AclBinding], requester: tuple[str, str], operation: AclOperation, name: str
) -> None:
    """A resource that an ACL of the operation itself allows is one of "any resource", wherever it lies."""
    unimplied = {acl for acl in some if acl.entry.operation in (operation, AclOperation.ALL)}
    index = AclIndex(unimplied)
    one = index.decide(AclSettings(), *requester, operation, ResourcePattern(AclResource.TOPIC, name))
    anywhere = index.decide_any(AclSettings(), *requester, operation, AclResource.TOPIC)
    assert anywhere.is_allowed or not one.is_allowed


@given(st.lists(st.tuples(st.booleans(), st.lists(acls, max_size=4)), max_size=12), filters)
def test_a_removal_never_loses_another_acl(
    changes: list[tuple[bool, list[AclBinding]]], wanted: AclBindingFilter
) -> None:
    """CVE-2024-27309: removing an ACL of a resource took another one out of force."""
    index, model = AclIndex(), set[AclBinding]()
    for adds, some in changes:
        before, old = index, set(model)
        index = index.add(some) if adds else index.remove(some)
        model = model | set(some) if adds else model - set(some)
        assert set(index) == model
        assert len(index) == len(model)
        assert index.version == before.version + 1
        assert set(before) == old
    assert set(index.find(wanted)) == {acl for acl in model if wanted.matches(acl)}


changes_or_queries = st.one_of(
    st.tuples(st.booleans(), st.lists(acls, min_size=1, max_size=3)),
    st.tuples(requesters, operations, st.sampled_from(KINDS), st.sets(names, min_size=1, max_size=3)),
)


@given(settings, st.lists(changes_or_queries, max_size=30))
def test_what_is_remembered_are_the_answers_of_the_rules(
    settings: AclSettings, steps: list[tuple[bool, list[AclBinding]] | Query]
) -> None:
    """Under any sequence of changes and queries; each query twice, so that the second finds the first."""
    authorizer = StandardAuthorizer(settings)
    contexts: dict[tuple[str, str], RequestContext] = {}  # of connections that stay
    for step in steps:
        if len(step) == 2:
            adds, some = step
            index = authorizer.index
            authorizer.set_index(index.add(some) if adds else index.remove(some))
            continue
        (principal, host), operation, kind, some_names = step
        context = contexts.setdefault(
            (principal, host),
            RequestContext(0, 9, 1, None, host, 1, principal=Principal(principal.partition(":")[2])),
        )
        expected = {
            name: authorizer.index.decide(
                settings, principal, host, operation, ResourcePattern(kind, name)
            ).is_allowed
            for name in some_names
        }
        right, checks = make_right(operation, kind), authorizer.allowed + authorizer.denied
        known = [name for name in expected if is_known(context, right, name)]
        assert all(expected[name] for name in known)
        for name, allowed in expected.items():
            assert authorizer.allows(context, operation, ResourcePattern(kind, name)) is allowed
            assert is_known(context, right, name) is allowed
        assert authorizer.allowed + authorizer.denied == checks + len(known) + len(expected) + sum(
            expected.values()
        )
