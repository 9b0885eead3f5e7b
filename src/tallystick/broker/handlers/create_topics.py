"""CreateTopics: creates topics, or only validates the request."""

from collections import Counter
from typing import Final

from tallystick.broker.authorizer.authorizer import Operation
from tallystick.broker.handlers.authorization import make_topic_check, make_topic_check_or_cluster
from tallystick.broker.handlers.config_view import describe_new_topic_settings
from tallystick.broker.handlers.ports import ConfigsPort
from tallystick.broker.handlers.sliced_response import LoopYielder
from tallystick.broker.metadata.store import Topic
from tallystick.broker.partitions.topics import INTERNAL_TOPICS, TopicSpec
from tallystick.broker.server.request_context import RequestContext
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.protocol.messages.create_topics import (
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
            twice = Reject(ErrorCode.INVALID_REQUEST, f"topic {topic.name!r} is in the request twice")
            results.append(_refused_result(topic, twice))
        elif not may_create(topic.name):
            results.append(_refused_result(topic, _NOT_AUTHORIZED))
        else:
            result = await _create(broker, topic, request.validate_only)
            results.append(result if result.error_code or may_describe(topic.name) else _hide_configs(result))
    return CreateTopicsResponse(topics=tuple(results))


async def _create(broker: ConfigsPort, topic: CreatableTopic, validate_only: bool) -> CreatableTopicResult:
    wanted = _make_topic_spec(broker, topic)
    if isinstance(wanted, Reject):
        return _refused_result(topic, wanted)
    if wanted.name in INTERNAL_TOPICS:
        # Kafka creates it as requested. Wrong settings could destroy transaction outcomes [TXN-15].
        own = f"topic {wanted.name!r} is the broker's own, it is made when the first client needs it"
        return _refused_result(topic, Reject(ErrorCode.INVALID_TOPIC_EXCEPTION, own))
    made = (
        broker.topic_controller.check_creation(wanted)
        if validate_only
        else await broker.topic_controller.create(wanted)
    )
    if isinstance(made, Reject):
        return _refused_result(topic, made)
    return CreatableTopicResult(
        name=wanted.name,
        topic_id=made.topic_id if isinstance(made, Topic) else NIL,
        num_partitions=wanted.partitions,
        replication_factor=1,
        configs=tuple(
            CreatableTopicConfigs(
                name=shown.setting.name,
                value=shown.value,
                read_only=shown.is_read_only,
                config_source=shown.source,
                is_sensitive=False,
            )
            for shown in describe_new_topic_settings(broker, wanted.configs)
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
            return Reject(ErrorCode.INVALID_CONFIG, f"{config.name}: there is no value")
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
            f"replication factor {topic.replication_factor}: there is 1 broker",
        )
    if topic.num_partitions == -1:
        return broker.config.num_partitions
    if topic.num_partitions < 1:
        return Reject(
            ErrorCode.INVALID_PARTITIONS, f"{topic.num_partitions} partitions; at least 1 is needed"
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
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"partitions {indexes} are not 0 to {len(indexes) - 1}"
        )
    node = broker.config.node_id
    wrong = [a.broker_ids for a in topic.assignments if a.broker_ids != (node,)]
    if wrong:
        return Reject(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"replicas {list(wrong[0])}: the only broker is {node}"
        )
    return len(indexes)


def _refused_result(topic: CreatableTopic, refused: Reject) -> CreatableTopicResult:
    return CreatableTopicResult(
        name=topic.name, error_code=refused.code, error_message=refused.reason, configs=None
    )
