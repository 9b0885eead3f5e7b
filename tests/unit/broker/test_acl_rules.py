"""What ACLs allow: each rule with the sentence of Kafka that decides it."""

import logging
from uuid import UUID

import pytest

from tallystick.broker.authorizer.acl_index import AclIndex, AclSettings, format_operations
from tallystick.broker.authorizer.audit_log import AUDIT_LOGGER, TRACE
from tallystick.broker.authorizer.bindings import (
    AccessControlEntry,
    AclBinding,
    AclBindingFilter,
    ResourcePattern,
    parse_binding,
    parse_filter,
)
from tallystick.broker.authorizer.known_rights import READ_TOPIC, TOPIC_IDS_MAX, WRITE_TOPIC, keep_id
from tallystick.broker.authorizer.standard_authorizer import (
    REMEMBERED_NAME_CHARS_MAX,
    VERDICTS_MAX,
    StandardAuthorizer,
)
from tallystick.broker.handlers.authorization import is_known
from tallystick.broker.server.request_context import RequestContext
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.protocol.acls import AclOperation as Op
from tallystick.protocol.acls import AclPattern, AclPermission
from tallystick.protocol.acls import AclResource as Kind
from tallystick.protocol.apis import ApiKey
from tallystick.security.principals import Principal

ALLOW, DENY = AclPermission.ALLOW, AclPermission.DENY
LITERAL, PREFIXED = AclPattern.LITERAL, AclPattern.PREFIXED
STRICT = AclSettings()
LENIENT = AclSettings(allow_everyone_if_no_acl_found=True)
HOST = "10.0.0.1"


def acl(
    operation: Op = Op.READ,
    permission: AclPermission = ALLOW,
    *,
    principal: str = "User:alice",
    host: str = "*",
    kind: Kind = Kind.TOPIC,
    name: str = "orders",
    pattern: AclPattern = LITERAL,
) -> AclBinding:
    return AclBinding(
        ResourcePattern(kind, name, pattern), AccessControlEntry(principal, host, operation, permission)
    )


def may(
    *acls: AclBinding,
    operation: Op = Op.READ,
    principal: str = "User:alice",
    host: str = HOST,
    name: str = "orders",
    kind: Kind = Kind.TOPIC,
    settings: AclSettings = STRICT,
) -> bool:
    index = AclIndex(acls)
    return index.decide(settings, principal, host, operation, ResourcePattern(kind, name)).is_allowed


# ---- the order of the rules


def test_a_resource_without_acls_is_for_super_users_only() -> None:
    """Documentation, "Authorization and ACLs": "If a resource (R) does not have any ACLs defined, meaning
    that no ACL matches the resource, Kafka will restrict access to that resource. In this situation, only
    super users are allowed to access it."
    """
    assert not may()
    assert may(settings=AclSettings(frozenset({"User:alice"})))


def test_allow_everyone_ends_with_the_first_acl_of_any_kind() -> None:
    """Documentation: "If you prefer that resources without any ACLs be accessible by all users [...]
    allow.everyone.if.no.acl.found=true". An ACL for another principal or operation ends it.
    """
    assert may(settings=LENIENT)
    assert not may(acl(principal="User:bob"), settings=LENIENT)
    assert not may(acl(Op.WRITE, principal="User:bob"), settings=LENIENT)
    assert not may(acl(principal="User:bob", name="ord", pattern=PREFIXED), settings=LENIENT)
    assert not may(acl(principal="User:bob", name="*"), settings=LENIENT)
    assert may(acl(principal="User:bob", name="other"), settings=LENIENT)
    assert may(acl(principal="User:bob", kind=Kind.GROUP), settings=LENIENT)


def test_deny_wins_over_allow_and_a_super_user_over_deny() -> None:
    """KIP-11: a DENY takes precedence over an ALLOW; super users are asked about first."""
    assert may(acl())
    assert not may(acl(), acl(permission=DENY))
    assert not may(acl(permission=DENY), acl(name="*"))
    assert not may(acl(), acl(permission=DENY, principal="User:*", name="or", pattern=PREFIXED))
    assert may(acl(permission=DENY), settings=AclSettings(frozenset({"User:alice"})))


