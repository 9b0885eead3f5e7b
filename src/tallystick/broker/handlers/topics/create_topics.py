"""CreateTopics: creates topics, or only validates the request."""

from collections import Counter
from typing import Final

from tallystick.broker.authorizer.authorizer import Operation
from tallystick.broker.handlers.authorization import make_topic_check, make_topic_check_or_cluster
from tallystick.broker.handlers.cluster.config_view import describe_new_topic_settings
from tallystick.broker.handlers.ports import ConfigsPort
from tallystick.broker.handlers.sliced_response import LoopYielder
from tallystick.broker.metadata.store import Topic
from tallystick.broker.partitions.topics import INTERNAL_TOPICS, TopicSpec
from tallystick.broker.server.request_context import RequestContext
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.protocol.messages.topics.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tallystick.protocol.primitives import NIL

_NOT_AUTHORIZED: Final = Reject(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "Authorization failed.")


async def handle(
    broker: ConfigsPort, request: CreateTopicsRequest, context: RequestContext
) -> CreateTopicsResponse:
    counts = Counter(topic.name for topic in request.topics)
    may_create = make_topic_check_or_cluster(broker, context, Operation.CREATE)
    may_describe = make_topic_check(broker, context, Operation.DESCRIBE_CONFIGS, log_denied=False)
    pacer, results = LoopYielder(), list[CreatableTopicResult]()
    for topic in {topic.name: topic for topic in request.topics}.values():
        await pacer.count_entry()
        if counts[topic.name] > 1:
            refusal = Reject(
                ErrorCode.INVALID_REQUEST, f"the request has topic {topic.name!r} twice; it was not created"
            )
            results.append(_refused_result(topic, refusal))
        elif not may_create(topic.name):
            results.append(_refused_result(topic, _NOT_AUTHORIZED))
        else:
            result = await _create(broker, topic, request.validate_only)
            results.append(result if result.error_code or may_describe(topic.name) else _hide_configs(result))
    return CreateTopicsResponse(topics=tuple(results))


async def _create(broker: ConfigsPort, topic: CreatableTopic, validate_only: bool) -> CreatableTopicResult:
    spec = _make_topic_spec(broker, topic)
    if isinstance(spec, Reject):
        return _refused_result(topic, spec)
    if spec.name in INTERNAL_TOPICS:
        # Kafka creates it as requested. Wrong settings could destroy transaction outcomes [TXN-15].
        own = f"topic {spec.name!r} is internal; the broker creates it when the first client needs it"
        return _refused_result(topic, Reject(ErrorCode.INVALID_TOPIC_EXCEPTION, own))
    result = (
        broker.topic_controller.check_creation(spec)
        if validate_only
        else await broker.topic_controller.create(spec)
    )
    if isinstance(result, Reject):
        return _refused_result(topic, result)
    return CreatableTopicResult(
        name=spec.name,
        topic_id=result.topic_id if isinstance(result, Topic) else NIL,
        num_partitions=spec.partitions,
        replication_factor=1,
        configs=tuple(
            CreatableTopicConfigs(
                name=described.setting.name,
                value=described.value,
                read_only=described.is_read_only,
                config_source=described.source,
                is_sensitive=False,
            )
            for described in describe_new_topic_settings(broker, spec.configs)
        ),
    )


def _hide_configs(result: CreatableTopicResult) -> CreatableTopicResult:
    """Return the result without what only DESCRIBE_CONFIGS reveals (KIP-525)."""
    return CreatableTopicResult(
        name=result.name,
        topic_id=result.topic_id,
        topic_config_error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        num_partitions=-1,
        replication_factor=-1,
        configs=(),
    )


def _make_topic_spec(broker: ConfigsPort, topic: CreatableTopic) -> TopicSpec | Reject:
    partitions = _count_partitions(broker, topic)
    if isinstance(partitions, Reject):
        return partitions
    configs: dict[str, str] = {}
    for config in topic.configs:
        if config.value is None:
            return Reject(ErrorCode.INVALID_CONFIG, f"{config.name}: the value is missing")
        configs[config.name] = config.value
    return TopicSpec(topic.name, partitions, configs)


def _count_partitions(broker: ConfigsPort, topic: CreatableTopic) -> int | Reject:
    """Return the number of partitions to create, by count or by assignment; -1 is the broker's default.

    KIP-464 gives -1 that meaning from version 4 on. Kafka's controller does not look at the version, and
    clients with an older one rely on that.
    """
    if topic.assignments:
        return _count_assigned(broker, topic)
    if topic.replication_factor not in (-1, 1):
        return Reject(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"the replication factor is {topic.replication_factor}, but there is 1 broker; it must be 1 or"
            " -1",
        )
    if topic.num_partitions == -1:
        return broker.config.num_partitions
    if topic.num_partitions < 1:
        return Reject(
            ErrorCode.INVALID_PARTITIONS,
            f"{topic.num_partitions} partitions were requested; at least 1 is needed",
        )
    return topic.num_partitions


def _count_assigned(broker: ConfigsPort, topic: CreatableTopic) -> int | Reject:
    if topic.num_partitions != -1 or topic.replication_factor != -1:
        return Reject(
            ErrorCode.INVALID_REQUEST, "with an assignment, partitions and replication factor must be -1"
        )
    indexes = sorted(a.partition_index for a in topic.assignments)
    if indexes != list(range(len(indexes))):
        return Reject(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"the assigned partitions are {indexes}; they must be 0 to {len(indexes) - 1}",
        )
    node = broker.config.node_id
    wrong = [a.broker_ids for a in topic.assignments if a.broker_ids != (node,)]
    if wrong:
        return Reject(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"the assigned replicas are {list(wrong[0])}, but the only broker is {node}",
        )
    return len(indexes)


def _refused_result(topic: CreatableTopic, refusal: Reject) -> CreatableTopicResult:
    return CreatableTopicResult(
        name=topic.name, error_code=refusal.code, error_message=refusal.reason, configs=None
    )
