"""Ctrl-C and SIGTERM: how a command that reads or writes for long is ended."""

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
    """SIGTERM ends the body as Ctrl-C does, with KeyboardInterrupt."""
    former = {number: signal.signal(number, _interrupt) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def hold() -> None:
    """Nothing interrupts the rest of an `interruptible` body, all of whose waits have limits [CLI-2]."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def stop_printing() -> None:
    """Our output goes nowhere any more: let the interpreter not fail when it flushes at its exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
