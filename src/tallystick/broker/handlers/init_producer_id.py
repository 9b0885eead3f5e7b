"""InitProducerId for idempotent producers.

There is no transaction coordinator yet. A transactional id is refused with UNSUPPORTED_VERSION, which clients
take as final; COORDINATOR_NOT_AVAILABLE would have them try for ever.
"""

from tallystick.broker.broker import Broker
from tallystick.broker.context import RequestContext
from tallystick.kernel.codes import ErrorCode
from tallystick.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse


async def handle(
    broker: Broker, request: InitProducerIdRequest, context: RequestContext
) -> InitProducerIdResponse:
    half_a_pair = (request.producer_id < 0) != (request.producer_epoch < 0)
    if request.transactional_id == "" or half_a_pair:
        return InitProducerIdResponse(error_code=ErrorCode.INVALID_REQUEST, producer_epoch=-1)
    if request.transactional_id is not None:
        return InitProducerIdResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, producer_epoch=-1)
    # KIP-360: an idempotent producer that asks with its old pair is given a new id, as Kafka does.
    return InitProducerIdResponse(producer_id=await broker.new_producer_id(), producer_epoch=0)
