"""Engine thread: one daemon thread with one event loop, for all synchronous clients of a process.

    answer = engine_thread().run(cluster.refresh(), limit_s=30, doing="refresh")

Life cycle. The thread is started when it is first needed, never by an import. A fork copies the memory and
not the threads: the child starts its own engine thread when it needs one, and clients opened before the fork
are *left behind* in it. Such a client refuses every call in the child, including those that waited at the
fork. It is not opened again, since it would use its parent's producer id, send the parent's records a second
time, and share sockets with it [CLI-61]. At the interpreter's exit clients that are still open are closed,
all of them within EXIT_TIMEOUT_S, and the thread ends.

Waiting. Every wait has a limit [CLI-2]. Coroutines end by their own limits, whose errors say more; a wait
ends _CALL_GRACE_S later, as a last resort: the thread may be busy, and so may the machine. An interrupted
wait (Ctrl-C) cancels its coroutine, so that nothing happens unnoticed. If the answer arrived together with
the interrupt, there is nothing to cancel: the client gets the answer through `unheard`, and returns it when
the same call is repeated [CLI-67]. An interrupted commit is in doubt, or done, and continues when it is
called again.

Callbacks of the caller, such as those of a rebalance, run in its thread while it waits: `run_in_caller`.
A call from the engine thread would wait for itself, and is refused, as is waiting for a delivery [CLI-60].
"""

import asyncio
import atexit
import os
import select
import sys
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Final, Generic, Protocol, TypeVar, cast
from weakref import WeakSet

from tallystick.client.errors import ClientError, Closed, IllegalState, TimedOut
from tallystick.client.net.waits import build_forked_error, check_may_wait, mark_engine_thread
from tallystick.kernel.errors import Effect

try:
    import uvloop

    _new_loop = cast(Callable[[], asyncio.AbstractEventLoop], uvloop.new_event_loop)
except ImportError:  # uvloop is not available everywhere
    _new_loop = asyncio.new_event_loop

T = TypeVar("T")

EXIT_TIMEOUT_S: Final = 2.0
"""Longest time that the interpreter's exit waits for clients that are still open."""
_CALL_GRACE_S: Final = 10.0
_EXIT_GRACE_S: Final = 0.1
# A signal that comes just before a thread blocks does not end the wait, and is handled when that has ended.
_SIGNAL_CHECK_S: Final = 0.5
_START_TIMEOUT_S: Final = 30.0
_ENDING_CALLS: Final = frozenset({"commit_transaction", "abort_transaction", "complete_transaction"})


class ThreadClient(Protocol):
    """A synchronous client, as the engine thread sees it."""

    def close(self, timeout_s: float) -> None:
        """Close within `timeout_s`."""

    def mark_forked(self) -> None:
        """Refuse every call from now on, in a forked child. May take no lock: its owner was not copied."""


class _ThreadCall(Generic[T]):
    """A coroutine on the engine thread, and the thread that waits for it."""

    __slots__ = ("__weakref__", "callbacks", "description", "error", "is_done", "is_forked", "result", "task")

    def __init__(self, doing: str) -> None:
        self.description = doing
        self.is_forked = False
        self.callbacks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self.task: asyncio.Task[None] | None = None
        self.result: T | None = None
        self.error: BaseException | None = None
        self.is_done = False

    def begin(self, coroutine: Coroutine[object, object, T]) -> None:
        """Start the coroutine, on the loop."""
        self.task = asyncio.get_running_loop().create_task(self._run(coroutine))

    async def _run(self, coroutine: Coroutine[object, object, T]) -> None:
        """Report the end of the coroutine to the caller; none of its errors ends the loop."""
        _CURRENT_CALL.set(cast(_ThreadCall[object], self))
        try:
            self.result = await coroutine
        except BaseException as exc:
            self.error = exc
        finally:
            self._finish()

    def _finish(self) -> None:
        self.is_done = True
        self.callbacks.put(None)

    def cancel(self) -> None:
        """Cancel, on the loop and after `begin`.

        The cancellation follows the task's first step, without which the coroutine would never be awaited.
        """
        if self.task is not None:
            asyncio.get_running_loop().call_soon(self.task.cancel)

    def cancel_unbegun(self, coroutine: Coroutine[object, object, T]) -> None:
        """Cancel, on the loop, when it is unknown whether `begin` was scheduled."""
        if self.task is None:
            coroutine.close()
            self.error = asyncio.CancelledError()
            self._finish()
        self.cancel()

    def fail_after_fork(self) -> None:
        """Fail the call in a forked child: it continues in the parent only."""
        self.is_forked = True
        self.error = build_forked_error(self.description)
        with suppress(Empty):
            while True:
                self.callbacks.get_nowait()  # the parent makes these callbacks
        self._finish()

    def get_result(self) -> T:
        """Return the result in the caller's thread, or raise the error, after the end."""
        if isinstance(self.error, asyncio.CancelledError):
            raise Closed(f"{self.description}: the engine thread ended")
        if self.error is not None:
            raise self.error
        return cast(T, self.result)


