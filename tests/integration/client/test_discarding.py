"""What waits for the disk is in a thread: removing, making partitions, checkpoints."""

import asyncio
import threading
from pathlib import Path

import pytest

from tallystick.broker.config.broker_config import BrokerConfig
from tallystick.broker.metadata.store import MetadataStore, Topic
from tallystick.broker.partitions.data_directory import DataDirectory
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import LeaderEpoch
from tallystick.protocol.records import BatchMeta, Record, encode_batch
from tallystick.storage.disk import fs
from tallystick.storage.log.log import Log, delete_oldest_segments
from tallystick.storage.log_dir import make_random_id
from tallystick.testing import FakeClock

pytestmark = pytest.mark.server
NOW = 1_700_000_000_000


def fill_and_delete(log: Log) -> None:
    for _ in range(2):
        record = Record(offset=0, timestamp_ms=NOW, key=b"k", value=b"v", headers=())
        result = log.append(encode_batch([record], BatchMeta()), now_ms=NOW, leader_epoch=LeaderEpoch(0))
        assert not isinstance(result, Reject)
        log.roll(NOW)
    log.sync()
    delete_oldest_segments(log, 2)


def failed(exc: Exception) -> None:
    raise AssertionError(exc)


async def start(path: Path, delay_ms: int) -> tuple[DataDirectory, MetadataStore, Log]:
    config = BrokerConfig.parse({"log.segment.delete.delay.ms": str(delay_ms), "log.reserve.bytes": "0"})
    directory = DataDirectory(path, config, FakeClock(NOW), failed)
    store = directory.open()
    topic = next(iter(store.load_topics()), None) or Topic(
        "t", make_random_id(), 1, {"segment.bytes": "1048576"}
    )
    log = directory.open_partition(topic, 0, config.make_topic_config(topic.configs)).log
    if not store.load_topics():
        store.create_topics([topic])
    return directory, store, log


def test_files_are_removed_in_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []
    remove = fs.RealFileSystem.remove

    async def run() -> None:
        loop, begun = asyncio.get_running_loop(), asyncio.Event()

        def noted(self: fs.RealFileSystem, path: str) -> None:
            if path.endswith(".deleted"):
                threads.append(threading.current_thread())
                loop.call_soon_threadsafe(begun.set)
            remove(self, path)

        monkeypatch.setattr(fs.RealFileSystem, "remove", noted)
        directory, store, log = await start(tmp_path, 0)
        fill_and_delete(log)
        await begun.wait()
        await directory.stop(clean=True)
        store.close()

    asyncio.run(asyncio.wait_for(run(), 30))
    assert threading.main_thread() not in threads
    assert not list((tmp_path / "t-0").glob("*.deleted"))


def test_a_stop_does_not_wait_and_a_start_removes_the_rest(tmp_path: Path) -> None:
    async def run() -> None:
        directory, store, log = await start(tmp_path, 3_600_000)
        fill_and_delete(log)
        await directory.stop(clean=True)
        store.close()
        assert len(list((tmp_path / "t-0").glob("*.log.deleted"))) == 2
        directory, store, log = await start(tmp_path, 3_600_000)
        assert not list((tmp_path / "t-0").glob("*.deleted"))
        assert (log.log_start_offset, log.log_end_offset) == (2, 2)
        await directory.stop(clean=True)
        store.close()

    asyncio.run(run())


def test_the_loop_waits_for_no_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic of 100 partitions is 300 syncs: none of them may hold up a fetch."""
    threads: set[threading.Thread] = set()
    sync_dir = fs.RealFileSystem.sync_dir

    def noted(self: fs.RealFileSystem, path: str) -> None:
        threads.add(threading.current_thread())
        sync_dir(self, path)

    async def run() -> None:
        directory, store, _ = await start(tmp_path, 0)
        topic = Topic("u", make_random_id(), 1, {})
        monkeypatch.setattr(fs.RealFileSystem, "sync_dir", noted)
        partition = await directory.create_partition(topic, 0, BrokerConfig.parse({}).make_topic_config({}))
        assert partition.log.log_end_offset == 0
        directory._housekeeping._start_checkpoint()
        assert directory._housekeeping._checkpoint_task is not None
        await directory._housekeeping._checkpoint_task
        assert "u 0 0" in (tmp_path / "recovery-point-offset-checkpoint").read_text()
        await directory.rename_for_deletion(topic)
        await directory.remove_deleted_logs()
        assert "u 0 0" not in (tmp_path / "recovery-point-offset-checkpoint").read_text()
        assert threads
        assert threading.main_thread() not in threads
        await directory.stop(clean=True)
        store.close()

    asyncio.run(run())
    assert not list(tmp_path.glob("*-delete"))
    assert not (tmp_path / "u-0").exists()
