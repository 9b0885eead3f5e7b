"""The number of bytes available to read, from batch positions only: for fetches with a minimum size."""

from bisect import bisect_right

from tallystick.kernel.ids import Offset
from tallystick.storage.fs import StorageFailure
from tallystick.storage.log import Log


def count_readable_bytes(log: Log, offset: Offset, enough: int) -> int:
    """Return the bytes from the batch that holds `offset` to the log end; counting stops at `enough`.

    Bytes not yet synced count, too.

    Raises: StorageFailure. Cost: one index lookup, and one step per segment counted.
    """
    slot = max(0, bisect_right(log.segments, int(offset), key=lambda segment: segment.base_offset) - 1)
    try:
        found = log.segments[slot].size - log.segments[slot].find_position(offset)
    except OSError as exc:
        raise StorageFailure(log.directory, f"a read failed: {exc}") from exc
    while found < enough and (slot := slot + 1) < len(log.segments):
        found += log.segments[slot].size
    return found
