"""A group of one member on a ScriptedBroker: it joins, syncs and commits as a test says."""

from dataclasses import dataclass, field

from tests.support.scripted_broker import Answer, ScriptedBroker, Seen

from tallystick.protocol.apis import ApiKey
from tallystick.protocol.messages.cluster.find_coordinator import Coordinator, FindCoordinatorResponse
from tallystick.protocol.messages.data.fetch import FetchResponse
from tallystick.protocol.messages.data.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from tallystick.protocol.messages.groups.membership import (
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
    LeaveGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from tallystick.protocol.messages.groups.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from tallystick.protocol.messages.groups.offset_fetch import (
    OffsetFetchResponse,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)

MEMBER = "m"


@dataclass
class ScriptedGroup:
    """One topic `t` of one partition, read from offset 0; every JoinGroup makes a generation.

    commits   the requests received
    answers   the result of each commit in order; 0 when they are used up
    """

    broker: ScriptedBroker
    generation: int = 0
    commits: list[OffsetCommitRequest] = field(default_factory=list)
    answers: list[int | Answer] = field(default_factory=list)

    def __post_init__(self) -> None:
        broker = self.broker
        broker.scripts |= {
            ApiKey.METADATA: lambda _: broker.metadata(t=broker.node_id),
            ApiKey.FIND_COORDINATOR: lambda _: FindCoordinatorResponse(coordinators=(self._coordinator(),)),
            ApiKey.JOIN_GROUP: self._join,
            ApiKey.SYNC_GROUP: self._sync,
            ApiKey.HEARTBEAT: lambda _: HeartbeatResponse(error_code=0),
            ApiKey.LEAVE_GROUP: lambda _: LeaveGroupResponse(),
            ApiKey.OFFSET_FETCH: lambda _: self._fetched(),
            ApiKey.OFFSET_COMMIT: self._commit,
            ApiKey.LIST_OFFSETS: lambda _: self._listed(),
            ApiKey.FETCH: lambda _: FetchResponse(error_code=0, session_id=0, responses=()),
        }

    def _coordinator(self) -> Coordinator:
        broker = self.broker
        return Coordinator(
            key="g",
            node_id=broker.node_id,
            host="127.0.0.1",
            port=broker.port,
            error_code=0,
            error_message=None,
        )

    def _join(self, seen: Seen) -> Answer:
        assert isinstance(seen.request, JoinGroupRequest)
        self.generation += 1
        protocol = seen.request.protocols[0]
        return JoinGroupResponse(
            generation_id=self.generation,
            protocol_type="consumer",
            protocol_name=protocol.name,
            leader=MEMBER,
            member_id=MEMBER,
            members=(JoinGroupResponseMember(member_id=MEMBER, metadata=protocol.metadata),),
        )

    def _sync(self, seen: Seen) -> Answer:
        assert isinstance(seen.request, SyncGroupRequest)
        return SyncGroupResponse(assignment=seen.request.assignments[0].assignment)

    def _fetched(self) -> Answer:
        none = OffsetFetchResponsePartition(partition_index=0, committed_offset=-1, metadata="")
        topic = OffsetFetchResponseTopic(name="t", partitions=(none,))
        return OffsetFetchResponse(topics=(topic,))

    def _listed(self) -> Answer:
        at = ListOffsetsPartitionResponse(
            partition_index=0, error_code=0, timestamp=-1, offset=0, leader_epoch=1
        )
        return ListOffsetsResponse(topics=(ListOffsetsTopicResponse(name="t", partitions=(at,)),))

    async def _commit(self, seen: Seen) -> Answer:
        assert isinstance(seen.request, OffsetCommitRequest)
        self.commits.append(seen.request)
        answer = self.answers.pop(0) if self.answers else 0
        if callable(answer):
            answer = await answer()
        if not isinstance(answer, int):
            return answer
        at = OffsetCommitResponsePartition(partition_index=0, error_code=answer)
        return OffsetCommitResponse(topics=(OffsetCommitResponseTopic(name="t", partitions=(at,)),))
