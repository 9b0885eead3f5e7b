"""TxnOffsetCommit at every version, on the real broker with its disk in memory: pending, then decided."""

import asyncio
import logging
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest
from tests.support.leading import leader, turns
from tests.support.memory_broker import (
    MemoryBroker,
    Turn,
    completed,
    loaded,
    memory_broker,
    memory_disk,
    on_a_loop,
    versions,
)

from tallystick.broker.authorizer.authorizer import (
    Operation,
    ResourceType,
    group_resource,
    topic_resource,
    transactional_id_resource,
)
from tallystick.broker.authorizer.bindings import ResourcePattern
from tallystick.broker.group.codec import build_batch_header
from tallystick.broker.group.machine.commands import CommitTxnOffsets, OffsetToCommit
from tallystick.broker.handlers.data.verification import open_transaction
from tallystick.broker.partitions.topics import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from tallystick.broker.txn.machine.commands import MarkerRequest
from tallystick.broker.txn.machine.model import TxnState
from tallystick.broker.txn.markers import LocalMarkerWriter
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import (
    GroupId,
    Offset,
    ProducerEpoch,
    ProducerId,
    ProducerIdAndEpoch,
    TopicPartition,
    TransactionalId,
)
from tallystick.protocol.apis import ApiKey
from tallystick.protocol.messages.cluster.find_coordinator import FindCoordinatorRequest
from tallystick.protocol.messages.groups.administration import DeleteGroupsRequest
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
from tallystick.protocol.messages.txn.add_offsets_to_txn import AddOffsetsToTxnRequest
from tallystick.protocol.messages.txn.end_txn import EndTxnRequest
from tallystick.protocol.messages.txn.init_producer_id import InitProducerIdRequest
from tallystick.protocol.messages.txn.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tallystick.storage.log.log import TxnGuard

E = ErrorCode
IMPLICIT = 5
TOPIC_IDS = 6


@dataclass
class Pair:
    producer_id: int
    producer_epoch: int


async def claimed(desk: MemoryBroker, **flags: bool) -> Pair:
    """The pair of a new incarnation of "t"; the input topic and both coordinators are there."""
    await desk.make_topic("input")
    for key, kind in (("t", 1), ("g", 0)):
        await desk.ask(FindCoordinatorRequest(coordinator_keys=(key,), key_type=kind), 4)
    request = InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=60_000, **flags)
    answer = await desk.ask(request, 6 if flags else 5)
    assert answer.error_code == 0
    return Pair(answer.producer_id, answer.producer_epoch)


def commit(
    desk: MemoryBroker,
    pair: Pair,
    version: int,
    rows: Mapping[int, int] | None = None,
    *,
    topics: tuple[str | UUID, ...] = ("input",),
    group_id: str = "g",
    **said: Any,
) -> Any:
    """`rows`: offsets by partition; topics by name, which later versions look up first."""
    partitions = tuple(
        TxnOffsetCommitRequestPartition(
            partition_index=index, committed_offset=offset, committed_metadata="m"
        )
        for index, offset in (rows or {0: 5}).items()
    )

    def asked(name: str | UUID) -> TxnOffsetCommitRequestTopic:
        if version < TOPIC_IDS:
            return TxnOffsetCommitRequestTopic(name=str(name), partitions=partitions)
        known = None if isinstance(name, UUID) else desk.broker.topics.find(name)
        topic_id = name if isinstance(name, UUID) else UUID(int=77) if known is None else known.topic_id
        return TxnOffsetCommitRequestTopic(topic_id=topic_id, partitions=partitions)

    return TxnOffsetCommitRequest(
        transactional_id="t",
        group_id=group_id,
        producer_id=pair.producer_id,
        producer_epoch=pair.producer_epoch,
        topics=tuple(map(asked, topics)),
        **said,
    )


async def code(desk: MemoryBroker, pair: Pair, version: int, **how: Any) -> int:
    """Of a commit of one partition."""
    answer = await desk.ask(commit(desk, pair, version, **how), version)
    return int(answer.topics[0].partitions[0].error_code)


async def add_offsets(desk: MemoryBroker, pair: Pair) -> None:
    request = AddOffsetsToTxnRequest(
        transactional_id="t",
        producer_id=pair.producer_id,
        producer_epoch=pair.producer_epoch,
        group_id="g",
    )
    assert (await desk.ask(request, 3)).error_code == 0


