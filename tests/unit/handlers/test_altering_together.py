"""Settings that are altered at the same time: each change that was acknowledged is there afterwards."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tests.support.memory_broker import MemoryBroker, Turn, memory_broker, memory_disk, on_a_loop

from tallystick.broker.handlers.cluster.config_view import (
    ConfigResourceType,
    ConfigSource,
    describe_broker_settings,
    describe_new_topic_settings,
    describe_topic_settings,
)
from tallystick.broker.partitions.topics import TopicSpec, resolve_topic_config
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.ids import INT64_MAX
from tallystick.protocol.messages.cluster.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)

TOPIC = "orders"
DEFAULTS = {"log.cleaner.min.compaction.lag.ms": "120000", "log.retention.ms": "1000"}


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


async def alter_defaults(desk: MemoryBroker, *, check: bool = False) -> tuple[int, str]:
    """Give all topics a shorter retention, and a lag that is too long for `TOPIC`."""
    configs = tuple(
        AlterableConfig(name=name, config_operation=0, value=value) for name, value in DEFAULTS.items()
    )
    named = AlterConfigsResource(resource_type=ConfigResourceType.BROKER, resource_name="", configs=configs)
    answer = await desk.ask(IncrementalAlterConfigsRequest(resources=(named,), validate_only=check), 1)
    return answer.responses[0].error_code, answer.responses[0].error_message


@pytest.mark.parametrize("check", [True, False])
def test_a_default_that_a_topic_cannot_have_is_refused_and_changes_nothing(check: bool) -> None:
    async def scenario() -> None:
        disk = memory_disk()
        async with memory_broker(disk) as desk:
            await desk.make_topic(TOPIC)
            await alter(desk, ConfigResourceType.TOPIC, TOPIC, "max.compaction.lag.ms", "60000")
            before = desk.broker.config
            code, reason = await alter_defaults(desk, check=check)
            assert code == ErrorCode.INVALID_REQUEST
            assert f"topic '{TOPIC}' (max.compaction.lag.ms=60000)" in reason, reason
            assert not desk.broker.dynamic_configs
            assert not desk.broker.metadata_store.load_broker_configs()
            assert desk.broker.config is before
        async with memory_broker(disk) as desk:
            assert desk.broker.topics.find(TOPIC) is not None

    asyncio.run(scenario())


@on_a_loop
async def test_a_topic_is_not_given_what_a_default_under_way_contradicts() -> None:
    async with memory_broker() as desk:
        await desk.make_topic(TOPIC)
        run, others = desk.broker.worker.run, list[asyncio.Task[int]]()

        async def run_while_the_topic_changes(call: Callable[[], Any]) -> Any:
            if not others:
                own = alter(desk, ConfigResourceType.TOPIC, TOPIC, "max.compaction.lag.ms", "60000")
                others.append(asyncio.ensure_future(own))
                for _ in range(50):
                    await Turn()
            return await run(call)

        desk.broker.worker.run = run_while_the_topic_changes  # type: ignore[method-assign]
        name = "log.cleaner.min.compaction.lag.ms"
        assert await alter(desk, ConfigResourceType.BROKER, "", name, "120000") == ErrorCode.NONE
        assert await others[0] == ErrorCode.INVALID_CONFIG


@on_a_loop
async def test_defaults_that_no_new_topic_could_have_are_refused() -> None:
    async with memory_broker() as desk:
        name = "log.cleaner.max.compaction.lag.ms"
        assert await alter(desk, ConfigResourceType.BROKER, "", name, "60000") == ErrorCode.NONE
        code, reason = await alter_defaults(desk)
        assert code == ErrorCode.INVALID_REQUEST
        assert "without settings of its own" in reason


@pytest.mark.parametrize(
    ("own", "default", "expected"),
    [
        ({"max.compaction.lag.ms": "60000"}, {"min": "120000"}, (60_000, 60_000)),
        ({"min.compaction.lag.ms": "60000"}, {"max": "30000"}, (60_000, INT64_MAX)),
        ({}, {"min": "60000", "max": "30000"}, (60_000, INT64_MAX)),
    ],
)
def test_a_stored_default_that_contradicts_a_topic_does_not_keep_the_broker_from_starting(
    own: dict[str, str], default: dict[str, str], expected: tuple[int, int], caplog: pytest.LogCaptureFixture
) -> None:
    """As earlier versions left it: they stored the default before they looked at the topics."""
    stored = {f"log.cleaner.{name}.compaction.lag.ms": value for name, value in default.items()}

    async def scenario() -> None:
        disk = memory_disk()
        async with memory_broker(disk) as desk:
            await desk.broker.topic_controller.create(TopicSpec(TOPIC, 1, own))
            store = desk.broker.metadata_store
            await desk.broker.worker.run(lambda: store.set_broker_config("", stored))
        async with memory_broker(disk) as desk:
            (message,) = [
                each.getMessage()
                for each in caplog.records
                if each.name == "tallystick.broker.topics" and each.levelname == "ERROR"
            ]
            assert f"topic '{TOPIC}'" in message
            assert all(value in message for value in (*own.values(), *default.values()))
            topic = desk.broker.topics.find(TOPIC)
            assert topic is not None
            config = resolve_topic_config(desk.broker.config, topic)
            assert (config.min_compaction_lag_ms, config.max_compaction_lag_ms) == expected
            # Neither do other changes wait for that one to be mended.
            code = await alter(desk, ConfigResourceType.BROKER, "", "log.retention.ms", "1000")
            assert code == ErrorCode.NONE
            partition = desk.broker.topics.find_partition(TOPIC, 0)
            assert partition is not None
            assert partition.log.config.retention_ms == 1000

    asyncio.run(scenario())


@on_a_loop
async def test_settings_without_effect_are_stored_shown_and_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk, names = memory_disk(), ("num.io.threads", "sasl.kerberos.min.time.before.relogin")
    async with memory_broker(disk) as desk:
        node = str(desk.broker.config.node_id)
        for name in names:
            assert await alter(desk, ConfigResourceType.BROKER, node, name, "9") == ErrorCode.NONE
            assert f"accepted, but without effect in this broker: {name}" in caplog.messages
        for name, value in {"num.io.threads": "x", "queued.max.requests": "9", "ssl.provider": "x"}.items():
            code = await alter(desk, ConfigResourceType.BROKER, node, name, value)
            assert code == ErrorCode.INVALID_REQUEST, name
        assert desk.broker.dynamic_configs[node] == dict.fromkeys(names, "9")
    caplog.clear()
    async with memory_broker(disk) as desk:
        assert f"accepted, but without effect in this broker: {', '.join(names)}" in caplog.messages
        shown = {each.setting.name: each for each in describe_broker_settings(desk.broker)}
        described = shown["num.io.threads"]
        assert (described.value, described.source, described.is_read_only) == (
            "9",
            ConfigSource.BROKER,
            False,
        )
        assert [origin.value for origin in described.synonyms] == ["9", "8"]
        assert "background.threads" not in shown


@on_a_loop
async def test_a_throttle_of_replicas_is_taken_and_shown_as_the_tools_of_reassignment_set_it() -> None:
    async with memory_broker() as desk:
        await desk.make_topic(TOPIC)
        for side in ("leader", "follower"):
            name = f"{side}.replication.throttled.replicas"
            assert await alter(desk, ConfigResourceType.TOPIC, TOPIC, name, "0:1,1:1") == ErrorCode.NONE
        topic = desk.broker.topics.find(TOPIC)
        assert topic is not None
        shown = {each.setting.name: each.value for each in describe_topic_settings(desk.broker, topic)}
        assert shown["leader.replication.throttled.replicas"] == "0:1,1:1"
        assert await alter(desk, ConfigResourceType.TOPIC, TOPIC, "remote.storage.enable", "true") != 0


@on_a_loop
async def test_a_default_in_milliseconds_has_no_synonym_in_hours() -> None:
    """log.retention.hours = 604800000 would be a time that nobody has set."""
    async with memory_broker() as desk:
        shown = {each.setting.name: each for each in describe_new_topic_settings(desk.broker, {})}
        (default,) = shown["retention.ms"].synonyms
        assert (default.name, default.value) == ("retention.ms", "604800000")
        (default,) = shown["retention.bytes"].synonyms
        assert (default.name, default.value) == ("log.retention.bytes", "-1")
