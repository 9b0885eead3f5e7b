"""The right that each API needs: with all but it a principal is denied, and with it alone it is not."""

import re
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.support.memory_broker import MemoryBroker, loaded, memory_broker, on_a_loop
from tests.support.rights import (
    DENIALS,
    EVERYTHING,
    GROUP,
    ID,
    ON_GROUP,
    ON_ID,
    ON_TOPIC,
    TOPIC,
    Right,
    Row,
    build,
    iter_codes,
    rename,
)
from tests.support.rights_table import ROWS

from tallystick.broker.authorizer.acl_index import SUPPORTED_OPERATIONS, AclIndex, format_operations
from tallystick.broker.authorizer.authorizer import (
    CLUSTER_RESOURCE,
    Operation,
    topic_resource,
)
from tallystick.broker.authorizer.bindings import AccessControlEntry, AclBinding, ResourcePattern
from tallystick.broker.authorizer.known_rights import WRITE_TOPIC, AllowedNames
from tallystick.broker.authorizer.standard_authorizer import StandardAuthorizer
from tallystick.broker.config.broker_config import STANDARD_AUTHORIZER
from tallystick.broker.partitions.data_directory import DataDirectory
from tallystick.broker.server.login_gate import LoginGate
from tallystick.broker.server.server import Peer, ServerConnection, _apply_login
from tallystick.kernel.codes import ErrorCode as E
from tallystick.protocol.acls import AclPermission, AclResource
from tallystick.protocol.apis import API_SPECS, ApiKey
from tallystick.protocol.messages.data.fetch import FetchPartition, FetchRequest, FetchTopic
from tallystick.protocol.messages.data.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tallystick.protocol.primitives import NIL
from tallystick.protocol.records import BatchMeta, Record, encode_batch
from tallystick.security.principals import ANONYMOUS, Principal

ADMIN, ALICE = Principal("admin"), Principal("alice")
SETTINGS: dict[str, Any] = {"authorizer_class_name": STANDARD_AUTHORIZER, "super_users": "User:admin"}


def bind(rights: Iterable[Right], permission: AclPermission) -> list[AclBinding]:
    return [
        AclBinding(resource, AccessControlEntry(str(ALICE), "*", operation, permission))
        for operation, resource in rights
    ]


def grant(desk: MemoryBroker, allowed: Iterable[Right], denied: Iterable[Right] = ()) -> None:
    """Put these ACLs of alice in force, and no others."""
    authorizer = desk.broker.authorizer
    assert isinstance(authorizer, StandardAuthorizer)
    authorizer.set_index(AclIndex([*bind(allowed, AclPermission.ALLOW), *bind(denied, AclPermission.DENY)]))