async def end(desk: MemoryBroker, pair: Pair, version: int, *, committed: bool = True) -> None:
    """EndTxn as a client of TxnOffsetCommit `version` sends it, and the markers."""
    request = EndTxnRequest(
        transactional_id="t",
        producer_id=pair.producer_id,
        producer_epoch=pair.producer_epoch,
        committed=committed,
    )
    assert (await desk.ask(request, 5 if version >= IMPLICIT else 3)).error_code == 0
    await completed(desk)


async def fetch(desk: MemoryBroker, *, stable: bool = True, version: int = 9) -> tuple[int, int, int, str]:
    """Code, offset, leader epoch and metadata of the input's first partition."""
    known = desk.broker.topics.find("input")
    assert known is not None
    named = {"name": "input"} if version < 10 else {"topic_id": known.topic_id}
    asked = (OffsetFetchRequestTopic(partition_indexes=(0,), **named),)
    if version < 8:
        request = OffsetFetchRequest(group_id="g", topics=asked, require_stable=stable)
        (row,) = (await desk.ask(request, version)).topics[0].partitions
    else:
        groups = (OffsetFetchRequestGroup(group_id="g", topics=asked),)
        answer = await desk.ask(OffsetFetchRequest(groups=groups, require_stable=stable), version)
        (row,) = answer.groups[0].topics[0].partitions
    return row.error_code, row.committed_offset, row.committed_leader_epoch, row.metadata


UNSTABLE = (E.UNSTABLE_OFFSET_COMMIT, -1, -1, "")


@versions(ApiKey.TXN_OFFSET_COMMIT)
@on_a_loop
async def test_offsets_of_a_transaction_from_commit_to_marker(version: int) -> None:
    """Older clients say AddOffsetsToTxn first; for newer ones the request itself adds the group (KIP-890)."""
    async with memory_broker() as desk:
        pair = await claimed(desk)
        if version < IMPLICIT:
            await add_offsets(desk, pair)
        answer = await desk.ask(commit(desk, pair, version, {0: 5, 1: 6, 2: 7}), version)
        rows = [(row.partition_index, row.error_code) for row in answer.topics[0].partitions]
        assert rows == [(0, 0), (1, 0), (2, E.UNKNOWN_TOPIC_OR_PARTITION)]
        assert answer.topics[0].name == ("input" if version < TOPIC_IDS else "")
        assert await fetch(desk) == UNSTABLE
        assert await fetch(desk, stable=False) == (0, -1, -1, "")
        await end(desk, pair, version)
        assert await fetch(desk) == (0, 5, -1, "m")


@versions(ApiKey.OFFSET_FETCH)
@on_a_loop
@pytest.mark.slow
async def test_what_each_version_of_offset_fetch_sees_of_an_open_transaction(version: int) -> None:
    """RequireStable came with version 7; whoever does not ask sees the last offset that was committed."""
    async with memory_broker() as desk:
        pair = await claimed(desk)
        await desk.ask(commit(desk, pair, 5), 5)
        await end(desk, pair, 5)
        pair.producer_epoch += 1
        await desk.ask(commit(desk, pair, 5, {0: 50}), 5)
        assert (await fetch(desk, stable=False, version=version))[:2] == (0, 5)
        if version >= 7:
            assert await fetch(desk, version=version) == UNSTABLE
        await end(desk, pair, 5, committed=False)
        assert (await fetch(desk, stable=version >= 7, version=version))[:2] == (0, 5)


@pytest.mark.parametrize(
    ("version", "expected"),
    [(0, E.INVALID_TXN_STATE), (3, E.INVALID_TXN_STATE), (4, E.TRANSACTION_ABORTABLE)],
)
@on_a_loop
async def test_an_older_client_must_have_added_the_group(version: int, expected: ErrorCode) -> None:
    """KIP-890 part 1: without it the offsets would open a transaction that nobody ends (KAFKA-14402)."""
    async with memory_broker() as desk:
        pair = await claimed(desk)
        assert await code(desk, pair, version) != 0  # no transaction at all
        await desk.make_topic("output")
        await desk.ask(commit(desk, pair, 5, group_id="elsewhere"), 5)
        assert await code(desk, pair, version) == expected
        assert (await fetch(desk))[0] == 0


