"""A process out of descriptors or memory says nothing about its disk: what needs one is tried again."""

import asyncio
import errno
from queue import SimpleQueue

import pytest
from tests.support.compacted import Compacted

from harness.memory_fs import MemoryFile, MemoryFileSystem
from tallystick.broker.partitions.log_cleaner import _run_step
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
    encode_batch,
    encode_marker,
)
from tallystick.storage.compaction.cleaner import CleanedGroup, clean_log
from tallystick.storage.compaction.swap import BlockingStep, InlineStep, SegmentSwap
from tallystick.storage.disk.fs import DiskFull, StorageFailure
from tallystick.storage.disk.reserve import DiskReserve, UnlimitedSpace
from tallystick.storage.log.files import LEADER_EPOCH_FILE
from tallystick.storage.log.group_commit import GroupCommit
from tallystick.storage.log.loader import PriorShutdown, create_log, open_log
from tallystick.storage.log.log import AppendResult, Log, LogHooks
from tallystick.storage.segments.log_segment import OpenSegmentCache
from tallystick.storage.state.producer_state import AppendOrigin
from tallystick.storage.state.validation import LogConfig

NOW = 1_700_000_000_000
TP = TopicPartition("t", 0)
CONFIG = LogConfig(segment_bytes=600, index_interval_bytes=100)
HOOKS = LogHooks(space_guard=UnlimitedSpace(), segment_cache=OpenSegmentCache())
EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


class NoDescriptors(MemoryFileSystem):
    """Refuses to open while `why` is set; `opens_left` are granted before that."""

    why: int | None = None
    opens_left = 0

    def _open(self, path: str) -> None:
        if self.why is None:
            return
        if not self.opens_left:
            raise OSError(self.why, "no descriptor", path)
        self.opens_left -= 1

    def open_append(self, path: str) -> MemoryFile:
        self._open(path)
        return super().open_append(path)

    def open_read(self, path: str) -> MemoryFile:
        self._open(path)
        return super().open_read(path)

    def sync_dir(self, path: str) -> None:
        if self.why != errno.ENOMEM:  # which might as well be the sync's, and is a lost disk then
            self._open(path)
        super().sync_dir(path)


def make(fs: MemoryFileSystem) -> Log:
    log = create_log(fs, "d", TP, CONFIG, HOOKS)
    fs.sync_dir("")
    return log


def batch(size: int = 50, *, transactional: bool = False) -> bytes:
    record = Record(offset=0, timestamp_ms=NOW, key=b"k", value=b"v" * size, headers=())
    if not transactional:
        return encode_batch([record], BatchMeta())
    return encode_batch(
        [record], BatchMeta(producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True)
    )


def append(
    log: Log, data: bytes, *, epoch: int = 0, origin: AppendOrigin = AppendOrigin.CLIENT
) -> AppendResult:
    result = log.append(data, now_ms=NOW, leader_epoch=LeaderEpoch(epoch), origin=origin)
    assert isinstance(result, AppendResult), result
    return result


def abort_marker() -> bytes:
    marker = EndTransactionMarker(control_type=ControlType.ABORT, coordinator_epoch=0)
    return encode_marker(marker, ProducerIdAndEpoch(ProducerId(7), ProducerEpoch(1)), timestamp_ms=NOW)


def reopen(fs: MemoryFileSystem, *, clean: bool = False, recovery_point: int = 0) -> Log:
    ended = PriorShutdown(was_clean=clean, recovery_point=recovery_point)
    return open_log(fs, "d", TP, CONFIG, HOOKS, ended)[0]


@pytest.mark.parametrize("why", EXHAUSTED)
@pytest.mark.parametrize("opens", range(8))
def test_a_roll_without_descriptors_is_refused_and_tried_again(why: int, opens: int) -> None:
    """Whichever of the opens of a roll is the first to fail."""
    fs = NoDescriptors()
    log = make(fs)
    append(log, batch(400))
    fs.why, fs.opens_left = why, opens
    try:
        append(log, batch(400))
    except DiskFull:
        assert len(log.segments) == 1
    assert log.failure is None
    fs.why = None
    append(log, batch(400))
    log.close(clean=True)
    assert reopen(fs, clean=True).log_end_offset == log.log_end_offset


def test_a_roll_without_descriptors_takes_nothing_from_the_reserve() -> None:
    """What gives room back on a full disk would only have data refused for longer."""
    fs = NoDescriptors(capacity=1 << 20)
    fs.mkdir("data")
    reserve = DiskReserve(fs, "data", 4000, chunk_bytes=1000)
    assert reserve.restore()
    log = create_log(fs, "d", TP, CONFIG, LogHooks(space_guard=reserve, segment_cache=OpenSegmentCache()))
    append(log, batch(400))
    fs.why = errno.EMFILE
    with pytest.raises(DiskFull):
        append(log, batch(400), origin=AppendOrigin.DECISION)
    assert reserve.is_whole


