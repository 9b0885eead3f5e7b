"""DescribeProducers: producer states of partitions (KIP-664)."""

from tallystick.broker.authorizer.authorizer import Operation, topic_resource
from tallystick.broker.handlers.deduplicate import group_distinct, identity_key
from tallystick.broker.handlers.ports import TopicsPort
from tallystick.broker.handlers.sliced_response import SlicedTopicResponse
from tallystick.broker.partitions.topics import check_topic_name
from tallystick.broker.server.request_context import RequestContext
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.protocol.messages.txn.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)
from tallystick.storage.state import producer_state


async def handle(
    broker: TopicsPort, request: DescribeProducersRequest, context: RequestContext
) -> SlicedTopicResponse:
    refusals: dict[str, Reject | None] = {}

    def describe(name: str, index: int) -> PartitionResponse:
        if name not in refusals:
            refusals[name] = _check_topic(broker, name, context)
        refusal = refusals[name]
        return _describe(broker, name, index) if refusal is None else _refused_response(index, refusal)

    return SlicedTopicResponse(
        lambda topics: DescribeProducersResponse(topics=topics),
        lambda name, partitions: TopicResponse(name=name, partitions=partitions),
        await group_distinct(
            ((topic.name, topic.partition_indexes) for topic in request.topics), identity_key
        ),
        describe,
    )


def _check_topic(broker: TopicsPort, name: str, context: RequestContext) -> Reject | None:
    # KIP-664 requires DESCRIBE; this is READ, because producer ids and offsets reveal the topic's content.
    if (invalid := check_topic_name(name)) is not None:
        return invalid
    if not broker.authorizer.allows(context, Operation.READ, topic_resource(name)):
        return Reject(ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"not authorized to read topic {name!r}")
    return None


def _describe(broker: TopicsPort, name: str, index: int) -> PartitionResponse:
    partition = broker.topics.find_partition(name, index)
    if partition is None:
        refusal = Reject(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"partition {name}-{index} does not exist")
        return _refused_response(index, refusal)
    states = partition.log.producer_state_manager.active_producers.values()
    return PartitionResponse(partition_index=index, active_producers=tuple(_encode_state(s) for s in states))


def _encode_state(state: producer_state.ProducerStateEntry) -> ProducerState:
    def known(value: int | None) -> int:
        return -1 if value is None else value

    return ProducerState(
        producer_id=state.producer_id,
        producer_epoch=state.epoch,
        last_sequence=known(state.last_sequence),
        last_timestamp=state.last_timestamp_ms,
        coordinator_epoch=known(state.coordinator_epoch),
        current_txn_start_offset=known(state.current_txn_first_offset),
    )


def _refused_response(index: int, why: Reject) -> PartitionResponse:
    return PartitionResponse(partition_index=index, error_code=why.code, error_message=why.reason)
