"""An event loop without sockets, threads or waiting: virtual time that moves when nothing is ready.

Several loops can share one `VirtualTime`, as a broker and its clients do: each is a process, and can die
without the others. Their behaviour depends only on the calls made and their order (style R17).
"""

import asyncio
import heapq
import warnings
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, Final, TypeVar, TypeVarTuple

from tallystick.kernel.ids import TimestampMs

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

START_MS: Final = 1_700_000_000_000


class VirtualTime:
    """The one clock of a simulation; `clock.Clock` for the broker. Seconds in the loops, else milliseconds.

    `wall_clock_lag_ms` is the wall clock's error; the monotonic clock never steps back.
    """

    def __init__(self) -> None:
        self.now_s = 0.0
        self.wall_clock_lag_ms = 0

    def monotonic_ms(self) -> int:
        return round(self.now_s * 1000)

    def now_ms(self) -> TimestampMs:
        return TimestampMs(START_MS + self.monotonic_ms() - self.wall_clock_lag_ms)


class VirtualLoop(asyncio.AbstractEventLoop):
    """One process's loop. Callbacks run in the order they were made ready, as asyncio promises.

    Args:
        alive: asked after every callback; when it returns false, `run_ready` ends at once, as a process does
        that
            is killed.
        thread_delay_s: how long a call handed to a thread takes.
    """

    def __init__(
        self,
        time: VirtualTime,
        alive: Callable[[], bool],
        thread_delay_s: Callable[[], float],
    ) -> None:
        self.virtual = time
        self.errors: list[dict[str, Any]] = []
        self._alive = alive
        self._thread_delay_s = thread_delay_s
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._timer_count = 0
        self._tasks: dict[asyncio.Task[Any], None] = {}  # all_tasks() is a set, ordered by address
        self._is_dead = False
        self.is_killed = False  # killed in the middle of a callback

    # -- running ------------------------------------------------------------------------------------------

    def run_ready(self) -> bool:
        """Run what is ready and what becomes ready by it; return False if the process died of it."""
        events._set_running_loop(self)
        try:
            while self._promote_timers():
                handle = self._ready.popleft()
                if not handle.cancelled():
                    self._run(handle)
                    if not self._alive():
                        self.is_killed = True
                        return False
        finally:
            events._set_running_loop(None)
        return True

    def _promote_timers(self) -> bool:
        timers, now = self._timers, self.virtual.now_s
        while timers and (timers[0][2].cancelled() or timers[0][0] <= now):
            handle = heapq.heappop(timers)[2]
            if not handle.cancelled():
                self._ready.append(handle)
        return bool(self._ready)

    def _run(self, handle: asyncio.Handle) -> None:
        try:
            handle._context.run(handle._callback, *handle._args)  # type: ignore[attr-defined]
        except Exception as exc:
            self.call_exception_handler({"message": "a callback failed", "exception": exc})
        except BaseException:
            # Only PowerLost is no Exception here; `alive` reports it, too.
            if self._alive():
                raise

    def next_callback_s(self) -> float | None:
        """Return the time of the next callback: now, later, or None for never."""
        if self._promote_timers():
            return self.virtual.now_s
        return self._timers[0][0] if self._timers else None

    def kill(self) -> None:
        """Stop everything. Coroutines end where they are, and what they still do has no effect."""
        self._is_dead = True
        self._ready.clear()
        self._timers.clear()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # some would have gone on to wait
            for task in self._tasks:
                if not task.done():
                    _close(task)
        self._tasks.clear()
        self._ready.clear()

    # -- the asyncio interface ---------------------------------------------------------------------------

    def time(self) -> float:
        return self.virtual.now_s

    def call_soon(
        self,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(
        self,
        delay: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self.virtual.now_s + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._timer_count += 1
        heapq.heappush(self._timers, (when, self._timer_count, handle))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        return None

    def create_future(self) -> "asyncio.Future[Any]":
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, T], *, name: str | None = None, context: Context | None = None
    ) -> "asyncio.Task[T]":
        task = asyncio.Task(coro, loop=self, name=name or "", context=context)
        self._tasks[task] = None
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.pop(task, None)

    def run_in_executor(self, executor: object, func: Callable[[*Ts], T], *args: *Ts) -> "asyncio.Future[T]":
        """Schedule the whole call for a moment later; the executor does not matter."""
        future: asyncio.Future[T] = self.create_future()

        def work() -> None:
            try:
                result = func(*args)
            except Exception as exc:
                if not future.done():
                    future.set_exception(exc)
            else:
                if not future.done():
                    future.set_result(result)

        self.call_later(self._thread_delay_s(), work)
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Record an unhandled exception as a finding, unless the process is already dead."""
        if not self._is_dead:
            self.errors.append(context)

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.call_exception_handler(context)

    def is_running(self) -> bool:
        return events._get_running_loop() is self

    def is_closed(self) -> bool:
        return self._is_dead

    def get_debug(self) -> bool:
        return False


def _close(task: "asyncio.Task[Any]") -> None:
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    try:
        task.get_coro().close()
    except BaseException:
        return  # a `finally` of a dead process


def new_loop(
    time: VirtualTime,
    alive: Callable[[], bool] = lambda: True,
    thread_delay_s: Callable[[], float] = lambda: 0.0,
) -> VirtualLoop:
    """Return a loop without the unused methods of asyncio: sockets, signals, child processes."""
    return VirtualLoop(time, alive, thread_delay_s)  # type: ignore[abstract]