@asynccontextmanager
async def cluster() -> AsyncIterator[MemoryBroker]:
    async with memory_broker(**SETTINGS) as desk:
        await desk.make_topic(TOPIC)
        await desk.make_topic("payments")
        find = build(ApiKey.FIND_COORDINATOR, {"key": ID, "key_type": 1})
        assert (await desk.ask(find, 3, principal=ADMIN)).error_code == E.NONE
        init = build(ApiKey.INIT_PRODUCER_ID, {"transactional_id": ID, "transaction_timeout_ms": 9_000})
        await loaded(desk)
        assert (await desk.ask(init, 4, principal=ADMIN)).error_code == E.NONE
        committed = {"partition_index": 0, "committed_offset": 1, "committed_metadata": None}
        topics = [{"name": "payments", "partitions": [committed]}]
        commit = build(ApiKey.OFFSET_COMMIT, {"group_id": GROUP, "member_id": "", "topics": topics})
        find = build(ApiKey.FIND_COORDINATOR, {"key": GROUP, "key_type": 0})
        assert (await desk.ask(find, 3, principal=ADMIN)).error_code == E.NONE
        assert set(iter_codes(await desk.ask(commit, 8, principal=ADMIN))) == {E.NONE}
        yield desk


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
@pytest.mark.slow
def test_a_right_and_its_absence(row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DataDirectory, "measure_volume", lambda _: (1, 1))

    @on_a_loop
    async def run() -> None:
        async with cluster() as desk:
            # Denials change nothing, so that they may come first.
            grant(desk, EVERYTHING, denied=row.rights)
            denied = await desk.ask(row.request(TOPIC), row.version, principal=ALICE)
            codes = row.places(denied)
            assert codes
            assert set(codes) == {row.code}
            # Nothing else in the answer says more than the denial.
            assert set(iter_codes(denied)) <= {row.code, E.NONE}
            if row.is_absent:
                grant(desk, EVERYTHING, denied=rename(row.rights))
                absent = await desk.ask(row.request("absent"), row.version, principal=ALICE)
                assert _describe(absent).replace("absent", TOPIC) == _describe(denied)
            for right in row.rights:
                grant(desk, [right, *row.others])
                allowed = await desk.ask(row.request(TOPIC), row.version, principal=ALICE)
                assert DENIALS.isdisjoint(iter_codes(allowed)), (right, allowed)
            if desk.broker.topics.find(TOPIC) is not None:
                # What was allowed on this connection is denied as soon as the rights are gone.
                grant(desk, EVERYTHING, denied=row.rights)
                revoked = await desk.ask(row.request(TOPIC), row.version, principal=ALICE)
                assert set(row.places(revoked)) == {row.code}

    run()


def _describe(answer: object) -> str:
    return re.sub("<memory at [^>]*>", "<memory>", repr(answer))


def test_every_api_is_in_the_table_or_needs_no_right_of_its_own() -> None:
    """ApiVersions and logins need none; DescribeCluster and the lists are filtered, the rest not served."""
    named = {type(row.request(TOPIC)) for row in ROWS}
    left = {key for key, spec in API_SPECS.items() if spec.request not in named}
    assert left == {
        ApiKey.API_VERSIONS,
        ApiKey.SASL_HANDSHAKE,
        ApiKey.SASL_AUTHENTICATE,
        ApiKey.DESCRIBE_CLUSTER,
        ApiKey.LIST_GROUPS,
        ApiKey.LIST_TRANSACTIONS,
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
        ApiKey.CONSUMER_GROUP_DESCRIBE,
    }


# ---- answers that a code does not describe


async def ask(desk: MemoryBroker, key: ApiKey, version: int, **content: Any) -> Any:
    return await desk.ask(build(key, content), version, principal=ALICE)


@on_a_loop
async def test_metadata_of_all_topics_omits_the_others() -> None:
    async with cluster() as desk:
        grant(desk, [(Operation.DESCRIBE, ON_TOPIC)])
        answer = await ask(desk, ApiKey.METADATA, 12, topics=None)
        assert [(topic.name, topic.error_code) for topic in answer.topics] == [(TOPIC, 0)]
        pages = await ask(desk, ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, topics=[])
        assert [topic.name for topic in pages.topics] == [TOPIC]


@on_a_loop
async def test_metadata_tells_neither_id_nor_name_of_the_other_side() -> None:
    """Asked by name it hides the id, asked by id the name."""
    async with cluster() as desk:
        known = desk.broker.topics.find(TOPIC)
        assert known is not None
        grant(desk, [])
        for topics, name, topic_id in (
            ([{"name": TOPIC}], TOPIC, NIL),
            ([{"topic_id": str(known.topic_id), "name": None}], None, known.topic_id),
        ):
            (topic,) = (await ask(desk, ApiKey.METADATA, 12, topics=topics)).topics
            assert topic.error_code == E.TOPIC_AUTHORIZATION_FAILED
            assert (topic.name, topic.topic_id, topic.is_internal, topic.partitions) == (
                name,
                topic_id,
                False,
                (),
            )


