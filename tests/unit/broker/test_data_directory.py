"""The data directory as the broker holds it: epochs over restarts, a disk that breaks, words on the way."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import wraps
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from tallystick.broker.config.broker_config import BrokerConfig
from tallystick.broker.config.topic_config import TopicConfig
from tallystick.broker.metadata.store import FILE_NAME, MetadataStore, Topic
from tallystick.broker.partitions.data_directory import DataDirectory, DataDirectoryUnusable
from tallystick.broker.partitions.partition import Partition
from tallystick.protocol.records import BatchMeta, Record, encode_batch
from tallystick.storage.log.log import AppendResult
from tallystick.testing import FakeClock

TOPIC = Topic(name="t", topic_id=UUID(int=5), partitions=1)


def on_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(*args: object, **kwargs: object) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


class Desk:
    """One data directory, opened and left again and again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = FakeClock()
        self.failures: list[Exception] = []

    def open(self) -> Partition:
        config = BrokerConfig.parse({"log.dirs": str(self.path), "log.reserve.bytes": "0"})
        self.files = DataDirectory(self.path, config, self.clock, self.failures.append)
        store = self.files.open()
        if not store.load_topics():
            store.create_topics([TOPIC])
        store.close()
        partition = self.files.open_partition(TOPIC, 0, TopicConfig())
        self.files.begin_leader_epochs()
        self.files.report_recovery()
        return partition


def append(partition: Partition) -> None:
    record = Record(offset=0, timestamp_ms=0, key=b"k", value=b"v", headers=())
    assert isinstance(partition.append(encode_batch([record], BatchMeta())), AppendResult)


@on_loop
async def test_an_epoch_is_never_given_out_again(tmp_path: Path) -> None:
    """Clients refuse metadata that is older than what they know: KIP-320."""
    desk = Desk(tmp_path)
    append(desk.open())
    await desk.files.stop(clean=False)
    assert desk.open().leader_epoch == 1
    await desk.files.stop(clean=True)
    assert desk.open().leader_epoch == 1
    await desk.files.stop(clean=False)
    assert desk.open().leader_epoch == 2
    await desk.files.stop(clean=True)


@on_loop
async def test_a_recovery_says_what_it_does(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk(tmp_path)
    append(desk.open())
    await desk.files.stop(clean=False)
    with caplog.at_level(logging.INFO):
        desk.open()
        desk.clock.advance(10_000)
        desk.files.open_partition(Topic(name="u", topic_id=UUID(int=6), partitions=1), 0, TopicConfig())
    assert [record.getMessage() for record in caplog.records] == [
        "the last stop was not clean, so 1 logs are scanned from their recovery points",
        "recovery: 1 of 2 logs, 0 MB read",
    ]
    await desk.files.stop(clean=True)


@on_loop
async def test_a_log_that_goes_offline_ends_the_broker_from_every_caller(tmp_path: Path) -> None:
    """[LOG-4] A roll of retention has no client to tell."""
    desk = Desk(tmp_path)
    partition = desk.open()
    append(partition)
    log = partition.log
    fail = log.take_offline("the disk is gone")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert set(desk.failures) == {fail}
    await desk.files.stop(clean=False)


@on_loop
async def test_metadata_that_name_no_partition_beside_them_are_refused(tmp_path: Path) -> None:
    """Another broker's file, or an old one: without its topics it has no ACLs and no users, either."""
    desk = Desk(tmp_path)
    append(desk.open())
    await desk.files.stop(clean=True)
    file = tmp_path / FILE_NAME
    store = MetadataStore(file, "")
    cluster_id = store.load_cluster_id()
    store.close()
    file.unlink()
    MetadataStore(file, cluster_id).close()
    with pytest.raises(DataDirectoryUnusable, match="names none of the 1 partitions"):
        desk.open()
    assert desk.failures == []
