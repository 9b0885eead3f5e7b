"""What a reader of committed records sees of a fetched partition. Pure.

The answer to a Fetch names the aborted transactions that reach into it: a producer and the offset where its
transaction began. Batch by batch in order, those that have begun are open; an ABORT marker of the producer
closes one; the data of an open one is left out [CLI-33]. A producer has one transaction at a time, so its id
is enough. Markers are nobody's data and are left out for every reader.

Source: KIP-98 "Consumer"; CompletedFetch.
"""

from collections.abc import Iterable

from tallystick.protocol.records import BatchHeader, Buffer, ControlType, read_marker


class AbortedData:
    """The aborted transactions of one answer for one partition; asked about its batches in order."""

    def __init__(self, aborted: Iterable[tuple[int, int]] = ()) -> None:
        """Args:
        aborted: producer id and first offset of each, in any order.
        """
        self._coming = sorted(((first, producer) for producer, first in aborted), reverse=True)
        self._open: set[int] = set()

    def hides(self, header: BatchHeader, buf: Buffer, at: int) -> bool:
        """Is the batch at `at` none of the reader's business?

        Raises: InvalidBatch for a malformed marker.
        """
        last_offset = header.last_offset
        while self._coming and self._coming[-1][0] <= last_offset:
            self._open.add(self._coming.pop()[1])
        if header.is_control:
            if header.producer_id in self._open:
                marker = read_marker(buf, at)
                if marker is not None and marker.type is ControlType.ABORT:
                    self._open.discard(header.producer_id)
            return True
        return header.is_transactional and header.producer_id in self._open
