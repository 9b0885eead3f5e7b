"""Produce: appends each partition's batch, and answers when all of them are as durable as promised.

With one broker there are no replicas to wait for: `flush.policy` decides what an answer promises. Under `ack`
the data is on the disk, for acks=1 too. acks=0 gets no answer; a failure then closes the connection, the only
way to report it to the client.

Transactional batches may have to wait for the transaction coordinator; all others are appended before
`handle` returns.

Source: KafkaApis.handleProduceRequest, ReplicaManager.appendRecords, ProduceRequest.validateRecords.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Collection
from typing import Final, Self

from tallystick.broker.handlers.dispatch import ResponseBody
from tallystick.broker.handlers.ports import ProducePort
from tallystick.broker.handlers.sliced_response import SLICE_ENTRIES, LoopYielder
from tallystick.broker.handlers.transactional_produce import (
    UNVERIFIED,
    ProducePartitionStatus,
    TransactionalAppend,
    WaitingBatches,
    append_transactional,
    reject_unauthorized,
)
from tallystick.broker.handlers.verification import check_not_borrowed
from tallystick.broker.partitions.partition import Partition
from tallystick.broker.partitions.topics import INTERNAL_TOPICS, TopicDeleted
from tallystick.broker.server.request_context import RequestContext
from tallystick.broker.server.server import CloseConnection, ExclusiveResponse
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.limits import KIB
from tallystick.protocol import DecodeError, encode_parts
from tallystick.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)
from tallystick.protocol.primitives import NIL
from tallystick.protocol.produce_fetch_codec import (
    ProducePartitionData,
    ProducePartitionResult,
    ProduceRequestView,
    TopicKey,
    read_produce_request,
    write_produce_response,
)
from tallystick.protocol.records import HEADER_SIZE, BatchHeader, Codec, RecordsError, read_header
from tallystick.storage.fs import StorageFailure
from tallystick.storage.log import AppendResult
from tallystick.storage.validation import may_be_slow, needs_prevalidation, prevalidate_batch

ALL_REPLICAS: Final = -1
ZSTD_SINCE: Final = 7  # KIP-110
RECORD_ERRORS_SINCE: Final = 8  # KIP-467
# Bounds of the time that a batch waits for the coordinator, which is the request's timeout. A timeout of 0 is
# meant for other replicas, and there are none.
VERIFICATION_S_MIN: Final = 1.0
VERIFICATION_S_MAX: Final = 30.0

# A request with more partitions yields to the event loop while it is served.
PARTITIONS_BEFORE_YIELD: Final = 256

# Memory limit of a request that the quick reader does not know and that is decoded on the event loop: some
# 1,000 partitions.
INLINE_DECODE_MEMORY: Final = 512 * KIB
# Above the memory of a partition that is the only one of its topic.
MEMORY_PER_PARTITION: Final = 1 * KIB

REPEATED_PARTITION: Final = Reject(
    ErrorCode.INVALID_REQUEST, "the partition is named more than once; nothing is written to it"
)

AppendOutcome = AppendResult | Reject
_TopicStatuses = list[tuple[TopicKey, list[ProducePartitionStatus]]]


def handle(
    broker: ProducePort, body: memoryview, context: RequestContext
) -> ResponseBody | Awaitable[ResponseBody]:
    """Append before returning, unless the coordinator must be asked or validating the records takes long."""
    try:
        request = read_produce_request(body, context.api_version, INLINE_DECODE_MEMORY)
    except DecodeError:
        # Unreadable, or too large for the quick reader.
        return ExclusiveResponse(_decode_in_thread(broker, memoryview(bytes(body)), context))
    _check_partition_count(broker, request)
    if _needs_validation_thread(broker, request):
        # The records are views of a buffer that is about to be reused.
        request = read_produce_request(memoryview(bytes(body)), context.api_version)
        return ExclusiveResponse(_serve_prevalidated(broker, request, context, len(body)))
    return _serve(broker, request, context)


async def _decode_in_thread(broker: ProducePort, body: memoryview, context: RequestContext) -> ResponseBody:
    """Serve a large request: decode it in a thread, one at a time for all connections [SRV-3].

    A request with far more partitions than `max.partitions` is not decoded.
    """
    room = INLINE_DECODE_MEMORY + MEMORY_PER_PARTITION * broker.config.max_partitions
    with broker.request_memory.acquired(context.client_host, len(body)):
        async with broker.decode_lock:
            request = await asyncio.to_thread(read_produce_request, body, context.api_version, room)
    _check_partition_count(broker, request)
    return await _serve_prevalidated(broker, request, context, len(body))


def _check_partition_count(broker: ProducePort, request: ProduceRequestView) -> None:
    """Close the connection if the request names more partitions than can exist."""
    count = sum(len(parts) for _, parts in request.topics)
    if count > max(PARTITIONS_BEFORE_YIELD, broker.config.max_partitions):
        raise CloseConnection(
            f"a Produce names {count} partitions, max.partitions is {broker.config.max_partitions}"
        )


def _needs_validation_thread(broker: ProducePort, request: ProduceRequestView) -> bool:
    """Return whether any batch must be validated in a thread."""
    for topic, parts in request.topics:
        for part in parts:
            if part.records and may_be_slow(part.records) and _find_slow_partition(broker, topic, part):
                return True
    return False


def _find_slow_partition(
    broker: ProducePort, topic: TopicKey, part: ProducePartitionData
) -> Partition | None:
    """Return the partition if validating its records takes long."""
    partition = _find_partition(broker, topic, part.partition)
    if isinstance(partition, Reject):
        return None
    must = needs_prevalidation(part.records or b"", partition.log.config, broker.clock.now_ms())
    return partition if must else None


async def _serve_prevalidated(
    broker: ProducePort, request: ProduceRequestView, context: RequestContext, size: int
) -> ResponseBody:
    """Validate large batches in a thread, one request at a time for all connections, then serve it."""
    pacer, walked = LoopYielder(), list[tuple[TopicKey, list[ProducePartitionData]]]()
    with broker.request_memory.acquired(context.client_host, size):
        async with broker.decode_lock:
            for topic, parts in request.topics:
                done: list[ProducePartitionData] = []
                walked.append((topic, done))
                for part in parts:
                    done.append(await _prevalidate(broker, topic, part))
                    await pacer.count_entry()
    body = _serve(broker, request._replace(topics=walked), context)
    if isinstance(body, ExclusiveResponse):
        return await body
    return await body if isinstance(body, Awaitable) else body


async def _prevalidate(
    broker: ProducePort, topic: TopicKey, part: ProducePartitionData
) -> ProducePartitionData:
    partition = _find_slow_partition(broker, topic, part)
    if partition is None:
        return part
    config, now_ms = partition.log.config, broker.clock.now_ms()
    found = await asyncio.to_thread(prevalidate_batch, part.records or b"", config, now_ms)
    return part._replace(records=RefusedRecords(found) if isinstance(found, Reject) else found)


class RefusedRecords(bytes):
    """The reason of a refusal, in the place of records that failed validation in a thread."""

    def __new__(cls, why: Reject) -> Self:
        made = super().__new__(cls)
        made.reject = why
        return made

    reject: Reject


async def _serve_many(
    broker: ProducePort,
    request: ProduceRequestView,
    repeated: Collection[tuple[TopicKey, int]],
    context: RequestContext,
) -> ResponseBody:
    """Append to very many partitions.

    Yields to the event loop in between, but to no other request of this connection.
    """
    answer: _TopicStatuses = []
    done = 0
    for topic, parts in request.topics:
        pending: list[ProducePartitionStatus] = []
        answer.append((topic, pending))
        for part in parts:
            pending.append(_append_unless_repeated(broker, request, topic, part, (repeated, context)))
            done += 1
            if done % SLICE_ENTRIES == 0:
                await asyncio.sleep(0)
    body = _append_transactional(broker, request, answer, context)
    return await body if isinstance(body, Awaitable) else body


def _serve(
    broker: ProducePort, request: ProduceRequestView, context: RequestContext
) -> ResponseBody | Awaitable[ResponseBody]:
    if len(request.topics) == 1 and len(request.topics[0][1]) == 1:
        ((topic, (part,)),) = request.topics
        return _append_transactional(
            broker, request, [(topic, [_append(broker, request, topic, part, context)])], context
        )
    repeated = _find_repeated(request)
    if sum(len(parts) for _, parts in request.topics) > PARTITIONS_BEFORE_YIELD:
        copied = [(topic, [_copy_records(part) for part in parts]) for topic, parts in request.topics]
        return ExclusiveResponse(_serve_many(broker, request._replace(topics=copied), repeated, context))
    answer: _TopicStatuses = [
        (
            topic,
            [_append_unless_repeated(broker, request, topic, part, (repeated, context)) for part in parts],
        )
        for topic, parts in request.topics
    ]
    return _append_transactional(broker, request, answer, context)


def _copy_records(part: ProducePartitionData) -> ProducePartitionData:
    """Copy the records, because the request's buffer is going to be reused."""
    return part._replace(records=bytes(part.records)) if isinstance(part.records, memoryview) else part


