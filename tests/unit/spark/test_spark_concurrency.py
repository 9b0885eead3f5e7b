"""Two requests at the same time: what their caller sees of failures and of its own end."""

import asyncio

import pytest

from tallystick.spark.protocol.coordinator import run_both


class Request:
    """A request that ends when it is told to; `ended` says how."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.begun = asyncio.Event()
        self.ended = ""

    async def send(self) -> str:
        self.begun.set()
        try:
            text = await self.answer
        except asyncio.CancelledError:
            self.ended = "cancelled"
            raise
        self.ended = text
        return text


async def start(first: Request, second: Request) -> asyncio.Task[tuple[str, str]]:
    """Return the task that runs both, when both are under way."""
    task = asyncio.create_task(run_both(first.send(), second.send()))
    await first.begun.wait()
    await second.begun.wait()
    return task


def test_both_are_under_way_at_once_and_both_answers_are_returned() -> None:
    async def run() -> None:
        first, second = Request(), Request()
        task = await start(first, second)
        second.answer.set_result("b")
        first.answer.set_result("a")
        assert await task == ("a", "b")

    asyncio.run(run())


@pytest.mark.parametrize("failing", [0, 1])
def test_when_one_fails_the_other_has_ended_too(failing: int) -> None:
    async def run() -> None:
        both = Request(), Request()
        task = await start(*both)
        both[failing].answer.set_exception(ValueError("refused"))
        with pytest.raises(ValueError, match="refused"):
            await task
        assert both[1 - failing].ended == "cancelled"

    asyncio.run(run())


def test_a_caller_that_is_cancelled_leaves_nothing_under_way() -> None:
    async def run() -> None:
        both = Request(), Request()
        task = await start(*both)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert [each.ended for each in both] == ["cancelled", "cancelled"]

    asyncio.run(run())
