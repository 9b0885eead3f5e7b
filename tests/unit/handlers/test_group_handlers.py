"""The group APIs at every version: request bytes in, response bytes out, and what they say.

The coordinator is the real one on a log in memory; of the broker only what these handlers look at is there.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any, cast
from uuid import UUID

from tests.support.loops import Turn, on_a_loop
from tests.support.memory_broker import versions

from tallystick.broker.authorizer.authorizer import ALLOW_ALL
from tallystick.broker.broker import Broker
from tallystick.broker.config.endpoint import Endpoint
from tallystick.broker.group.coordinator import GroupCoordinator
from tallystick.broker.group.machine.model import GroupConfig
from tallystick.broker.handlers import HANDLERS
from tallystick.broker.metadata.store import Topic
from tallystick.broker.server.request_context import RequestContext
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import Offset
from tallystick.protocol import decode, encode
from tallystick.protocol.apis import API_SPECS, ApiKey
from tallystick.protocol.messages.cluster.find_coordinator import FindCoordinatorRequest
from tallystick.protocol.messages.groups.administration import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    ListGroupsRequest,
)
from tallystick.protocol.messages.groups.membership import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    LeaveGroupRequest,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from tallystick.protocol.messages.groups.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tallystick.protocol.messages.groups.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from tallystick.protocol.messages.groups.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
)
from tallystick.protocol.records import read_header
from tallystick.storage.log.log import NO_GUARD, AppendResult, TxnGuard
from tallystick.storage.state.producer_state import AppendOrigin
from tallystick.testing import FakeClock

TOPIC = Topic("t", UUID(int=5), 2)
UNKNOWN_ID = UUID(int=9)


class MemoryOffsets:
    """Topic and only partition of `__consumer_offsets` in one."""

    partition_count = 1

    def __init__(self) -> None:
        self.end = 0
        self.ensured = 0

    def list_partitions(self) -> list["MemoryOffsets"]:
        return []

    async def ensure_exists(self) -> Reject | None:
        self.ensured += 1
        return None

    async def ensure_partition(self, index: int) -> "MemoryOffsets":
        return self

    def append(
        self, batches: bytes, origin: AppendOrigin = AppendOrigin.CLIENT, guard: TxnGuard = NO_GUARD
    ) -> AppendResult:
        at, self.end = self.end, self.end + read_header(batches).record_count
        return AppendResult(Offset(at), Offset(self.end - 1), -1, Offset(0))

    def when_durable(self, offset: Offset) -> None:
        return None

    def iter_batches(self, max_bytes: int) -> Iterator[bytes]:
        return iter(())


class OneTopic:
    def find(self, name: str) -> Topic | None:
        return TOPIC if name == TOPIC.name else None

    def find_by_id(self, topic_id: UUID) -> Topic | None:
        return TOPIC if topic_id == TOPIC.topic_id else None

    def find_partition(self, name: str, index: int) -> object | None:
        return object() if name == TOPIC.name and 0 <= index < TOPIC.partitions else None


@dataclass
class NodeConfig:
    node_id: int = 1
    delete_open_transactions: bool = False


class GroupsOnly:
    """The part of a Broker that group handlers see."""

    def __init__(self) -> None:
        ids = count(1)
        self.offsets = MemoryOffsets()
        self.clock = FakeClock()
        self.groups = GroupCoordinator(
            self.offsets, GroupConfig(group_initial_rebalance_delay_ms=0), self.clock, lambda: str(next(ids))
        )
        self.topics = OneTopic()
        self.authorizer = ALLOW_ALL
        self.config = NodeConfig()

    def get_address(self, listener: str) -> Endpoint:
        return Endpoint("h", 9092)

    async def ask(self, request: Any, version: int) -> Any:
        """Send a request through its bytes, and read the answer's."""
        api = next(spec for spec in API_SPECS.values() if isinstance(request, spec.request))
        context = RequestContext(api.key, version, 1, "client", "10.0.0.1", 1)
        answer = HANDLERS[api.key].run(cast(Broker, self), memoryview(encode(request, version)), context)
        parts = answer if isinstance(answer, list) or answer is None else await answer
        assert parts is not None
        return decode(api.response, b"".join(parts), version)

    async def join(self, version: int = 9, instance: str | None = None) -> Any:
        """A member of the group "g"; the leader's answer."""
        request = join_request(instance=instance)
        first = await self.ask(request, version) if version >= 4 and instance is None else None
        member_id = first.member_id if first is not None else ""
        if first is not None:
            assert first.error_code == ErrorCode.MEMBER_ID_REQUIRED
        asked = asyncio.ensure_future(self.ask(join_request(member_id, instance), version))
        for _ in range(5):
            await Turn()
            self.groups.tick()
        return await asked