@pytest.mark.parametrize("resource", [CLUSTER_RESOURCE, topic_resource("new")])
def test_metadata_creates_a_topic_only_with_the_right_to_create_it(resource: ResourcePattern) -> None:
    @on_a_loop
    async def run() -> None:
        describe = (Operation.DESCRIBE, topic_resource("new"))
        asked = {"topics": [{"name": "new"}], "allow_auto_topic_creation": True}
        async with cluster() as desk:
            for rights, code in (
                ([], E.TOPIC_AUTHORIZATION_FAILED),
                ([(Operation.CREATE, resource)], E.TOPIC_AUTHORIZATION_FAILED),
                ([describe], E.TOPIC_AUTHORIZATION_FAILED),
                ([describe, (Operation.CREATE, resource)], E.NONE),
            ):
                grant(desk, rights)
                (topic,) = (await ask(desk, ApiKey.METADATA, 9, **asked)).topics
                assert topic.error_code == code
                assert (desk.broker.topics.find("new") is not None) is (code == E.NONE)

    run()


@on_a_loop
async def test_authorized_operations_are_those_of_the_principal() -> None:
    """KIP-430; what a principal may not describe has no operations, and no error."""
    cluster_bits = {"include_cluster_authorized_operations": True}
    async with cluster() as desk:
        rights = [(Operation.READ, ON_TOPIC), (Operation.ALTER, CLUSTER_RESOURCE)]
        grant(desk, [*rights, (Operation.DELETE, ON_GROUP)])
        metadata = await ask(
            desk,
            ApiKey.METADATA,
            9,
            topics=[{"name": TOPIC}],
            include_topic_authorized_operations=True,
            **cluster_bits,
        )
        of_topic = format_operations([Operation.READ, Operation.DESCRIBE])
        of_cluster = format_operations([Operation.ALTER, Operation.DESCRIBE])
        assert metadata.topics[0].topic_authorized_operations == of_topic
        assert metadata.cluster_authorized_operations == of_cluster
        described = await ask(desk, ApiKey.DESCRIBE_CLUSTER, 0, **cluster_bits)
        assert described.cluster_authorized_operations == of_cluster
        groups = await ask(
            desk, ApiKey.DESCRIBE_GROUPS, 5, groups=[GROUP], include_authorized_operations=True
        )
        assert groups.groups[0].authorized_operations == format_operations(
            [Operation.DELETE, Operation.DESCRIBE]
        )
        grant(desk, [(Operation.CREATE, CLUSTER_RESOURCE)])
        described = await ask(desk, ApiKey.DESCRIBE_CLUSTER, 0, **cluster_bits)
        assert (described.error_code, described.cluster_authorized_operations) == (0, 0)


@on_a_loop
async def test_without_an_authorizer_every_operation_is_authorized() -> None:
    async with memory_broker() as desk:
        desk.table.denied.clear()
        await desk.make_topic(TOPIC)
        answer = await ask(
            desk,
            ApiKey.METADATA,
            9,
            topics=[{"name": TOPIC}],
            include_topic_authorized_operations=True,
            include_cluster_authorized_operations=True,
        )
        for bits, kind in (
            (answer.topics[0].topic_authorized_operations, AclResource.TOPIC),
            (answer.cluster_authorized_operations, AclResource.CLUSTER),
        ):
            assert bits == format_operations(SUPPORTED_OPERATIONS[kind])


