"""Power fails after every effect of a log's life; what was acknowledged is there, in order, once [LOG-1].

The life: two partitions, appends and syncs, rolls, an aborted transaction, a checkpoint, DeleteRecords, a
deleted partition, a clean stop, a second start and more appends. It runs twice: on the model of a disk,
crashed after each effect; and on the real file system layer, whose system calls are written down, and of
which every prefix is turned into the directories that a power loss could leave.
"""

from collections.abc import Sized
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from tests.support.effort import LONG

from harness.memory_fs import MemoryFileSystem, PowerLost, SurvivingChanges
from harness.recorded_calls import RecordingSyscalls, replay_calls
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import (
    LeaderEpoch,
    Offset,
    ProducerEpoch,
    ProducerId,
    ProducerIdAndEpoch,
    TopicPartition,
)
from tallystick.protocol.records import (
    BatchMeta,
    ControlType,
    EndTransactionMarker,
    Record,
    decode_records,
    encode_batch,
    encode_marker,
    iter_headers,
)
from tallystick.storage.disk.fs import FileSystem, RealFileSystem
from tallystick.storage.log.log import AppendResult, Log, delete_records_before
from tallystick.storage.log_dir import DirectoryOptions, LogDir
from tallystick.storage.state.producer_state import AppendOrigin
from tallystick.storage.state.validation import LogConfig

SEEDS = 40 if LONG else 3
NOW = 1_700_000_000_000
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
IDS = {T0: UUID(int=7), T1: UUID(int=8)}
CONFIG = LogConfig(segment_bytes=700, index_interval_bytes=100)
OPTIONS = DirectoryOptions(cluster_id="AAAAAAAAAAAAAAAAAAAAAA")
KEEPS: tuple[SurvivingChanges, ...] = ("prefix", "subset", "unordered")


@dataclass
class Told:
    """What the outside was told, and when (in effects): the end of T0 that is durable, and its start."""

    effects: Sized
    ends: list[tuple[int, int]] = field(default_factory=list)
    starts: list[tuple[int, int]] = field(default_factory=list)
    asked_starts: list[tuple[int, int]] = field(default_factory=list)

    def end(self, log: Log) -> None:
        end = log.sync()
        self.ends.append((len(self.effects), end))


def value_of(offset: int) -> bytes:
    return b"value %d " % offset * 3


def append_data(log: Log, count: int, **meta: Any) -> None:
    base = log.log_end_offset
    records = [
        Record(offset=i, timestamp_ms=NOW + base + i, key=b"k", value=value_of(base + i), headers=())
        for i in range(count)
    ]
    result = log.append(encode_batch(records, BatchMeta(**meta)), now_ms=NOW, leader_epoch=LeaderEpoch(0))
    assert isinstance(result, AppendResult), result
    assert not result.duplicate


def abort(log: Log, producer_id: int, epoch: int) -> None:
    identity = ProducerIdAndEpoch(ProducerId(producer_id), ProducerEpoch(epoch))
    marker = encode_marker(
        EndTransactionMarker(control_type=ControlType.ABORT, coordinator_epoch=0), identity, timestamp_ms=NOW
    )
    result = log.append(marker, origin=AppendOrigin.COORDINATOR, now_ms=NOW, leader_epoch=LeaderEpoch(0))
    assert isinstance(result, AppendResult), result


def live(fs: FileSystem, directory: str, told: Told) -> None:
    """The whole life. Every value tells its offset; producer 5 writes one record a batch."""
    log_dir = LogDir.open(fs, directory, OPTIONS)
    log, other = (log_dir.get_or_create(tp, CONFIG, IDS[tp]) for tp in (T0, T1))
    told.end(log)
    for sequence in range(4):
        append_data(log, 1, producer_id=5, producer_epoch=0, base_sequence=sequence)
        append_data(log, 2)
        append_data(other, 1)
        told.end(log)
    append_data(log, 1, producer_id=9, producer_epoch=0, base_sequence=0, is_transactional=True)
    append_data(log, 3)
    abort(log, 9, 1)
    told.end(log)
    for _ in range(4):
        append_data(log, 3)
    told.end(log)
    other.sync()
    log_dir.checkpoint()
    told.asked_starts.append((len(told.effects), 8))
    assert delete_records_before(log, Offset(8)) is None
    told.starts.append((len(told.effects), 8))
    append_data(log, 2)
    log_dir.close_for_deletion(T1)
    log_dir.rename_for_deletion(T1.topic, IDS[T1])
    log_dir.remove_deleted_logs()
    told.end(log)
    log_dir.close()
    log_dir = LogDir.open(fs, directory, OPTIONS)
    log = log_dir.get_or_create(T0, CONFIG, IDS[T0])
    for sequence in range(4, 7):
        append_data(log, 1, producer_id=5, producer_epoch=0, base_sequence=sequence)
        append_data(log, 4)
        told.end(log)
    append_data(log, 5)
    log_dir.close_without_sync()


def latest(told: list[tuple[int, int]], effects: int) -> int:
    return max((value for at, value in told if at <= effects), default=0)


