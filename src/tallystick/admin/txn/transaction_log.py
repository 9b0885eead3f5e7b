"""Follows `__transaction_state` on any Kafka cluster: what has happened to transactional ids, as it happens.

tallystick's broker keeps a history of its own (`Admin.describe_transactions(history=True)`), with names and
addresses of clients. Apache Kafka keeps none, but its transaction log can be read by those with READ on the
topic. No group and no offsets are left behind on the cluster.

The log is read as it is, without waiting: the partitions of one leader in one Fetch. A record is seen once
the cluster has committed it (the high watermark).
"""

from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Final, Self

from tallystick.admin.admin_call import AdminCall, gather_answers
from tallystick.admin.topics import EARLIEST, LATEST, list_offsets
from tallystick.admin.txn.snapshots import TRANSACTION_STATE
from tallystick.admin.txn.transaction_log_fold import TransactionLogFold
from tallystick.client.errors import BadAnswer, ClientError, NotAuthorized, UnknownTopic, build_broker_error
from tallystick.client.net.cluster import Cluster
from tallystick.client.net.metadata import TopicInfo
from tallystick.client.net.network import CLOSE_TIMEOUT_S
from tallystick.client.settings.config import AdminConfig
from tallystick.kernel.clock import Clock, SystemClock
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Remedy
from tallystick.kernel.ids import TopicPartition
from tallystick.protocol.messages.data.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from tallystick.protocol.records import RecordsError
from tallystick.protocol.transaction_history import TransactionTransition

BACKLOG_MAX: Final = 20_000
"""Records, of all partitions together, that the first poll may go back from their ends."""

TRANSITIONS_PER_POLL: Final = 10_000
_ROUNDS_PER_POLL: Final = 8
_FETCH_BYTES: Final = 1024 * 1024
_PARTITION_BYTES: Final = 256 * 1024
_POLL_LIMIT_MS: Final = 5_000
_FORBIDDEN_PAUSE_MS: Final = 60_000
"""A denied request is a line in the brokers' log, so that it is not repeated every second."""

_FETCH_BY_NAME_VERSION: Final = 12
"""Fetch version 13 and later name topics by id (KIP-516)."""


