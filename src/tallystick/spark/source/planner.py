"""Planner of the Spark source: it asks the cluster for partitions and offsets.

It runs on the driver. Each reader makes its own planner and closes it.
"""

import logging
import re
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Final, Self

from pyspark.sql.datasource import InputPartition

from tallystick.admin.client import Admin
from tallystick.admin.topics import EARLIEST, LATEST
from tallystick.client.config import ROLE_SETTINGS, is_client_setting
from tallystick.client.errors import UnknownTopic
from tallystick.client.net.metadata import TopicInfo
from tallystick.kernel.errors import TallystickError
from tallystick.kernel.ids import TopicPartition
from tallystick.spark.options.source_options import (
    Assigned,
    AtOffsets,
    AtTime,
    AtTimes,
    Edge,
    Matching,
    OffsetRangeLimit,
    SourceOptions,
    Subscribed,
)
from tallystick.spark.protocol.offsets import OffsetRange, Offsets, split_ranges

_log = logging.getLogger("tallystick.spark")

_LIST_OFFSETS_SPEC: Final = {Edge.EARLIEST: EARLIEST, Edge.LATEST: LATEST}


class SourceDataLoss(TallystickError):
    """Records that a query should have read are gone. It has read nothing past them."""

    def __str__(self) -> str:
        return (
            f"{'; '.join(map(str, self.args))}. They aged out, the log was cut, or the topic was deleted and "
            "perhaps made again. To go on with what is left, set failOnDataLoss to false; to start over, "
            "use a new checkpoint"
        )


class UnknownOffsets(TallystickError):
    """The options name topics, partitions or times that do not exist in the cluster."""


class OffsetRangePartition(InputPartition):
    """A task: one range of one partition."""

    def __init__(self, offset_range: OffsetRange) -> None:
        super().__init__(offset_range)
        self.range = offset_range