def _append_unless_repeated(
    broker: ProducePort,
    request: ProduceRequestView,
    topic: TopicKey,
    part: ProducePartitionData,
    asked: tuple[Collection[tuple[TopicKey, int]], RequestContext],
) -> ProducePartitionStatus:
    repeated, context = asked
    if (topic, part.partition) in repeated:
        return ProducePartitionStatus(part.partition, None, REPEATED_PARTITION)
    return _append(broker, request, topic, part, context)


def _append_transactional(
    broker: ProducePort, request: ProduceRequestView, answer: _TopicStatuses, context: RequestContext
) -> ResponseBody | Awaitable[ResponseBody]:
    """Append the transactional batches, too, and answer."""
    if request.transactional_id is not None:
        batches = [p for _, pending in answer for p in pending if isinstance(p, TransactionalAppend)]
        if batches and (waiting := append_transactional(broker, request.transactional_id, batches, context)):
            return _answer_when_verified(request, answer, waiting, context.api_version)
    return _answer(request, answer, context.api_version)


def _find_repeated(request: ProduceRequestView) -> Collection[tuple[TopicKey, int]]:
    """Return the partitions that are named more than once.

    Kafka keeps the last of their batches and drops the others silently, which the producer would take for
    written; here all of them are refused.
    """
    named = Counter((topic, part.partition) for topic, parts in request.topics for part in parts)
    return {key for key, times in named.items() if times > 1}


