"""Fork detection: clients, futures and calls that were open at a fork go on in the parent only [CLI-61].

A fork copies the memory and one thread. The threads that would settle a future or answer a call do not exist
in the child, so a wait there would never end; it raises instead.
"""

import os

from tallystick.client.errors import IllegalState

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


def _renew_process_token() -> None:
    global _process_token
    _process_token = object()


os.register_at_fork(after_in_child=_renew_process_token)
