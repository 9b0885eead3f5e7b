"""Fetches of partitions that are not what they were: the topic was recreated, a replica is none any more."""

import asyncio
from collections.abc import Callable
from uuid import UUID

import pytest
from tests.support.scripted_broker import ScriptedBroker, Seen

from tallystick.client.config import ConsumerConfig
from tallystick.client.consumer.engine import ConsumerEngine
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.ids import TopicPartition
from tallystick.protocol.apis import ApiKey
from tallystick.protocol.messages.data.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from tallystick.protocol.messages.topics.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

T0 = TopicPartition("t", 0)
OLD, NEW = UUID(int=1), UUID(int=2)


def consumer_of(broker: ScriptedBroker, **settings: object) -> ConsumerEngine:
    named = {name.replace("_", "."): value for name, value in settings.items()}
    base = {"bootstrap.servers": broker.address, "retry.backoff.ms": 1, "auto.offset.reset": "earliest"}
    consumer = ConsumerEngine(ConsumerConfig.parse(base | named))
    consumer.assign([T0])
    consumer.positions.seek(T0, 5, leader_epoch=3)
    return consumer


async def poll_until(consumer: ConsumerEngine, condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await consumer.poll(1)


def answer_of(topic_id: UUID, data: PartitionData, session_id: int = 0) -> FetchResponse:
    topic = FetchableTopicResponse(topic_id=topic_id, partitions=(data,))
    return FetchResponse(error_code=0, session_id=session_id, responses=(topic,))


def empty(code: int = 0, replica: int = -1) -> PartitionData:
    return PartitionData(
        partition_index=0, error_code=code, high_watermark=5, preferred_read_replica=replica, records=b""
    )


class RecreatedTopic:
    """Leader of `t` with one fetch session by topic ids, which it answers as long as it has news.

    asked   what the last request for each topic id was
    errors  answers about a topic that is gone
    """

    def __init__(self, broker: ScriptedBroker, epoch_of_new: int) -> None:
        self.broker, self.epoch_of_new = broker, epoch_of_new
        self.live = OLD
        self.session: dict[UUID, FetchPartition] = {}
        self.asked: dict[UUID, FetchPartition] = {}
        self.errors = 0
        broker.scripts |= {ApiKey.METADATA: self.metadata, ApiKey.FETCH: self.fetch}

    def metadata(self, _: Seen) -> MetadataResponse:
        epoch = 0 if self.live == OLD else self.epoch_of_new
        partition = MetadataResponsePartition(partition_index=0, leader_id=1, leader_epoch=epoch)
        return MetadataResponse(
            brokers=(MetadataResponseBroker(node_id=1, host="127.0.0.1", port=self.broker.port),),
            cluster_id="scripted",
            controller_id=1,
            topics=(MetadataResponseTopic(name="t", topic_id=self.live, partitions=(partition,)),),
        )

    def fetch(self, seen: Seen) -> FetchResponse:
        request = seen.request
        assert isinstance(request, FetchRequest)
        if request.session_epoch == 0:
            self.session.clear()
        for topic in request.topics:
            self.session[topic.topic_id] = topic.partitions[0]
        for forgotten in request.forgotten_topics_data:
            self.session.pop(forgotten.topic_id, None)
        self.asked |= self.session
        for topic_id in self.session:
            if topic_id != self.live:
                self.errors += 1
                return answer_of(topic_id, empty(ErrorCode.UNKNOWN_TOPIC_ID), session_id=7)
        return FetchResponse(error_code=0, session_id=7, responses=())


@pytest.mark.parametrize("epoch_of_new", [0, 2], ids=["same epoch", "other epoch"])
def test_a_recreated_topic_is_read_and_the_old_one_asked_for_no_more(epoch_of_new: int) -> None:
    """From the same offset on, without the epoch that it had in the old log."""

    async def main() -> None:
        async with ScriptedBroker() as broker:
            topic = RecreatedTopic(broker, epoch_of_new)
            consumer = consumer_of(broker)
            await poll_until(consumer, lambda: broker.count(ApiKey.FETCH) > 3)
            assert topic.asked[OLD].last_fetched_epoch == 3
            topic.live = NEW
            await poll_until(consumer, lambda: NEW in topic.asked)
            count = broker.count(ApiKey.FETCH)
            await poll_until(consumer, lambda: broker.count(ApiKey.FETCH) > count + 3)
            assert (topic.asked[NEW].fetch_offset, topic.asked[NEW].last_fetched_epoch) == (5, -1)
            assert set(topic.session) == {NEW}
            assert topic.errors == 1
            await consumer.close()

    asyncio.run(main())


def test_an_answer_about_a_partition_that_is_not_in_the_session_ends_it() -> None:
    """Kafka's client does the same (FetchSessionHandler.handleResponse)."""

    async def main() -> None:
        async with ScriptedBroker() as broker:
            RecreatedTopic(broker, 0)
            epochs: list[int] = []

            def fetch(seen: Seen) -> FetchResponse:
                assert isinstance(seen.request, FetchRequest)
                epochs.append(seen.request.session_epoch)
                if len(epochs) == 3:
                    return answer_of(NEW, empty(ErrorCode.UNKNOWN_TOPIC_ID), session_id=7)
                return FetchResponse(error_code=0, session_id=7, responses=())

            broker.scripts[ApiKey.FETCH] = fetch
            consumer = consumer_of(broker)
            await poll_until(consumer, lambda: len(epochs) > 5)
            assert epochs[:6] == [0, 1, 2, 0, 1, 2]
            await consumer.close()

    asyncio.run(main())
