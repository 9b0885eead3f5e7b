"""The consumer on a broker of ours; records and transactions are written by confluent-kafka."""

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as TheirPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from tallystick.client.consumer.decode import ConsumerRecord
from tallystick.client.consumer.engine import ConsumerEngine
from tallystick.client.consumer.rebalance import RebalanceListener
from tallystick.client.errors import (
    BrokerRefused,
    Closed,
    CommitRefused,
    IllegalState,
    PositionUnknown,
    TimedOut,
    WokenUp,
)
from tallystick.client.offsets import OffsetAndMetadata
from tallystick.client.settings.config import ConsumerConfig
from tallystick.kernel.ids import TopicPartition
from tallystick.testing import EmbeddedBroker

pytestmark = pytest.mark.server

LIMIT_S = 60


class Cluster:
    """A broker, and topics with records."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        self.broker = broker
        self.bootstrap = broker.bootstrap_servers
        self._admin = AdminClient({"bootstrap.servers": self.bootstrap})
        self._topics = 0

    def topic(self, partitions: int = 1, **config: str) -> str:
        self._topics += 1
        name = f"topic-{self._topics}"
        dotted = {key.replace("_", "."): value for key, value in config.items()}
        self._admin.create_topics([NewTopic(name, partitions, 1, config=dotted)])[name].result(30)
        return name

    def grow(self, topic: str, partitions: int) -> None:
        self._admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(30)

    def write(self, topic: str, *values: bytes, partition: int = 0, **more: Any) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 0})
        for value in values:
            producer.produce(topic, value, partition=partition, **more)
        assert producer.flush(30) == 0

    def transactional(self, name: str) -> Producer:
        producer = Producer({"bootstrap.servers": self.bootstrap, "transactional.id": name})
        producer.init_transactions(30)
        return producer

    @asynccontextmanager
    async def consumer(self, **config: Any) -> AsyncIterator[ConsumerEngine]:
        dotted = {key.replace("_", "."): value for key, value in config.items()}
        base = {"bootstrap.servers": self.bootstrap, "auto.offset.reset": "earliest"}
        consumer = ConsumerEngine(ConsumerConfig.parse(base | dotted))
        try:
            yield consumer
        finally:
            await consumer.close()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with EmbeddedBroker(group_min_session_timeout_ms=500) as broker:
        yield Cluster(broker)


def run(test: Coroutine[Any, Any, None]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(LIMIT_S):
            await test

    asyncio.run(limited())


async def read(consumer: ConsumerEngine, count: int) -> list[ConsumerRecord]:
    records: list[ConsumerRecord] = []
    async with asyncio.timeout(20):
        while len(records) < count:
            records += await consumer.poll(1_000)
    return records


def values(records: list[ConsumerRecord]) -> list[bytes | None]:
    return [record.value for record in records]


async def until(consumers: list[ConsumerEngine], condition: Callable[[], bool]) -> list[ConsumerRecord]:
    """Poll them all, in turn, until the condition holds."""
    records: list[ConsumerRecord] = []
    async with asyncio.timeout(30):
        while not condition():
            for polled in await asyncio.gather(*(consumer.poll(50) for consumer in consumers)):
                records += polled
    return records


class Told(RebalanceListener):
    """A listener that writes down what it was told."""

    def __init__(self, on_revoked: Callable[[], Awaitable[None]] | None = None) -> None:
        self.calls: list[tuple[str, frozenset[TopicPartition]]] = []
        self._on_revoked = on_revoked

    async def on_partitions_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        self.calls.append(("assigned", partitions))

    async def on_partitions_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        if self._on_revoked is not None:
            await self._on_revoked()
        self.calls.append(("revoked", partitions))

    async def on_partitions_lost(self, partitions: frozenset[TopicPartition]) -> None:
        self.calls.append(("lost", partitions))


# ------------------------------------------------------------------------------ reading


def test_records_come_back_as_they_were_written(cluster: Cluster) -> None:
    topic = cluster.topic()
    cluster.write(topic, b"plain", b"", None, key=b"k", timestamp=1_700_000_000_123)  # type: ignore[arg-type]
    cluster.write(topic, b"headed", headers=[("a", b"1"), ("a", None)])

    async def test() -> None:
        at = TopicPartition(topic, 0)
        async with cluster.consumer() as consumer:
            consumer.assign([at])
            records = await read(consumer, 4)
            assert values(records) == [b"plain", b"", None, b"headed"]
            assert [record.offset for record in records] == [0, 1, 2, 3]
            assert records[0].key == b"k"
            assert records[0].timestamp_ms == 1_700_000_000_123
            assert records[3].headers == (("a", b"1"), ("a", None))
            assert records[3].leader_epoch == 0
            assert await consumer.positions.position(at) == 4

    run(test())


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_every_codec_is_read(cluster: Cluster, codec: str) -> None:
    topic = cluster.topic()
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "compression.type": codec, "linger.ms": 50})
    sent = [b"%d" % i * 30 for i in range(2_000)]
    for value in sent:
        producer.produce(topic, value)
    assert producer.flush(30) == 0

    async def test() -> None:
        async with cluster.consumer() as consumer:
            consumer.assign([TopicPartition(topic, 0)])
            assert values(await read(consumer, len(sent))) == sent

    run(test())


@pytest.mark.gate(1)
def test_many_partitions_are_read_in_a_session_of_small_answers(cluster: Cluster) -> None:
    """Answers of 4 kB: partitions come and go in the session."""
    topic = cluster.topic(40)
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for i in range(4_000):
        producer.produce(topic, b"%d" % i, partition=i % 40)
    assert producer.flush(30) == 0

    async def test() -> None:
        async with cluster.consumer(fetch_max_bytes=4096, max_partition_fetch_bytes=512) as consumer:
            consumer.assign([TopicPartition(topic, p) for p in range(40)])
            records = await read(consumer, 4_000)
            by_partition: dict[int, list[int]] = {}
            for record in records:
                by_partition.setdefault(record.partition, []).append(record.offset)
            assert by_partition == {p: list(range(100)) for p in range(40)}

    run(test())


@pytest.mark.gate(1)
def test_seek_pause_and_the_offsets_of_a_log(cluster: Cluster) -> None:
    topic = cluster.topic(2)
    for i in range(10):
        cluster.write(topic, b"%d" % i, timestamp=1_000_000 + i)
    cluster.write(topic, b"other", partition=1)
    a, b = TopicPartition(topic, 0), TopicPartition(topic, 1)

    async def test() -> None:
        async with cluster.consumer() as consumer:
            consumer.assign([a, b])
            assert await consumer.log_offsets.beginning_offsets([a, b]) == {a: 0, b: 0}
            assert await consumer.log_offsets.end_offsets([a, b]) == {a: 10, b: 1}
            found = await consumer.log_offsets.offsets_for_times({a: 1_000_004, b: 2**62})
            assert found[b] is None
            assert found[a] is not None
            assert (found[a].offset, found[a].timestamp_ms) == (4, 1_000_004)
            consumer.positions.pause([b])
            consumer.positions.seek(a, 7)
            assert values(await read(consumer, 3)) == [b"7", b"8", b"9"]
            assert await consumer.poll(100) == []
            consumer.positions.seek_to_beginning([a])
            assert values(await read(consumer, 10)) == [b"%d" % i for i in range(10)]
            consumer.positions.resume([b])
            assert values(await read(consumer, 1)) == [b"other"]
            consumer.positions.seek_to_end()
            assert await consumer.positions.position(a) == 10
            cluster.write(topic, b"late")
            assert values(await read(consumer, 1)) == [b"late"]

    run(test())


def test_poll_returns_as_many_as_it_is_told(cluster: Cluster) -> None:
    topic = cluster.topic()
    cluster.write(topic, *(b"%d" % i for i in range(10)))

    async def test() -> None:
        async with cluster.consumer(max_poll_records=4) as consumer:
            consumer.assign([TopicPartition(topic, 0)])
            assert [len(await read(consumer, 1)) for _ in range(3)] == [4, 4, 2]
            consumer.positions.seek_to_beginning()
            assert len(await consumer.poll(5_000, 1)) == 1

    run(test())


def test_a_position_outside_the_log(cluster: Cluster) -> None:
    topic = cluster.topic()
    cluster.write(topic, b"a", b"b")
    at = TopicPartition(topic, 0)

    async def test() -> None:
        async with cluster.consumer() as consumer:
            consumer.assign([at])
            consumer.positions.seek(at, 1_000)
            assert values(await read(consumer, 2)) == [b"a", b"b"]
        async with cluster.consumer(auto_offset_reset="none") as consumer:
            consumer.assign([at])
            with pytest.raises(PositionUnknown, match="no offset is committed"):
                await consumer.poll(5_000)
            consumer.positions.seek(at, 1_000)
            with pytest.raises(PositionUnknown, match="offset 1000 is not in the log"):
                await consumer.poll(5_000)
            consumer.positions.seek(at, 1)
            assert values(await read(consumer, 1)) == [b"b"]

    run(test())


# ---------------------------------------------------------------------------- isolation


@pytest.mark.gate(1)
def test_committed_records_alone_are_read_and_an_open_transaction_holds_back_what_follows(
    cluster: Cluster,
) -> None:
    """[CLI-33]"""
    topic = cluster.topic()
    at = TopicPartition(topic, 0)
    first, second = cluster.transactional("first"), cluster.transactional("second")
    first.begin_transaction()
    first.produce(topic, b"aborted 1")
    first.flush()
    second.begin_transaction()
    second.produce(topic, b"committed 1")
    second.flush()
    first.produce(topic, b"aborted 2")
    first.flush()
    second.commit_transaction(30)
    first.abort_transaction(30)
    cluster.write(topic, b"plain")
    first.begin_transaction()
    first.produce(topic, b"committed 2")
    first.commit_transaction(30)
    second.begin_transaction()
    second.produce(topic, b"open")
    second.flush()
    cluster.write(topic, b"behind")

    async def test() -> None:
        async with cluster.consumer(isolation_level="read_committed") as consumer:
            consumer.assign([at])
            assert values(await read(consumer, 3)) == [b"committed 1", b"plain", b"committed 2"]
            assert await consumer.poll(300) == []
            (stable,) = (await consumer.log_offsets.end_offsets([at])).values()
            assert await consumer.positions.position(at) == stable
            await asyncio.to_thread(second.abort_transaction, 30)
            assert values(await read(consumer, 1)) == [b"behind"]
        async with cluster.consumer() as everything:
            everything.assign([at])
            assert len(await read(everything, 7)) == 7

    run(test())


@pytest.mark.gate(1)
def test_offsets_that_an_open_transaction_may_change_are_waited_for(cluster: Cluster) -> None:
    """[CLI-36] KIP-447: a reader of committed records starts behind what the transaction commits."""
    topic = cluster.topic()
    cluster.write(topic, *(b"%d" % i for i in range(6)))
    at = TopicPartition(topic, 0)
    producer = cluster.transactional("offsets")

    async def test() -> None:
        async with cluster.consumer(group_id="stable", isolation_level="read_committed") as consumer:
            consumer.assign([at])
            assert len(await read(consumer, 6)) == 6
            await consumer.commit({at: 2})

            def send() -> None:
                producer.begin_transaction()
                member = _their_metadata(cluster, "stable")
                producer.send_offsets_to_transaction([TheirPartition(topic, 0, 4)], member, 30)

            await asyncio.to_thread(send)
            with pytest.raises(TimedOut, match="UNSTABLE_OFFSET_COMMIT"):
                await consumer.committed([at], timeout_ms=1_500)
            async with cluster.consumer(group_id="stable") as unstable:
                assert await unstable.committed([at]) == {at: OffsetAndMetadata(2)}
            async with cluster.consumer(group_id="stable", isolation_level="read_committed") as other:
                other.assign([at])
                polling = asyncio.create_task(read(other, 2))
                done, _ = await asyncio.wait([polling], timeout=0.5)
                assert not done
                await asyncio.to_thread(producer.commit_transaction, 30)
                assert values(await polling) == [b"4", b"5"]

    run(test())


def _their_metadata(cluster: Cluster, group: str) -> Any:
    from confluent_kafka import Consumer

    return Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group}).consumer_group_metadata()


# ------------------------------------------------------------------------------- groups


def test_a_group_goes_on_where_it_stopped(cluster: Cluster) -> None:
    topic = cluster.topic()
    cluster.write(topic, *(b"%d" % i for i in range(10)))

    async def test() -> None:
        async with cluster.consumer(group_id="resumes", max_poll_records=4) as consumer:
            consumer.subscribe([topic])
            assert len(await read(consumer, 1)) == 4
        async with cluster.consumer(group_id="resumes", enable_auto_commit=False) as consumer:
            consumer.subscribe([topic])
            assert values(await read(consumer, 6))[0] == b"4", "closing commits"
            at = TopicPartition(topic, 0)
            await consumer.commit({at: OffsetAndMetadata(5, 0, "a note")})
            assert await consumer.committed([at]) == {at: OffsetAndMetadata(5, 0, "a note")}
            await consumer.commit_soon()
            assert (await consumer.committed([at]))[at] == OffsetAndMetadata(10, 0)

    run(test())


@pytest.mark.gate(1)
@pytest.mark.parametrize(
    "strategy", ["range", "roundrobin", "sticky", "cooperative-sticky", "range,cooperative-sticky"]
)
def test_members_come_and_go_and_every_record_is_read(cluster: Cluster, strategy: str) -> None:
    """[CLI-30] Three members, one after the other; the first leaves; nothing is left unread or read twice."""
    topic = cluster.topic(6)
    group = f"group-{strategy}"
    settings = {
        "group_id": group,
        "partition_assignment_strategy": strategy,
        "heartbeat_interval_ms": 50,
        "session_timeout_ms": 6_000,
    }
    for partition in range(6):
        cluster.write(topic, *(b"%d-%d" % (partition, i) for i in range(5)), partition=partition)

    async def test() -> None:
        async with (
            cluster.consumer(**settings) as first,
            cluster.consumer(**settings) as second,
            cluster.consumer(**settings) as third,
        ):
            heard = Told()
            first.subscribe([topic], heard)
            records = await until([first], lambda: len(first.assignment) == 6)
            records += await read(first, 30 - len(records))
            second.subscribe([topic])
            records += await until([first, second], lambda: len(second.assignment) == 3)
            third.subscribe([topic])
            three = [first, second, third]
            records += await until(three, lambda: [len(each.assignment) for each in three] == [2, 2, 2])
            assert frozenset().union(*(each.assignment for each in three)) == {
                TopicPartition(topic, p) for p in range(6)
            }
            if strategy == "cooperative-sticky":
                assert [kind for kind, told in heard.calls if told] == ["assigned", "revoked", "revoked"]
                revoked = [told for kind, told in heard.calls if kind == "revoked"]
                assert [len(told) for told in revoked] == [3, 1]
            await first.close()
            assert heard.calls[-1][0] == "revoked"
            records += await until(three[1:], lambda: sum(len(c.assignment) for c in three[1:]) == 6)
            for partition in range(6):
                cluster.write(topic, b"last", partition=partition)
            seen = Counter((record.partition, record.offset) for record in records)
            records = await until(three[1:], lambda: True)
            while sum(seen.values()) < 36:
                for record in await until_some(three[1:]):
                    seen[record.partition, record.offset] += 1
            assert seen == Counter({(p, o): 1 for p in range(6) for o in range(6)})

    run(test())


async def until_some(consumers: list[ConsumerEngine]) -> list[ConsumerRecord]:
    records: list[ConsumerRecord] = []
    async with asyncio.timeout(20):
        while not records:
            for polled in await asyncio.gather(*(consumer.poll(50) for consumer in consumers)):
                records += polled
    return records


def test_a_member_that_does_not_poll_leaves_and_hears_that_it_lost_its_partitions(cluster: Cluster) -> None:
    """KIP-62: `max.poll.interval.ms`."""
    topic = cluster.topic()
    settings = {
        "group_id": "slow",
        "max_poll_interval_ms": 700,
        "heartbeat_interval_ms": 50,
        "session_timeout_ms": 6_000,
    }

    async def test() -> None:
        async with cluster.consumer(**settings) as slow, cluster.consumer(**settings) as other:
            heard = Told()
            slow.subscribe([topic], heard)
            await until([slow], lambda: bool(slow.assignment))
            other.subscribe([topic])
            await until([other], lambda: bool(other.assignment))
            with pytest.raises(CommitRefused):
                await slow.commit({TopicPartition(topic, 0): 0})
            await slow.poll(50)
            assert heard.calls[1:] == [("lost", frozenset({TopicPartition(topic, 0)}))]
            await until([slow, other], lambda: len(slow.assignment | other.assignment) == 1)

    run(test())


@pytest.mark.gate(1)
def test_a_static_member_that_comes_back_keeps_its_partitions(cluster: Cluster) -> None:
    """KIP-345: nobody else hears of it."""
    topic = cluster.topic(2)
    settings = {"group_id": "static", "heartbeat_interval_ms": 50, "session_timeout_ms": 6_000}

    async def test() -> None:
        async with cluster.consumer(**settings, group_instance_id="stays") as stays:
            heard = Told()
            async with cluster.consumer(**settings, group_instance_id="returns") as returns:
                stays.subscribe([topic], heard)
                returns.subscribe([topic])
                both = [stays, returns]
                await until(both, lambda: [len(each.assignment) for each in both] == [1, 1])
                had, calls = returns.assignment, len(heard.calls)
            async with cluster.consumer(**settings, group_instance_id="returns") as returned:
                returned.subscribe([topic])
                await until([stays, returned], lambda: bool(returned.assignment))
                assert returned.assignment == had
                await stays.poll(300)
                assert len(heard.calls) == calls
                async with cluster.consumer(**settings, group_instance_id="returns") as usurper:
                    usurper.subscribe([topic])
                    await until([stays, usurper], lambda: bool(usurper.assignment))
                    with pytest.raises(BrokerRefused, match="FENCED_INSTANCE_ID"):
                        await until([returned], lambda: False)

    run(test())


def test_a_pattern_and_new_partitions_are_followed(cluster: Cluster) -> None:
    stem = "pattern"
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    names = [f"{stem}-a", f"{stem}-b", f"x-{stem}"]
    for future in admin.create_topics([NewTopic(name, 1, 1) for name in names]).values():
        future.result(30)
    settings = {"group_id": stem, "heartbeat_interval_ms": 50, "metadata_max_age_ms": 200}

    async def test() -> None:
        async with cluster.consumer(**settings) as consumer:
            consumer.subscribe(re.compile(stem + "-.*"))
            await until([consumer], lambda: len(consumer.assignment) == 2)
            assert consumer.subscription == {f"{stem}-a", f"{stem}-b"}
            cluster.grow(f"{stem}-a", 3)
            await until([consumer], lambda: len(consumer.assignment) == 4)

    run(test())


def test_callbacks_may_commit_and_see(cluster: Cluster) -> None:
    """[CLI-32] Revoked partitions are still this member's."""
    topic = cluster.topic()
    cluster.write(topic, b"a", b"b")
    at = TopicPartition(topic, 0)

    async def test() -> None:
        async with cluster.consumer(group_id="callbacks", enable_auto_commit=False) as consumer:
            heard = Told(on_revoked=consumer.commit)
            consumer.subscribe([topic], heard)
            await read(consumer, 2)
            await consumer.unsubscribe()
            assert heard.calls == [("assigned", frozenset({at})), ("revoked", frozenset({at}))]
            assert consumer.assignment == frozenset()
            assert (await consumer.committed([at]))[at] == OffsetAndMetadata(2, 0)
            consumer.subscribe([topic], heard)
            cluster.write(topic, b"c")
            await read(consumer, 1)
            await consumer.close()
        async with cluster.consumer(group_id="callbacks") as consumer:
            assert (await consumer.committed([at]))[at] == OffsetAndMetadata(3, 0)

    run(test())


