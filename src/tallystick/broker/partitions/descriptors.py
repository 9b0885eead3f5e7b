"""How many descriptors connections and partitions may take, so that the broker never lacks one. Pure.

A process that has used up RLIMIT_NOFILE cannot start a segment, write an index or sync a directory, and
clients decide whether it gets there. So what the broker itself needs is set aside first, and both
`max.connections` and `max.partitions` end where that would be touched (docs/adr/0013).

    fixed       the lock, the metadata, the cleaner's pipes, what syncing threads and checkpoints open and
                close, connections that are accepted and refused at once
    residents   closed segments that are kept open for readers
    partitions  the file that grows, and one that is open while the next segment is made
    the rest    connections, at least `CONNECTIONS_MIN` of them
"""

from typing import Final

from tallystick.kernel.ids import INT32_MAX
from tallystick.kernel.value import frozen

FIXED: Final = 96
RESIDENTS_MAX: Final = 256
PER_PARTITION: Final = 2
# What is kept free of partitions, so that a broker with many of them can still be reached.
CONNECTIONS_MIN: Final = 32


@frozen
class Descriptors:
    """What a limit of open files is shared out into. `limit` None: there is none."""

    limit: int | None

    @property
    def residents_max(self) -> int:
        """Closed segments kept open by all logs together; fewer where descriptors are few."""
        return RESIDENTS_MAX if self.limit is None else max(1, min(RESIDENTS_MAX, self.limit // 8))

    @property
    def partitions_max(self) -> int:
        """Partitions there may be, at least one."""
        return max(1, (self._rest - CONNECTIONS_MIN) // PER_PARTITION)

    def connections_max(self, partitions: int) -> int:
        """Connections there may be beside so many partitions, at least one."""
        return max(1, self._rest - PER_PARTITION * partitions)

    @property
    def _rest(self) -> int:
        return INT32_MAX if self.limit is None else self.limit - FIXED - self.residents_max


UNLIMITED: Final = Descriptors(None)
