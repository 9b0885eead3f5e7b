"""How much there is to read, by the positions of batches alone: for readers who wait for a certain amount."""

from bisect import bisect_right

from tallystick.kernel.ids import Offset
from tallystick.storage.fs import StorageFailure
from tallystick.storage.log import Log


def readable_bytes(log: Log, offset: Offset, enough: int) -> int:
    """Bytes in the log from the batch that holds `offset` on, synced or not; counting ends at `enough`.

    Raises: StorageFailure. Cost: one look into an index, and one step a segment that is counted.
    """
    slot = max(0, bisect_right(log.segments, int(offset), key=lambda segment: segment.base_offset) - 1)
    try:
        found = log.segments[slot].size - log.segments[slot].find_position(offset)
    except OSError as exc:
        raise StorageFailure(log.directory, f"a read failed: {exc}") from exc
    while found < enough and (slot := slot + 1) < len(log.segments):
        found += log.segments[slot].size
    return found
