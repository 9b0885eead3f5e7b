"""Rules of access control, and the levels of features, on brokers that answer as a script says.

A real broker with ACLs is in test_acls_live.py, Kafka's in tests/interop.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence

import pytest
from tests.support.scripted_broker import ScriptedBroker, Seen

from tallystick.admin.acls import Acl, AclFilter, PartlyDeleted
from tallystick.admin.aio import Admin
from tallystick.cli.main import main
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Effect
from tallystick.kernel.value import Value, replace
from tallystick.protocol.acls import AclOperation, AclPattern, AclPermission, AclResource
from tallystick.protocol.apis import ApiKey
from tallystick.protocol.messages.security import acls as acls_api
from tallystick.protocol.messages.topics.metadata import MetadataResponse, MetadataResponseBroker

pytestmark = pytest.mark.server

DEAD_PORT = 1
READ = Acl(resource=AclResource.TOPIC, name="t", principal="User:a", operation=AclOperation.READ)
WRITE = replace(READ, operation=AclOperation.WRITE)
OF_T = AclFilter(resource=AclResource.TOPIC, name="t")


def on(broker: ScriptedBroker, check: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        async with broker:
            await check()

    asyncio.run(run())


def admin_of(broker: ScriptedBroker, **more: object) -> Admin:
    return Admin(
        {"bootstrap.servers": broker.address, "retry.backoff.ms": 1, "retry.backoff.max.ms": 1, **more}
    )


def matching(rule: Acl, code: int = 0) -> acls_api.DeleteAclsMatchingAcl:
    return acls_api.DeleteAclsMatchingAcl(
        error_code=code,
        error_message="no" if code else None,
        resource_type=rule.resource,
        resource_name=rule.name,
        pattern_type=rule.pattern,
        principal=rule.principal,
        host=rule.host,
        operation=rule.operation,
        permission_type=rule.permission,
    )


def answering(
    *rounds: Sequence[acls_api.DeleteAclsMatchingAcl],
) -> Callable[[Seen], acls_api.DeleteAclsResponse]:
    left = list(rounds)

    def answer(_: Seen) -> acls_api.DeleteAclsResponse:
        matching_acls = tuple(left.pop(0))
        return acls_api.DeleteAclsResponse(
            filter_results=(acls_api.DeleteAclsFilterResult(matching_acls=matching_acls),)
        )

    return answer


def test_what_a_filter_deleted_is_told_though_one_of_its_rules_is_left() -> None:
    """[ADM-2]"""
    broker = ScriptedBroker()
    denied = ErrorCode.SECURITY_DISABLED
    broker.scripts[ApiKey.DELETE_ACLS] = answering([matching(READ), matching(WRITE, denied)])

    async def check() -> None:
        async with admin_of(broker) as admin:
            answers = await admin.delete_acls([OF_T])
        failure = answers.failures[OF_T]
        assert isinstance(failure, PartlyDeleted)
        assert failure.deleted == (READ,)
        assert failure.effect is Effect.UNKNOWN
        assert "ALLOW WRITE to User:a on TOPIC 't'" in str(failure)
        assert not answers.found

    on(broker, check)


def test_what_was_deleted_before_a_repeated_request_is_told() -> None:
    """The second request finds only what the first one left."""
    broker = ScriptedBroker()
    passing = ErrorCode.REQUEST_TIMED_OUT
    broker.scripts[ApiKey.DELETE_ACLS] = answering(
        [matching(READ), matching(WRITE, passing)], [matching(WRITE)]
    )

    async def check() -> None:
        async with admin_of(broker) as admin:
            assert (await admin.delete_acls([OF_T])).one(OF_T) == (READ, WRITE)

    on(broker, check)
    assert broker.count(ApiKey.DELETE_ACLS) == 2


def test_levels_of_features_are_told_while_the_first_broker_is_down() -> None:
    broker = ScriptedBroker(node_id=2, features={"transaction.version": 2}, features_epoch=1)
    broker.scripts[ApiKey.METADATA] = lambda _: metadata_with_a_dead_one(broker)

    async def check() -> None:
        async with admin_of(broker, **{"reconnect.backoff.ms": 1}) as admin:
            assert await admin.describe_features() == {"transaction.version": 2}

    on(broker, check)


def metadata_with_a_dead_one(broker: ScriptedBroker) -> MetadataResponse:
    answer = broker.metadata()
    gone = MetadataResponseBroker(node_id=1, host="127.0.0.1", port=DEAD_PORT)
    return replace(answer, brokers=(gone, *answer.brokers))


# -------------------------------------------------------------------------- as commands


class Ran(Value):
    """How a command ended, what it printed, and what the broker was asked."""

    code: int
    out: str
    err: str
    asked: list[object]


Command = Callable[..., Ran]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """`tallystick acls` at a broker that has two rules, and does what it is asked."""

    def found(_: Seen) -> acls_api.DescribeAclsResponse:
        acls = tuple(
            acls_api.AclDescription(
                principal=each.principal,
                host=each.host,
                operation=each.operation,
                permission_type=each.permission,
            )
            for each in (READ, WRITE)
        )
        rules = acls_api.DescribeAclsResource(
            resource_type=READ.resource, resource_name=READ.name, pattern_type=READ.pattern, acls=acls
        )
        return acls_api.DescribeAclsResponse(resources=(rules,))

    def created(seen: Seen) -> acls_api.CreateAclsResponse:
        assert isinstance(seen.request, acls_api.CreateAclsRequest)
        return acls_api.CreateAclsResponse(
            results=tuple(acls_api.AclCreationResult() for _ in seen.request.creations)
        )

    def run(*words: str) -> Ran:
        broker = ScriptedBroker()
        refused = matching(WRITE, ErrorCode.SECURITY_DISABLED)
        broker.scripts = {
            ApiKey.DESCRIBE_ACLS: found,
            ApiKey.CREATE_ACLS: created,
            ApiKey.DELETE_ACLS: answering([matching(READ), refused]),
        }
        codes = []

        async def check() -> None:
            at = ["--bootstrap-server", broker.address, "--output", "json"]
            codes.append(await asyncio.to_thread(main, ["acls", *words, *at]))

        on(broker, check)
        printed = capsys.readouterr()
        about = (ApiKey.DESCRIBE_ACLS, ApiKey.CREATE_ACLS, ApiKey.DELETE_ACLS)
        asked = [seen.request for seen in broker.seen if seen.key in about]
        return Ran(codes[0], printed.out, printed.err, asked)

    return run


def test_each_resource_principal_and_operation_makes_a_rule(command: Command) -> None:
    done = command(
        "create", "--group", "g", "--cluster", "--operation", "Read", "--operation", "describe-configs",
        "--deny-principal", "User:eve", "--host", "10.0.0.1",
    )  # fmt: skip
    assert done.code == 0, done.err
    (request,) = done.asked
    assert isinstance(request, acls_api.CreateAclsRequest)
    assert [(each.resource_type, each.resource_name, each.operation) for each in request.creations] == [
        (AclResource.GROUP, "g", AclOperation.READ),
        (AclResource.GROUP, "g", AclOperation.DESCRIBE_CONFIGS),
        (AclResource.CLUSTER, "kafka-cluster", AclOperation.READ),
        (AclResource.CLUSTER, "kafka-cluster", AclOperation.DESCRIBE_CONFIGS),
    ]
    for each in request.creations:
        assert (each.principal, each.host, each.permission_type) == (
            "User:eve",
            "10.0.0.1",
            AclPermission.DENY,
        )


def test_rules_are_looked_for_by_resource(command: Command) -> None:
    done = command("list", "--group", "g", "--cluster")
    assert [(row["Operation"], row["Host"]) for row in json.loads(done.out)] == [
        ("Read", "*"),
        ("Write", "*"),
    ]
    filters = [each for each in done.asked if isinstance(each, acls_api.DescribeAclsRequest)]
    assert [(each.resource_type_filter, each.resource_name_filter) for each in filters] == [
        (AclResource.GROUP, "g"),
        (AclResource.CLUSTER, "kafka-cluster"),
    ]
    assert {each.pattern_type_filter for each in filters} == {AclPattern.MATCH}


def test_rules_are_shown_asked_about_and_then_told_from_those_that_are_left(command: Command) -> None:
    """[ADM-2]"""
    asked = command("delete", "--topic", "t")
    assert (asked.code, asked.out) == (5, "")
    assert asked.err.count("User:a") == 2
    assert not any(isinstance(each, acls_api.DeleteAclsRequest) for each in asked.asked)
    done = command("delete", "--topic", "t", "--host", "10.0.0.1", "--operation", "all", "--yes")
    assert done.code == 1
    assert [row["Operation"] for row in json.loads(done.out)] == ["Read"]
    assert "deleted of that filter: 1 rules" in done.err
    (request,) = [each for each in done.asked if isinstance(each, acls_api.DeleteAclsRequest)]
    (wanted,) = request.filters
    assert (wanted.host_filter, wanted.operation) == ("10.0.0.1", AclOperation.ALL)
