"""How many records lie between offsets: against a reader that reads every one."""

from collections.abc import Sequence
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from tallystick.console.collect import lag_counts
from tallystick.console.collect.lag_counts import CountedRange, Counts, PartitionCounts, RangeCounter
from tallystick.kernel.ids import ProducerEpoch, ProducerId, ProducerIdAndEpoch
from tallystick.protocol.records import (
    BatchMeta,
    ControlType,
    EndTransactionMarker,
    Record,
    encode_batch,
    encode_marker,
    filter_batch,
)


class Step(NamedTuple):
    """What a producer does next: records inside or outside a transaction, or its end."""

    producer: int
    count: int
    is_transactional: bool
    outcome: ControlType | None
    removed: frozenset[int]  # of the records, by compaction


class Log:
    """A partition up to its last stable offset."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.batches: list[tuple[int, int, bytes]] = []  # first offset, next offset, bytes
        self.kinds: dict[int, str] = {}
        self.aborted: list[tuple[int, int, int]] = []  # producer, first offset, marker's offset
        self.end = 0
        self._open: dict[int, list[int]] = {}
        self._firsts: dict[int, int] = {}
        for step in steps:
            self._take(step)
        for producer in list(self._open):
            self._mark(producer, ControlType.ABORT)

    def _take(self, step: Step) -> None:
        if step.outcome is not None:
            if step.producer in self._open:
                self._mark(step.producer, step.outcome)
            return
        first, next_offset = self.end, self.end + step.count
        is_transactional = step.is_transactional or step.producer in self._open
        records = [Record(offset=o, timestamp_ms=0, key=b"k", value=b"v") for o in range(first, next_offset)]
        meta = BatchMeta(
            base_offset=first,
            producer_id=step.producer,
            producer_epoch=0,
            base_sequence=0,
            is_transactional=is_transactional,
        )
        data: bytes | None = encode_batch(records, meta)
        kept = {first + delta for delta in range(step.count) if delta not in step.removed}
        if is_transactional:
            self._open.setdefault(step.producer, []).extend(sorted(kept) or [first])
        assert data is not None
        data = filter_batch(data, 0, kept, retain_empty=True)
        assert data is not None
        self.kinds |= dict.fromkeys(kept, "data")
        self.batches.append((first, next_offset, data))
        self.end = next_offset
        if is_transactional:
            self._firsts.setdefault(step.producer, first)

    def _mark(self, producer: int, outcome: ControlType) -> None:
        pair = ProducerIdAndEpoch(ProducerId(producer), ProducerEpoch(0))
        marker = EndTransactionMarker(control_type=outcome, coordinator_epoch=0)
        self.batches.append(
            (self.end, self.end + 1, encode_marker(marker, pair, timestamp_ms=0, offset=self.end))
        )
        self.kinds[self.end] = "marker"
        offsets, first = self._open.pop(producer), self._firsts.pop(producer)
        if outcome is ControlType.ABORT:
            self.aborted.append((producer, first, self.end))
            self.kinds |= {offset: "aborted" for offset in offsets if offset in self.kinds}
        self.end += 1

    def fetch(self, offset: int, batch_count: int) -> tuple[bytes, list[tuple[int, int]]]:
        """Answer a Fetch as a broker does: whole batches, and the aborted transactions among them."""
        some = [each for each in self.batches if each[1] > offset][:batch_count]
        if not some:
            return b"", []
        upper = some[-1][1]
        aborted = [(p, first) for p, first, marker in self.aborted if first < upper and marker >= some[0][0]]
        return b"".join(data for _, _, data in some), aborted

    def count(self, first: int, end: int) -> Counts:
        kinds = [kind for offset, kind in self.kinds.items() if first <= offset < end]
        return Counts(kinds.count("data"), kinds.count("marker"), kinds.count("aborted"))

    def read(self, wanted: CountedRange, batch_count: int) -> RangeCounter:
        counter = RangeCounter(wanted)
        while not counter.is_complete:
            counter.feed(*self.fetch(counter.position, batch_count))
        return counter


outcomes = st.sampled_from([None, None, None, ControlType.COMMIT, ControlType.ABORT])
logs = st.lists(
    st.builds(
        Step,
        producer=st.integers(0, 2),
        count=st.integers(1, 4),
        is_transactional=st.booleans(),
        outcome=outcomes,
        removed=st.frozensets(st.integers(0, 3), max_size=2),
    ),
    max_size=20,
).map(Log)


@given(log=logs, ends=st.tuples(st.integers(0, 60), st.integers(0, 60)), batches=st.integers(1, 4))
def test_a_range_is_counted_as_a_reader_would_see_it(log: Log, ends: tuple[int, int], batches: int) -> None:
    first, end = sorted(min(each, log.end) for each in ends)
    counter = log.read(CountedRange(first, end), batches)
    assert dict(counter.sums)[end] == log.count(first, end)


@given(
    log=logs,
    rounds=st.lists(
        st.tuples(st.integers(0, 70), st.lists(st.integers(0, 70), max_size=4)), min_size=1, max_size=4
    ),
    batches=st.integers(1, 4),
    grain=st.sampled_from([1, 150, 10_000]),
    step=st.sampled_from([100, 1_000, 100_000]),
)
def test_every_group_gets_its_count_however_it_and_the_log_move(
    log: Log, rounds: list[tuple[int, list[int]]], batches: int, grain: int, step: int
) -> None:
    """Groups stand, move on, go back or begin again; the end moves on, or back with another log."""
    before = lag_counts.GRAIN_BYTES, lag_counts.STEP_BYTES
    lag_counts.GRAIN_BYTES, lag_counts.STEP_BYTES = grain, step  # type: ignore[misc]
    try:
        counts = PartitionCounts()
        for stable, groups in rounds:
            end = min(stable, log.end)
            committed = [min(each, end) for each in groups]
            for wanted in counts.plan(committed, end):
                assert 0 <= wanted.first < wanted.end <= end
                counts.add(log.read(wanted, batches), wanted)
            for each in committed:
                assert counts.count(each) == log.count(each, end)
            counts.prune(committed)
            assert list(counts.points) == sorted(set(counts.points))
            assert all(counts.count(each) is not None for each in committed)
            assert list(counts.plan(committed, end)) == []  # a group that stands costs nothing
    finally:
        lag_counts.GRAIN_BYTES, lag_counts.STEP_BYTES = before  # type: ignore[misc]


def test_what_is_too_much_to_read_is_given_up_and_what_is_near_is_counted() -> None:
    step = Step(producer=0, count=4, is_transactional=False, outcome=None, removed=frozenset())
    log = Log([step] * 200)
    counts = PartitionCounts()
    for wanted in counts.plan([100], 400):
        counts.add(log.read(wanted, 9), wanted)
    plan = counts.plan([100, 790], 800)
    wanted = next(plan)
    assert (wanted.first, wanted.end) == (400, 800)
    counts.give_up(RangeCounter(wanted), wanted)
    near = next(plan)
    assert (near.first, near.end) == (790, 800)
    counts.add(log.read(near, 9), near)
    assert counts.count(790) == Counts(data=10)
    assert counts.count(100) is None