@on_a_loop
async def test_without_verification_older_clients_are_believed() -> None:
    async with memory_broker(transaction_partition_verification_enable="false") as desk:
        pair = await claimed(desk)
        assert await code(desk, pair, 3) == 0
        assert await fetch(desk) == UNSTABLE


@pytest.mark.parametrize("verifies", ["false", "true"])
@pytest.mark.parametrize("pair", [Pair(-1, -1), Pair(7, -1)], ids=str)
@pytest.mark.parametrize("version", [IMPLICIT - 1, IMPLICIT])
@pytest.mark.slow
def test_an_invalid_pair_is_refused_and_costs_no_other_client(
    version: int, pair: Pair, verifies: str
) -> None:
    @on_a_loop
    async def run() -> None:
        async with memory_broker(transaction_partition_verification_enable=verifies) as desk:
            own = await claimed(desk)
            assert await code(desk, pair, version) == E.INVALID_PRODUCER_ID_MAPPING
            assert not desk.broker.groups.offline_partition_count
            if version < IMPLICIT:
                await add_offsets(desk, own)
            assert await code(desk, own, version) == 0

    run()


@versions(ApiKey.TXN_OFFSET_COMMIT)
@on_a_loop
async def test_who_may_not_write_with_that_pair(version: int) -> None:
    async with memory_broker() as desk:
        old = await claimed(desk)
        new = await claimed(desk)
        if version < IMPLICIT:
            await add_offsets(desk, new)
        assert await code(desk, old, version) == E.INVALID_PRODUCER_EPOCH
        foreign = Pair(new.producer_id + 1_000, 0)
        assert await code(desk, foreign, version) == E.INVALID_PRODUCER_ID_MAPPING
        assert await code(desk, new, version) == 0


@on_a_loop
async def test_a_kept_transaction_takes_no_more_offsets() -> None:
    """KIP-939: the new pair may end it and nothing else, the old one nothing at all."""
    async with memory_broker() as desk:
        old = await claimed(desk)
        assert await code(desk, old, 5) == 0
        new = await claimed(desk, keep_prepared_txn=True)
        assert await code(desk, new, 5, group_id="other") == E.INVALID_TXN_STATE
        assert await code(desk, old, 5, group_id="other") == E.INVALID_PRODUCER_EPOCH


@versions(ApiKey.TXN_OFFSET_COMMIT)
@on_a_loop
async def test_topics_that_are_not_there_cost_their_own_partitions(version: int) -> None:
    async with memory_broker() as desk:
        pair = await claimed(desk)
        await add_offsets(desk, pair)
        answer = await desk.ask(commit(desk, pair, version, topics=("nope", "input")), version)
        unknown = E.UNKNOWN_TOPIC_OR_PARTITION if version < TOPIC_IDS else E.UNKNOWN_TOPIC_ID
        assert [row.error_code for asked in answer.topics for row in asked.partitions] == [unknown, 0]
        only = await desk.ask(commit(desk, pair, version, topics=("nope",)), version)
        assert only.topics[0].partitions[0].error_code == unknown


