"""The transaction index of a segment."""

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.memory_fs import MemoryFileSystem
from tallystick.kernel.check import InvariantBroken
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import LeaderEpoch, ProducerEpoch, ProducerId, ProducerIdAndEpoch, TopicPartition
from tallystick.protocol.records import (
    BatchMeta,
    ControlType,
    EndTransactionMarker,
    Record,
    encode_batch,
    encode_marker,
)
from tallystick.storage.checkpoints.checkpoint_text import MalformedFile
from tallystick.storage.disk.fs import CorruptLog
from tallystick.storage.disk.reserve import UnlimitedSpace
from tallystick.storage.log.loader import PriorShutdown, create_log, open_log
from tallystick.storage.log.log import AppendResult, Log, LogHooks
from tallystick.storage.segments.log_segment import OpenSegmentCache
from tallystick.storage.state.producer_state import AppendOrigin
from tallystick.storage.state.transaction_index import (
    ABORTED_ENTRY_SIZE,
    AbortedTxn,
    TransactionIndex,
    collect_aborted_txns,
    decode_aborted,
    encode_aborted,
)
from tallystick.storage.state.validation import LogConfig

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


# ---- a file that is damaged


LOG = LogConfig(index_interval_bytes=100)
TP = TopicPartition("t", 0)
NOW = 1_700_000_000_000
ENTRY = AbortedTxn(producer_id=9, first_offset=0, last_offset=2, last_stable_offset=3)
INDEX = f"d/{1:020d}.txnindex"


def append(log: Log, data: bytes, origin: AppendOrigin = AppendOrigin.CLIENT) -> None:
    result = log.append(data, origin=origin, now_ms=NOW, leader_epoch=LeaderEpoch(0))
    assert isinstance(result, AppendResult), result


def write(log: Log, meta: BatchMeta) -> None:
    append(log, encode_batch([Record(offset=0, timestamp_ms=NOW, key=b"k", value=b"v", headers=())], meta))


def aborted_log() -> MemoryFileSystem:
    """A transaction that begins in the first segment and is aborted in the second of three."""
    fs = MemoryFileSystem()
    hooks = LogHooks(space_guard=UnlimitedSpace(), segment_cache=OpenSegmentCache())
    log = create_log(fs, "d", TP, LOG, hooks)
    write(log, BatchMeta(producer_id=9, producer_epoch=0, base_sequence=0, is_transactional=True))
    log.roll(NOW)
    write(log, BatchMeta())
    marker = EndTransactionMarker(control_type=ControlType.ABORT, coordinator_epoch=0)
    writer = ProducerIdAndEpoch(ProducerId(9), ProducerEpoch(1))
    append(log, encode_marker(marker, writer, timestamp_ms=NOW), AppendOrigin.COORDINATOR)
    log.roll(NOW)
    write(log, BatchMeta())
    log.sync()
    log.close(clean=True)
    assert fs.read_bytes(INDEX) == encode_aborted(ENTRY)
    return fs


def reopen(fs: MemoryFileSystem) -> Log:
    hooks = LogHooks(space_guard=UnlimitedSpace(), segment_cache=OpenSegmentCache())
    return open_log(fs, "d", TP, LOG, hooks, PriorShutdown(was_clean=True, recovery_point=4))[0]


def overwrite(fs: MemoryFileSystem, path: str, data: bytes) -> None:
    if fs.exists(path):
        fs.remove(path)
    file = fs.open_append(path)
    file.write([data])
    file.close()


DAMAGED = pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: data + b"\0",
        lambda data: b"\0\1" + data[2:],
        lambda data: bytes(len(data)),
        lambda data: data * 2,
    ],
    ids=["torn", "too long", "newer version", "zeros", "twice"],
)


@DAMAGED
def test_a_damaged_index_is_made_again_from_the_log(damage: Callable[[bytes], bytes]) -> None:
    """[LOG-2] Without it a read_committed consumer would get the aborted record."""
    fs = aborted_log()
    overwrite(fs, INDEX, damage(fs.read_bytes(INDEX)))
    log = reopen(fs)
    assert log.reader.collect_aborted_txns(0, 4) == (ENTRY,)
    assert fs.read_bytes(INDEX) == encode_aborted(ENTRY)
    assert reopen(fs).reader.collect_aborted_txns(0, 4) == (ENTRY,)


def test_the_index_of_a_segment_that_lost_all_of_them_is_made_again() -> None:
    """As when somebody removed what can be rebuilt."""
    for first in ("read", "aborted"):
        fs = aborted_log()
        for name in list(fs.files()):
            if name.endswith("index"):
                fs.remove(name)
        log = reopen(fs)
        if first == "read":
            assert not isinstance(log.reader.read(1, 1_000, upper=4), Reject)
        assert log.reader.collect_aborted_txns(0, 4) == (ENTRY,)
        assert fs.read_bytes(INDEX) == encode_aborted(ENTRY)
        assert not fs.exists(f"d/{0:020d}.txnindex"), "it has no aborted transactions, and had no file"


@DAMAGED
def test_a_damaged_index_is_made_again_for_the_process_that_compacts(
    damage: Callable[[bytes], bytes],
) -> None:
    fs = aborted_log()
    overwrite(fs, INDEX, damage(fs.read_bytes(INDEX)))
    for segment in reopen(fs).segments:
        segment.repair_transaction_index()
    assert fs.read_bytes(INDEX) == encode_aborted(ENTRY)


@DAMAGED
def test_a_damaged_index_that_cannot_be_made_again_refuses_reads(damage: Callable[[bytes], bytes]) -> None:
    fs = aborted_log()
    overwrite(fs, INDEX, damage(fs.read_bytes(INDEX)))
    fs.remove(f"d/{1:020d}.snapshot")
    log = reopen(fs)
    for _ in range(2):
        with pytest.raises(CorruptLog) as caught:
            log.reader.collect_aborted_txns(0, 4)
        assert (caught.value.file, caught.value.position) == (INDEX, 0)
    # What has no aborted transactions can be read all the same.
    overwrite(fs, f"d/{3:020d}.txnindex", b"torn")
    assert reopen(fs).reader.collect_aborted_txns(3, 4) == ()


def test_the_damaged_index_of_the_last_segment_is_made_again_before_it_grows() -> None:
    fs = aborted_log()
    overwrite(fs, f"d/{3:020d}.txnindex", b"torn")
    log = reopen(fs)
    write(log, BatchMeta(producer_id=9, producer_epoch=1, base_sequence=0, is_transactional=True))
    marker = EndTransactionMarker(control_type=ControlType.ABORT, coordinator_epoch=0)
    writer = ProducerIdAndEpoch(ProducerId(9), ProducerEpoch(2))
    append(log, encode_marker(marker, writer, timestamp_ms=NOW), AppendOrigin.COORDINATOR)
    later = AbortedTxn(producer_id=9, first_offset=4, last_offset=5, last_stable_offset=6)
    assert log.reader.collect_aborted_txns(0, 6) == (ENTRY, later)
    assert fs.read_bytes(f"d/{3:020d}.txnindex") == encode_aborted(later)
