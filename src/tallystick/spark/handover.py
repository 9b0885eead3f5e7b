"""The lease, for an abort that has no vote.

`stop()` in the middle of a batch makes Spark abort it before any task has reported: without a vote the driver
does not know its lease, and could only claim the prefix, which would fence a newer driver. So where the batch
began, a worker of the driver leaves the lease in a file that only processes of the same driver find: its name
has the driver's process in it. Nothing rests on it. Where it cannot be written or found, the next begin or
`transactions resolve` ends what is open, as after a crash.
"""

import os
import tempfile
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Final

from tallystick.spark.committable import Lease, decode_lease, encode_lease
from tallystick.spark.sink_errors import BadCommittable
from tallystick.spark.sink_options import SinkOptions

_PARENT: Final = 1  # of the fields behind the name in /proc/<pid>/stat
_STARTED: Final = 19
_DEPTH_MAX: Final = 8


def leave(options: SinkOptions, lease: Lease) -> None:
    """On the driver, where a batch begins."""
    path = _path(options)
    if path is None:
        return
    with suppress(OSError):
        path.parent.mkdir(mode=0o700, exist_ok=True)
        fresh = path.with_suffix(f".{os.getpid()}")
        fresh.write_bytes(encode_lease(lease))
        fresh.replace(path)


def take(options: SinkOptions) -> Lease | None:
    """On the driver, where it ends: the lease of the batch that began last, and the file is gone."""
    path = _path(options)
    if path is None:
        return None
    try:
        data = path.read_bytes()
        path.unlink()
        return decode_lease(data)
    except (OSError, BadCommittable):
        return None


def _path(options: SinkOptions) -> Path | None:
    driver = _driver()
    if driver is None:
        return None
    about = f"{driver} {options.client.get('bootstrap.servers')} {options.prefix}"
    folder = Path(tempfile.gettempdir(), f"tallystick-leases-{os.getuid()}")
    return folder / f"{sha256(about.encode()).hexdigest()[:32]}.lease"


def _driver() -> str | None:
    """The process that the Python workers of a driver descend from: the nearest that is not Python.

    None where processes cannot be looked at, as outside Linux.
    """
    try:
        pid = os.getpid()
        own = _stat(pid)[0]
        for _ in range(_DEPTH_MAX):
            name, fields = _stat(pid)
            if name != own:
                return f"{pid}:{fields[_STARTED]}"
            pid = int(fields[_PARENT])
    except (OSError, ValueError, IndexError):
        pass
    return None


def _stat(pid: int) -> tuple[str, list[str]]:
    """The name of a process, and what stands behind it."""
    name, _, rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
    return name.partition("(")[2], rest.split()