def test_a_callback_that_fails_is_raised_once_and_holds_up_no_member(cluster: Cluster) -> None:
    topic = cluster.topic()

    async def fail() -> None:
        raise RuntimeError("the callback's own")

    async def test() -> None:
        settings = {"group_id": "failing", "heartbeat_interval_ms": 50}
        async with cluster.consumer(**settings) as consumer, cluster.consumer(**settings) as other:
            consumer.subscribe([topic], Told(on_revoked=fail))
            await until([consumer], lambda: bool(consumer.assignment))
            other.subscribe([topic])
            with pytest.raises(RuntimeError, match="the callback's own"):
                await until([consumer, other], lambda: False)
            await until([consumer, other], lambda: len(consumer.assignment | other.assignment) == 1)
            consumer.subscribe([topic])

    run(test())


# ------------------------------------------------------------------------------ mishaps


@pytest.mark.gate(1)
def test_a_broker_that_restarts_is_found_again(cluster: Cluster) -> None:
    with EmbeddedBroker() as broker:
        own = Cluster(broker)
        topic = own.topic()
        own.write(topic, b"before")

        async def test() -> None:
            async with own.consumer(group_id="g", heartbeat_interval_ms=50) as consumer:
                consumer.subscribe([topic])
                assert values(await read(consumer, 1)) == [b"before"]
                await consumer.commit()
                await asyncio.to_thread(broker.kill)
                assert await consumer.poll(300) == []
                await asyncio.to_thread(broker.start)
                await asyncio.to_thread(own.write, topic, b"after")
                assert values(await read(consumer, 1)) == [b"after"]
                await consumer.commit()

        run(test())