def check_disk(fs: FileSystem, directory: str, told: Told, effects: int) -> None:
    """Open what the crash left, and compare with what had been told by then."""
    log_dir = LogDir.open(fs, directory, OPTIONS)
    log = log_dir.get_or_create(T0, CONFIG, IDS[T0])
    assert log.reader.high_watermark == log.log_end_offset >= latest(told.ends, effects)
    assert latest(told.starts, effects) <= log.log_start_offset <= latest(told.asked_starts, effects + 1)
    sequences = check_contents(log)
    # A repetition of the last batch of the producer is recognised: nothing is there twice.
    if sequences:
        batch = encode_batch(
            [Record(offset=0, timestamp_ms=NOW, key=b"k", value=b"again", headers=())],
            BatchMeta(producer_id=5, producer_epoch=0, base_sequence=sequences[-1]),
        )
        again = log.append(batch, now_ms=NOW, leader_epoch=LeaderEpoch(0))
        assert isinstance(again, AppendResult)
        assert again.duplicate
    append_data(log, 1)
    log.sync()
    log_dir.close()
    again_dir = LogDir.open(fs, directory, OPTIONS)
    again_log = again_dir.get_or_create(T0, CONFIG, IDS[T0])
    assert again_dir.had_clean_shutdown
    assert again_log.log_end_offset == log.log_end_offset
    check_contents(again_log)
    again_dir.close()


def check_contents(log: Log) -> list[int]:
    """Every record is the one written at its offset, none is missing between start and end."""
    at, sequences = log.log_start_offset, []
    while at < log.log_end_offset:
        result = log.reader.read(at, 300, upper=log.log_end_offset)
        assert not isinstance(result, Reject)
        assert result.data
        for position, header in iter_headers(result.data):
            assert header.base_offset <= at <= header.last_offset
            if header.producer_id == 5:
                sequences.append(header.base_sequence)
            if not header.is_control:
                for record in decode_records(result.data, position):
                    assert record.value == value_of(record.offset)
            else:
                aborted = log.reader.collect_aborted_txns(0, log.log_end_offset)
                assert [txn.last_offset for txn in aborted] == [header.base_offset]
            at = Offset(header.next_offset)
    assert sequences == sorted(set(sequences))
    return sequences


def states(seed_base: int) -> list[tuple[SurvivingChanges, int]]:
    drawn = [(keep, seed_base * 1000 + seed) for keep in KEEPS for seed in range(SEEDS)]
    return [("nothing", 0), ("everything", 0), *drawn]


def whole_life() -> tuple[int, Told]:
    fs = MemoryFileSystem()
    told = Told(fs.effects)
    live(fs, "d", told)
    return len(fs.effects), told


@pytest.mark.gate(0)
def test_nothing_acknowledged_is_lost_after_any_effect_on_the_model() -> None:
    """[LOG-1]: the disk of the model, power lost after each effect."""
    total, told = whole_life()
    for effects in range(total):
        for keep, seed in states(effects):
            fs = MemoryFileSystem(crash_after=effects)
            with pytest.raises(PowerLost):
                live(fs, "d", Told(fs.effects))
            fs.crash(keep, seed)
            check_disk(fs, "d", told, effects)


def test_power_may_fail_again_while_recovering() -> None:
    """Recovery is met again half done: no effect of it may make things worse."""
    total, told = whole_life()
    for effects in range(0, total, 1 if LONG else 9):
        again = 0
        while True:
            fs = MemoryFileSystem(crash_after=effects)
            with pytest.raises(PowerLost):
                live(fs, "d", Told(fs.effects))
            fs.crash("unordered" if effects % 2 else "prefix", effects)
            fs.crash_after = again
            try:
                log_dir = LogDir.open(fs, "d", OPTIONS)
                log_dir.get_or_create(T0, CONFIG, IDS[T0])
            except PowerLost:
                fs.crash("unordered" if again % 2 else "subset", again)
                check_disk(fs, "d", told, effects)
                again += 1 if LONG else 5
            else:
                break


@pytest.mark.gate(0)
def test_every_prefix_of_the_recorded_system_calls_can_be_opened(tmp_path: Path) -> None:
    """[FS-1]: the real layer's calls, each prefix, and what power loss could leave, on a real directory."""
    root = str(tmp_path / "recorded")
    calls = RecordingSyscalls(root)
    told = Told(calls.calls)
    live(RealFileSystem(calls), root, told)
    assert {call.name for call in calls.calls} >= {"create", "write", "sync", "sync_dir", "rename", "remove"}
    for prefix in range(0, len(calls.calls) + 1, 1 if LONG else 5):
        chosen = states(prefix) if LONG else [("nothing", 0), *((keep, prefix) for keep in KEEPS)]
        for number, (keep, seed) in enumerate(chosen):
            disk = replay_calls(calls.calls[:prefix])
            disk.crash(keep, seed)
            real = tmp_path / f"{prefix}-{number}"
            real.mkdir()
            for name in disk.directories():
                (real / name).mkdir(exist_ok=True)
            for name, data in disk.files().items():
                (real / name).write_bytes(data)
            check_disk(RealFileSystem(), str(real), told, prefix)
