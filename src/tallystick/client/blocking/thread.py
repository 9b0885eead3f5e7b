"""The engine thread: one daemon thread with one event loop, for all synchronous clients of a process.

    answer = engine_thread().run(cluster.refresh(), limit_s=30, doing="refresh")

Life. It is made when it is first needed, never by an import. A fork copies the memory and not the threads:
the child makes an engine thread of its own when it needs one, and whatever was opened before the fork is
*left behind* in it. Such a client refuses every call there, those that waited at the fork included; it is not
opened again, for it would write under its parent's producer id, send what the parent sends as well, and share
sockets with it [CLI-61]. At the interpreter's exit clients that are still open are closed, all of them within
EXIT_S, and the thread ends.

Waiting. Every wait has a limit [CLI-2]. Most coroutines have a limit of their own with a better name; the
one given here is the last resort. A wait that is interrupted (Ctrl-C) cancels what it waited for, so that
nothing is done of which nobody hears. Where the answer came with the interrupt there is nothing to cancel:
the client is told what the answer was (`unheard`), and keeps it for the same call, asked again [CLI-67]. A
commit that is interrupted is in doubt, or done, and asked again it goes on.

Callbacks that belong to the caller, as those of a rebalance, run in its thread while it waits: `hand_back`.
A call from the engine thread would wait for itself, and is refused [CLI-60].
"""

import asyncio
import atexit
import os
import select
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import ContextVar
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Final, Generic, Protocol, TypeVar, cast
from weakref import WeakSet

from tallystick.client.errors import ClientError, Closed, IllegalState, TimedOut
from tallystick.client.forks import forked
from tallystick.kernel.errors import Effect

try:
    import uvloop

    _new_loop = cast(Callable[[], asyncio.AbstractEventLoop], uvloop.new_event_loop)
except ImportError:  # not installable everywhere
    _new_loop = asyncio.new_event_loop

T = TypeVar("T")

EXIT_S: Final = 2.0
"""What the exit of the interpreter may wait for clients that nobody closed."""
_GRACE_S: Final = 5.0
_START_S: Final = 30.0


class Opened(Protocol):
    """A synchronous client, as the engine thread sees it."""

    def close(self, timeout_s: float) -> None:
        """End it within `timeout_s`."""

    def left_behind(self) -> None:
        """In a forked child: refuse every call from now on. May take no lock: its owner was not copied."""


class _Call(Generic[T]):
    """A coroutine on the engine thread, and the thread that waits for it."""

    __slots__ = ("__weakref__", "doing", "ended", "error", "forked", "inbox", "result", "task")

    def __init__(self, doing: str) -> None:
        self.doing = doing
        self.forked = False
        self.inbox: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self.task: asyncio.Task[None] | None = None
        self.result: T | None = None
        self.error: BaseException | None = None
        self.ended = False

    def begin(self, coroutine: Coroutine[object, object, T]) -> None:
        """On the loop."""
        self.task = asyncio.get_running_loop().create_task(self._follow(coroutine))

    async def _follow(self, coroutine: Coroutine[object, object, T]) -> None:
        """Whatever ends it is told to the caller; nothing a coroutine raises ends the loop."""
        _CALL.set(cast(_Call[object], self))
        try:
            self.result = await coroutine
        except BaseException as exc:
            self.error = exc
        finally:
            self._end()

    def _end(self) -> None:
        self.ended = True
        self.inbox.put(None)

    def cancel(self) -> None:
        """On the loop, after `begin`: behind the first step, without which nobody awaits the coroutine."""
        if self.task is not None:
            asyncio.get_running_loop().call_soon(self.task.cancel)

    def drop(self, coroutine: Coroutine[object, object, T]) -> None:
        """On the loop, where it is not known whether `begin` was asked for."""
        if self.task is None:
            coroutine.close()
            self.error = asyncio.CancelledError()
            self._end()
        self.cancel()

    def leave_behind(self) -> None:
        """In a forked child: it goes on in the parent, and what waits for it here waits for nothing."""
        self.forked = True
        self.error = forked(self.doing)
        with suppress(Empty):
            while True:
                self.inbox.get_nowait()  # callbacks are the parent's to make
        self._end()

    def outcome(self) -> T:
        """In the caller's thread, when it has ended."""
        if isinstance(self.error, asyncio.CancelledError):
            raise Closed(f"{self.doing}: the engine thread ended")
        if self.error is not None:
            raise self.error
        return cast(T, self.result)


