"""Produce: appends each partition's batch, and answers when all of them are as durable as promised.

With one broker there are no replicas to wait for: `flush.policy` decides what an answer promises. Under `ack`
the data is on the disk, for acks=1 too. acks=0 gets no answer; a failure then closes the connection, the only
way to report it to the client.

Transactional batches may have to wait for the transaction coordinator; all others are appended before
`handle` returns.

Source: KafkaApis.handleProduceRequest, ReplicaManager.appendRecords, ProduceRequest.validateRecords.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Collection, Iterable, Sequence
from functools import partial
from typing import Final, Self
from uuid import UUID

from tallystick.broker.authorizer.audit_log import is_audited
from tallystick.broker.authorizer.known_rights import NO_NAMES, WRITE_TOPIC
from tallystick.broker.handlers.data.produce_rights import (
    TOPIC_ID_SINCE,
    UNKNOWN_RIGHT,
    DeniedRecords,
    withhold_denied,
)
from tallystick.broker.handlers.data.transactional_produce import (
    UNVERIFIED,
    ProducePartitionStatus,
    TransactionalAppend,
    WaitingBatches,
    append_transactional,
    reject_unauthorized,
)
from tallystick.broker.handlers.data.verification import check_not_borrowed
from tallystick.broker.handlers.dispatch import ResponseBody, decode_in_thread
from tallystick.broker.handlers.ports import ProducePort
from tallystick.broker.handlers.sliced_response import SLICE_ENTRIES, LoopYielder
from tallystick.broker.partitions.partition import Partition
from tallystick.broker.partitions.topics import INTERNAL_TOPICS, TopicDeleted, TopicKey
from tallystick.broker.server.request_context import RequestContext
from tallystick.broker.server.request_memory import estimate_decoded_bytes
from tallystick.broker.server.server import CloseConnection, ExclusiveResponse
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.limits import KIB
from tallystick.kernel.value import replace
from tallystick.protocol import DecodeError, decode, encode
from tallystick.protocol.messages.data.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from tallystick.protocol.records import HEADER_SIZE, BatchHeader, Codec, RecordsError, read_header
from tallystick.storage.disk.fs import StorageFailure
from tallystick.storage.log.log import AppendResult
from tallystick.storage.state.validation import (
    IS_TRANSACTIONAL,
    MAY_BE_SLOW,
    needs_prevalidation,
    prevalidate_batch,
    read_traits,
)

ALL_REPLICAS: Final = -1
ZSTD_SINCE: Final = 7  # KIP-110
# Bounds of the time that a batch waits for the coordinator, which is the request's timeout. A timeout of 0 is
# meant for other replicas, and there are none.
VERIFICATION_S_MIN: Final = 1.0
VERIFICATION_S_MAX: Final = 30.0

# A request with more partitions yields to the event loop while it is served.
PARTITIONS_BEFORE_YIELD: Final = 256

# Memory limit of a request that is decoded on the event loop: some 1,700 partitions.
INLINE_DECODE_MEMORY: Final = 512 * KIB
# Above the memory of a partition that is the only one of its topic.
MEMORY_PER_PARTITION: Final = 1 * KIB

REPEATED_PARTITION: Final = Reject(
    ErrorCode.INVALID_REQUEST, "the request has this partition more than once; nothing was appended to it"
)

AppendOutcome = AppendResult | Reject
_TopicStatuses = list[tuple[TopicKey, list[ProducePartitionStatus]]]


def handle(
    broker: ProducePort, body: memoryview, context: RequestContext
) -> ResponseBody | Awaitable[ResponseBody]:
    """Append before returning, unless the coordinator must be asked or validating the records takes long."""
    try:
        request = decode(ProduceRequest, body, context.api_version, room=INLINE_DECODE_MEMORY)
    except DecodeError:
        # Unreadable, or too large for the event loop.
        return ExclusiveResponse(_serve_large(broker, memoryview(bytes(body)), context))
    request, traits = _check_batches(broker, request, context)
    if traits & MAY_BE_SLOW and _needs_validation_thread(broker, request, context.api_version):
        # The records are views of a buffer that is about to be reused.
        request = _copy_request(request)
        return ExclusiveResponse(_serve_prevalidated(broker, request, context, len(body)))
    return _serve(broker, request, context)


async def _serve_large(broker: ProducePort, body: memoryview, context: RequestContext) -> ResponseBody:
    """Decode a large request in its turn. Its memory counts until it is answered [SRV-4].

    A request with far more partitions than `max.partitions` is not decoded.
    """
    room = INLINE_DECODE_MEMORY + MEMORY_PER_PARTITION * broker.config.max_partitions
    memory, host = broker.request_memory, context.client_host
    with memory.acquired(host, estimate_decoded_bytes(len(body), room)):
        async with memory.turn(host):
            request = await decode_in_thread(
                broker, partial(decode, ProduceRequest, body, context.api_version, room=room)
            )
        request, _ = _check_batches(broker, request, context)
        return await _serve_prevalidated(broker, request, context, len(body))


def _check_batches(
    broker: ProducePort, request: ProduceRequest, context: RequestContext
) -> tuple[ProduceRequest, int]:
    """Return the request without what the sender may not write, and the traits of all its batches.

    Closes the connection if there are more batches than partitions can exist. All is one pass, because each
    request, however small, is looked through here.
    """
    known = context.known_rights.get(WRITE_TOPIC, NO_NAMES)
    known_ids = known.topic_ids if context.api_version >= TOPIC_ID_SINCE else None
    traits = count = 0
    for topic in request.topic_data:
        if topic.name not in known.names if known_ids is None else topic.topic_id.int not in known_ids:
            traits |= UNKNOWN_RIGHT
        for part in topic.partition_data:
            count += 1
            if part.records:
                traits |= read_traits(part.records)
    if count > PARTITIONS_BEFORE_YIELD and count > broker.config.max_partitions:
        raise CloseConnection(
            f"a Produce has {count} partitions, but max.partitions is {broker.config.max_partitions}"
        )
    if broker.authorizer.is_configured:
        if traits & (UNKNOWN_RIGHT | IS_TRANSACTIONAL) or is_audited(logging.DEBUG):
            return withhold_denied(broker, request, context, traits), traits
        known.checks += len(request.topic_data)
    return request, traits


def _list_topics(
    request: ProduceRequest, version: int
) -> list[tuple[TopicKey, tuple[PartitionProduceData, ...]]]:
    """Return the batches of each topic, under its id from version 13 on and under its name before."""
    by_id = version >= TOPIC_ID_SINCE
    return [(topic.topic_id if by_id else topic.name, topic.partition_data) for topic in request.topic_data]


def _needs_validation_thread(broker: ProducePort, request: ProduceRequest, version: int) -> bool:
    """Return whether any batch must be validated in a thread."""
    for topic, parts in _list_topics(request, version):
        for part in parts:
            if part.records and _find_slow_partition(broker, topic, part):
                return True
    return False


def _find_slow_partition(
    broker: ProducePort, topic: TopicKey, part: PartitionProduceData
) -> Partition | None:
    """Return the partition if validating its records takes long."""
    partition = _find_partition(broker, topic, part.index)
    if isinstance(partition, Reject):
        return None
    must = needs_prevalidation(part.records or b"", partition.log.config, broker.clock.now_ms())
    return partition if must else None


async def _serve_prevalidated(
    broker: ProducePort, request: ProduceRequest, context: RequestContext, size: int
) -> ResponseBody:
    """Validate large batches in a thread, one request at a time for all connections, then serve it."""
    pacer, validated = LoopYielder(), list[list[PartitionProduceData]]()
    with broker.request_memory.acquired(context.client_host, size):
        async with broker.decode_lock:
            for topic, parts in _list_topics(request, context.api_version):
                validated.append([])
                for part in parts:
                    validated[-1].append(await _prevalidate(broker, topic, part))
                    await pacer.count_entry()
        body = _serve(broker, _replace_batches(request, validated), context)
        return await body if isinstance(body, Awaitable | ExclusiveResponse) else body


async def _prevalidate(
    broker: ProducePort, topic: TopicKey, part: PartitionProduceData
) -> PartitionProduceData:
    partition = _find_slow_partition(broker, topic, part)
    if partition is None:
        return part
    config, now_ms = partition.log.config, broker.clock.now_ms()
    result = await asyncio.to_thread(prevalidate_batch, part.records or b"", config, now_ms)
    return replace(part, records=RefusedRecords(result) if isinstance(result, Reject) else result)


def _replace_batches(
    request: ProduceRequest, batches: Iterable[Sequence[PartitionProduceData]]
) -> ProduceRequest:
    """Return the request with other batches, given by topic."""
    topics = zip(request.topic_data, batches, strict=True)
    return replace(request, topic_data=tuple(replace(t, partition_data=tuple(parts)) for t, parts in topics))


class RefusedRecords(bytes):
    """The reason of a refusal, in the place of records that failed validation in a thread."""

    def __new__(cls, why: Reject) -> Self:
        records = super().__new__(cls)
        records.reject = why
        return records

    reject: Reject


async def _serve_many(
    broker: ProducePort,
    request: ProduceRequest,
    repeats: Collection[tuple[TopicKey, int]],
    context: RequestContext,
) -> ResponseBody:
    """Append to very many partitions.

    Yields to the event loop in between, but to no other request of this connection.
    """
    answer: _TopicStatuses = []
    count = 0
    for topic, parts in _list_topics(request, context.api_version):
        pending: list[ProducePartitionStatus] = []
        answer.append((topic, pending))
        for part in parts:
            pending.append(_append_unless_repeated(broker, request, topic, part, (repeats, context)))
            count += 1
            if count % SLICE_ENTRIES == 0:
                await asyncio.sleep(0)
    body = _append_transactional(broker, request, answer, context)
    return await body if isinstance(body, Awaitable) else body


def _serve(
    broker: ProducePort, request: ProduceRequest, context: RequestContext
) -> ResponseBody | Awaitable[ResponseBody]:
    topics = _list_topics(request, context.api_version)
    if len(topics) == 1 and len(topics[0][1]) == 1:
        ((topic, (part,)),) = topics
        return _append_transactional(
            broker, request, [(topic, [_append(broker, request, topic, part, context)])], context
        )
    repeats = _find_repeated(topics)
    if sum(len(parts) for _, parts in topics) > PARTITIONS_BEFORE_YIELD:
        return ExclusiveResponse(_serve_many(broker, _copy_request(request), repeats, context))
    answer: _TopicStatuses = [
        (
            topic,
            [_append_unless_repeated(broker, request, topic, part, (repeats, context)) for part in parts],
        )
        for topic, parts in topics
    ]
    return _append_transactional(broker, request, answer, context)


def _copy_request(request: ProduceRequest) -> ProduceRequest:
    """Copy the records, because the request's buffer is going to be reused."""
    return _replace_batches(
        request, ([_copy_records(part) for part in topic.partition_data] for topic in request.topic_data)
    )


