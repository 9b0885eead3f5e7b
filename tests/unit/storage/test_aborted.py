"""The transaction index of a segment."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.kernel.check import InvariantBroken
from tallystick.storage.malformed import MalformedFile
from tallystick.storage.segments.transaction_index import (
    ABORTED_ENTRY_SIZE,
    AbortedTxn,
    TransactionIndex,
    collect_aborted_txns,
    decode_aborted,
    encode_aborted,
)

TXN = AbortedTxn(producer_id=7, first_offset=41, last_offset=60, last_stable_offset=61)


def test_an_entry_has_kafka_s_34_bytes() -> None:
    assert ABORTED_ENTRY_SIZE == 34
    assert encode_aborted(TXN).hex() == (
        "000000000000000000070000000000000029000000000000003c000000000000003d"
    )


def test_a_torn_last_entry_is_left_out() -> None:
    data = encode_aborted(TXN) + encode_aborted(TXN)[:33]
    assert decode_aborted(data) == ([TXN], 34)


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\x01" + encode_aborted(TXN)[2:],
        encode_aborted(TXN) * 2,
        encode_aborted(TXN._replace(first_offset=61)),
    ],
    ids=["newer version", "same marker twice", "begins after its end"],
)
def test_nonsense_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedFile):
        decode_aborted(data)


def test_markers_are_appended_in_order() -> None:
    index = TransactionIndex([TXN])
    with pytest.raises(InvariantBroken):
        index.append(TXN)


def test_truncation_says_what_the_file_keeps() -> None:
    index = TransactionIndex([TXN, TXN._replace(first_offset=50, last_offset=70)])
    assert index.truncate(70) == 34
    assert list(index) == [TXN]
    assert index.truncate(0) == 0


def test_a_range_ends_where_the_entry_proves_it() -> None:
    """An entry whose last stable offset has reached the upper bound is the last that matters."""
    first = AbortedTxn(1, 10, 20, 21)
    second = AbortedTxn(2, 5, 30, 31)  # began before the first, and was still open at 20: LSO there was 5
    index = TransactionIndex([first._replace(last_stable_offset=5), second])
    assert index.find_overlapping(0, 15) == ([first._replace(last_stable_offset=5), second], True)
    assert index.find_overlapping(21, 25) == ([second], True)
    assert index.find_overlapping(31, 99) == ([], False)


class History:
    """Producers that begin, write and abort transactions at consecutive offsets; the naive model."""

    def __init__(self, steps: Sequence[tuple[int, bool]]) -> None:
        self.records: list[tuple[int, int]] = []  # offset, producer id of each aborted record
        self.txns: list[AbortedTxn] = []
        opened: dict[int, int] = {}
        for offset, (pid, ends) in enumerate(steps):
            if not ends:
                opened.setdefault(pid, offset)
                continue
            first = opened.pop(pid, None)
            if first is not None:
                stable = min(opened.values(), default=offset + 1)
                self.txns.append(AbortedTxn(pid, first, offset, stable))
        self.end = len(steps)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=40),
    st.integers(1, 10),
    st.data(),
)
def test_every_transaction_in_the_range_is_found(
    steps: list[tuple[int, bool]], segment: int, data: st.DataObject
) -> None:
    """KAFKA-17801: over segments of any size, the answer holds all that overlap the range."""
    history = History(steps)
    lo = data.draw(st.integers(0, history.end))
    hi = data.draw(st.integers(lo, history.end))
    indexes = [TransactionIndex() for _ in range(history.end // segment + 1)]
    for txn in history.txns:
        indexes[txn.last_offset // segment].append(txn)
    found = collect_aborted_txns(indexes[lo // segment :], lo, hi)
    expected = [txn for txn in history.txns if txn.last_offset >= lo and txn.first_offset < hi]
    assert found == expected