async def _answer_when_verified(
    request: ProduceRequestView, answer: _TopicStatuses, waiting: WaitingBatches, version: int
) -> ResponseBody:
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    await waiting.append_when_verified(
        min(max(request.timeout_ms / 1000, VERIFICATION_S_MIN), VERIFICATION_S_MAX)
    )
    finished = _answer(request, answer, version, loop.time() - began_s)
    return await finished if isinstance(finished, Awaitable) else finished


def _answer(
    request: ProduceRequestView, answer: _TopicStatuses, version: int, spent_s: float = 0.0
) -> ResponseBody | Awaitable[ResponseBody]:
    """Answer, now that everything is appended or refused; `spent_s` of the request's timeout has passed."""
    if request.acks == 0:
        _close_on_failure(answer)
        return None
    waiting = [p.durable_future for _, pending in answer for p in pending if p.durable_future is not None]
    if waiting:
        return _answer_when_durable(answer, waiting, request.timeout_ms / 1000 - spent_s, version)
    return _encode_response(answer, version)


async def _answer_when_durable(
    answer: _TopicStatuses, waiting: "list[asyncio.Future[None]]", timeout_s: float, version: int
) -> ResponseBody:
    await asyncio.wait(waiting, timeout=max(timeout_s, 0))
    for _, partitions in answer:
        for pending in partitions:
            if pending.durable_future is not None:
                pending.result = _get_outcome(pending, pending.durable_future)
    return _encode_response(answer, version)


def _get_outcome(pending: ProducePartitionStatus, durable: "asyncio.Future[None]") -> AppendOutcome:
    if not durable.done():
        # It may still become durable; the client's retry is then a duplicate.
        return Reject(ErrorCode.REQUEST_TIMED_OUT, "the disk took longer than the request's timeout")
    failure = durable.exception()
    if failure is None:
        return pending.result
    if isinstance(failure, TopicDeleted):
        return Reject(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, str(failure))
    return Reject(ErrorCode.KAFKA_STORAGE_ERROR, str(failure))


def _append(
    broker: ProducePort,
    request: ProduceRequestView,
    topic: TopicKey,
    part: ProducePartitionData,
    context: RequestContext,
) -> ProducePartitionStatus:
    index, records = part
    partition = _find_partition(broker, topic, index)
    if isinstance(partition, Reject):
        return ProducePartitionStatus(index, None, partition)
    if isinstance(records, RefusedRecords):
        return ProducePartitionStatus(index, partition, records.reject)
    header = _check_batch(partition, request, records or b"", context.api_version)
    if isinstance(header, Reject):
        return ProducePartitionStatus(index, partition, header)
    if header.is_transactional:
        return TransactionalAppend(
            index=index,
            partition=partition,
            result=UNVERIFIED,
            target=partition,
            header=header,
            records=records or b"",
        )
    borrowed = check_not_borrowed(broker, header) if header.producer_id >= 0 else None
    if borrowed is not None:
        return ProducePartitionStatus(index, partition, borrowed)
    try:
        result = partition.append(records or b"")
    except StorageFailure as exc:
        return ProducePartitionStatus(index, partition, Reject(ErrorCode.KAFKA_STORAGE_ERROR, str(exc)))
    if isinstance(result, Reject):
        return ProducePartitionStatus(index, partition, result)
    return ProducePartitionStatus(index, partition, result, partition.when_durable(result.last_offset))


