"""The producing engine against our broker: killed, cut off, refusing; read back by librdkafka."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from confluent_kafka import Consumer as RdConsumer
from confluent_kafka import Producer as RdProducer
from confluent_kafka import TopicPartition as RdTopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tools.servers.broker_process import find_free_port

from tallystick.client.errors import BrokerRefused, ClientError, Closed, TimedOut, TooLarge
from tallystick.client.net.cluster import Cluster
from tallystick.client.producer.batches.accumulator import BufferFullOrUnknownTopic
from tallystick.client.producer.batches.delivery import Delivery
from tallystick.client.producer.engine import ProducerEngine
from tallystick.client.settings.config import ProducerConfig
from tallystick.kernel.errors import Effect
from tallystick.testing import EmbeddedBroker

pytestmark = [pytest.mark.server, pytest.mark.broker(in_process=False)]


def create(bootstrap: str, topic: str, partitions: int = 1, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    settings = {name.replace("_", "."): value for name, value in config.items()}
    admin.create_topics([NewTopic(topic, partitions, 1, config=settings)])[topic].result(30)


Log = list[tuple[bytes | None, bytes | None]]


def read(bootstrap: str, topic: str, partitions: int = 1) -> dict[int, Log]:
    """All records of a topic as librdkafka reads them, by partition: (key, value)."""
    consumer = RdConsumer({"bootstrap.servers": bootstrap, "group.id": "g", "check.crcs": True})
    try:
        ends = {
            p: consumer.get_watermark_offsets(RdTopicPartition(topic, p), timeout=30)
            for p in range(partitions)
        }
        consumer.assign([RdTopicPartition(topic, p, ends[p][0]) for p in range(partitions)])
        found: dict[int, Log] = {p: [] for p in range(partitions)}
        while any(len(found[p]) < ends[p][1] - ends[p][0] for p in range(partitions)):
            message = consumer.poll(30)
            assert message is not None
            assert message.error() is None
            found[message.partition()].append((message.key(), message.value()))
        return found
    finally:
        consumer.close()


class Client:
    """An engine and what a facade adds to it."""

    def __init__(self, **settings: object) -> None:
        named = {name.replace("_", "."): value for name, value in settings.items()}
        self.config = ProducerConfig.parse({"bootstrap.servers": "", **named})
        in_flight_max = self.config.max_in_flight_requests_per_connection
        self.cluster = Cluster(self.config.client, in_flight_max=in_flight_max)
        self.engine = ProducerEngine(self.cluster, self.config)

    async def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        on_delivery: Callable[[Delivery], object] | None = None,
    ) -> Delivery:
        while True:
            try:
                return self.engine.accumulator.append(topic, value, key, on_delivery=on_delivery)
            except BufferFullOrUnknownTopic:
                deadline = self.cluster.start_deadline("max.block.ms", self.config.max_block_ms)
                await self.engine.wait_for_space(topic, deadline)

    async def flush(self) -> None:
        await self.engine.flush(self.cluster.start_deadline("flush", 60_000))


@asynccontextmanager
async def client(bootstrap: str, **settings: object) -> AsyncIterator[Client]:
    made = Client(bootstrap_servers=bootstrap, **settings)
    try:
        yield made
    finally:
        await made.engine.close(made.cluster.start_deadline("close", 5_000))
        await made.cluster.close()


@pytest.mark.gate(2)
@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_librdkafka_reads_what_was_sent(broker: EmbeddedBroker, codec: str) -> None:
    topic = f"codec-{codec}"
    create(broker.bootstrap_servers, topic)

    async def main() -> None:
        async with client(broker.bootstrap_servers, compression_type=codec) as c:
            sent = [await c.send(topic, b"value %d" % i * (i % 9), b"%d" % i) for i in range(3000)]
            await c.flush()
            assert [delivery.result(0).offset for delivery in sent] == list(range(3000))
            assert (await sent[7]).partition == 0

    asyncio.run(main())
    assert read(broker.bootstrap_servers, topic)[0] == [
        (b"%d" % i, b"value %d" % i * (i % 9)) for i in range(3000)
    ]


@pytest.mark.parametrize(("acks", "known"), [("all", True), ("1", True), ("0", False)])
def test_acks_are_those_asked_for(broker: EmbeddedBroker, acks: str, known: bool) -> None:
    topic = f"acks-{acks}"
    create(broker.bootstrap_servers, topic)

    async def main() -> None:
        async with client(broker.bootstrap_servers, acks=acks) as c:
            delivery = await c.send(topic, b"v")
            assert ((await delivery).offset is not None) is known

    asyncio.run(main())
    assert read(broker.bootstrap_servers, topic)[0] == [(None, b"v")]


def test_keys_go_where_librdkafka_sends_them(broker: EmbeddedBroker) -> None:
    create(broker.bootstrap_servers, "keyed", 7)
    keys = [random.Random(i).randbytes(i % 23) for i in range(400)]
    theirs: dict[bytes, int] = {}
    producer = RdProducer({"bootstrap.servers": broker.bootstrap_servers, "partitioner": "murmur2_random"})
    for key in keys:
        producer.produce(
            "keyed", b"", key, on_delivery=lambda _, m: theirs.__setitem__(m.key() or b"", m.partition())
        )
    producer.flush(30)

    async def main() -> dict[bytes, int]:
        async with client(broker.bootstrap_servers) as c:
            sent = {key: await c.send("keyed", b"", key) for key in keys}
            await c.flush()
            return {key: delivery.result(0).partition for key, delivery in sent.items()}

    ours = asyncio.run(main())
    del theirs[b""], ours[b""]  # librdkafka takes an empty key for none
    assert ours == theirs


def test_callbacks_come_in_order_and_a_broken_one_stops_nothing(
    broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    create(broker.bootstrap_servers, "callbacks")
    told: list[int | None] = []

    def note(delivery: Delivery) -> None:
        told.append(delivery.result(0).offset)
        if len(told) == 3:
            raise ValueError("the callback's own mistake")

    async def main() -> None:
        async with client(broker.bootstrap_servers) as c:
            for _ in range(100):
                await c.send("callbacks", b"v", on_delivery=note)
            await c.flush()

    asyncio.run(main())
    assert told == list(range(100))
    assert "the callback's own mistake" in caplog.text


def check_log(log: list[bytes | None], sent: list[tuple[bytes, Delivery]]) -> None:
    """Every acknowledged record is there once, at its offset, and they are in the order they were sent."""
    acknowledged = [(value, delivery.result(0)) for value, delivery in sent if delivery.exception(0) is None]
    assert not [value for value, times in Counter(log).items() if times > 1]
    for value, metadata in acknowledged:
        if metadata.offset is not None:
            assert log[metadata.offset] == value
    places = {value: place for place, value in enumerate(log)}
    assert [places[value] for value, _ in acknowledged] == sorted(places[value] for value, _ in acknowledged)


async def _load(c: Client, topic: str, seconds: float, sent: list[tuple[bytes, Delivery]]) -> None:
    """Send for a while, up to 1000 records ahead of their acknowledgements."""
    end = asyncio.get_running_loop().time() + seconds
    while asyncio.get_running_loop().time() < end:
        for _ in range(50):
            value = b"%d" % len(sent)
            sent.append((value, await c.send(topic, value)))
        if len(sent) > 1000:
            await sent[-1000][1]


def test_a_broker_killed_twice_under_load_has_every_acknowledged_record_once(tmp_path: object) -> None:
    """[CLI-21]"""
    with EmbeddedBroker(str(tmp_path)) as broker:
        create(broker.bootstrap_servers, "killed")
        sent: list[tuple[bytes, Delivery]] = []

        async def main() -> None:
            async with client(broker.bootstrap_servers, linger_ms=1, batch_size=2000) as c:
                for _ in range(2):
                    await _load(c, "killed", 0.3, sent)
                    loading = asyncio.create_task(_load(c, "killed", 0.5, sent))
                    await asyncio.to_thread(broker.kill)
                    await asyncio.to_thread(broker.start)
                    await loading
                await c.flush()

        asyncio.run(main())
        log = [value for _, value in read(broker.bootstrap_servers, "killed")[0]]
        assert len(sent) > 500
        assert all(delivery.exception(0) is None for _, delivery in sent)
        check_log(log, sent)
        assert log == [value for value, _ in sent]


class Proxy:
    """Between client and broker: cuts connections at moments drawn from a seed, either way.

    The broker advertises the proxy's address. What was forwarded to the broker before a cut, it reads.
    """

    def __init__(self, upstream: tuple[str, int], seed: int) -> None:
        self.upstream, self.random = upstream, random.Random(seed)
        self.left = 0
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()

    async def listen(self, port: int) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection(*self.upstream)
        ways = [
            asyncio.create_task(self._pass(reader, up_writer)),
            asyncio.create_task(self._pass(up_reader, writer)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            writer.transport.abort()
            up_writer.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while chunk := await reader.read(1 << 16):
                if self.left and self.random.random() < 0.05:
                    self.left -= 1
                    writer.write(chunk[: self.random.randrange(len(chunk))])
                    await writer.drain()
                    return
                writer.write(chunk)
                await writer.drain()
        except OSError:
            return

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


@pytest.mark.gate(1)
@pytest.mark.parametrize("seed", range(3))
def test_cut_connections_lose_nothing_and_repeat_nothing(seed: int) -> None:
    """[CLI-21] [CLI-22] Requests cut off and answers lost, five under way: each record once and in order."""
    real, port = find_free_port(), find_free_port()
    listeners = {
        "listeners": f"PLAINTEXT://127.0.0.1:{real}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
    }
    sent: list[tuple[bytes, Delivery]] = []

    async def main() -> None:
        proxy = Proxy(("127.0.0.1", real), seed)
        await proxy.listen(port)
        address = f"127.0.0.1:{port}"
        await asyncio.to_thread(create, address, "cut")
        async with client(
            address, linger_ms=0, batch_size=500, retry_backoff_ms=5, reconnect_backoff_ms=5
        ) as c:
            await (await c.send("cut", b"first"))
            proxy.left = 20
            while proxy.left:
                await _load(c, "cut", 0.1, sent)
            await c.flush()
        log = [value for _, value in (await asyncio.to_thread(read, address, "cut"))[0]]
        assert log == [b"first", *(value for value, _ in sent)]
        await proxy.close()

    with EmbeddedBroker(config=listeners):
        asyncio.run(main())
    assert all(delivery.exception(0) is None for _, delivery in sent)


def test_batches_above_the_topics_limit_are_divided_and_records_above_it_refused(
    broker: EmbeddedBroker,
) -> None:
    create(broker.bootstrap_servers, "small", max_message_bytes="2000")

    async def main() -> None:
        async with client(broker.bootstrap_servers, batch_size=100_000, linger_ms=50) as c:
            sent = [await c.send("small", b"%d" % i * 100) for i in range(100)]
            huge = await c.send("small", b"x" * 3000)
            after = [await c.send("small", b"%d" % i) for i in range(10)]
            await c.flush()
            assert [d.result(0).offset for d in sent] == list(range(100))
            assert isinstance(huge.exception(0), TooLarge)
            assert [d.result(0).offset for d in after] == list(range(100, 110))
            assert c.engine.metrics()["batch-split-total"] > 5

    asyncio.run(main())
    assert [value for _, value in read(broker.bootstrap_servers, "small")[0]] == [
        *(b"%d" % i * 100 for i in range(100)),
        *(b"%d" % i for i in range(10)),
    ]


def test_a_record_above_max_request_size_is_refused_at_once(broker: EmbeddedBroker) -> None:
    create(broker.bootstrap_servers, "limit")

    async def main() -> None:
        async with client(broker.bootstrap_servers, max_request_size=5000) as c:
            with pytest.raises(TooLarge) as caught:
                await c.send("limit", b"x" * 5000)
            assert caught.value.effect is Effect.NONE

    asyncio.run(main())


def test_a_topic_that_is_not_there_is_asked_for_until_max_block_ms() -> None:
    async def main(bootstrap: str) -> None:
        async with client(bootstrap, max_block_ms=1_500) as c:
            with pytest.raises(TimedOut, match="UNKNOWN_TOPIC_OR_PARTITION") as caught:
                await c.send("nowhere", b"v")
            assert caught.value.limit == "max.block.ms"

    with EmbeddedBroker(auto_create_topics_enable=False) as broker:
        asyncio.run(main(broker.bootstrap_servers))


def test_without_a_broker_every_record_fails_within_delivery_timeout_ms() -> None:
    """[CLI-27] [CLI-2] And closing does not wait for it."""

    async def main(broker: EmbeddedBroker) -> None:
        async with client(
            broker.bootstrap_servers, delivery_timeout_ms=2_000, request_timeout_ms=500, linger_ms=0
        ) as c:
            await (await c.send("gone", b"v"))
            await asyncio.to_thread(broker.kill)
            delivery = await c.send("gone", b"v")
            with pytest.raises(TimedOut) as caught:
                await delivery
            assert caught.value.limit == "delivery.timeout.ms"
            await c.send("gone", b"v")
            with pytest.raises(TimedOut, match="flush"):
                await c.engine.flush(c.cluster.start_deadline("timeout_s", 1))
            last = await c.send("gone", b"v")
            await c.engine.close(c.cluster.start_deadline("close", 10))
            assert isinstance(last.exception(0), Closed)
            with pytest.raises(Closed):
                await c.send("gone", b"v")

    with EmbeddedBroker() as broker:
        create(broker.bootstrap_servers, "gone")
        asyncio.run(main(broker))


def test_full_memory_makes_a_sender_wait_and_no_longer_than_max_block_ms(broker: EmbeddedBroker) -> None:
    create(broker.bootstrap_servers, "full")

    async def main() -> None:
        async with client(broker.bootstrap_servers, buffer_memory=50_000, batch_size=5000) as c:
            sent = [await c.send("full", b"x" * 100) for _ in range(5000)]
            await c.flush()
            assert [d.result(0).offset for d in sent] == list(range(5000))
            assert c.engine.metrics()["buffer-exhausted-total"] > 0
            assert c.engine.metrics()["buffer-available-bytes"] == 50_000

    asyncio.run(main())


def test_a_topic_deleted_and_made_again_meanwhile_goes_on(broker: EmbeddedBroker) -> None:
    """KIP-360: the broker lost count of the producer; it begins again under a new epoch."""
    create(broker.bootstrap_servers, "again")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})

    async def main() -> None:
        async with client(broker.bootstrap_servers, linger_ms=0, retry_backoff_ms=5) as c:
            for _ in range(3):
                await (await c.send("again", b"before"))
            await asyncio.to_thread(admin.delete_topics(["again"])["again"].result, 30)
            await asyncio.to_thread(create, broker.bootstrap_servers, "again")
            sent = [await c.send("again", b"%d" % i) for i in range(10)]
            await c.flush()
            assert [d.result(0).offset for d in sent] == list(range(10))

    asyncio.run(main())


def test_refusals_of_the_broker_are_told_with_its_words(broker: EmbeddedBroker) -> None:
    create(broker.bootstrap_servers, "compacted", cleanup_policy="compact")

    async def main() -> None:
        async with client(broker.bootstrap_servers) as c:
            keyless = await c.send("compacted", b"v")
            await c.flush()
            error = keyless.exception(0)
            assert isinstance(error, BrokerRefused)
            assert error.effect is Effect.NONE
            assert isinstance(error, ClientError)
            keyed = await c.send("compacted", b"v", b"k")
            await c.flush()
            assert keyed.result(0).offset == 0

    asyncio.run(main())
