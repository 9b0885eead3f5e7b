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
from tallystick.broker.config.kafka_names import is_kafkas
from tallystick.broker.config.topic_config import ONLY_DEFAULTS
from tallystick.broker.handlers.listing import Pacer
from tallystick.broker.metadata.store import Topic
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.settings import BadConfig, Setting, unknown
from tallystick.kernel.value import frozen


class ResourceType(IntEnum):
    """Kind of resource that has settings, with the wire's numbers."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class Source(IntEnum):
    """Origin of a value, with the wire's numbers."""

    TOPIC = 1
    BROKER = 2
    ALL_BROKERS = 3
    STATIC = 4
    DEFAULT = 5


class Operation(IntEnum):
    """Operation of IncrementalAlterConfigs on one setting."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@frozen
class Origin:
    """One origin of a setting, with its name and value there."""

    name: str
    value: str | None
    source: Source


@frozen
class Shown:
    """A setting with all its origins, in order of precedence."""

    setting: Setting
    origins: tuple[Origin, ...]
    read_only: bool

    @property
    def value(self) -> str | None:
        return self.origins[0].value

    @property
    def source(self) -> Source:
        return self.origins[0].source


@frozen
class Change:
    """One requested change of a setting."""

    name: str
    operation: int
    value: str | None


@frozen
class Alteration:
    """Changes requested for one resource."""

    kind: int
    name: str
    changes: tuple[Change, ...]


# Kafka's group settings are for the groups of KIP-848, KIP-932 and KIP-1071, which this broker does not have.
GROUP_SETTINGS: Final[Mapping[str, Setting]] = {}
# Limit of problems reported for one resource; suggesting a similar name takes a millisecond each.
PROBLEMS_TOLD_MAX: Final = 10
ASKED_TWICE: Final = Reject(ErrorCode.INVALID_REQUEST, "a resource is asked for twice")


def topic_settings(broker: Broker, topic: Topic) -> Iterator[Shown]:
    """Yield every setting of a topic."""
    for made in TOPIC_SETTINGS.values():
        own = topic.configs.get(made.name)
        nearest = () if own is None else (Origin(made.name, own, Source.TOPIC),)
        yield Shown(made, (*nearest, *_fallbacks(broker, made)), read_only=False)


def new_topic_settings(broker: Broker, configs: Mapping[str, str]) -> Iterator[Shown]:
    """Yield every setting of a topic created with `configs`."""
    for made in TOPIC_SETTINGS.values():
        own = configs.get(made.name)
        nearest = () if own is None else (Origin(made.name, own, Source.TOPIC),)
        yield Shown(made, (*nearest, *_fallbacks(broker, made)), read_only=False)


def broker_settings(broker: Broker) -> Iterator[Shown]:
    """Yield every setting of the broker."""
    for made in BROKER_SETTINGS.values():
        yield Shown(made, tuple(_broker_origins(broker, made)), read_only=not made.dynamic)


def default_broker_settings(broker: Broker) -> Iterator[Shown]:
    """Yield the dynamic settings of all brokers; Kafka returns no more for the empty broker name."""
    for name, value in broker.dynamic_configs.get("", {}).items():
        yield Shown(BROKER_SETTINGS[name], (Origin(name, value, Source.ALL_BROKERS),), read_only=False)


def _broker_origins(broker: Broker, made: Setting) -> Iterator[Origin]:
    dynamic = broker.dynamic_configs
    layers = (
        (Source.BROKER, dynamic.get(str(broker.config.node_id), {})),
        (Source.ALL_BROKERS, dynamic.get("", {})),
        (Source.STATIC, broker.static_config.given),
    )
    for source, layer in layers:
        if made.name in layer:
            yield Origin(made.name, layer[made.name], source)
    yield Origin(made.name, made.format(made.default), Source.DEFAULT)


def _fallbacks(broker: Broker, made: Setting) -> Iterator[Origin]:
    """Yield a topic setting's synonyms, in the topic's own unit, and last the default."""
    for synonym in made.synonyms:
        for origin in _broker_origins(broker, BROKER_SETTINGS[synonym.name]):
            if origin.source is not Source.DEFAULT and origin.value:
                value = BrokerConfig.scaled(origin.value, synonym.scale)
                yield Origin(synonym.name, value, origin.source)
    last = made.synonyms[-1].name if made.synonyms else made.name
    yield Origin(last, made.format(made.default), Source.DEFAULT)


def apply_changes(
    current: Mapping[str, str], changes: Iterable[Change], settings: Mapping[str, Setting]
) -> dict[str, str]:
    """Return `current` after the changes of IncrementalAlterConfigs.

    Raises: BadConfig with all problems.

    Source: KIP-339; ConfigurationControlManager.
    """
    changed, problems = dict(current), list[str]()
    for change in changes:
        if len(problems) == PROBLEMS_TOLD_MAX:
            problems.append("and perhaps more")
            break
        made = settings.get(change.name)
        if made is None and change.operation == Operation.DELETE:
            changed.pop(change.name, None)  # as in Kafka: deleting an unknown setting succeeds
        elif made is None and settings is TOPIC_SETTINGS and change.name in ONLY_DEFAULTS:
            changed[change.name] = change.value or ""  # validated with the topic's other settings
        elif made is None and settings is BROKER_SETTINGS and is_kafkas(change.name):
            problems.append(f"{change.name}: has no effect in this broker and cannot be changed")
        elif made is None:
            problems.append(unknown(change.name, settings))
        else:
            why = _apply_change(changed, made, change)
            if why is not None:
                problems.append(f"{change.name}: {why}")
    if problems:
        raise BadConfig("\n".join(problems))
    return changed


def _apply_change(changed: dict[str, str], made: Setting, change: Change) -> str | None:
    name, value = made.name, change.value
    if change.operation == Operation.DELETE:
        changed.pop(name, None)
        return None
    if value is None:
        return "there is no value"
    if change.operation == Operation.SET:
        changed[name] = value.strip()
        return None
    if change.operation not in (Operation.APPEND, Operation.SUBTRACT):
        return f"operation {change.operation} is unknown"
    if not isinstance(made.default, tuple):
        return f"{Operation(change.operation).name} is for lists, this is {made.allowed()}"
    listed = [part for part in changed.get(name, made.format(made.default) or "").split(",") if part]
    parts = [part.strip() for part in value.split(",") if part.strip()]
    if change.operation == Operation.APPEND:
        listed += [part for part in parts if part not in listed]
    else:
        listed = [part for part in listed if part not in parts]
    changed[name] = ",".join(listed)
    return None


async def alterations(rows: Iterable[tuple[int, str, Iterable[Change]]]) -> list[Alteration]:
    """Collect the alterations from rows of type, name and changes, yielding to the event loop in between."""
    pacer, asked = Pacer(), list[Alteration]()
    for kind, name, changes in rows:
        await pacer.step()
        listed = []
        for change in changes:
            listed.append(change)
            await pacer.step()
        asked.append(Alteration(kind, name, tuple(listed)))
    return asked


async def alter(
    broker: Broker, asked: Sequence[Alteration], *, replace: bool, validate_only: bool
) -> list[Reject | None]:
    """Change the settings of each resource; `replace` resets the settings that are not named (AlterConfigs).

    Returns: for each resource the reason of the refusal, or None if it succeeded.
    """
    times = Counter((each.kind, each.name) for each in asked)
    pacer, outcomes = Pacer(), list[Reject | None]()
    for each in asked:
        await pacer.step()
        outcomes.append(
            ASKED_TWICE
            if times[each.kind, each.name] > 1
            else await _alter(broker, each, replace=replace, validate_only=validate_only)
        )
    return outcomes


async def _alter(broker: Broker, asked: Alteration, *, replace: bool, validate_only: bool) -> Reject | None:
    kind, name, changes = asked.kind, asked.name, asked.changes
    malformed = _malformed(kind, name, changes)
    if malformed is not None:
        return Reject(ErrorCode.INVALID_REQUEST, malformed)
    try:
        match kind:
            case ResourceType.TOPIC:
                return await _alter_topic(broker, name, changes, replace, validate_only)
            case ResourceType.BROKER:
                return await _alter_broker(broker, name, changes, replace, validate_only)
            case ResourceType.GROUP:
                # Groups of the classic protocol have no settings, so only a reset succeeds.
                apply_changes({}, changes, GROUP_SETTINGS)
                return None
            case _:
                return Reject(
                    ErrorCode.INVALID_REQUEST, f"settings of resource type {kind} cannot be altered here"
                )
    except BadConfig as exc:
        # In Kafka the controller validates settings of topics and groups, a broker its own; the codes differ.
        code = ErrorCode.INVALID_REQUEST if kind == ResourceType.BROKER else ErrorCode.INVALID_CONFIG
        return Reject(code, str(exc))


def _malformed(kind: int, name: str, changes: Sequence[Change]) -> str | None:
    """Return the error in the form of a request, or None.

    Source: ConfigAdminManager.preprocess; ControllerApis.
    """
    times = Counter(change.name for change in changes)
    if kind == ResourceType.TOPIC and not name:
        return "settings of all topics are the broker's"
    if kind == ResourceType.GROUP and not name:
        return "there are no settings for all groups; name a group"
    if len(times) < len(changes):
        return f"settings are given twice: {', '.join(sorted(n for n, count in times.items() if count > 1))}"
    empty = [c.name for c in changes if c.value is None and c.operation != Operation.DELETE]
    return f"there is no value for {', '.join(empty)}" if empty else None


async def _alter_topic(
    broker: Broker, name: str, changes: Sequence[Change], replace: bool, validate_only: bool
) -> Reject | None:
    topic = broker.topics.find(name)
    if topic is None:
        return Reject(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")

    def change(current: Mapping[str, str]) -> Mapping[str, str]:
        return apply_changes({} if replace else current, changes, TOPIC_SETTINGS)

    if validate_only:
        return broker.topics.check_configs(name, change(topic.configs))
    return await broker.topics.alter(name, change)


async def _alter_broker(
    broker: Broker, name: str, changes: Sequence[Change], replace: bool, validate_only: bool
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
        broker.check_dynamic(name, change(broker.dynamic_configs.get(name, {})))
    else:
        await broker.alter(name, change)
    return None
