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
            if schema is not None and self._options.formats.fields
            else None
        )

    def partitions(self) -> list[OffsetRangePartition]:
        """Plan the tasks; Spark wants a list. Raises: UnknownOffsets, DataLoss; Admin's errors."""
        with SourcePlanner(self._options) as planner:
            start = planner.resolve_offsets(self._options.starting, starting=True)
            end = planner.resolve_offsets(self._options.ending, starting=False)
            ranges = _build_ranges(start, end)
            return planner.plan_tasks(_clip_to_log_end(planner, ranges))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task. If there is nothing to read, Spark makes up a task, which is empty."""
        if isinstance(partition, OffsetRangePartition):
            yield from read_range(partition.range, self._options, self._decoding)


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
    """Cut ranges off at the ends of their logs, which is a loss of data. Raises: DataLoss."""
    latest = planner.list_latest_offsets()
    truncated = [each for each in ranges if each.end > latest.get(each.partition, 0)]
    planner.handle_data_loss(f"{each}: the log ends at {latest.get(each.partition, 0)}" for each in truncated)
    return [OffsetRange(r.partition, r.start, min(r.end, latest.get(r.partition, 0))) for r in ranges]
