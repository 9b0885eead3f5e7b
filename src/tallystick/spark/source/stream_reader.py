"""Stream reader of `spark.readStream.format("tallystick")`: plans and reads micro-batches.

Spark keeps one instance for each run of a query and asks it for the end offsets and the tasks of batches; the
tasks get pickled copies, which read. After a restart Spark asks for the unfinished batch again by the same
two offsets, so what a batch reads depends only on them and the log [SPK-2].

Source: Spark 4.3 KafkaMicroBatchStream.scala.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from uuid import UUID

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from tallystick.kernel.ids import TopicPartition
from tallystick.protocol.primitives import NIL
from tallystick.spark import source
from tallystick.spark.options.option_table import QueryType
from tallystick.spark.options.source_options import parse_source_options
from tallystick.spark.protocol import offsets
from tallystick.spark.protocol.offsets import (
    OffsetJson,
    OffsetRange,
    Offsets,
    StartOffsets,
    decode_offsets,
    encode_offsets,
    plan_batch,
)
from tallystick.spark.source.planner import OffsetRangePartition, SourcePlanner
from tallystick.spark.source.task_reader import read_range
from tallystick.spark.source.topics_seen import TopicsSeen, describe_recreated

_log = logging.getLogger("tallystick.spark")


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream reader, called by Spark while a query runs. Offsets are JSON: `{"topic": {"0": 5}}`."""

    def __init__(
        self,
        options: Mapping[str, str],
        now: Callable[[], float] = time.monotonic,
        schema: StructType | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Parse the options.

        Args:
            now: a monotonic clock, in seconds.
            schema: the columns, which Spark was told before.
            sleep: waits for seconds.
        Raises: BadConfig with all problems at once.
        """
        self._options = parse_source_options(options, QueryType.STREAM)
        self._decoding = (
            source.decoding.resolve_checked_decoding(self._options, schema)
            if schema is not None and self._options.formats.changes_columns
            else None
        )
        self._now, self._sleep = now, sleep
        self._planner: SourcePlanner | None = None
        self._topic_ids: dict[str, UUID] = {}
        self._has_read_ids = False
        self._last_batch_s: float | None = None
        self._latest: dict[TopicPartition, int] | None = None
        self._available_now = False

    def initialOffset(self) -> OffsetJson:  # noqa: N802 -- this and the following are Spark's names
        """Return the start offsets of a new query; Spark asks again when the first batch is repeated."""
        planner = self._get_planner()

        def resolve_named() -> OffsetJson:
            view = planner.find_topics()
            self._topic_ids |= view.topic_ids
            place = self._options.starting
            return encode_offsets(planner.resolve_offsets(place, view.partitions, starting=True))

        if self._options.checkpoint is None:
            return resolve_named()
        start = source.start_offsets.find_start_offsets(
            self._options,
            self._options.checkpoint,
            planner.read_cluster_id(),
            lambda: StartOffsets(offsets=resolve_named(), topic_ids=self._topic_ids),
        )
        self._topic_ids |= start.topic_ids
        self._has_read_ids = True
        return start.offsets

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return one of the two limits: Spark has no limit with two sides, so `latestOffset` applies both."""
        if self._options.max_offsets is not None:
            return ReadMaxRows(self._options.max_offsets)
        if self._options.min_offsets is not None:
            return ReadMinRows(self._options.min_offsets)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end offsets of this run: all records up to them are read, and no later ones."""
        self._available_now = True
        self._latest = None

    def latestOffset(self, start: OffsetJson, limit: ReadLimit) -> OffsetJson:  # noqa: N802
        """Return the end offsets of the next batch; `start` if there is no batch yet.

        Spark logs what this returns, and repeats it at every start: a loss that would stop the batch is
        raised here.

        Raises: DataLoss.
        """
        begin = decode_offsets(start)
        if not self._available_now or self._latest is None:
            self._latest = self._find_latest(begin)
        latest = self._latest
        if not isinstance(limit, ReadAllAvailable):
            if self._should_delay(offsets.count_unread(begin, latest)):
                return start
            most = self._options.max_offsets
            if most is not None:
                latest = offsets.limit_offsets(most, self._add_new_partitions(begin, latest), latest)
        return encode_offsets(latest)

    def reportLatestOffset(self) -> OffsetJson | None:  # noqa: N802
        """Return the latest known end offsets, so that progress shows how far behind the query is."""
        return encode_offsets(self._latest) if self._latest else None

    def partitions(self, start: OffsetJson, end: OffsetJson) -> list[OffsetRangePartition]:
        """Plan the tasks of a batch. Raises: DataLoss."""
        begin, until = decode_offsets(start), decode_offsets(end)
        planner = self._get_planner()
        plan = plan_batch(begin, until, planner.list_earliest_offsets(set(until) - set(begin)))
        planner.handle_data_loss(plan.losses)
        ranges = self._check_topics(plan.ranges)
        return planner.plan_tasks(ranges, self._topic_ids)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        if isinstance(partition, OffsetRangePartition):
            yield from read_range(partition.range, self._options, self._decoding, partition.topic_id)

    def commit(self, end: OffsetJson) -> None:
        """Do nothing: the offsets are in the checkpoint, and none are committed to Kafka."""

    def stop(self) -> None:
        """Close the planner at the end of the query's run."""
        planner, self._planner = self._planner, None
        if planner is not None:
            planner.close()

    def _get_planner(self) -> SourcePlanner:
        if self._planner is None:
            self._planner = SourcePlanner(self._options, self._sleep)
        return self._planner

    def _find_latest(self, begin: Offsets) -> dict[TopicPartition, int]:
        """Return the end offsets. A missing partition keeps its start offset: nothing is read twice."""
        planner = self._get_planner()
        self._read_topic_ids()
        view = planner.find_topics(begin)
        other_topics = self._note_topics(view, begin)
        ends = planner.list_latest_offsets(view.partitions, begin, other_topics)
        if self._options.fail_on_data_loss:
            earliest = planner.list_earliest_offsets(set(ends) - set(begin))
            planner.handle_data_loss(plan_batch(begin, ends, earliest).losses)
        return {**begin, **ends}

    def _note_topics(self, view: TopicsSeen, positions: Offsets) -> Collection[str]:
        """Compare the topics' ids with those known so far; return the topics that are others now."""
        planner, other_topics = self._get_planner(), describe_recreated(self._topic_ids, view.topic_ids)
        passed_over = {
            name: ", ".join(f"{at} before {positions[at]}" for at in sorted(positions) if at.topic == name)
            for name in other_topics
        }
        planner.handle_data_loss(
            f"{why}; of the new one, the records of {passed_over[name] or 'no partition'} are not read"
            for name, why in other_topics.items()
        )
        if other_topics and self._options.checkpoint is not None:
            new_ids = {name: view.topic_ids[name] for name in other_topics}
            note = source.start_offsets.note_topics
            note(self._options, self._options.checkpoint, planner.read_cluster_id(), new_ids)
        # A broker of an older version answers without ids.
        ids = self._topic_ids
        ids |= {name: each for name, each in view.topic_ids.items() if each != NIL or name not in ids}
        return other_topics.keys()

    def _read_topic_ids(self) -> None:
        """Begin a run with the ids that the query began with, if they are noted in its checkpoint."""
        if self._options.checkpoint is not None and not self._has_read_ids:
            cluster_id = self._get_planner().read_cluster_id()
            find = source.start_offsets.read_topic_ids
            self._topic_ids |= find(self._options, self._options.checkpoint, cluster_id)
        self._has_read_ids = True

    def _check_topics(self, ranges: Sequence[OffsetRange]) -> Sequence[OffsetRange]:
        """Ask for the topics of a batch that is run again: nothing is known of them yet in this run."""
        starts = {each.partition: each.start for each in ranges}
        self._read_topic_ids()
        if {at.topic for at in starts} <= self._topic_ids.keys():
            return ranges
        planner = self._get_planner()
        view = planner.find_topics(starts)
        self._note_topics(view, starts)
        planner.handle_data_loss(
            f"{each} is gone" for each in ranges if each.partition not in view.partitions
        )
        return [each for each in ranges if each.partition in view.partitions]

    def _should_delay(self, count: int) -> bool:
        """Return whether to wait for more records, up to the maximum delay; a run's first batch does not."""
        options, now = self._options, self._now()
        delayed_ms = None if self._last_batch_s is None else (now - self._last_batch_s) * 1000
        if options.min_offsets is None or self._available_now:
            return False
        if (
            delayed_ms is not None
            and delayed_ms < options.max_trigger_delay_ms
            and count < options.min_offsets
        ):
            return True
        self._last_batch_s = now
        return False

    def _add_new_partitions(self, begin: Offsets, latest: Offsets) -> Offsets:
        new_partitions = set(latest) - set(begin)
        return (
            {**self._get_planner().list_earliest_offsets(new_partitions), **begin}
            if new_partitions
            else begin
        )
