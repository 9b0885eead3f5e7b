"""Which segments are deleted."""

from collections.abc import Iterator

import pytest

from tallystick.storage.log.retention import RetentionLimits, RetentionPlan, SegmentInfo, plan_retention

HOUR = 3_600_000
# Four segments of 100 bytes; the newest record of each is 4, 3, 2 and 1 hours old.
SEGMENTS = [SegmentInfo(n * 10, n * 10 + 10, 100, n * HOUR) for n in range(4)]
NOW = 4 * HOUR


def plan(
    segments: list[SegmentInfo] = SEGMENTS,
    *,
    ms: int | None = None,
    size: int | None = None,
    start: int = 0,
    stable: int = 40,
    deletes: bool = True,
) -> RetentionPlan:
    return plan_retention(
        segments,
        RetentionLimits(may_delete=deletes, retention_ms=ms, retention_bytes=size),
        size_bytes=sum(segment.size_bytes for segment in segments),
        log_start_offset=start,
        last_stable_offset=stable,
        now_ms=NOW,
    )


def test_without_limits_everything_stays() -> None:
    assert plan().delete_count == 0


@pytest.mark.parametrize(("ms", "expected"), [(4 * HOUR, 0), (4 * HOUR - 1, 1), (2 * HOUR, 2), (HOUR, 3)])
def test_what_is_older_goes_from_the_front(ms: int, expected: int) -> None:
    assert plan(ms=ms).delete_count == expected


@pytest.mark.parametrize(("size", "expected"), [(400, 0), (301, 0), (300, 1), (250, 1), (100, 3), (99, 3)])
def test_the_log_never_falls_below_its_size(size: int, expected: int) -> None:
    """Source: deleteRetentionSizeBreachedSegments deletes while what is left is at least the limit."""
    assert plan(size=size).delete_count == expected


def test_the_last_segment_goes_when_all_of_it_expired() -> None:
    found = plan(ms=HOUR - 1)
    assert (found.delete_count, found.includes_last) == (4, True)
    assert not plan(ms=HOUR).includes_last


def test_an_empty_last_segment_stays() -> None:
    segments = [*SEGMENTS[:3], SegmentInfo(30, 30, 0, None)]
    found = plan(segments, ms=0, stable=30)
    assert (found.delete_count, found.includes_last) == (3, False)


def test_nothing_past_the_last_stable_offset_goes() -> None:
    """[RET-1] An open transaction keeps its records, however old."""
    assert plan(ms=0, stable=25).delete_count == 2
    assert plan(size=0, stable=30).delete_count == 3
    assert plan(size=0, stable=0).delete_count == 0


def test_a_segment_without_times_is_not_expired_by_age() -> None:
    segments = [SegmentInfo(0, 10, 100, None), *SEGMENTS[1:]]
    assert plan(segments, ms=0).delete_count == 0
    assert plan(segments, size=300).delete_count == 1


def test_below_the_log_start_everything_goes_even_in_a_compacted_topic() -> None:
    assert plan(start=20, deletes=False).delete_count == 2
    assert plan(start=19, deletes=False).delete_count == 1
    assert plan(ms=0, size=0, deletes=False).delete_count == 0


def test_no_more_segments_are_looked_at_than_needed() -> None:
    """Looking at one may read its index."""
    looked: list[int] = []

    def facts() -> Iterator[SegmentInfo]:
        for segment in SEGMENTS:
            looked.append(segment.base_offset)
            yield segment

    plan_retention(
        facts(),
        RetentionLimits(may_delete=True, retention_ms=5 * HOUR, retention_bytes=None),
        size_bytes=400,
        log_start_offset=0,
        last_stable_offset=40,
        now_ms=NOW,
    )
    assert looked == [0, 10]
