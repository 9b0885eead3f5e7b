"""DescribeProducers: producer states of partitions (KIP-664)."""

from tallystick.broker.broker import Broker
from tallystick.broker.handlers.distinct import itself, merged
from tallystick.broker.handlers.listing import ListedByTopic
from tallystick.broker.partitions.topics import check_name
from tallystick.broker.server import acl
from tallystick.broker.server.acl import Operation
from tallystick.broker.server.request_context import RequestContext
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)
from tallystick.storage import producers


async def handle(broker: Broker, request: DescribeProducersRequest, context: RequestContext) -> ListedByTopic:
    refused: dict[str, Reject | None] = {}

    def describe(name: str, index: int) -> PartitionResponse:
        if name not in refused:
            refused[name] = _refusal(broker, name, context)
        why = refused[name]
        return _describe(broker, name, index) if why is None else _refused(index, why)

    return ListedByTopic(
        lambda topics: DescribeProducersResponse(topics=topics),
        lambda name, partitions: TopicResponse(name=name, partitions=partitions),
        await merged(((topic.name, topic.partition_indexes) for topic in request.topics), itself),
        describe,
    )


def _refusal(broker: Broker, name: str, context: RequestContext) -> Reject | None:
    # KIP-664 requires DESCRIBE; this is READ, because producer ids and offsets reveal the topic's content.
    if (invalid := check_name(name)) is not None:
        return invalid
    if not broker.authorizer.allows(context, Operation.READ, acl.topic(name)):
        return Reject(ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"no right to read topic {name!r}")
    return None


def _describe(broker: Broker, name: str, index: int) -> PartitionResponse:
    partition = broker.topics.partition(name, index)
    if partition is None:
        missing = Reject(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {name}-{index}")
        return _refused(index, missing)
    states = partition.log.producer_state.active.values()
    return PartitionResponse(partition_index=index, active_producers=tuple(_as_wire(s) for s in states))


def _as_wire(state: producers.ProducerState) -> ProducerState:
    def known(value: int | None) -> int:
        return -1 if value is None else value

    return ProducerState(
        producer_id=state.producer_id,
        producer_epoch=state.epoch,
        last_sequence=known(state.last_sequence),
        last_timestamp=state.last_timestamp_ms,
        coordinator_epoch=known(state.coordinator_epoch),
        current_txn_start_offset=known(state.txn_first_offset),
    )


def _refused(index: int, why: Reject) -> PartitionResponse:
    return PartitionResponse(partition_index=index, error_code=why.code, error_message=why.reason)