def aborted_log(fs: NoDescriptors) -> Log:
    """A log with an aborted transaction whose entry in the index could not be written."""
    log = make(fs)
    append(log, batch(transactional=True))
    fs.why = errno.EMFILE
    append(log, abort_marker(), origin=AppendOrigin.COORDINATOR)
    assert log.failure is None
    assert [txn.last_offset for txn in log.reader.collect_aborted_txns(0, 2)] == [1]
    return log


def test_an_abort_without_descriptors_is_known_and_its_entry_is_written_with_the_indexes() -> None:
    fs = NoDescriptors()
    log = aborted_log(fs)
    fs.why = None
    log.close(clean=True)
    again = reopen(fs, clean=True)
    assert [txn.last_offset for txn in again.reader.collect_aborted_txns(0, 2)] == [1]


def test_a_segment_is_not_closed_before_its_aborted_transactions_are_in_its_index() -> None:
    fs = NoDescriptors()
    log = aborted_log(fs)
    with pytest.raises(DiskFull):
        append(log, batch(400))
    fs.why = None
    append(log, batch(400))
    append(log, batch(400))
    log.sync()
    fs.crash()
    again = reopen(fs, recovery_point=int(log.recovery_point))
    assert [txn.last_offset for txn in again.reader.collect_aborted_txns(0, 2)] == [1]


def test_an_abort_whose_entry_was_not_written_is_found_again_after_a_crash() -> None:
    fs = NoDescriptors()
    log = aborted_log(fs)
    fs.why = None
    end = log.sync()
    fs.crash()
    again = reopen(fs, recovery_point=int(end))
    assert [txn.last_offset for txn in again.reader.collect_aborted_txns(0, 2)] == [1]


def test_epochs_that_could_not_be_written_are_written_with_the_next_checkpoint() -> None:
    fs = NoDescriptors()
    log = make(fs)
    fs.why = errno.EMFILE
    append(log, batch(), epoch=3)
    assert log.failure is None
    fs.why = None
    log.flush_indexes()
    assert fs.read_bytes(f"d/{LEADER_EPOCH_FILE}").decode().splitlines()[2:] == ["3 0"]


def test_a_sync_without_descriptors_is_tried_again_and_promises_nothing_before() -> None:
    fs = NoDescriptors()
    log = make(fs)
    append(log, batch())
    fs.why = errno.EMFILE
    with pytest.raises(DiskFull):
        log.sync()
    assert log.failure is None
    assert log.reader.synced_end == 0
    fs.why = None
    assert log.sync() == 1
    fs.crash()
    assert reopen(fs).log_end_offset == 1


def test_the_group_commit_syncs_again_what_found_no_descriptor() -> None:
    fs = NoDescriptors()
    log = make(fs)
    append(log, batch())
    refusals: SimpleQueue[None] = SimpleQueue()
    synced: SimpleQueue[Offset] = SimpleQueue()
    failed: list[StorageFailure] = []

    class Telling(type(log)):  # type: ignore[misc]  # the same log, which says when it refused
        def sync(self) -> Offset:
            try:
                return super().sync()
            except DiskFull:
                refusals.put(None)
                raise

    log.__class__ = Telling
    commit = GroupCommit(lambda log, end: synced.put(end), lambda log, failure: failed.append(failure))
    commit.start()
    fs.why = errno.EMFILE
    commit.request(log)
    refusals.get(timeout=60)
    fs.why = None
    assert synced.get(timeout=60) == 1
    commit.stop()
    assert not failed


@pytest.mark.parametrize("opens", range(6))
def test_every_step_of_an_exchange_may_be_begun_anew(opens: int) -> None:
    fs = NoDescriptors()
    log = Compacted(fs=fs)
    for n in range(40):
        log.put((f"k{n % 4}", f"v{n}"))
    log.roll()
    log.reopen()
    before, failed = log.table(), 0
    for group in clean_log(fs, log.request()):
        if not isinstance(group, CleanedGroup):
            continue
        for step in SegmentSwap(log.log, group).iter_steps():
            fs.why, fs.opens_left = errno.EMFILE, opens
            try:
                step.run()
            except OSError:
                failed += 1
                fs.why = None
                assert log.table() == before
                step.run()
            fs.why = None
    assert log.table() == before
    assert failed or opens
    log.reopen()
    assert log.table() == before


def test_a_step_that_finds_no_descriptor_is_run_again_and_one_that_meets_a_broken_disk_is_not() -> None:
    tries: list[int] = []

    def sync(why: int) -> None:
        tries.append(why)
        if len(tries) == 1:
            raise OSError(why, "no sync")

    for kind in (InlineStep, BlockingStep):
        asyncio.run(_run_step(kind(lambda: sync(errno.EMFILE))))
        assert tries == [errno.EMFILE] * 2
        tries.clear()
    with pytest.raises(OSError, match="no sync"):
        asyncio.run(_run_step(InlineStep(lambda: sync(errno.EIO))))
    assert tries == [errno.EIO]
