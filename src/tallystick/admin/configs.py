"""Settings of topics, brokers and groups: describe them, and change single ones (KIP-133, KIP-339)."""

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Final

from tallystick.admin.admin_call import AdminCall, Answers
from tallystick.client.errors import ClientError, NotSupported, build_broker_error
from tallystick.kernel.value import Value
from tallystick.protocol.messages.cluster import describe_configs as dc
from tallystick.protocol.messages.cluster import incremental_alter_configs as ac


class ResourceType(IntEnum):
    """Kind of resource that has settings, with the wire's numbers."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigValueSource(IntEnum):
    """Origin of a value, with the wire's numbers."""

    UNKNOWN = 0
    TOPIC = 1
    BROKER = 2
    ALL_BROKERS = 3
    SERVER_PROPERTIES = 4
    DEFAULT = 5
    BROKER_LOGGER = 6
    CLIENT_METRICS = 7
    GROUP = 8


class ConfigResource(Value):
    """A topic, a broker (its id as text; "" for the default of all) or another resource with settings."""

    type: ResourceType
    name: str

    def __str__(self) -> str:
        return f"{self.type.name.lower()} {self.name!r}"


class ConfigValue(Value, kw_only=True):
    """A setting in force. `value` is None for a secret and for a setting without a value."""

    name: str
    value: str | None
    source: ConfigValueSource
    read_only: bool
    sensitive: bool

    @property
    def is_default(self) -> bool:
        return self.source is ConfigValueSource.DEFAULT


_OP_SET: Final = 0
_OP_DELETE: Final = 1
_BROKER_TYPES: Final = (ResourceType.BROKER, ResourceType.BROKER_LOGGER)


async def describe(
    call: AdminCall, resources: Iterable[ConfigResource], names: Sequence[str] | None
) -> Answers[ConfigResource, Mapping[str, ConfigValue]]:
    async def ask(
        some: Sequence[ConfigResource],
    ) -> dict[ConfigResource, Mapping[str, ConfigValue] | ClientError]:
        values: dict[ConfigResource, Mapping[str, ConfigValue] | ClientError] = {}
        for node, group in (await _group_by_broker(call, some)).items():
            request = dc.DescribeConfigsRequest(
                resources=tuple(
                    dc.DescribeConfigsResource(
                        resource_type=each.type,
                        resource_name=each.name,
                        configuration_keys=None if names is None else tuple(names),
                    )
                    for each in group
                )
            )
            answer = await call.cluster.send(node, request, dc.DescribeConfigsResponse)
            for result in answer.results:
                at = ConfigResource(ResourceType(result.resource_type), result.resource_name)
                if result.error_code:
                    values[at] = build_broker_error(
                        "DescribeConfigs", at, result.error_code, result.error_message
                    )
                else:
                    values[at] = {each.name: _to_config_value(each) for each in result.configs}
        return values

    return await call.send_with_retries("DescribeConfigs", resources, ask)


async def alter(
    call: AdminCall, changes: Mapping[ConfigResource, Mapping[str, str | None]], *, validate_only: bool
) -> Answers[ConfigResource, None]:
    async def ask(some: Sequence[ConfigResource]) -> dict[ConfigResource, ClientError | None]:
        errors: dict[ConfigResource, ClientError | None] = {}
        for node, group in (await _group_by_broker(call, some)).items():
            request = ac.IncrementalAlterConfigsRequest(
                resources=tuple(_to_alter_resource(each, changes[each]) for each in group),
                validate_only=validate_only,
            )
            answer = await call.cluster.send(node, request, ac.IncrementalAlterConfigsResponse)
            for result in answer.responses:
                at = ConfigResource(ResourceType(result.resource_type), result.resource_name)
                code, text = result.error_code, result.error_message
                errors[at] = build_broker_error("IncrementalAlterConfigs", at, code, text) if code else None
        return errors

    return await call.send_with_retries("IncrementalAlterConfigs", changes, ask)


def _to_alter_resource(at: ConfigResource, changes: Mapping[str, str | None]) -> ac.AlterConfigsResource:
    return ac.AlterConfigsResource(
        resource_type=at.type,
        resource_name=at.name,
        configs=tuple(
            ac.AlterableConfig(
                name=name, config_operation=_OP_DELETE if value is None else _OP_SET, value=value
            )
            for name, value in changes.items()
        ),
    )


async def _group_by_broker(
    call: AdminCall, resources: Sequence[ConfigResource]
) -> dict[int, list[ConfigResource]]:
    """Group resources by broker: its own settings go to that broker, all others to the controller."""
    nodes = call.cluster.image.nodes
    broker_ids = {
        int(each.name) for each in resources if each.type in _BROKER_TYPES and each.name.isdecimal()
    }
    if not nodes or not broker_ids <= nodes.keys():  # a broker that was down may be listed again
        nodes = (await call.cluster.refresh()).nodes
    by_node: dict[int, list[ConfigResource]] = {}
    for each in resources:
        if each.type in _BROKER_TYPES and each.name:
            if not each.name.isdecimal() or int(each.name) not in nodes:
                raise NotSupported(str(each), f"the cluster lists {', '.join(map(str, sorted(nodes)))}")
            by_node.setdefault(int(each.name), []).append(each)
        else:
            by_node.setdefault(await call.find_controller(), []).append(each)
    return by_node


def _to_config_value(each: dc.DescribeConfigsResourceResult) -> ConfigValue:
    is_known_source = each.config_source in set(ConfigValueSource)
    return ConfigValue(
        name=each.name,
        value=each.value,
        source=ConfigValueSource(each.config_source) if is_known_source else ConfigValueSource.UNKNOWN,
        read_only=each.read_only,
        sensitive=each.is_sensitive,
    )