@pytest.mark.parametrize(
    ("name", "pattern", "resource", "expected"),
    [
        ("orders", LITERAL, "orders", True),
        ("orders", LITERAL, "orders-eu", False),
        ("*", LITERAL, "anything", True),
        ("*", LITERAL, "*orders", True),
        ("orders", PREFIXED, "orders", True),
        ("orders", PREFIXED, "orders-eu", True),
        ("orders", PREFIXED, "order", False),
        ("*", PREFIXED, "orders", False),
        ("*", PREFIXED, "*orders", True),
    ],
)
def test_patterns(name: str, pattern: AclPattern, resource: str, expected: bool) -> None:
    """KIP-290: a prefixed ACL matches names that begin with its own; `*` is a wildcard only if literal."""
    assert may(acl(name=name, pattern=pattern), name=resource) is expected


def test_hosts_are_addresses_or_the_wildcard() -> None:
    """The host is compared as text: neither names nor ranges of addresses."""
    assert may(acl(host=HOST))
    assert not may(acl(host="10.0.0.0/8"))
    assert not may(acl(host="10.0.0.2"))


def test_principals_are_equal_or_the_wildcard() -> None:
    assert may(acl(principal="User:*"))
    assert not may(acl(principal="User:Alice"))
    assert not may(acl(principal="Group:alice"))
    assert not may(acl(principal="Group:*"))


# ---- what an operation implies


@pytest.mark.parametrize("operation", [Op.READ, Op.WRITE, Op.DELETE, Op.ALTER])
def test_what_implies_describe(operation: Op) -> None:
    """KIP-11: an ALLOW of READ, WRITE, DELETE or ALTER allows DESCRIBE; a DENY implies nothing."""
    assert may(acl(operation), operation=Op.DESCRIBE)
    assert not may(acl(operation), operation=Op.DESCRIBE_CONFIGS)
    assert may(acl(Op.ALL), acl(operation, DENY), operation=Op.DESCRIBE)
    assert not may(acl(Op.DESCRIBE), operation=operation)


def test_alter_configs_implies_describe_configs() -> None:
    assert may(acl(Op.ALTER_CONFIGS), operation=Op.DESCRIBE_CONFIGS)
    assert not may(acl(Op.ALTER_CONFIGS), operation=Op.DESCRIBE)


@pytest.mark.parametrize("other", [Op.WRITE, Op.DESCRIBE])
def test_two_phase_commit_is_a_right_of_its_own(other: Op) -> None:
    """KIP-939: TWO_PHASE_COMMIT is needed beside WRITE, and ALL alone includes it."""
    on_id = {"kind": Kind.TRANSACTIONAL_ID}
    assert not may(acl(other, **on_id), operation=Op.TWO_PHASE_COMMIT, **on_id)  # type: ignore[arg-type]
    assert not may(acl(Op.TWO_PHASE_COMMIT, **on_id), operation=other, **on_id)  # type: ignore[arg-type]
    assert may(acl(Op.ALL, **on_id), operation=Op.TWO_PHASE_COMMIT, **on_id)  # type: ignore[arg-type]


# ---- any resource of a type


def may_any(*acls: AclBinding, settings: AclSettings = STRICT, operation: Op = Op.WRITE) -> bool:
    return AclIndex(acls).decide_any(settings, "User:alice", HOST, operation, Kind.TOPIC).is_allowed


@pytest.mark.parametrize(
    ("acls", "expected"),
    [
        ((), False),
        ((acl(Op.WRITE),), True),
        ((acl(Op.WRITE, principal="User:bob"),), False),
        ((acl(Op.ALL),), True),
        ((acl(Op.WRITE), acl(Op.WRITE, DENY)), False),
        ((acl(Op.WRITE), acl(Op.ALL, DENY, name="ord", pattern=PREFIXED)), False),
        ((acl(Op.WRITE), acl(Op.WRITE, DENY, name="orders-", pattern=PREFIXED)), True),
        ((acl(Op.WRITE, name="or", pattern=PREFIXED), acl(Op.WRITE, DENY, name="or")), True),
        (
            (acl(Op.WRITE, name="or", pattern=PREFIXED), acl(Op.WRITE, DENY, name="o", pattern=PREFIXED)),
            False,
        ),
        ((acl(Op.WRITE, name="*"), acl(Op.WRITE, DENY)), True),
        ((acl(Op.WRITE, name="*"), acl(Op.WRITE, DENY, name="*")), False),
        ((acl(Op.WRITE), acl(Op.WRITE, DENY, name="*")), False),
        ((acl(Op.WRITE), acl(Op.READ, DENY, name="*")), True),
    ],
)
def test_any_resource_of_a_type(acls: tuple[AclBinding, ...], expected: bool) -> None:
    """Authorizer.authorizeByResourceType: an ALLOW counts unless a DENY covers everything that it allows."""
    assert may_any(*acls) is expected


