"""The broker's own topics: compaction alone takes records from them, nothing keeps them from being made."""

import pytest
from tests.support.leading import leader
from tests.support.memory_broker import MemoryBroker, loaded, memory_broker, memory_disk, on_a_loop

from tallystick.broker.handlers.cluster.config_view import ConfigResourceType
from tallystick.broker.metadata.store import Topic
from tallystick.broker.metrics.broker_metrics import read_gauges
from tallystick.broker.partitions.topics import (
    CONSUMER_OFFSETS_TOPIC,
    INTERNAL_TOPICS,
    TRANSACTION_STATE_TOPIC,
    TopicSpec,
)
from tallystick.broker.serve import make_gauge_sources
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.metrics.families.broker import HANGING_AT_START
from tallystick.protocol.messages.cluster.alter_configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
)
from tallystick.protocol.messages.cluster.incremental_alter_configs import (
    AlterableConfig as IncrementalConfig,
)
from tallystick.protocol.messages.cluster.incremental_alter_configs import (
    AlterConfigsResource as IncrementalResource,
)
from tallystick.protocol.messages.cluster.incremental_alter_configs import IncrementalAlterConfigsRequest
from tallystick.protocol.messages.data.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from tallystick.protocol.messages.topics.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from tallystick.protocol.messages.topics.create_topics import CreatableTopic, CreateTopicsRequest
from tallystick.protocol.messages.topics.delete_topics import DeleteTopicsRequest
from tallystick.protocol.messages.topics.metadata import MetadataRequest, MetadataRequestTopic
from tallystick.protocol.primitives import NIL
from tallystick.storage.log_dir import make_random_id

SET, DELETE, APPEND = 0, 1, 2
both = pytest.mark.parametrize("name", sorted(INTERNAL_TOPICS))


async def make_both(desk: MemoryBroker) -> None:
    assert await desk.broker.transactions.ensure_topic() is None
    assert await desk.broker.groups.ensure_topic() is None


async def incremental(desk: MemoryBroker, topic: str, name: str, operation: int, value: str | None) -> int:
    config = IncrementalConfig(name=name, config_operation=operation, value=value)
    resource = IncrementalResource(
        resource_type=ConfigResourceType.TOPIC, resource_name=topic, configs=(config,)
    )
    answers = set()
    for only_asked in (True, False):
        request = IncrementalAlterConfigsRequest(resources=(resource,), validate_only=only_asked)
        answers.add((await desk.ask(request, 1)).responses[0].error_code)
    (code,) = answers
    return int(code)


async def replaced(desk: MemoryBroker, topic: str, **configs: str) -> int:
    named = tuple(AlterableConfig(name=n.replace("_", "."), value=v) for n, v in configs.items())
    resource = AlterConfigsResource(
        resource_type=ConfigResourceType.TOPIC, resource_name=topic, configs=named
    )
    answer = await desk.ask(AlterConfigsRequest(resources=(resource,), validate_only=False), 2)
    return int(answer.responses[0].error_code)


@both
def test_no_setting_takes_records_away(name: str) -> None:
    """[TXN-15]"""

    @on_a_loop
    async def run() -> None:
        async with memory_broker() as desk:
            await make_both(desk)
            topic = desk.broker.topics.find(name)
            assert topic is not None
            before = dict(topic.configs)
            for setting, operation, value in (
                ("cleanup.policy", SET, "delete"),
                ("cleanup.policy", APPEND, "delete"),
                ("cleanup.policy", DELETE, None),
                ("retention.ms", SET, "100"),
                ("retention.bytes", SET, "0"),
            ):
                assert await incremental(desk, name, setting, operation, value) == ErrorCode.INVALID_CONFIG
            assert await replaced(desk, name, retention_ms="100", cleanup_policy="compact") == 40
            assert await replaced(desk, name, segment_ms="100000") == 40, "it would have the default policy"
            topic = desk.broker.topics.find(name)
            assert topic is not None
            assert topic.configs == before
            assert await incremental(desk, name, "segment.ms", SET, "100000") == 0
            assert await incremental(desk, name, "retention.ms", SET, "-1") == 0
            assert await replaced(desk, name, segment_ms="100000", cleanup_policy="compact") == 0

    run()


