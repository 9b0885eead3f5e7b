"""Calls of one consumer from one thread at a time, carried out on the engine thread."""

import threading
from collections.abc import Callable, Coroutine
from typing import TypeVar

from tallystick.client.blocking.thread import EngineThread
from tallystick.client.errors import IllegalState

T = TypeVar("T")


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
