"""Retention and compaction as the broker runs them: real files, a real child process."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

from tallystick.broker.partitions.log_cleaner import CleanerDiskFull, CleaningConfig, LogCleaner
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import INT64_MAX, LeaderEpoch, TopicPartition
from tallystick.kernel.value import replace
from tallystick.protocol.records import BatchMeta, Record, decode_records, encode_batch, iter_headers
from tallystick.storage.compaction.swap import SegmentSwap
from tallystick.storage.disk.fs import RealFileSystem
from tallystick.storage.disk.reserve import UnlimitedSpace
from tallystick.storage.log.loader import create_log
from tallystick.storage.log.log import Log, LogHooks
from tallystick.storage.segments.log_segment import OpenSegmentCache
from tallystick.storage.state.validation import LogConfig
from tallystick.testing import FakeClock

pytestmark = pytest.mark.server
NAME = TopicPartition("t", 0)
CONFIG = LogConfig(segment_bytes=2_000, cleanup_policy=frozenset({"compact"}), file_delete_delay_ms=0)


def on_loop(test: Callable[[Path], Coroutine[Any, Any, None]]) -> Callable[[Path], None]:
    """Run a test on a loop of its own."""

    @wraps(test)
    def run(tmp_path: Path) -> None:
        asyncio.run(test(tmp_path))

    return run


class Stopwatch(FakeClock):
    """Says when it is read, which a round does when it begins."""

    def __init__(self) -> None:
        super().__init__(1_000_000)
        self.read = asyncio.Event()

    def monotonic_ms(self) -> int:
        self.read.set()
        return super().monotonic_ms()


@dataclass
class World:
    path: Path
    config: LogConfig = CONFIG
    clock: Stopwatch = field(default_factory=Stopwatch)
    cleaned: dict[TopicPartition, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        hooks = LogHooks(space_guard=UnlimitedSpace(), segment_cache=OpenSegmentCache())
        self.log = create_log(RealFileSystem(), f"{self.path}/t-0", NAME, self.config, hooks)
        self.logs: dict[TopicPartition, Log] = {NAME: self.log}
        config = CleaningConfig(enabled=True, backoff_ms=1, retention_interval_ms=1, key_map_bytes=1 << 20)
        self.cleaning = LogCleaner(self.logs, self.cleaned, lambda: config, self.clock)

    def write(self, count: int, *, keys: int = 5) -> None:
        for n in range(count):
            record = Record(0, self.clock.now_ms(), f"k{n % keys}".encode(), f"v{n}".encode(), ())
            answer = self.log.append(
                encode_batch([record], BatchMeta()), now_ms=self.clock.now_ms(), leader_epoch=LeaderEpoch(0)
            )
            assert not isinstance(answer, Reject)
        self.log.sync()

    def write_tombstone(self, key: str) -> None:
        batch = encode_batch([Record(0, self.clock.now_ms(), key.encode(), None, ())], BatchMeta())
        answer = self.log.append(batch, now_ms=self.clock.now_ms(), leader_epoch=LeaderEpoch(0))
        assert not isinstance(answer, Reject)

    def table(self) -> dict[bytes | None, bytes | None]:
        found: dict[bytes | None, bytes | None] = {}
        offset, end = self.log.log_start_offset, self.log.log_end_offset
        while offset < end:
            result = self.log.reader.read(offset, 1 << 20, upper=end)
            assert not isinstance(result, Reject)
            if not result.data:
                break
            for at, header in iter_headers(result.data):
                found.update({record.key: record.value for record in decode_records(result.data, at)})
                offset = type(offset)(header.next_offset)
        return found

    async def round_begins(self) -> None:
        await asyncio.wait_for(self.clock.read.wait(), 30)

    def leftovers(self) -> list[str]:
        return [f.name for f in (self.path / "t-0").iterdir() if f.suffix in (".cleaned", ".swap")]


@on_loop
async def test_a_dirty_log_is_compacted_by_a_child(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.write(500)
    before, size = world.table(), world.log.size_bytes
    assert await world.cleaning.compact_once()
    assert world.table() == before
    assert world.log.size_bytes < size / 5
    assert world.cleaned[NAME] == world.log.active_segment.base_offset
    assert not world.leftovers()
    assert not await world.cleaning.compact_once()  # clean now
    world.write(5)
    assert world.table()[b"k0"] == b"v0"
    await world.cleaning.stop()


@pytest.mark.gate(0)
@on_loop
async def test_a_log_may_be_deleted_while_it_is_cleaned(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.write(3_000, keys=1_000)
    before = world.table()
    cleaning = asyncio.create_task(world.cleaning.compact_once())
    await world.round_begins()
    await world.cleaning.abort_cleaning(NAME)
    assert not await cleaning
    assert not world.leftovers()
    assert NAME not in world.cleaned
    assert world.table() == before
    await world.cleaning.stop()


@on_loop
async def test_stopping_ends_the_child(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.write(3_000, keys=1_000)
    before = world.table()
    world.cleaning.start()
    await world.round_begins()
    await world.cleaning.stop()
    assert world.cleaning._current_round is None or world.cleaning._current_round[1].done()
    assert world.table() == before
    assert not world.leftovers()


@pytest.mark.gate(0)
@on_loop
async def test_a_round_ends_where_records_were_deleted_meanwhile(tmp_path: Path) -> None:
    """What it leaves out must not count as clean: a tombstone further on may delete a value in it."""
    world = World(tmp_path)
    world.write(500)
    before, bases = world.table(), [segment.base_offset for segment in world.log.segments]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SegmentSwap, "is_current", lambda swap: False)
        assert not await world.cleaning.compact_once()
    assert NAME not in world.cleaned
    assert [segment.base_offset for segment in world.log.segments] == bases
    assert not world.leftovers()
    assert await world.cleaning.compact_once()
    assert world.table() == before
    assert world.cleaned[NAME] == world.log.active_segment.base_offset
    await world.cleaning.stop()


@pytest.mark.gate(0)
@on_loop
async def test_a_log_whose_compaction_fails_waits_longer_each_time(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.write(500)
    file = next(iter(sorted((tmp_path / "t-0").glob("*.log"))))
    whole = file.read_bytes()
    file.write_bytes(whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
    for rest_ms in (2, 4, 8):
        assert await world.cleaning.compact_once()
        assert not world.leftovers()
        world.clock.advance(rest_ms - 1)
        assert not await world.cleaning.compact_once()
        world.clock.advance(1)
    file.write_bytes(whole)
    assert await world.cleaning.compact_once()
    assert world.cleaned[NAME] == world.log.active_segment.base_offset
    await world.cleaning.stop()


@pytest.mark.gate(0)
@on_loop
async def test_tombstones_that_are_kept_for_ever_do_not_end_compaction(tmp_path: Path) -> None:
    """delete.retention.ms=9223372036854775807 is beyond the last time that a batch can name."""
    world = World(tmp_path, replace(CONFIG, delete_retention_ms=INT64_MAX))
    world.write(500)
    world.write_tombstone("k0")
    world.write(500, keys=2)
    assert await world.cleaning.compact_once()
    assert world.cleaned[NAME] == world.log.active_segment.base_offset
    await world.cleaning.stop()


@on_loop
async def test_a_log_that_found_no_room_is_tried_again(tmp_path: Path) -> None:
    """After the back-off, and others come first until then."""
    world = World(tmp_path)
    world.write(500)
    follow = world.cleaning._run_worker

    async def full(*_: object) -> dict[str, Any]:
        raise CleanerDiskFull("no space left on device")

    world.cleaning._run_worker = full  # type: ignore[method-assign]
    assert await world.cleaning.compact_once()
    world.cleaning._run_worker = follow  # type: ignore[method-assign]
    assert not world.leftovers()
    assert not await world.cleaning.compact_once()
    world.clock.advance(1)
    assert await world.cleaning.compact_once()
    assert world.cleaned[NAME] == world.log.active_segment.base_offset
    await world.cleaning.stop()


@on_loop
async def test_the_dirtiest_log_comes_first(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.write(500)
    other = TopicPartition("u", 0)
    hooks = LogHooks(space_guard=UnlimitedSpace(), segment_cache=OpenSegmentCache())
    world.logs[other] = create_log(RealFileSystem(), f"{tmp_path}/u-0", other, CONFIG, hooks)
    world.cleaned[NAME] = world.log.segments[-3].base_offset
    found = await world.cleaning._find_dirtiest()
    assert found is None  # two of many segments: below min.cleanable.dirty.ratio
    del world.cleaned[NAME]
    found = await world.cleaning._find_dirtiest()
    assert found is not None
    assert found[0] == NAME


@on_loop
async def test_retention_deletes_from_the_front(tmp_path: Path) -> None:
    policy = frozenset({"delete"})
    world = World(tmp_path, replace(CONFIG, cleanup_policy=policy, retention_ms=1_000))
    world.write(100)
    world.clock.advance(2_000)
    world.write(100)
    assert world.cleaning.apply_retention(NAME) > 0
    assert 0 < world.log.log_start_offset <= 100
    assert world.table()
    world.clock.advance(2_000)
    assert world.cleaning.apply_retention(NAME) > 0
    assert world.log.log_start_offset == world.log.log_end_offset == 200  # the last one, too
    world.write(1)
    assert world.log.log_end_offset == 201
    await world.cleaning.stop()
