"""A topic's deletion that fails half-way: its name stays taken until it is finished, and it is, by itself."""

import errno
import sqlite3
from collections.abc import Callable

from tests.support.failing_calls import FailingCalls
from tests.support.memory_broker import MemoryBroker, memory_broker, memory_disk, on_a_loop

from tallystick.broker.metadata.store import MetadataStore, Topic
from tallystick.broker.metrics.broker_metrics import read_gauges
from tallystick.broker.partitions.data_directory import StorageEnvironment
from tallystick.broker.partitions.topics import TopicSpec
from tallystick.broker.serve import make_gauge_sources
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import Offset
from tallystick.kernel.value import replace
from tallystick.metrics.families.broker import TOPICS_TO_DELETE
from tallystick.protocol.messages.topics.delete_topics import DeleteTopicsRequest
from tallystick.protocol.messages.topics.metadata import MetadataRequest, MetadataRequestTopic
from tallystick.protocol.primitives import NIL
from tallystick.protocol.records import BatchMeta, Record, decode_records, encode_batch, iter_headers
from tallystick.storage.log.log import AppendResult
from tallystick.storage.log_dir import make_random_id


def failing_disk() -> tuple[FailingCalls, StorageEnvironment]:
    calls = FailingCalls()
    return calls, memory_disk(calls)


def write(desk: MemoryBroker, topic: str, value: bytes, partition: int = 0) -> None:
    found = desk.broker.topics.find_partition(topic, partition)
    assert found is not None
    record = Record(offset=0, timestamp_ms=0, key=b"k", value=value, headers=())
    assert isinstance(found.append(encode_batch([record], BatchMeta())), AppendResult)


async def stored(desk: MemoryBroker, change: Callable[[MetadataStore], None]) -> None:
    """Change the metadata behind the broker's back, in the thread it is used from."""
    await desk.broker.worker.run(lambda: change(desk.broker.metadata_store))


def end_offsets(desk: MemoryBroker, topic: str) -> list[int]:
    return [each.log.log_end_offset for each in desk.broker.topics.list_partitions_of(topic)]


async def make(desk: MemoryBroker, name: str, partitions: int = 2) -> Topic | Reject:
    return await desk.broker.topic_controller.create(TopicSpec(name, partitions))


async def delete(desk: MemoryBroker, *names: str) -> list[int]:
    answer = await desk.ask(DeleteTopicsRequest(topic_names=names, timeout_ms=0), 5)
    return [each.error_code for each in answer.responses]


def checkpoints(number: int, name: str, path: str) -> bool:
    """The checkpoints, which are written when directories have been renamed."""
    return name == "create" and "checkpoint" in path


def second_rename(calls: FailingCalls) -> Callable[[int, str, str], bool]:
    def fails(number: int, name: str, path: str) -> bool:
        if name != "rename" or "orders" not in path:
            return False
        return sum(n == "rename" and "orders" in p for n, p in calls.calls) > 1

    return fails


@on_a_loop
async def test_records_of_a_topic_of_the_same_name_survive_a_failed_deletion() -> None:
    """What is acknowledged after the deletion is there after the next start; what was deleted is not."""
    calls, disk = failing_disk()
    async with memory_broker(disk) as desk:
        await make(desk, "orders")
        for partition in (0, 1):
            write(desk, "orders", b"old", partition)
        calls.count()
        calls.fail(errno.ENOSPC, second_rename(calls))
        await delete(desk, "orders")
        assert calls.failed
        refused = await make(desk, "orders")
        assert isinstance(refused, Reject)
        assert refused.code is ErrorCode.KAFKA_STORAGE_ERROR
        calls.heal()
        assert await delete(desk, "orders") == [ErrorCode.NONE]
        assert isinstance(await make(desk, "orders"), Topic)
        assert end_offsets(desk, "orders") == [0, 0]
        for partition in (0, 1):
            write(desk, "orders", b"new", partition)
    async with memory_broker(disk) as desk:
        assert end_offsets(desk, "orders") == [1, 1]
        for partition in (0, 1):
            assert value_at_start(desk, "orders", partition) == b"new"