def _copy_records(part: PartitionProduceData) -> PartitionProduceData:
    return replace(part, records=bytes(part.records)) if isinstance(part.records, memoryview) else part


def _append_unless_repeated(
    broker: ProducePort,
    request: ProduceRequest,
    topic: TopicKey,
    part: PartitionProduceData,
    call: tuple[Collection[tuple[TopicKey, int]], RequestContext],
) -> ProducePartitionStatus:
    repeats, context = call
    if (topic, part.index) in repeats:
        return ProducePartitionStatus(part.index, None, REPEATED_PARTITION)
    return _append(broker, request, topic, part, context)


def _append_transactional(
    broker: ProducePort, request: ProduceRequest, answer: _TopicStatuses, context: RequestContext
) -> ResponseBody | Awaitable[ResponseBody]:
    """Append the transactional batches, too, and answer."""
    if request.transactional_id is not None:
        batches = [p for _, pending in answer for p in pending if isinstance(p, TransactionalAppend)]
        if batches and (
            unverified := append_transactional(broker, request.transactional_id, batches, context)
        ):
            return _answer_when_verified(request, answer, unverified, context.api_version)
    return _answer(request, answer, context.api_version)


def _find_repeated(
    topics: Iterable[tuple[TopicKey, Iterable[PartitionProduceData]]],
) -> Collection[tuple[TopicKey, int]]:
    """Return the partitions that are named more than once.

    Kafka keeps the last of their batches and drops the others silently, which the producer would take for
    written; here all of them are refused.
    """
    counts = Counter((topic, part.index) for topic, parts in topics for part in parts)
    return {key for key, times in counts.items() if times > 1}