_CURRENT_CALL: ContextVar[_ThreadCall[object]] = ContextVar("tallystick.call")


class EngineThread:
    """A daemon thread with a loop. Made by `engine_thread`."""

    def __init__(self) -> None:
        self.is_forked = False
        self._grace_s = _CALL_GRACE_S
        self._clients: WeakSet[ThreadClient] = WeakSet()
        self._calls: WeakSet[_ThreadCall[object]] = WeakSet()
        self._closing_tasks: set[asyncio.Task[None]] = set()
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop
        self._stop_event: asyncio.Event
        self._thread = threading.Thread(target=self._main, name="tallystick-engine", daemon=True)
        self._thread.start()
        if not self._ready.wait(_START_TIMEOUT_S):
            raise TimedOut("engine thread", int(_START_TIMEOUT_S * 1000), "starting the engine thread")

    def _main(self) -> None:
        mark_engine_thread()
        with asyncio.Runner(loop_factory=_new_loop) as runner:
            runner.run(self._run_until_stopped())

    async def _run_until_stopped(self) -> None:
        self._loop, self._stop_event = asyncio.get_running_loop(), asyncio.Event()
        self._ready.set()
        await self._stop_event.wait()

    @property
    def is_alive(self) -> bool:
        """Whether it can be used in this process."""
        return not self.is_forked and self._thread.is_alive()

    def run(
        self,
        coroutine: Coroutine[object, object, T],
        limit_s: float,
        description: str,
        unheard: Callable[[T], object] | None = None,
    ) -> T:
        """Run a coroutine on the loop and wait for its result.

        Args:
            limit_s: longest time that the coroutine takes by its own limits, without the callbacks of
                `run_in_caller`.
            description: named in errors.
            unheard: called, in this thread, with the result if the caller misses it because of an interrupt.
        Raises: the error of the coroutine; IllegalState on the engine thread itself and in a forked child;
            Closed when the thread has ended; TimedOut if the thread has not answered _CALL_GRACE_S after
            `limit_s`, with an unknown effect.
        """
        call = _ThreadCall[T](description)
        try:
            self._begin(call, coroutine)
            self._wait(call, limit_s)
            return call.get_result()
        except Empty:
            self._loop.call_soon_threadsafe(call.cancel)
            error = TimedOut("engine thread", int((limit_s + self._grace_s) * 1000), description)
            raise error.after(Effect.UNKNOWN) from None
        except ClientError:
            if not call.is_done:  # refused here, so the coroutine never began
                coroutine.close()
            raise
        except BaseException as exc:
            if exc is not call.error and not call.is_forked:
                self._cancel_interrupted(call, coroutine, unheard)
            raise

    def start(self, coroutine: Coroutine[object, object, T], description: str) -> "StartedCall[T]":
        """Start a coroutine on the loop without waiting for it.

        Raises: as `run`, before the coroutine has begun.
        """
        call = _ThreadCall[T](description)
        try:
            self._begin(call, coroutine)
        except ClientError:  # refused here
            coroutine.close()
            raise
        except BaseException:  # an interrupt: no caller would hear of it
            self.call_soon(lambda: call.cancel_unbegun(coroutine))
            raise
        return StartedCall(self, call)

    def call(self, function: Callable[[], T], doing: str) -> T:
        """Call a function, which does not wait, on the loop."""

        async def once() -> T:
            return function()

        return self.run(once(), 0, doing)

    def call_soon(self, function: Callable[[], object]) -> None:
        """Call a function on the loop without waiting for it; from any thread and any signal handler.

        Does nothing in a forked child: waking the loop would write to a descriptor of the parent's.
        """
        if self.is_forked:
            return
        with suppress(RuntimeError):  # the loop is closed, with everything on it
            self._loop.call_soon_threadsafe(function)

    def abandon(self, close: Callable[[float], Coroutine[object, object, None]]) -> None:
        """Close a client that was garbage-collected while open, without waiting."""

        def begin() -> None:
            closing = self._loop.create_task(close(0.0))
            self._closing_tasks.add(closing)
            closing.add_done_callback(self._closing_tasks.discard)

        self.call_soon(begin)

    def register(self, client: ThreadClient) -> None:
        """Register a client to close at the interpreter's exit, and to leave behind at a fork."""
        self._clients.add(client)

    def unregister(self, client: ThreadClient) -> None:
        self._clients.discard(client)

    def shut_down(self, limit_s: float) -> None:
        """Close the open clients and the thread. Takes little more than `limit_s`; never raises [CLI-63]."""
        until = monotonic() + limit_s
        self._grace_s = _EXIT_GRACE_S
        for client in list(self._clients):
            with suppress(Exception):  # at exit, no caller is left to handle it
                client.close(timeout_s=max(until - monotonic(), 0))
        try:
            self._loop.call_soon_threadsafe(self._stop_event.set)
        except RuntimeError:
            return
        self._thread.join(max(until - monotonic(), _EXIT_GRACE_S))

    def mark_forked(self) -> list[object]:
        """Mark the thread as the parent's, in a forked child.

        Returns: objects that must not be collected here, since their finalizers would reach the parent's
            loop.
        """
        self.is_forked = True
        _detach_epoll(self._loop)
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            # The task continues in the parent: no warning when the child ends.
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        clients, calls = list(self._clients), list(self._calls)
        for client in clients:
            client.mark_forked()
        for call in calls:
            call.fail_after_fork()
        return [self, *tasks, *clients, *calls]

    def check_process(self, doing: str) -> None:
        """Raise IllegalState in a forked child."""
        if self.is_forked:
            raise build_forked_error(doing)

    def _check_caller(self, doing: str) -> None:
        self.check_process(doing)
        check_may_wait(doing)

    def wait_for(self, call: _ThreadCall[T], limit_s: float) -> T:
        """Wait for a started call. An interrupt or the limit ends the wait, and the call goes on.

        Raises: as `run`.
        """
        self._check_caller(call.description)
        try:
            if not call.is_done:
                self._wait(call, limit_s)
        except Empty:
            error = TimedOut("engine thread", int((limit_s + self._grace_s) * 1000), call.description)
            raise error.after(Effect.UNKNOWN) from None
        return call.get_result()

    def _wait(self, call: _ThreadCall[T], limit_s: float) -> None:
        until = monotonic() + limit_s + self._grace_s
        while True:
            left_s = until - monotonic()
            try:
                errand = call.callbacks.get(timeout=max(min(left_s, _SIGNAL_CHECK_S), 0))
            except Empty:
                if left_s > _SIGNAL_CHECK_S:
                    continue
                raise
            if errand is None:
                return
            began = monotonic()
            errand()
            until += monotonic() - began

    def _begin(self, call: _ThreadCall[T], coroutine: Coroutine[object, object, T]) -> None:
        self._check_caller(call.description)
        self._calls.add(cast(_ThreadCall[object], call))
        try:
            self._loop.call_soon_threadsafe(call.begin, coroutine)
        except RuntimeError as exc:
            if not self._loop.is_closed():
                raise
            raise Closed(f"{call.description}: the engine thread has ended") from exc

    def _cancel_interrupted(
        self,
        call: _ThreadCall[T],
        coroutine: Coroutine[object, object, T],
        unheard: Callable[[T], object] | None,
    ) -> None:
        """Cancel the call and wait for its end, so that a repeated call does not overlap; keep its result."""
        self.call_soon(lambda: call.cancel_unbegun(coroutine))
        with suppress(Empty):
            while not call.is_done:
                call.callbacks.get(timeout=self._grace_s)
        if call.is_done and call.error is None and unheard is not None:
            unheard(cast(T, call.result))