def value_at_start(desk: MemoryBroker, topic: str, partition: int) -> bytes | None:
    found = desk.broker.topics.find_partition(topic, partition)
    assert found is not None
    read = found.log.reader.read(Offset(0), 1_000, upper=found.log.log_end_offset)
    assert not isinstance(read, Reject)
    return next(r.value for at, _ in iter_headers(read.data) for r in decode_records(read.data, at))


@on_a_loop
async def test_a_name_that_is_not_free_yet_is_refused_everywhere_and_metrics_say_so() -> None:
    """[MET-3] Auto-creation, CreateTopics, a second DeleteTopics; the topic itself is gone at once."""
    calls, disk = failing_disk()
    async with memory_broker(disk, auto_create_topics_enable="true") as desk:
        await make(desk, "orders")
        calls.fail(errno.EMFILE, checkpoints)
        assert await delete(desk, "orders") == [ErrorCode.KAFKA_STORAGE_ERROR]
        assert await delete(desk, "orders") == [ErrorCode.KAFKA_STORAGE_ERROR]
        assert await codes_of_metadata(desk, "orders") == [ErrorCode.KAFKA_STORAGE_ERROR]
        assert isinstance(await make(desk, "orders"), Reject)
        assert desk.broker.topics.find("orders") is None
        readings = [
            reading for reading in read_gauges(make_gauge_sources(desk.broker)) if reading is not None
        ]
        assert (TOPICS_TO_DELETE, [((), 1)]) in readings
        assert isinstance(await make(desk, "other"), Topic), "one topic is in the way of no other"
        assert desk.broker.failure is None, "a descriptor that is missing is no broken disk"
        calls.heal()
        assert await delete(desk, "orders") == [ErrorCode.NONE]
        assert await delete(desk, "orders") == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert await codes_of_metadata(desk, "orders") == [ErrorCode.NONE]


async def codes_of_metadata(desk: MemoryBroker, name: str) -> list[int]:
    wanted = MetadataRequestTopic(topic_id=NIL, name=name)
    answer = await desk.ask(MetadataRequest(topics=(wanted,), allow_auto_topic_creation=True), 12)
    return [topic.error_code for topic in answer.topics]


@on_a_loop
async def test_files_that_cannot_be_removed_keep_no_name() -> None:
    calls, disk = failing_disk()
    async with memory_broker(disk) as desk:
        await make(desk, "orders")
        calls.fail(errno.EIO, lambda number, name, path: name == "remove" and "-delete" in path)
        assert await delete(desk, "orders") == [ErrorCode.NONE]
        assert desk.broker.failure is None
        assert isinstance(await make(desk, "orders"), Topic)
        write(desk, "orders", b"new")
        assert desk.broker.data_directory.has_pending_removals
        calls.heal()
        await desk.broker.data_directory.remove_deleted_logs()
        assert not [name for name in calls.listdir("data") if name.endswith("-delete")]
        assert end_offsets(desk, "orders") == [1, 0]


@on_a_loop
async def test_partitions_of_a_growth_that_failed_are_deleted_with_their_topic() -> None:
    """[MET-3] They are on the disk, and the topic was never said to have them."""
    calls, disk = failing_disk()
    async with memory_broker(disk) as desk:
        await make(desk, "orders")
        calls.fail(errno.ENOSPC, lambda number, name, path: name == "create" and "orders-3" in path)
        assert isinstance(await desk.broker.topic_controller.grow("orders", 4), Reject)
        calls.heal()
        assert await delete(desk, "orders") == [ErrorCode.NONE]
        made = await make(desk, "orders", 4)
        assert isinstance(made, Topic)
        write(desk, "orders", b"new", 2)
    async with memory_broker(disk) as desk:
        assert end_offsets(desk, "orders") == [0, 0, 1, 0]


