"""Snapshots and those who wait for them: nobody waits for a reader."""

import asyncio
from collections.abc import AsyncIterator

from tallystick.console.collect.collector import Publisher
from tallystick.console.model.snapshot import Snapshot


def numbered(number: int) -> Snapshot:
    return Snapshot(number=number)


async def next_number(followed: AsyncIterator[Snapshot]) -> int:
    return (await anext(followed)).number


def test_who_follows_gets_the_present_snapshot_and_then_each_new_one() -> None:
    async def run() -> None:
        publisher = Publisher()
        publisher.publish(numbered(1))
        followed = publisher.follow()
        assert await next_number(followed) == 1
        waiting = asyncio.ensure_future(next_number(followed))
        await asyncio.sleep(0)
        assert not waiting.done()
        publisher.publish(numbered(2))
        assert await waiting == 2

    asyncio.run(run())


def test_nothing_is_shown_before_the_first_reading() -> None:
    async def run() -> None:
        publisher = Publisher()
        waiting = asyncio.ensure_future(next_number(publisher.follow()))
        await asyncio.sleep(0)
        assert not waiting.done()
        publisher.publish(numbered(1))
        assert await waiting == 1

    asyncio.run(run())


def test_a_slow_reader_misses_what_was_in_between_and_delays_no_reader() -> None:
    async def run() -> None:
        publisher = Publisher()
        slow, quick = publisher.follow(), publisher.follow()
        publisher.publish(numbered(1))
        assert await next_number(slow) == 1
        for number in range(1, 6):
            publisher.publish(numbered(number))
            assert await next_number(quick) == number
        assert await next_number(slow) == 5

    asyncio.run(run())


def test_the_end_ends_every_reader() -> None:
    async def run() -> None:
        publisher = Publisher()
        publisher.publish(numbered(1))
        seen: list[int] = []

        async def read() -> None:
            async for snapshot in publisher.follow():
                seen.append(snapshot.number)

        readers = [asyncio.ensure_future(read()) for _ in range(3)]
        await asyncio.sleep(0)
        publisher.close()
        await asyncio.gather(*readers)
        assert seen == [1, 1, 1]

    asyncio.run(run())
