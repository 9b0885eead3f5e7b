"""Storage of the running batch's lease, for an abort that gets no vote.

If a query is stopped in the middle of a batch, Spark aborts the batch before any task has reported. Without a
vote the driver does not know its lease, and could only claim the prefix, which would fence a newer driver. So
the driver's worker that begins the batch leaves the lease in a file. The file's name depends on the driver's
process, so that only processes of the same driver find it. A `foreachBatch` function runs in the driver's own
Python and keeps the lease in memory. The lease is forgotten when the batch is committed or given up, so a
lease that is found belongs to an unfinished batch.

This is only an optimisation: without the file, the next begin or `transactions resolve` ends what is open, as
after a crash.
"""

import os
import tempfile
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tallystick.spark.options.sink_options import SinkOptions
from tallystick.spark.protocol.committable import BatchLease, build_empty_vote, decode_lease, encode_lease
from tallystick.spark.protocol.errors import BadCommittable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tallystick.spark.sink.context import SinkContext

_PARENT_FIELD: Final = 1  # index among the fields after the name in /proc/<pid>/stat, as is _STARTED
_START_TIME_FIELD: Final = 19
_ANCESTORS_MAX: Final = 8

_LEASES: Final[dict[str, BatchLease]] = {}
"""Leases of the batches that this process has begun and will end itself."""


def keep_in_memory(options: SinkOptions, lease: BatchLease) -> None:
    """Keep a lease in memory, in a process that both begins and ends the batch."""
    _LEASES[_build_lease_key(options)] = lease


def save_lease(options: SinkOptions, lease: BatchLease) -> None:
    """Leave a lease in a file, in the process that begins a batch, for another process of this driver."""
    path = _find_lease_path(options, _identify_own_driver())
    if path is None:
        return
    with suppress(OSError):
        path.parent.mkdir(mode=0o700, exist_ok=True)
        draft = path.with_suffix(f".{os.getpid()}")
        draft.write_bytes(encode_lease(lease))
        draft.replace(path)


def find_lease(options: SinkOptions, driver: str | None = None) -> BatchLease | None:
    """Return the lease of the running or abandoned batch of these options; None if there is none.

    Args:
        driver: the result of `identify_driver`; needed in a process that Java has not started.
    """
    lease = _LEASES.get(_build_lease_key(options))
    path = _find_lease_path(options, driver or _identify_own_driver())
    if lease is not None or path is None:
        return lease
    try:
        return decode_lease(path.read_bytes())
    except (OSError, BadCommittable):
        return None


def remove_lease(options: SinkOptions, driver: str | None = None) -> None:
    """Remove the lease, after the batch was committed or given up."""
    _LEASES.pop(_build_lease_key(options), None)
    path = _find_lease_path(options, driver or _identify_own_driver())
    if path is not None:
        with suppress(OSError):
            path.unlink()


def abort_unfinished_batch(context: "SinkContext", driver: str | None) -> None:
    """Abort the running or abandoned batch, if there is one and it still owns the prefix."""
    lease = find_lease(context.options, driver)
    if lease is not None and context.try_abort([build_empty_vote(lease)]):
        remove_lease(context.options, driver)


def identify_driver(spark: "SparkSession") -> str | None:
    """Identify the Java process that starts the Python workers of a session's driver; None if unknown.

    Under Spark Connect it is unknown, since it is on another host.
    """
    java = getattr(spark, "_jvm", None)
    if java is None:
        return None
    pid = int(java.java.lang.ProcessHandle.current().pid())
    try:
        return f"{pid}:{_read_process_stat(pid)[1][_START_TIME_FIELD]}"
    except (OSError, ValueError, IndexError):
        return None


def _build_lease_key(options: SinkOptions) -> str:
    return f"{options.client.get('bootstrap.servers')} {options.prefix}"


def _find_lease_path(options: SinkOptions, driver: str | None) -> Path | None:
    if driver is None:
        return None
    folder = Path(tempfile.gettempdir(), f"tallystick-leases-{os.getuid()}")
    return folder / f"{sha256(f'{driver} {_build_lease_key(options)}'.encode()).hexdigest()[:32]}.lease"


def _identify_own_driver() -> str | None:
    """Identify the process that starts the driver's Python workers: the nearest ancestor that is not Python.

    None without /proc, that is, outside Linux.
    """
    try:
        pid = os.getpid()
        own_name = _read_process_stat(pid)[0]
        for _ in range(_ANCESTORS_MAX):
            name, fields = _read_process_stat(pid)
            if name != own_name:
                return f"{pid}:{fields[_START_TIME_FIELD]}"
            pid = int(fields[_PARENT_FIELD])
    except (OSError, ValueError, IndexError):
        pass
    return None


def _read_process_stat(pid: int) -> tuple[str, list[str]]:
    """Return the name of a process, and the fields after it in /proc/<pid>/stat."""
    name, _, fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
    return name.partition("(")[2], fields.split()
