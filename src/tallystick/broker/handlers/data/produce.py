"""Produce: appends each partition's batch, and answers when all of them are as durable as promised.

A request walks forward: parse, authorize, validate, append, have transactional batches verified and append
them, wait for the disk, encode. Most requests are appended before `handle` returns; a request that is large,
or whose records take long to validate, walks in a task of its own.

With one broker there are no replicas to wait for: `flush.policy` decides what an answer promises. Under `ack`
the data is on the disk, for acks=1 too. acks=0 gets no answer; a failure then closes the connection, the only
way to report it to the client.

Source: KafkaApis.handleProduceRequest, ReplicaManager.appendRecords, ProduceRequest.validateRecords.
"""

import asyncio
from collections.abc import Awaitable
from functools import partial
from typing import Final
from uuid import UUID

from tallystick.broker.handlers.data.produce_request import (
    PARTITIONS_BEFORE_YIELD,
    PartitionAppend,
    ProduceInProgress,
    TransactionalAppend,
    authorize,
    parse,
)
from tallystick.broker.handlers.data.transactional_produce import (
    UNVERIFIED,
    WaitingBatches,
    append_transactional,
    reject_unauthorized,
)
from tallystick.broker.handlers.data.verification import check_producer_id_owner
from tallystick.broker.handlers.dispatch import ResponseBody, decode_in_thread
from tallystick.broker.handlers.ports import ProducePort
from tallystick.broker.handlers.sliced_response import LoopYielder
from tallystick.broker.partitions.partition import Partition
from tallystick.broker.partitions.topics import INTERNAL_TOPICS, TopicDeleted, TopicKey
from tallystick.broker.server.request_context import RequestContext
from tallystick.broker.server.request_memory import estimate_decoded_bytes
from tallystick.broker.server.server import CloseConnection, ExclusiveResponse
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.limits import KIB
from tallystick.protocol import DecodeError, decode, encode
from tallystick.protocol.messages.data.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from tallystick.protocol.records import HEADER_SIZE, BatchHeader, Codec, RecordsError, read_header
from tallystick.storage.disk.fs import StorageFailure
from tallystick.storage.log.log import AppendResult
from tallystick.storage.state.validation import MAY_BE_SLOW, needs_prevalidation, prevalidate_batch

ALL_REPLICAS: Final = -1
ZSTD_SINCE: Final = 7  # KIP-110
# Bounds of the time that a batch waits for the coordinator, which is the request's timeout. A timeout of 0 is
# meant for other replicas, and there are none.
VERIFICATION_S_MIN: Final = 1.0
VERIFICATION_S_MAX: Final = 30.0

# Memory limit of a request that is decoded on the event loop: some 1,700 partitions.
INLINE_DECODE_MEMORY: Final = 512 * KIB
# Above the memory of a partition that is the only one of its topic.
MEMORY_PER_PARTITION: Final = 1 * KIB


def handle(
    broker: ProducePort, body: memoryview, context: RequestContext
) -> ResponseBody | Awaitable[ResponseBody]:
    """Append before returning, unless the coordinator must be asked or the request may block the loop."""
    try:
        request = decode(ProduceRequest, body, context.api_version, room=INLINE_DECODE_MEMORY)
    except DecodeError:
        # Unreadable, or too large for the event loop.
        return ExclusiveResponse(_decode_large(broker, memoryview(bytes(body)), context))
    produce = parse(request, context, broker.config.max_partitions)
    authorize(broker, produce)
    is_slow = bool(produce.batch_flags & MAY_BE_SLOW) and any(
        _find_slow_partition(broker, topic, part) for topic, part in produce.iter_undecided()
    )
    if is_slow or produce.partition_count > PARTITIONS_BEFORE_YIELD:
        produce.copy_records()
        return ExclusiveResponse(_walk_slowly(broker, produce, len(body)))
    for topic, parts in produce.topics:
        for part in parts:
            if part.result is None:
                _append(broker, produce, topic, part)
    return _finish(broker, produce)


async def _decode_large(broker: ProducePort, body: memoryview, context: RequestContext) -> ResponseBody:
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
        produce = parse(request, context, broker.config.max_partitions)
        authorize(broker, produce)
        return await _walk_slowly(broker, produce, len(body))


async def _walk_slowly(broker: ProducePort, produce: ProduceInProgress, size: int) -> ResponseBody:
    """Serve a request that is long, or whose batches are validated in a thread.

    One request at a time for all connections is validated. Yields to the event loop in between, but to no
    other request of this connection.
    """
    yielder = LoopYielder()
    with broker.request_memory.acquired(produce.context.client_host, size):
        if produce.batch_flags & MAY_BE_SLOW:
            async with broker.decode_lock:
                for topic, part in produce.iter_undecided():
                    await _validate(broker, topic, part)
                    await yielder.count_entry()
        for topic, part in produce.iter_undecided():
            _append(broker, produce, topic, part)
            await yielder.count_entry()
        response = _finish(broker, produce)
        return await response if isinstance(response, Awaitable) else response


def _find_slow_partition(broker: ProducePort, topic: TopicKey, part: PartitionAppend) -> Partition | None:
    """Return the partition if validating its records takes long."""
    partition = _find_partition(broker, topic, part.index) if part.records else None
    if not isinstance(partition, Partition):
        return None
    must = needs_prevalidation(part.records, partition.log.config, broker.clock.now_ms())
    return partition if must else None


