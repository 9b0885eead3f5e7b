"""Polling for a condition: how a test waits for a real process."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_POLL_S = 0.01


def eventually(condition: Callable[[], T], deadline_s: float = 30.0) -> T:
    """Call `condition` until it returns a true value, and return that value.

    Args:
        condition: called about a hundred times a second; an AssertionError in it counts as false.
        deadline_s: seconds after which to give up.

    Raises:
        TimeoutError: with the last assertion's text, when the deadline passes.
    """
    give_up_at = time.monotonic() + deadline_s
    why = "it stayed false"
    while time.monotonic() < give_up_at:
        try:
            result = condition()
        except AssertionError as exc:
            why = str(exc) or repr(exc)
        else:
            if result:
                return result
        time.sleep(_POLL_S)
    raise TimeoutError(f"not within {deadline_s:g} s: {why}")
