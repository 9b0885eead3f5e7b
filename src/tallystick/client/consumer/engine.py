"""Consumer engine on one loop: the poll loop, and the parts it is made of. The facades call it.

    rebalance             rebalances, in the user's calls     consumer_coordinator  sends the group's requests
    commit_requests       commits, auto-commit                membership            phases of a member; pure
    positions             seek, pause, rewind                 position_search       finds unknown positions
    fetcher               fetches, buffers the data           fetch_state           state of partitions; pure
    offset_requests       requests about offsets              decode                bytes to records; pure

The user's part happens in `poll`: it runs callbacks, raises errors and returns records. Between polls a task
maintains the membership, and fetches continue until data is buffered.

Only one task may be in `poll`, `subscribe`, `unsubscribe` or `close` at a time; `wakeup` and methods that do
not wait may be called by any task of the loop.
"""

import asyncio
import logging
import re
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tallystick.client.consumer.arrow import build_record_batch
from tallystick.client.consumer.assignors.assign import ASSIGNORS
from tallystick.client.consumer.commit_requests import CommitRequestManager
from tallystick.client.consumer.consumer_coordinator import ConsumerCoordinator
from tallystick.client.consumer.decode import ConsumerRecord
from tallystick.client.consumer.fetch_state import PositionSource, SubscriptionState
from tallystick.client.consumer.fetcher import Fetcher
from tallystick.client.consumer.membership import GroupRebalanceConfig
from tallystick.client.consumer.offset_requests import (
    ISOLATION_LEVELS,
    CallDeadlines,
    GroupOffsetRequests,
    LogOffsetRequests,
)
from tallystick.client.consumer.position_search import PositionSearch
from tallystick.client.consumer.positions import ConsumerPositions
from tallystick.client.consumer.rebalance import MembershipManager, RebalanceListener
from tallystick.client.errors import Closed, IllegalState, WokenUp
from tallystick.client.net.cluster import Cluster
from tallystick.client.offsets import GroupMetadata, OffsetAndMetadata, Offsets
from tallystick.client.settings.config import ConsumerConfig
from tallystick.kernel.ids import GroupId, TopicPartition

if TYPE_CHECKING:
    from pyarrow import RecordBatch

_log = logging.getLogger("tallystick.consumer")

T = TypeVar("T")

ARROW_ROWS: Final = 65_536
"""Default number of rows in an Arrow batch."""

_RESET_BY_NAME: Final = {"earliest": PositionSource.EARLIEST, "latest": PositionSource.LATEST, "none": None}


