"""Batches whose answers were lost, and what a broker that remembers too little says of them."""

import asyncio
from typing import Any

import pytest
from tests.support.scripted_broker import HangUp, ScriptedBroker, Seen

from tallystick.client.errors import BrokerRefused
from tallystick.client.net.cluster import Cluster
from tallystick.client.producer.batches.accumulator import BufferFullOrUnknownTopic
from tallystick.client.producer.batches.delivery import Delivery
from tallystick.client.producer.engine import ProducerEngine
from tallystick.client.settings.config import ProducerConfig
from tallystick.kernel.errors import Effect
from tallystick.protocol.apis import ApiKey
from tallystick.protocol.messages.data.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from tallystick.protocol.messages.txn.init_producer_id import InitProducerIdResponse
from tallystick.protocol.records import read_header

SETTINGS = {
    "bootstrap.servers": "",
    "linger.ms": 0,
    "batch.size": 1,  # a batch for every record
    "retry.backoff.ms": 1,
    "retry.backoff.max.ms": 5,
    "reconnect.backoff.ms": 1,
    "reconnect.backoff.max.ms": 5,
}
LOST = -2


class Engine:
    """A producer's engine against a scripted broker that answers Produce with the codes of a list, in order.

    `said` ends: what is sent after that is written, if it continues what was written under its epoch.
    """

    def __init__(self, broker: ScriptedBroker, codes: list[int]) -> None:
        self.broker, self.codes = broker, iter(codes)
        self.sent: list[tuple[int, int]] = []  # (epoch, base sequence) of every attempt
        broker.scripts[ApiKey.METADATA] = lambda _: broker.metadata(t=1)
        broker.scripts[ApiKey.INIT_PRODUCER_ID] = lambda _: InitProducerIdResponse(
            producer_id=7, producer_epoch=0
        )
        broker.scripts[ApiKey.PRODUCE] = self._produce
        config = ProducerConfig.parse({**SETTINGS, "bootstrap.servers": broker.address})
        self.cluster = Cluster(config.client, in_flight_max=5)
        self.engine = ProducerEngine(self.cluster, config)

    def _produce(self, seen: Seen) -> Any:
        request = seen.request
        assert isinstance(request, ProduceRequest)
        ((data,),) = (topic.partition_data for topic in request.topic_data)
        header = read_header(bytes(data.records or b""))
        self.sent.append((header.producer_epoch, header.base_sequence))
        code = next(self.codes, 0)
        if code == LOST:
            raise HangUp
        part = PartitionProduceResponse(index=0, error_code=code, base_offset=-1 if code else 100)
        return ProduceResponse(responses=(TopicProduceResponse(name="t", partition_responses=(part,)),))

    async def send(self, count: int) -> list[Delivery]:
        deliveries: list[Any] = []
        while len(deliveries) < count:
            try:
                deliveries.append(self.engine.accumulator.append("t", b"%d" % len(deliveries)))
            except BufferFullOrUnknownTopic:
                await self.engine.wait_for_space("t", self.cluster.start_deadline("max.block.ms", 10_000))
        await self.engine.flush(self.cluster.start_deadline("flush", 30_000))
        return deliveries


def outcomes(codes: list[int], count: int = 5) -> tuple[list[Delivery], list[tuple[int, int]]]:
    """Send `count` batches to a broker that answers so: deliveries, and (epoch, number) of all attempts."""

    async def main() -> tuple[list[Delivery], list[tuple[int, int]]]:
        async with ScriptedBroker() as broker:
            made = Engine(broker, codes)
            try:
                deliveries = await made.send(count)
                assert made.engine.accumulator.pool.used_bytes == 0
                return deliveries, made.sent
            finally:
                await made.engine.close(made.cluster.start_deadline("close", 5_000))
                await made.cluster.close()

    return asyncio.run(main())


def test_five_written_batches_of_which_the_broker_remembers_the_last_are_not_sent_again() -> None:
    """[CLI-23] Apache Kafka after a clean restart: 45 for the first four, the fifth is known again."""
    deliveries, sent = outcomes([LOST, 45, 45, 45, 45, 0])
    assert [d.exception(0) for d in deliveries] == [None] * 5
    assert [d.result(0).offset for d in deliveries] == [None] * 4 + [100]
    assert sent == [(0, 0), *((0, number) for number in range(5))]


def test_batches_that_are_all_refused_in_one_round_are_numbered_anew() -> None:
    """[CLI-23] The broker would know the last one again: none of them is written."""
    deliveries, sent = outcomes([LOST, *[45] * 5])
    assert [d.exception(0) for d in deliveries] == [None] * 5
    assert sent[-5:] == [(1, number) for number in range(5)]


def test_a_round_that_ends_early_is_repeated_under_the_old_numbers() -> None:
    """[CLI-23] 45 for the first, and the other answers lost: it proves nothing, so all are sent again."""
    deliveries, sent = outcomes([LOST, 45, LOST, 45, 45, 45, 45, 0])
    assert [d.exception(0) for d in deliveries] == [None] * 5
    assert sent[-5:] == [(0, number) for number in range(5)]


@pytest.mark.parametrize("code", [59, 47])
def test_what_a_broker_without_memory_refuses_may_have_happened(code: int) -> None:
    """[CLI-23] It cannot know whether the batches without an answer are written: they are not sent again."""
    deliveries, sent = outcomes([LOST, *[code] * 5])
    errors = [d.exception(0) for d in deliveries]
    assert {error.code for error in errors if isinstance(error, BrokerRefused)} == {code}
    assert {error.effect for error in errors if error is not None} == {Effect.UNKNOWN}
    assert "may have happened" in str(errors[0])
    assert {epoch for epoch, _ in sent} == {0}


def test_batches_whose_every_attempt_was_answered_are_numbered_anew() -> None:
    """[CLI-23] The first is refused for good, and the others for the gap: all answers are there."""
    deliveries, sent = outcomes([87, *[59] * 4])
    assert [type(d.exception(0)) for d in deliveries] == [BrokerRefused, *[type(None)] * 4]
    assert sent[5:] == [(1, number) for number in range(4)]