@on_a_loop
async def test_a_topic_whose_making_failed_can_be_deleted() -> None:
    calls, disk = failing_disk()
    async with memory_broker(disk) as desk:
        calls.fail(errno.ENOSPC, lambda number, name, path: name == "create" and "orders-1" in path)
        assert isinstance(await make(desk, "orders"), Reject)
        calls.heal()
        assert await delete(desk, "orders") == [ErrorCode.NONE]
    async with memory_broker(disk) as desk:
        assert desk.broker.topics.list_names() == []
        assert not [name for name in calls.listdir("data") if "orders" in name]


@on_a_loop
async def test_directories_of_another_topic_keep_a_name_from_being_used() -> None:
    """Else it would be in the metadata, and its directories would keep the next start from succeeding."""
    _, disk = failing_disk()
    async with memory_broker(disk) as desk:
        await make(desk, "others", 1)  # metadata that name no directory are refused
        await make(desk, "orders", 1)
        write(desk, "orders", b"kept")
        topic = desk.broker.topics.find("orders")
        assert topic is not None
        await stored(desk, lambda store: store.delete_topics([topic]))
        await stored(desk, lambda store: store.forget_deleted([topic.topic_id]))
    async with memory_broker(disk) as desk:
        refused = await make(desk, "orders", 1)
        assert isinstance(refused, Reject)
        assert "orders-0" in refused.reason
    async with memory_broker(disk) as desk:
        await stored(desk, lambda store: store.create_topics([topic]))
    async with memory_broker(disk) as desk:
        assert value_at_start(desk, "orders", 0) == b"kept"


@on_a_loop
async def test_what_an_earlier_version_gave_to_a_successor_is_kept() -> None:
    """It gave a name away while its deletion was unfinished: acknowledged records are in its directories."""
    _, disk = failing_disk()
    async with memory_broker(disk) as desk:
        await make(desk, "orders", 1)
        write(desk, "orders", b"acknowledged")
        topic = desk.broker.topics.find("orders")
        assert topic is not None
        await stored(desk, lambda store: store.delete_topics([topic]))
        await stored(desk, lambda store: store.create_topics([replace(topic, topic_id=make_random_id())]))
    for _ in range(2):
        async with memory_broker(disk) as desk:
            assert value_at_start(desk, "orders", 0) == b"acknowledged"
            assert await desk.broker.worker.run(desk.broker.metadata_store.load_deleted_topics) == []


@on_a_loop
async def test_metadata_that_may_hold_a_deletion_ends_the_broker() -> None:
    """[MET-3] What is acknowledged after it would be gone if it does."""
    _, disk = failing_disk()
    async with memory_broker(disk) as desk:
        await make(desk, "orders", 1)
        failure = sqlite3.OperationalError("disk I/O error")
        failure.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
        desk.broker.metadata_store._make_room = raising(failure)
        assert await delete(desk, "orders") == [ErrorCode.KAFKA_STORAGE_ERROR]
        assert desk.broker.failure is failure


@on_a_loop
async def test_a_topic_stays_where_there_is_no_room_to_note_its_deletion() -> None:
    _, disk = failing_disk()
    async with memory_broker(disk) as desk:
        await make(desk, "orders", 1)
        failure = sqlite3.OperationalError("database or disk is full")
        failure.sqlite_errorcode = sqlite3.SQLITE_FULL
        desk.broker.metadata_store._make_room = raising(failure)
        assert await delete(desk, "orders") == [ErrorCode.KAFKA_STORAGE_ERROR]
        assert desk.broker.failure is None
        assert not desk.broker.topic_controller.deletions.holds_name("orders")
        write(desk, "orders", b"goes on")
        desk.broker.metadata_store._make_room = lambda: None


def raising(failure: Exception) -> Callable[[], None]:
    def make_room() -> None:
        raise failure

    return make_room