async def _answer_when_verified(
    request: ProduceRequest, answer: _TopicStatuses, batches: WaitingBatches, version: int
) -> ResponseBody:
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    await batches.append_when_verified(
        min(max(request.timeout_ms / 1000, VERIFICATION_S_MIN), VERIFICATION_S_MAX)
    )
    response = _answer(request, answer, version, loop.time() - began_s)
    return await response if isinstance(response, Awaitable) else response


def _answer(
    request: ProduceRequest, answer: _TopicStatuses, version: int, spent_s: float = 0.0
) -> ResponseBody | Awaitable[ResponseBody]:
    """Answer, now that everything is appended or refused; `spent_s` of the request's timeout has passed."""
    if request.acks == 0:
        _close_on_failure(answer)
        return None
    futures = [future for _, pending in answer for p in pending for future in p.durable_futures]
    if futures:
        return _answer_when_durable(answer, futures, request.timeout_ms / 1000 - spent_s, version)
    return _encode_response(answer, version)


async def _answer_when_durable(
    answer: _TopicStatuses, futures: "list[asyncio.Future[None]]", timeout_s: float, version: int
) -> ResponseBody:
    await asyncio.wait(futures, timeout=max(timeout_s, 0))
    for _, partitions in answer:
        for pending in partitions:
            for future in pending.durable_futures:
                if isinstance(pending.result, AppendResult):
                    pending.result = _get_outcome(pending.result, future)
    return _encode_response(answer, version)


