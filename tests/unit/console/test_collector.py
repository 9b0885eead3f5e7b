"""How readings become parts of a snapshot, without a cluster."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tallystick.client.errors import Unreachable
from tallystick.console.collect.collector import Collector, Part
from tallystick.console.collect.config import CollectorConfig, Pace
from tallystick.console.model.snapshot import NEVER_MS, PartStatus, Snapshot, StoreFacts, TopicFacts
from tallystick.kernel.value import replace
from tallystick.testing import FakeClock

OLD, NEW = TopicFacts(partition_counts={"old": 1}), TopicFacts(partition_counts={"new": 1})


def part(
    read: Callable[[], Awaitable[TopicFacts]], limit_ms: int = 60_000, patience_ms: int = 60_000
) -> Part:
    return Part(
        name="topics",
        pace=Pace(interval_ms=1, limit_ms=limit_ms, patience_ms=patience_ms),
        read=read,
        find=lambda snapshot: snapshot.topics,
        place=lambda snapshot, facts: replace(snapshot, topics=facts),
    )


def run(check: Callable[[Collector, FakeClock], Awaitable[None]], *urls: str) -> None:
    async def on_loop() -> None:
        clock = FakeClock()
        collector = Collector(CollectorConfig.check({"bootstrap.servers": "localhost:1"}, urls), clock=clock)
        await check(collector, clock)
        await collector.close()

    asyncio.run(on_loop())


def test_a_part_has_the_time_at_which_its_reading_began() -> None:
    async def check(collector: Collector, clock: FakeClock) -> None:
        began_ms = clock.now_ms()

        async def read() -> TopicFacts:
            clock.advance(40)
            return replace(NEW, status=PartStatus(failures=("t-0 has no leader",)))

        await collector._read(part(read))
        status = PartStatus(read_ms=began_ms, tried_ms=began_ms, took_ms=40, failures=("t-0 has no leader",))
        assert collector._draft.topics == replace(NEW, status=status)

    run(check)


@pytest.mark.parametrize("failure", [Unreachable("localhost:1", "refused"), ValueError("of a driver")])
def test_a_part_that_cannot_be_read_stays_as_it_was_with_its_age(failure: Exception) -> None:
    """[CON-3]"""

    async def check(collector: Collector, clock: FakeClock) -> None:
        async def read() -> TopicFacts:
            return OLD

        async def fail() -> TopicFacts:
            clock.advance(7)
            raise failure

        await collector._read(part(read))
        read_ms = collector._draft.topics.status.read_ms
        clock.advance(1_000)
        await collector._read(part(fail))
        topics = collector._draft.topics
        assert topics.partition_counts == OLD.partition_counts
        assert (topics.status.read_ms, topics.status.tried_ms) == (read_ms, read_ms + 1_000)
        assert topics.status.took_ms == 7
        (sentence,) = topics.status.failures
        assert sentence.startswith("topics: ")
        await collector._read(part(read))
        assert collector._draft.topics.status.failures == ()

    run(check)


def test_a_reading_without_an_end_is_given_up() -> None:
    async def check(collector: Collector, clock: FakeClock) -> None:
        async def hang() -> TopicFacts:
            await asyncio.Event().wait()
            raise AssertionError

        await collector._read(part(hang, limit_ms=-1_000))
        assert collector._draft.topics.status.failures == ("topics: not read within -1000 ms",)

    run(check)


def test_a_reading_that_does_not_answer_is_said_before_it_is_given_up() -> None:
    """The cluster was read a moment ago, and its broker has been killed since."""

    async def check(collector: Collector, clock: FakeClock) -> None:
        async def read() -> TopicFacts:
            return OLD

        async def hang() -> TopicFacts:
            await asyncio.Event().wait()
            raise AssertionError

        await collector._read(part(read))
        read_ms = clock.now_ms()
        clock.advance(500)
        collector._is_dirty.clear()
        reading = asyncio.ensure_future(collector._read(part(hang, patience_ms=1)))
        await collector._is_dirty.wait()
        topics = collector._draft.topics
        assert topics.partition_counts == OLD.partition_counts
        assert topics.status.failures == ("topics: no answer yet",)
        assert (topics.status.read_ms, topics.status.away_since_ms) == (read_ms, read_ms + 500)
        reading.cancel()

    run(check)


def test_how_long_a_part_has_been_away_counts_from_the_first_attempt_that_failed() -> None:
    async def check(collector: Collector, clock: FakeClock) -> None:
        async def read() -> TopicFacts:
            return OLD

        async def fail() -> TopicFacts:
            raise Unreachable("localhost:1", "refused")

        since_ms = clock.now_ms()
        for _ in range(3):
            await collector._read(part(fail))
            clock.advance(1_000)
        assert collector._draft.topics.status.away_since_ms == since_ms
        await collector._read(part(read))
        assert collector._draft.topics.status.away_since_ms == NEVER_MS

    run(check)


def test_the_reading_that_ends_an_outage_makes_the_next_one_no_rarer() -> None:
    """Its time went into waiting: rested for twenty times as long, the next outage would go unseen."""

    async def check(collector: Collector, clock: FakeClock) -> None:
        async def fail() -> TopicFacts:
            raise Unreachable("localhost:1", "refused")

        async def wait_and_read() -> TopicFacts:
            clock.advance(9_000)
            return OLD

        await collector._read(part(fail))
        await collector._read(part(wait_and_read))
        assert collector._draft.topics.status.took_ms == 0
        await collector._read(part(wait_and_read))
        assert collector._draft.topics.status.took_ms == 9_000

    run(check)


def test_a_reason_is_kept_while_the_next_attempt_waits() -> None:
    async def check(collector: Collector, clock: FakeClock) -> None:
        async def fail() -> TopicFacts:
            raise Unreachable("localhost:1", "refused")

        await collector._read(part(fail))
        before = collector._draft.topics.status
        collector._note_silence(part(fail), clock.now_ms())
        assert collector._draft.topics.status == before

    run(check)


def test_followers_are_told_again_while_a_part_is_away() -> None:
    """What a page says of ages must not stand still until the next attempt has failed, too."""

    async def check(collector: Collector, clock: FakeClock) -> None:
        async def fail() -> TopicFacts:
            raise Unreachable("localhost:1", "refused")

        await collector._read(part(fail))
        collector._is_dirty.clear()
        await collector._wait_for_change(again_ms=1)

    run(check)


def test_the_return_of_one_part_makes_the_others_look_at_once() -> None:
    async def check(collector: Collector, clock: FakeClock) -> None:
        async def read() -> TopicFacts:
            return OLD

        async def fail() -> TopicFacts:
            raise Unreachable("localhost:1", "refused")

        other = collector._hurry["cluster"] = asyncio.Event()
        await collector._read(part(read))
        assert not other.is_set()
        await collector._read(part(fail))
        await collector._read(part(read))
        assert other.is_set()

    run(check)


def test_a_snapshot_that_was_published_stays_what_it_was() -> None:
    """[CON-3]"""

    async def check(collector: Collector, clock: FakeClock) -> None:
        async def read() -> TopicFacts:
            return OLD

        async def read_again() -> TopicFacts:
            return NEW

        await collector._read(part(read))
        kept: Snapshot = collector._draft
        text = repr(kept)
        await collector._read(part(read_again))
        assert repr(kept) == text
        assert collector._draft.topics.partition_counts == NEW.partition_counts

    run(check)


def test_every_store_has_a_part_of_its_own() -> None:
    async def check(collector: Collector, clock: FakeClock) -> None:
        parts = [each for each in collector._list_parts() if each.name.startswith("store ")]
        for index, each in enumerate(parts):
            facts = replace(each.find(collector._draft), engine=f"engine {index}")
            collector._draft = each.place(collector._draft, facts)
        stores: tuple[StoreFacts, ...] = collector._draft.stores
        assert [(store.name, store.engine) for store in stores] == [
            ("sqlite:////a.db", "engine 0"),
            ("rocksdb:///b", "engine 1"),
        ]

    run(check, "sqlite:////a.db", "rocksdb:///b")


def test_an_error_of_the_collector_itself_ends_every_reader(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Who waited for the next snapshot would wait for ever."""

    async def fail(_: Collector) -> None:
        raise KeyError("a mistake")

    monkeypatch.setattr(Collector, "_count_ids", fail)
    monkeypatch.setattr(Collector, "_list_parts", lambda _: [])

    async def on_loop() -> None:
        async with Collector(CollectorConfig.check({"bootstrap.servers": "localhost:1"})) as collector:
            assert [snapshot async for snapshot in collector.follow()] == []

    asyncio.run(on_loop())
    assert "the collector has failed" in caplog.text
