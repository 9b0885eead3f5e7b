"""Requests of very many entries: others have the loop in between, and what is decided is decided at once."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.support.memory_broker import MemoryBroker, memory_broker, on_a_loop
from tools.hostile import Shape, request_of

from tallystick.broker.config import TOPIC_SETTINGS
from tallystick.broker.config_view import Change, Operation, _malformed, apply_changes
from tallystick.broker.context import RequestContext
from tallystick.broker.handlers import (
    HANDLERS,
    add_partitions_to_txn,
    alter_configs,
    delete_groups,
    delete_records,
    delete_topics,
    incremental_alter_configs,
    offset_commit,
    produce,
    txn_offset_commit,
    write_txn_markers,
)
from tallystick.broker.handlers.committing import ROWS_AT_ONCE, Commit
from tallystick.broker.listing import SLICE_ENTRIES
from tallystick.broker.server import Alone, CloseConnection
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.limits import REASON_LENGTH_MAX
from tallystick.kernel.settings import BadConfig
from tallystick.protocol import DecodeError, encode
from tallystick.protocol.apis import ApiKey
from tallystick.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from tallystick.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from tallystick.protocol.messages.offset_commit import (
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tallystick.protocol.primitives import NIL

ENTRIES = 2 * ROWS_AT_ONCE
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
    (ApiKey.OFFSET_COMMIT, offset_commit, INNER),
    (ApiKey.TXN_OFFSET_COMMIT, txn_offset_commit, INNER),
    (ApiKey.ADD_PARTITIONS_TO_TXN, add_partitions_to_txn, INNER),
    (ApiKey.ADD_PARTITIONS_TO_TXN, add_partitions_to_txn, OUTER),
    (ApiKey.WRITE_TXN_MARKERS, write_txn_markers, INNER),
    (ApiKey.DELETE_TOPICS, delete_topics, OUTER),
    (ApiKey.DELETE_GROUPS, delete_groups, OUTER),
    (ApiKey.DELETE_RECORDS, delete_records, INNER),
    (ApiKey.ALTER_CONFIGS, alter_configs, OUTER),
    (ApiKey.INCREMENTAL_ALTER_CONFIGS, incremental_alter_configs, OUTER),
]


@pytest.mark.parametrize(("api", "handler", "shape"), LONG, ids=lambda v: getattr(v, "name", None))
@on_a_loop
async def test_others_have_the_loop_between_a_few_entries(api: ApiKey, handler: Any, shape: Shape) -> None:
    async with memory_broker() as memory:
        spec = HANDLERS[api].spec
        request = request_of(spec, spec.max_version, shape, ENTRIES)
        answer = handler.handle(memory.broker, request, context(api, spec.max_version))
        assert await turns_of(answer) >= (ENTRIES - ROWS_AT_ONCE) // SLICE_ENTRIES


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
        looking = Commit.of(memory.broker.topics, rows(("t", ROWS_AT_ONCE // 2)), by_id=False)
        with pytest.raises(StopIteration) as done:
            looking.send(None)
        assert len(done.value.value.offsets) == 2


@on_a_loop
async def test_offsets_of_a_topic_that_is_deleted_in_a_pause_are_refused() -> None:
    async with memory_broker() as memory:
        await memory.make_topic("gone")
        await memory.make_topic("kept")
        asked = rows(("gone", 2), ("kept", 2), ("unknown", 2 * ROWS_AT_ONCE))
        looking = Commit.of(memory.broker.topics, asked, by_id=False)
        commit = await paused(looking, lambda: delete(memory, "gone"))
        assert {at.topic for at in commit.offsets} == {"kept"}
        assert commit.refused[0, 1] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


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
            body = encode(request_of(spec, 7, INNER, entries), 7)
            answer = produce.handle(memory.broker, memoryview(body), context(ApiKey.PRODUCE, 7))
            assert isinstance(answer, Alone)
            with pytest.raises(why):
                await answer
        assert memory.broker.request_memory.bytes == 0


@on_a_loop
async def test_a_produce_of_as_many_partitions_as_there_may_be_is_answered() -> None:
    async with memory_broker(max_partitions="5000") as memory:
        for version in (7, 12):
            request = request_of(HANDLERS[ApiKey.PRODUCE].spec, version, OUTER, 5_000)
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
    changes = [Change(Counted(f"n{n // 2}"), Operation.SET, "1") for n in range(2_000)]
    assert "given twice" in (_malformed(2, "t", changes) or "")
    assert Counted.compared < 10 * len(changes)


def test_a_few_of_very_many_unknown_settings_are_told() -> None:
    changes = [Change(f"n{n}", Operation.SET, "1") for n in range(1_000)]
    with pytest.raises(BadConfig) as refused:
        apply_changes({}, changes, TOPIC_SETTINGS)
    assert len(str(refused.value).splitlines()) == 11
