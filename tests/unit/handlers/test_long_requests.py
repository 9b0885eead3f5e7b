"""Requests of very many entries: others have the loop in between, and what is decided is decided at once."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from tests.support.memory_broker import MemoryBroker, memory_broker, on_a_loop
from tools.hostile import Shape, find_legal_entries, make_request

from tallystick.broker.authorizer.authorizer import Operation, topic_resource
from tallystick.broker.config.broker_config import TOPIC_SETTINGS
from tallystick.broker.handlers import HANDLERS
from tallystick.broker.handlers.cluster import alter_configs, find_coordinator, update_features
from tallystick.broker.handlers.cluster.alter_configs import (
    AlterConfigOp,
    ConfigChange,
    _find_malformed,
    apply_changes,
)
from tallystick.broker.handlers.data import delete_records, produce
from tallystick.broker.handlers.dispatch import INLINE_DECODE_BYTES_MAX
from tallystick.broker.handlers.groups import administration, membership, offset_commit, offset_fetch
from tallystick.broker.handlers.groups.committing import ROWS_BEFORE_YIELD, OffsetCommitPlan
from tallystick.broker.handlers.sliced_response import SLICE_ENTRIES
from tallystick.broker.handlers.topics import create_partitions, create_topics, delete_topics
from tallystick.broker.handlers.txn import add_partitions_to_txn, txn_offset_commit, write_txn_markers
from tallystick.broker.metadata.features import SUPPORTED_FEATURES, TRANSACTION_VERSION
from tallystick.broker.server.request_context import RequestContext
from tallystick.broker.server.server import CloseConnection, ExclusiveResponse
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.limits import REASON_LENGTH_MAX, REQUEST_BYTES_MAX
from tallystick.kernel.settings import BadConfig
from tallystick.protocol import DecodeError, decode_prefix, encode
from tallystick.protocol.apis import ApiKey
from tallystick.protocol.messages.cluster.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from tallystick.protocol.messages.data.fetch import FetchPartition, FetchRequest, FetchTopic
from tallystick.protocol.messages.groups.offset_commit import (
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tallystick.protocol.messages.topics.delete_topics import DeleteTopicsRequest, DeleteTopicState
from tallystick.protocol.messages.txn.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from tallystick.protocol.primitives import NIL

ENTRIES = 2 * ROWS_BEFORE_YIELD
INNER, OUTER = Shape(deep=True, distinct=True), Shape(deep=False, distinct=True)


def context(api: ApiKey, version: int) -> RequestContext:
    return RequestContext(api, version, 1, "client", "10.0.0.1", 1)


async def turns_of(answer: Awaitable[object]) -> int:
    """How often another task has the loop until there is an answer."""
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    await answer
    counting.cancel()
    return turns


LONG = [
    (ApiKey.OFFSET_COMMIT, offset_commit.handle, INNER),
    (ApiKey.TXN_OFFSET_COMMIT, txn_offset_commit.handle, INNER),
    (ApiKey.ADD_PARTITIONS_TO_TXN, add_partitions_to_txn.handle, INNER),
    (ApiKey.ADD_PARTITIONS_TO_TXN, add_partitions_to_txn.handle, OUTER),
    (ApiKey.WRITE_TXN_MARKERS, write_txn_markers.handle, INNER),
    (ApiKey.DELETE_TOPICS, delete_topics.handle, OUTER),
    (ApiKey.DELETE_GROUPS, administration.delete, OUTER),
    (ApiKey.DELETE_RECORDS, delete_records.handle, INNER),
    (ApiKey.ALTER_CONFIGS, alter_configs.handle, OUTER),
    (ApiKey.ALTER_CONFIGS, alter_configs.handle, INNER),
    (ApiKey.INCREMENTAL_ALTER_CONFIGS, alter_configs.handle, OUTER),
    (ApiKey.INCREMENTAL_ALTER_CONFIGS, alter_configs.handle, INNER),
    (ApiKey.FIND_COORDINATOR, find_coordinator.handle, OUTER),
    (ApiKey.CREATE_PARTITIONS, create_partitions.handle, OUTER),
    (ApiKey.CREATE_TOPICS, create_topics.handle, OUTER),
    (ApiKey.OFFSET_FETCH, offset_fetch.handle, INNER),
    (ApiKey.OFFSET_FETCH, offset_fetch.handle, OUTER),
    (ApiKey.JOIN_GROUP, membership.join, OUTER),
    (ApiKey.LEAVE_GROUP, membership.leave, OUTER),
]


@pytest.mark.gate(1)
@pytest.mark.parametrize(("api", "handler", "shape"), LONG, ids=lambda v: getattr(v, "name", None))
@on_a_loop
async def test_others_have_the_loop_between_a_few_entries(api: ApiKey, handler: Any, shape: Shape) -> None:
    async with memory_broker() as memory:
        spec = HANDLERS[api].spec
        entries = min(ENTRIES, memory.broker.config.max_partitions)  # of markers there may be no more
        request = make_request(spec, spec.max_version, shape, entries)
        answer = handler(memory.broker, request, context(api, spec.max_version))
        assert await turns_of(answer) >= (entries - ROWS_BEFORE_YIELD) // SLICE_ENTRIES


# What is named is reduced and looked up in slices, and answered in slices, too.
ANSWERED_IN_SLICES = [
    ApiKey.LIST_OFFSETS,
    ApiKey.OFFSET_FOR_LEADER_EPOCH,
    ApiKey.DESCRIBE_PRODUCERS,
    ApiKey.ALTER_REPLICA_LOG_DIRS,
    ApiKey.ELECT_LEADERS,
    ApiKey.DESCRIBE_QUORUM,
    ApiKey.ALTER_CLIENT_QUOTAS,
]
PARTITIONS_ANSWERED = [
    *product(ANSWERED_IN_SLICES, (INNER, OUTER)),
    (ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, OUTER),
    (ApiKey.ALTER_USER_SCRAM_CREDENTIALS, OUTER),
    (ApiKey.ALTER_PARTITION_REASSIGNMENTS, OUTER),  # its inner lists are replicas of one partition
]


@pytest.mark.gate(5)
@pytest.mark.parametrize(("api", "shape"), PARTITIONS_ANSWERED, ids=lambda v: getattr(v, "name", str(v)))
@on_a_loop
async def test_others_have_the_loop_while_partitions_are_looked_up_and_answered(
    api: ApiKey, shape: Shape
) -> None:
    """[SRV-3] The request is decoded on the loop, so that no turn is one of waiting for a thread."""
    async with memory_broker() as memory:
        spec, few = HANDLERS[api].spec, 40 * SLICE_ENTRIES
        version = spec.max_version
        body = encode(make_request(spec, version, shape, few), version)
        assert len(body) <= INLINE_DECODE_BYTES_MAX
        answer = HANDLERS[api].run(memory.broker, memoryview(body), context(api, version))
        assert await turns_of(answer) >= 2 * few // SLICE_ENTRIES


@pytest.mark.parametrize("shape", [INNER, OUTER], ids=str)
@pytest.mark.parametrize("api", [ApiKey.OFFSET_DELETE, ApiKey.DESCRIBE_LOG_DIRS], ids=lambda api: api.name)
@on_a_loop
async def test_others_have_the_loop_while_partitions_that_are_not_there_are_looked_up(
    api: ApiKey, shape: Shape, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()  # DescribeLogDirs asks the machine about its volume
    monkeypatch.chdir(tmp_path)
    async with memory_broker() as memory:
        spec, few = HANDLERS[api].spec, 40 * SLICE_ENTRIES
        version = spec.max_version
        body = encode(make_request(spec, version, shape, few), version)
        assert len(body) <= INLINE_DECODE_BYTES_MAX
        answer = HANDLERS[api].run(memory.broker, memoryview(body), context(api, version))
        assert await turns_of(answer) >= 2 * few // SLICE_ENTRIES


class LookedAt:
    """An update of a feature that counts how many of its kind are looked into."""

    count = 0

    def __init__(self, feature: str) -> None:
        self.feature, self.upgrade_type, self.allow_downgrade = feature, 1, False

    @property
    def max_version_level(self) -> int:
        LookedAt.count += 1
        return 2


@on_a_loop
async def test_of_very_many_features_those_behind_an_unknown_one_are_not_looked_into() -> None:
    async with memory_broker() as memory:
        updates: Any = tuple(LookedAt(f"f{n}") for n in range(1_000))
        request = UpdateFeaturesRequest(timeout_ms=1_000, feature_updates=updates)
        answer = await update_features.handle(memory.broker, request, context(ApiKey.UPDATE_FEATURES, 2))
        assert answer.error_code == ErrorCode.INVALID_UPDATE_VERSION
        assert "f0" in (answer.error_message or "")
        assert LookedAt.count <= len(SUPPORTED_FEATURES) + 1


@pytest.mark.parametrize(("levels", "code"), [((9, 2), ErrorCode.NONE), ((2, 9), 95)])
@on_a_loop
async def test_the_last_update_of_a_feature_counts(levels: tuple[int, int], code: int) -> None:
    """As in the map that Kafka's controller reads the updates into."""
    async with memory_broker() as memory:
        updates = tuple(
            FeatureUpdateKey(feature=TRANSACTION_VERSION, max_version_level=level) for level in levels
        )
        answer = await memory.ask(UpdateFeaturesRequest(timeout_ms=1_000, feature_updates=updates), 1)
        assert answer.error_code == code
        assert [result.feature for result in answer.results] == ([] if code else [TRANSACTION_VERSION])