def join_request(
    member_id: str = "", instance: str | None = None, group: str = "g", session: int = 10_000
) -> Any:
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=session,
        rebalance_timeout_ms=60_000,
        member_id=member_id,
        group_instance_id=instance,
        protocol_type="consumer",
        protocols=(JoinGroupRequestProtocol(name="range", metadata=b"\0\0\0\0\0\1\0\1t"),),
    )


def sync_request(joined: Any, version: int, **changes: Any) -> Any:
    fields: dict[str, Any] = {
        "group_id": "g",
        "generation_id": joined.generation_id,
        "member_id": joined.member_id,
        "assignments": (SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"all"),),
    }
    if version >= 5:
        fields |= {"protocol_type": "consumer", "protocol_name": "range"}
    return SyncGroupRequest(**{**fields, **changes})


def commit_request(version: int, offset: int = 5, joined: Any = None, topic_id: UUID = TOPIC.topic_id) -> Any:
    name, ids = ("t", {}) if version < 10 else ("", {"topic_id": topic_id})
    rows = tuple(
        OffsetCommitRequestPartition(
            partition_index=index, committed_offset=offset + index, committed_metadata="m"
        )
        for index in (0, 1, 2)
    )
    topics = [OffsetCommitRequestTopic(name=name, partitions=rows, **ids)]
    if version < 10:
        topics.append(OffsetCommitRequestTopic(name="nope", partitions=rows[:1]))
    return OffsetCommitRequest(
        group_id="g",
        generation_id_or_member_epoch=-1 if joined is None else joined.generation_id,
        member_id="" if joined is None else joined.member_id,
        topics=tuple(topics),
    )


def fetch_request(version: int, *, everything: bool = False, topic_id: UUID = TOPIC.topic_id) -> Any:
    wanted = OffsetFetchRequestTopic(
        **({"name": "t"} if version < 10 else {"topic_id": topic_id}), partition_indexes=(0, 7)
    )
    topics = None if everything else (wanted,)
    if version < 8:
        return OffsetFetchRequest(group_id="g", topics=topics)
    return OffsetFetchRequest(
        groups=(
            OffsetFetchRequestGroup(group_id="g", topics=topics),
            OffsetFetchRequestGroup(group_id="other", topics=topics),
        ),
        require_stable=True,
    )


@versions(ApiKey.JOIN_GROUP)
@on_a_loop
async def test_join_group(version: int) -> None:
    broker = GroupsOnly()
    joined = await broker.join(version)
    assert (joined.error_code, joined.generation_id, joined.protocol_name) == (0, 1, "range")
    assert joined.leader == joined.member_id
    assert joined.member_id.startswith("client-")
    assert [member.member_id for member in joined.members] == [joined.member_id]
    refused = await broker.ask(join_request("nobody"), version)
    assert (refused.error_code, refused.member_id) == (ErrorCode.UNKNOWN_MEMBER_ID, "nobody")
    short = await broker.ask(join_request(session=5), version)
    assert short.error_code == ErrorCode.INVALID_SESSION_TIMEOUT
    nameless = await broker.ask(join_request(group=""), version)
    assert nameless.error_code == ErrorCode.INVALID_GROUP_ID


@versions(ApiKey.SYNC_GROUP)
@on_a_loop
async def test_sync_group(version: int) -> None:
    broker = GroupsOnly()
    joined = await broker.join()
    synced = await broker.ask(sync_request(joined, version), version)
    assert (synced.error_code, synced.assignment) == (0, b"all")
    late = await broker.ask(sync_request(joined, version, generation_id=0), version)
    assert (late.error_code, late.assignment) == (ErrorCode.ILLEGAL_GENERATION, b"")
    if version >= 5:
        silent = await broker.ask(sync_request(joined, version, protocol_name=None), version)
        assert silent.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


