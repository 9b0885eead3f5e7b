"""Offset arithmetic of the Spark source: offsets as JSON, rate limits, lost data, and splitting into tasks.

The rules are those of Spark's own Kafka source, so that a query plans the same batches with either and each
can read the other's checkpoint. Nothing here contacts the cluster.

Sources: Spark 4.3 connector/kafka-0-10-sql: JsonUtils, KafkaMicroBatchStream.rateLimit and .delayBatch,
    KafkaOffsetRangeCalculator, KafkaOffsetReader.getOffsetRangesFromResolvedOffsets.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final
from uuid import UUID

from tallystick.kernel.ids import INT64_MAX, TopicPartition
from tallystick.kernel.value import Value

Offsets = Mapping[TopicPartition, int]
"""The next offset to read of each partition."""

NO_OFFSETS: Final[Offsets] = MappingProxyType({})

OffsetJson = dict[str, dict[str, int]]

# A query reads a partition that was added from its very first offset.
_FIRST_OFFSET: Final = 0


class StartOffsets(Value, kw_only=True):
    """The start of a query, and its topics: the ids by name, as far as they are known."""

    offsets: OffsetJson
    topic_ids: Mapping[str, UUID] = MappingProxyType({})


class OffsetRange(Value):
    """Records of one partition: from `start` up to, not including, `end`."""

    partition: TopicPartition
    start: int
    end: int

    @property
    def size(self) -> int:
        """Number of offsets, including those of transaction markers and of records lost to compaction."""
        return self.end - self.start

    def __str__(self) -> str:
        return f"{self.partition} [{self.start}, {self.end})"


def decode_offsets(json: Mapping[str, Mapping[str, int]]) -> dict[TopicPartition, int]:
    """Parse the offsets of a checkpoint, ours or that of Spark's own source: `{"topic": {"0": 5}}`."""
    return {
        TopicPartition(topic, int(number)): offset
        for topic, numbers in json.items()
        for number, offset in numbers.items()
    }


def encode_offsets(offsets: Offsets) -> OffsetJson:
    """Return offsets as a checkpoint keeps them, sorted by topic and partition; equal to Spark's own JSON."""
    json: OffsetJson = {}
    for at in sorted(offsets):
        json.setdefault(at.topic, {})[str(at.partition)] = offsets[at]
    return json


# ------------------------------------------------------------------------ the size of a batch


def count_unread(start: Offsets, latest: Offsets) -> int:
    """Count the offsets that have not been read, as `minOffsetsPerTrigger` counts them."""
    return sum(end - start.get(at, _FIRST_OFFSET) for at, end in latest.items())


def limit_offsets(most: int, start: Offsets, latest: Offsets) -> dict[TopicPartition, int]:
    """Return the end offsets of a batch of about `most` offsets, shared in proportion to the backlogs.

    A share below one is rounded up, so that small partitions do not starve; the sum may then exceed `most`.

    Args:
        start: the start offsets of all partitions in `latest` that can still be read, new ones included.
    """
    sizes = {at: end - start[at] for at, end in latest.items() if at in start and end > start[at]}
    total = sum(sizes.values())
    ends = dict(latest)
    for at, size in sizes.items():
        share = most * (size / total)
        count = math.ceil(share) if share < 1 else math.floor(share)
        ends[at] = min(latest[at], start[at] + min(count, INT64_MAX - start[at]))
    return ends


# --------------------------------------------------------------------- what is read, and lost


class BatchPlan(Value):
    """The ranges that a batch reads, and a description of each loss of data."""

    ranges: tuple[OffsetRange, ...]
    losses: tuple[str, ...]


def plan_batch(start: Offsets, end: Offsets, earliest: Offsets) -> BatchPlan:
    """Compare the start offsets of a batch with its end offsets.

    Args:
        earliest: the log start offsets of partitions that are in `end` and not in `start`.
    """
    losses = []
    new_partitions = sorted(set(end) - set(start))
    for at in new_partitions:
        if at not in earliest:
            losses.append(f"{at} was added and is gone")
        elif earliest[at] != _FIRST_OFFSET:
            losses.append(f"{at} was added and begins at offset {earliest[at]}, not {_FIRST_OFFSET}")
    gone_names = ", ".join(map(str, sorted(set(start) - set(end))))
    if gone_names:
        losses.append(f"gone since they were last read: {gone_names}")
    begins = {**earliest, **start}
    ranges = []
    for at in sorted(end):
        if at not in begins:
            continue
        if end[at] < begins[at]:
            losses.append(f"{at} was read up to offset {begins[at]} and ends at {end[at]} now")
        elif end[at] > begins[at]:
            ranges.append(OffsetRange(at, begins[at], end[at]))
    return BatchPlan(tuple(ranges), tuple(losses))


def split_ranges(
    ranges: Sequence[OffsetRange], min_partitions: int | None = None, max_records: int | None = None
) -> list[OffsetRange]:
    """Split ranges into tasks: one task for each range, or several where more or smaller ones are wanted.

    The number of tasks is about `min_partitions`, as in Spark: large ranges are cut in proportion.
    """
    pieces = [each for each in ranges if each.size > 0]
    if max_records is not None:
        pieces = [part for each in pieces for part in _cut_range(each, -(-each.size // max_records))]
    if min_partitions is None or len(pieces) >= min_partitions:
        return pieces
    # Ranges that stay whole do not count in the proportion by which the others are cut.
    total = sum(each.size for each in pieces)
    uncut_ranges = [each for each in pieces if _count_parts(each.size, total, min_partitions) == 1]
    cut_total = total - sum(each.size for each in uncut_ranges)
    task_count = max(min_partitions - len(uncut_ranges), 1)
    uncut_partitions = {each.partition for each in uncut_ranges}
    return [
        part
        for each in pieces
        for part in _cut_range(
            each, 1 if each.partition in uncut_partitions else _count_parts(each.size, cut_total, task_count)
        )
    ]


def _count_parts(size: int, total: int, task_count: int) -> int:
    return max(math.floor(size / total * task_count + 0.5), 1)  # Java's Math.round


def _cut_range(source_range: OffsetRange, parts: int) -> Iterable[OffsetRange]:
    """Cut a range into equal parts; the last ones take the remainder of the division."""
    start, size_left = source_range.start, source_range.size
    for part in range(parts):
        size = size_left // (parts - part)
        size_left -= size
        if size:
            yield OffsetRange(source_range.partition, start, start + size)
        start += size