async def _validate(broker: ProducePort, topic: TopicKey, part: PartitionAppend) -> None:
    partition = _find_slow_partition(broker, topic, part)
    if partition is None:
        return
    config, now_ms = partition.log.config, broker.clock.now_ms()
    validated = await asyncio.to_thread(prevalidate_batch, part.records, config, now_ms)
    if isinstance(validated, Reject):
        part.partition, part.result = partition, validated
    else:
        part.records = validated


def _append(broker: ProducePort, produce: ProduceInProgress, topic: TopicKey, part: PartitionAppend) -> None:
    """Append or refuse a batch, or keep a transactional one for `append_transactional`."""
    partition = _find_partition(broker, topic, part.index)
    if isinstance(partition, Reject):
        part.result = partition
        return
    part.partition = partition
    header = _check_batch(partition, produce, part.records)
    if isinstance(header, Reject):
        part.result = header
        return
    if header.is_transactional:
        part.result = UNVERIFIED
        produce.transactional.append(TransactionalAppend(part, partition, header))
        return
    refusal = check_producer_id_owner(broker, header) if header.producer_id >= 0 else None
    if refusal is not None:
        part.result = refusal
        return
    try:
        part.result = result = partition.append(part.records)
    except StorageFailure as exc:
        part.result = Reject(ErrorCode.KAFKA_STORAGE_ERROR, str(exc))
        return
    if isinstance(result, AppendResult):
        produce.add_unfinished(part, partition.when_durable(result.last_offset))


def _find_partition(broker: ProducePort, topic: TopicKey, index: int) -> Partition | Reject:
    if isinstance(topic, str):
        name = topic
    else:
        topic_entry = broker.topics.find_by_id(topic)
        if topic_entry is None:
            return Reject(ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has the id {topic}; refresh the metadata")
        name = topic_entry.name
    if name in INTERNAL_TOPICS:
        # Kafka accepts it from `__admin_client`, even if the coordinator then cannot read it (ADR 0011).
        return Reject(
            ErrorCode.INVALID_TOPIC_EXCEPTION, f"topic {name!r} is internal; only the broker writes to it"
        )
    partition = broker.topics.find_partition(name, index)
    if partition is None:
        return Reject(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"partition {name}-{index} does not exist")
    return partition


def _check_batch(
    partition: Partition, produce: ProduceInProgress, records: bytes | memoryview
) -> BatchHeader | Reject:
    """Validate the request for one partition, and return the header of its only batch, of format 2."""
    request, version = produce.request, produce.context.api_version
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


def _finish(broker: ProducePort, produce: ProduceInProgress) -> ResponseBody | Awaitable[ResponseBody]:
    """Append the transactional batches, too, and answer; wait for the coordinator and the disk if needed."""
    waiting = append_transactional(broker, produce) if produce.transactional else None
    if waiting is not None:
        return _wait_for_coordinator(produce, waiting)
    if produce.unfinished:
        return _wait_for_disk(produce, produce.request.timeout_ms / 1000)
    return _encode_response(produce)


async def _wait_for_coordinator(produce: ProduceInProgress, waiting: WaitingBatches) -> ResponseBody:
    loop, timeout_s = asyncio.get_running_loop(), produce.request.timeout_ms / 1000
    began_s = loop.time()
    await waiting.append_when_verified(min(max(timeout_s, VERIFICATION_S_MIN), VERIFICATION_S_MAX))
    if produce.unfinished:
        return await _wait_for_disk(produce, timeout_s - (loop.time() - began_s))
    return _encode_response(produce)


async def _wait_for_disk(produce: ProduceInProgress, timeout_s: float) -> ResponseBody:
    await asyncio.wait([future for _, future in produce.unfinished], timeout=max(timeout_s, 0))
    for part, future in produce.unfinished:
        if isinstance(part.result, AppendResult):
            part.result = _get_outcome(part.result, future)
    return _encode_response(produce)


def _get_outcome(result: AppendResult, durable: "asyncio.Future[None]") -> AppendResult | Reject:
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


def _encode_response(produce: ProduceInProgress) -> ResponseBody:
    """Encode the response. acks=0 has none: raises CloseConnection if anything was refused."""
    if produce.request.acks == 0:
        _close_on_failure(produce)
        return None
    responses = []
    for topic, parts in produce.topics:
        results = tuple([_build_result(part) for part in parts])
        responses.append(
            TopicProduceResponse(topic_id=topic, partition_responses=results)
            if isinstance(topic, UUID)
            else TopicProduceResponse(name=topic, partition_responses=results)
        )
    return [encode(ProduceResponse(responses=tuple(responses)), produce.context.api_version)]


def _close_on_failure(produce: ProduceInProgress) -> None:
    for topic, parts in produce.topics:
        for part in parts:
            if isinstance(part.result, Reject):
                raise CloseConnection(
                    f"acks=0 to {topic}-{part.index} failed: {part.result.code.name}, {part.result.reason}"
                )


def _build_result(part: PartitionAppend) -> PartitionProduceResponse:
    result = part.result or UNVERIFIED
    if isinstance(result, Reject):
        return PartitionProduceResponse(
            index=part.index,
            error_code=result.code,
            base_offset=-1,
            log_start_offset=-1 if part.partition is None else part.partition.log.log_start_offset,
            record_errors=tuple(
                BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=why)
                for index, why in result.record_errors
            ),
            error_message=result.reason,
        )
    return PartitionProduceResponse(
        index=part.index,
        base_offset=result.base_offset,
        log_append_time_ms=result.log_append_time_ms,
        log_start_offset=result.log_start_offset,
    )
