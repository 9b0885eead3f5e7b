"""A data directory: lock, owner, checkpoints, clean stop; and the thread that syncs its logs."""

import errno
import threading
from collections.abc import Callable
from functools import partial
from uuid import UUID

import pytest

from harness.memory_fs import MemoryFileSystem
from tallystick.kernel.ids import LeaderEpoch, Offset, TopicPartition
from tallystick.protocol.records import BatchMeta, Record, encode_batch
from tallystick.storage import log_dir
from tallystick.storage.disk.fs import RealFileSystem, StorageFailure
from tallystick.storage.log.group_commit import HELPED_LOGS_MIN, GroupCommit
from tallystick.storage.log.log import AppendResult, Log
from tallystick.storage.log_dir import (
    DirectoryInUse,
    DirectoryOptions,
    ForeignDirectory,
    LogDir,
    parse_directory_name,
)
from tallystick.storage.state.validation import LogConfig
from tallystick.testing import eventually

NOW = 1_700_000_000_000
TP = TopicPartition("a-b", 3)
ID = UUID(int=5)
CONFIG = LogConfig(segment_bytes=600)


def append(log: Log) -> None:
    record = Record(offset=0, timestamp_ms=NOW, key=b"k", value=b"v" * 50, headers=())
    result = log.append(encode_batch([record], BatchMeta()), now_ms=NOW, leader_epoch=LeaderEpoch(0))
    assert isinstance(result, AppendResult)


def test_two_processes_never_share_a_directory(tmp_path: object) -> None:
    fs, path = RealFileSystem(), str(tmp_path)
    first = LogDir.open(fs, path, DirectoryOptions())
    with pytest.raises(DirectoryInUse):
        LogDir.open(fs, path, DirectoryOptions())
    first.close()
    LogDir.open(fs, path, DirectoryOptions()).close()