@pytest.mark.gate(0)
def test_the_largest_legal_request_is_decoded_and_one_with_another_entry_is_not() -> None:
    spec = HANDLERS[ApiKey.CREATE_TOPICS].spec
    version = spec.max_version
    most = find_legal_entries(spec, version, OUTER)
    for entries, is_legal in ((most, True), (most + 1, False)):
        body = encode(make_request(spec, version, OUTER, entries), version)
        with nullcontext() if is_legal else pytest.raises(DecodeError):
            decode_prefix(spec.request, body, version, room=REQUEST_BYTES_MAX)


def rows(*topics: tuple[str, int]) -> tuple[OffsetCommitRequestTopic, ...]:
    return tuple(
        OffsetCommitRequestTopic(
            name=name,
            partitions=tuple(
                OffsetCommitRequestPartition(partition_index=n, committed_offset=1, committed_metadata="")
                for n in range(count)
            ),
        )
        for name, count in topics
    )


async def paused(answer: Awaitable[Any], meanwhile: Callable[[], Awaitable[object]]) -> Any:
    """The answer, when something else was done at the first pause."""
    task = asyncio.ensure_future(answer)
    await asyncio.sleep(0)
    assert not task.done()
    await meanwhile()
    return await task


@on_a_loop
async def test_a_commit_that_may_be_pipelined_is_not_overtaken() -> None:
    async with memory_broker() as memory:
        await memory.make_topic("t")
        looking = OffsetCommitPlan.build(
            memory.broker.topics, rows(("t", ROWS_BEFORE_YIELD // 2)), by_id=False
        )
        with pytest.raises(StopIteration) as done:
            looking.send(None)
        assert len(done.value.value.offsets) == 2


@on_a_loop
async def test_offsets_of_a_topic_that_is_deleted_in_a_pause_are_refused() -> None:
    async with memory_broker() as memory:
        await memory.make_topic("gone")
        await memory.make_topic("kept")
        asked = rows(("gone", 2), ("kept", 2), ("unknown", 2 * ROWS_BEFORE_YIELD))
        looking = OffsetCommitPlan.build(memory.broker.topics, asked, by_id=False)
        commit = await paused(looking, lambda: delete(memory, "gone"))
        assert {at.topic for at in commit.offsets} == {"kept"}
        assert commit.refused_codes[0, 1] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def delete(memory: MemoryBroker, name: str) -> Any:
    asked = DeleteTopicsRequest(topics=(DeleteTopicState(name=name, topic_id=NIL),), timeout_ms=1_000)
    return (await memory.ask(asked, 6)).responses[0]


@on_a_loop
async def test_no_partition_is_added_of_a_topic_that_is_deleted_in_a_pause() -> None:
    async with memory_broker() as memory:
        await memory.make_topic("gone", 1)
        await memory.make_topic("kept", 2 * SLICE_ENTRIES)
        topics = (
            AddPartitionsToTxnTopic(name="gone", partitions=(0,)),
            AddPartitionsToTxnTopic(name="kept", partitions=tuple(range(2 * SLICE_ENTRIES))),
        )
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="t",
            v3_and_below_producer_id=1,
            v3_and_below_producer_epoch=0,
            v3_and_below_topics=topics,
        )
        answer = add_partitions_to_txn.handle(
            memory.broker, request, context(ApiKey.ADD_PARTITIONS_TO_TXN, 3)
        )
        gone, kept = (await paused(answer, lambda: delete(memory, "gone"))).results_by_topic_v3_and_below
        assert [p.partition_error_code for p in gone.results_by_partition] == [
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        ]
        assert {p.partition_error_code for p in kept.results_by_partition} == {
            ErrorCode.OPERATION_NOT_ATTEMPTED
        }


@on_a_loop
async def test_a_produce_of_very_many_partitions_is_not_decoded_on_the_loop() -> None:
    """[SRV-3] and its connection ends, as it names more than there may be."""
    async with memory_broker(max_partitions="1000") as memory:
        spec = HANDLERS[ApiKey.PRODUCE].spec
        for entries, why in ((3_000, CloseConnection), (20_000, DecodeError)):
            body = encode(make_request(spec, 7, INNER, entries), 7)
            answer = produce.handle(memory.broker, memoryview(body), context(ApiKey.PRODUCE, 7))
            assert isinstance(answer, ExclusiveResponse)
            with pytest.raises(why):
                await answer
        assert memory.broker.request_memory.used_bytes == 0


def fetch_in_session(session_id: int, epoch: int, partitions: range) -> FetchRequest:
    wanted = tuple(
        FetchPartition(partition=each, fetch_offset=0, partition_max_bytes=1_000) for each in partitions
    )
    return FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1 << 20,
        session_id=session_id,
        session_epoch=epoch,
        topics=(FetchTopic(topic="t", partitions=wanted),),
    )


