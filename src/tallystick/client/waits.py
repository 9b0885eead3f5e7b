"""Waits of callers: refused on an engine thread, where they would wait for themselves [CLI-60].

Callbacks of deliveries run on the engine thread of the synchronous clients, which alone settles what a call
or a delivery waits for. Other threads with an event loop may wait: a program with a loop of its own may use
a synchronous client.
"""

import os
import threading

from tallystick.client.errors import IllegalState
from tallystick.kernel.errors import Effect


class _ThreadRole(threading.local):
    """What the current thread is."""

    is_engine = False


_role = _ThreadRole()


def mark_engine_thread() -> None:
    """Note that the current thread runs the loop of synchronous clients, for as long as it lives."""
    _role.is_engine = True


def check_may_wait(doing: str, effect: Effect = Effect.NONE) -> None:
    """Raise IllegalState on an engine thread; `effect` is that of what is waited for."""
    if _role.is_engine:
        error = IllegalState(
            f"{doing}: called from a callback on the engine thread, which would wait for itself; "
            "hand the work to a thread of your own"
        )
        raise error.after(effect)


def _forget_thread_role() -> None:
    """Forget the role in a forked child: the thread that forked is no engine thread there."""
    global _role
    _role = _ThreadRole()


os.register_at_fork(after_in_child=_forget_thread_role)
