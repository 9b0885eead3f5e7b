"""What single pages ask of a cluster: on our broker, and on one that keeps no histories."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest
from tests.support.dual_world import new_name
from tests.support.raw_producer import make_topic

from tallystick import Producer
from tallystick.admin.aio import Admin
from tallystick.admin.transaction_log import TransactionLogFollower
from tallystick.console.collect.config import CollectorConfig
from tallystick.console.lookup.history import HistorySource, IdHistory
from tallystick.console.lookup.history_reader import HistoryReader
from tallystick.console.lookup.lookups import ClusterLookups
from tallystick.kernel.clock import SystemClock
from tallystick.kernel.value import replace
from tallystick.protocol.transaction_history import TransitionKind
from tallystick.testing import EmbeddedBroker, FakeClock

pytestmark = pytest.mark.server

K = TransitionKind


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(in_process=True) as broker:
        yield broker


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
            await asyncio.sleep(0.01)


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
