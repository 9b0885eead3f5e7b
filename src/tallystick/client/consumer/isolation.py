"""Isolation level: which batches of a fetched partition a `read_committed` consumer sees. Pure.

A Fetch response names the aborted transactions that overlap its data: a producer id and the offset where its
transaction began. Batches are visited in order. A transaction is open from its first offset until the ABORT
marker of its producer; data batches of an open aborted transaction are left out [CLI-33]. A producer has one
transaction at a time, so its id is enough. Markers are left out at every isolation level.

Source: KIP-98 "Consumer"; CompletedFetch.
"""

from collections.abc import Iterable

from tallystick.protocol.records import BatchHeader, Buffer, ControlType, read_marker


class AbortedTransactions:
    """Aborted transactions in one partition of a response; asked about its batches in order."""

    def __init__(self, aborted: Iterable[tuple[int, int]] = ()) -> None:
        """Take the aborted transactions of a response.

        Args:
            aborted: producer id and first offset of each, in any order.
        """
        self._upcoming = sorted(((first, producer) for producer, first in aborted), reverse=True)
        self._open_producer_ids: set[int] = set()

    def is_hidden(self, header: BatchHeader, buf: Buffer, at: int) -> bool:
        """Tell whether the batch at `at` is hidden from the consumer.

        Raises: InvalidBatch for a malformed marker.
        """
        last_offset = header.last_offset
        while self._upcoming and self._upcoming[-1][0] <= last_offset:
            self._open_producer_ids.add(self._upcoming.pop()[1])
        if header.is_control:
            if header.producer_id in self._open_producer_ids:
                marker = read_marker(buf, at)
                if marker is not None and marker.control_type is ControlType.ABORT:
                    self._open_producer_ids.discard(header.producer_id)
            return True
        return header.is_transactional and header.producer_id in self._open_producer_ids
