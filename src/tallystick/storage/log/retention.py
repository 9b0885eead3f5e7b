"""Retention rules: segments that are too old, too many, or below the log start. Pure, no I/O.

Whole segments go from the front only, and never past the last stable offset: a transaction in doubt may hold
records longer than any retention, and they may be a customer's payment [RET-1]. (Kafka stops at the high
watermark; see docs/adr/0008.)

The last segment goes, too, once all its records have expired; an empty one is rolled first.

Source: UnifiedLog.deleteOldSegments.
"""

from collections.abc import Iterable, Iterator

from tallystick.kernel.value import Value


class SegmentInfo(Value):
    """The facts about a segment that retention and compaction use.

    `next_offset` is the base offset of the next segment; for the last segment, the log end.
    `largest_timestamp_ms` is None if no record has a timestamp: such a segment is not expired by age.
    """

    base_offset: int
    next_offset: int
    size_bytes: int
    largest_timestamp_ms: int | None = None


class RetentionLimits(Value, kw_only=True):
    """Retention limits of a log; None means no limit.

    `may_delete`: cleanup.policy has `delete`; otherwise only segments below the log start are deleted.
    """

    may_delete: bool
    retention_ms: int | None
    retention_bytes: int | None


class RetentionPlan(Value):
    """The number of oldest segments to delete, and the reason for the last of them.

    `includes_last`: the active segment is among them, so a new one is rolled first.
    """

    delete_count: int
    includes_last: bool
    reason: str


NO_DELETION = RetentionPlan(0, False, "nothing has expired")


def plan_retention(
    segments: Iterable[SegmentInfo],
    limits: RetentionLimits,
    *,
    size_bytes: int,
    log_start_offset: int,
    last_stable_offset: int,
    now_ms: int,
) -> RetentionPlan:
    """Decide which segments to delete.

    Args:
        segments: of the log, oldest first; the last is the active one. Consumed only to two past the deleted
            ones.
        size_bytes: total size of the segments.
    """
    excess = -1 if limits.retention_bytes is None else size_bytes - limits.retention_bytes
    count, reason, includes_last = 0, NO_DELETION.reason, False
    for segment, includes_last in _mark_last(segments):
        why = _find_delete_reason(segment, limits, log_start_offset, excess, now_ms)
        if (
            why is None
            or segment.next_offset > last_stable_offset
            or (includes_last and not segment.size_bytes)
        ):
            break
        excess -= segment.size_bytes
        count, reason = count + 1, why
    else:
        return RetentionPlan(count, includes_last and count > 0, reason)
    return RetentionPlan(count, False, reason) if count else NO_DELETION


def _mark_last(segments: Iterable[SegmentInfo]) -> Iterator[tuple[SegmentInfo, bool]]:
    """Yield each segment, and whether it is the last: this takes one more than was yielded."""
    rest = iter(segments)
    segment = next(rest, None)
    while segment is not None:
        next_segment = next(rest, None)
        yield segment, next_segment is None
        segment = next_segment


def _find_delete_reason(
    segment: SegmentInfo, limits: RetentionLimits, log_start_offset: int, excess: int, now_ms: int
) -> str | None:
    # KIP-107: what DeleteRecords left below the log start goes under any cleanup.policy.
    if segment.next_offset <= log_start_offset:
        return f"it ends at {segment.next_offset}, and the log starts at {log_start_offset}"
    if not limits.may_delete:
        return None
    # UnifiedLog.deleteRetentionSizeBreachedSegments: size never takes the log below retention.bytes.
    if limits.retention_bytes is not None and 0 <= segment.size_bytes <= excess:
        return f"the log has {excess} bytes more than retention.bytes={limits.retention_bytes}"
    newest = segment.largest_timestamp_ms
    if limits.retention_ms is not None and newest is not None and now_ms - newest > limits.retention_ms:
        return f"its newest record is {now_ms - newest} ms old, and retention.ms={limits.retention_ms}"
    return None