def test_any_resource_for_those_who_may_everything() -> None:
    super_user = AclSettings(frozenset({"User:alice"}))
    assert may_any(acl(Op.WRITE, DENY, name="*"), settings=super_user)
    assert may_any(settings=LENIENT)


def test_an_operation_for_any_resource_is_not_implied() -> None:
    assert not may_any(acl(Op.WRITE), operation=Op.DESCRIBE)


# ---- filters and validation


ACLS = (
    acl(),
    acl(name="ord", pattern=PREFIXED),
    acl(name="*"),
    acl(name="orders", pattern=PREFIXED),
    acl(kind=Kind.GROUP),
    acl(Op.ALL, DENY, principal="User:bob", host=HOST),
)


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (AclBindingFilter(), (0, 1, 2, 3, 4, 5)),
        (AclBindingFilter(resource_type=Kind.GROUP), (4,)),
        (AclBindingFilter(name="orders"), (0, 3, 4, 5)),
        (AclBindingFilter(name="orders", pattern_type=LITERAL), (0, 4, 5)),
        (AclBindingFilter(name="orders", pattern_type=PREFIXED), (3,)),
        (AclBindingFilter(name="orders", pattern_type=AclPattern.MATCH), (0, 1, 2, 3, 4, 5)),
        (AclBindingFilter(name="ordinary", pattern_type=AclPattern.MATCH), (1, 2)),
        (AclBindingFilter(name="*"), (2,)),
        (AclBindingFilter(operation=Op.READ), (0, 1, 2, 3, 4)),
        (AclBindingFilter(permission=DENY), (5,)),
        (AclBindingFilter(principal="User:bob"), (5,)),
        (AclBindingFilter(host="*"), (0, 1, 2, 3, 4)),
    ],
)
def test_filters(wanted: AclBindingFilter, expected: tuple[int, ...]) -> None:
    """KIP-290: MATCH finds every pattern that applies to the name; ANY the exact name under either type."""
    assert set(AclIndex(ACLS).find(wanted)) == {ACLS[number] for number in expected}


@pytest.mark.parametrize(
    ("resource", "rest", "why"),
    [
        ((2, "t", 3), ("User:a", "*", 3, 3), None),
        ((4, "kafka-cluster", 3), ("User:a", "*", 15, 2), None),
        (
            (4, "cluster", 3),
            ("User:a", "*", 3, 3),
            "only valid name for the CLUSTER resource is kafka-cluster",
        ),
        ((2, "", 3), ("User:a", "*", 3, 3), "Invalid empty resource name"),
        ((1, "t", 3), ("User:a", "*", 3, 3), "Invalid resourceType ANY"),
        ((99, "t", 3), ("User:a", "*", 3, 3), "Invalid resourceType UNKNOWN"),
        ((2, "t", 1), ("User:a", "*", 3, 3), "Invalid patternType ANY"),
        ((2, "t", 2), ("User:a", "*", 3, 3), "Invalid patternType MATCH"),
        ((2, "t", 3), ("User:a", "*", 1, 3), "Invalid operation ANY"),
        ((2, "t", 3), ("User:a", "*", 0, 3), "Invalid operation UNKNOWN"),
        ((2, "t", 3), ("User:a", "*", 3, 1), "Invalid permissionType ANY"),
        ((2, "t", 3), ("alice", "*", 3, 3), "Could not parse principal from `alice`"),
    ],
)
def test_new_acls_are_validated(
    resource: tuple[int, str, int], rest: tuple[str, str, int, int], why: str | None
) -> None:
    """AclControlManager.validateNewAcl: each refusal is INVALID_REQUEST with the reason."""
    parsed = parse_binding(resource, *rest)
    if why is None:
        assert isinstance(parsed, AclBinding)
    else:
        assert isinstance(parsed, Reject)
        assert parsed.code == ErrorCode.INVALID_REQUEST
        assert why in parsed.reason


@pytest.mark.parametrize(
    ("numbers", "why"),
    [((0, 3, 3, 3), "patternFilter"), ((2, 9, 3, 3), "patternFilter"), ((2, 3, 3, 0), "entry")],
)
def test_filters_of_unknown_numbers_are_refused(numbers: tuple[int, int, int, int], why: str) -> None:
    kind, pattern, operation, permission = numbers
    parsed = parse_filter((kind, None, pattern), None, None, operation, permission)
    assert isinstance(parsed, Reject)
    assert why in parsed.reason


# ---- the authorizer: memory and audit log


def context(name: str = "alice", api_key: ApiKey = ApiKey.PRODUCE, host: str = HOST) -> RequestContext:
    return RequestContext(api_key, 9, 1, "client", host, 1, principal=Principal(name))


