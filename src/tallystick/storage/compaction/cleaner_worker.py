"""`python -m tallystick.storage.compaction.cleaner_worker`: one round of compaction in a separate process.

Reads one request, a line of JSON, from its input; writes a line of JSON for each finished group, then one
line with `done` or `failed`. Ends with the broker, too, when its output is closed.
"""

import json
import os
import sys
from contextlib import suppress
from typing import Final, TextIO

from msgspec.structs import asdict

from tallystick.storage.compaction.cleaner import CleanedGroup, CleaningRequest, clean_log
from tallystick.storage.fs import FileSystem, RealFileSystem, is_disk_full

# The broker's loop has priority on a busy machine.
_NICENESS: Final = 10


def run_request(fs: FileSystem, request_line: str, output: TextIO) -> bool:
    """Run the round that one line requests; return True if it was completed."""
    try:
        for step in clean_log(fs, CleaningRequest.from_json(json.loads(request_line))):
            kind = "group" if isinstance(step, CleanedGroup) else "done"
            _write_message(output, {"kind": kind, **asdict(step)})
    except BrokenPipeError:
        return False
    except Exception as exc:  # report every error, because the broker sees nothing but this output
        full = isinstance(exc, OSError) and is_disk_full(exc)
        _write_message(output, {"kind": "failed", "reason": f"{type(exc).__name__}: {exc}", "full": full})
        return False
    return True


def _write_message(output: TextIO, fields: dict[str, object]) -> None:
    output.write(f"{json.dumps(fields)}\n")
    output.flush()


def main() -> int:
    with suppress(OSError):
        os.nice(_NICENESS)
    return 0 if run_request(RealFileSystem(), sys.stdin.readline(), sys.stdout) else 1


if __name__ == "__main__":
    sys.exit(main())
