"""What a reader of committed records sees, and where its position is afterwards."""

from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.client.consumer.decode import CompletedFetch, ConsumerRecord
from tallystick.kernel.ids import ProducerEpoch, ProducerId, ProducerIdAndEpoch, TopicPartition
from tallystick.protocol.records import (
    HEADER_SIZE,
    BatchMeta,
    Codec,
    ControlType,
    CorruptBatch,
    EndTransactionMarker,
    InvalidBatch,
    Record,
    TimestampType,
    encode_batch,
    encode_marker,
    filter_batch,
    iter_records,
    read_header,
)

pytestmark = pytest.mark.usefixtures("either_codec")

AT = TopicPartition("t", 3)


class Log:
    """A partition as it is written: data of producers, in transactions or not, and their markers.

    `committed` is told by the plainest rule: what was written outside transactions, and in transactions
    whose next marker is COMMIT.
    """

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self.end = 0
        self._open: dict[int, list[int]] = {}
        self.committed: set[int] = set()
        self.aborted: list[tuple[int, int]] = []

    def data(self, producer: int | None, records: int = 1, codec: Codec = Codec.NONE) -> None:
        offsets = list(range(self.end, self.end + records))
        made = [Record(offset, 1000 + offset, b"k", b"v%d" % offset) for offset in offsets]
        meta = BatchMeta(base_offset=self.end, codec=codec, leader_epoch=5)
        if producer is not None:
            meta = BatchMeta(
                base_offset=self.end,
                codec=codec,
                leader_epoch=5,
                producer_id=producer,
                producer_epoch=0,
                base_sequence=0,
                is_transactional=True,
            )
            self._open.setdefault(producer, []).extend(offsets)
        else:
            self.committed.update(offsets)
        self.batches.append(encode_batch(made, meta))
        self.end += records

    def marker(self, producer: int, outcome: ControlType) -> None:
        identity = ProducerIdAndEpoch(ProducerId(producer), ProducerEpoch(0))
        marker = EndTransactionMarker(control_type=outcome, coordinator_epoch=0)
        self.batches.append(encode_marker(marker, identity, timestamp_ms=1, offset=self.end))
        self.end += 1
        written = self._open.pop(producer, [])
        if outcome is ControlType.COMMIT:
            self.committed.update(written)
        elif written:
            self.aborted.append((producer, written[0]))

    def stable(self) -> tuple[bytes, int]:
        """The batches below the first open transaction, and where that is."""
        end = min([offsets[0] for offsets in self._open.values()], default=self.end)
        below = [batch for batch in self.batches if read_header(batch).base_offset < end]
        return b"".join(below), end


def offsets(records: list[ConsumerRecord]) -> list[int]:
    return [record.offset for record in records]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("data"), st.sampled_from([None, 1, 2, 3]), st.integers(1, 4)),
        st.tuples(
            st.just("end"), st.integers(1, 3), st.sampled_from([ControlType.COMMIT, ControlType.ABORT])
        ),
    ),
    max_size=30,
)


@given(STEPS, st.integers(1, 7), st.randoms())
def test_committed_records_and_no_others_are_returned_in_order(steps: list[tuple], most: int, random) -> None:  # type: ignore[type-arg, no-untyped-def]
    """[CLI-33] Against the plainest rule; the entries of the aborted index in any order."""
    log = Log()
    for kind, producer, what in steps:
        log.data(producer, what) if kind == "data" else log.marker(producer, what)
    data, end = log.stable()
    aborted = [(producer, first) for producer, first in log.aborted if first < end]
    random.shuffle(aborted)
    fetched = CompletedFetch(AT, 0, data, aborted)
    taken: list[int] = []
    while not fetched.is_exhausted:
        table = fetched.take_columns(most) if random.random() < 0.5 else None
        if table is None:
            taken += offsets(fetched.take_records(most))
        else:
            taken += memoryview(table[2][0]).cast("q")[: table[0]]
    assert taken == sorted(offset for offset in log.committed if offset < end)
    assert fetched.position == end, "[CLI-34] behind markers and aborted data, too"


def test_a_reader_of_everything_sees_aborted_data_and_no_markers() -> None:
    log = Log()
    log.data(1, 2)
    log.marker(1, ControlType.ABORT)
    log.data(None)
    fetched = CompletedFetch(AT, 0, b"".join(log.batches), None)
    assert offsets(fetched.take_records(9)) == [0, 1, 3]
    assert fetched.position == 4


def test_a_transaction_after_an_aborted_one_of_the_same_producer_is_its_own() -> None:
    log = Log()
    log.data(1)
    log.marker(1, ControlType.ABORT)
    log.data(1)
    log.marker(1, ControlType.COMMIT)
    assert offsets(CompletedFetch(AT, 0, b"".join(log.batches), log.aborted).take_records(9)) == [2]


def test_a_fetch_from_the_middle_of_an_aborted_transaction_knows_that_it_was() -> None:
    log = Log()
    log.data(1)
    log.data(1)
    log.marker(1, ControlType.ABORT)
    assert CompletedFetch(AT, 1, b"".join(log.batches[1:]), [(1, 0)]).take_records(9) == []


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4, Codec.ZSTD])
def test_a_batch_may_begin_before_the_position(codec: Codec) -> None:
    log = Log()
    log.data(None, 5, codec)
    fetched = CompletedFetch(AT, 3, log.batches[0], None)
    assert offsets(fetched.take_records(1)) == [3]
    assert fetched.position == 4
    assert offsets(fetched.take_records(9)) == [4]
    assert fetched.position == 5


