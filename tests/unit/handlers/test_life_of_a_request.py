"""The memory of a large request counts from its first byte until it is answered, whatever the API [SRV-4]."""

import asyncio
import threading
from collections.abc import Awaitable
from typing import Any

import pytest
from tests.support.memory_broker import MemoryBroker, memory_broker, on_a_loop
from tools.hostile import Shape, make_request

from tallystick.broker.handlers import HANDLERS
from tallystick.broker.handlers.dispatch import INLINE_DECODE_BYTES_MAX, decode_in_thread
from tallystick.broker.server.request_context import RequestContext
from tallystick.protocol import encode
from tallystick.protocol.apis import ApiKey

OUTER = Shape(deep=False, distinct=True)

# What changes something runs to its end, whether or not its client is there.
CHANGES = {
    ApiKey.PRODUCE,
    ApiKey.HEARTBEAT,
    ApiKey.LEAVE_GROUP,
    ApiKey.OFFSET_COMMIT,
    ApiKey.OFFSET_DELETE,
    ApiKey.DELETE_GROUPS,
    ApiKey.CREATE_TOPICS,
    ApiKey.DELETE_TOPICS,
    ApiKey.DELETE_RECORDS,
    ApiKey.INIT_PRODUCER_ID,
    ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.ADD_OFFSETS_TO_TXN,
    ApiKey.TXN_OFFSET_COMMIT,
    ApiKey.END_TXN,
    ApiKey.WRITE_TXN_MARKERS,
    ApiKey.ALTER_CONFIGS,
    ApiKey.CREATE_ACLS,
    ApiKey.DELETE_ACLS,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
    ApiKey.CREATE_PARTITIONS,
    ApiKey.INCREMENTAL_ALTER_CONFIGS,
    ApiKey.UPDATE_FEATURES,
}
ANSWERED_AT_ONCE = {ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE}


def test_what_changes_nothing_ends_when_its_client_is_gone() -> None:
    cancellable = {key for key, entry in HANDLERS.items() if entry.is_cancellable}
    assert cancellable == set(HANDLERS) - CHANGES - ANSWERED_AT_ONCE


def start(memory: MemoryBroker, api: ApiKey, host: str = "10.0.0.1") -> "asyncio.Future[Any]":
    """Have a request of more than 64 KiB worked on."""
    spec, entries = HANDLERS[api].spec, 12_000
    body = encode(make_request(spec, spec.max_version, OUTER, entries), spec.max_version)
    assert len(body) > INLINE_DECODE_BYTES_MAX
    context = RequestContext(api, spec.max_version, 1, "client", host, 1)
    answer = HANDLERS[api].run(memory.broker, memoryview(body), context)
    assert isinstance(answer, Awaitable)
    return asyncio.ensure_future(answer)


@pytest.mark.gate(1)
@pytest.mark.parametrize("api", [ApiKey.DESCRIBE_GROUPS, ApiKey.OFFSET_FETCH, ApiKey.DELETE_GROUPS])
@on_a_loop
async def test_it_counts_until_it_is_answered_and_one_of_a_host_is_worked_on(api: ApiKey) -> None:
    async with memory_broker() as memory:
        account = memory.broker.request_memory
        first, second = start(memory, api), start(memory, api)
        done, _ = await asyncio.wait((first, second), return_when=asyncio.FIRST_COMPLETED)
        assert done == {first}
        left = account.used_bytes
        assert left > 10 * INLINE_DECODE_BYTES_MAX
        assert len(await second) > 0
        assert account.used_bytes == 0
        assert not account.has_large_of("10.0.0.1")


@on_a_loop
@pytest.mark.slow
async def test_of_clients_that_are_gone_nothing_stays() -> None:
    async with memory_broker() as memory:
        account = memory.broker.request_memory
        asked = [start(memory, ApiKey.CONSUMER_GROUP_DESCRIBE) for _ in range(50)]
        await asyncio.sleep(0)
        assert account.used_bytes > 50 * INLINE_DECODE_BYTES_MAX
        for each in asked:
            each.cancel()
        await asyncio.wait(asked)
        assert all(each.cancelled() for each in asked)
        assert account.used_bytes == 0
        assert len(await start(memory, ApiKey.CONSUMER_GROUP_DESCRIBE)) > 0


@on_a_loop
async def test_the_next_is_decoded_when_the_thread_of_a_client_that_left_is_done() -> None:
    async with memory_broker() as memory:
        may_end, begun = threading.Event(), threading.Event()
        threads: list[str] = []

        def slow() -> None:
            begun.set()
            may_end.wait()
            threads.append("slow")

        leaving = asyncio.ensure_future(decode_in_thread(memory.broker, slow))
        await asyncio.to_thread(begun.wait)
        leaving.cancel()
        following = asyncio.ensure_future(decode_in_thread(memory.broker, lambda: threads.append("next")))
        for _ in range(10):
            await asyncio.sleep(0)
        assert threads == []
        may_end.set()
        await following
        assert leaving.cancelled()
        assert threads == ["slow", "next"]


@on_a_loop
async def test_a_group_that_cannot_be_described_costs_little_more_than_its_name() -> None:
    async with memory_broker() as memory:
        spec = HANDLERS[ApiKey.CONSUMER_GROUP_DESCRIBE].spec
        request = make_request(spec, 1, OUTER, 1_000)
        body = encode(request, 1)
        context = RequestContext(spec.key, 1, 1, "client", "10.0.0.1", 1)
        answer: Any = HANDLERS[spec.key].run(memory.broker, memoryview(body), context)
        assert sum(map(len, await answer)) < 6 * len(body)


@on_a_loop
async def test_a_topic_is_created_although_its_client_left() -> None:
    async with memory_broker() as memory:
        spec = HANDLERS[ApiKey.METADATA].spec
        request = spec.request(
            topics=(make_request(spec, 8, OUTER, 1).topics[0],), allow_auto_topic_creation=True
        )
        name = request.topics[0].name
        context = RequestContext(spec.key, 8, 1, "client", "10.0.0.1", 1)
        answer = HANDLERS[spec.key].run(memory.broker, memoryview(encode(request, 8)), context)
        assert isinstance(answer, Awaitable)
        asked = asyncio.ensure_future(answer)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        asked.cancel()
        await asyncio.wait([asked])
        await memory.make_topic("after")  # one is created at a time
        assert memory.broker.topics.find(name) is not None