@versions(ApiKey.HEARTBEAT)
@on_a_loop
async def test_heartbeat(version: int) -> None:
    broker = GroupsOnly()
    joined = await broker.join()
    beat = HeartbeatRequest(group_id="g", generation_id=1, member_id=joined.member_id)
    assert (await broker.ask(beat, version)).error_code == 0
    stranger = HeartbeatRequest(group_id="g", generation_id=1, member_id="x")
    assert (await broker.ask(stranger, version)).error_code == ErrorCode.UNKNOWN_MEMBER_ID


@versions(ApiKey.LEAVE_GROUP)
@on_a_loop
async def test_leave_group(version: int) -> None:
    broker = GroupsOnly()
    joined = await broker.join(instance="i" if version >= 3 else None)
    if version < 3:
        request = LeaveGroupRequest(group_id="g", member_id=joined.member_id)
        assert (await broker.ask(request, version)).error_code == 0
        assert (await broker.ask(request, version)).error_code == ErrorCode.UNKNOWN_MEMBER_ID
        return
    members = (
        MemberIdentity(member_id="x", group_instance_id=None),
        MemberIdentity(member_id="", group_instance_id="i"),
    )
    left = await broker.ask(LeaveGroupRequest(group_id="g", members=members), version)
    assert [member.error_code for member in left.members] == [ErrorCode.UNKNOWN_MEMBER_ID, 0]
    absent = await broker.ask(LeaveGroupRequest(group_id="absent", members=members), version)
    assert [member.error_code for member in absent.members] == [ErrorCode.UNKNOWN_MEMBER_ID] * 2


@versions(ApiKey.OFFSET_COMMIT)
@on_a_loop
async def test_offset_commit(version: int) -> None:
    """Partitions that are not there are refused one by one, whatever becomes of the others."""
    broker = GroupsOnly()
    committed = await broker.ask(commit_request(version), version)
    assert [row.error_code for row in committed.topics[0].partitions] == [0, 0, 3]
    if version < 10:
        assert committed.topics[1].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    else:
        unknown = await broker.ask(commit_request(version, topic_id=UNKNOWN_ID), version)
        assert {row.error_code for row in unknown.topics[0].partitions} == {ErrorCode.UNKNOWN_TOPIC_ID}
    joined = await broker.join()
    await broker.ask(sync_request(joined, 5), 5)
    ours = await broker.ask(commit_request(version, joined=joined), version)
    assert ours.topics[0].partitions[0].error_code == 0
    foreign = await broker.ask(commit_request(version), version)
    assert [row.error_code for row in foreign.topics[0].partitions] == [ErrorCode.UNKNOWN_MEMBER_ID] * 2 + [3]


@versions(ApiKey.OFFSET_FETCH)
@on_a_loop
async def test_offset_fetch(version: int) -> None:
    broker = GroupsOnly()
    await broker.ask(commit_request(9), 9)
    fetched = await broker.ask(fetch_request(version), version)
    group = fetched if version < 8 else fetched.groups[0]
    assert [(r.partition_index, r.committed_offset, r.metadata) for r in group.topics[0].partitions] == [
        (0, 5, "m"),
        (7, -1, ""),
    ]
    assert group.error_code == 0
    if version >= 8:
        assert [row.committed_offset for row in fetched.groups[1].topics[0].partitions] == [-1, -1]
    if version >= 10:
        unknown = await broker.ask(fetch_request(version, topic_id=UNKNOWN_ID), version)
        assert {r.error_code for r in unknown.groups[0].topics[0].partitions} == {ErrorCode.UNKNOWN_TOPIC_ID}
    if version >= 2:
        everything = await broker.ask(fetch_request(version, everything=True), version)
        all_of_it = everything if version < 8 else everything.groups[0]
        assert [row.committed_offset for row in all_of_it.topics[0].partitions] == [5, 6]