@pytest.mark.gate(1)
def test_nothing_hangs_without_a_broker(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        with EmbeddedBroker() as broker:
            own = Cluster(broker)
            topic = own.topic()
            own.write(topic, b"a")
            base = {"bootstrap.servers": own.bootstrap, "group.id": "g", "auto.offset.reset": "earliest"}
            consumer = ConsumerEngine(ConsumerConfig.parse(base))
            consumer.subscribe([topic])
            await read(consumer, 1)
        assert await consumer.poll(300) == []
        with pytest.raises(TimedOut):
            await consumer.commit(timeout_ms=300)
        await consumer.close(timeout_ms=1_000)
        # The last commit has half of the time; how long leaving takes depends on how connecting fails.
        assert [text for text in caplog.messages if text.startswith("positions are given up uncommitted")]
        with pytest.raises(Closed):
            await consumer.poll(0)
        await consumer.close()

    run(test())


def test_wakeup_ends_a_wait(cluster: Cluster) -> None:
    topic = cluster.topic()

    async def test() -> None:
        async with cluster.consumer() as consumer:
            consumer.assign([TopicPartition(topic, 0)])
            polling = asyncio.create_task(consumer.poll(30_000))
            await consumer.poll(50)
            consumer.wakeup()
            with pytest.raises(WokenUp):
                await polling
            assert await consumer.poll(0) == []

    run(test())


def test_close_ends_a_wait(cluster: Cluster) -> None:
    topic = cluster.topic()

    async def test() -> None:
        async with cluster.consumer() as consumer:
            consumer.assign([TopicPartition(topic, 0)])
            polling = asyncio.create_task(consumer.poll(30_000))
            await asyncio.sleep(0)
            await consumer.close()
            with pytest.raises(Closed):
                await polling

    run(test())


def test_a_poll_that_is_cancelled_loses_nothing(cluster: Cluster) -> None:
    topic = cluster.topic()

    async def test() -> None:
        async with cluster.consumer(group_id="cancelled") as consumer:
            consumer.subscribe([topic])
            await until([consumer], lambda: bool(consumer.assignment))
            records: list[ConsumerRecord] = []
            for i in range(30):
                polling = asyncio.create_task(consumer.poll(30_000))
                await asyncio.to_thread(cluster.write, topic, b"%d" % i)
                polling.cancel()
                await asyncio.wait([polling])
                if not polling.cancelled():
                    records += polling.result()
            records += await read(consumer, 30 - len(records))
            assert values(records) == [b"%d" % i for i in range(30)]

    run(test())


@pytest.mark.gate(1)
def test_a_topic_that_is_not_there_is_waited_for(cluster: Cluster) -> None:
    """Without asking for metadata in a loop."""

    async def test() -> None:
        async with cluster.consumer(allow_auto_create_topics="false") as consumer:
            consumer.assign([TopicPartition("nowhere", 0)])
            consumer.positions.seek(TopicPartition("nowhere", 0), 0)
            assert await consumer.poll(1_000) == []
            assert consumer.metrics()["request-total"] < 40
            consumer.assign([TopicPartition("no such name!", 0)])
            consumer.positions.seek(TopicPartition("no such name!", 0), 0)
            with pytest.raises(BrokerRefused, match="INVALID_TOPIC_EXCEPTION"):
                await consumer.poll(5_000)

    run(test())


def test_misuse_is_said_at_once(cluster: Cluster) -> None:
    async def test() -> None:
        at = TopicPartition("t", 0)
        async with cluster.consumer() as consumer:
            with pytest.raises(IllegalState, match="nothing is subscribed or assigned"):
                await consumer.poll(0)
            with pytest.raises(IllegalState, match=r"needs group\.id"):
                consumer.subscribe(["t"])
            with pytest.raises(IllegalState, match="not assigned"):
                consumer.positions.seek(at, 0)
            consumer.assign([at])
            with pytest.raises(IllegalState, match="negative"):
                consumer.positions.seek(at, -1)
        async with cluster.consumer(group_id="misuse") as consumer:
            consumer.subscribe(["t"])
            with pytest.raises(IllegalState, match="unsubscribe first"):
                consumer.assign([at])

    run(test())
