"""Batch reader of `spark.read.format("tallystick")`: the records between two sets of offsets.

The offsets are resolved when the query is planned.
"""

from collections.abc import Iterator, Mapping

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from tallystick.spark import source
from tallystick.spark.options.option_table import QueryType
from tallystick.spark.options.source_options import parse_source_options
from tallystick.spark.protocol.offsets import OffsetRange, Offsets
from tallystick.spark.source.planner import OffsetRangePartition, SourcePlanner, UnknownOffsets
from tallystick.spark.source.task_reader import read_range


class BatchReader(DataSourceReader):
    """A batch reader. Spark makes one on the driver for each query and pickles it for the tasks."""

    def __init__(self, options: Mapping[str, str], schema: StructType | None = None) -> None:
        """Parse the options.

        Args:
            schema: the columns, which Spark was told before.
        Raises: BadConfig with all problems at once.
        """
        self._options = parse_source_options(options, QueryType.BATCH)
        self._decoding = (
            source.decoding.resolve_checked_decoding(self._options, schema)
            if schema is not None and self._options.formats.changes_columns
            else None
        )

    def partitions(self) -> list[OffsetRangePartition]:
        """Plan the tasks; Spark wants a list. Raises: UnknownOffsets, DataLoss; Admin's errors."""
        with SourcePlanner(self._options) as planner:
            view = planner.find_topics()
            start = planner.resolve_offsets(self._options.starting, view.partitions, starting=True)
            end = planner.resolve_offsets(self._options.ending, view.partitions, starting=False)
            ranges = _clip_to_log_end(planner, _build_ranges(start, end))
            return planner.plan_tasks(ranges, view.topic_ids)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task. If there is nothing to read, Spark makes up a task, which is empty."""
        if isinstance(partition, OffsetRangePartition):
            yield from read_range(partition.range, self._options, self._decoding, partition.topic_id)


def _build_ranges(start: Offsets, end: Offsets) -> list[OffsetRange]:
    if set(start) != set(end):
        # Partitions were created or deleted between the two lookups; the next run sees one set of them.
        apart = ", ".join(map(str, sorted(set(start) ^ set(end))))
        raise UnknownOffsets(
            f"partitions were added or removed while the batch was planned: {apart}. Nothing was read. "
            "Run it again"
        )
    return [OffsetRange(at, start[at], end[at]) for at in sorted(end)]


def _clip_to_log_end(planner: SourcePlanner, ranges: list[OffsetRange]) -> list[OffsetRange]:
    """Cut ranges off at the ends of their logs, which is a loss of data.

    What open transactions have written is there: a range that ends in it waits for them, and one that begins
    in it and ends at the last stable offset is empty.

    Raises: DataLoss; UnknownOffsets if the options name an end before the start.
    """
    partitions = [each.partition for each in ranges]
    marks, latest = planner.list_high_watermarks(partitions), planner.list_latest_offsets(partitions)
    losses, problems, ranges_in_log = [], [], []
    for each in ranges:
        at, mark = each.partition, marks[each.partition]
        if max(each.start, each.end) > mark:
            losses.append(f"{each}: the log ends at {mark}")
        elif each.start > each.end and each.end != latest[at]:
            problems.append(f"{at} starts at {each.start}, behind its end {each.end}")
        ranges_in_log.append(OffsetRange(at, each.start, max(each.start, min(each.end, mark))))
    if problems:
        raise UnknownOffsets(
            f"{'; '.join(problems)}. Nothing was read. Let startingOffsets, or startingTimestamp, and their "
            "ending siblings name the earlier place first"
        )
    planner.handle_data_loss(losses)
    return ranges_in_log
