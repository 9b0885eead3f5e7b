"""Planner of the Spark source: it asks the cluster for partitions and offsets.

It runs on the driver. Each reader makes its own planner and closes it.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from types import TracebackType
from typing import Final, Self
from uuid import UUID

from pyspark.sql.datasource import InputPartition

from tallystick.admin.client import Admin
from tallystick.admin.topics import EARLIEST, LATEST
from tallystick.client.errors import BrokerRefused, ClientError, NotAuthorized, UnknownTopic
from tallystick.client.net.metadata import TopicInfo
from tallystick.client.settings.config import ROLE_SETTINGS, is_client_setting
from tallystick.kernel.errors import TallystickError
from tallystick.kernel.ids import TopicPartition
from tallystick.kernel.value import Value
from tallystick.protocol.primitives import NIL
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
from tallystick.spark.protocol.offsets import NO_OFFSETS, OffsetRange, Offsets, split_ranges
from tallystick.spark.source.topics_seen import (
    AWAY_MS_MAX,
    TopicsSeen,
    build_topics_seen,
    find_away,
    find_unseen,
    plan_pauses,
)

_log = logging.getLogger("tallystick.spark")

_LIST_OFFSETS_SPEC: Final = {Edge.EARLIEST: EARLIEST, Edge.LATEST: LATEST}


class SourceDataLoss(TallystickError):
    """Records that a query should have read are gone. It has read nothing past them."""

    def __str__(self) -> str:
        return (
            f"{'; '.join(map(str, self.args))}. They aged out, the log was cut, or the topic was deleted and "
            "perhaps made again; a topic may also be hidden, if the right to describe it is missing. If it "
            "comes back, start the query again. To go on with what is left, set failOnDataLoss to false: "
            "nothing is read twice then; to start over, use a new checkpoint"
        )


class UnknownOffsets(TallystickError):
    """The options name topics, partitions or times that do not exist in the cluster."""


class OffsetRangePartition(InputPartition):
    """A task: one range of one partition."""

    def __init__(self, offset_range: OffsetRange, topic_id: UUID | None = None) -> None:
        """Create a task; `topic_id` is that of the topic it was planned for, if the cluster has ids."""
        super().__init__(offset_range)
        self.range, self.topic_id = offset_range, topic_id


class LogEnds(Value, kw_only=True):
    """The ends of a log, for readers of everything and for those of committed records."""

    high_watermark: int
    last_stable_offset: int


class SourcePlanner:
    """A client for the partitions and offsets of one query.

    Raises: Admin's errors: Unreachable, TimedOut, BrokerRefused.
    """

    def __init__(self, options: SourceOptions, sleep: Callable[[float], None] = time.sleep) -> None:
        """Create the planner without connecting to the cluster."""
        self._options, self._sleep = options, sleep
        self._pauses = plan_pauses(int(options.client.get("default.api.timeout.ms", AWAY_MS_MAX)))
        self._last_missing: frozenset[TopicPartition | str] = frozenset()
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

    def read_cluster_id(self) -> str:
        """Return the cluster's id; the addresses of its brokers if it has none."""
        return self._admin.describe_cluster().cluster_id or self._options.client["bootstrap.servers"]

    def find_topics(self, positions: Offsets = NO_OFFSETS) -> TopicsSeen:
        """Return the topics that the options name, as far as the cluster has them.

        Missing topics are requested again, over half a minute, except where the query fails without harm:
        when it has read nothing and must not go on without a topic.

        Args:
            positions: the offsets read so far.
        Raises: UnknownOffsets if a topic is missing that was never read; NotAuthorized.
        """
        topics = self._options.topics
        view = self._ask_for_topics(positions)
        missing = self._find_missing(view, positions)
        if positions or not self._options.fail_on_data_loss:
            for pause_s in self._pauses:
                if missing <= self._last_missing:
                    break
                self._sleep(pause_s)
                view = view.merge(self._ask_for_topics(positions))
                missing = self._find_missing(view, positions)
        if self._options.fail_on_data_loss or not isinstance(topics, Matching):
            for failure in view.refusals.values():
                if not isinstance(failure, UnknownTopic):
                    raise failure
        if missing - self._last_missing:
            new_names = missing - positions.keys() - {at.topic for at in positions}
            self._handle_missing(new_names, sorted(find_away(topics, view, positions)))
        self._last_missing = missing
        return view

    def _find_missing(self, view: TopicsSeen, positions: Offsets) -> frozenset[TopicPartition | str]:
        topics = self._options.topics
        return find_unseen(topics, view) | find_away(topics, view, positions)

    def _ask_for_topics(self, positions: Offsets) -> TopicsSeen:
        infos: dict[str, TopicInfo] = {}
        names: Collection[str]
        match self._options.topics:
            case Matching() as pattern:
                infos = {n: info for n, info in self._admin.list_topics().items() if pattern.matches(n)}
                # A list leaves out what may not be described. Asked for by name, it is said.
                names = {at.topic for at in positions if pattern.matches(at.topic)} - infos.keys()
            case Subscribed(topics=topics):
                names = topics
            case Assigned(partitions=partitions):
                names = {at.topic for at in partitions}
        refusals: dict[str, BrokerRefused] = {}
        if names:
            answers = self._admin.describe_topics(sorted(names))
            infos |= answers.found
            for name, failure in answers.failures.items():
                if not isinstance(failure, UnknownTopic | NotAuthorized):
                    raise failure
                refusals[name] = failure
        return build_topics_seen(infos.values(), self._options.topics, refusals)

    def _handle_missing(self, new_names: Iterable[object], away: Iterable[object]) -> None:
        """Report missing topics; those that were read before are a loss, which the caller finds."""
        where = f"not in the cluster at {self._options.client['bootstrap.servers']}"
        if names := ", ".join(sorted(map(str, new_names))):
            if self._options.fail_on_data_loss:
                raise UnknownOffsets(
                    f"{where}: {names}. Create them, or set failOnDataLoss to false to continue without them"
                )
            _log.warning("%s: %s; continuing without them, since failOnDataLoss is false", where, names)
        if (names := ", ".join(map(str, away))) and not self._options.fail_on_data_loss:
            _log.warning(
                "%s: %s; continuing without them, since failOnDataLoss is false, and where they were if they "
                "come back",
                where,
                names,
            )

    def handle_data_loss(self, losses: Iterable[str]) -> None:
        """Fail on lost records, or log them if failOnDataLoss is false. Raises: DataLoss."""
        loss_texts = tuple(losses)
        if loss_texts and self._options.fail_on_data_loss:
            raise SourceDataLoss(*loss_texts)
        for loss in loss_texts:
            _log.warning("data loss, and failOnDataLoss is false: %s", loss)

    # ------------------------------------------------------------------------------ offsets

    def list_earliest_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the log start offsets of those partitions that exist; request missing ones again."""
        away = set(partitions)
        offsets = self._list_earliest_once(away)
        for pause_s in self._pauses:
            away -= offsets.keys()
            if not away:
                break
            self._sleep(pause_s)
            offsets |= self._list_earliest_once(away)
        return offsets

    def _list_earliest_once(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        answers = self._admin.list_offsets(dict.fromkeys(partitions, EARLIEST))
        for failure in answers.failures.values():
            if not isinstance(failure, UnknownTopic):
                raise failure
        return {at: offset.offset for at, offset in answers.found.items() if offset is not None}

    def list_latest_offsets(
        self,
        partitions: Collection[TopicPartition],
        positions: Offsets = NO_OFFSETS,
        other_topics: Collection[str] = (),
    ) -> dict[TopicPartition, int]:
        """Return the current end offsets: last stable offsets, or high watermarks with `read_uncommitted`.

        The end of a log before its position is requested again: a new leader may be behind for a moment.

        Args:
            positions: the offsets read so far. A query that continues from Spark's own source, or from
                `read_uncommitted`, may be past the last stable offset: it waits there.
            other_topics: topics whose logs are known to be others.
        """
        ends = self._list_latest_once(partitions, positions)
        for pause_s in self._pauses:
            cut = [at for at in ends if positions.get(at, 0) > ends[at] and at.topic not in other_topics]
            if not cut:
                break
            self._sleep(pause_s)
            ends |= self._list_latest_once(cut, positions)
        return ends

    def _list_latest_once(
        self, partitions: Iterable[TopicPartition], positions: Offsets
    ) -> dict[TopicPartition, int]:
        ends = self._list_offsets(dict.fromkeys(partitions, LATEST), committed=self._options.read_committed)
        ahead_of_end = [at for at in ends if positions.get(at, 0) > ends[at]]
        if ahead_of_end and self._options.read_committed:
            marks = self.list_high_watermarks(ahead_of_end)
            ends |= {at: positions[at] for at in ahead_of_end if positions[at] <= marks[at]}
        return ends

    def list_high_watermarks(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the ends of the logs, including what open transactions have written."""
        return self._list_offsets(dict.fromkeys(partitions, LATEST), committed=False)

    def resolve_offsets(
        self, place: OffsetRangeLimit, partitions: Collection[TopicPartition], *, starting: bool
    ) -> dict[TopicPartition, int]:
        """Resolve a place in the logs to current offsets.

        Raises: UnknownOffsets if not all partitions are named, or no record is at or after the starting time.
        """
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

    def look_at_log(self, at: TopicPartition) -> LogEnds:
        """Return the ends of a log. Raises: UnknownTopic; Admin's errors."""
        stable = self._list_offsets({at: LATEST}, committed=True)[at]
        # In this order: the log only grows between the two answers.
        return LogEnds(high_watermark=self.list_high_watermarks([at])[at], last_stable_offset=stable)

    def name_open_transactions(self, at: TopicPartition, *, before: int) -> str:
        """Return the ids of transactions that hold a partition back before an offset, as far as known."""
        try:
            (producers,) = self._admin.describe_producers([at]).all().values()
            ids = {
                each.identity.producer_id
                for each in producers
                if each.txn_start_offset is not None and each.txn_start_offset < before
            }
            listings = self._admin.list_transactions(producer_ids=ids).found.values() if ids else ()
        except ClientError as exc:
            return f"which one is not known ({exc})"
        names = {each.producer_id: each.transactional_id for listing in listings for each in listing}
        return ", ".join(names.get(n, f"that of producer id {n}") for n in sorted(ids)) or "it ended just now"

    # -------------------------------------------------------------------------------- tasks

    def plan_tasks(
        self, ranges: Iterable[OffsetRange], topic_ids: Mapping[str, UUID]
    ) -> list[OffsetRangePartition]:
        """Return the tasks of these ranges, split as the options say."""
        options = self._options
        return [
            OffsetRangePartition(each, _known_id(topic_ids.get(each.partition.topic)))
            for each in split_ranges(list(ranges), options.min_partitions, options.max_records_per_partition)
        ]


def _known_id(topic_id: UUID | None) -> UUID | None:
    return None if topic_id == NIL else topic_id


def _check_same_partitions(
    subject: str, partitions: Iterable[TopicPartition], existing: Iterable[TopicPartition]
) -> None:
    """Check that the JSON names every partition, and only existing ones. Raises: UnknownOffsets."""
    missing, unknown = sorted(set(existing) - set(partitions)), sorted(set(partitions) - set(existing))
    problems = [f"{', '.join(map(str, missing))} not named"] if missing else []
    problems += [f"{', '.join(map(str, unknown))} not in the cluster"] if unknown else []
    if problems:
        raise UnknownOffsets(f"{subject} must name every partition that is read: {'; '.join(problems)}")
