"""Measure a broker with many transactional ids: many open transactions, and many ids to load at a start."""

import asyncio
import statistics
import time
from dataclasses import dataclass
from typing import Final

from tools.bench.brokers import create_topic
from tools.bench.raw import PATIENCE_S, Raw, ask_until_done, run_for_each
from tools.servers.broker_process import BrokerProcess

from tallystick.protocol.messages.cluster.find_coordinator import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from tallystick.protocol.messages.data.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tallystick.protocol.messages.txn.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tallystick.protocol.messages.txn.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from tallystick.protocol.records import BatchMeta, Record, encode_batch

# The longest timeout that brokers allow by default: no transaction may time out during a measurement.
TIMEOUT_MS: Final = 900_000
LISTINGS: Final = 7
TOPIC: Final = "open"
# The last stable versions in Kafka 4.3; from 12 on the write itself adds the partition.
INIT_VERSION, PRODUCE_VERSION, LIST_VERSION, FIND_VERSION = 5, 12, 1, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTransactions:
    """The measurements with `count` transactions open at once, with one record each."""

    count: int
    bytes_each: float
    list_ms: float
    opened_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """Seconds from the launch until every id is listed, after a clean stop and after a kill (SIGKILL)."""

    count: int
    clean_s: float
    killed_s: float


async def init_producer_id(raw: Raw, transactional_id: str) -> InitProducerIdResponse:
    """Return a producer id for a transactional id."""
    request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=TIMEOUT_MS)
    return await ask_until_done(
        lambda: raw.ask(request, InitProducerIdResponse, INIT_VERSION), lambda answer: answer.error_code
    )


async def find_coordinator(bootstrap: str) -> None:
    """Ask for a coordinator, which creates the internal topic, and wait until there is one."""
    request = FindCoordinatorRequest(key_type=1, coordinator_keys=("first",))
    async with await Raw.connect(bootstrap) as raw:
        await ask_until_done(
            lambda: raw.ask(request, FindCoordinatorResponse, FIND_VERSION),
            lambda answer: answer.coordinators[0].error_code,
        )
        await init_producer_id(raw, "first")


async def open_one(raw: Raw, transactional_id: str, partition: int) -> None:
    """Begin a transaction with a first record."""
    pair = await init_producer_id(raw, transactional_id)
    record = Record(0, int(time.time() * 1000), None, bytes(100), ())
    meta = BatchMeta(
        producer_id=pair.producer_id,
        producer_epoch=pair.producer_epoch,
        base_sequence=0,
        is_transactional=True,
    )
    data = PartitionProduceData(index=partition, records=encode_batch([record], meta))
    request = ProduceRequest(
        transactional_id=transactional_id,
        acks=-1,
        timeout_ms=30_000,
        topic_data=(TopicProduceData(name=TOPIC, partition_data=(data,)),),
    )
    await ask_until_done(
        lambda: raw.ask(request, ProduceResponse, PRODUCE_VERSION),
        lambda answer: answer.responses[0].partition_responses[0].error_code,
    )


async def time_listing(raw: Raw, request: ListTransactionsRequest, expected_count: int) -> float:
    """Return the milliseconds until the answer, which must list `wanted` ids, is here."""
    began = time.perf_counter()
    frame = await raw.exchange(request, LIST_VERSION)
    elapsed_ms = (time.perf_counter() - began) * 1000
    count = len(raw.decode_answer(frame, request, ListTransactionsResponse, LIST_VERSION).transaction_states)
    if count != expected_count:
        raise RuntimeError(f"{expected_count} transactions were opened, {count} are listed")
    return elapsed_ms


async def time_loading(raw: Raw, expected_count: int) -> float:
    """Wait for an answer that lists `wanted` ids, and return the time of its arrival."""
    request = ListTransactionsRequest()
    give_up_at = time.monotonic() + PATIENCE_S
    while True:
        frame = await raw.exchange(request, LIST_VERSION)
        arrival = time.monotonic()
        answer = raw.decode_answer(frame, request, ListTransactionsResponse, LIST_VERSION)
        # Before it begins to load, Kafka lists what it has so far without an error.
        if not answer.error_code and len(answer.transaction_states) == expected_count:
            return arrival
        if arrival > give_up_at:
            raise RuntimeError(f"{len(answer.transaction_states)} of {expected_count} ids are listed")
        await asyncio.sleep(0.02)


def open_transactions(process: BrokerProcess, count: int, partitions: int) -> OpenTransactions:
    """Open many transactions and measure what they cost."""
    create_topic(process, TOPIC, partitions)

    async def measure() -> OpenTransactions:
        bootstrap = process.bootstrap
        await find_coordinator(bootstrap)
        # The first ones allocate what any number of them needs: partitions' files, code, pools.
        await run_for_each(bootstrap, range(partitions), lambda raw, n: open_one(raw, f"warm-{n}", n))
        before, began = process.read_rss_bytes(), time.monotonic()
        await run_for_each(bootstrap, range(count), lambda raw, n: open_one(raw, f"open-{n}", n % partitions))
        seconds = time.monotonic() - began
        growth = process.read_rss_bytes() - before
        ongoing = ListTransactionsRequest(state_filters=("Ongoing",))
        async with await Raw.connect(bootstrap) as raw:
            times_ms = [await time_listing(raw, ongoing, count + partitions) for _ in range(LISTINGS)]
        return OpenTransactions(
            count=count,
            bytes_each=growth / count,
            list_ms=statistics.median(times_ms),
            opened_per_s=count / seconds,
        )

    return asyncio.run(measure())


def measure_restart(process: BrokerProcess, count: int) -> Restart:
    """Write `count` ids to the log, then start the broker on it twice."""

    async def fill() -> None:
        await find_coordinator(process.bootstrap)

        async def init_one(raw: Raw, number: int) -> None:
            await init_producer_id(raw, f"id-{number}")

        await run_for_each(process.bootstrap, range(count), init_one)

    async def wait_until_listed() -> float:
        async with await Raw.connect(process.bootstrap) as raw:
            return await time_loading(raw, count + 1)

    def start() -> float:
        began = time.monotonic()
        process.start()
        return asyncio.run(wait_until_listed()) - began

    asyncio.run(fill())
    process.stop()
    clean_s = start()
    process.kill()
    return Restart(count=count, clean_s=clean_s, killed_s=start())
