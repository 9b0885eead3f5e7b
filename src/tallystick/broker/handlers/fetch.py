"""Fetch: answers at once, or waits until there are enough bytes or the wait time is over.

The first attempt is made at once. If it finds too little, the request registers with its partitions and is
tried again when one of them advances; a waiting fetch holds nothing but the names of its partitions.

Source: KafkaApis.handleFetchRequest, DelayedFetch, ReplicaManager.readFromLog.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from tallystick.broker.broker import Broker
from tallystick.broker.handlers.dispatch import QUICK_BYTES, Body
from tallystick.broker.partitions.fetch_sessions import FetchStart, Key, Outcome, Plan, Wanted
from tallystick.broker.partitions.partition import Partition
from tallystick.broker.partitions.visibility import (
    ByteBudget,
    Isolation,
    answer_bytes,
    check_leader_epoch,
    readable_end,
)
from tallystick.broker.server.request_context import RequestContext
from tallystick.broker.server.server import CloseConnection
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import LeaderEpoch, Offset
from tallystick.protocol import encode_parts
from tallystick.protocol.hot import (
    FETCH_BY_ID,
    FetchAnswer,
    FetchCall,
    FetchSession,
    Topic,
    read_fetch_request,
    write_fetch_response,
)
from tallystick.protocol.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchResponse,
    PartitionData,
)
from tallystick.protocol.primitives import NIL
from tallystick.storage.backlog import readable_bytes
from tallystick.storage.fs import StorageFailure

NOT_DIVERGING: Final = EpochEndOffset()
WAIT_MS_MAX: Final = 3_600_000  # an upper limit for the timer: one hour


@dataclass(slots=True)
class _Found:
    """Result of one attempt."""

    partitions: list[tuple[Wanted, FetchAnswer]]
    size: int = 0
    failed: bool = False  # an error or a diverging epoch is answered at once
    diverging: dict[Key, EpochEndOffset] = field(default_factory=dict)


def handle(broker: Broker, body: memoryview, context: RequestContext) -> Body | Awaitable[Body]:
    """Answer at once if there is enough to return, else wait."""
    if len(body) > QUICK_BYTES:
        return _read_beside(broker, body, context)
    return _serve(broker, read_fetch_request(body, context.api_version), context)


async def _read_beside(broker: Broker, body: memoryview, context: RequestContext) -> Body:
    """Serve a large request: decode it in a thread, one at a time for all connections [SRV-3]."""
    with broker.request_memory.taken(context.client_host, len(body)):
        async with broker.decoding:
            request = await asyncio.to_thread(read_fetch_request, body, context.api_version)
    named = len({(topic, p.partition) for topic, parts in request.topics for p in parts})
    if named > broker.config.max_partitions:
        raise CloseConnection(
            f"a Fetch names {named} partitions, max.partitions is {broker.config.max_partitions}"
        )
    answer = _serve(broker, request, context)
    return await answer if isinstance(answer, Awaitable) else answer


def _serve(broker: Broker, request: FetchCall, context: RequestContext) -> Body | Awaitable[Body]:
    by_id = context.api_version >= FETCH_BY_ID
    plan = broker.fetch_sessions.plan(_start_of(request, by_id), broker.clock.monotonic_ms())
    if isinstance(plan, Reject):
        return [*write_fetch_response((), context.api_version, FetchSession(error_code=plan.code))]
    fetch = _Fetch(broker, request, plan, context.api_version)
    found = fetch.attempt()
    if fetch.is_enough(found):
        return fetch.answer(found)
    return fetch.wait(found)


def _start_of(request: FetchCall, by_id: bool) -> FetchStart:
    # A repeated partition is read once, by its last entry: Kafka reads them into a map.
    wanted = {
        (topic, p.partition): Wanted(
            (topic, p.partition),
            p.fetch_offset,
            p.partition_max_bytes,
            p.current_leader_epoch,
            p.last_fetched_epoch,
        )
        for topic, parts in request.topics
        for p in parts
    }
    forgotten: tuple[Key, ...] = tuple(
        (topic, partition) for topic, partitions in request.forgotten for partition in partitions
    )
    return FetchStart(request.session_id, request.session_epoch, tuple(wanted.values()), forgotten, by_id)


class _Fetch:
    """One Fetch request being served."""

    __slots__ = (
        "_broker",
        "_callbacks",
        "_counted",
        "_counted_bytes",
        "_future",
        "_isolation",
        "_limit",
        "_moved",
        "_plan",
        "_request",
        "_timer",
        "_version",
        "_waits_on",
    )

    def __init__(self, broker: Broker, request: FetchCall, plan: Plan, version: int) -> None:
        self._broker = broker
        self._request = request
        self._plan = plan
        self._version = version
        # Every value but 1 is READ_UNCOMMITTED; Kafka refuses values other than 0 and 1.
        self._isolation = Isolation(request.isolation_level == 1)
        self._limit = min(request.max_bytes, broker.config.fetch_max_bytes)
        self._waits_on: dict[Partition, Wanted] = {}
        self._callbacks: list[tuple[Partition, Callable[[], None]]] = []
        self._moved: set[Partition] = set()
        self._counted: dict[Key, int] = {}
        self._counted_bytes = 0

    # ------------------------------------------------------------------------ reading

    def attempt(self) -> _Found:
        """Read what is readable now, within the limits."""
        room = self._broker.config.queued_max_response_bytes
        budget = ByteBudget(answer_bytes(self._limit, self._broker.unsent_bytes(), room))
        found = _Found([])
        for wanted in self._plan.wanted:
            data = self._read(wanted, budget, found)
            found.partitions.append((wanted, data))
            found.size += len(data.records or b"")
            found.failed |= data.error_code != 0
        return found

    def _read(self, wanted: Wanted, budget: ByteBudget, found: _Found) -> FetchAnswer:
        partition = self._find(wanted.key)
        if isinstance(partition, Reject):
            return _failure(wanted, partition)
        log = partition.log
        refused = check_leader_epoch(wanted.leader_epoch, partition.leader_epoch)
        if refused is not None:
            return _failure(wanted, refused)
        diverging = _diverging(partition, wanted)
        if isinstance(diverging, Reject):
            return _failure(wanted, diverging)
        if diverging is not None:
            found.diverging[wanted.key] = diverging
            found.failed = True
            return self._data(wanted, partition, b"")
        upper = readable_end(self._isolation, log.high_watermark, log.last_stable_offset)
        if wanted.offset == upper or (budget.spent and log.log_start_offset <= wanted.offset <= upper):
            return self._data(wanted, partition, b"")
        try:
            result = log.read(
                Offset(wanted.offset),
                budget.limit(wanted.max_bytes),
                upper=Offset(upper),
                min_one=budget.first,
            )
        except StorageFailure as exc:
            return _failure(wanted, Reject(ErrorCode.KAFKA_STORAGE_ERROR, str(exc)))
        if isinstance(result, Reject):
            return _failure(wanted, result)
        budget.took(len(result.data))
        return self._data(wanted, partition, result.data)

    def _find(self, key: Key) -> Partition | Reject:
        name, index = key
        if not isinstance(name, str):
            topic = self._broker.topics.find_id(name)
            if topic is None:
                return Reject(ErrorCode.UNKNOWN_TOPIC_ID, f"there is no topic with id {name}")
            name = topic.name
        partition = self._broker.topics.partition(name, index)
        if partition is None:
            return Reject(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {name}-{index}")
        return partition

    def _data(self, wanted: Wanted, partition: Partition, records: bytes) -> FetchAnswer:
        log = partition.log
        return FetchAnswer(
            wanted.key[1],
            0,
            log.high_watermark,
            log.last_stable_offset,
            log.log_start_offset,
            self._aborted(partition, wanted.offset, records),
            -1,
            records,
        )

    def _aborted(self, partition: Partition, offset: int, records: bytes) -> list[tuple[int, int]] | None:
        if self._isolation is not Isolation.READ_COMMITTED:
            return None
        if not records:
            return []
        return [(txn.producer_id, txn.first_offset) for txn in partition.aborted_in(Offset(offset), records)]

    # ------------------------------------------------------------------------ waiting

    def is_enough(self, found: _Found) -> bool:
        request = self._request
        return (
            found.failed
            or found.size >= request.min_bytes
            or request.max_wait_ms <= 0
            or not self._plan.wanted
            or self._broker.stopping
            # No further batch may fit, although the response is smaller than its limit.
            or (found.size > 0 and self._limit < request.min_bytes and self._is_filled())
        )

    def _is_filled(self) -> bool:
        """Return whether there is enough to read to fill the response."""
        for wanted in self._plan.wanted:
            partition = self._find(wanted.key)
            if isinstance(partition, Reject) or self._count(partition, wanted):
                return True
        return False

    def _count(self, partition: Partition, wanted: Wanted) -> bool:
        """Update the readable bytes of one partition, and return whether the total is enough.

        Counts by log positions, so that waiting for many bytes does not mean reading them repeatedly;
        includes bytes that are not synced yet, and so errs towards reading. Cost: one partition, however many
        the request waits for.
        """
        log, enough = partition.log, min(self._request.min_bytes, self._limit)
        if log.failure is not None or wanted.offset < log.log_start_offset:
            return True
        there = 0
        if wanted.offset < readable_end(self._isolation, log.high_watermark, log.last_stable_offset):
            if enough <= 1:
                return True
            there = min(readable_bytes(log, Offset(wanted.offset), enough), max(wanted.max_bytes, 1))
        self._counted_bytes += there - self._counted.get(wanted.key, 0)
        self._counted[wanted.key] = there
        return self._counted_bytes >= enough

    def wait(self, found: _Found) -> "asyncio.Future[Body]":
        """Return a future of the response; cancelling it drops the request."""
        loop = asyncio.get_running_loop()
        self._future: asyncio.Future[Body] = loop.create_future()
        for wanted, _ in found.partitions:
            partition = self._find(wanted.key)
            if isinstance(partition, Partition):
                self._waits_on[partition] = wanted
                self._count(partition, wanted)
        for partition in self._waits_on:
            callback = partial(self._has_moved, partition)
            partition.add_waiter(callback)
            self._callbacks.append((partition, callback))
        wait_s = min(self._request.max_wait_ms, WAIT_MS_MAX) / 1000
        self._timer = loop.call_later(wait_s, self._try_again, True)
        self._future.add_done_callback(self._forget)
        return self._future

    def _has_moved(self, partition: Partition) -> None:
        # A Produce to many partitions calls this for each; one attempt after all of them is enough.
        if not self._moved:
            asyncio.get_running_loop().call_soon(self._try_again, False)
        self._moved.add(partition)

    def _try_again(self, time_is_up: bool) -> None:
        moved, self._moved = self._moved, set()
        if self._future.done():
            return
        try:
            if not time_is_up and not self._may_be_enough(moved):
                return
            found = self.attempt()
            if time_is_up or self.is_enough(found):
                self._future.set_result(self.answer(found))
        except Exception as exc:
            self._future.set_exception(exc)

    def _may_be_enough(self, moved: Iterable[Partition]) -> bool:
        """Return whether to try again, now that these partitions have advanced or are deleted."""
        if self._broker.stopping:
            return True
        for partition in moved:
            name = partition.topic_partition
            if self._broker.topics.partition(name.topic, name.partition) is not partition:
                return True
            if self._count(partition, self._waits_on[partition]):
                return True
        return False

    def _forget(self, _: "asyncio.Future[Body]") -> None:
        self._timer.cancel()
        for partition, callback in self._callbacks:
            partition.remove_waiter(callback)
        self._callbacks.clear()
        self._waits_on.clear()

    # ---------------------------------------------------------------------- answering

    def answer(self, found: _Found) -> Body:
        """Encode the response, in a session without the unchanged partitions (KIP-227)."""
        session = self._plan.session
        by_topic: dict[Topic, list[FetchAnswer]] = {}
        for wanted, data in found.partitions:
            if session is not None:
                outcome = Outcome(
                    len(data.records or b""),
                    data.error_code,
                    data.high_watermark,
                    data.log_start_offset,
                    wanted.key in found.diverging,
                )
                told = wanted.worth_telling(outcome)
                if self._plan.incremental and not told:
                    continue
                if data.records:
                    session.had_data(wanted.key)
            by_topic.setdefault(wanted.key[0], []).append(data)
        answers = list(by_topic.items())
        if found.diverging:
            return self._diverged(answers, found.diverging)
        return [*write_fetch_response(answers, self._version, FetchSession(self._plan.session_id))]

    def _diverged(
        self, answers: list[tuple[Topic, list[FetchAnswer]]], diverging: dict[Key, EpochEndOffset]
    ) -> Body:
        """Encode the rare response with a diverging epoch, a tagged field, by the generated encoder."""
        responses = tuple(
            FetchableTopicResponse(
                topic=topic if isinstance(topic, str) else "",
                topic_id=NIL if isinstance(topic, str) else topic,
                partitions=tuple(
                    PartitionData(
                        partition_index=part.partition,
                        error_code=part.error_code,
                        high_watermark=part.high_watermark,
                        last_stable_offset=part.last_stable_offset,
                        log_start_offset=part.log_start_offset,
                        diverging_epoch=diverging.get((topic, part.partition), NOT_DIVERGING),
                        aborted_transactions=None,
                        records=part.records,
                    )
                    for part in parts
                ),
            )
            for topic, parts in answers
        )
        response = FetchResponse(session_id=self._plan.session_id, responses=responses)
        return [*encode_parts(response, self._version)]


def _diverging(partition: Partition, wanted: Wanted) -> EpochEndOffset | Reject | None:
    """Return where the log diverges from the reader's, if it sent its last fetched epoch (KIP-595)."""
    if wanted.last_fetched_epoch < 0:
        return None
    found = partition.epoch_end_offset(LeaderEpoch(wanted.last_fetched_epoch))
    if found is None:
        return Reject(
            ErrorCode.OFFSET_OUT_OF_RANGE, f"there is no epoch up to {wanted.last_fetched_epoch} in the log"
        )
    epoch, end_offset = found
    if epoch < wanted.last_fetched_epoch or end_offset < wanted.offset:
        return EpochEndOffset(epoch=epoch, end_offset=end_offset)
    return None


def _failure(wanted: Wanted, refused: Reject) -> FetchAnswer:
    return FetchAnswer(wanted.key[1], refused.code, -1, -1, -1, None, -1, b"")
