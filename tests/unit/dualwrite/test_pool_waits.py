"""Waits of a pool's tasks: one that is cancelled has taken nothing, and goes on with nothing."""

import asyncio

import pytest

from tallystick.dualwrite.rules.pooling import take_free_async, wait_event_async


@pytest.mark.parametrize("turns", range(5))
def test_a_task_that_is_cancelled_goes_on_with_no_writer(turns: int) -> None:
    """However far the writer has come that it waits for: its work must not start after that."""

    async def story() -> None:
        free: asyncio.LifoQueue[str | None] = asyncio.LifoQueue()
        waiting = asyncio.create_task(take_free_async(free, 60))
        await asyncio.sleep(0)
        free.put_nowait("writer")
        for _ in range(turns):
            await asyncio.sleep(0)
        if waiting.cancel():
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert free.qsize() == 1
        else:
            assert waiting.result() == "writer"

    asyncio.run(story())


@pytest.mark.parametrize("turns", range(5))
def test_a_task_that_is_cancelled_goes_on_after_no_event(turns: int) -> None:
    async def story() -> None:
        event = asyncio.Event()
        waiting = asyncio.create_task(wait_event_async(event, 60))
        await asyncio.sleep(0)
        event.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        if waiting.cancel():
            with pytest.raises(asyncio.CancelledError):
                await waiting

    asyncio.run(story())


def test_a_limit_is_kept() -> None:
    async def story() -> None:
        assert await take_free_async(asyncio.LifoQueue[str | None](), 0.001) is None
        assert await take_free_async(asyncio.LifoQueue[str | None](), 0) is None
        await wait_event_async(asyncio.Event(), 0.001)

    asyncio.run(story())
