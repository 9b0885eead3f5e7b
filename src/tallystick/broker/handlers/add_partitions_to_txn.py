"""AddPartitionsToTxn: adds the partitions that a transaction is about to write to.

Up to version 3 it is sent by producers, for one transaction; from 4 on by brokers, for many, and perhaps only
to verify that the partitions are in the transaction (KIP-890). If any partition of a transaction is refused,
none of them is added.
"""

import asyncio
from collections.abc import Iterable, Mapping

from tallystick.broker.broker import Broker
from tallystick.broker.handlers.listing import SLICE_ENTRIES, Pacer
from tallystick.broker.handlers.txn_wire import (
    NOT_ALLOWED,
    code_for,
    code_of,
    execute,
    identity_of,
    may_write,
)
from tallystick.broker.partitions.topics import INTERNAL, TRANSACTION_STATE
from tallystick.broker.server.acl import CLUSTER, Operation, topic
from tallystick.broker.server.request_context import RequestContext
from tallystick.broker.txn.machine.commands import AddPartitions, PerPartition, VerifyPartitions
from tallystick.broker.txn.machine.model import EPOCH_BUMP_VERSION
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.ids import TopicPartition
from tallystick.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)

# KIP-890: the first version that brokers send.
BATCHED_FROM = 4

Codes = Mapping[TopicPartition, int]


async def handle(
    broker: Broker, request: AddPartitionsToTxnRequest, context: RequestContext
) -> AddPartitionsToTxnResponse:
    if context.api_version < BATCHED_FROM:
        codes = await _add(broker, _only(request), context)
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=await _results(codes))
    if not broker.authorizer.allows(context, Operation.CLUSTER_ACTION, CLUSTER):
        return AddPartitionsToTxnResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    results: list[AddPartitionsToTxnResult] = []
    for first in range(0, len(request.transactions), SLICE_ENTRIES):
        some = request.transactions[first : first + SLICE_ENTRIES]
        answered = await asyncio.gather(*(_add(broker, each, context) for each in some))
        for each, codes in zip(some, answered, strict=True):
            topics = await _results(codes)
            results.append(
                AddPartitionsToTxnResult(transactional_id=each.transactional_id, topic_results=topics)
            )
        await asyncio.sleep(0)
    return AddPartitionsToTxnResponse(results_by_transaction=tuple(results))


def _only(request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnTransaction:
    """Convert the single transaction of the older versions to the form of the newer ones."""
    return AddPartitionsToTxnTransaction(
        transactional_id=request.v3_and_below_transactional_id,
        producer_id=request.v3_and_below_producer_id,
        producer_epoch=request.v3_and_below_producer_epoch,
        topics=request.v3_and_below_topics,
    )


async def _add(broker: Broker, asked: AddPartitionsToTxnTransaction, context: RequestContext) -> Codes:
    """Add or verify the partitions of one transaction, and return a code for each."""
    pacer = Pacer()
    partitions = await _partitions(asked.topics, pacer)
    from_client = context.api_version < BATCHED_FROM
    if from_client and not may_write(broker, context, asked.transactional_id):
        return dict.fromkeys(partitions, NOT_ALLOWED.code)
    wrong: dict[TopicPartition, ErrorCode] = {}
    for partition in partitions:
        await pacer.step()
        if code := _refused(broker, partition, context, from_client=from_client):
            wrong[partition] = code
    if not wrong:
        # A topic may have been deleted while the loop above yielded.
        wrong = {
            partition: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            for partition in partitions
            if broker.topics.partition(partition.topic, partition.partition) is None
        }
    if wrong or not partitions:
        return {name: wrong.get(name, ErrorCode.OPERATION_NOT_ATTEMPTED) for name in partitions}
    identity = identity_of(asked.producer_id, asked.producer_epoch)
    named = frozenset(partitions)
    command = (
        VerifyPartitions(identity=identity, partitions=named)
        if asked.verify_only
        else AddPartitions(
            identity=identity,
            partitions=named,
            transaction_version=0 if from_client else EPOCH_BUMP_VERSION,
        )
    )
    answer = await execute(broker, asked.transactional_id, command)
    if isinstance(answer, PerPartition):
        return {name: code_for(context, answer.refused.get(name, ErrorCode.NONE)) for name in partitions}
    return dict.fromkeys(partitions, code_of(context, answer))


async def _partitions(topics: Iterable[AddPartitionsToTxnTopic], pacer: Pacer) -> list[TopicPartition]:
    """List each partition once, in the order of the request."""
    named: dict[TopicPartition, None] = {}
    for each in topics:
        await pacer.step()
        for index in each.partitions:
            named[TopicPartition(each.name, index)] = None
            await pacer.step()
    return list(named)


def _refused(
    broker: Broker, partition: TopicPartition, context: RequestContext, *, from_client: bool
) -> ErrorCode:
    """Check one partition: only brokers may add internal topics, a client's offsets go through the group."""
    name = partition.topic
    if from_client and (
        name in INTERNAL or not broker.authorizer.allows(context, Operation.WRITE, topic(name))
    ):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if name == TRANSACTION_STATE:
        return ErrorCode.INVALID_TOPIC_EXCEPTION  # WriteTxnMarkers would refuse it when the transaction ends
    known = broker.topics.partition(name, partition.partition) is not None
    return ErrorCode.NONE if known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def _results(codes: Codes) -> tuple[AddPartitionsToTxnTopicResult, ...]:
    pacer = Pacer()
    by_topic: dict[str, list[AddPartitionsToTxnPartitionResult]] = {}
    for name, code in codes.items():
        await pacer.step()
        result = AddPartitionsToTxnPartitionResult(partition_index=name.partition, partition_error_code=code)
        by_topic.setdefault(name.topic, []).append(result)
    return tuple(
        AddPartitionsToTxnTopicResult(name=name, results_by_partition=tuple(results))
        for name, results in by_topic.items()
    )