class SourcePlanner:
    """A client for the partitions and offsets of one query.

    Raises: Admin's errors: Unreachable, TimedOut, BrokerRefused.
    """

    def __init__(self, options: SourceOptions) -> None:
        """Create the planner without connecting to the cluster."""
        self._options = options
        admin_settings = ROLE_SETTINGS["admin"]
        self._admin = Admin(
            {n: t for n, t in options.client.items() if n in admin_settings or is_client_setting(n)}
        )

    def close(self) -> None:
        self._admin.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def list_partitions(self) -> frozenset[TopicPartition]:
        """Return the partitions that the options name and the cluster has now. Raises: UnknownOffsets."""
        match self._options.topics:
            case Matching(pattern=pattern):
                topics = self._admin.list_topics()
                return _list_partitions(info for name, info in topics.items() if re.fullmatch(pattern, name))
            case Subscribed(topics=names):
                return _list_partitions(self._describe_topics(names).values())
            case Assigned(partitions=assignment):
                partitions = _list_partitions(self._describe_topics({at.topic for at in assignment}).values())
                self._handle_missing(sorted(set(assignment) - partitions))
                return partitions & set(assignment)

    def _describe_topics(self, names: Iterable[str]) -> Mapping[str, TopicInfo]:
        answers = self._admin.describe_topics(names)
        missing_names = []
        for name, failure in answers.failures.items():
            if not isinstance(failure, UnknownTopic):
                raise failure
            missing_names.append(name)
        self._handle_missing(sorted(missing_names))
        return answers.found

    def _handle_missing(self, items: Iterable[object]) -> None:
        names = ", ".join(map(str, items))
        if names:
            problem = f"not in the cluster at {self._options.client['bootstrap.servers']}: {names}"
            if self._options.fail_on_data_loss:
                raise UnknownOffsets(
                    f"{problem}. Create them, or set failOnDataLoss to false to continue without them"
                )
            _log.warning("%s; continuing without them, since failOnDataLoss is false", problem)

    def handle_data_loss(self, losses: Iterable[str]) -> None:
        """Fail on lost records, or log them if failOnDataLoss is false. Raises: DataLoss."""
        loss_texts = tuple(losses)
        if loss_texts and self._options.fail_on_data_loss:
            raise SourceDataLoss(*loss_texts)
        for loss in loss_texts:
            _log.warning("data loss, and failOnDataLoss is false: %s", loss)

    # ------------------------------------------------------------------------------ offsets

    def list_earliest_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the log start offsets of those partitions that exist."""
        answer = self._admin.list_offsets(dict.fromkeys(partitions, EARLIEST))
        return {at: offset.offset for at, offset in answer.found.items() if offset is not None}

    def list_latest_offsets(self, positions: Offsets | None = None) -> dict[TopicPartition, int]:
        """Return the current end offsets: last stable offsets, or high watermarks with `read_uncommitted`.

        Args:
            positions: the offsets read so far. A query that continues from Spark's own source, or from
                `read_uncommitted`, may be past the last stable offset: it waits there.
        """
        partitions = self.list_partitions()
        ends = self._list_offsets(dict.fromkeys(partitions, LATEST), committed=self._options.read_committed)
        ahead_of_end = [at for at in ends if positions is not None and positions.get(at, 0) > ends[at]]
        if ahead_of_end and positions is not None and self._options.read_committed:
            marks = self._list_offsets(dict.fromkeys(ahead_of_end, LATEST), committed=False)
            ends |= {at: positions[at] for at in ahead_of_end if positions[at] <= marks[at]}
        return ends

    def resolve_offsets(self, place: OffsetRangeLimit, *, starting: bool) -> dict[TopicPartition, int]:
        """Resolve a place in the logs to current offsets.

        Raises: UnknownOffsets if not all partitions are named, or no record is at or after the starting time.
        """
        partitions = self.list_partitions()
        match place:
            case Edge():
                return self._list_offsets(
                    dict.fromkeys(partitions, _LIST_OFFSETS_SPEC[place]),
                    committed=self._options.read_committed,
                )
            case AtOffsets(offsets=offsets):
                _check_same_partitions("offsets", offsets, partitions)
                numbers = {at: offset for at, offset in offsets.items() if isinstance(offset, int)}
                edges = {
                    at: _LIST_OFFSETS_SPEC[edge] for at, edge in offsets.items() if isinstance(edge, Edge)
                }
                return {**numbers, **self._list_offsets(edges, committed=self._options.read_committed)}
            case AtTimes(times_ms=times_ms):
                _check_same_partitions("times", times_ms, partitions)
                return self._find_offsets_by_time(times_ms, starting=starting)
            case AtTime(time_ms=time_ms):
                return self._find_offsets_by_time(dict.fromkeys(partitions, time_ms), starting=starting)

    def _list_offsets(
        self, times: Mapping[TopicPartition, int], *, committed: bool
    ) -> dict[TopicPartition, int]:
        if not times:
            return {}
        answers = self._admin.list_offsets(times, read_committed=committed).all()
        return {at: offset.offset for at, offset in answers.items() if offset is not None}

    def _find_offsets_by_time(
        self, times_ms: Mapping[TopicPartition, int], *, starting: bool
    ) -> dict[TopicPartition, int]:
        offsets = self._list_offsets(times_ms, committed=self._options.read_committed)
        unmatched = [at for at in times_ms if at not in offsets]
        if unmatched and starting and not self._options.latest_if_no_match:
            time_texts = ", ".join(f"{at} at {times_ms[at]}" for at in sorted(unmatched))
            raise UnknownOffsets(
                f"no record has the requested start time or a later one: {time_texts}. Set "
                "startingOffsetsByTimestampStrategy to latest to start at the end there"
            )
        return {
            **offsets,
            **self._list_offsets(dict.fromkeys(unmatched, LATEST), committed=self._options.read_committed),
        }

    # -------------------------------------------------------------------------------- tasks

    def plan_tasks(self, ranges: Iterable[OffsetRange]) -> list[OffsetRangePartition]:
        """Return the tasks of these ranges, split as the options say."""
        options = self._options
        return [
            OffsetRangePartition(each)
            for each in split_ranges(list(ranges), options.min_partitions, options.max_records_per_partition)
        ]


def _list_partitions(topics: Iterable[TopicInfo]) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(topic.name, number) for topic in topics for number in topic.partitions)


def _check_same_partitions(
    subject: str, partitions: Iterable[TopicPartition], existing: Iterable[TopicPartition]
) -> None:
    """Check that the JSON names every partition, and only existing ones. Raises: UnknownOffsets."""
    missing, unknown = sorted(set(existing) - set(partitions)), sorted(set(partitions) - set(existing))
    problems = [f"{', '.join(map(str, missing))} not named"] if missing else []
    problems += [f"{', '.join(map(str, unknown))} not in the cluster"] if unknown else []
    if problems:
        raise UnknownOffsets(f"{subject} must name every partition that is read: {'; '.join(problems)}")
