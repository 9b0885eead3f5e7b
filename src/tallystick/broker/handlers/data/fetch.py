"""Fetch: answers immediately, or waits until there are enough bytes or the wait time is over.

The first attempt is made immediately. If it finds too little, the request registers with its partitions and
is tried again when one of them advances; a waiting fetch holds nothing but the names of its partitions.

Source: KafkaApis.handleFetchRequest, DelayedFetch, ReplicaManager.readFromLog.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Final
from uuid import UUID

from tallystick.broker.authorizer.audit_log import is_audited
from tallystick.broker.authorizer.authorizer import Operation
from tallystick.broker.authorizer.known_rights import NO_NAMES, READ_TOPIC, AllowedNames
from tallystick.broker.handlers.authorization import NameCheck, make_topic_check, may_on_cluster
from tallystick.broker.handlers.dispatch import INLINE_DECODE_BYTES_MAX, ResponseBody, decode_in_thread
from tallystick.broker.handlers.ports import FetchPort
from tallystick.broker.partitions.fetch_sessions import (
    NO_SESSION,
    CachedPartition,
    FetchContext,
    FetchPartitionKey,
    FetchSessionRequest,
    PartitionReadResult,
)
from tallystick.broker.partitions.partition import Partition
from tallystick.broker.partitions.topics import TopicKey
from tallystick.broker.partitions.visibility import (
    ByteBudget,
    IsolationLevel,
    check_leader_epoch,
    find_readable_end,
    limit_response_bytes,
)
from tallystick.broker.server.request_context import RequestContext
from tallystick.broker.server.request_memory import estimate_decoded_bytes
from tallystick.broker.server.server import CloseConnection
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import LeaderEpoch, Offset
from tallystick.kernel.limits import REQUEST_BYTES_MAX
from tallystick.kernel.value import replace
from tallystick.protocol import decode, encode, encode_parts
from tallystick.protocol.messages.data.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from tallystick.storage.disk.fs import CorruptLog, StorageFailure

TOPIC_ID_SINCE: Final = 13  # KIP-516
REPLICA_STATE_SINCE: Final = 15  # KIP-903
NO_DIVERGING_EPOCH: Final = EpochEndOffset()
# No session holds a partition that does not exist or may not be read (ADR 0012).
_ENDS_A_SESSION: Final = (
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
)
_NOT_AUTHORIZED: Final = Reject(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "Topic authorization failed.")
WAIT_MS_MAX: Final = 3_600_000  # an upper limit for the timer: one hour


@dataclass(slots=True)
class _FetchAttempt:
    """Result of one attempt."""

    partitions: list[tuple[CachedPartition, PartitionData]]
    size: int = 0
    must_answer_now: bool = False  # an error or a diverging epoch is answered immediately
    may_keep_session: bool = True


def handle(
    broker: FetchPort, body: memoryview, context: RequestContext
) -> ResponseBody | Awaitable[ResponseBody]:
    """Answer immediately if there is enough to return, else wait."""
    if len(body) > INLINE_DECODE_BYTES_MAX:
        return _serve_large(broker, body, context)
    return _serve(broker, decode(FetchRequest, body, context.api_version), context)


async def _serve_large(broker: FetchPort, body: memoryview, context: RequestContext) -> ResponseBody:
    """Decode a large request in its turn. Its memory counts until it is answered [SRV-4]."""
    memory, host = broker.request_memory, context.client_host
    with memory.acquired(host, len(body) + estimate_decoded_bytes(len(body), REQUEST_BYTES_MAX)):
        async with memory.turn(host):
            request = await decode_in_thread(broker, partial(decode, FetchRequest, body, context.api_version))
            topics = _list_topics(request, context.api_version)
            _check_partition_count(
                broker, "Fetch", len({(topic, p.partition) for topic, parts in topics for p in parts})
            )
            # While memory is short it is answered with what there is, and asks again.
            answer = _serve(broker, request, context, may_wait=not memory.is_short_for(host))
        return await answer if isinstance(answer, Awaitable) else answer


def _serve(
    broker: FetchPort, request: FetchRequest, context: RequestContext, *, may_wait: bool = True
) -> ResponseBody | Awaitable[ResponseBody]:
    start = _parse_session_request(request, context.api_version)
    _check_partition_count(broker, "Fetch", len(start.partitions))
    plan = broker.fetch_sessions.create_context(start, context.connection_id, broker.clock.monotonic_ms())
    if isinstance(plan, Reject):
        return [encode(FetchResponse(error_code=plan.code), context.api_version)]
    try:
        # Each step of a session may add to it, and each reads all of it.
        _check_partition_count(broker, "fetch session", len(plan.partitions))
    except CloseConnection:
        broker.fetch_sessions.drop(plan.session_id)
        raise
    fetch = _DelayedFetch(broker, request, plan, context)
    attempt = fetch.read_available()
    if not may_wait or fetch.is_enough(attempt):
        return fetch.build_response(attempt)
    return fetch.wait(attempt)


def _check_partition_count(broker: FetchPort, what: str, count: int) -> None:
    """Close the connection if there are more partitions than can exist."""
    if count > broker.config.max_partitions:
        raise CloseConnection(
            f"a {what} has {count} partitions, but max.partitions is {broker.config.max_partitions}"
        )


def _list_topics(request: FetchRequest, version: int) -> list[tuple[TopicKey, tuple[FetchPartition, ...]]]:
    """Return the partitions of each topic, under its id from version 13 on and under its name before."""
    by_id = version >= TOPIC_ID_SINCE
    return [(topic.topic_id if by_id else topic.topic, topic.partitions) for topic in request.topics]


def _parse_session_request(request: FetchRequest, version: int) -> FetchSessionRequest:
    by_id = version >= TOPIC_ID_SINCE
    # A repeated partition is read once, by its last entry: Kafka reads them into a map.
    distinct = {
        (topic, p.partition): CachedPartition(
            (topic, p.partition),
            p.fetch_offset,
            p.partition_max_bytes,
            p.current_leader_epoch,
            p.last_fetched_epoch,
        )
        for topic, parts in _list_topics(request, version)
        for p in parts
    }
    forgotten: tuple[FetchPartitionKey, ...] = tuple(
        (topic.topic_id if by_id else topic.topic, partition)
        for topic in request.forgotten_topics_data
        for partition in topic.partitions
    )
    return FetchSessionRequest(
        request.session_id, request.session_epoch, tuple(distinct.values()), forgotten, by_id
    )


class _DelayedFetch:
    """One Fetch request being served."""

    __slots__ = (
        "_advanced_partitions",
        "_awaited_partitions",
        "_broker",
        "_callbacks",
        "_context",
        "_future",
        "_isolation",
        "_known",
        "_limit",
        "_may_read",
        "_readable_by_partition",
        "_readable_bytes",
        "_request",
        "_sender",
        "_timer",
        "_version",
    )

    def __init__(
        self, broker: FetchPort, request: FetchRequest, plan: FetchContext, context: RequestContext
    ) -> None:
        self._broker = broker
        self._request = request
        self._context = plan
        self._version = context.api_version
        self._sender = context
        self._known: AllowedNames | None = None  # None: all may be read
        self._may_read: NameCheck | None = None  # for other names; made when there is one
        if broker.authorizer.is_configured:
            self._find_rights()
        # Every value but 1 is READ_UNCOMMITTED; Kafka refuses values other than 0 and 1.
        self._isolation = IsolationLevel(request.isolation_level == 1)
        self._limit = min(request.max_bytes, broker.config.fetch_max_bytes)
        self._awaited_partitions: dict[Partition, CachedPartition] = {}
        self._callbacks: list[tuple[Partition, Callable[[], None]]] = []
        self._advanced_partitions: set[Partition] = set()
        self._readable_by_partition: dict[FetchPartitionKey, int] = {}
        self._readable_bytes = 0

    # ------------------------------------------------------------------------- rights

    def _find_rights(self) -> None:
        """Find what the sender is known to have the right to read.

        A replica needs CLUSTER_ACTION: the id is a mere claim (CVE-2018-1288).
        """
        request, sender = self._request, self._sender
        self._known = NO_NAMES
        moved = sender.api_version >= REPLICA_STATE_SINCE
        if (request.replica_state.replica_id if moved else request.replica_id) >= 0:
            is_replica = may_on_cluster(self._broker, sender, Operation.CLUSTER_ACTION)
            self._may_read = lambda name: is_replica
        elif not is_audited(logging.DEBUG):
            self._known = known = sender.known_rights.get(READ_TOPIC, NO_NAMES)
            partitions = self._context.partitions
            known.checks += 1 if len(partitions) == 1 else _count_topics(partitions)

    def _ask_to_read(self, name: str) -> bool:
        """Ask the authorizer about a topic that the sender is not known to have the right to read."""
        if self._may_read is None:
            if self._known is not None and self._known is not NO_NAMES:
                self._known.checks -= _count_topics(self._context.partitions)
            self._may_read = make_topic_check(
                self._broker,
                self._sender,
                Operation.READ,
                names=lambda: _iter_topic_names(self._broker, self._context.partitions),
            )
        return self._may_read(name)

    # ------------------------------------------------------------------------ reading

    def read_available(self) -> _FetchAttempt:
        """Read what is readable now, within the limits."""
        room = self._broker.config.queued_max_response_bytes
        budget = ByteBudget(limit_response_bytes(self._limit, self._broker.unsent_bytes(), room))
        attempt = _FetchAttempt([])
        for request in self._context.partitions:
            data = self._read_partition(request, budget, attempt)
            attempt.partitions.append((request, data))
            attempt.size += len(data.records or b"")
            attempt.must_answer_now |= data.error_code != 0
            attempt.may_keep_session &= data.error_code not in _ENDS_A_SESSION
        return attempt

    def _read_partition(
        self, request: CachedPartition, budget: ByteBudget, attempt: _FetchAttempt
    ) -> PartitionData:
        partition = self._find_partition(request.key)
        if isinstance(partition, Reject):
            return _failed_result(request, partition)
        log = partition.log
        # KIP-320: a client with another leader epoch has stale metadata, and must not read on.
        refusal = check_leader_epoch(request.leader_epoch, partition.leader_epoch)
        if refusal is not None:
            return _failed_result(request, refusal)
        divergence = _find_divergence(partition, request)
        if isinstance(divergence, Reject):
            return _failed_result(request, divergence)
        if divergence is not None:
            attempt.must_answer_now = True
            # As in Kafka, without a list of aborted transactions.
            data = self._build_result(request, partition, b"")
            return replace(data, diverging_epoch=divergence, aborted_transactions=None)
        # KIP-98: read_committed ends at the last stable offset, read_uncommitted at the high watermark.
        upper = find_readable_end(self._isolation, log.reader.high_watermark, log.reader.last_stable_offset)
        if request.offset == upper or (budget.is_spent and log.log_start_offset <= request.offset <= upper):
            return self._build_result(request, partition, b"")
        # KIP-74: the first batch of a response is returned whatever its size, or its reader would never pass
        # it.
        try:
            result = log.reader.read(
                Offset(request.offset),
                budget.limit_partition(request.max_bytes),
                upper=Offset(upper),
                min_one=budget.is_first,
            )
            if isinstance(result, Reject):
                return _failed_result(request, result)
            data = self._build_result(request, partition, result.data)
        except CorruptLog as exc:
            partition.report_damage(exc)
            return _failed_result(request, Reject(ErrorCode.CORRUPT_MESSAGE, str(exc)))
        except StorageFailure as exc:
            return _failed_result(request, Reject(ErrorCode.KAFKA_STORAGE_ERROR, str(exc)))
        budget.consume(len(result.data))
        return data

    def _find_partition(self, key: FetchPartitionKey) -> Partition | Reject:
        name, index = key
        if not isinstance(name, str):
            topic = self._broker.topics.find_by_id(name)
            if topic is None:
                return Reject(ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has the id {name}; refresh the metadata")
            name = topic.name
        if self._known is not None and name not in self._known.names and not self._ask_to_read(name):
            return _NOT_AUTHORIZED
        partition = self._broker.topics.find_partition(name, index)
        if partition is None:
            return Reject(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"partition {name}-{index} does not exist")
        return partition

    def _build_result(self, request: CachedPartition, partition: Partition, records: bytes) -> PartitionData:
        log = partition.log
        return PartitionData(
            partition_index=request.key[1],
            high_watermark=log.reader.high_watermark,
            last_stable_offset=log.reader.last_stable_offset,
            log_start_offset=log.log_start_offset,
            aborted_transactions=self._find_aborted_txns(partition, request.offset, records),
            records=records,
        )

    def _find_aborted_txns(
        self, partition: Partition, offset: int, records: bytes
    ) -> tuple[AbortedTransaction, ...] | None:
        if self._isolation is not IsolationLevel.READ_COMMITTED:
            return None
        if not records:
            return ()
        return tuple(
            AbortedTransaction(producer_id=txn.producer_id, first_offset=txn.first_offset)
            for txn in partition.find_aborted_txns(Offset(offset), records)
        )

    # ------------------------------------------------------------------------ waiting

    def is_enough(self, attempt: _FetchAttempt) -> bool:
        request = self._request
        return (
            attempt.must_answer_now
            or attempt.size >= request.min_bytes
            or request.max_wait_ms <= 0
            or not self._context.partitions
            or self._broker.is_stopping
            # No further batch may fit, although the response is smaller than its limit.
            or (attempt.size > 0 and self._limit < request.min_bytes and self._is_filled())
        )

    def _is_filled(self) -> bool:
        """Return whether there is enough to read to fill the response."""
        for part_request in self._context.partitions:
            partition = self._find_partition(part_request.key)
            if isinstance(partition, Reject) or self._update_readable_bytes(partition, part_request):
                return True
        return False

    def _update_readable_bytes(self, partition: Partition, request: CachedPartition) -> bool:
        """Update the readable bytes of one partition, and return whether the total is enough.

        Counts by log positions, so that waiting for many bytes does not mean reading them repeatedly;
        includes bytes that are not synced yet, and so errs towards reading. Cost: one partition, however many
        the request waits for.
        """
        log, sufficient = partition.log, min(self._request.min_bytes, self._limit)
        reader = log.reader
        if log.failure is not None or request.offset < log.log_start_offset:
            return True
        readable = 0
        end = find_readable_end(self._isolation, reader.high_watermark, reader.last_stable_offset)
        if request.offset < end:
            if sufficient <= 1:
                return True
            try:
                count = reader.count_readable_bytes(Offset(request.offset), sufficient)
            except StorageFailure:
                return True  # reading says what is wrong
            readable = min(count, max(request.max_bytes, 1))
        self._readable_bytes += readable - self._readable_by_partition.get(request.key, 0)
        self._readable_by_partition[request.key] = readable
        return self._readable_bytes >= sufficient

    def wait(self, attempt: _FetchAttempt) -> "asyncio.Future[ResponseBody]":
        """Return a future of the response; cancelling it drops the request."""
        # As in Kafka, the rights are those at the arrival of the request, however long it waits. What may not
        # be read was answered immediately, so that all may be read of a request that waits.
        self._known = None
        loop = asyncio.get_running_loop()
        self._future: asyncio.Future[ResponseBody] = loop.create_future()
        for request, _ in attempt.partitions:
            partition = self._find_partition(request.key)
            if isinstance(partition, Partition):
                self._awaited_partitions[partition] = request
                self._update_readable_bytes(partition, request)
        for partition in self._awaited_partitions:
            callback = partial(self._on_advanced, partition)
            partition.add_waiter(callback)
            self._callbacks.append((partition, callback))
        wait_s = min(self._request.max_wait_ms, WAIT_MS_MAX) / 1000
        self._timer = loop.call_later(wait_s, self._retry, True)
        self._future.add_done_callback(self._remove_waiters)
        return self._future

    def _on_advanced(self, partition: Partition) -> None:
        # A Produce to many partitions calls this for each; one attempt after all of them is enough.
        if not self._advanced_partitions:
            asyncio.get_running_loop().call_soon(self._retry, False)
        self._advanced_partitions.add(partition)

    def _retry(self, time_is_up: bool) -> None:
        advanced, self._advanced_partitions = self._advanced_partitions, set()
        if self._future.done():
            return
        try:
            if not time_is_up and not self._may_be_enough(advanced):
                return
            attempt = self.read_available()
            if time_is_up or self.is_enough(attempt):
                self._future.set_result(self.build_response(attempt))
        except Exception as exc:
            self._future.set_exception(exc)

    def _may_be_enough(self, advanced: Iterable[Partition]) -> bool:
        """Return whether to try again, now that these partitions have advanced or are deleted."""
        if self._broker.is_stopping:
            return True
        for partition in advanced:
            name = partition.topic_partition
            if self._broker.topics.find_partition(name.topic, name.partition) is not partition:
                return True
            if self._update_readable_bytes(partition, self._awaited_partitions[partition]):
                return True
        return False

    def _remove_waiters(self, _: "asyncio.Future[ResponseBody]") -> None:
        self._timer.cancel()
        for partition, callback in self._callbacks:
            partition.remove_waiter(callback)
        self._callbacks.clear()
        self._awaited_partitions.clear()

    # ---------------------------------------------------------------------- answering

    def build_response(self, attempt: _FetchAttempt) -> ResponseBody:
        """Encode the response, in a session without the unchanged partitions (KIP-227)."""
        session = self._context.session
        if session is not None and not attempt.may_keep_session:
            self._broker.fetch_sessions.drop(session.session_id)
            if self._context.is_incremental:
                return [encode(FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND), self._version)]
            session = None
        by_topic: dict[TopicKey, list[PartitionData]] = {}
        for request, data in attempt.partitions:
            if session is not None:
                outcome = PartitionReadResult(
                    len(data.records or b""),
                    data.error_code,
                    data.high_watermark,
                    data.log_start_offset,
                    data.diverging_epoch != NO_DIVERGING_EPOCH,
                )
                has_changed = request.update_response_data(outcome)
                if self._context.is_incremental and not has_changed:
                    continue
                if data.records:
                    session.move_to_end(request.key)
            by_topic.setdefault(request.key[0], []).append(data)
        responses = tuple(
            FetchableTopicResponse(topic_id=topic, partitions=tuple(parts))
            if isinstance(topic, UUID)
            else FetchableTopicResponse(topic=topic, partitions=tuple(parts))
            for topic, parts in by_topic.items()
        )
        session_id = NO_SESSION if session is None else session.session_id
        response = FetchResponse(session_id=session_id, responses=responses)
        return [*encode_parts(response, self._version)]


def _count_topics(partitions: Iterable[CachedPartition]) -> int:
    """Return how many topics there are; those of one topic are neighbours."""
    return sum(1 for _ in groupby(each.key[0] for each in partitions))


def _iter_topic_names(broker: FetchPort, partitions: Iterable[CachedPartition]) -> Iterator[str]:
    for each in partitions:
        name = each.key[0]
        if isinstance(name, str):
            yield name
        elif (topic := broker.topics.find_by_id(name)) is not None:
            yield topic.name


def _find_divergence(partition: Partition, request: CachedPartition) -> EpochEndOffset | Reject | None:
    """Return where the log diverges from the reader's, if it sent its last fetched epoch (KIP-595)."""
    if request.last_fetched_epoch < 0:
        return None
    epoch_end = partition.find_epoch_end(LeaderEpoch(request.last_fetched_epoch))
    if epoch_end is None:
        return Reject(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"the log has no epoch up to {request.last_fetched_epoch}; begin at another offset",
        )
    epoch, end_offset = epoch_end
    if epoch < request.last_fetched_epoch or end_offset < request.offset:
        return EpochEndOffset(epoch=epoch, end_offset=end_offset)
    return None


def _failed_result(request: CachedPartition, refusal: Reject) -> PartitionData:
    return PartitionData(
        partition_index=request.key[1],
        error_code=refusal.code,
        high_watermark=-1,
        aborted_transactions=None,
        records=b"",
    )
