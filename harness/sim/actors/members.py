"""Members of one consumer group that join, leave and vanish, and commit what they own.

An offset is increased by one with each commit of the partition's current owner. So it goes back only if two
members owned it at the same time, if a replaced one could still commit, or if a commit was lost.
"""

import asyncio
from collections.abc import Callable, Iterable
from random import Random
from typing import Final, TypeVar

from harness.sim.actors.clients import ANSWER_TIMEOUT_S, BACKOFF_S, RETRIABLE, NoFinalAnswer
from harness.sim.history import History
from harness.sim.network import NoReply, RequestExchange, SimNetwork
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.ids import TopicPartition
from tallystick.protocol.messages.groups.membership import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from tallystick.protocol.messages.groups.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from tallystick.protocol.messages.groups.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
)

R = TypeVar("R")

GROUP: Final = "members"
SESSION_MS: Final = 400
REBALANCE_MS: Final = 200
REJOIN_ERRORS: Final = frozenset(
    {ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID}
)


class RejoinRequired(Exception):
    """The member must join again, perhaps under another id."""


class SimGroup:
    """The state that the members of a world share.

    Args:
        network: carries the requests.
        history: receives the violations.
        random: decides what members do.
        partitions: the partitions the group owns.
        binds: whether acknowledged offsets must persist; not on a disk that loses data.
    """

    def __init__(
        self,
        network: SimNetwork,
        history: History,
        random: Random,
        partitions: Iterable[TopicPartition],
        binds: bool,
    ) -> None:
        self.network = network
        self.random = random
        self.partitions = tuple(partitions)
        self.committed_offsets: dict[TopicPartition, int] = {}  # the highest acknowledged offset
        self._history = history
        self._offsets_must_persist = binds
        self._generation = 0
        self._owners: dict[tuple[int, str], str] = {}
        network.on_answer.append(self._check_exchange)

    async def run(self, until_s: float) -> None:
        """Keep three places filled with members, then let a last one find everything in order."""
        await asyncio.gather(*(self._keep_place_filled(place, until_s) for place in range(3)))
        last = SimMember("member last", self)
        await last.join()
        await last.fetch(self.partitions)
        await last.leave()

    async def _keep_place_filled(self, place: int, until_s: float) -> None:
        loop, number = asyncio.get_running_loop(), 0
        while loop.time() < until_s:
            await asyncio.sleep(self.random.uniform(0, 0.3))
            number += 1
            await SimMember(f"member {place}-{number}", self).live(until_s)

    def _check_exchange(self, exchange: RequestExchange) -> None:
        """Check that generations only grow, and that a partition has one owner in each generation.

        A generation counts from its assignment on, when it is written to the log, as in Kafka: one that was
        only joined may be formed again after a power loss.
        """
        request, response = exchange.request, exchange.response
        code: int = getattr(response, "error_code", 0)
        if code or not self._offsets_must_persist:
            return
        if isinstance(response, SyncGroupResponse) and isinstance(request, SyncGroupRequest):
            if request.generation_id < self._generation:
                self.report(f"generation {request.generation_id} is assigned after {self._generation}")
            self._generation = max(self._generation, request.generation_id)
            for name in bytes(response.assignment).decode().split():
                owner = self._owners.setdefault((request.generation_id, name), request.member_id)
                if owner != request.member_id:
                    self.report(f"{name} belongs to {owner} and {request.member_id}")

    def check_committed(self, partition: TopicPartition, offset: int, least: int) -> None:
        """Check that an offset is no lower than the one acknowledged before the request."""
        if offset < least and self._offsets_must_persist:
            self.report(f"the offset of {partition} is {offset}, {least} was acknowledged")

    def report(self, what: str) -> None:
        self._history.report(f"{GROUP}: {what}")