class StartedCall(Generic[T]):
    """A coroutine on the engine thread, for which a caller may wait later, and more than once."""

    def __init__(self, thread: EngineThread, call: _ThreadCall[T]) -> None:
        self._thread, self._call = thread, call

    @property
    def is_done(self) -> bool:
        """Whether the coroutine has ended."""
        return self._call.is_done

    def wait(self, limit_s: float) -> T:
        """Wait for the result; see `EngineThread.wait_for`."""
        return self._thread.wait_for(self._call, limit_s)


async def run_in_caller(function: Callable[[], T]) -> T:
    """Call a function in the thread that waits in `run`, from the coroutine, and return its result.

    In a child that the function forks off, its errors leave `run` at once: no coroutine exists there to
    receive them.
    """
    loop, call = asyncio.get_running_loop(), _CURRENT_CALL.get()
    result_future = loop.create_future()
    failures: list[BaseException] = []

    def errand() -> None:
        result: T | None = None
        try:
            result = function()
        except BaseException as exc:  # including Ctrl-C: `run` raises it
            if call.is_forked:
                raise
            failures.append(exc)
        if not call.is_forked:
            loop.call_soon_threadsafe(_set_result, result_future, result)

    call.callbacks.put(errand)
    result = await result_future
    if failures:
        raise failures[0]
    return cast(T, result)


