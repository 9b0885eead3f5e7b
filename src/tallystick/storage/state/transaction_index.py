"""The aborted transactions of a segment: Kafka's `.txnindex`.

An entry is written when an abort marker is appended, into the index of the segment that holds the *marker*;
the transaction may have begun many segments earlier. A read_committed consumer gets the entries that
overlap the fetched range and drops the records itself.

Entry (34 bytes, big endian): int16 version 0, int64 producer id, first offset, last offset (the
marker's), last stable offset when the marker was appended.

Source: Kafka's AbortedTxn, TransactionIndex; KIP-98.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from struct import Struct
from typing import Final, NamedTuple

from tallystick.kernel.check import check
from tallystick.protocol.records.batch import Buffer
from tallystick.storage.checkpoints.checkpoint_text import MalformedFile

ABORTED_VERSION: Final = 0

_ENTRY: Final = Struct(">hqqqq")
ABORTED_ENTRY_SIZE: Final = _ENTRY.size


class AbortedTxn(NamedTuple):
    """An aborted transaction.

    Its records lie between `first_offset` and `last_offset` (the marker's), among those of other producers.
    `last_stable_offset`: the last stable offset when the marker was written.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def encode_aborted(txn: AbortedTxn) -> bytes:
    """Encode one entry as it is appended to the file."""
    return _ENTRY.pack(ABORTED_VERSION, *txn)


def decode_aborted(data: Buffer, file: str = "transaction index") -> tuple[list[AbortedTxn], int]:
    """Decode a file; return its entries and the bytes they take, leaving out a torn last entry.

    Raises: MalformedFile for a version newer than ours, and for markers out of order.
    """
    whole = len(data) - len(data) % ABORTED_ENTRY_SIZE
    txns: list[AbortedTxn] = []
    for at in range(0, whole, ABORTED_ENTRY_SIZE):
        version, *fields = _ENTRY.unpack_from(data, at)
        txn = AbortedTxn(*fields)
        if version != ABORTED_VERSION:
            raise MalformedFile(file, at, f"version {ABORTED_VERSION}", f"version {version}")
        if txns and txn.last_offset <= txns[-1].last_offset:
            raise MalformedFile(file, at, f"a marker after {txns[-1].last_offset}", str(txn.last_offset))
        if not 0 <= txn.first_offset <= txn.last_offset:
            raise MalformedFile(file, at, "a first offset up to the marker's", str(txn))
        txns.append(txn)
    return txns, whole


class TransactionIndex:
    """The entries of one segment in memory, ordered by marker. Owned by the segment.

    The owner of the segment's files writes the `.txnindex` file, and calls `append` here after that.
    """

    __slots__ = ("_txns",)

    def __init__(self, txns: Iterable[AbortedTxn] = ()) -> None:
        self._txns: list[AbortedTxn] = list(txns)

    def __len__(self) -> int:
        return len(self._txns)

    def __iter__(self) -> Iterator[AbortedTxn]:
        return iter(self._txns)

    def append(self, txn: AbortedTxn) -> None:
        """Add the transaction whose marker was appended last."""
        check(
            not self._txns or self._txns[-1].last_offset < txn.last_offset,
            f"marker {txn.last_offset} does not follow the last one",
        )
        self._txns.append(txn)

    def truncate(self, offset: int) -> int:
        """Forget markers at `offset` and above; return the number of bytes the file keeps."""
        count = bisect_left(self._txns, offset, key=_get_marker_offset)
        del self._txns[count:]
        return count * ABORTED_ENTRY_SIZE

    def find_overlapping(self, lo: int, hi: int) -> tuple[list[AbortedTxn], bool]:
        """Return transactions with a record in [lo, hi), and whether later segments need no search.

        A marker below `lo` ended its transaction before the range. An entry whose last stable offset is at or
        above `hi` proves that every transaction still open at that marker began above the range.

        Source: TransactionIndex.collectAbortedTxns; KAFKA-17801 for the upper bound.
        Cost: logarithmic, plus the entries from the first marker in the range on.
        """
        txns: list[AbortedTxn] = []
        for at in range(bisect_left(self._txns, lo, key=_get_marker_offset), len(self._txns)):
            txn = self._txns[at]
            if txn.first_offset < hi:
                txns.append(txn)
            if txn.last_stable_offset >= hi:
                return txns, True
        return txns, False


def collect_aborted_txns(indexes: Iterable[TransactionIndex], lo: int, hi: int) -> list[AbortedTxn]:
    """Return all aborted transactions with a record in [lo, hi), ordered by marker.

    Args:
        indexes: of the segment that holds `lo` and those after it, in order: a transaction with a record in
            the range has its marker at `lo` or above.
        lo: first offset of the range. hi: the first offset after it.
    """
    result: list[AbortedTxn] = []
    for index in indexes:
        txns, complete = index.find_overlapping(lo, hi)
        result += txns
        if complete:
            break
    return result


def _get_marker_offset(txn: AbortedTxn) -> int:
    return txn.last_offset
