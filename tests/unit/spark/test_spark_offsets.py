"""Batches and tasks are planned as Spark's own source plans them."""

from hypothesis import given
from hypothesis import strategies as st

from tallystick.kernel.ids import INT64_MAX, TopicPartition
from tallystick.spark.protocol.offsets import (
    BatchPlan,
    OffsetRange,
    count_unread,
    decode_offsets,
    encode_offsets,
    limit_offsets,
    plan_batch,
    split_ranges,
)

A, B, C = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 10)

sizes = st.dictionaries(st.sampled_from([A, B, C]), st.integers(0, 10_000))
ranges = sizes.map(lambda found: [OffsetRange(at, 7, 7 + size) for at, size in found.items()])
limits = st.none() | st.integers(1, 50)


def test_offsets_are_written_as_spark_writes_them() -> None:
    """JsonUtils.partitionOffsets; sorted, so that equal offsets are equal texts."""
    assert encode_offsets({C: 1, B: 2, A: 3}) == {"a": {"0": 3, "1": 2}, "b": {"10": 1}}
    assert list(encode_offsets({C: 1, A: 3})) == ["a", "b"]
    assert decode_offsets(encode_offsets({C: 1, B: 2, A: 3})) == {A: 3, B: 2, C: 1}


def test_a_batch_is_shared_out_in_proportion() -> None:
    """KafkaMicroBatchStream.rateLimit: `limit * (size / total)`, rounded up below one."""
    assert limit_offsets(10, {A: 0, B: 0}, {A: 30, B: 10}) == {A: 7, B: 2}
    assert limit_offsets(1, {A: 0, B: 0}, {A: 1000, B: 1}) == {A: 1, B: 1}, "small partitions do not starve"
    assert limit_offsets(10, {A: 5, B: 9}, {A: 5, B: 9}) == {A: 5, B: 9}
    assert limit_offsets(10, {A: 0}, {A: 5, B: 9}) == {A: 5, B: 9}, (
        "a partition that went is planned to its end"
    )
    assert limit_offsets(INT64_MAX, {A: 5}, {A: 100}) == {A: 100}


@given(st.integers(1, 1000), sizes)
def test_a_limit_never_passes_the_end_and_never_stands_still(
    most: int, backlog: dict[TopicPartition, int]
) -> None:
    start = dict.fromkeys(backlog, 3)
    latest = {at: 3 + size for at, size in backlog.items()}
    ends = limit_offsets(most, start, latest)
    assert ends.keys() == latest.keys()
    assert all(start[at] <= ends[at] <= latest[at] for at in ends)
    taken = sum(ends.values()) - sum(start.values())
    assert taken <= most + len(backlog)
    assert bool(taken) == any(backlog.values())


def test_what_waits() -> None:
    assert count_unread({A: 5}, {A: 8, B: 4}) == 7


def test_a_plan_says_what_is_read_and_what_is_lost() -> None:
    assert plan_batch({A: 2, B: 5}, {A: 4, B: 5}, {}) == BatchPlan((OffsetRange(A, 2, 4),), ())
    added = plan_batch({A: 2}, {A: 2, B: 3, C: 4}, {B: 0, C: 1})
    assert added.ranges == (OffsetRange(B, 0, 3), OffsetRange(C, 1, 4))
    assert added.losses == ("b-10 was added and begins at offset 1, not 0",)
    assert plan_batch({}, {A: 3}, {}) == BatchPlan((), ("a-0 was added and is gone",))
    assert plan_batch({A: 2, B: 1}, {A: 3}, {}).losses == ("gone since they were last read: a-1",)
    cut = plan_batch({A: 5}, {A: 2}, {})
    assert cut == BatchPlan((), ("a-0 was read up to offset 5 and ends at 2 now",))


def test_tasks() -> None:
    """KafkaOffsetRangeCalculatorSuite's cases."""
    assert split_ranges([OffsetRange(A, 1, 2), OffsetRange(B, 1, 1)]) == [OffsetRange(A, 1, 2)]
    assert split_ranges([OffsetRange(A, 1, 5)], min_partitions=3) == [
        OffsetRange(A, 1, 2),
        OffsetRange(A, 2, 3),
        OffsetRange(A, 3, 5),
    ]
    assert split_ranges([OffsetRange(A, 1, 3)], min_partitions=4) == [
        OffsetRange(A, 1, 2),
        OffsetRange(A, 2, 3),
    ]
    skewed = split_ranges([OffsetRange(A, 0, 1), OffsetRange(B, 0, 20)], min_partitions=4)
    assert [each.size for each in skewed] == [1, 6, 7, 7]
    small = [OffsetRange(TopicPartition("s", n), 0, 1) for n in range(3)]
    assert split_ranges([*small, OffsetRange(B, 0, 10_000)], min_partitions=6) == [
        *small,
        *(OffsetRange(B, start, end) for start, end in ((0, 3333), (3333, 6666), (6666, 10_000))),
    ]
    assert split_ranges([OffsetRange(A, 0, 10)], max_records=4) == [
        OffsetRange(A, 0, 3),
        OffsetRange(A, 3, 6),
        OffsetRange(A, 6, 10),
    ]
    assert len(split_ranges([OffsetRange(A, 0, 10)], min_partitions=5, max_records=4)) == 6


@given(ranges, limits, limits)
def test_tasks_cover_their_ranges_exactly(
    whole: list[OffsetRange], min_partitions: int | None, max_records: int | None
) -> None:
    tasks = split_ranges(whole, min_partitions, max_records)
    wanted = {(each.partition, at) for each in whole for at in range(each.start, each.end)}
    read = [(task.partition, at) for task in tasks for at in range(task.start, task.end)]
    assert len(read) == len(wanted)
    assert set(read) == wanted
    assert all(task.size for task in tasks)
    if max_records is not None:
        assert all(task.size <= max_records for task in tasks)
