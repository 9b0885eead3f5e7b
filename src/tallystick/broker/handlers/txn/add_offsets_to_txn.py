"""AddOffsetsToTxn: adds the group whose offsets a transaction commits.

Clients with transaction version 2 do not send it (KIP-890).
"""

from tallystick.broker.authorizer.authorizer import Operation, group_resource
from tallystick.broker.handlers.authorization import may_write_as
from tallystick.broker.handlers.ports import TxnOffsetsPort
from tallystick.broker.handlers.txn.txn_wire import (
    NOT_AUTHORIZED,
    execute,
    get_error_code,
    make_producer,
)
from tallystick.broker.partitions.topics import CONSUMER_OFFSETS_TOPIC
from tallystick.broker.server.request_context import RequestContext
from tallystick.broker.txn.machine.commands import AddPartitions, TxnAnswer
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import GroupId, TopicPartition
from tallystick.protocol.messages.txn.add_offsets_to_txn import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
)

_GROUP_NOT_AUTHORIZED = Reject(ErrorCode.GROUP_AUTHORIZATION_FAILED, "Group authorization failed.")


async def handle(
    broker: TxnOffsetsPort, request: AddOffsetsToTxnRequest, context: RequestContext
) -> AddOffsetsToTxnResponse:
    return AddOffsetsToTxnResponse(
        error_code=get_error_code(context, await _add_offsets(broker, request, context))
    )


async def _add_offsets(
    broker: TxnOffsetsPort, request: AddOffsetsToTxnRequest, context: RequestContext
) -> TxnAnswer:
    """Add the group's partition of the offsets topic, which is created on first use."""
    if not may_write_as(broker, context, request.transactional_id):
        return NOT_AUTHORIZED
    if not broker.authorizer.allows(context, Operation.READ, group_resource(request.group_id)):
        return _GROUP_NOT_AUTHORIZED
    refusal = await broker.groups.ensure_topic()
    if refusal is not None:
        return Reject(ErrorCode.COORDINATOR_NOT_AVAILABLE, refusal.reason)
    offsets = TopicPartition(CONSUMER_OFFSETS_TOPIC, broker.groups.partition_for(GroupId(request.group_id)))
    command = AddPartitions(
        identity=make_producer(request.producer_id, request.producer_epoch),
        partitions=frozenset({offsets}),
        transaction_version=0,
    )
    return await execute(broker, request.transactional_id, command, context)