_CALL: ContextVar[_Call[object]] = ContextVar("tallystick.call")


class EngineThread:
    """A daemon thread with a loop. Made by `engine_thread`."""

    def __init__(self) -> None:
        self.forked = False
        self._clients: WeakSet[Opened] = WeakSet()
        self._calls: WeakSet[_Call[object]] = WeakSet()
        self._closing: set[asyncio.Task[None]] = set()
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop
        self._ending: asyncio.Event
        self._thread = threading.Thread(target=self._main, name="tallystick-engine", daemon=True)
        self._thread.start()
        if not self._ready.wait(_START_S):
            raise TimedOut("engine thread", int(_START_S * 1000), "starting the engine thread")

    def _main(self) -> None:
        with asyncio.Runner(loop_factory=_new_loop) as runner:
            runner.run(self._live())

    async def _live(self) -> None:
        self._loop, self._ending = asyncio.get_running_loop(), asyncio.Event()
        self._ready.set()
        await self._ending.wait()

    @property
    def alive(self) -> bool:
        """Can it be used in this process?"""
        return not self.forked and self._thread.is_alive()

    def run(
        self,
        coroutine: Coroutine[object, object, T],
        limit_s: float,
        doing: str,
        unheard: Callable[[T], object] | None = None,
    ) -> T:
        """Run a coroutine on the loop and wait for what it returns or raises.

        Args:
            limit_s: the last resort; the callback time of `hand_back` is not counted.
            doing: named in errors.
            unheard: called, in this thread, with what was returned when an interrupt keeps it from the
                caller.
        Raises: what the coroutine raises; IllegalState on the engine thread itself and in a forked child;
            Closed when the thread has ended; TimedOut after `limit_s`, and what was done is unknown.
        """
        call = _Call[T](doing)
        try:
            self._begin(call, coroutine)
            self._wait(call, limit_s)
            return call.outcome()
        except Empty:
            self._loop.call_soon_threadsafe(call.cancel)
            late = TimedOut("engine thread", int(limit_s * 1000), doing)
            raise late.after(Effect.UNKNOWN) from None
        except ClientError:
            if not call.ended:  # it was refused here, and never began
                coroutine.close()
            raise
        except BaseException as exc:
            if exc is not call.error and not call.forked:
                self._interrupted(call, coroutine, unheard)
            raise

    def do(self, function: Callable[[], T], doing: str) -> T:
        """Call a function, which does not wait, on the loop."""

        async def once() -> T:
            return function()

        return self.run(once(), _GRACE_S, doing)

    def soon(self, function: Callable[[], object]) -> None:
        """Call a function on the loop, and do not wait for it; from any thread and any signal handler.

        Does nothing in a forked child: to wake the loop is to write to a descriptor of the parent's.
        """
        if self.forked:
            return
        with suppress(RuntimeError):  # the loop is closed, and all that was on it
            self._loop.call_soon_threadsafe(function)

    def abandon(self, close: Callable[[float], Coroutine[object, object, None]]) -> None:
        """Nobody has closed this client, and nobody can any more: do it, without waiting."""

        def begin() -> None:
            closing = self._loop.create_task(close(0.0))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

        self.soon(begin)

    def opened(self, client: Opened) -> None:
        """A client that the interpreter's exit is to close, and a fork to leave behind."""
        self._clients.add(client)

    def closed(self, client: Opened) -> None:
        self._clients.discard(client)

    def end(self, limit_s: float) -> None:
        """Close what is open, and the thread. Takes `limit_s` at most; never raises [CLI-63]."""
        until = monotonic() + limit_s
        for client in list(self._clients):
            with suppress(Exception):  # nobody is left to hear of it
                client.close(timeout_s=max(until - monotonic(), 0))
        try:
            self._loop.call_soon_threadsafe(self._ending.set)
        except RuntimeError:
            return
        self._thread.join(max(until - monotonic(), 0.1))

    def leave_behind(self) -> list[object]:
        """In a forked child: this thread is not here.

        Returns: what must not be collected here, for its end would be told to the parent's loop.
        """
        self.forked = True
        _separate(self._loop)
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            # It goes on in the parent: no complaint when the child ends.
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        clients, calls = list(self._clients), list(self._calls)
        for client in clients:
            client.left_behind()
        for call in calls:
            call.leave_behind()
        return [self, *tasks, *clients, *calls]

    def check_process(self, doing: str) -> None:
        """Raises: IllegalState in a forked child."""
        if self.forked:
            raise forked(doing)

    def _check_caller(self, doing: str) -> None:
        self.check_process(doing)
        if threading.get_ident() == self._thread.ident:
            raise IllegalState(
                f"{doing}: called from a callback on the engine thread, which would wait for itself; "
                "hand the work to a thread of your own"
            )

    def _wait(self, call: _Call[T], limit_s: float) -> None:
        until = monotonic() + limit_s
        while (errand := call.inbox.get(timeout=max(until - monotonic(), 0))) is not None:
            began = monotonic()
            errand()
            until += monotonic() - began

    def _begin(self, call: _Call[T], coroutine: Coroutine[object, object, T]) -> None:
        self._check_caller(call.doing)
        self._calls.add(cast(_Call[object], call))
        try:
            self._loop.call_soon_threadsafe(call.begin, coroutine)
        except RuntimeError as exc:
            if not self._loop.is_closed():
                raise
            raise Closed(f"{call.doing}: the engine thread has ended") from exc

    def _interrupted(
        self,
        call: _Call[T],
        coroutine: Coroutine[object, object, T],
        unheard: Callable[[T], object] | None,
    ) -> None:
        """Cancel it and see it ended, for a second one must not meet it; keep what it returned."""
        self.soon(lambda: call.drop(coroutine))
        with suppress(Empty):
            while not call.ended:
                call.inbox.get(timeout=_GRACE_S)
        if call.ended and call.error is None and unheard is not None:
            unheard(cast(T, call.result))