def test_positions_pass_gaps_and_emptied_batches() -> None:
    """[CLI-34] Compaction takes records out and leaves the last offset of the batch."""
    log = Log()
    log.data(None, 4)
    log.data(None, 2)
    thinned = filter_batch(log.batches[0], 0, {1}, retain_empty=True)
    emptied = filter_batch(log.batches[1], 0, set(), retain_empty=True)
    assert thinned is not None
    assert emptied is not None
    fetched = CompletedFetch(AT, 0, thinned + emptied, None)
    assert offsets(fetched.take_records(1)) == [1]
    assert fetched.position == 2 or fetched.position == 4
    assert fetched.take_records(9) == []
    assert fetched.position == 6


def test_records_have_everything_a_record_has() -> None:
    meta = BatchMeta(base_offset=7, leader_epoch=2, timestamp_type=TimestampType.LOG_APPEND_TIME)
    headers = (("a", b"1"), ("a", None))
    batch = encode_batch([Record(7, 1234, None, b"v", headers), Record(9, 1235, b"", None)], meta)
    assert CompletedFetch(AT, 0, batch, None).take_records(9) == [
        ConsumerRecord("t", 3, 7, 1235, TimestampType.LOG_APPEND_TIME, None, b"v", headers, 2),
        ConsumerRecord("t", 3, 9, 1235, TimestampType.LOG_APPEND_TIME, b"", None, (), 2),
    ]


def test_a_batch_that_is_cut_off_is_left_for_the_next_answer() -> None:
    log = Log()
    log.data(None, 2)
    log.data(None, 2)
    fetched = CompletedFetch(AT, 0, b"".join(log.batches)[:-1], None)
    assert offsets(fetched.take_records(9)) == [0, 1]
    assert fetched.take_records(9) == []
    assert fetched.is_exhausted
    assert fetched.position == 2


def test_what_came_before_a_damaged_batch_is_returned_first() -> None:
    log = Log()
    log.data(None, 2)
    log.data(None, 2)
    damaged = bytearray(b"".join(log.batches))
    damaged[-1] ^= 1
    fetched = CompletedFetch(AT, 0, bytes(damaged), None)
    assert offsets(fetched.take_records(9)) == [0, 1]
    with pytest.raises(CorruptBatch):
        fetched.take_records(9)
    assert fetched.position == 2
    unchecked = CompletedFetch(AT, 0, bytes(damaged), None, check_crcs=False)
    with pytest.raises(InvalidBatch):
        offsets(unchecked.take_records(2) + unchecked.take_records(9))


def test_an_answer_without_one_whole_batch_is_an_error_and_not_a_loop() -> None:
    log = Log()
    log.data(None, 2)
    with pytest.raises(CorruptBatch):
        CompletedFetch(AT, 0, log.batches[0][:-1], None).take_records(1)


@given(st.integers(1, 400), st.integers(0, 3), st.sampled_from([0, 5, 100, 300]), st.data())
def test_what_was_written_is_read(records: int, keys: int, size: int, data: st.DataObject) -> None:
    times = count(5000, data.draw(st.sampled_from([0, 1, 50, 3000])))
    uneven = data.draw(st.booleans())
    made = [
        Record(
            offset,
            next(times),
            b"k" * keys if keys else None,
            b"v" * (size + offset % 3 if uneven else size),
            (("h", b"x"),) if uneven and offset == 5 else (),
        )
        for offset in range(10, 10 + records)
    ]
    batch = encode_batch(made, BatchMeta(base_offset=10))
    taken = CompletedFetch(AT, 0, batch, None).take_records(records)
    assert [(r.offset, r.timestamp_ms, r.key, r.value, r.headers) for r in taken] == made


@given(
    st.lists(
        st.tuples(
            st.one_of(st.none(), st.binary(max_size=150)),
            st.one_of(st.none(), st.binary(max_size=150), st.just(b"v" * 9_000)),
            st.integers(-(2**63), 2**63 - 1) | st.integers(0, 9_000),
            st.sampled_from([(), (("h", b"1"), ("", None))]),
        ),
        min_size=1,
        max_size=90,
    ),
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=3),
    st.booleans(),
)
def test_every_batch_is_read_as_iter_records_reads_it(
    contents: list[tuple[Any, ...]],
    damage: list[tuple[int, int]],
    gaps: bool,
) -> None:
    """[CLI-70] With damage, too: the same records or InvalidBatch."""
    made = [
        Record(i * (1 + gaps), time, key, value, headers)
        for i, (key, value, time, headers) in enumerate(contents)
    ]
    batch = bytearray(encode_batch(made, BatchMeta()))
    for where, byte in damage:
        batch[HEADER_SIZE + where % (len(batch) - HEADER_SIZE)] = byte
    fetched = CompletedFetch(AT, 0, bytes(batch), None, check_crcs=False)
    try:
        thorough = list(iter_records(bytes(batch)))
    except InvalidBatch:
        with pytest.raises(InvalidBatch):
            fetched.take_records(len(made))
    else:
        taken = fetched.take_records(len(made))
        assert [Record(r.offset, r.timestamp_ms, r.key, r.value, r.headers) for r in taken] == thorough


@pytest.mark.parametrize("records", [8_191, 8_192, 8_193, 20_000])
@pytest.mark.slow
def test_numbers_of_every_length_are_read(records: int) -> None:
    made = [Record(i, 10**12 + i, None, b"v") for i in range(records)]
    fetched = CompletedFetch(AT, 0, encode_batch(made, BatchMeta()), None)
    assert [(r.offset, r.timestamp_ms, r.value) for r in fetched.take_records(records)] == [
        (r.offset, r.timestamp_ms, r.value) for r in made
    ]