class TransactionLogFollower:
    """Follows the transaction log of one cluster.

        async with TransactionLogFollower({"bootstrap.servers": "localhost:9092"}) as follower:
            while True:
                for step in await follower.poll():
                    print(step.transactional_id, step.kind.name, step.at_ms)
                await asyncio.sleep(1)

    Belongs to the event loop it is first used on.
    """

    def __init__(
        self,
        config: Mapping[str, object],
        *,
        since_ms: int | None = None,
        backlog_max: int = BACKLOG_MAX,
        clock: Clock | None = None,
    ) -> None:
        """Parse the configuration of an admin client; nothing is sent yet.

        Args:
            since_ms: begin with the records of this time; None: as far back as `backlog_max` allows.
            backlog_max: records to go back at most, over all partitions.

        Raises: BadConfig with every problem at once.
        """
        self.config = AdminConfig.parse(config)
        self._cluster = Cluster(self.config.client, topics_idle_ms=self.config.client.metadata_max_age_ms)
        self._since_ms, self._backlog_max = since_ms, backlog_max
        self._clock = clock or SystemClock()
        self._fold = TransactionLogFold()
        self._next_offsets: dict[TopicPartition, int] = {}
        self._is_behind = False
        self._failures: list[ClientError] = []
        self._reported: set[tuple[type[ClientError], str]] = set()
        self._has_failed = False
        self._has_moved_leaders = False
        self._paused_until_ms = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Close every connection; a second call does nothing."""
        await self._cluster.close(timeout_s)

    @property
    def is_behind(self) -> bool:
        """Whether the last poll has left records: poll again immediately."""
        return self._is_behind

    @property
    def has_succeeded(self) -> bool:
        """Whether nothing kept the last poll from reading."""
        return not self._has_failed

    @property
    def unreadable_count(self) -> int:
        """Number of records that could not be read and were passed over."""
        return self._fold.unreadable_count

    def take_failures(self) -> tuple[ClientError, ...]:
        """Return what kept polls from reading, each kind of failure once until a poll has succeeded.

        NotAuthorized: READ and DESCRIBE on the topic are missing; it is tried again every minute.
        """
        taken, self._failures = tuple(self._failures), []
        return taken

    async def poll(self) -> tuple[TransactionTransition, ...]:
        """Return what has happened since the last poll; of one transactional id in its order.

        Takes no longer than a few seconds, reads a bounded number of records, and raises no ClientError: see
        `take_failures`. A cluster without a transaction log has no transitions.
        """
        if self._clock.now_ms() < self._paused_until_ms:
            return ()
        limit_ms = min(self.config.default_api_timeout_ms, _POLL_LIMIT_MS)
        call = AdminCall(self._cluster, self._cluster.start_deadline("a poll's limit", limit_ms))
        transitions: list[TransactionTransition] = []
        self._has_failed = self._is_behind = False
        try:
            await self._find_positions(call)
            for _ in range(_ROUNDS_PER_POLL):
                self._is_behind = await self._read_round(transitions)
                if not self._is_behind or len(transitions) >= TRANSITIONS_PER_POLL:
                    break
        except ClientError as exc:
            self._report(exc)
        if not self._has_failed:
            self._reported.clear()
        return tuple(transitions)

    def _report(self, failure: ClientError) -> None:
        self._has_failed = True
        kind = (type(failure), str(getattr(failure, "code", "")))
        if kind not in self._reported:
            self._reported.add(kind)
            self._failures.append(failure)
        if isinstance(failure, NotAuthorized):
            self._paused_until_ms = self._clock.now_ms() + _FORBIDDEN_PAUSE_MS

    # ------------------------------------------------------------------------- where to read

    async def _find_positions(self, call: AdminCall) -> None:
        """Find where to begin in the partitions without a position, as all are at first."""
        topic = await self._cluster.run_with_retries(
            "Metadata", TRANSACTION_STATE, self._describe_topic, call.deadline
        )
        if topic is None:
            return
        partitions = [TopicPartition(topic.name, index) for index in sorted(topic.partitions)]
        missing = [at for at in partitions if at not in self._next_offsets]
        if not missing:
            return
        backlog = self._backlog_max // len(partitions)
        ends = await self._list_offsets(call, missing, LATEST)
        firsts = await self._list_offsets(call, ends, EARLIEST)
        sinces = None if self._since_ms is None else await self._list_offsets(call, firsts, self._since_ms)
        for at, first in firsts.items():
            end = ends[at] or 0
            begin = max(first or 0, end - backlog)
            if sinces is not None and at in sinces:
                since = sinces[at]
                begin = max(begin, end if since is None else since)
            self._next_offsets[at] = begin

    async def _describe_topic(self) -> TopicInfo | None:
        """Return the topic; None before the first transactional producer of the cluster."""
        if self._has_moved_leaders:
            await self._cluster.refresh((TRANSACTION_STATE,))
            self._has_moved_leaders = False
        try:
            return await self._cluster.get_topic(TRANSACTION_STATE)
        except UnknownTopic:
            return None

    async def _list_offsets(
        self, call: AdminCall, partitions: Iterable[TopicPartition], time_ms: int
    ) -> dict[TopicPartition, int | None]:
        """Look up offsets; partitions that fail are reported, and left to the next poll."""
        answers = await list_offsets(call, dict.fromkeys(partitions, time_ms), read_committed=False)
        for failure in answers.failures.values():
            self._report(failure)
        return {at: None if each is None else each.offset for at, each in answers.found.items()}

    # -------------------------------------------------------------------------------- reading

    async def _read_round(self, transitions: list[TransactionTransition]) -> bool:
        """Send one Fetch to each leader. Returns whether it was worth while, and there is more to read."""
        by_node: dict[int, list[TopicPartition]] = {}
        for at in self._next_offsets:
            try:
                by_node.setdefault(await self._cluster.find_leader(at), []).append(at)
            except ClientError as exc:
                self._report(exc)
        answers = await gather_answers(by_node, lambda node: self._fetch(node, by_node[node]))
        for failure in answers.failures.values():
            self._report(failure)
        taken = [self._take(at, data, transitions) for parts in answers.found.values() for at, data in parts]
        return any(moved for moved, _ in taken) and any(behind for _, behind in taken)

    async def _fetch(
        self, node: int, partitions: Sequence[TopicPartition]
    ) -> list[tuple[TopicPartition, PartitionData]]:
        wanted = tuple(
            FetchPartition(
                partition=at.partition,
                fetch_offset=self._next_offsets[at],
                partition_max_bytes=_PARTITION_BYTES,
            )
            for at in partitions
        )
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=_FETCH_BYTES,
            topics=(FetchTopic(topic=TRANSACTION_STATE, partitions=wanted),),
        )
        answer = await self._cluster.send(node, request, FetchResponse, max_version=_FETCH_BY_NAME_VERSION)
        if answer.error_code:
            raise build_broker_error("Fetch", TRANSACTION_STATE, answer.error_code)
        return [
            (TopicPartition(topic.topic, data.partition_index), data)
            for topic in answer.responses
            for data in topic.partitions
        ]

    def _take(
        self, at: TopicPartition, data: PartitionData, result: list[TransactionTransition]
    ) -> tuple[bool, bool]:
        """Process a partition's answer. Returns whether the position moved, and whether there is more."""
        position = self._next_offsets.get(at)
        if position is None:
            return False, False
        if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            # The topic was recreated, or an unclean election has taken records back: find a position again.
            del self._next_offsets[at]
            return False, False
        if data.error_code:
            self._note_error(at, data.error_code)
            return False, False
        try:
            after, transitions = self._fold.feed(data.records or b"", position)
        except RecordsError as exc:
            self._report(BadAnswer("the broker", "Fetch", f"{at} from offset {position}: {exc}"))
            return False, False
        # Read once, and last in the next request: a busy partition does not keep the others waiting.
        del self._next_offsets[at]
        self._next_offsets[at] = after
        result += transitions
        return after > position, after < data.high_watermark

    def _note_error(self, at: TopicPartition, code: int) -> None:
        """Record an error of one partition; a leader that has moved is looked up by the next poll."""
        failure = build_broker_error("Fetch", at, code)
        if failure.remedy is Remedy.REFRESH:
            self._has_moved_leaders = True
        else:
            self._report(failure)
