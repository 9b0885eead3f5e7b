"""The lease of the batch that is running, for an end of it that has no vote.

`stop()` in the middle of a batch makes Spark abort it before any task has reported: without a vote the driver
does not know its lease, and could only claim the prefix, which would fence a newer driver. So where the batch
began, a worker of the driver leaves the lease in a file that only processes of the same driver find: its name
has the driver's process in it. A function of `foreachBatch`, which is in the driver's own Python, keeps it
in memory. It is forgotten when the batch is committed or given up, so what is found is of a batch that is
neither. Nothing rests on it. Where it cannot be written or found, the next begin or `transactions resolve`
ends what is open, as after a crash.
"""

import os
import tempfile
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tallystick.spark.options.sink_options import SinkOptions
from tallystick.spark.protocol.committable import Lease, decode_lease, encode_lease, no_vote
from tallystick.spark.protocol.errors import BadCommittable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tallystick.spark.sink.context import Station

_PARENT: Final = 1  # of the fields behind the name in /proc/<pid>/stat
_STARTED: Final = 19
_DEPTH_MAX: Final = 8

_HERE: Final[dict[str, Lease]] = {}
"""Of the batches that this process has begun and will end itself."""


def keep(options: SinkOptions, lease: Lease) -> None:
    """In the process that begins a batch and ends it, too."""
    _HERE[_about(options)] = lease


def leave(options: SinkOptions, lease: Lease) -> None:
    """On the driver, where a batch begins, for another process of it."""
    path = _path(options, _driver())
    if path is None:
        return
    with suppress(OSError):
        path.parent.mkdir(mode=0o700, exist_ok=True)
        fresh = path.with_suffix(f".{os.getpid()}")
        fresh.write_bytes(encode_lease(lease))
        fresh.replace(path)


def find(options: SinkOptions, driver: str | None = None) -> Lease | None:
    """Return the lease of the batch that is running under these options, or was left.

    Args:
        driver: as `driver_of` has it, in a process that no Java has started.
    """
    here = _HERE.get(_about(options))
    path = _path(options, driver or _driver())
    if here is not None or path is None:
        return here
    try:
        return decode_lease(path.read_bytes())
    except (OSError, BadCommittable):
        return None


def forget(options: SinkOptions, driver: str | None = None) -> None:
    """The batch was committed, or given up."""
    _HERE.pop(_about(options), None)
    path = _path(options, driver or _driver())
    if path is not None:
        with suppress(OSError):
            path.unlink()


def settle(station: "Station", driver: str | None) -> None:
    """Give up the batch that is running, or was left, if there is one and the prefix is still its."""
    lease = find(station.options, driver)
    if lease is not None and station.give_up([no_vote(lease)]):
        forget(station.options, driver)


def driver_of(spark: "SparkSession") -> str | None:
    """The process that the Python workers of a session's driver descend from; None where it cannot be told.

    Under Spark Connect it is on another host.
    """
    java = getattr(spark, "_jvm", None)
    if java is None:
        return None
    pid = int(java.java.lang.ProcessHandle.current().pid())
    try:
        return f"{pid}:{_stat(pid)[1][_STARTED]}"
    except (OSError, ValueError, IndexError):
        return None


def _about(options: SinkOptions) -> str:
    return f"{options.client.get('bootstrap.servers')} {options.prefix}"


def _path(options: SinkOptions, driver: str | None) -> Path | None:
    if driver is None:
        return None
    folder = Path(tempfile.gettempdir(), f"tallystick-leases-{os.getuid()}")
    return folder / f"{sha256(f'{driver} {_about(options)}'.encode()).hexdigest()[:32]}.lease"


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
