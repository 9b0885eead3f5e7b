"""Settings that are altered at the same time: each change that was acknowledged is there afterwards."""

import asyncio

from tests.support.memory_broker import MemoryBroker, memory_broker, memory_disk, on_a_loop

from tallystick.broker.handlers.cluster.config_view import ConfigResourceType
from tallystick.kernel.codes import ErrorCode
from tallystick.protocol.messages.cluster.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)

TOPIC = "orders"


async def alter(desk: MemoryBroker, kind: ConfigResourceType, resource: str, name: str, value: str) -> int:
    config = AlterableConfig(name=name, config_operation=0, value=value)
    named = AlterConfigsResource(resource_type=kind, resource_name=resource, configs=(config,))
    request = IncrementalAlterConfigsRequest(resources=(named,), validate_only=False)
    answer = await desk.ask(request, 1)
    return int(answer.responses[0].error_code)


@on_a_loop
async def test_changes_of_one_topic_are_all_kept() -> None:
    disk = memory_disk()
    changes = {
        "retention.ms": "1000",
        "retention.bytes": "2000",
        "segment.ms": "3000",
        "max.message.bytes": "4000",
    }
    async with memory_broker(disk) as desk:
        await desk.make_topic(TOPIC)
        codes = await asyncio.gather(
            *(alter(desk, ConfigResourceType.TOPIC, TOPIC, name, value) for name, value in changes.items())
        )
        assert set(codes) == {ErrorCode.NONE}
        topic = desk.broker.topics.find(TOPIC)
        assert topic is not None
        assert topic.configs == changes
    async with memory_broker(disk) as desk:
        topic = desk.broker.topics.find(TOPIC)
        assert topic is not None
        assert topic.configs == changes


@on_a_loop
async def test_changes_of_one_broker_are_all_kept() -> None:
    async with memory_broker() as desk:
        node = str(desk.broker.config.node_id)
        codes = await asyncio.gather(
            alter(desk, ConfigResourceType.BROKER, node, "log.retention.ms", "1000"),
            alter(desk, ConfigResourceType.BROKER, node, "message.max.bytes", "4000"),
        )
        assert set(codes) == {ErrorCode.NONE}
        assert desk.broker.dynamic_configs[node] == {"log.retention.ms": "1000", "message.max.bytes": "4000"}
        assert (desk.broker.config.log_retention_ms, desk.broker.config.message_max_bytes) == (1000, 4000)


@on_a_loop
async def test_changes_of_this_broker_and_of_all_are_both_in_force() -> None:
    async with memory_broker() as desk:
        node = str(desk.broker.config.node_id)
        codes = await asyncio.gather(
            alter(desk, ConfigResourceType.BROKER, "", "log.retention.ms", "1000"),
            alter(desk, ConfigResourceType.BROKER, node, "message.max.bytes", "4000"),
        )
        assert set(codes) == {ErrorCode.NONE}
        assert (desk.broker.config.log_retention_ms, desk.broker.config.message_max_bytes) == (1000, 4000)


@on_a_loop
async def test_a_change_is_judged_by_what_is_there_when_its_turn_comes() -> None:
    """Alone each would be taken; together they break a rule, and one of them is refused."""
    async with memory_broker() as desk:
        await desk.make_topic(TOPIC)
        codes = await asyncio.gather(
            alter(desk, ConfigResourceType.TOPIC, TOPIC, "min.compaction.lag.ms", "2000"),
            alter(desk, ConfigResourceType.TOPIC, TOPIC, "max.compaction.lag.ms", "1000"),
        )
        assert sorted(codes) == [ErrorCode.NONE, ErrorCode.INVALID_CONFIG]
