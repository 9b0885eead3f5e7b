"""AlterConfigs replaces the settings of a resource (KIP-133), IncrementalAlterConfigs changes some (KIP-339).

AlterConfigs is deprecated: it resets the settings that it does not name.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Final

from tallystick.broker.authorizer.authorizer import Operation
from tallystick.broker.config.broker_config import BROKER_SETTINGS, TOPIC_SETTINGS
from tallystick.broker.config.dynamic_config import find_bad_values, find_change_problems, find_setting
from tallystick.broker.config.kafka_names import is_kafka_name
from tallystick.broker.config.topic_config import DEFAULT_ONLY_SETTINGS
from tallystick.broker.handlers.cluster.config_view import ConfigResourceType, check_config_right
from tallystick.broker.handlers.ports import ConfigsPort
from tallystick.broker.handlers.sliced_response import LoopYielder, SlicedListResponse
from tallystick.broker.partitions.topics import check_topic_configs
from tallystick.broker.server.request_context import RequestContext
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.settings import BadConfig, Setting, describe_unknown
from tallystick.kernel.value import Value
from tallystick.protocol.messages.cluster import alter_configs, incremental_alter_configs
from tallystick.protocol.messages.cluster.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from tallystick.protocol.messages.cluster.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)


class AlterConfigOp(IntEnum):
    """Operation of IncrementalAlterConfigs on one setting."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ConfigChange(Value):
    """One requested change of a setting."""

    name: str
    operation: int
    value: str | None


class ConfigAlteration(Value):
    """Changes requested for one resource."""

    resource_type: int
    name: str
    changes: tuple[ConfigChange, ...]


# Kafka's group settings are for the groups of KIP-848, KIP-932 and KIP-1071, which this broker does not have.
GROUP_SETTINGS: Final[Mapping[str, Setting]] = {}
# Limit of problems reported for one resource; suggesting a similar name takes a millisecond each.
PROBLEMS_REPORTED_MAX: Final = 10
REPEATED_RESOURCE: Final = Reject(
    ErrorCode.INVALID_REQUEST, "the request has this resource twice; nothing was changed"
)


_RESPONSES: Final[Mapping[type, tuple[Callable[..., object], Callable[..., object]]]] = {
    AlterConfigsRequest: (AlterConfigsResponse, alter_configs.AlterConfigsResourceResponse),
    IncrementalAlterConfigsRequest: (
        IncrementalAlterConfigsResponse,
        incremental_alter_configs.AlterConfigsResourceResponse,
    ),
}


async def handle(
    broker: ConfigsPort,
    request: AlterConfigsRequest | IncrementalAlterConfigsRequest,
    context: RequestContext,
) -> SlicedListResponse:
    """Answer one of the two requests: only AlterConfigs resets the settings that are not named."""
    is_replacement = isinstance(request, AlterConfigsRequest)
    pacer, alterations = LoopYielder(), list[ConfigAlteration]()
    for resource in request.resources:
        await pacer.count_entry()
        changes = []
        for config in resource.configs:
            changes.append(_read_change(config))
            await pacer.count_entry()
        alterations.append(ConfigAlteration(resource.resource_type, resource.resource_name, tuple(changes)))
    times = Counter((each.resource_type, each.name) for each in alterations)
    results = list[tuple[ConfigAlteration, Reject | None]]()
    for each in alterations:
        await pacer.count_entry()
        if times[each.resource_type, each.name] > 1:
            refusal: Reject | None = REPEATED_RESOURCE
        else:
            refusal = await _alter_resource(
                broker, context, each, replace=is_replacement, validate_only=request.validate_only
            )
        results.append((each, refusal))
    make_response, make_result = _RESPONSES[type(request)]
    return SlicedListResponse(
        lambda responses: make_response(responses=responses),
        results,
        lambda result: _build_result(make_result, *result),
    )


def _read_change(
    config: alter_configs.AlterableConfig | incremental_alter_configs.AlterableConfig,
) -> ConfigChange:
    if isinstance(config, alter_configs.AlterableConfig):
        return ConfigChange(config.name, AlterConfigOp.SET, config.value)
    return ConfigChange(config.name, config.config_operation, config.value)


def _build_result(
    make_result: Callable[..., object], alteration: ConfigAlteration, refusal: Reject | None
) -> object:
    return make_result(
        error_code=ErrorCode.NONE if refusal is None else refusal.code,
        error_message=None if refusal is None else refusal.reason,
        resource_type=alteration.resource_type,
        resource_name=alteration.name,
    )


async def _alter_resource(
    broker: ConfigsPort,
    context: RequestContext,
    alteration: ConfigAlteration,
    *,
    replace: bool,
    validate_only: bool,
) -> Reject | None:
    kind, name, changes = alteration.resource_type, alteration.name, alteration.changes
    problem = _find_malformed(kind, name, changes)
    if problem is not None:
        return Reject(ErrorCode.INVALID_REQUEST, problem)
    denied = check_config_right(broker, context, Operation.ALTER_CONFIGS, kind, name)
    if denied is not None:
        return denied
    try:
        match kind:
            case ConfigResourceType.TOPIC:
                return await _alter_topic(broker, name, changes, replace, validate_only)
            case ConfigResourceType.BROKER:
                return await _alter_broker(broker, name, changes, replace, validate_only)
            case ConfigResourceType.GROUP:
                # Groups of the classic protocol have no settings, so only a reset succeeds.
                apply_changes({}, changes, GROUP_SETTINGS)
                return None
            case _:
                return Reject(
                    ErrorCode.INVALID_REQUEST,
                    f"settings of resource type {kind} cannot be altered on this broker",
                )
    except BadConfig as exc:
        # In Kafka the controller validates settings of topics and groups, a broker its own; the codes differ.
        code = ErrorCode.INVALID_REQUEST if kind == ConfigResourceType.BROKER else ErrorCode.INVALID_CONFIG
        return Reject(code, str(exc))


