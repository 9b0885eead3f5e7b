"""Ctrl-C and SIGTERM in commands that run for long."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final, NoReturn

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def interruptible() -> Iterator[None]:
    """End the body on SIGTERM as on Ctrl-C, by KeyboardInterrupt."""
    former = {number: signal.signal(number, _raise_interrupt) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def ignore_interrupts() -> None:
    """Ignore interrupts in the rest of an `interruptible` body, all of whose waits have limits [CLI-2]."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _raise_interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def silence_stdout() -> None:
    """Redirect stdout, which is broken, to the null device, so that the flush at exit does not fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
