"""What single pages ask of a cluster: on our broker, and on one that keeps no histories."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from tests.support.dual_world import new_name
from tests.support.raw_producer import make_topic

from tallystick import Producer
from tallystick.admin.aio import Admin
from tallystick.admin.txn.transaction_log import TransactionLogFollower
from tallystick.console.collect.config import CollectorConfig
from tallystick.console.lookup.history import HistorySource, IdHistory
from tallystick.console.lookup.history_reader import HistoryReader
from tallystick.console.lookup.lookups import ClusterLookups
from tallystick.console.lookup.record_page import RECORDS_MAX, Clip, RecordQuery
from tallystick.kernel.clock import SystemClock
from tallystick.kernel.ids import TopicPartition
from tallystick.kernel.value import replace
from tallystick.protocol.transaction_history import TransitionKind
from tallystick.testing import EmbeddedBroker, FakeClock

pytestmark = pytest.mark.server

K = TransitionKind


def commit(broker: EmbeddedBroker, name: str, **more: object) -> None:
    config = {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": name, **more}
    with Producer(config) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(name, b"1")
        producer.commit_transaction()


def look(broker: EmbeddedBroker, check: Callable[[ClusterLookups], Awaitable[None]]) -> None:
    async def run() -> None:
        config = CollectorConfig.check({"bootstrap.servers": broker.bootstrap_servers})
        async with ClusterLookups(config) as lookups:
            await check(lookups)

    asyncio.run(run())


def test_our_broker_tells_who_did_what_from_where(broker: EmbeddedBroker) -> None:
    name = new_name()
    make_topic(broker, name)
    commit(broker, name, **{"client.id": "shop"})

    async def check(lookups: ClusterLookups) -> None:
        history = await lookups.read_history(name)
        assert history.source is HistorySource.BROKER
        assert [each.kind for each in history.transitions][:3] == [K.INITIALIZED, K.BEGUN, K.COMMITTED]
        assert history.transitions[0].client_id == "shop"
        assert (history.transitions[0].address or "").startswith("127.0.0.1:")
        assert await lookups.read_history("never-used") == IdHistory()

    look(broker, check)


@pytest.mark.gate(1)
def test_a_broker_that_cannot_be_reached_is_said(broker: EmbeddedBroker) -> None:
    async def run() -> None:
        config = CollectorConfig.check({"bootstrap.servers": "127.0.0.1:1"})
        async with ClusterLookups(config) as lookups:
            assert (await lookups.read_history("x")).failure.startswith("history: ")

    asyncio.run(run())


class KeepsNoHistory(Admin):
    """An administrator of brokers that keep no histories, as Apache Kafka's."""

    async def describe_transactions(self, transactional_ids: Any, *, history: bool = False) -> Any:
        answers = await super().describe_transactions(transactional_ids)
        return replace(answers, found={k: replace(v, history=None) for k, v in answers.found.items()})


def follow(
    broker: EmbeddedBroker,
    check: Callable[[HistoryReader, FakeClock, list[TransactionLogFollower]], Awaitable[None]],
) -> None:
    """Run a reader with a clock of the test's, beside the followers that it opens."""

    async def run() -> None:
        settings = {"bootstrap.servers": broker.bootstrap_servers}
        followers: list[TransactionLogFollower] = []
        clock = FakeClock()

        def open_follower() -> TransactionLogFollower:
            followers.append(TransactionLogFollower(settings, clock=SystemClock()))
            return followers[-1]

        async with KeepsNoHistory(settings) as admin:
            reader = HistoryReader(admin, open_follower, clock, follow_idle_ms=60_000, poll_pause_s=0.01)
            try:
                await check(reader, clock, followers)
            finally:
                await reader.close()

    asyncio.run(run())


async def repeat(read: Callable[[], Awaitable[IdHistory]]) -> AsyncIterator[IdHistory]:
    """Read again and again, for a minute at most."""
    async with asyncio.timeout(60):
        for _ in itertools.count():
            yield await read()
            await asyncio.sleep(0)  # the follower's turn


def test_without_histories_the_log_is_followed_once_for_all_ids(broker: EmbeddedBroker) -> None:
    first, second = new_name(), new_name()
    for name in (first, second):
        make_topic(broker, name)
        commit(broker, name)

    async def check(reader: HistoryReader, clock: FakeClock, followers: list[TransactionLogFollower]) -> None:
        since_ms = clock.now_ms()
        for name in (first, second):
            history = await reader.read(name)
            assert (history.source, history.followed_since_ms) == (HistorySource.LOG, since_ms)
            assert [each.kind for each in history.transitions][:3] == [K.INITIALIZED, K.BEGUN, K.COMMITTED]
        count = len(history.transitions)
        await asyncio.to_thread(commit, broker, second)
        async for history in repeat(lambda: reader.read(second)):
            if len(history.transitions) >= count + 3:
                break
        assert len(followers) == 1

    follow(broker, check)


def test_a_follower_that_no_page_asks_for_is_stopped_and_started_again(broker: EmbeddedBroker) -> None:
    name = new_name()
    make_topic(broker, name)
    commit(broker, name)

    async def check(reader: HistoryReader, clock: FakeClock, followers: list[TransactionLogFollower]) -> None:
        await reader.read(name)
        assert reader._following is not None
        clock.advance(60_001)
        async with asyncio.timeout(60):
            await reader._following
        clock.advance(60_001)
        history = await reader.read(name)
        assert history.followed_since_ms == clock.now_ms()
        assert history.transitions
        assert len(followers) == 2

    follow(broker, check)


