"""The reserve on a real file system that is really full."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import LeaderEpoch, TopicPartition
from tallystick.kernel.limits import MIB
from tallystick.protocol.records import BatchMeta, Record, encode_batch
from tallystick.storage.disk.fs import DiskFull, RealFileSystem
from tallystick.storage.disk.reserve import RESERVE_FILE, DiskReserve
from tallystick.storage.log.loader import create_log
from tallystick.storage.log.log import Log, LogHooks
from tallystick.storage.segments.log_segment import OpenSegmentCache
from tallystick.storage.state.validation import LogConfig

SIZE = 2 * MIB


pytestmark = pytest.mark.mount


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 8 MiB."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.strip()}")
    try:
        yield tmp_path
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def write(log: Log) -> None:
    record = Record(offset=0, timestamp_ms=1, key=None, value=b"x" * 100_000, headers=())
    answer = log.append(encode_batch([record], BatchMeta()), now_ms=1, leader_epoch=LeaderEpoch(0))
    assert not isinstance(answer, Reject)


def fits(log: Log) -> bool:
    try:
        write(log)
    except DiskFull:
        return False
    return True


def test_a_full_disk_still_takes_what_must_be_written(small_disk: Path) -> None:
    """[RSV-1] Data is refused before the reserve is touched; what was acknowledged stays readable."""
    fs = RealFileSystem()
    reserve = DiskReserve(fs, str(small_disk), SIZE)
    assert reserve.restore()
    hooks = LogHooks(space_guard=reserve, segment_cache=OpenSegmentCache())
    data = create_log(fs, f"{small_disk}/t-0", TopicPartition("t", 0), LogConfig(), hooks)
    internal = create_log(fs, f"{small_disk}/i-0", TopicPartition("i", 0), LogConfig(internal=True), hooks)
    while fits(data):
        pass
    end = data.log_end_offset
    assert reserve.is_whole
    assert (small_disk / RESERVE_FILE).stat().st_size == SIZE
    for _ in range(5):
        write(internal)
    assert internal.sync() == 5
    assert not reserve.is_whole
    assert not fits(data)
    result = data.reader.read(end - 1, 1 << 20, upper=end)
    assert not isinstance(result, Reject)
    assert b"x" * 100_000 in result.data
    # A reader of data that was there frees room by deleting a topic: data flows again.
    data.close(clean=False)
    for path in (small_disk / "t-0").iterdir():
        path.unlink()
    assert reserve.restore()
    other = create_log(fs, f"{small_disk}/u-0", TopicPartition("u", 0), LogConfig(), hooks)
    assert fits(other)
    for log in (internal, other):
        log.close(clean=False)
