"""DescribeAcls, CreateAcls and DeleteAcls, with an authorizer and without."""

import sqlite3
from typing import Any

import pytest
from tests.support.memory_broker import MemoryBroker, memory_broker, memory_disk, on_a_loop

from tallystick.broker.config.broker_config import STANDARD_AUTHORIZER, BrokerConfig
from tallystick.broker.metadata.acl_controller import DELETIONS_MAX
from tallystick.kernel.codes import ErrorCode as E
from tallystick.kernel.settings import BadConfig
from tallystick.protocol.messages.security.acls import (
    AclCreation,
    CreateAclsRequest,
    DeleteAclsFilter,
    DeleteAclsRequest,
    DescribeAclsRequest,
)
from tallystick.security.principals import Principal

ADMIN, ALICE = Principal("admin"), Principal("alice")
SETTINGS: dict[str, Any] = {"authorizer_class_name": STANDARD_AUTHORIZER, "super_users": "User:admin"}
ALTER, DESCRIBE, READ, ALLOW = 7, 8, 3, 3
TOPIC, CLUSTER = 2, 4


def creation(
    name: str = "orders",
    *,
    kind: int = TOPIC,
    pattern: int = 3,
    principal: str = "User:alice",
    operation: int = READ,
) -> AclCreation:
    return AclCreation(
        resource_type=kind,
        resource_name=name,
        resource_pattern_type=pattern,
        principal=principal,
        host="*",
        operation=operation,
        permission_type=ALLOW,
    )


def everything(**more: Any) -> dict[str, Any]:
    return {
        "resource_type_filter": 1,
        "resource_name_filter": None,
        "pattern_type_filter": 1,
        "principal_filter": None,
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
        **more,
    }


async def create(desk: MemoryBroker, *acls: AclCreation, principal: Principal = ADMIN) -> list[int]:
    answer = await desk.ask(CreateAclsRequest(creations=acls), 3, principal=principal)
    return [result.error_code for result in answer.results]


async def list_acls(desk: MemoryBroker, **wanted: Any) -> set[tuple[str, str, int]]:
    answer = await desk.ask(DescribeAclsRequest(**everything(**wanted)), 3, principal=ADMIN)
    assert answer.error_code == E.NONE
    return {
        (each.resource_name, acl.principal, acl.operation) for each in answer.resources for acl in each.acls
    }


@on_a_loop
async def test_what_was_created_is_listed_and_in_force_after_a_restart() -> None:
    disk = memory_disk()
    async with memory_broker(disk, **SETTINGS) as desk:
        assert await create(desk, creation(), creation(), creation("pay", pattern=4)) == [0, 0, 0]
        assert await create(desk, creation()) == [0], "a duplicate succeeds silently"
    async with memory_broker(disk, **SETTINGS) as desk:
        assert await list_acls(desk) == {("orders", "User:alice", READ), ("pay", "User:alice", READ)}
        assert await list_acls(desk, resource_name_filter="payments", pattern_type_filter=2) == {
            ("pay", "User:alice", READ)
        }
        described = await desk.ask(DescribeAclsRequest(**everything()), 1, principal=ADMIN)
        assert [len(each.acls) for each in described.resources] == [1, 1]


@on_a_loop
async def test_each_bad_acl_is_refused_and_the_others_are_created() -> None:
    """AclControlManager: INVALID_REQUEST for the item, with its reason."""
    async with memory_broker(**SETTINGS) as desk:
        acls = (creation(), creation(""), creation("c", kind=CLUSTER), creation(principal="alice"))
        assert await create(desk, *acls) == [0, *[E.INVALID_REQUEST] * 3]
        assert await list_acls(desk) == {("orders", "User:alice", READ)}


@on_a_loop
async def test_a_deletion_answers_each_filter_with_what_it_matched() -> None:
    async with memory_broker(**SETTINGS) as desk:
        await create(desk, creation(), creation("pay"), creation("orders", operation=4))
        filters = (
            DeleteAclsFilter(**everything(resource_name_filter="orders")),
            DeleteAclsFilter(**everything(operation=99)),
            DeleteAclsFilter(**everything(operation=READ, resource_name_filter="orders")),
            DeleteAclsFilter(**everything(resource_name_filter="nothing")),
        )
        answer = await desk.ask(DeleteAclsRequest(filters=filters), 3, principal=ADMIN)
        assert [each.error_code for each in answer.filter_results] == [0, E.INVALID_REQUEST, 0, 0]
        assert [len(each.matching_acls) for each in answer.filter_results] == [2, 0, 1, 0]
        assert await list_acls(desk) == {("pay", "User:alice", READ)}


