"""Settings as DescribeConfigs reports them, and requested alterations.

The value in force comes from the first of: the topic, this broker's dynamic settings, those of all brokers,
the file or command line, the default. DescribeConfigs lists the remaining ones as synonyms (KIP-226).
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Final

from tallystick.broker.broker import Broker
from tallystick.broker.config.broker_config import BROKER_SETTINGS, TOPIC_SETTINGS, BrokerConfig
from tallystick.broker.config.kafka_names import is_kafka_name
from tallystick.broker.config.topic_config import DEFAULT_ONLY_SETTINGS
from tallystick.broker.handlers.sliced_response import LoopYielder
from tallystick.broker.metadata.store import Topic
from tallystick.broker.partitions.topics import check_topic_configs
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.settings import BadConfig, Setting, describe_unknown
from tallystick.kernel.value import frozen


class ConfigResourceType(IntEnum):
    """Kind of resource that has settings, with the wire's numbers."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigSource(IntEnum):
    """Origin of a value, with the wire's numbers."""

    TOPIC = 1
    BROKER = 2
    ALL_BROKERS = 3
    STATIC = 4
    DEFAULT = 5


class AlterConfigOp(IntEnum):
    """Operation of IncrementalAlterConfigs on one setting."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@frozen
class ConfigSynonym:
    """One origin of a setting, with its name and value there."""

    name: str
    value: str | None
    source: ConfigSource


@frozen
class DescribedSetting:
    """A setting with all its origins, in order of precedence."""

    setting: Setting
    synonyms: tuple[ConfigSynonym, ...]
    is_read_only: bool

    @property
    def value(self) -> str | None:
        return self.synonyms[0].value

    @property
    def source(self) -> ConfigSource:
        return self.synonyms[0].source


@frozen
class ConfigChange:
    """One requested change of a setting."""

    name: str
    operation: int
    value: str | None


@frozen
class ConfigAlteration:
    """Changes requested for one resource."""

    resource_type: int
    name: str
    changes: tuple[ConfigChange, ...]


# Kafka's group settings are for the groups of KIP-848, KIP-932 and KIP-1071, which this broker does not have.
GROUP_SETTINGS: Final[Mapping[str, Setting]] = {}
# Limit of problems reported for one resource; suggesting a similar name takes a millisecond each.
PROBLEMS_REPORTED_MAX: Final = 10
REPEATED_RESOURCE: Final = Reject(ErrorCode.INVALID_REQUEST, "a resource is asked for twice")


def describe_topic_settings(broker: Broker, topic: Topic) -> Iterator[DescribedSetting]:
    """Yield every setting of a topic."""
    for made in TOPIC_SETTINGS.values():
        own = topic.configs.get(made.name)
        nearest = () if own is None else (ConfigSynonym(made.name, own, ConfigSource.TOPIC),)
        yield DescribedSetting(made, (*nearest, *_iter_fallbacks(broker, made)), is_read_only=False)


def describe_new_topic_settings(broker: Broker, configs: Mapping[str, str]) -> Iterator[DescribedSetting]:
    """Yield every setting of a topic created with `configs`."""
    for made in TOPIC_SETTINGS.values():
        own = configs.get(made.name)
        nearest = () if own is None else (ConfigSynonym(made.name, own, ConfigSource.TOPIC),)
        yield DescribedSetting(made, (*nearest, *_iter_fallbacks(broker, made)), is_read_only=False)


def describe_broker_settings(broker: Broker) -> Iterator[DescribedSetting]:
    """Yield every setting of the broker."""
    for made in BROKER_SETTINGS.values():
        yield DescribedSetting(
            made, tuple(_iter_broker_synonyms(broker, made)), is_read_only=not made.dynamic
        )


def describe_default_settings(broker: Broker) -> Iterator[DescribedSetting]:
    """Yield the dynamic settings of all brokers; Kafka returns no more for the empty broker name."""
    for name, value in broker.dynamic_configs.get("", {}).items():
        yield DescribedSetting(
            BROKER_SETTINGS[name], (ConfigSynonym(name, value, ConfigSource.ALL_BROKERS),), is_read_only=False
        )


def _iter_broker_synonyms(broker: Broker, made: Setting) -> Iterator[ConfigSynonym]:
    dynamic = broker.dynamic_configs
    layers = (
        (ConfigSource.BROKER, dynamic.get(str(broker.config.node_id), {})),
        (ConfigSource.ALL_BROKERS, dynamic.get("", {})),
        (ConfigSource.STATIC, broker.static_config.given),
    )
    for source, layer in layers:
        if made.name in layer:
            yield ConfigSynonym(made.name, layer[made.name], source)
    yield ConfigSynonym(made.name, made.format(made.default), ConfigSource.DEFAULT)


def _iter_fallbacks(broker: Broker, made: Setting) -> Iterator[ConfigSynonym]:
    """Yield a topic setting's synonyms, in the topic's own unit, and last the default."""
    for synonym in made.synonyms:
        for origin in _iter_broker_synonyms(broker, BROKER_SETTINGS[synonym.name]):
            if origin.source is not ConfigSource.DEFAULT and origin.value:
                value = BrokerConfig.scale_text(origin.value, synonym.scale)
                yield ConfigSynonym(synonym.name, value, origin.source)
    last = made.synonyms[-1].name if made.synonyms else made.name
    yield ConfigSynonym(last, made.format(made.default), ConfigSource.DEFAULT)


def apply_changes(
    current: Mapping[str, str], changes: Iterable[ConfigChange], settings: Mapping[str, Setting]
) -> dict[str, str]:
    """Return `current` after the changes of IncrementalAlterConfigs.

    Raises: BadConfig with all problems.

    Source: KIP-339; ConfigurationControlManager.
    """
    changed, problems = dict(current), list[str]()
    for change in changes:
        if len(problems) == PROBLEMS_REPORTED_MAX:
            problems.append("and perhaps more")
            break
        made = settings.get(change.name)
        if made is None and change.operation == AlterConfigOp.DELETE:
            changed.pop(change.name, None)  # as in Kafka: deleting an unknown setting succeeds
        elif made is None and settings is TOPIC_SETTINGS and change.name in DEFAULT_ONLY_SETTINGS:
            changed[change.name] = change.value or ""  # validated with the topic's other settings
        elif made is None and settings is BROKER_SETTINGS and is_kafka_name(change.name):
            problems.append(f"{change.name}: has no effect in this broker and cannot be changed")
        elif made is None:
            problems.append(describe_unknown(change.name, settings))
        else:
            why = _apply_change(changed, made, change)
            if why is not None:
                problems.append(f"{change.name}: {why}")
    if problems:
        raise BadConfig("\n".join(problems))
    return changed


def _apply_change(changed: dict[str, str], made: Setting, change: ConfigChange) -> str | None:
    name, value = made.name, change.value
    if change.operation == AlterConfigOp.DELETE:
        changed.pop(name, None)
        return None
    if value is None:
        return "there is no value"
    if change.operation == AlterConfigOp.SET:
        changed[name] = value.strip()
        return None
    if change.operation not in (AlterConfigOp.APPEND, AlterConfigOp.SUBTRACT):
        return f"operation {change.operation} is unknown"
    if not isinstance(made.default, tuple):
        return f"{AlterConfigOp(change.operation).name} is for lists, this is {made.describe_allowed()}"
    listed = [part for part in changed.get(name, made.format(made.default) or "").split(",") if part]
    parts = [part.strip() for part in value.split(",") if part.strip()]
    if change.operation == AlterConfigOp.APPEND:
        listed += [part for part in parts if part not in listed]
    else:
        listed = [part for part in listed if part not in parts]
    changed[name] = ",".join(listed)
    return None


async def collect_alterations(
    rows: Iterable[tuple[int, str, Iterable[ConfigChange]]],
) -> list[ConfigAlteration]:
    """Collect the alterations from rows of type, name and changes, yielding to the event loop in between."""
    pacer, asked = LoopYielder(), list[ConfigAlteration]()
    for kind, name, changes in rows:
        await pacer.count_entry()
        listed = []
        for change in changes:
            listed.append(change)
            await pacer.count_entry()
        asked.append(ConfigAlteration(kind, name, tuple(listed)))
    return asked


async def alter_configs(
    broker: Broker, asked: Sequence[ConfigAlteration], *, replace: bool, validate_only: bool
) -> list[Reject | None]:
    """Change the settings of each resource; `replace` resets the settings that are not named (AlterConfigs).

    Returns: for each resource the reason of the refusal, or None if it succeeded.
    """
    times = Counter((each.resource_type, each.name) for each in asked)
    pacer, outcomes = LoopYielder(), list[Reject | None]()
    for each in asked:
        await pacer.count_entry()
        outcomes.append(
            REPEATED_RESOURCE
            if times[each.resource_type, each.name] > 1
            else await _alter_resource(broker, each, replace=replace, validate_only=validate_only)
        )
    return outcomes


async def _alter_resource(
    broker: Broker, asked: ConfigAlteration, *, replace: bool, validate_only: bool
) -> Reject | None:
    kind, name, changes = asked.resource_type, asked.name, asked.changes
    malformed = _find_malformed(kind, name, changes)
    if malformed is not None:
        return Reject(ErrorCode.INVALID_REQUEST, malformed)
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
                    ErrorCode.INVALID_REQUEST, f"settings of resource type {kind} cannot be altered here"
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
    broker: Broker, name: str, changes: Sequence[ConfigChange], replace: bool, validate_only: bool
) -> Reject | None:
    topic = broker.topics.find(name)
    if topic is None:
        return Reject(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")

    def change(current: Mapping[str, str]) -> Mapping[str, str]:
        return apply_changes({} if replace else current, changes, TOPIC_SETTINGS)

    if validate_only:
        return check_topic_configs(broker.config, name, change(topic.configs))
    return await broker.topic_controller.alter_configs(name, change)


async def _alter_broker(
    broker: Broker, name: str, changes: Sequence[ConfigChange], replace: bool, validate_only: bool
) -> Reject | None:
    if name not in ("", str(broker.config.node_id)):
        return Reject(ErrorCode.INVALID_REQUEST, f"broker {name!r} is not this one, {broker.config.node_id}")

    def change(current: Mapping[str, str]) -> Mapping[str, str]:
        configs = apply_changes({} if replace else current, changes, BROKER_SETTINGS)
        fixed = [n for n in configs if not BROKER_SETTINGS[n].dynamic]
        if fixed:
            raise BadConfig(f"not to be changed while running: {', '.join(fixed)}")
        return configs

    if validate_only:
        broker.check_dynamic_configs(name, change(broker.dynamic_configs.get(name, {})))
    else:
        await broker.alter_dynamic_configs(name, change)
    return None