@versions(ApiKey.OFFSET_DELETE)
@on_a_loop
async def test_offset_delete(version: int) -> None:
    broker = GroupsOnly()
    await broker.ask(commit_request(9), 9)
    rows = (OffsetDeleteRequestPartition(partition_index=0), OffsetDeleteRequestPartition(partition_index=7))
    request = OffsetDeleteRequest(group_id="g", topics=(OffsetDeleteRequestTopic(name="t", partitions=rows),))
    deleted = await broker.ask(request, version)
    assert [row.error_code for row in deleted.topics[0].partitions] == [
        0,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    absent = await broker.ask(OffsetDeleteRequest(group_id="absent", topics=request.topics), version)
    assert absent.error_code == ErrorCode.GROUP_ID_NOT_FOUND


@versions(ApiKey.LIST_GROUPS)
@on_a_loop
async def test_list_groups(version: int) -> None:
    broker = GroupsOnly()
    await broker.join()
    (listed,) = (await broker.ask(ListGroupsRequest(), version)).groups
    assert (listed.group_id, listed.protocol_type) == ("g", "consumer")
    if version >= 4:
        assert listed.group_state == "CompletingRebalance"
        assert not (await broker.ask(ListGroupsRequest(states_filter=("stable",)), version)).groups
        assert (await broker.ask(ListGroupsRequest(states_filter=("completingRebalance",)), version)).groups
    if version >= 5:
        assert listed.group_type == "classic"
        assert not (await broker.ask(ListGroupsRequest(types_filter=("consumer",)), version)).groups
        assert (await broker.ask(ListGroupsRequest(types_filter=("Classic",)), version)).groups


@versions(ApiKey.DESCRIBE_GROUPS)
@on_a_loop
async def test_describe_groups(version: int) -> None:
    broker = GroupsOnly()
    joined = await broker.join()
    await broker.ask(sync_request(joined, 5), 5)
    group, absent = (await broker.ask(DescribeGroupsRequest(groups=("g", "absent")), version)).groups
    assert (group.group_state, group.protocol_type, group.protocol_data) == ("Stable", "consumer", "range")
    (member,) = group.members
    assert (member.client_id, member.client_host, member.member_assignment) == ("client", "/10.0.0.1", b"all")
    assert absent.group_state == "Dead"
    assert absent.error_code == (ErrorCode.GROUP_ID_NOT_FOUND if version >= 6 else 0)


@versions(ApiKey.DELETE_GROUPS)
@on_a_loop
async def test_delete_groups(version: int) -> None:
    broker = GroupsOnly()
    await broker.join()
    other = commit_request(9)
    await broker.ask(OffsetCommitRequest(group_id="simple", member_id="", topics=other.topics), 9)
    deleted = await broker.ask(DeleteGroupsRequest(groups_names=("g", "simple", "absent", "g")), version)
    assert {row.group_id: row.error_code for row in deleted.results} == {
        "g": ErrorCode.NON_EMPTY_GROUP,
        "simple": 0,
        "absent": ErrorCode.GROUP_ID_NOT_FOUND,
    }


@versions(ApiKey.FIND_COORDINATOR)
@on_a_loop
async def test_find_coordinator(version: int) -> None:
    """This broker for every group, its topic made on demand; an honest error for what is not here."""
    broker = GroupsOnly()
    request = (
        FindCoordinatorRequest(coordinator_keys=("g",)) if version >= 4 else FindCoordinatorRequest(key="g")
    )
    answer = await broker.ask(request, version)
    found = answer.coordinators[0] if version >= 4 else answer
    assert (found.error_code, found.node_id, found.host, found.port) == (0, 1, "h", 9092)
    assert broker.offsets.ensured == 1
    if version >= 1:
        request = (
            FindCoordinatorRequest(coordinator_keys=("s",), key_type=2)
            if version >= 4
            else FindCoordinatorRequest(key="s", key_type=2)
        )
        answer = await broker.ask(request, version)
        refused = answer.coordinators[0] if version >= 4 else answer
        assert (refused.error_code, refused.node_id) == (ErrorCode.INVALID_REQUEST, -1)
        assert "groups and transactions" in refused.error_message
