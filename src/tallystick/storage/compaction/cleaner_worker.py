"""`python -m tallystick.storage.compaction.cleaner_worker`: one round of compaction in a process of its own.

Reads one request, a line of JSON, from its input; writes a line of JSON for each finished group, then one
that says `done` or `failed`. Ends when the broker ends, too: nobody reads its output any more.
"""

import json
import os
import sys
from contextlib import suppress
from dataclasses import asdict
from typing import Final, TextIO

from tallystick.storage.compaction.cleaner import CleanedGroup, CleaningRequest, clean
from tallystick.storage.fs import FileSystem, RealFileSystem, is_full

# The loop of the broker comes first on a busy machine.
_NICENESS: Final = 10


def work(fs: FileSystem, request_line: str, output: TextIO) -> bool:
    """Do what one line asks for; True when the round was finished."""
    try:
        for step in clean(fs, CleaningRequest.from_json(json.loads(request_line))):
            kind = "group" if isinstance(step, CleanedGroup) else "done"
            _say(output, {"kind": kind, **asdict(step)})
    except BrokenPipeError:
        return False
    except Exception as exc:  # whatever it is: a child that ends without a word leaves no reason behind
        full = isinstance(exc, OSError) and is_full(exc)
        _say(output, {"kind": "failed", "reason": f"{type(exc).__name__}: {exc}", "full": full})
        return False
    return True


def _say(output: TextIO, fields: dict[str, object]) -> None:
    output.write(f"{json.dumps(fields)}\n")
    output.flush()


def main() -> int:
    with suppress(OSError):
        os.nice(_NICENESS)
    return 0 if work(RealFileSystem(), sys.stdin.readline(), sys.stdout) else 1


if __name__ == "__main__":
    sys.exit(main())