@on_a_loop
@pytest.mark.slow
async def test_a_deletion_has_a_limit() -> None:
    async with memory_broker(**SETTINGS) as desk:
        names = [creation(str(number)) for number in range(DELETIONS_MAX + 1)]
        assert set(await create(desk, *names)) == {0}
        request = DeleteAclsRequest(filters=(DeleteAclsFilter(**everything()),))
        answer = await desk.ask(request, 3, principal=ADMIN)
        assert answer.filter_results[0].error_code == E.INVALID_REQUEST
        assert "Cannot remove more than 10000 acls" in answer.filter_results[0].error_message
        assert len(await list_acls(desk)) == len(names)


@on_a_loop
async def test_rights_to_the_rights() -> None:
    """DescribeAcls needs DESCRIBE, the others ALTER on the cluster; ALTER implies DESCRIBE."""
    denied = E.CLUSTER_AUTHORIZATION_FAILED
    on_cluster = creation("kafka-cluster", kind=CLUSTER, operation=DESCRIBE)
    deletion = DeleteAclsRequest(filters=(DeleteAclsFilter(**everything()),) * 2)
    async with memory_broker(**SETTINGS) as desk:
        assert (await desk.ask(DescribeAclsRequest(**everything()), 3, principal=ALICE)).error_code == denied
        await create(desk, on_cluster)
        answer = await desk.ask(DescribeAclsRequest(**everything()), 3, principal=ALICE)
        assert (answer.error_code, len(answer.resources)) == (0, 1)
        assert await create(desk, creation(), creation(), principal=ALICE) == [denied] * 2
        refused = await desk.ask(deletion, 3, principal=ALICE)
        assert [each.error_code for each in refused.filter_results] == [denied] * 2
        await create(desk, creation("kafka-cluster", kind=CLUSTER, operation=ALTER))
        assert await create(desk, creation(), principal=ALICE) == [0]
        done = await desk.ask(deletion, 3, principal=ALICE)
        assert [len(each.matching_acls) for each in done.filter_results] == [3, 3]


@pytest.mark.parametrize("version", [1, 2, 3])
def test_without_an_authorizer_security_is_disabled(version: int) -> None:
    @on_a_loop
    async def run() -> None:
        async with memory_broker() as desk:
            answer = await desk.ask(DescribeAclsRequest(**everything()), version)
            assert answer.error_code == E.SECURITY_DISABLED
            created = await desk.ask(CreateAclsRequest(creations=(creation(),)), version)
            assert created.results[0].error_code == E.SECURITY_DISABLED
            request = DeleteAclsRequest(filters=(DeleteAclsFilter(**everything()),))
            deleted = await desk.ask(request, version)
            assert deleted.filter_results[0].error_code == E.SECURITY_DISABLED

    run()


@pytest.mark.parametrize(("code", "is_fatal"), [(sqlite3.SQLITE_FULL, False), (sqlite3.SQLITE_IOERR, True)])
def test_a_change_that_is_not_durable_is_not_in_force(
    monkeypatch: pytest.MonkeyPatch, code: int, is_fatal: bool
) -> None:
    """[MET-1]"""

    def fail(**_: object) -> None:
        failure = sqlite3.OperationalError("no")
        failure.sqlite_errorcode = code
        raise failure

    @on_a_loop
    async def run() -> None:
        async with memory_broker(**SETTINGS) as desk:
            await create(desk, creation("old"))
            monkeypatch.setattr(desk.broker.metadata_store, "change_acls", fail)
            assert await create(desk, creation()) == [E.KAFKA_STORAGE_ERROR]
            request = DeleteAclsRequest(filters=(DeleteAclsFilter(**everything()),))
            answer = await desk.ask(request, 3, principal=ADMIN)
            assert answer.filter_results[0].error_code == E.KAFKA_STORAGE_ERROR
            assert await list_acls(desk) == {("old", "User:alice", READ)}
            assert (desk.broker.failure is not None) is is_fatal

    run()


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"authorizer.class.name": "com.example.Mine"}, "authorizer.class.name"),
        ({"super.users": "User:a"}, "super.users: has no effect without authorizer.class.name"),
        ({"allow.everyone.if.no.acl.found": "true"}, "allow.everyone.if.no.acl.found: has no effect"),
        (
            {"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:a;b"},
            "super.users: 'b' is no principal: write Type:name, as in User:b",
        ),
    ],
)
def test_settings_that_cannot_be_meant_stop_the_start(settings: dict[str, str], why: str) -> None:
    with pytest.raises(BadConfig, match=why):
        BrokerConfig.parse({"log.dirs": "data", **settings})


def test_super_users_are_separated_by_semicolons() -> None:
    """A distinguished name has commas: `User:CN=a,O=b;User:c`."""
    given = {"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:CN=a,O=b; User:c;"}
    assert BrokerConfig.parse(given).super_user_names == {"User:CN=a,O=b", "User:c"}
