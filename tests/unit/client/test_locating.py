"""Positions are looked for partition by partition: one that is not answered for holds no other back."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.support.scripted_broker import Answer, ScriptedBroker, Seen

from tallystick.client.consumer.engine import ConsumerEngine
from tallystick.client.errors import TimedOut
from tallystick.client.settings.config import ConsumerConfig
from tallystick.kernel.ids import TopicPartition
from tallystick.protocol.apis import ApiKey
from tallystick.protocol.messages.cluster.find_coordinator import Coordinator, FindCoordinatorResponse
from tallystick.protocol.messages.data.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from tallystick.protocol.messages.groups.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)

GONE, T, U = TopicPartition("gone", 0), TopicPartition("t", 0), TopicPartition("u", 0)
HOUR_MS = 3_600_000
UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER, UNSTABLE_OFFSET_COMMIT = 3, 6, 88


def listed(seen: Seen, errors: dict[str, int]) -> Answer:
    """Every log begins at 1 and ends at 9."""
    assert isinstance(seen.request, ListOffsetsRequest)
    return ListOffsetsResponse(
        topics=tuple(
            ListOffsetsTopicResponse(
                name=topic.name,
                partitions=tuple(
                    ListOffsetsPartitionResponse(
                        partition_index=asked.partition_index,
                        error_code=errors.get(topic.name, 0),
                        timestamp=-1,
                        offset=1 if asked.timestamp == -2 else 9,
                        leader_epoch=1,
                    )
                    for asked in topic.partitions
                ),
            )
            for topic in seen.request.topics
        )
    )


def fetched(seen: Seen, errors: dict[str, int]) -> Answer:
    """Committed is 5 of each that has no error."""
    assert isinstance(seen.request, OffsetFetchRequest)
    return OffsetFetchResponse(
        topics=tuple(
            OffsetFetchResponseTopic(
                name=topic.name,
                partitions=(
                    OffsetFetchResponsePartition(
                        partition_index=0,
                        committed_offset=-1 if errors.get(topic.name) else 5,
                        metadata="",
                        error_code=errors.get(topic.name, 0),
                    ),
                ),
            )
            for topic in seen.request.topics or ()
        )
    )


@asynccontextmanager
async def consumer_of(broker: ScriptedBroker, **settings: object) -> AsyncIterator[ConsumerEngine]:
    named = {name.replace("_", "."): value for name, value in settings.items()}
    base = {
        "bootstrap.servers": broker.address,
        "auto.offset.reset": "earliest",
        "retry.backoff.ms": 1,
        "retry.backoff.max.ms": 1,
        "request.timeout.ms": HOUR_MS,
        "default.api.timeout.ms": HOUR_MS,
        "enable.auto.commit": False,
    }
    consumer = ConsumerEngine(ConsumerConfig.parse(base | named))
    try:
        async with asyncio.timeout(20):
            yield consumer
    finally:
        await consumer.close()


@pytest.mark.parametrize("in_metadata", [False, True])
def test_a_partition_that_is_gone_holds_back_no_other_search(in_metadata: bool) -> None:
    """Neither one of the same kind, nor one of another, nor one that begins meanwhile."""

    async def main() -> None:
        async with ScriptedBroker() as broker:
            leaders = {"gone": 1} if in_metadata else {}
            broker.scripts[ApiKey.METADATA] = lambda _: broker.metadata(t=1, u=1, **leaders)
            errors = {"gone": UNKNOWN_TOPIC_OR_PARTITION}
            broker.scripts[ApiKey.LIST_OFFSETS] = lambda seen: listed(seen, errors)
            async with consumer_of(broker) as consumer:
                consumer.assign([GONE, T])
                consumer.positions.seek_to_beginning()
                assert await consumer.positions.position(T) == 1
                consumer.positions.seek_to_end([T])
                assert await consumer.positions.position(T) == 9
                consumer.assign([GONE, T, U])
                consumer.positions.seek_to_beginning([U])
                assert await consumer.positions.position(U) == 1
                consumer.positions.seek_to_beginning([T])
                assert await consumer.positions.position(T) == 1

    asyncio.run(main())


def test_a_leader_that_does_not_answer_holds_back_no_search_at_another() -> None:
    """The other leader refuses once, and is asked again."""

    async def main() -> None:
        async with ScriptedBroker() as broker, ScriptedBroker(node_id=2) as silent:
            refusals = [{"t": NOT_LEADER}]
            broker.scripts[ApiKey.METADATA] = lambda _: broker.metadata(silent, gone=2, t=1)
            silent.scripts[ApiKey.METADATA] = broker.scripts[ApiKey.METADATA]
            silent.scripts[ApiKey.LIST_OFFSETS] = lambda _: None
            broker.scripts[ApiKey.LIST_OFFSETS] = lambda seen: listed(
                seen, refusals.pop() if refusals else {}
            )
            async with consumer_of(broker) as consumer:
                consumer.assign([T])
                consumer.positions.seek_to_beginning()
                assert await consumer.positions.position(T) == 1
                refusals.append({"t": NOT_LEADER})
                consumer.assign([GONE, T])
                consumer.positions.seek_to_end()
                assert await consumer.positions.position(T) == 9
                assert not refusals

    asyncio.run(main())


def test_an_offset_that_a_transaction_holds_back_holds_back_no_other() -> None:
    """UNSTABLE_OFFSET_COMMIT is one partition's; what is committed of the others counts at once."""

    async def main() -> None:
        async with ScriptedBroker() as broker:
            coordinator = Coordinator(
                key="g", node_id=1, host="127.0.0.1", port=broker.port, error_code=0, error_message=None
            )
            errors = {"gone": UNSTABLE_OFFSET_COMMIT}
            broker.scripts |= {
                ApiKey.METADATA: lambda _: broker.metadata(gone=1, t=1, u=1),
                ApiKey.FIND_COORDINATOR: lambda _: FindCoordinatorResponse(coordinators=(coordinator,)),
                ApiKey.OFFSET_FETCH: lambda seen: fetched(seen, errors),
            }
            async with consumer_of(broker, group_id="g") as consumer:
                consumer.assign([GONE, T])
                assert await consumer.positions.position(T) == 5
                consumer.assign([GONE, T, U])
                assert await consumer.positions.position(U) == 5
                errors.clear()
                assert await consumer.positions.position(GONE) == 5

    asyncio.run(main())


def test_a_partition_that_is_no_longer_read_is_no_longer_looked_for() -> None:
    """The search ends with the assignment, not with default.api.timeout.ms."""

    async def main() -> None:
        async with ScriptedBroker() as broker:
            errors = {"gone": UNKNOWN_TOPIC_OR_PARTITION}
            broker.scripts[ApiKey.METADATA] = lambda _: broker.metadata(gone=1, t=1)
            broker.scripts[ApiKey.LIST_OFFSETS] = lambda seen: listed(seen, errors)
            async with consumer_of(broker) as consumer:
                consumer.assign([GONE])
                consumer.positions.seek_to_beginning()
                with pytest.raises(TimedOut):
                    await consumer.positions.position(GONE, timeout_ms=1)
                searches = {task for task in asyncio.all_tasks() if "_search" in repr(task.get_coro())}
                assert searches
                consumer.assign([T])
                _, pending = await asyncio.wait(searches, timeout=10)
                assert not pending

    asyncio.run(main())