ORDERS = ResourcePattern(Kind.TOPIC, "orders")


def test_a_change_of_the_acls_holds_at_once() -> None:
    authorizer = StandardAuthorizer(STRICT)
    assert not authorizer.allows(context(), Op.WRITE, ORDERS)
    authorizer.set_index(authorizer.index.add([acl(Op.WRITE)]))
    assert authorizer.allows(context(), Op.WRITE, ORDERS)
    assert authorizer.allows_any(context(), Op.WRITE, Kind.TOPIC)
    assert not authorizer.allows(context("bob"), Op.WRITE, ORDERS)
    authorizer.set_index(authorizer.index.remove([acl(Op.WRITE)]))
    assert not authorizer.allows(context(), Op.WRITE, ORDERS)
    assert not authorizer.allows_any(context(), Op.WRITE, Kind.TOPIC)
    assert (authorizer.allowed, authorizer.denied) == (2, 4)


@pytest.mark.slow
def test_what_is_remembered_has_a_bound() -> None:
    authorizer = StandardAuthorizer(STRICT)
    for number in range(VERDICTS_MAX + 10):
        authorizer.allows(context(), Op.WRITE, ResourcePattern(Kind.TOPIC, str(number)), log_denied=False)
    assert len(authorizer._verdicts) <= VERDICTS_MAX


@pytest.mark.slow
def test_what_is_remembered_of_allowed_names_has_a_bound() -> None:
    """One client that names ever more topics, and one that names long ones."""
    authorizer = StandardAuthorizer(AclSettings(frozenset({"User:alice"})))
    for number in range(VERDICTS_MAX + 10):
        authorizer.allows(context(), Op.WRITE, ResourcePattern(Kind.TOPIC, str(number)))
    assert sum(len(each.names) for each in authorizer._allowed_names.values()) <= VERDICTS_MAX
    asked, long = context(), "x" * (REMEMBERED_NAME_CHARS_MAX + 1)
    assert authorizer.allows(asked, Op.WRITE, ResourcePattern(Kind.TOPIC, long))
    assert not is_known(asked, WRITE_TOPIC, long)
    assert authorizer.allowed == VERDICTS_MAX + 11


def test_what_is_known_is_of_one_connection_one_right_and_one_set_of_acls() -> None:
    authorizer = StandardAuthorizer(STRICT, AclIndex([acl(Op.WRITE)]))
    asked, other = context(), context("bob")
    assert not is_known(asked, WRITE_TOPIC, "orders")
    assert authorizer.allows(asked, Op.WRITE, ORDERS)
    assert not authorizer.allows(other, Op.WRITE, ORDERS)
    assert is_known(asked, WRITE_TOPIC, "orders")
    assert not is_known(asked, WRITE_TOPIC, "other")
    assert not is_known(asked, READ_TOPIC, "orders")
    assert not is_known(other, WRITE_TOPIC, "orders")
    assert (authorizer.allowed, authorizer.denied) == (2, 1)
    authorizer.set_index(authorizer.index.remove([acl(Op.WRITE)]))
    assert not is_known(asked, WRITE_TOPIC, "orders")
    assert not authorizer.allows(asked, Op.WRITE, ORDERS)
    assert (authorizer.allowed, authorizer.denied) == (2, 2)


def test_a_change_of_the_acls_reaches_every_connection_and_every_memory() -> None:
    """A connection that was idle meanwhile, too, and one whose names were forgotten for want of room."""
    authorizer = StandardAuthorizer(AclSettings(), AclIndex([acl(Op.WRITE), acl(Op.WRITE, name="*")]))
    idle, busy = context(), context()
    for each in (idle, busy):
        assert authorizer.allows(each, Op.WRITE, ORDERS)
    for number in range(VERDICTS_MAX):
        assert authorizer.allows(busy, Op.WRITE, ResourcePattern(Kind.TOPIC, str(number)))
    assert not is_known(idle, WRITE_TOPIC, "orders")
    assert authorizer.allows(idle, Op.WRITE, ORDERS)
    assert is_known(busy, WRITE_TOPIC, "orders")  # connections of one requester share what is known
    authorizer.set_index(AclIndex([acl(Op.READ)]))
    for each in (idle, busy):
        assert not any(known.names or known.topic_ids for known in each.known_rights.values())


