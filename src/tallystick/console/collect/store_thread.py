"""A thread for one store: database drivers block, and one that hangs may keep no other store waiting."""

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeVar

from tallystick.kernel.clock import Clock
from tallystick.kernel.errors import TallystickError

T = TypeVar("T")

_Work = Callable[[], Callable[[], None]]


class StillBusy(TallystickError):
    """The last call has not returned yet."""

    def __init__(self, name: str, since_ms: int) -> None:
        super().__init__(name, since_ms)
        self.name, self.since_ms = name, since_ms

    def __str__(self) -> str:
        return f"{self.name} has not answered for {self.since_ms // 1000} s"


class StoreThread:
    """Runs one call at a time, in a thread that the end of the process does not wait for.

    A caller may give up a call: the thread is then busy until the call returns, and refuses others.
    """

    def __init__(self, name: str, clock: Clock) -> None:
        self._name, self._clock = name, clock
        self._calls: SimpleQueue[_Work | None] = SimpleQueue()
        self._busy_since_ms: int | None = None
        self._thread: threading.Thread | None = None

    async def run(self, function: Callable[[], T]) -> T:
        """Run `function` in the thread. Raises: StillBusy; what the function raises."""
        now_ms = self._clock.monotonic_ms()
        if self._busy_since_ms is not None:
            raise StillBusy(self._name, now_ms - self._busy_since_ms)
        self._busy_since_ms = now_ms
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=f"store {self._name}", daemon=True)
            self._thread.start()
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()

        def call() -> Callable[[], None]:
            try:
                result = function()
            except BaseException as exc:  # whatever it is, the waiting task has to hear of it
                failure = exc
                return lambda: loop_call(lambda: answer.set_exception(failure))
            return lambda: loop_call(lambda: answer.set_result(result))

        def loop_call(set_answer: Callable[[], None]) -> None:
            def finish() -> None:
                self._busy_since_ms = None
                if not answer.done():
                    set_answer()

            if not loop.is_closed():
                loop.call_soon_threadsafe(finish)

        self._calls.put(call)
        return await answer

    def close(self, last: Callable[[], None] | None = None) -> None:
        """Let the thread end after the call under way; it calls `last` before."""
        if last is not None:
            self._calls.put(lambda: last)
        self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()()
