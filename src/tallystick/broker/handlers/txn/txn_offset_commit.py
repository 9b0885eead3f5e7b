"""TxnOffsetCommit: offsets that become the group's when the transaction commits (KIP-98, KIP-447).

The offsets are written to the group's partition of the offsets topic, which is part of the transaction: for
newer clients this request adds it; older ones have added it by AddOffsetsToTxn, which is verified here
(KIP-890).
"""

from collections.abc import Mapping
from functools import partial
from typing import Final

from tallystick.broker.authorizer.authorizer import Operation
from tallystick.broker.group.codec import build_batch_header
from tallystick.broker.group.machine.commands import CommitTxnOffsets, GroupAnswer, OffsetToCommit
from tallystick.broker.handlers.authorization import make_topic_check, may_on_group, may_write_as
from tallystick.broker.handlers.data import verification
from tallystick.broker.handlers.groups.committing import OffsetCommitPlan
from tallystick.broker.handlers.groups.group_wire import parse_instance_id, parse_member_id
from tallystick.broker.handlers.ports import TxnOffsetsPort
from tallystick.broker.handlers.sliced_response import collect_in_slices
from tallystick.broker.partitions.topics import CONSUMER_OFFSETS_TOPIC
from tallystick.broker.server.request_context import RequestContext
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import (
    GroupId,
    ProducerEpoch,
    ProducerId,
    ProducerIdAndEpoch,
    TopicPartition,
    TransactionalId,
)
from tallystick.protocol.messages.txn.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

LOADING_SINCE: Final = 2  # KAFKA-7296: older clients cannot handle COORDINATOR_LOAD_IN_PROGRESS
ABORTABLE_SINCE: Final = 4  # KIP-890
IMPLICIT_SINCE: Final = 5  # KIP-890
TOPIC_IDS_SINCE: Final = 6  # KIP-1319, and with it GROUP_ID_NOT_FOUND

INCOMPLETE_PRODUCER: Final = Reject(
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    "the producer id or epoch is -1, which no transaction has; nothing was committed",
)
NO_GROUP: Final = Reject(ErrorCode.INVALID_GROUP_ID, "the group id must not be empty")


async def handle(
    broker: TxnOffsetsPort, request: TxnOffsetCommitRequest, context: RequestContext
) -> TxnOffsetCommitResponse:
    """Refuse unknown and unauthorized partitions one by one, and commit the others by one command."""
    version = context.api_version
    forbidden = _check_authorized(broker, request, context)
    if forbidden is not None:
        return await _build_response(request, OffsetCommitPlan.refuse_all(request.topics, forbidden), None)
    commit = await OffsetCommitPlan.build(
        broker.topics,
        request.topics,
        by_id=version >= TOPIC_IDS_SINCE,
        may_read=make_topic_check(
            broker, context, Operation.READ, names=lambda: (topic.name for topic in request.topics)
        ),
    )
    answer = await _commit(broker, request, context, commit.offsets) if commit.offsets else None
    if (
        version < LOADING_SINCE
        and isinstance(answer, Reject)
        and answer.code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    ):
        answer = Reject(ErrorCode.COORDINATOR_NOT_AVAILABLE, answer.reason)
    return await _build_response(request, commit, answer)


def _check_authorized(
    broker: TxnOffsetsPort, request: TxnOffsetCommitRequest, context: RequestContext
) -> ErrorCode | None:
    """Check the rights on transactional id and group; WRITE on the id covers its producer ids."""
    if not may_write_as(broker, context, request.transactional_id):
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    if not may_on_group(broker, context, Operation.READ, request.group_id):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED
    return None


async def _commit(
    broker: TxnOffsetsPort,
    request: TxnOffsetCommitRequest,
    context: RequestContext,
    offsets: Mapping[TopicPartition, OffsetToCommit],
) -> GroupAnswer:
    version, group_id = context.api_version, GroupId(request.group_id)
    if not group_id:
        return NO_GROUP
    if request.producer_id < 0 or request.producer_epoch < 0:
        return INCOMPLETE_PRODUCER
    # Checked first: an unavailable group must not add a partition to the transaction.
    refusal = await broker.groups.ensure_topic() or broker.groups.find_refusal(group_id)
    if refusal is not None:
        return refusal
    partition = broker.topics.find_partition(CONSUMER_OFFSETS_TOPIC, broker.groups.partition_for(group_id))
    if partition is None:
        return Reject(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{CONSUMER_OFFSETS_TOPIC} was deleted")
    identity = ProducerIdAndEpoch(ProducerId(request.producer_id), ProducerEpoch(request.producer_epoch))
    header = build_batch_header(identity)
    # KIP-890: before version 5 the client adds the partition by AddOffsetsToTxn, and this only verifies it.
    guard = await verification.open_transaction(
        broker,
        partition,
        header,
        transactional_id=TransactionalId(request.transactional_id),
        implicit=version >= IMPLICIT_SINCE,
        knows_abortable=version >= ABORTABLE_SINCE,
        requester=context,
    )
    if isinstance(guard, Reject):
        return guard
    # KIP-447: generation and member fence a consumer whose partitions have moved to another one.
    generation = request.generation_id_or_member_epoch
    command = CommitTxnOffsets(
        identity=identity,
        member_id=parse_member_id(request.member_id),
        instance_id=parse_instance_id(request.group_instance_id),
        generation=None if generation < 0 else generation,
        offsets=offsets,
        knows_group_id_not_found=version >= TOPIC_IDS_SINCE,
    )
    check_replaced = partial(verification.check_not_replaced, broker, header)
    return await broker.groups.commit_transactional(group_id, command, guard, check_replaced)


async def _build_response(
    request: TxnOffsetCommitRequest, commit: OffsetCommitPlan, answer: GroupAnswer | None
) -> TxnOffsetCommitResponse:
    answers = await commit.build_responses(
        request.topics,
        answer,
        lambda index, code: TxnOffsetCommitResponsePartition(partition_index=index, error_code=code),
    )
    return TxnOffsetCommitResponse(
        topics=await collect_in_slices(
            TxnOffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=partitions)
            for topic, partitions in zip(request.topics, answers, strict=True)
        )
    )