def test_an_id_is_known_as_long_as_its_name() -> None:
    authorizer = StandardAuthorizer(STRICT, AclIndex([acl(Op.WRITE)]))
    asked, some = context(), UUID(int=7)
    keep_id(asked.known_rights, WRITE_TOPIC, some, "orders")
    assert WRITE_TOPIC not in asked.known_rights
    assert authorizer.allows(asked, Op.WRITE, ORDERS)
    known = asked.known_rights[WRITE_TOPIC]
    keep_id(asked.known_rights, WRITE_TOPIC, UUID(int=8), "other")
    assert not known.topic_ids
    for number in range(TOPIC_IDS_MAX + 10):
        keep_id(asked.known_rights, WRITE_TOPIC, UUID(int=number), "orders")
    assert 0 < len(known.topic_ids) <= TOPIC_IDS_MAX
    authorizer.set_index(authorizer.index)
    assert not known.topic_ids


def test_what_is_known_is_not_used_where_a_line_is_due(caplog: pytest.LogCaptureFixture) -> None:
    authorizer, asked = StandardAuthorizer(STRICT, AclIndex([acl(Op.WRITE)])), context()
    assert authorizer.allows(asked, Op.WRITE, ORDERS)
    for level, logger in ((logging.DEBUG, AUDIT_LOGGER), (TRACE, "kafka")):
        with caplog.at_level(level, logger=logger):
            assert not is_known(asked, WRITE_TOPIC, "orders")
        assert is_known(asked, WRITE_TOPIC, "orders")


def test_authorized_operations_are_the_allowed_ones_of_the_type() -> None:
    """KIP-430: a bit for each operation that the principal may perform; none is 0."""
    authorizer = StandardAuthorizer(STRICT, AclIndex([acl(Op.READ), acl(Op.ALL, kind=Kind.GROUP, name="g")]))
    group = ResourcePattern(Kind.GROUP, "g")
    assert authorizer.find_authorized_operations(context(), ORDERS) == format_operations(
        [Op.READ, Op.DESCRIBE]
    )
    assert authorizer.find_authorized_operations(context(), group) == format_operations(
        [Op.READ, Op.DESCRIBE, Op.DELETE, Op.DESCRIBE_CONFIGS, Op.ALTER_CONFIGS]
    )
    assert authorizer.find_authorized_operations(context("bob"), ORDERS) == 0


def test_the_audit_log_has_kafkas_text_and_levels(caplog: pytest.LogCaptureFixture) -> None:
    """StandardAuthorizerData.logAuditMessage: denied at INFO, allowed at DEBUG, filters of lists at TRACE."""
    authorizer = StandardAuthorizer(AclSettings(frozenset({"User:root"})), AclIndex([acl(Op.WRITE)]))
    with caplog.at_level(TRACE, logger=AUDIT_LOGGER):
        authorizer.allows(context(), Op.WRITE, ORDERS, references=lambda name: 2)
        authorizer.allows(context("bob"), Op.DESCRIBE, ORDERS)
        authorizer.allows(context("bob", ApiKey.METADATA), Op.DESCRIBE, ORDERS, log_denied=False)
        authorizer.allows(context("root"), Op.WRITE, ResourcePattern(Kind.TRANSACTIONAL_ID, "t"))
    head = "Principal = User:bob is Denied operation = DESCRIBE from host = 10.0.0.1"
    tail = "on resource = Topic:LITERAL:orders for request"
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [
        (
            logging.DEBUG,
            (
                "Principal = User:alice is Allowed operation = WRITE from host = 10.0.0.1 on resource = "
                "Topic:LITERAL:orders for request = Produce with resourceRefCount = 2 based on rule "
                "MatchingAcl(acl=StandardAcl(resourceType=TOPIC, resourceName=orders, patternType=LITERAL, "
                "principal=User:alice, host=*, operation=WRITE, permissionType=ALLOW))"
            ),
        ),
        (logging.INFO, f"{head} {tail} = Produce with resourceRefCount = 1 based on rule DefaultDeny"),
        (TRACE, f"{head} {tail} = Metadata with resourceRefCount = 1 based on rule DefaultDeny"),
        (
            logging.DEBUG,
            (
                "Principal = User:root is Allowed operation = WRITE from host = 10.0.0.1 on resource = "
                "TransactionalId:LITERAL:t for request = Produce with resourceRefCount = 1 "
                "based on rule SuperUser"
            ),
        ),
    ]


def test_a_name_cannot_forge_a_line_of_the_audit_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger=AUDIT_LOGGER):
        StandardAuthorizer(STRICT).allows(
            context("bob"), Op.READ, ResourcePattern(Kind.TOPIC, "x\nPrincipal = User:bob is Allowed")
        )
    (record,) = caplog.records
    assert "\n" not in record.getMessage()