@both
def test_a_client_neither_makes_nor_changes_it(name: str) -> None:
    """[TXN-15]"""

    @on_a_loop
    async def run() -> None:
        async with memory_broker() as desk:
            for only_asked in (True, False):
                wanted = CreatableTopic(
                    name=name, num_partitions=1, replication_factor=1, assignments=(), configs=()
                )
                made = await desk.ask(
                    CreateTopicsRequest(topics=(wanted,), timeout_ms=0, validate_only=only_asked), 5
                )
                assert made.topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
            assert desk.broker.topics.find(name) is None
            await make_both(desk)
            count = len(desk.broker.topics.list_partitions_of(name))
            grown = CreatePartitionsTopic(name=name, count=count + 1, assignments=None)
            answer = await desk.ask(
                CreatePartitionsRequest(topics=(grown,), timeout_ms=0, validate_only=False), 3
            )
            assert answer.results[0].error_code == ErrorCode.INVALID_REQUEST
            gone = await desk.ask(DeleteTopicsRequest(topic_names=(name,), timeout_ms=0), 5)
            assert gone.responses[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
            trimmed = DeleteRecordsTopic(
                name=name, partitions=(DeleteRecordsPartition(partition_index=0, offset=-1),)
            )
            cut = await desk.ask(DeleteRecordsRequest(topics=(trimmed,), timeout_ms=0), 2)
            assert cut.topics[0].partitions[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
            assert len(desk.broker.topics.list_partitions_of(name)) == count

    run()


@on_a_loop
async def test_settings_of_an_earlier_version_do_no_harm(caplog: pytest.LogCaptureFixture) -> None:
    """[TXN-15] A prepared transaction outlives a retention that was set before the upgrade."""
    disk = memory_disk()
    async with leader(disk) as made:
        await made.write(await made.identity())
        stored = {"cleanup.policy": "delete", "retention.ms": "100", "segment.ms": "100"}
        store = made.broker.metadata_store
        await made.broker.worker.run(lambda: store.set_topic_config(TRANSACTION_STATE_TOPIC, stored))
    for _ in range(2):
        async with memory_broker(disk) as desk:
            await loaded(desk)
            assert "settings of __transaction_state that would delete its records are ignored" in caplog.text
            topic = desk.broker.topics.find(TRANSACTION_STATE_TOPIC)
            assert topic is not None
            assert topic.configs == {"cleanup.policy": "compact", "segment.ms": "100"}
            desk.clock.advance(1_000_000)
            for partition in desk.broker.topics.list_partitions_of(TRANSACTION_STATE_TOPIC):
                assert desk.broker.data_directory._log_cleaner.apply_retention(partition.topic_partition) == 0
            entries = desk.broker.transactions.list_entries()
            assert isinstance(entries, tuple)
            assert [entry.transactional_id for entry in entries] == ["pay-7"]
        caplog.clear()


@on_a_loop
async def test_a_broker_wide_policy_does_no_harm() -> None:
    async with memory_broker(log_cleanup_policy="delete", log_retention_ms="100") as desk:
        await make_both(desk)
        for name in INTERNAL_TOPICS:
            for partition in desk.broker.topics.list_partitions_of(name):
                assert partition.log.config.cleanup_policy == {"compact"}


@pytest.mark.parametrize("has_log", [True, False])
def test_what_the_transaction_log_has_lost_is_reported_after_a_clean_stop(
    has_log: bool, caplog: pytest.LogCaptureFixture
) -> None:
    @on_a_loop
    async def run() -> None:
        disk = memory_disk()
        async with leader(disk) as made:
            await made.write(await made.identity())
            for partition in made.broker.topics.list_partitions_of(TRANSACTION_STATE_TOPIC):
                partition.delete_records_before(partition.log.reader.high_watermark)
            topic = made.broker.topics.find(TRANSACTION_STATE_TOPIC)
            assert topic is not None
            if not has_log:
                store = made.broker.metadata_store
                await made.broker.worker.run(lambda: store.delete_topics([topic]))
        async with memory_broker(disk) as desk:
            await loaded(desk)
            assert "hanging transaction, which no coordinator will end: orders-0 from offset 0" in caplog.text
            readings = [
                reading for reading in read_gauges(make_gauge_sources(desk.broker)) if reading is not None
            ]
            assert (HANGING_AT_START, [((), 1)]) in readings

    run()


@on_a_loop
async def test_after_a_clean_stop_what_is_well_is_not_reported(caplog: pytest.LogCaptureFixture) -> None:
    disk = memory_disk()
    async with leader(disk) as made:
        await made.write(await made.identity())
    async with memory_broker(disk) as desk:
        await loaded(desk)
        assert desk.broker.startup_comparison is not None
        assert desk.broker.startup_comparison.hanging_transactions == ()
    assert "hanging" not in caplog.text


# ---- room for them


@on_a_loop
async def test_groups_and_transactions_have_room_where_clients_took_all_of_it() -> None:
    """One Metadata request that names many topics is enough."""
    async with memory_broker(max_partitions="5") as desk:
        wanted = tuple(MetadataRequestTopic(topic_id=NIL, name=f"t{n}") for n in range(20))
        await desk.ask(MetadataRequest(topics=wanted, allow_auto_topic_creation=True), 12)
        assert desk.broker.topics.partition_count == 5
        await make_both(desk)
        for name in INTERNAL_TOPICS:
            assert len(desk.broker.topics.list_partitions_of(name)) == 2
        refused = await desk.broker.topic_controller.create(TopicSpec("more", 1))
        assert isinstance(refused, Reject)
        assert refused.code is ErrorCode.INVALID_PARTITIONS
        assert await desk.broker.topic_controller.delete("t0") is None
        assert isinstance(await desk.broker.topic_controller.create(TopicSpec("more", 1)), Topic), (
            "they do not count"
        )


@on_a_loop
async def test_a_name_that_differs_in_a_dot_does_not_keep_it_from_being_made() -> None:
    """Kafka's rule about '.' and '_' is for names of clients. An earlier version let them take this one."""
    disk = memory_disk()
    async with memory_broker(disk) as desk:
        refused = await desk.broker.topic_controller.create(TopicSpec("__consumer.offsets", 1))
        assert isinstance(refused, Reject)
        assert refused.code is ErrorCode.INVALID_TOPIC_EXCEPTION
        store, named_alike = desk.broker.metadata_store, Topic("__consumer.offsets", make_random_id(), 1)
        await desk.broker.worker.run(lambda: store.create_topics([named_alike]))
    async with memory_broker(disk) as desk:
        await make_both(desk)
        assert desk.broker.topics.find(CONSUMER_OFFSETS_TOPIC) is not None
        assert await desk.broker.topic_controller.delete("__consumer.offsets") is None
        refused = await desk.broker.topic_controller.create(TopicSpec("__consumer.offsets", 1))
        assert isinstance(refused, Reject)
