"""Exit of a command: on its own, or by Ctrl-C or SIGTERM.

Exit codes, so that scripts can tell (docs/adr/0020):

    0  done; for find-hanging also: nothing hangs, and every broker and partition answered
    1  failed: the line on stderr says what may have happened
    2  wrong usage or settings; nothing was sent
    3  find-hanging: something hangs, or partition and coordinator contradict each other; top --once: a
       transaction needs an operator
    4  the answer is incomplete: stderr, or top's summary, says which brokers or partitions did not answer
    5  refused: it would break something and --force was not given, or it was not confirmed
    6  there is no such open transaction (any more)
  130  interrupted; a transaction was aborted
"""

import os
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from types import FrameType
from typing import Final, NoReturn

from tallystick.cli.terminal_text import make_printable

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class ExitCode(IntEnum):
    """Exit code of a command."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    HANGING = 3
    INCOMPLETE = 4
    REFUSED = 5
    NOTHING_OPEN = 6
    INTERRUPTED = 130


def print_error(text: str, code: ExitCode) -> ExitCode:
    """Print one line on stderr, and return the exit code."""
    print(f"tallystick: {make_printable(text)}", file=sys.stderr)
    return code


def print_failure(subject: str, text: str, code: ExitCode) -> ExitCode:
    """Print what failed for a subject, which the text may name itself; return the exit code."""
    is_named = subject in text.partition(": ")[0]
    return print_error(text if is_named else f"{subject}: {text}", code)


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
    # A signal may come between the making of a call's coroutine and its start, which is no defect to warn of.
    warnings.filterwarnings("ignore", message="coroutine .* was never awaited", category=RuntimeWarning)
    raise KeyboardInterrupt


def open_closed_streams() -> bool:
    """Give the null device to standard streams that are closed; return whether stdout was open.

    The next socket would get their numbers otherwise, and what is printed would go to a broker.
    """
    has_output = sys.stdout is not None
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free: this one
            setattr(sys, name, os.fdopen(number, "w" if number else "r", encoding="utf-8", closefd=False))
    return has_output


def silence_stdout() -> None:
    """Redirect stdout, which is broken, to the null device, so that the flush at exit does not fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