class ConsumerEngine:
    """One consumer. Life cycle: create, `subscribe` or `assign`, `poll` ..., `close`.

    Attributes:
        positions: seeks, pauses and rewinds.
        log_offsets: looks up offsets of logs.
    """

    def __init__(self, config: ConsumerConfig) -> None:
        self._config = config
        self._cluster = Cluster(config.client, auto_create_topics=config.allow_auto_create_topics)
        self._progress = asyncio.Event()
        self._subscriptions = SubscriptionState(_RESET_BY_NAME[config.auto_offset_reset])
        self._fetcher = Fetcher(config, self._cluster, self._subscriptions, self._progress.set)
        deadlines = CallDeadlines(self._cluster, config.default_api_timeout_ms)
        self.log_offsets = LogOffsetRequests(self._cluster, config.isolation_level, deadlines)
        self._group_offsets: GroupOffsetRequests | None = None
        self._group: MembershipManager | None = None
        if config.group_id is not None:
            group_id = GroupId(config.group_id)
            self._group_offsets = GroupOffsetRequests(self._cluster, group_id, config.isolation_level)
            self._group = self._create_group(group_id, self._group_offsets, deadlines)
        self._position_search = PositionSearch(
            self._subscriptions, self.log_offsets, self._group_offsets, deadlines, self._progress.set
        )
        self.positions = ConsumerPositions(
            self._subscriptions, self._position_search, deadlines, self._progress
        )
        self._wakeup_pending = False
        self._closing = False  # callbacks may still commit
        self._is_closed = False

    def _create_group(
        self, group_id: GroupId, group_offsets: GroupOffsetRequests, deadlines: CallDeadlines
    ) -> MembershipManager:
        config, cluster, subscriptions = self._config, self._cluster, self._subscriptions
        settings = GroupRebalanceConfig(
            group_id=group_id,
            instance_id=config.group_instance_id,
            rack=config.client_rack or None,
            session_timeout_ms=config.session_timeout_ms,
            rebalance_timeout_ms=config.max_poll_interval_ms,
            assignors=tuple(ASSIGNORS[name] for name in config.partition_assignment_strategy),
        )
        coordinator = ConsumerCoordinator(settings, cluster, config.heartbeat_interval_ms, self._progress.set)
        commits = CommitRequestManager(
            config,
            cluster,
            subscriptions,
            coordinator=coordinator,
            group_offsets=group_offsets,
            deadlines=deadlines,
        )
        hide = config.exclude_internal_topics
        return MembershipManager(cluster, subscriptions, coordinator, commits, exclude_internal_topics=hide)

    # ------------------------------------------------------------------------ subscription

    def subscribe(
        self, topics: Iterable[str] | re.Pattern[str], listener: RebalanceListener | None = None
    ) -> None:
        """Share these topics with the group; the partitions are assigned while polling.

        Args:
            topics: names; or a pattern, matched against the whole name of every topic, now and later.
        Raises: IllegalState without `group.id` or after `assign`.
        """
        group = self._require_group("subscribe")
        if self._subscriptions.assigned_partitions and not group.is_subscribed:
            raise IllegalState("subscribe after assign: unsubscribe first")
        group.subscribe(topics, listener)

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions, outside of group management. Known positions are kept.

        Raises: IllegalState while subscribed.
        """
        self._require_open()
        if self._is_subscribed:
            raise IllegalState("assign while subscribed: unsubscribe first")
        self._subscriptions.assign(frozenset(partitions), committed=self._group is not None)

    async def unsubscribe(self) -> None:
        """Stop reading and leave the group. Callbacks run; positions are not committed."""
        self._require_open()
        if self._group is not None:
            await self._group.leave("the consumer unsubscribed")
        self._subscriptions.assign((), committed=False)

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        return self._subscriptions.assigned_partitions

    @property
    def unread(self) -> deque[ConsumerRecord[Any, Any]]:
        """Records that an iteration has polled, and not yielded yet; the one who iterates changes it."""
        return self._subscriptions.unread

    @property
    def subscription(self) -> frozenset[str]:
        return frozenset() if self._group is None else self._group.topics

    def read_committed(self) -> None:
        """Read committed records only, as with `isolation.level`. Called before anything is read."""
        self._require_open()
        level = ISOLATION_LEVELS["read_committed"]
        self._fetcher.isolation_level = self.log_offsets.isolation_level = level
        if self._group_offsets is not None:
            self._group_offsets.isolation_level = level

    # -------------------------------------------------------------------------------- poll

    async def poll(self, timeout_ms: int, most: int | None = None) -> list[ConsumerRecord]:
        """Return records as soon as there are any; an empty list after `timeout_ms`.

        Also return an empty list as soon as the position moved past markers and aborted records only, as
        Kafka's consumer does: a caller that reads up to an offset then sees that it is reached.

        The timeout does not cut short callbacks, nor the commit before partitions are given up. Every call
        yields to other tasks of the loop, heartbeats among them.

        Args:
            most: maximum number of records; `max.poll.records` by default.
        Raises: WokenUp; BrokerRefused (a grant is missing, a topic is invalid, this member was fenced),
            PositionUnknown, RecordUnreadable; Closed; any error of a callback.
        """
        return await self._poll(
            timeout_ms, partial(self._fetcher.take_records, most or self._config.max_poll_records)
        )

    async def poll_arrow(self, timeout_ms: int, most: int | None = None) -> "RecordBatch":
        """Poll like `poll`, and return an Arrow batch with the columns of `client.consumer.arrow`.

        The batch may have no rows.

        Args:
            most: maximum number of rows; 65,536 by default, since `max.poll.records` counts objects.
        Raises: as `poll`, and NotSupported without pyarrow.
        Cost: about 30 ns a record with the codec's extension, 1.1 us without.
        """
        return build_record_batch(
            await self._poll(timeout_ms, partial(self._fetcher.take_chunks, most or ARROW_ROWS))
        )

    async def _poll(self, timeout_ms: int, take: Callable[[], list[T]]) -> list[T]:
        if not self._is_subscribed and not self._subscriptions.assigned_partitions:
            self._require_not_closing()
            raise IllegalState("poll: nothing is subscribed or assigned")
        deadline = self._cluster.start_deadline("timeout_ms", timeout_ms)
        self.positions.rewind_if_due()
        await asyncio.sleep(0)
        while True:
            self._progress.clear()
            self._require_not_closing()
            self._raise_if_woken()
            if self._group is not None:
                await self._group.poll()
            self._position_search.start_searches()
            items = take()
            if items or self._fetcher.has_skipped_hidden:
                return items
            left_ms = deadline.remaining_ms(self._cluster.now_ms())
            if not left_ms:
                return []
            try:
                async with asyncio.timeout(left_ms / 1000):
                    await self._progress.wait()
            except TimeoutError:
                pass

    def wakeup(self) -> None:
        """End the wait of the current `poll`, or of the next one, with WokenUp."""
        self._wakeup_pending = True
        self._progress.set()

    def _raise_if_woken(self) -> None:
        if self._wakeup_pending:
            self._wakeup_pending = False
            raise WokenUp("wakeup was called")

    # ----------------------------------------------------------------------------- commits

    async def commit(self, offsets: Offsets | None = None, timeout_ms: int | None = None) -> None:
        """Commit these offsets for the group; the positions of all partitions if none are given.

        Raises: CommitRefused when the partitions belong to other members by now; BrokerRefused, TimedOut.
        """
        await self._require_group("commit").commits.commit(offsets, timeout_ms)

    def commit_soon(self, offsets: Offsets | None = None) -> "asyncio.Task[None]":
        """Start a `commit` without waiting for it. Commits are made in the order of these calls.

        A failure is also logged, since the task may never be awaited.
        """
        return self._require_group("commit").commits.commit_soon(offsets)

    async def committed(
        self, partitions: Iterable[TopicPartition], timeout_ms: int | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return the group's committed offsets; None for none. Raises: TimedOut, BrokerRefused."""
        return await self._require_group("committed").commits.fetch_committed(partitions, timeout_ms)

    def group_metadata(self) -> GroupMetadata:
        """Return the metadata a producer needs to commit offsets in its transaction (KIP-447)."""
        return self._require_group("group_metadata").group_metadata()

    # ------------------------------------------------------------------------------- closing

    @property
    def is_closing(self) -> bool:
        """Whether `close` has begun."""
        return self._closing

    async def close(self, timeout_ms: int = 30_000) -> None:
        """Commit if auto-commit is on, leave the group, close the connections; harmless if repeated.

        Commits of `commit_soon` are finished first, in half of the time at most.

        Takes at most `timeout_ms`; with 0 commits and LeaveGroup are sent without waiting for an answer, as
        Kafka's consumer does. Callbacks run, and their errors are raised when everything is closed.
        If cancelled, it sends nothing more to the group and still closes everything.
        """
        if self._closing:
            return
        self._closing = True
        # Else the last commit would include records that are to be returned again.
        self.positions.rewind_if_due()
        self._progress.set()
        try:
            if self._group is not None:
                async with asyncio.timeout(timeout_ms / 1000):
                    await self._group.close(timeout_ms)
        except TimeoutError:
            _log.warning("closed before the group has confirmed it: %d ms were over", timeout_ms)
        finally:
            self._is_closed = True
            if self._group is not None:
                self._group.cancel()
            self.positions.close()
            self._fetcher.close()
            await self._cluster.close()

    # ------------------------------------------------------------------------------ questions

    def metrics(self) -> dict[str, float]:
        """Return the network's metrics and each partition's lag, by Kafka's names."""
        lags = {f"records-lag.{at}": float(lag) for at, lag in self._subscriptions.compute_lags().items()}
        return {**self._cluster.metrics(), **lags}

    @property
    def _is_subscribed(self) -> bool:
        return self._group is not None and self._group.is_subscribed

    def _require_group(self, call: str) -> MembershipManager:
        self._require_open()
        if self._group is None:
            raise IllegalState(f"{call} needs group.id")
        return self._group

    def _require_not_closing(self) -> None:
        if self._closing:
            raise Closed("the consumer was closed")

    def _require_open(self) -> None:
        if self._is_closed:
            raise Closed("the consumer was closed")
