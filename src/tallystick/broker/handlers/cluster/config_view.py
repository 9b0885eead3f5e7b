"""Settings as DescribeConfigs reports them.

The value in force comes from the first of: the topic, this broker's dynamic settings, those of all brokers,
the file or command line, the default. DescribeConfigs lists the remaining ones as synonyms (KIP-226).
"""

from collections.abc import Iterator, Mapping
from enum import IntEnum
from typing import Final

from tallystick.broker.authorizer.authorizer import (
    CLUSTER_RESOURCE,
    Operation,
    ResourceType,
    group_resource,
    topic_resource,
)
from tallystick.broker.config.broker_config import BROKER_SETTINGS, TOPIC_SETTINGS, BrokerConfig
from tallystick.broker.config.dynamic_config import find_setting, list_undeclared, split_listener_name
from tallystick.broker.handlers.ports import ConfigViewPort, HasAuthorizer
from tallystick.broker.metadata.store import Topic
from tallystick.broker.server.request_context import RequestContext
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.settings import Setting, SettingType
from tallystick.kernel.value import Value


class ConfigResourceType(IntEnum):
    """Kind of resource that has settings, with the wire's numbers."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


_NOT_AUTHORIZED: Final = {
    ResourceType.TOPIC: Reject(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "Topic authorization failed."),
    ResourceType.GROUP: Reject(ErrorCode.GROUP_AUTHORIZATION_FAILED, "Group authorization failed."),
}
_CLUSTER_NOT_AUTHORIZED: Final = Reject(
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed."
)


def check_config_right(
    broker: HasAuthorizer, context: RequestContext, operation: Operation, kind: int, name: str
) -> Reject | None:
    """Return why the sender may not describe or alter the settings of a resource, or None.

    Those of brokers, loggers and client metrics are the cluster's.

    Source: ConfigHelper.handleDescribeConfigsRequest, ControllerApis.authorizeAlterResource.
    """
    if kind == ConfigResourceType.TOPIC:
        resource = topic_resource(name)
    elif kind == ConfigResourceType.GROUP:
        resource = group_resource(name)
    else:
        resource = CLUSTER_RESOURCE
        if kind == ConfigResourceType.BROKER_LOGGER and operation is Operation.ALTER_CONFIGS:
            operation = Operation.CLUSTER_ACTION
    if broker.authorizer.allows(context, operation, resource):
        return None
    return _NOT_AUTHORIZED.get(resource.resource_type, _CLUSTER_NOT_AUTHORIZED)


class ConfigSource(IntEnum):
    """Origin of a value, with the wire's numbers."""

    TOPIC = 1
    BROKER = 2
    ALL_BROKERS = 3
    STATIC = 4
    DEFAULT = 5


class ConfigSynonym(Value):
    """One origin of a setting, with its name and value there."""

    name: str
    value: str | None
    source: ConfigSource


class DescribedSetting(Value):
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


def describe_topic_settings(broker: ConfigViewPort, topic: Topic) -> Iterator[DescribedSetting]:
    """Yield every setting of a topic."""
    for spec in TOPIC_SETTINGS.values():
        own = topic.configs.get(spec.name)
        nearest = () if own is None else (ConfigSynonym(spec.name, own, ConfigSource.TOPIC),)
        yield DescribedSetting(spec, (*nearest, *_iter_fallbacks(broker, spec)), is_read_only=False)


def describe_new_topic_settings(
    broker: ConfigViewPort, configs: Mapping[str, str]
) -> Iterator[DescribedSetting]:
    """Yield every setting of a topic created with `configs`."""
    for spec in TOPIC_SETTINGS.values():
        own = configs.get(spec.name)
        nearest = () if own is None else (ConfigSynonym(spec.name, own, ConfigSource.TOPIC),)
        yield DescribedSetting(spec, (*nearest, *_iter_fallbacks(broker, spec)), is_read_only=False)


def describe_broker_settings(broker: ConfigViewPort) -> Iterator[DescribedSetting]:
    """Yield every setting of the broker."""
    for spec in BROKER_SETTINGS.values():
        yield DescribedSetting(
            spec, tuple(_iter_broker_synonyms(broker, spec)), is_read_only=not spec.dynamic
        )
    # Those of one listener, with the plain setting as a synonym, and those without effect once they are set.
    for name in list_undeclared((*broker.dynamic_configs.values(), broker.static_config.originals)):
        own = find_setting(name)
        if own is not None:
            plain = BROKER_SETTINGS.get(split_listener_name(name)[1])
            synonyms = list(_iter_broker_synonyms(broker, own, has_default=plain is None))
            synonyms += _iter_broker_synonyms(broker, plain) if plain is not None else ()
            yield DescribedSetting(own, tuple(synonyms), is_read_only=not own.dynamic)


def describe_default_settings(broker: ConfigViewPort) -> Iterator[DescribedSetting]:
    """Yield the dynamic settings of all brokers; Kafka returns no more for the empty broker name."""
    for name, value in broker.dynamic_configs.get("", {}).items():
        spec = find_setting(name)
        if spec is not None:
            yield DescribedSetting(
                spec, (ConfigSynonym(name, value, ConfigSource.ALL_BROKERS),), is_read_only=False
            )


def _iter_broker_synonyms(
    broker: ConfigViewPort, spec: Setting, *, has_default: bool = True
) -> Iterator[ConfigSynonym]:
    dynamic = broker.dynamic_configs
    layers = (
        (ConfigSource.BROKER, dynamic.get(str(broker.config.node_id), {})),
        (ConfigSource.ALL_BROKERS, dynamic.get("", {})),
        (ConfigSource.STATIC, broker.static_config.originals),
    )
    for source, layer in layers:
        if spec.name in layer:
            # As in Kafka, a password is described without its text.
            text = None if spec.kind is SettingType.PASSWORD else layer[spec.name]
            yield ConfigSynonym(spec.name, text, source)
    if has_default:
        yield ConfigSynonym(spec.name, spec.format(spec.default), ConfigSource.DEFAULT)


def _iter_fallbacks(broker: ConfigViewPort, spec: Setting) -> Iterator[ConfigSynonym]:
    """Yield a topic setting's synonyms, in the topic's own unit, and last the default."""
    for synonym in spec.synonyms:
        for origin in _iter_broker_synonyms(broker, BROKER_SETTINGS[synonym.name]):
            if origin.source is not ConfigSource.DEFAULT and origin.value:
                value = BrokerConfig.scale_text(origin.value, synonym.scale)
                yield ConfigSynonym(synonym.name, value, origin.source)
    # A synonym in hours or minutes has no text for a default in milliseconds.
    last = spec.synonyms[-1] if spec.synonyms else None
    name = spec.name if last is None or last.scale != 1 else last.name
    yield ConfigSynonym(name, spec.format(spec.default), ConfigSource.DEFAULT)
