"""Answers that are kept for a moment: whatever number of pages ask for the same, it is asked for once.

A question whose page has gone is asked to its end, because another page may wait for it as well.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Final, Generic, TypeVar

from tallystick.kernel.clock import Clock
from tallystick.kernel.errors import TallystickError

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

KEEP_MS: Final = 1_000
KEPT_MAX: Final = 100
CONCURRENT_MAX: Final = 4
WAITING_MAX: Final = 64


class TooManyQuestions(TallystickError):
    """So many pages wait for answers that another one would only wait longer."""

    def __str__(self) -> str:
        return f"{WAITING_MAX} pages wait for answers already: reload this one later"


class RecentAnswers(Generic[K, V]):
    """Asks `ask` for each key, and keeps its answer for `keep_ms`. Belongs to one event loop.

    At most `kept_max` answers are kept, and `concurrent_max` asked for at once; WAITING_MAX others wait.
    """

    def __init__(
        self,
        ask: Callable[[K], Awaitable[V]],
        clock: Clock,
        *,
        keep_ms: int = KEEP_MS,
        kept_max: int = KEPT_MAX,
        concurrent_max: int = CONCURRENT_MAX,
    ) -> None:
        self._ask, self._clock = ask, clock
        self._keep_ms, self._kept_max = keep_ms, kept_max
        self._places = asyncio.Semaphore(concurrent_max)
        self._tasks: OrderedDict[K, asyncio.Task[tuple[int, V]]] = OrderedDict()

    async def find(self, key: K) -> V:
        """Return the answer for a key. Raises: TooManyQuestions; what `ask` raises."""
        task = self._tasks.get(key)
        if task is None or (task.done() and not self._is_fresh(task)):
            if sum(not each.done() for each in self._tasks.values()) >= WAITING_MAX:
                raise TooManyQuestions
            task = asyncio.get_running_loop().create_task(self._run(key))
            self._tasks[key] = task
        self._tasks.move_to_end(key)
        self._forget()
        return (await asyncio.shield(task))[1]

    async def close(self) -> None:
        """End what is being asked."""
        tasks = tuple(self._tasks.values())
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, key: K) -> tuple[int, V]:
        async with self._places:
            answer = await self._ask(key)
        return self._clock.monotonic_ms(), answer

    def _is_fresh(self, task: asyncio.Task[tuple[int, V]]) -> bool:
        if task.cancelled() or task.exception() is not None:
            return False
        return self._clock.monotonic_ms() - task.result()[0] < self._keep_ms

    def _forget(self) -> None:
        """Forget the oldest answers that no page waits for."""
        done = [key for key, task in self._tasks.items() if task.done()]
        for key in done[: max(0, len(self._tasks) - self._kept_max)]:
            del self._tasks[key]