@pytest.mark.parametrize("version", [3, 5, 6])
@pytest.mark.parametrize(
    ("denied", "expected"),
    [
        ((Operation.WRITE, transactional_id_resource("t")), E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        ((Operation.READ, group_resource("g")), E.GROUP_AUTHORIZATION_FAILED),
        ((Operation.READ, topic_resource("input")), E.TOPIC_AUTHORIZATION_FAILED),
        ((Operation.READ, ResourceType.TOPIC), E.TOPIC_AUTHORIZATION_FAILED),
        ((Operation.DESCRIBE, topic_resource("input")), E.NONE),
    ],
)
@on_a_loop
@pytest.mark.slow
async def test_who_may_commit(
    version: int, denied: tuple[Operation, ResourcePattern | ResourceType], expected: ErrorCode
) -> None:
    async with memory_broker() as desk:
        pair = await claimed(desk)
        await add_offsets(desk, pair)
        desk.deny(denied)
        answer = await desk.ask(commit(desk, pair, version, {0: 1, 5: 1}), version)
        first, second = (row.error_code for row in answer.topics[0].partitions)
        assert first == expected
        assert second == (expected or E.UNKNOWN_TOPIC_OR_PARTITION)


@on_a_loop
async def test_whether_a_topic_exists_is_not_told_to_those_who_may_not_read_it() -> None:
    async with memory_broker() as desk:
        pair = await claimed(desk)
        desk.deny((Operation.READ, ResourceType.TOPIC))
        answer = await desk.ask(commit(desk, pair, 5, topics=("input", "nope")), 5)
        assert {row.error_code for asked in answer.topics for row in asked.partitions} == {
            E.TOPIC_AUTHORIZATION_FAILED
        }


@pytest.mark.parametrize("version", [3, 4, 5, 6])
@on_a_loop
async def test_a_generation_of_a_group_that_is_not_there(version: int) -> None:
    async with memory_broker() as desk:
        pair = await claimed(desk)
        await add_offsets(desk, pair)
        said = {"generation_id_or_member_epoch": 3, "member_id": "m", "group_instance_id": None}
        expected = E.ILLEGAL_GENERATION if version < TOPIC_IDS else E.GROUP_ID_NOT_FOUND
        assert await code(desk, pair, version, **said) == expected


@on_a_loop
async def test_a_group_that_is_offline_costs_its_transaction_no_partition() -> None:
    async with leader() as desk:
        pair = await claimed(desk)
        desk.broker.groups._runtime.fail_partition(
            desk.broker.groups.partition_for(GroupId("g")), OSError("eio")
        )
        assert await code(desk, pair, IMPLICIT) == E.NOT_COORDINATOR
        entry = desk.broker.transactions.find_by_producer_id(ProducerId(pair.producer_id))
        assert entry is not None
        assert entry.state is TxnState.EMPTY


@on_a_loop
async def test_a_group_must_have_a_name() -> None:
    async with memory_broker() as desk:
        pair = await claimed(desk)
        assert await code(desk, pair, 5, group_id="") == E.INVALID_GROUP_ID


@pytest.mark.parametrize(
    ("version", "expected"), [(1, E.COORDINATOR_NOT_AVAILABLE), (2, E.COORDINATOR_LOAD_IN_PROGRESS)]
)
@on_a_loop
async def test_what_is_pending_survives_a_restart_and_clients_wait_while_it_is_read(
    version: int, expected: ErrorCode
) -> None:
    """KAFKA-7296: clients before version 2 cannot bear COORDINATOR_LOAD_IN_PROGRESS."""
    disk = memory_disk()
    async with memory_broker(disk) as desk:
        pair = await claimed(desk)
        assert await code(desk, pair, 5) == 0
    async with memory_broker(disk) as desk:
        assert await code(desk, pair, version) == expected
        await loaded(desk)
        assert await fetch(desk) == UNSTABLE
        await end(desk, pair, 5)
        assert await fetch(desk) == (0, 5, -1, "m")


class SlowMarkers:
    """The real markers, once the gate is open."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.behind: LocalMarkerWriter | None = None

    async def write(self, send: MarkerRequest, partition: TopicPartition, coordinator_epoch: int) -> Any:
        await self.gate.wait()
        assert self.behind is not None
        written = self.behind.write(send, partition, coordinator_epoch)
        return await written if isinstance(written, Awaitable) else written


@on_a_loop
async def test_the_next_transaction_may_begin_before_the_markers_of_the_last_are_written() -> None:
    """KIP-890: EndTxn answers with the next pair as soon as the end is decided. What comes then waits for the
    markers, which carry that very pair, and must not take it for something they have ended."""
    markers = SlowMarkers()
    async with memory_broker(markers=markers) as desk:  # type: ignore[arg-type]
        broker = desk.broker
        markers.behind = LocalMarkerWriter(broker.topics, broker.groups, broker.clock)
        pair = await claimed(desk)
        assert await code(desk, pair, 5) == 0
        ended = EndTxnRequest(
            transactional_id="t",
            producer_id=pair.producer_id,
            producer_epoch=pair.producer_epoch,
            committed=True,
        )
        answer = await desk.ask(ended, 5)
        following = Pair(answer.producer_id, answer.producer_epoch)
        early = asyncio.ensure_future(code(desk, following, 5, rows={0: 50}))
        for _ in range(20):
            await Turn()
        assert not early.done()
        markers.gate.set()
        assert await early == 0
        assert (await fetch(desk, stable=False))[:2] == (0, 5)
        await end(desk, following, 5)
        assert (await fetch(desk))[:2] == (0, 50)


@pytest.mark.parametrize(("version", "expected"), [(3, E.INVALID_TXN_STATE), (5, E.INVALID_PRODUCER_EPOCH)])
@on_a_loop
async def test_a_commit_that_was_verified_before_the_end_opens_nothing_after_it(
    version: int, expected: ErrorCode
) -> None:
    """KAFKA-14402: else offsets would be pending for ever. Older ends leave the epoch, newer ones move it."""
    async with memory_broker() as desk:
        pair = await claimed(desk)
        await add_offsets(desk, pair)
        identity = ProducerIdAndEpoch(ProducerId(pair.producer_id), ProducerEpoch(pair.producer_epoch))
        partition = desk.broker.topics.find_partition(
            CONSUMER_OFFSETS_TOPIC, desk.broker.groups.partition_for(GroupId("g"))
        )
        assert partition is not None
        guard = await open_transaction(
            desk.broker,
            partition,
            build_batch_header(identity),
            transactional_id=TransactionalId("t"),
            implicit=version >= IMPLICIT,
        )
        assert isinstance(guard, TxnGuard)
        await end(desk, pair, version)
        row = {TopicPartition("input", 0): OffsetToCommit(offset=Offset(5))}
        command = CommitTxnOffsets(identity=identity, offsets=row)
        late = await desk.broker.groups.commit_transactional(GroupId("g"), command, guard)
        assert isinstance(late, Reject)
        assert late.code == expected
        assert await fetch(desk) == (0, -1, -1, "")


@on_a_loop
async def test_offsets_that_wait_for_the_disk_while_their_producer_is_replaced_are_not_written() -> None:
    """[TXN-13] The group's queue may be taken for seconds, and the transaction be kept meanwhile."""
    async with leader(flush_policy="ack") as desk:
        old = await claimed(desk)
        assert await code(desk, old, IMPLICIT, rows={0: 5}) == 0
        desk.disk.holding = True
        asked = (commit(desk, old, IMPLICIT, {0: 6}), commit(desk, old, IMPLICIT, {0: 7}))
        first, late = (asyncio.ensure_future(desk.ask(request, IMPLICIT)) for request in asked)
        await turns()
        taking_over = asyncio.ensure_future(claimed(desk, keep_prepared_txn=True))
        await turns()
        desk.disk.sync(TRANSACTION_STATE_TOPIC)
        new = await taking_over
        desk.disk.release()
        assert (await first).topics[0].partitions[0].error_code == 0
        assert (await late).topics[0].partitions[0].error_code == E.INVALID_PRODUCER_EPOCH
        await end(desk, new, IMPLICIT)
        assert (await fetch(desk))[:2] == (0, 6)


@pytest.mark.parametrize("allowed", [False, True])
@on_a_loop
async def test_deleting_what_a_transaction_has_open(allowed: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Refused, and the log names the transaction, unless delete.open.transactions is set (ADR 0022)."""
    async with memory_broker(delete_open_transactions="true" if allowed else "false") as desk:
        pair = await claimed(desk)
        assert await code(desk, pair, 5) == 0
        row = OffsetDeleteRequestPartition(partition_index=0)
        offsets = OffsetDeleteRequest(
            group_id="g", topics=(OffsetDeleteRequestTopic(name="input", partitions=(row,)),)
        )
        groups = DeleteGroupsRequest(groups_names=("g",))
        expected = E.NONE if allowed else E.POLICY_VIOLATION
        with caplog.at_level(logging.WARNING, "tallystick.groups"):
            deleted = await desk.ask(offsets, 0)
            assert deleted.topics[0].partitions[0].error_code == expected
            assert (await desk.ask(groups, 2)).results[0].error_code == expected
        said = [record.getMessage() for record in caplog.records]
        assert len(said) == (0 if allowed else 2)
        assert all("transactions of 't'" in line and "group g" in line for line in said)
        await end(desk, pair, 5)
        assert await fetch(desk) == ((0, -1, -1, "") if allowed else (0, 5, -1, "m"))