@on_a_loop
async def test_lists_omit_what_may_not_be_described() -> None:
    async with cluster() as desk:
        for group in (GROUP, "other"):
            committed = {"partition_index": 0, "committed_offset": 1, "committed_metadata": None}
            topics = [{"name": TOPIC, "partitions": [committed]}]
            content = {"group_id": group, "member_id": "", "topics": topics}
            await desk.ask(build(ApiKey.OFFSET_COMMIT, content), 8, principal=ADMIN)
        for rights, groups in (
            ([], set()),
            ([(Operation.READ, ON_GROUP)], {GROUP}),
            ([(Operation.DESCRIBE, CLUSTER_RESOURCE)], {GROUP, "other"}),
        ):
            grant(desk, rights)
            answer = await ask(desk, ApiKey.LIST_GROUPS, 4)
            assert answer.error_code == E.NONE
            assert {group.group_id for group in answer.groups} == groups
        for rights, ids in (([], []), ([(Operation.DESCRIBE, ON_ID)], [ID])):
            grant(desk, rights)
            listed = await ask(desk, ApiKey.LIST_TRANSACTIONS, 0)
            assert [each.transactional_id for each in listed.transaction_states] == ids


@on_a_loop
async def test_all_offsets_of_a_group_omit_the_other_topics() -> None:
    async with cluster() as desk:
        committed = [{"partition_index": 0, "committed_offset": 1, "committed_metadata": None}]
        topics = [{"name": name, "partitions": committed} for name in (TOPIC, "payments")]
        content = {"group_id": GROUP, "member_id": "", "topics": topics}
        await desk.ask(build(ApiKey.OFFSET_COMMIT, content), 8, principal=ADMIN)
        grant(desk, [(Operation.DESCRIBE, ON_GROUP), (Operation.DESCRIBE, ON_TOPIC)])
        answer = await ask(desk, ApiKey.OFFSET_FETCH, 8, groups=[{"group_id": GROUP, "topics": None}])
        assert [topic.name for topic in answer.groups[0].topics] == [TOPIC]


@on_a_loop
async def test_one_topic_of_several_is_denied_and_the_others_are_served() -> None:
    async with cluster() as desk:
        grant(desk, EVERYTHING, denied=[(Operation.WRITE, ON_TOPIC), (Operation.READ, ON_TOPIC)])
        topics = [{"name": name, "partitions": [0]} for name in (TOPIC, "payments")]
        added = await ask(
            desk,
            ApiKey.ADD_PARTITIONS_TO_TXN,
            3,
            v3_and_below_transactional_id=ID,
            v3_and_below_producer_id=0,
            v3_and_below_producer_epoch=0,
            v3_and_below_topics=topics,
        )
        # AddPartitionsToTxn is all or nothing: the others are not attempted.
        assert [
            part.partition_error_code
            for topic in added.results_by_topic_v3_and_below
            for part in topic.results_by_partition
        ] == [E.TOPIC_AUTHORIZATION_FAILED, E.OPERATION_NOT_ATTEMPTED]
        committed = [{"partition_index": 0, "committed_offset": 1, "committed_metadata": None}]
        topics = [{"name": name, "partitions": committed} for name in (TOPIC, "payments")]
        answer = await ask(desk, ApiKey.OFFSET_COMMIT, 8, group_id=GROUP, member_id="", topics=topics)
        assert [topic.partitions[0].error_code for topic in answer.topics] == [
            E.TOPIC_AUTHORIZATION_FAILED,
            E.NONE,
        ]


@on_a_loop
async def test_a_topic_that_may_be_deleted_by_id_alone_keeps_its_name() -> None:
    async with cluster() as desk:
        known = desk.broker.topics.find(TOPIC)
        assert known is not None
        topics = [{"name": None, "topic_id": str(known.topic_id)}]
        grant(desk, EVERYTHING, denied=[(Operation.DESCRIBE, ON_TOPIC), (Operation.DELETE, CLUSTER_RESOURCE)])
        (hidden,) = (await ask(desk, ApiKey.DELETE_TOPICS, 6, topics=topics, timeout_ms=1)).responses
        assert (hidden.error_code, hidden.name) == (E.TOPIC_AUTHORIZATION_FAILED, None)
        grant(desk, [(Operation.DESCRIBE, ON_TOPIC)])
        (kept,) = (await ask(desk, ApiKey.DELETE_TOPICS, 6, topics=topics, timeout_ms=1)).responses
        assert (kept.error_code, kept.name) == (E.TOPIC_AUTHORIZATION_FAILED, TOPIC)
        assert desk.broker.topics.find(TOPIC) is not None