def _get_outcome(result: AppendResult, durable: "asyncio.Future[None]") -> AppendOutcome:
    if not durable.done():
        # It may still become durable; the client's retry is then a duplicate.
        return Reject(
            ErrorCode.REQUEST_TIMED_OUT,
            "the disk took longer than the request's timeout; the batch is appended and may still become"
            " durable. Retry",
        )
    failure = durable.exception()
    if failure is None:
        return result
    if isinstance(failure, TopicDeleted):
        return Reject(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, str(failure))
    return Reject(ErrorCode.KAFKA_STORAGE_ERROR, str(failure))


def _append(
    broker: ProducePort,
    request: ProduceRequest,
    topic: TopicKey,
    part: PartitionProduceData,
    context: RequestContext,
) -> ProducePartitionStatus:
    index, records = part.index, part.records
    if isinstance(records, DeniedRecords):
        return ProducePartitionStatus(index, None, records.reject)
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
    refusal = check_not_borrowed(broker, header) if header.producer_id >= 0 else None
    if refusal is not None:
        return ProducePartitionStatus(index, partition, refusal)
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
        topic_entry = broker.topics.find_by_id(topic)
        if topic_entry is None:
            return Reject(ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has the id {topic}; refresh the metadata")
        name = topic_entry.name
    if name in INTERNAL_TOPICS:
        # Kafka accepts it from `__admin_client`, even if the coordinator then cannot read it (ADR 0015).
        return Reject(
            ErrorCode.INVALID_TOPIC_EXCEPTION, f"topic {name!r} is internal; only the broker writes to it"
        )
    partition = broker.topics.find_partition(name, index)
    if partition is None:
        return Reject(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"partition {name}-{index} does not exist")
    return partition


def _check_batch(
    partition: Partition, request: ProduceRequest, records: bytes | memoryview, version: int
) -> BatchHeader | Reject:
    """Validate the request for one partition, and return the header of its only batch, of format 2."""
    if request.acks not in (0, 1, ALL_REPLICAS):
        return Reject(ErrorCode.INVALID_REQUIRED_ACKS, f"acks is {request.acks}; it must be -1, 0 or 1")
    # Only acks=-1 waits for replicas: min.insync.replicas does not apply to the other values.
    if request.acks == ALL_REPLICAS and partition.min_insync_replicas > 1:
        return Reject(
            ErrorCode.NOT_ENOUGH_REPLICAS,
            f"min.insync.replicas is {partition.min_insync_replicas}, but there is 1 replica; nothing was"
            " appended",
        )
    if len(records) < HEADER_SIZE:
        return Reject(
            ErrorCode.INVALID_RECORD, f"{len(records)} bytes are fewer than a batch has; nothing was appended"
        )
    try:
        header = read_header(records)
    except RecordsError as exc:
        return Reject(exc.code, str(exc))
    if header.size_bytes != len(records):
        return Reject(
            ErrorCode.INVALID_RECORD,
            "a partition of a Produce request must have exactly one batch; the first has"
            f" {header.size_bytes} bytes of {len(records)}; nothing was appended",
        )
    if header.codec is Codec.ZSTD and version < ZSTD_SINCE:
        return Reject(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"zstd needs Produce version {ZSTD_SINCE} or later, not {version}; nothing was appended",
        )
    if header.is_transactional and request.transactional_id is None:
        return reject_unauthorized("a transactional batch in a request without a transactional id")
    if header.is_transactional and header.producer_id < 0:
        # Kafka appends it, and no marker will ever end it.
        return Reject(
            ErrorCode.INVALID_RECORD, "a transactional batch without a producer id; nothing was appended"
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
    responses = []
    for topic, parts in answer:
        results = tuple([_build_result(pending) for pending in parts])
        responses.append(
            TopicProduceResponse(topic_id=topic, partition_responses=results)
            if isinstance(topic, UUID)
            else TopicProduceResponse(name=topic, partition_responses=results)
        )
    return [encode(ProduceResponse(responses=tuple(responses)), version)]


def _build_result(pending: ProducePartitionStatus) -> PartitionProduceResponse:
    result = pending.result
    if isinstance(result, Reject):
        return PartitionProduceResponse(
            index=pending.index,
            error_code=result.code,
            base_offset=-1,
            log_start_offset=-1 if pending.partition is None else pending.partition.log.log_start_offset,
            record_errors=tuple(
                BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=why)
                for index, why in result.record_errors
            ),
            error_message=result.reason,
        )
    return PartitionProduceResponse(
        index=pending.index,
        base_offset=result.base_offset,
        log_append_time_ms=result.log_append_time_ms,
        log_start_offset=result.log_start_offset,
    )
