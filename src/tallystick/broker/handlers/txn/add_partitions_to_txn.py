"""AddPartitionsToTxn: adds the partitions that a transaction is about to write to.

Up to version 3 it is sent by producers, for one transaction; from 4 on by brokers, for many, and perhaps only
to verify that the partitions are in the transaction (KIP-890). If any partition of a transaction is refused,
none of them is added.
"""

import asyncio
from collections.abc import Iterable, Mapping

from tallystick.broker.authorizer.authorizer import CLUSTER_RESOURCE, Operation
from tallystick.broker.handlers.authorization import NameCheck, make_topic_check, may_write_as
from tallystick.broker.handlers.ports import TxnPartitionsPort
from tallystick.broker.handlers.sliced_response import SLICE_ENTRIES, LoopYielder
from tallystick.broker.handlers.txn.txn_wire import (
    NOT_AUTHORIZED,
    downgrade_code,
    execute,
    get_error_code,
    make_producer,
)
from tallystick.broker.partitions.topics import INTERNAL_TOPICS, TRANSACTION_STATE_TOPIC
from tallystick.broker.server.request_context import RequestContext
from tallystick.broker.txn.machine.commands import AddPartitions, VerifyPartitions, VerifyPartitionsResult
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.ids import EPOCH_BUMP_VERSION, TopicPartition
from tallystick.protocol.messages.txn.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)

# KIP-890: the first version that brokers send.
BATCHED_SINCE = 4

PartitionErrors = Mapping[TopicPartition, int]


async def handle(
    broker: TxnPartitionsPort, request: AddPartitionsToTxnRequest, context: RequestContext
) -> AddPartitionsToTxnResponse:
    if context.api_version < BATCHED_SINCE:
        codes = await _add_partitions(broker, _convert_single(request), context)
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=await _build_results(codes))
    if not broker.authorizer.allows(context, Operation.CLUSTER_ACTION, CLUSTER_RESOURCE):
        return AddPartitionsToTxnResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    results: list[AddPartitionsToTxnResult] = []
    for first in range(0, len(request.transactions), SLICE_ENTRIES):
        transactions = request.transactions[first : first + SLICE_ENTRIES]
        answers = await asyncio.gather(*(_add_partitions(broker, each, context) for each in transactions))
        for each, codes in zip(transactions, answers, strict=True):
            topics = await _build_results(codes)
            results.append(
                AddPartitionsToTxnResult(transactional_id=each.transactional_id, topic_results=topics)
            )
        await asyncio.sleep(0)
    return AddPartitionsToTxnResponse(results_by_transaction=tuple(results))


def _convert_single(request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnTransaction:
    """Convert the single transaction of the older versions to the form of the newer ones."""
    return AddPartitionsToTxnTransaction(
        transactional_id=request.v3_and_below_transactional_id,
        producer_id=request.v3_and_below_producer_id,
        producer_epoch=request.v3_and_below_producer_epoch,
        topics=request.v3_and_below_topics,
    )


async def _add_partitions(
    broker: TxnPartitionsPort, transaction: AddPartitionsToTxnTransaction, context: RequestContext
) -> PartitionErrors:
    """Add or verify the partitions of one transaction, and return a code for each."""
    pacer = LoopYielder()
    partitions = await _list_distinct_partitions(transaction.topics, pacer)
    from_client = context.api_version < BATCHED_SINCE
    if from_client and not may_write_as(broker, context, transaction.transactional_id):
        return dict.fromkeys(partitions, NOT_AUTHORIZED.code)
    names = lambda: (partition.topic for partition in partitions)  # noqa: E731
    may_write = make_topic_check(broker, context, Operation.WRITE, names=names) if from_client else None
    wrong: dict[TopicPartition, ErrorCode] = {}
    for partition in partitions:
        await pacer.count_entry()
        if code := _check_partition(broker, partition, may_write):
            wrong[partition] = code
    if not wrong:
        # A topic may have been deleted while the loop above yielded.
        wrong = {
            partition: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            for partition in partitions
            if broker.topics.find_partition(partition.topic, partition.partition) is None
        }
    if wrong or not partitions:
        return {name: wrong.get(name, ErrorCode.OPERATION_NOT_ATTEMPTED) for name in partitions}
    identity = make_producer(transaction.producer_id, transaction.producer_epoch)
    partition_set = frozenset(partitions)
    command = (
        VerifyPartitions(identity=identity, partitions=partition_set)
        if transaction.verify_only
        else AddPartitions(
            identity=identity,
            partitions=partition_set,
            transaction_version=0 if from_client else EPOCH_BUMP_VERSION,
        )
    )
    answer = await execute(broker, transaction.transactional_id, command, context)
    if isinstance(answer, VerifyPartitionsResult):
        return {name: downgrade_code(context, answer.errors.get(name, ErrorCode.NONE)) for name in partitions}
    return dict.fromkeys(partitions, get_error_code(context, answer))


async def _list_distinct_partitions(
    topics: Iterable[AddPartitionsToTxnTopic], pacer: LoopYielder
) -> list[TopicPartition]:
    """List each partition once, in the order of the request."""
    distinct: dict[TopicPartition, None] = {}
    for each in topics:
        await pacer.count_entry()
        for index in each.partitions:
            distinct[TopicPartition(each.name, index)] = None
            await pacer.count_entry()
    return list(distinct)


def _check_partition(
    broker: TxnPartitionsPort, partition: TopicPartition, may_write: NameCheck | None
) -> ErrorCode:
    """Check one partition: only brokers may add internal topics, a client's offsets go through the group.

    Args:
        may_write: None if a broker asks.
    """
    name = partition.topic
    if may_write is not None and (name in INTERNAL_TOPICS or not may_write(name)):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if name == TRANSACTION_STATE_TOPIC:
        return ErrorCode.INVALID_TOPIC_EXCEPTION  # WriteTxnMarkers would refuse it when the transaction ends
    exists = broker.topics.find_partition(name, partition.partition) is not None
    return ErrorCode.NONE if exists else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def _build_results(codes: PartitionErrors) -> tuple[AddPartitionsToTxnTopicResult, ...]:
    pacer = LoopYielder()
    by_topic: dict[str, list[AddPartitionsToTxnPartitionResult]] = {}
    for name, code in codes.items():
        await pacer.count_entry()
        result = AddPartitionsToTxnPartitionResult(partition_index=name.partition, partition_error_code=code)
        by_topic.setdefault(name.topic, []).append(result)
    return tuple(
        AddPartitionsToTxnTopicResult(name=name, results_by_partition=tuple(results))
        for name, results in by_topic.items()
    )
