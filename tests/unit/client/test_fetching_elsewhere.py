"""Fetches of partitions that are not what they were: the topic was recreated, a replica is none any more."""

import asyncio
from collections.abc import Callable
from functools import partial
from uuid import UUID

import pytest
from tests.support.scripted_broker import HangUp, ScriptedBroker, Seen

from tallystick.client.consumer.engine import ConsumerEngine
from tallystick.client.settings.config import ConsumerConfig
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


class NearerReplica:
    """Leader 1 of `t` names broker 2, whenever it is asked; 2 answers once with data, then as the test says.

    asked   the brokers, in order
    answer  of broker 2
    """

    def __init__(self, leader: ScriptedBroker, replica: ScriptedBroker) -> None:
        self.leader, self.replica = leader, replica
        self.replicas: tuple[int, ...] = (1, 2)
        self.offline: tuple[int, ...] = ()
        self.asked: list[int] = []
        self.answer: Callable[[], PartitionData] = empty
        for broker in (leader, replica):
            broker.scripts |= {ApiKey.METADATA: self.metadata, ApiKey.FETCH: partial(self.fetch, broker)}

    def metadata(self, _: Seen) -> MetadataResponse:
        partition = MetadataResponsePartition(
            partition_index=0,
            leader_id=1,
            leader_epoch=1,
            replica_nodes=self.replicas,
            offline_replicas=self.offline,
        )
        return MetadataResponse(
            brokers=tuple(
                MetadataResponseBroker(node_id=broker.node_id, host="127.0.0.1", port=broker.port)
                for broker in (self.leader, self.replica)
            ),
            cluster_id="scripted",
            controller_id=1,
            topics=(MetadataResponseTopic(name="t", topic_id=OLD, partitions=(partition,)),),
        )

    def fetch(self, broker: ScriptedBroker, _: Seen) -> FetchResponse:
        self.asked.append(broker.node_id)
        return answer_of(OLD, empty(replica=2) if broker is self.leader else self.answer())


def hang_up() -> PartitionData:
    raise HangUp


@pytest.mark.parametrize(
    "answer",
    [
        lambda: empty(ErrorCode.NOT_LEADER_OR_FOLLOWER),
        lambda: empty(ErrorCode.OFFSET_NOT_AVAILABLE),
        lambda: empty(ErrorCode.OFFSET_OUT_OF_RANGE),
        hang_up,
    ],
    ids=["no replica", "behind", "out of range", "no answer"],
)
def test_a_replica_that_does_not_serve_the_partition_is_left_for_the_leader(
    answer: Callable[[], PartitionData],
) -> None:
    """KIP-392. The leader is asked after every error, and may name another replica, or none."""

    async def main() -> None:
        async with ScriptedBroker(node_id=1) as leader, ScriptedBroker(node_id=2) as replica:
            cluster = NearerReplica(leader, replica)
            consumer = consumer_of(
                leader, client_rack="2", reconnect_backoff_ms=1, reconnect_backoff_max_ms=1
            )
            await poll_until(consumer, lambda: len(cluster.asked) > 3)
            assert cluster.asked[:4] == [1, 2, 2, 2]
            cluster.answer = answer
            cluster.asked.clear()
            await poll_until(consumer, lambda: cluster.asked.count(1) > 2)
            assert "2, 2" not in ", ".join(map(str, cluster.asked[1:]))
            await consumer.close()

    asyncio.run(main())


@pytest.mark.parametrize("is_offline", [True, False])
def test_a_replica_that_metadata_does_not_have_is_not_asked(is_offline: bool) -> None:
    """Nor is the leader at once, which would name it again: metadata is refreshed first."""

    async def main() -> None:
        async with ScriptedBroker(node_id=1) as leader, ScriptedBroker(node_id=2) as replica:
            cluster = NearerReplica(leader, replica)
            cluster.replicas, cluster.offline = ((1, 2), (2,)) if is_offline else ((1,), ())
            consumer = consumer_of(leader, client_rack="2")
            await poll_until(consumer, lambda: len(cluster.asked) > 3)
            assert set(cluster.asked) == {1}
            assert leader.count(ApiKey.METADATA) + replica.count(ApiKey.METADATA) >= len(cluster.asked)
            cluster.replicas, cluster.offline = (1, 2), ()
            await poll_until(consumer, lambda: 2 in cluster.asked)
            await consumer.close()

    asyncio.run(main())
