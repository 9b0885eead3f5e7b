"""Power fails around a roll, perhaps after a failed call: what was synced is there, the log opens [LOG-3].

Under `flush.policy=ack` a closed segment is believed to be on the disk, and damage in it is refused. So all
states in which a roll can leave the disk are tried here: each call fails once with each error, power fails
after each effect, and of what was not synced then, names and bytes, every combination is kept.
"""

import errno
import os
from collections.abc import Sequence
from contextlib import suppress

import pytest
from tests.support.effort import LONG

from harness.memory_fs import MemoryFileSystem, PowerLost, iter_choosers
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import LeaderEpoch, TopicPartition
from tallystick.protocol.records import BatchMeta, Record, decode_records, encode_batch, iter_headers
from tallystick.storage.disk.fs import LogOffline, OutOfDescriptors, StorageFailure
from tallystick.storage.disk.reserve import UnlimitedSpace
from tallystick.storage.log.loader import PriorShutdown, create_log, open_log
from tallystick.storage.log.log import AppendResult, Log, LogHooks
from tallystick.storage.segments.log_segment import OpenSegmentCache
from tallystick.storage.state.validation import LogConfig

# the short form takes every other call
NOW = 1_700_000_000_000
TP = TopicPartition("t", 0)
CONFIG = LogConfig(segment_bytes=220, index_interval_bytes=50)
DERIVED = (".index", ".timeindex", ".snapshot")
# Which calls an error can come from.
ERRORS = {
    errno.ENOSPC: ("open", "write", "rename"),
    errno.EIO: ("write", "sync", "truncate", "sync_dir", "rename", "remove"),
    errno.EMFILE: ("open",),
}


def hooks() -> LogHooks:
    return LogHooks(space_guard=UnlimitedSpace(), segment_cache=OpenSegmentCache())


class Calls:
    """Fails the n-th call that can fail so, and no other."""

    def __init__(self, failing: int | None, error: int) -> None:
        self.count = 0
        self.failed_at = 0
        self._failing, self._error = failing, error
        self._effects: Sequence[object] = ()

    def watch(self, effects: Sequence[object]) -> "Calls":
        """Note in `failed_at` how many of these effects there were when the call failed."""
        self._effects = effects
        return self

    def __call__(self, name: str, path: str) -> OSError | None:
        self.count += name in ERRORS[self._error]
        if self.count != self._failing or name not in ERRORS[self._error]:
            return None
        self.failed_at = len(self._effects)
        return OSError(self._error, os.strerror(self._error), path)


class Life:
    """A record that is synced, one that may fail and is given up, a roll, and records in the next segment.

    Args:
        insists: a roll that failed is tried again at once; else what comes next goes into the old segment.
    """

    def __init__(self, fs: MemoryFileSystem, *, insists: bool) -> None:
        self.fs = fs
        self.insists = insists
        self.synced: list[tuple[int, int]] = []  # effects, and the end that was on the disk by then
        self.begin = 0

    def run(self, fault: Calls) -> None:
        fs = self.fs
        fs.mkdir("d")
        fs.sync_dir("")
        log = create_log(fs, "d", TP, CONFIG, hooks())
        write(log)
        self.sync(log)
        self.begin = len(fs.effects)
        fs.fault = fault
        with suppress(LogOffline):
            for step in (write, roll, write, roll, write):
                try:
                    step(log)
                except StorageFailure:
                    if log.failure is not None:
                        raise
                    if self.insists and step is roll:
                        roll(log)
            self.sync(log)
        fs.fault = None

    def sync(self, log: Log) -> None:
        try:
            end = log.sync()
        except OutOfDescriptors:
            end = log.sync()  # as the group commit does: nothing was done, and the disk is as good as before
        self.synced.append((len(self.fs.effects), end))


def roll(log: Log) -> None:
    log.roll(NOW)


def write(log: Log) -> None:
    """One record, which names its offset."""
    value = b"value %d " % log.log_end_offset * 2
    record = Record(offset=0, timestamp_ms=NOW, key=b"k", value=value, headers=())
    result = log.append(encode_batch([record], BatchMeta()), now_ms=NOW, leader_epoch=LeaderEpoch(0))
    assert isinstance(result, AppendResult), result


def check(fs: MemoryFileSystem, promised: int) -> None:
    """The log opens, has what was promised, and each record is the one of its offset; it goes on."""
    if not fs.exists("d"):
        assert not promised
        return
    log, _ = open_log(fs, "d", TP, CONFIG, hooks(), PriorShutdown(was_clean=False))
    assert log.log_end_offset >= promised
    write(log)
    write(log)
    log.sync()
    read(log)
    log.close(clean=True)
    again, report = open_log(
        fs, "d", TP, CONFIG, hooks(), PriorShutdown(was_clean=True, recovery_point=log.log_end_offset)
    )
    assert report.was_clean
    read(again)


def read(log: Log) -> None:
    """Each offset by itself, backwards: no reader has been there before who knows where it is."""
    for at in reversed(range(log.log_end_offset)):
        result = log.reader.read(at, 1, upper=log.log_end_offset)
        assert not isinstance(result, Reject)
        assert result.data, f"nothing at offset {at} of {log.log_end_offset}"
        ((position, header),) = iter_headers(result.data)
        assert header.base_offset == header.last_offset == at
        (record,) = decode_records(result.data, position)
        assert record.value == b"value %d " % at * 2


def crash_everywhere(error: int, failing: int | None = None, *, insists: bool = True) -> int:
    """Power lost after each effect from the failed call on; returns how many disks were looked at."""
    fs = MemoryFileSystem()
    whole, calls = Life(fs, insists=insists), Calls(failing, error).watch(fs.effects)
    whole.run(calls)
    checked: set[tuple[int, bytes]] = set()
    for after in range(max(whole.begin, calls.failed_at - 1), len(whole.fs.effects)):
        promised = max(end for at, end in whole.synced if at <= after)
        for choose in iter_choosers():
            fs = MemoryFileSystem(crash_after=after)
            with pytest.raises(PowerLost):
                Life(fs, insists=insists).run(Calls(failing, error))
            fs.fault = None
            fs.crash_choosing(choose, DERIVED)
            disk = (promised, repr(sorted(fs.files().items())).encode())
            if disk not in checked:
                checked.add(disk)
                check(fs, promised)
    return len(checked)


def test_a_roll_survives_power_loss_in_every_order_of_what_was_not_synced() -> None:
    """[LOG-3]: no call fails: names and bytes alone."""
    assert crash_everywhere(errno.EIO) > 50


@pytest.mark.gate(1)
@pytest.mark.parametrize("insists", [True, False], ids=["again", "given up"])
@pytest.mark.parametrize("error", ERRORS, ids=[errno.errorcode[error] for error in ERRORS])
def test_a_roll_after_a_failed_call_survives_power_loss(error: int, insists: bool) -> None:
    """[LOG-3], [LOG-4]: each call around the roll fails once, then power."""
    counted = Calls(None, error)
    Life(MemoryFileSystem(), insists=insists).run(counted)
    for failing in range(1 + (insists and not LONG), counted.count + 1, 1 if LONG else 2):
        crash_everywhere(error, failing, insists=insists)
