"""Five batches written, their answers lost, and the broker restarted cleanly before they are sent again."""

import asyncio
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from tallystick.client.errors import ConnectionLost
from tallystick.client.net.cluster import Cluster
from tallystick.client.producer.batches.accumulator import BufferFullOrUnknownTopic
from tallystick.client.producer.batches.delivery import Delivery
from tallystick.client.producer.engine import ProducerEngine
from tallystick.client.settings.config import ProducerConfig
from tallystick.protocol.messages.data.produce import ProduceRequest, ProduceResponse


class LosingCluster(Cluster):
    """Takes the answers to Produce, and gives none of them on before `lose`."""

    losing = False

    def submit(self, node_id: int, request: object, **how: Any) -> "asyncio.Future[object]":
        answered = super().submit(node_id, request, **how)
        if not (self.losing and isinstance(request, ProduceRequest)):
            return answered
        self.answers.append(answered)
        self.lost.append(asyncio.get_running_loop().create_future())
        if len(self.lost) == self.count:
            self.sent.set()
        return self.lost[-1]

    def take(self, count: int) -> None:
        """From now on; `sent` is set when so many have been asked for."""
        self.losing, self.count = True, count
        self.sent = asyncio.Event()
        self.answers: list[asyncio.Future[object]] = []
        self.lost: list[asyncio.Future[object]] = []

    def lose(self) -> None:
        """The connection ends without them."""
        self.losing = False
        for future in self.lost:
            future.set_exception(ConnectionLost("test", "Produce", "cut"))


def test_batches_whose_answers_were_lost_are_in_the_log_once_after_a_clean_restart(cluster: Any) -> None:
    """[CLI-23] Apache Kafka knows only the last of them again: it refuses the others as out of order."""
    topic = cluster.topic()
    count = 5

    async def main() -> list[Delivery]:
        settings = {"linger.ms": 0, "batch.size": 1, "retry.backoff.ms": 20}
        config = ProducerConfig.parse({"bootstrap.servers": cluster.bootstrap, **settings})
        client = LosingCluster(config.client, in_flight_max=count)
        engine = ProducerEngine(client, config)
        await engine.wait_for_space(topic, client.start_deadline("max.block.ms", 60_000))
        await engine.accumulator.append(topic, b"first")
        client.take(count)
        deliveries: list[Any] = []
        while len(deliveries) < count:
            try:
                deliveries.append(engine.accumulator.append(topic, b"r%d" % len(deliveries)))
            except BufferFullOrUnknownTopic:
                await engine.wait_for_space(topic, client.start_deadline("max.block.ms", 60_000))
        await client.sent.wait()
        answers = await asyncio.gather(*client.answers)
        assert all(isinstance(a, ProduceResponse) and _code(a) == 0 for a in answers)
        cluster.stop()
        cluster.start()  # not in another thread: the broker ends with the thread that started it
        client.lose()
        await engine.flush(client.start_deadline("flush", 60_000))
        await engine.close(client.start_deadline("close", 5_000))
        await client.close()
        return deliveries

    deliveries = asyncio.run(main())
    assert [delivery.exception(0) for delivery in deliveries] == [None] * count
    assert _values(cluster, topic) == [b"first", *(b"r%d" % i for i in range(count))]


def _code(answer: ProduceResponse) -> int:
    return answer.responses[0].partition_responses[0].error_code


def _values(cluster: Any, topic: str) -> list[bytes | None]:
    """Everything in partition 0, by librdkafka."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "none"})
    try:
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=30)
        consumer.assign([TopicPartition(topic, 0, low)])
        values: list[bytes | None] = []
        while len(values) < high - low:
            message = consumer.poll(30)
            assert message is not None, values
            assert message.error() is None, message.error()
            values.append(message.value())
        return values
    finally:
        consumer.close()