@on_a_loop
async def test_a_fetch_session_does_not_grow_beyond_the_partitions_that_may_exist() -> None:
    """[SRV-3] KIP-227: each step may add partitions, and each is served for all of them."""
    async with memory_broker(max_partitions="100") as memory:
        await memory.make_topic("t", 100)
        sessions = memory.broker.fetch_sessions
        first = await memory.ask(fetch_in_session(0, 0, range(60)), 12)
        assert (await memory.ask(fetch_in_session(first.session_id, 1, range(60, 100)), 12)).error_code == 0
        assert sessions.partition_count == 100
        with pytest.raises(CloseConnection, match="a fetch session has 101 partitions"):
            await memory.ask(fetch_in_session(first.session_id, 2, range(100, 101)), 12)
        assert len(sessions) == 0
        gone = await memory.ask(fetch_in_session(first.session_id, 3, range(0)), 12)
        assert gone.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


@on_a_loop
async def test_no_session_holds_partitions_that_do_not_exist_or_may_not_be_read() -> None:
    """A client that has one with its consumer's partitions goes on without a session."""
    async with memory_broker() as memory:
        await memory.make_topic("t", 2)
        sessions = memory.broker.fetch_sessions
        unknown = await memory.ask(fetch_in_session(0, 0, range(3)), 12)
        codes = [part.error_code for part in unknown.responses[0].partitions]
        assert (unknown.session_id, codes) == (0, [0, 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION])
        own = (await memory.ask(fetch_in_session(0, 0, range(2)), 12)).session_id
        grown = await memory.ask(fetch_in_session(own, 1, range(2, 3)), 12)
        assert (own > 0, grown.error_code) == (True, ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        memory.deny((Operation.READ, topic_resource("t")))
        assert (await memory.ask(fetch_in_session(0, 0, range(2)), 12)).session_id == 0
        assert len(sessions) == 0


@on_a_loop
async def test_a_small_fetch_of_more_partitions_than_may_exist_ends_its_connection() -> None:
    async with memory_broker(max_partitions="100") as memory:
        for epoch in (0, -1):
            with pytest.raises(CloseConnection, match="a Fetch has 101 partitions"):
                await memory.ask(fetch_in_session(0, epoch, range(101)), 12)
        assert len(memory.broker.fetch_sessions) == 0


@pytest.mark.slow
@on_a_loop
async def test_a_produce_of_as_many_partitions_as_there_may_be_is_answered() -> None:
    async with memory_broker(max_partitions="5000") as memory:
        for version in (7, 12):
            request = make_request(HANDLERS[ApiKey.PRODUCE].spec, version, OUTER, 5_000)
            answer = await memory.ask(request, version)
            codes = [p.error_code for topic in answer.responses for p in topic.partition_responses]
            assert codes == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 5_000


@on_a_loop
async def test_a_reason_that_quotes_a_name_of_32_kb_is_answered() -> None:
    async with memory_broker() as memory:
        refused = await delete(memory, "é" * 16_000)
        assert refused.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert len(refused.error_message) < REASON_LENGTH_MAX + 100


class Counted(str):
    """A name that counts what it is compared with."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def test_names_of_settings_given_twice_are_compared_once_each() -> None:
    changes = [ConfigChange(Counted(f"n{n // 2}"), AlterConfigOp.SET, "1") for n in range(2_000)]
    assert "given twice" in (_find_malformed(2, "t", changes) or "")
    assert Counted.compared < 10 * len(changes)


def test_a_few_of_very_many_unknown_settings_are_told() -> None:
    changes = [ConfigChange(f"n{n}", AlterConfigOp.SET, "1") for n in range(1_000)]
    with pytest.raises(BadConfig) as refused:
        apply_changes({}, changes, TOPIC_SETTINGS)
    assert len(str(refused.value).splitlines()) == 11