async def hand_back(function: Callable[[], T]) -> T:
    """In a coroutine under `run`: call a function in the thread that waits, and await what it returns.

    In a child that the function forks off what it raises leaves `run` at once: no coroutine is there to hear
    of it.
    """
    loop, call = asyncio.get_running_loop(), _CALL.get()
    done = loop.create_future()
    failures: list[BaseException] = []

    def errand() -> None:
        result: T | None = None
        try:
            result = function()
        except BaseException as exc:  # Ctrl-C as well: `run` raises it
            if call.forked:
                raise
            failures.append(exc)
        if not call.forked:
            loop.call_soon_threadsafe(_settle, done, result)

    call.inbox.put(errand)
    result = await done
    if failures:
        raise failures[0]
    return cast(T, result)


def _settle(done: "asyncio.Future[object]", result: object) -> None:
    if not done.done():
        done.set_result(result)


def _separate(loop: asyncio.AbstractEventLoop) -> None:
    """In a forked child: give the loop an epoll set of its own in place of the one it shares.

    Who closes a socket takes it out of the set first, and a set that two processes share is one: a transport
    that is collected here would leave the parent waiting for ever for what it is sent.
    """
    if loop.is_closed() or not hasattr(select, "epoll"):  # a kqueue is not inherited
        return
    asyncios = getattr(getattr(loop, "_selector", None), "fileno", lambda: -1)
    shared = getattr(loop, "_get_backend_id", asyncios)()  # uvloop's
    if shared >= 0:
        with select.epoll() as own:
            os.dup2(own.fileno(), shared, inheritable=False)


# --------------------------------------------------------------------------- the process's own

_lock = threading.Lock()
_current: EngineThread | None = None


def engine_thread() -> EngineThread:
    """The engine thread of this process; started by the first call."""
    global _current
    with _lock:
        if _current is None or not _current.alive:
            _current = EngineThread()
        return _current


def _in_forked_child() -> None:
    global _lock, _current, _parents
    _lock = threading.Lock()
    if _current is not None:
        _parents = (_parents, _current.leave_behind())
        _current = None


def _at_exit() -> None:
    if _current is not None and _current.alive:
        _current.end(EXIT_S)


_parents: object = None
os.register_at_fork(after_in_child=_in_forked_child)
atexit.register(_at_exit)