@on_a_loop
async def test_a_change_of_the_acls_holds_for_the_next_produce_and_fetch() -> None:
    rows = [row for row in ROWS if ON_TOPIC in {resource for _, resource in row.rights}]
    rows = [row for row in rows if isinstance(row.request(TOPIC), (ProduceRequest, FetchRequest))]
    assert {type(row.request(TOPIC)) for row in rows} == {ProduceRequest, FetchRequest}
    async with cluster() as desk:
        for row in rows:
            for allowed in (True, True, False, True):
                grant(desk, EVERYTHING, denied=() if allowed else row.rights)
                for _ in range(2):
                    answer = await desk.ask(row.request(TOPIC), row.version, principal=ALICE)
                    assert DENIALS.isdisjoint(iter_codes(answer)) is allowed


@on_a_loop
async def test_a_change_of_the_acls_holds_for_topics_named_by_id() -> None:
    """Of one topic, of two of which one is denied, and of one that was made again under its name."""
    async with cluster() as desk:
        for denied in ((), [(Operation.WRITE, ON_TOPIC), (Operation.READ, ON_TOPIC)], ()):
            grant(desk, EVERYTHING, denied=denied)
            expected = E.TOPIC_AUTHORIZATION_FAILED if denied else E.NONE
            for _ in range(2):
                assert await _use_by_id(desk, TOPIC, "payments") == [expected, E.NONE] * 2
        await desk.broker.topic_controller.delete(TOPIC)
        grant(desk, EVERYTHING, denied=[(Operation.WRITE, ON_TOPIC), (Operation.READ, ON_TOPIC)])
        await desk.make_topic(TOPIC)
        assert await _use_by_id(desk, TOPIC, "payments") == [E.TOPIC_AUTHORIZATION_FAILED, E.NONE] * 2


async def _use_by_id(desk: MemoryBroker, *names: str) -> list[int]:
    """Produce to and fetch from topics by their ids, and return the codes, first those of Produce."""
    topics = [desk.broker.topics.find(name) for name in names]
    ids = [topic.topic_id for topic in topics if topic is not None]
    data = PartitionProduceData(index=0, records=encode_batch([Record(0, 1, None, b"v", ())], BatchMeta()))
    produce = ProduceRequest(
        acks=1,
        timeout_ms=1000,
        topic_data=tuple(TopicProduceData(topic_id=each, partition_data=(data,)) for each in ids),
    )
    part = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
    fetch = FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        session_epoch=-1,
        topics=tuple(FetchTopic(topic_id=each, partitions=(part,)) for each in ids),
    )
    produced = await desk.ask(produce, 13, principal=ALICE)
    fetched = await desk.ask(fetch, 17, principal=ALICE)
    written = {each.topic_id: each.partition_responses[0].error_code for each in produced.responses}
    read = {each.topic_id: each.partitions[0].error_code for each in fetched.responses}
    return [written[each] for each in ids] + [read[each] for each in ids]


def test_a_login_leaves_nothing_of_the_rights_of_the_one_before() -> None:
    peer = Peer("10.0.0.1", 1, 1, principal=ANONYMOUS)
    peer.known_rights[WRITE_TOPIC] = AllowedNames()
    connection = SimpleNamespace(peer=peer)
    gate = SimpleNamespace(has_failed=False, principal=ALICE)
    _apply_login(cast("ServerConnection", connection), cast("LoginGate", gate))
    assert (connection.peer.principal, connection.peer.known_rights) == (ALICE, {})
    assert Peer("10.0.0.1", 1, 1).known_rights is not Peer("10.0.0.1", 1, 2).known_rights
