"""Storage of the running batch's lease, for an abort that gets no vote.

If a query is stopped in the middle of a batch, Spark aborts the batch before any task has reported. Without a
vote the driver does not know its lease, and could only claim the prefix, which would fence a newer driver. So
the driver's worker that begins the batch leaves the lease in a file. The file is in the folder that Spark
makes for the files of this driver, and deletes at its end, so only processes of the same driver find it. A
`foreachBatch` function runs in the driver's own Python and keeps the lease in memory. The lease is removed
when the batch is committed or given up, so a lease that is found belongs to an unfinished batch.

This is only an optimisation: without the file, the next begin or `transactions resolve` ends what is open, as
after a crash.
"""

import os
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark import SparkFiles

from tallystick.spark.options.sink_options import SinkOptions
from tallystick.spark.protocol.committable import BatchLease, build_empty_vote, decode_lease, encode_lease
from tallystick.spark.protocol.errors import BadCommittable

if TYPE_CHECKING:
    from tallystick.spark.sink.driver.context import SinkContext

_LEASES: Final[dict[str, BatchLease]] = {}
"""Leases of the batches that this process has begun and will end itself."""


def keep_in_memory(options: SinkOptions, lease: BatchLease) -> None:
    """Keep a lease in memory, in a process that both begins and ends the batch."""
    _LEASES[_build_lease_key(options)] = lease


def save_lease(options: SinkOptions, lease: BatchLease) -> None:
    """Leave a lease in a file, in the process that begins a batch, for another process of this driver."""
    path = _find_lease_path(options)
    if path is None:
        return
    with suppress(OSError):
        draft = path.with_suffix(f".{os.getpid()}")
        draft.write_bytes(encode_lease(lease))
        draft.replace(path)


def find_lease(options: SinkOptions) -> BatchLease | None:
    """Return the lease of the running or abandoned batch of these options; None if there is none."""
    lease = _LEASES.get(_build_lease_key(options))
    path = _find_lease_path(options)
    if lease is not None or path is None:
        return lease
    try:
        return decode_lease(path.read_bytes())
    except (OSError, BadCommittable):
        return None


def remove_lease(options: SinkOptions) -> None:
    """Remove the lease, after the batch was committed or given up."""
    _LEASES.pop(_build_lease_key(options), None)
    path = _find_lease_path(options)
    if path is not None:
        with suppress(OSError):
            path.unlink()


def abort_unfinished_batch(context: "SinkContext") -> None:
    """Abort the running or abandoned batch, if there is one and it still owns the prefix."""
    lease = find_lease(context.options)
    if lease is not None and context.try_abort([build_empty_vote(lease)]):
        remove_lease(context.options)


def _build_lease_key(options: SinkOptions) -> str:
    return f"{options.client.get('bootstrap.servers')} {options.prefix}"


def _find_lease_path(options: SinkOptions) -> Path | None:
    """Return the path of a lease's file; None in a process without a session, as in a client of Connect."""
    try:
        folder = Path(SparkFiles.getRootDirectory())
    except AssertionError:  # of PySpark's
        return None
    # A Connect session has a folder of its own in it, which may not exist.
    if folder.name == os.environ.get("SPARK_JOB_ARTIFACT_UUID"):
        folder = folder.parent
    return folder / f"tallystick-{sha256(_build_lease_key(options).encode()).hexdigest()[:32]}.lease"