def _find_malformed(kind: int, name: str, changes: Sequence[ConfigChange]) -> str | None:
    """Return the error in the form of a request, or None.

    Source: ConfigAdminManager.preprocess; ControllerApis.
    """
    times = Counter(change.name for change in changes)
    if kind == ConfigResourceType.TOPIC and not name:
        return "settings of all topics are the broker's"
    if kind == ConfigResourceType.GROUP and not name:
        return "there are no settings for all groups; name a group"
    if len(times) < len(changes):
        return f"settings are given twice: {', '.join(sorted(n for n, count in times.items() if count > 1))}"
    empty = [c.name for c in changes if c.value is None and c.operation != AlterConfigOp.DELETE]
    return f"there is no value for {', '.join(empty)}" if empty else None


async def _alter_topic(
    broker: ConfigsPort, name: str, changes: Sequence[ConfigChange], replace: bool, validate_only: bool
) -> Reject | None:
    topic = broker.topics.find(name)
    if topic is None:
        return Reject(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name!r} does not exist")

    def change(current: Mapping[str, str]) -> Mapping[str, str]:
        return apply_changes({} if replace else current, changes, TOPIC_SETTINGS)

    if validate_only:
        return check_topic_configs(broker.config, name, change(topic.configs))
    return await broker.topic_controller.alter_configs(name, change)


async def _alter_broker(
    broker: ConfigsPort, name: str, changes: Sequence[ConfigChange], replace: bool, validate_only: bool
) -> Reject | None:
    if name not in ("", str(broker.config.node_id)):
        return Reject(
            ErrorCode.INVALID_REQUEST,
            f"broker {name!r} does not exist; the only one is {broker.config.node_id}",
        )

    touched = [change.name for change in changes]

    def change(current: Mapping[str, str]) -> Mapping[str, str]:
        configs = apply_changes({} if replace else current, changes, _list_broker_settings(touched))
        problems = [*find_change_problems(configs, is_default=not name), *find_bad_values(configs)]
        if problems:
            raise BadConfig("\n".join(problems))
        return configs

    return await broker.alter_dynamic_configs(name, change, touched=touched, validate_only=validate_only)


def _list_broker_settings(names: Iterable[str]) -> Mapping[str, Setting]:
    """Return every setting of a broker, those of its listeners by the names given."""
    own = {name: spec for name in names if (spec := find_setting(name)) is not None}
    return BROKER_SETTINGS | own


def apply_changes(
    current: Mapping[str, str], changes: Iterable[ConfigChange], settings: Mapping[str, Setting]
) -> dict[str, str]:
    """Return `current` after the changes of IncrementalAlterConfigs.

    Raises: BadConfig with all problems.

    Source: KIP-339; ConfigurationControlManager.
    """
    configs, problems = dict(current), list[str]()
    is_broker = settings.keys() >= BROKER_SETTINGS.keys()
    for change in changes:
        if len(problems) == PROBLEMS_REPORTED_MAX:
            problems.append("and perhaps more")
            break
        spec = settings.get(change.name)
        if spec is None and change.operation == AlterConfigOp.DELETE:
            configs.pop(change.name, None)  # as in Kafka: deleting an unknown setting succeeds
        elif spec is None and settings is TOPIC_SETTINGS and change.name in DEFAULT_ONLY_SETTINGS:
            configs[change.name] = change.value or ""  # validated with the topic's other settings
        elif spec is None and is_broker and is_kafka_name(change.name):
            problems.append(f"{change.name}: has no effect in this broker and cannot be changed")
        elif spec is None:
            problems.append(describe_unknown(change.name, settings))
        else:
            why = _apply_change(configs, spec, change)
            if why is not None:
                problems.append(f"{change.name}: {why}")
    if problems:
        raise BadConfig("\n".join(problems))
    return configs


def _apply_change(configs: dict[str, str], spec: Setting, change: ConfigChange) -> str | None:
    name, value = spec.name, change.value
    if change.operation == AlterConfigOp.DELETE:
        configs.pop(name, None)
        return None
    if value is None:
        return "there is no value"
    if change.operation == AlterConfigOp.SET:
        configs[name] = value.strip()
        return None
    if change.operation not in (AlterConfigOp.APPEND, AlterConfigOp.SUBTRACT):
        return f"operation {change.operation} is unknown"
    if not isinstance(spec.default, tuple):
        return f"{AlterConfigOp(change.operation).name} is for lists, this is {spec.describe_allowed()}"
    items = [part for part in configs.get(name, spec.format(spec.default) or "").split(",") if part]
    parts = [part.strip() for part in value.split(",") if part.strip()]
    if change.operation == AlterConfigOp.APPEND:
        items += [part for part in parts if part not in items]
    else:
        items = [part for part in items if part not in parts]
    configs[name] = ",".join(items)
    return None
