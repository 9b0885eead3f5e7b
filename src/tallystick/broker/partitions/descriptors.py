"""Budget of file descriptors for connections and partitions, so that the broker never runs out. Pure.

A process at RLIMIT_NOFILE cannot start a segment, write an index or sync a directory, and clients decide how
close it gets. So the broker's own need is set aside first, and both `max.connections` and `max.partitions`
end before they touch it (docs/adr/0012).

    fixed       the lock, the metadata, the cleaner's pipes, files that syncing threads and checkpoints open
                and close, connections that are accepted and refused immediately
    residents   closed segments that are kept open for readers
    partitions  the active segment's file, and one that is open while the next segment is created
    the rest    connections, at least `CONNECTIONS_MIN` of them
"""

from typing import Final

from tallystick.kernel.ids import INT32_MAX
from tallystick.kernel.value import Value

FIXED_DESCRIPTORS: Final = 96
OPEN_SEGMENTS_MAX: Final = 256
DESCRIPTORS_PER_PARTITION: Final = 2
# Descriptors that partitions must leave, so that a broker with many of them can still be reached.
CONNECTIONS_MIN: Final = 32


class DescriptorBudget(Value):
    """Shares of the limit of open files. `limit` None: there is no limit."""

    limit: int | None

    @property
    def open_segments_max(self) -> int:
        """Closed segments kept open by all logs together; fewer under a low limit."""
        return OPEN_SEGMENTS_MAX if self.limit is None else max(1, min(OPEN_SEGMENTS_MAX, self.limit // 8))

    @property
    def partitions_max(self) -> int:
        """Number of partitions allowed, at least one."""
        return max(1, (self._available - CONNECTIONS_MIN) // DESCRIPTORS_PER_PARTITION)

    def limit_connections(self, partitions: int) -> int:
        """Return the number of connections allowed in addition to `partitions`, at least one."""
        return max(1, self._available - DESCRIPTORS_PER_PARTITION * partitions)

    @property
    def _available(self) -> int:
        return INT32_MAX if self.limit is None else self.limit - FIXED_DESCRIPTORS - self.open_segments_max


UNLIMITED: Final = DescriptorBudget(None)
