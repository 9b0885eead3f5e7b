"""Waits that would never end: refused on an engine thread [CLI-60] and after a fork [CLI-61].

Callbacks of deliveries run on the engine thread of the synchronous clients, which alone settles what a call
or a delivery waits for. Other threads with an event loop may wait: a program with a loop of its own may use
a synchronous client.

A fork copies the memory and one thread. The threads that would settle a future or answer a call do not exist
in the child: clients, futures and calls that were open at the fork continue in the parent only.
"""

import os
import threading

from tallystick.client.errors import IllegalState
from tallystick.kernel.errors import Effect


class _ThreadRole(threading.local):
    """Role of the current thread."""

    is_engine = False


_role = _ThreadRole()


def mark_engine_thread() -> None:
    """Record that the current thread runs the loop of synchronous clients, for as long as it lives."""
    _role.is_engine = True


def check_may_wait(doing: str, effect: Effect = Effect.NONE) -> None:
    """Raise IllegalState on an engine thread; `effect` is that of what is waited for."""
    if _role.is_engine:
        error = IllegalState(
            f"{doing}: called from a callback on the engine thread, which would wait for itself; "
            "hand the work to a thread of your own"
        )
        raise error.after(effect)


def ends_program(error: BaseException) -> bool:
    """Return whether an error of a callback is to end the program.

    Not on an engine thread: there it would end the thread, and leave all clients of the process without an
    answer. `sys.exit()` ends no program outside its main thread.
    """
    return isinstance(error, (SystemExit, KeyboardInterrupt)) and not _role.is_engine


def _forget_thread_role() -> None:
    """Forget the role in a forked child: the thread that forked is no engine thread there."""
    global _role
    _role = _ThreadRole()


os.register_at_fork(after_in_child=_forget_thread_role)


_process_token: object = object()


def get_process_token() -> object:
    """Return a token for this process, different in every forked child. Cost: none, unlike `os.getpid`."""
    return _process_token


def build_forked_error(doing: str) -> IllegalState:
    """Return the error for a call in a child about something that was opened before the fork."""
    return IllegalState(
        f"{doing}: this client was opened before the fork, and is the parent process's: nothing was done "
        "here, and what it had under way goes on there; open one in this process"
    )


class ProcessCheck:
    """Refuses the calls on a client in a forked child [CLI-61]: its sockets are its parent's."""

    __slots__ = ("_token",)

    def __init__(self) -> None:
        self._token = get_process_token()

    @property
    def is_forked(self) -> bool:
        """Whether this is a child, forked off after the client was made."""
        return self._token is not _process_token

    def __call__(self, doing: str) -> None:
        """Raise IllegalState in a forked child."""
        if self._token is not _process_token:
            raise build_forked_error(doing)


def _renew_process_token() -> None:
    global _process_token
    _process_token = object()


os.register_at_fork(after_in_child=_renew_process_token)