class SimMember:
    """One process. It lives for a while, and then leaves or falls silent."""

    def __init__(self, name: str, group: SimGroup) -> None:
        self._name = name
        self._group = group
        self._id = ""
        self._generation = -1

    async def live(self, until_s: float) -> None:
        random = self._group.random
        rounds = random.randint(1, 12)
        while rounds > 0 and asyncio.get_running_loop().time() < until_s:
            try:
                assignment = await self.join()
                positions = await self.fetch(assignment)
                while rounds > 0:
                    rounds -= 1
                    await asyncio.sleep(random.choice((0.01, 0.05, 0.1)))
                    for partition in assignment:
                        positions[partition] += 1
                        await self._commit(partition, positions[partition])
                    await self._send_heartbeat()
            except RejoinRequired:
                rounds -= 1
        if random.random() < 0.5:
            await self.leave()

    async def _send_until_answered(
        self, request: object, version: int, answer: type[R], codes: Callable[[R], Iterable[int]]
    ) -> R:
        """Send until an answer comes that is not retriable.

        Raises:
            Replaced: the member must join again.
            Stuck: no such answer came in time.
        """
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + ANSWER_TIMEOUT_S
        while loop.time() < give_up_at:
            try:
                response = await self._group.network.call(self._name, request, version, answer)
            except NoReply:
                continue
            error_codes = set(codes(response)) - {0}
            if ErrorCode.UNKNOWN_MEMBER_ID in error_codes:
                self._id = ""
            if error_codes & REJOIN_ERRORS:
                raise RejoinRequired
            if not error_codes or error_codes - RETRIABLE:
                return response
            await asyncio.sleep(BACKOFF_S[1])
        raise NoFinalAnswer(f"{self._name}: {type(request).__name__} is not answered")

    async def join(self) -> list[TopicPartition]:
        """Join until the member belongs to a generation; return the partitions it owns there."""
        while True:
            try:
                join_response = await self._join_once()
                assignments = self._assign(join_response) if join_response.leader == self._id else ()
                sync = SyncGroupRequest(
                    group_id=GROUP,
                    generation_id=self._generation,
                    member_id=self._id,
                    assignments=assignments,
                )
                response = await self._send_until_answered(sync, 3, SyncGroupResponse, _error_codes)
            except RejoinRequired:
                await asyncio.sleep(BACKOFF_S[0])
                continue
            partition_names = bytes(response.assignment).decode().split()
            return [
                partition
                for partition in self._group.partitions
                if _partition_name(partition) in partition_names
            ]

    async def _join_once(self) -> JoinGroupResponse:
        while True:
            request = JoinGroupRequest(
                group_id=GROUP,
                session_timeout_ms=SESSION_MS,
                rebalance_timeout_ms=REBALANCE_MS,
                member_id=self._id,
                protocol_type="consumer",
                protocols=(JoinGroupRequestProtocol(name="sim", metadata=b""),),
            )
            response = await self._send_until_answered(request, 5, JoinGroupResponse, _error_codes)
            self._id, self._generation = response.member_id, response.generation_id
            if response.error_code == ErrorCode.NONE:
                return response
            # KIP-394: a new member is given its id first, and joins again with it.
            if response.error_code != ErrorCode.MEMBER_ID_REQUIRED:
                self._group.report(f"JoinGroup is answered with {ErrorCode(response.error_code).name}")
                raise NoFinalAnswer(self._name)

    def _assign(self, join_response: JoinGroupResponse) -> tuple[SyncGroupRequestAssignment, ...]:
        members = sorted(member.member_id for member in join_response.members)
        parts = [self._group.partitions[i :: len(members)] for i in range(len(members))]
        return tuple(
            SyncGroupRequestAssignment(
                member_id=member, assignment=" ".join(map(_partition_name, part)).encode()
            )
            for member, part in zip(members, parts, strict=True)
        )

    async def fetch(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offsets at which the partitions' last owners left them."""
        positions = {}
        for partition in partitions:
            least = self._group.committed_offsets.get(partition, 0)
            topic = OffsetFetchRequestTopic(name=partition.topic, partition_indexes=(partition.partition,))
            # KIP-447: `require_stable` turns offsets of open transactions into a retriable error.
            request = OffsetFetchRequest(group_id=GROUP, topics=(topic,), require_stable=True)
            response = await self._send_until_answered(request, 7, OffsetFetchResponse, _fetch_codes)
            offset = response.topics[0].partitions[0].committed_offset
            self._group.check_committed(partition, max(0, offset), least)
            positions[partition] = max(0, offset)
        return positions

    async def _commit(self, partition: TopicPartition, offset: int) -> None:
        part = OffsetCommitRequestPartition(
            partition_index=partition.partition, committed_offset=offset, committed_metadata=None
        )
        request = OffsetCommitRequest(
            group_id=GROUP,
            generation_id_or_member_epoch=self._generation,
            member_id=self._id,
            topics=(OffsetCommitRequestTopic(name=partition.topic, partitions=(part,)),),
        )
        response = await self._send_until_answered(request, 7, OffsetCommitResponse, _commit_codes)
        if not any(_commit_codes(response)):
            group_offsets = self._group.committed_offsets
            group_offsets[partition] = max(offset, group_offsets.get(partition, 0))

    async def _send_heartbeat(self) -> None:
        request = HeartbeatRequest(group_id=GROUP, generation_id=self._generation, member_id=self._id)
        await self._send_until_answered(request, 3, HeartbeatResponse, _error_codes)

    async def leave(self) -> None:
        try:
            request = LeaveGroupRequest(group_id=GROUP, member_id=self._id)
            await self._send_until_answered(request, 2, LeaveGroupResponse, _error_codes)
        except RejoinRequired:
            return


def _partition_name(partition: TopicPartition) -> str:
    return f"{partition.topic}-{partition.partition}"


def _error_codes(
    response: JoinGroupResponse | SyncGroupResponse | HeartbeatResponse | LeaveGroupResponse,
) -> tuple[int, ...]:
    return (response.error_code,)


def _commit_codes(response: OffsetCommitResponse) -> tuple[int, ...]:
    return tuple(result.error_code for topic in response.topics for result in topic.partitions)


def _fetch_codes(response: OffsetFetchResponse) -> tuple[int, ...]:
    results = (result.error_code for topic in response.topics for result in topic.partitions)
    return (response.error_code, *results)
