"""What a process is forked off with: clients, futures and calls that go on in its parent alone [CLI-61].

A fork copies the memory and one thread. What would have settled a future, or answered a call, is not here:
who waits for it waits for ever, unless told.
"""

import os

from tallystick.client.errors import IllegalState

_process: object = object()


def this_process() -> object:
    """What stands for this process; another one in every forked child. Cost: none, unlike `os.getpid`."""
    return _process


def forked(doing: str) -> IllegalState:
    """What a call says in a child if it is about something that was opened before the fork."""
    return IllegalState(
        f"{doing}: this client was opened before the fork, and is the parent process's: nothing was done "
        "here, and what it had under way goes on there; open one in this process"
    )


def _in_forked_child() -> None:
    global _process
    _process = object()


os.register_at_fork(after_in_child=_in_forked_child)
