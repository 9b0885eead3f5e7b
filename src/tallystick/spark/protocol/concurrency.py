"""Two series of requests at the same time, where the protocol does not depend on their order."""

import asyncio
from collections.abc import Coroutine
from typing import Protocol, TypeVar

A = TypeVar("A")
B = TypeVar("B")


class BothRunner(Protocol):
    """Runs two coroutines at the same time."""

    async def __call__(
        self, first: Coroutine[object, object, A], second: Coroutine[object, object, B]
    ) -> tuple[A, B]:
        """Return both results. If one fails, end the other and raise the error."""


async def run_both(first: Coroutine[object, object, A], second: Coroutine[object, object, B]) -> tuple[A, B]:
    """Run two coroutines at the same time, on the event loop.

    If one fails, the other is cancelled, and has ended when the error is raised: the caller never goes on
    while a request of its own is under way.
    """
    tasks = asyncio.create_task(first), asyncio.create_task(second)
    try:
        answers = await asyncio.gather(*tasks)
        return answers[0], answers[1]
    finally:
        for each in tasks:
            each.cancel()
        await asyncio.wait(tasks)