class TransactionalCalls:
    """Runs the transactional calls of one producer, of which none is legal twice."""

    def __init__(self, thread: EngineThread, limit_s: float) -> None:
        self._thread, self._limit_s = thread, limit_s
        # The answer to a call that the caller missed because of an interrupt [CLI-67].
        self._missed_answer: tuple[str, object] | None = None

    def forget_answer(self) -> None:
        """Forget what was missed: another transaction begins."""
        self._missed_answer = None

    def run(self, ask: Callable[[], Coroutine[object, object, T]], doing: str) -> T:
        """Run a call that is not legal twice; repeated after an interrupt, return its answer [CLI-67]."""
        self._thread.check_process(doing)
        if self._missed_answer is not None:
            former, answer = self._missed_answer
            if former == doing:
                return cast(T, answer)
            if doing in _ENDING_CALLS and former in _ENDING_CALLS:
                raise IllegalState(
                    f"{doing}: {former}() was interrupted as its answer came, and had succeeded: the "
                    "transaction is over"
                )
            self._missed_answer = None
        answers: list[T] = []
        try:
            run_on_thread, limit_s, keep = self._thread.run, self._limit_s, partial(self._keep_answer, doing)
            # One line: an exception of a signal handler between two lines would lose the answer.
            answers.append(run_on_thread(ask(), limit_s, doing, keep))
            return answers[0]
        except BaseException:
            if answers:
                self._keep_answer(doing, answers[0])
            raise

    def _keep_answer(self, doing: str, answer: object) -> None:
        self._missed_answer = doing, answer


