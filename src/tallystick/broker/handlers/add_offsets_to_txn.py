"""AddOffsetsToTxn: adds the group whose offsets a transaction commits.

Clients with transaction version 2 do not send it (KIP-890).
"""

from tallystick.broker.broker import Broker
from tallystick.broker.handlers.txn_wire import NOT_ALLOWED, code_of, execute, identity_of, may_write
from tallystick.broker.partitions.topics import GROUP_OFFSETS
from tallystick.broker.server.acl import Operation, group
from tallystick.broker.server.request_context import RequestContext
from tallystick.broker.txn.machine.commands import AddPartitions, Answer
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import GroupId, TopicPartition
from tallystick.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse

_NO_GROUP = Reject(ErrorCode.GROUP_AUTHORIZATION_FAILED, "Group authorization failed.")


async def handle(
    broker: Broker, request: AddOffsetsToTxnRequest, context: RequestContext
) -> AddOffsetsToTxnResponse:
    return AddOffsetsToTxnResponse(error_code=code_of(context, await _answer(broker, request, context)))


async def _answer(broker: Broker, request: AddOffsetsToTxnRequest, context: RequestContext) -> Answer:
    """Add the group's partition of the offsets topic, which is created on first use."""
    if not may_write(broker, context, request.transactional_id):
        return NOT_ALLOWED
    if not broker.authorizer.allows(context, Operation.READ, group(request.group_id)):
        return _NO_GROUP
    refused = await broker.groups.prepare()
    if refused is not None:
        return Reject(ErrorCode.COORDINATOR_NOT_AVAILABLE, refused.reason)
    offsets = TopicPartition(GROUP_OFFSETS, broker.groups.partition_of(GroupId(request.group_id)))
    command = AddPartitions(
        identity=identity_of(request.producer_id, request.producer_epoch),
        partitions=frozenset({offsets}),
        transaction_version=0,
    )
    return await execute(broker, request.transactional_id, command)