def _find_partition(broker: ProducePort, topic: TopicKey, index: int) -> Partition | Reject:
    if isinstance(topic, str):
        name = topic
    else:
        known = broker.topics.find_by_id(topic)
        if known is None:
            return Reject(ErrorCode.UNKNOWN_TOPIC_ID, f"there is no topic with id {topic}")
        name = known.name
    if name in INTERNAL_TOPICS:
        # Kafka accepts it from `__admin_client`, even if the coordinator then cannot read it (ADR 0015).
        return Reject(ErrorCode.INVALID_TOPIC_EXCEPTION, f"topic {name!r} is the broker's own")
    partition = broker.topics.find_partition(name, index)
    if partition is None:
        return Reject(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {name}-{index}")
    return partition


def _check_batch(
    partition: Partition, request: ProduceRequestView, records: bytes | memoryview, version: int
) -> BatchHeader | Reject:
    """Validate the request for one partition, and return the header of its only batch, of format 2."""
    if request.acks not in (0, 1, ALL_REPLICAS):
        return Reject(ErrorCode.INVALID_REQUIRED_ACKS, f"acks is {request.acks}, it may be -1, 0 or 1")
    if request.acks == ALL_REPLICAS and partition.min_insync_replicas > 1:
        return Reject(
            ErrorCode.NOT_ENOUGH_REPLICAS,
            f"min.insync.replicas is {partition.min_insync_replicas}, there is 1 replica",
        )
    if len(records) < HEADER_SIZE:
        return Reject(ErrorCode.INVALID_RECORD, f"{len(records)} bytes hold no batch")
    try:
        header = read_header(records)
    except RecordsError as exc:
        return Reject(exc.code, str(exc))
    if header.size_bytes != len(records):
        return Reject(
            ErrorCode.INVALID_RECORD,
            f"a partition of a Produce request holds exactly one batch; the first has {header.size_bytes} "
            f"bytes, there are {len(records)}",
        )
    if header.codec is Codec.ZSTD and version < ZSTD_SINCE:
        return Reject(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"zstd needs Produce version {ZSTD_SINCE}, not {version}"
        )
    if header.is_transactional and (request.transactional_id is None or header.producer_id < 0):
        return reject_unauthorized(
            "a transactional batch without a transactional id, or without a producer id"
        )
    return header


def _close_on_failure(answer: _TopicStatuses) -> None:
    for topic, partitions in answer:
        for pending in partitions:
            if isinstance(pending.result, Reject):
                raise CloseConnection(
                    f"acks=0 to {topic}-{pending.index} failed: {pending.result.code.name}, "
                    f"{pending.result.reason}"
                )


def _encode_response(answer: _TopicStatuses, version: int) -> ResponseBody:
    if version >= RECORD_ERRORS_SINCE and any(_list_record_errors(p) for _, parts in answer for p in parts):
        return _encode_record_errors(answer, version)
    return [
        write_produce_response(
            [(topic, [_build_result(p) for p in parts]) for topic, parts in answer], version
        )
    ]


def _list_record_errors(pending: ProducePartitionStatus) -> tuple[BatchIndexAndErrorMessage, ...]:
    if not isinstance(pending.result, Reject):
        return ()
    return tuple(
        BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=why)
        for index, why in pending.result.record_errors
    )


def _encode_record_errors(answer: _TopicStatuses, version: int) -> ResponseBody:
    """Encode the rare response with record errors (KIP-467), by the generated encoder."""
    responses = []
    for topic, parts in answer:
        told = tuple(
            PartitionProduceResponse(
                index=said.partition,
                error_code=said.error_code,
                base_offset=said.base_offset,
                log_append_time_ms=said.log_append_time_ms,
                log_start_offset=said.log_start_offset,
                record_errors=_list_record_errors(pending),
                error_message=said.error_message,
            )
            for pending, said in ((pending, _build_result(pending)) for pending in parts)
        )
        responses.append(
            TopicProduceResponse(
                name=topic if isinstance(topic, str) else "",
                topic_id=NIL if isinstance(topic, str) else topic,
                partition_responses=told,
            )
        )
    return [*encode_parts(ProduceResponse(responses=tuple(responses)), version)]


def _build_result(pending: ProducePartitionStatus) -> ProducePartitionResult:
    result = pending.result
    if isinstance(result, Reject):
        start = -1 if pending.partition is None else pending.partition.log.log_start_offset
        return ProducePartitionResult(pending.index, result.code, -1, -1, start, result.reason)
    return ProducePartitionResult(
        pending.index, 0, result.base_offset, result.log_append_time_ms, result.log_start_offset
    )