class SingleUserCalls:
    """Calls of one consumer: a second thread is refused, since positions belong to a single reader [CLI-64].

    A callback of a rebalance runs in the thread that waits for `run`, and may call methods.
    """

    def __init__(self, thread: EngineThread, default_timeout_s: float) -> None:
        """Create calls that no thread makes yet.

        Args:
            default_timeout_s: limit of a call without a timeout of its own.
        """
        self._thread, self._default_timeout_s = thread, default_timeout_s
        self._lock = threading.RLock()  # reentrant: see the callbacks

    def run(
        self,
        coroutine: Coroutine[object, object, T],
        timeout_s: float | None,
        doing: str,
        on_lost_result: Callable[[T], object] | None = None,
    ) -> T:
        """Run a coroutine on the engine thread, and return its result.

        Args:
            timeout_s: limit, soon after which the call is given up; None for the default.
            on_lost_result: called with a result that an interrupt keeps from being returned.
        """
        limit_s = self._default_timeout_s if timeout_s is None else timeout_s
        try:
            self._acquire(doing)
        except IllegalState:
            coroutine.close()
            raise
        results: list[T] = []
        try:
            try:
                results.append(self._thread.run(coroutine, limit_s, doing, on_lost_result))
            finally:
                self._lock.release()
            return results[0]
        except BaseException:
            if results and on_lost_result is not None:
                on_lost_result(results[0])
            raise

    def call(self, function: Callable[[], T], doing: str) -> T:
        """Call a function on the engine thread, and return its result."""
        self._acquire(doing)
        try:
            return self._thread.call(function, doing)
        finally:
            self._lock.release()

    def _acquire(self, doing: str) -> None:
        self._thread.check_process(doing)  # first: a fork may not have copied the thread with the lock
        if not self._lock.acquire(blocking=False):
            raise IllegalState(f"{doing}: another thread uses this consumer, which is for one at a time")


def _set_result(future: "asyncio.Future[object]", result: object) -> None:
    if not future.done():
        future.set_result(result)


def _detach_epoll(loop: asyncio.AbstractEventLoop) -> None:
    """Give the loop its own epoll set in a forked child, in place of the one it shares with its parent.

    Closing a socket removes it from the set first, and the set is shared by both processes: if a transport
    were collected in the child, the parent would wait for ever for data on it.
    """
    if loop.is_closed() or not hasattr(select, "epoll"):  # a kqueue is not inherited
        return
    asyncios = getattr(getattr(loop, "_selector", None), "fileno", lambda: -1)
    epoll_fd = getattr(loop, "_get_backend_id", asyncios)()  # uvloop's
    if epoll_fd >= 0:
        with select.epoll() as own_epoll:
            os.dup2(own_epoll.fileno(), epoll_fd, inheritable=False)


# --------------------------------------------------------------------------- the process's own

_lock = threading.Lock()
_current: EngineThread | None = None


def engine_thread() -> EngineThread:
    """Return the engine thread of this process; the first call starts it.

    Raises: IllegalState where threads are replaced by greenlets.
    """
    global _current
    with _lock:
        if _current is None or not _current.is_alive:
            _check_threads()
            _current = EngineThread()
        return _current


def _check_threads() -> None:
    """Raise IllegalState where `threading` starts no threads.

    A greenlet that runs an event loop never lets another one run, so that every call would hang, and no time
    limit would end it. Sources: gevent.monkey.is_module_patched; eventlet.patcher.is_monkey_patched.
    """
    gevent, eventlet = sys.modules.get("gevent.monkey"), sys.modules.get("eventlet.patcher")
    if gevent is not None and gevent.is_module_patched("threading"):
        library, remedy = "gevent", "call gevent.monkey.patch_all(thread=False)"
    elif eventlet is not None and eventlet.is_monkey_patched("thread"):
        library, remedy = "eventlet", "call eventlet.monkey_patch(thread=False)"
    else:
        return
    raise IllegalState(
        f"{library} has replaced this process's threads, and a client of tallystick needs one of its own: "
        "nothing was opened. Use a worker with threads (gunicorn's gthread, Celery's threads or prefork), or "
        f"tallystick.aio in asyncio, or {remedy}"
    )


def _after_fork_in_child() -> None:
    global _lock, _current, _parent_objects
    _lock = threading.Lock()
    if _current is not None:
        _parent_objects = (_parent_objects, _current.mark_forked())
        _current = None


def _at_exit() -> None:
    if _current is not None and _current.is_alive:
        _current.shut_down(EXIT_TIMEOUT_S)


_parent_objects: object = None
os.register_at_fork(after_in_child=_after_fork_in_child)
atexit.register(_at_exit)