# -------------------------------------------------------------------------------------- records


def open_producer(broker: EmbeddedBroker, name: str) -> Producer:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": new_name()})
    producer.init_transactions()
    producer.begin_transaction()
    producer.send(name, b"first", key=b"k").result()
    return producer


def test_records_with_what_became_of_each(broker: EmbeddedBroker) -> None:
    """A plain one, a committed and an aborted transaction, one that is open, and one behind it."""
    name = new_name()
    make_topic(broker, name)
    with Producer({"bootstrap.servers": broker.bootstrap_servers}) as plain:
        plain.send(name, b"plain", headers=[("h", b"1")]).result()
    with open_producer(broker, name) as committed:
        committed.commit_transaction()
    with open_producer(broker, name) as aborted:
        aborted.abort_transaction()
    is_open = open_producer(broker, name)
    with open_producer(broker, name) as behind:
        behind.commit_transaction()

    async def check(lookups: ClusterLookups) -> None:
        at = TopicPartition(name, 0)
        page = await lookups.browse_records(RecordQuery(partition=at, offset=0))
        assert page.failure == ""
        assert [(each.verdict.value, each.marker, each.is_held_back) for each in page.records] == [
            ("not transactional", "", False),
            ("committed", "", False),
            ("control", "COMMIT", False),
            ("aborted", "", False),
            ("control", "ABORT", False),
            ("open", "", True),
            ("committed", "", True),
            ("control", "COMMIT", True),
        ]
        assert (page.start, page.last_stable, page.end, page.next_offset) == (0, 5, 8, 8)
        assert page.records[0].headers == (("h", Clip(b"1", 1)),)
        newest = await lookups.browse_records(RecordQuery(partition=at))
        assert newest.records == page.records
        later = await lookups.browse_records(RecordQuery(partition=at, offset=4))
        assert later.records == page.records[4:]
        since = RecordQuery(partition=at, time_ms=page.records[3].timestamp_ms)
        assert (await lookups.browse_records(since)).records[-1].offset == 7
        never = RecordQuery(partition=at, time_ms=2**62)
        assert (await lookups.browse_records(never)).records == ()
        async with Admin({"bootstrap.servers": broker.bootstrap_servers}) as admin:
            groups = (await admin.list_groups()).all()
        assert [each for listed in groups.values() for each in listed] == []

    look(broker, check)
    is_open.close()


def test_a_large_record_is_cut_and_can_be_saved(broker: EmbeddedBroker) -> None:
    name, value = new_name(), bytes(range(256)) * 3_900
    make_topic(broker, name)
    with Producer({"bootstrap.servers": broker.bootstrap_servers, "max.request.size": 2_000_000}) as producer:
        for _ in range(6):
            producer.send(name, value, key=b"k").result()

    async def check(lookups: ClusterLookups) -> None:
        at = TopicPartition(name, 0)
        page = await lookups.browse_records(RecordQuery(partition=at, offset=0))
        assert page.is_cut
        assert 0 < len(page.records) < 6
        assert page.next_offset == len(page.records)
        assert page.records[0].value == Clip(value[:4096], len(value))
        assert await lookups.download(at, 3, is_key=False) == value
        assert await lookups.download(at, 3, is_key=True) == b"k"
        assert await lookups.download(at, 6, is_key=False) is None

    look(broker, check)


def test_many_records_are_read_page_by_page(broker: EmbeddedBroker) -> None:
    name = new_name()
    make_topic(broker, name)
    count = 2 * RECORDS_MAX + 7
    with Producer({"bootstrap.servers": broker.bootstrap_servers}) as producer:
        for number in range(count):
            producer.send(name, str(number).encode())

    async def check(lookups: ClusterLookups) -> None:
        offsets: list[int] = []
        next_offset: int | None = 0
        while next_offset is not None and next_offset < count:
            query = RecordQuery(partition=TopicPartition(name, 0), offset=next_offset)
            page = await lookups.browse_records(query)
            assert len(page.records) <= RECORDS_MAX
            offsets += [each.offset for each in page.records]
            next_offset = page.next_offset
        assert offsets == list(range(count))
        newest = await lookups.browse_records(RecordQuery(partition=TopicPartition(name, 0)))
        assert [each.offset for each in newest.records] == list(range(count - RECORDS_MAX, count))

    look(broker, check)


def test_an_offset_that_is_not_there_any_more_is_the_nearest_that_is(broker: EmbeddedBroker) -> None:
    name = new_name()
    make_topic(broker, name)
    commit(broker, name)

    async def check(lookups: ClusterLookups) -> None:
        at = TopicPartition(name, 0)
        async with Admin({"bootstrap.servers": broker.bootstrap_servers}) as admin:
            (await admin.delete_records({at: 1})).all()
        page = await lookups.browse_records(RecordQuery(partition=at, offset=0))
        assert (page.first, [each.verdict.value for each in page.records]) == (1, ["control"])
        page = await lookups.browse_records(RecordQuery(partition=at, offset=10**12))
        assert (page.first, page.records, page.failure) == (2, (), "")
        missing = await lookups.browse_records(RecordQuery(partition=TopicPartition(name, 99)))
        assert missing.failure.startswith("records: ")

    look(broker, check)