def test_a_new_cluster_id_never_looks_like_an_option(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kafka's tools take a word that begins with a dash for an option."""
    dashed, plain = UUID(int=0b111110 << 122), UUID(int=1)
    made = iter([dashed, plain])
    assert log_dir.make_random_id(lambda: next(made)) == plain
    monkeypatch.setattr(log_dir, "make_random_id", lambda: plain)
    assert (
        LogDir.open(MemoryFileSystem(), "d", DirectoryOptions()).meta.cluster_id == "AAAAAAAAAAAAAAAAAAAAAQ"
    )


def test_a_directory_keeps_its_cluster_and_its_topics() -> None:
    fs = MemoryFileSystem()
    made = LogDir.open(fs, "d", DirectoryOptions())
    cluster = made.meta.cluster_id
    assert len(cluster) == 22
    made.get_or_create(TP, CONFIG, ID)
    made.close()
    assert LogDir.open(fs, "d", DirectoryOptions(cluster_id=cluster)).close() is None
    for other in (DirectoryOptions(cluster_id="x" * 22), DirectoryOptions(node_id=2)):
        with pytest.raises(ForeignDirectory):
            LogDir.open(fs, "d", other)
    again = LogDir.open(fs, "d", DirectoryOptions())
    assert again.list_partitions() == (TP,)
    with pytest.raises(ForeignDirectory):
        again.get_or_create(TP, CONFIG, UUID(int=6))


def test_after_a_clean_stop_nothing_is_scanned() -> None:
    fs = MemoryFileSystem()
    log_dir = LogDir.open(fs, "d", DirectoryOptions())
    log = log_dir.get_or_create(TP, CONFIG, ID)
    for _ in range(20):
        append(log)
    log_dir.close()
    again = LogDir.open(fs, "d", DirectoryOptions())
    assert again.had_clean_shutdown
    assert again.get_or_create(TP, CONFIG, ID).log_end_offset == 20
    assert again.reports[0][1].scanned_bytes == 0
    again.close_without_sync()
    killed = LogDir.open(fs, "d", DirectoryOptions())
    assert not killed.had_clean_shutdown
    killed.get_or_create(TP, CONFIG, ID)
    assert 0 < killed.reports[0][1].scanned_bytes <= 600, "from the recovery point on, no more"


def test_a_stop_is_clean_for_all_logs_or_for_none() -> None:
    fs = MemoryFileSystem()
    log_dir = LogDir.open(fs, "d", DirectoryOptions())
    log = log_dir.get_or_create(TP, CONFIG, ID)
    append(log)
    log.sync()
    log_dir.close_without_sync()
    stopped = LogDir.open(fs, "d", DirectoryOptions())
    stopped.close()
    assert [name for name, _ in stopped.reports] == [TP], "nobody asked for it, and it was recovered"
    log_dir = LogDir.open(fs, "d", DirectoryOptions())
    assert log_dir.had_clean_shutdown
    log_dir.close_without_sync()
    damaged = fs.node("d/a-b-3/00000000000000000000.log")
    damaged.data[70] ^= 1
    LogDir.open(fs, "d", DirectoryOptions()).close()
    assert not LogDir.open(fs, "d", DirectoryOptions()).had_clean_shutdown


def test_a_deleted_partition_leaves_nothing_that_condemns_its_successor() -> None:
    fs = MemoryFileSystem()
    log_dir = LogDir.open(fs, "d", DirectoryOptions())
    log = log_dir.get_or_create(TP, CONFIG, ID)
    for _ in range(20):
        append(log)
    log.sync()
    log_dir.checkpoint()
    log_dir.close_for_deletion(TP)
    log_dir.rename_for_deletion(TP.topic, ID)
    log_dir.remove_deleted_logs()
    assert not [name for name in fs.files() if "a-b" in name]
    log = log_dir.get_or_create(TP, CONFIG, UUID(int=6))
    append(log)
    log.sync()
    fs.crash("nothing")
    again = LogDir.open(fs, "d", DirectoryOptions())
    assert again.get_or_create(TP, CONFIG, UUID(int=6)).log_end_offset == 1


def test_an_open_log_is_handed_to_its_own_topic_alone() -> None:
    """[MET-3]"""
    fs = MemoryFileSystem()
    log_dir = LogDir.open(fs, "d", DirectoryOptions())
    log_dir.get_or_create(TP, CONFIG, ID)
    with pytest.raises(ForeignDirectory):
        log_dir.get_or_create(TP, CONFIG, UUID(int=6))


def test_names_of_partition_directories() -> None:
    assert parse_directory_name("a-b-3") == TP
    for name in ("a", "-3", "a-", "a-x", "a-²", "a-3-delete"):
        assert parse_directory_name(name) is None


def test_one_round_of_syncs_serves_everyone_who_waits() -> None:
    """[LOG-5]"""
    fs = MemoryFileSystem()
    log_dir = LogDir.open(fs, "d", DirectoryOptions())
    logs = [log_dir.get_or_create(TopicPartition("t", number), CONFIG, ID) for number in range(3)]
    told: list[tuple[Log, Offset]] = []
    commits = GroupCommit(lambda log, end: told.append((log, end)), lambda log, exc: None)
    for log in logs * 10:
        append(log)
        commits.request(log)
    commits.start()
    eventually(lambda: len(told) >= 3)
    commits.stop()
    assert commits.round_count <= 2
    assert {(log.topic_partition.partition, end) for log, end in told} == {(0, 10), (1, 10), (2, 10)}
    assert not [thread for thread in threading.enumerate() if thread.name == "group-commit"]


def test_the_logs_of_a_round_are_synced_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    directory = LogDir.open(MemoryFileSystem(), "d", DirectoryOptions())
    logs = [directory.get_or_create(TopicPartition("t", p), CONFIG, ID) for p in range(HELPED_LOGS_MIN)]
    told: list[Log] = []
    commits = GroupCommit(lambda log, end: told.append(log), lambda log, exc: None)
    all_at_once = threading.Barrier(len(logs), timeout=30)

    def met(sync: Callable[[], Offset]) -> Offset:
        all_at_once.wait()
        return sync()

    for log in logs:
        append(log)
        monkeypatch.setattr(log, "sync", partial(met, log.sync))
        commits.request(log)
    commits.start()
    commits.stop()
    assert len(told) == len(logs)
    assert {log.reader.synced_end for log in logs} == {1}
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("group-commit")]


def test_a_failed_sync_is_told_once() -> None:
    """[LOG-4]"""
    fs = MemoryFileSystem()
    log = LogDir.open(fs, "d", DirectoryOptions()).get_or_create(TP, CONFIG, ID)
    append(log)
    fs.sync_failure = OSError(errno.EIO, "input/output error")
    failures: list[StorageFailure] = []
    commits = GroupCommit(lambda log, end: None, lambda log, exc: failures.append(exc))
    commits.request(log)
    commits.start()
    eventually(lambda: failures)
    commits.request(log)
    commits.stop()
    assert len(failures) == 1
    assert log.reader.high_watermark == 0


def test_a_sync_that_goes_wrong_in_any_way_is_told_and_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that dies in silence would leave every producer waiting."""
    directory = LogDir.open(MemoryFileSystem(), "d", DirectoryOptions())
    bad, good = (directory.get_or_create(TopicPartition("t", p), CONFIG, ID) for p in (0, 1))
    monkeypatch.setattr(bad, "sync", lambda: dict[str, None]()["no such file"])
    synced: list[Log] = []
    failed: list[Log] = []
    commit = GroupCommit(lambda log, _: synced.append(log), lambda log, _: failed.append(log))
    commit.start()
    append(good)
    for log in (bad, good):
        commit.request(log)
    commit.stop()
    assert (failed, synced) == ([bad], [good])
    assert bad.failure is not None
