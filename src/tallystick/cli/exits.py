"""How a command ends.

Exit codes, so that scripts can tell (docs/adr/0030):

    0  done; for find-hanging also: nothing hangs, and every broker and partition was asked
    1  failed: the line on stderr says what may have happened
    2  wrong usage or settings; nothing was sent
    3  find-hanging: something hangs, or partition and coordinator contradict each other
    4  the answer is incomplete: stderr says which brokers or partitions could not be asked
    5  refused: it would break something and --force was not given, or it was not confirmed
    6  there is no such open transaction (any more)
  130  interrupted; a transaction was aborted
"""

import sys
from enum import IntEnum


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
    print(f"tallystick: {text}", file=sys.stderr)
    return code
