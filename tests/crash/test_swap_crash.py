"""Power is lost after every effect of a compaction: the log has the old segments or the new ones.

Never both, never neither, and the newest value of each key is there in any case [CLN-3].
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Final, get_args

import pytest
from tests.support.compacted import DIRECTORY, Compacted, find_segment_end
from tests.support.effort import LONG

from harness.memory_fs import MemoryFileSystem, PowerLost, SurvivingChanges
from tallystick.kernel.ids import ProducerEpoch, ProducerId, ProducerIdAndEpoch
from tallystick.storage.compaction.cleaner import CleanedGroup, clean_log
from tallystick.storage.disk.fs import make_directory
from tallystick.storage.segments.segment_scan import make_file_name

SEEDS: Final = 60 if LONG else 1
KEEPS: Final = get_args(SurvivingChanges)
P1 = ProducerIdAndEpoch(ProducerId(1), ProducerEpoch(0))


def dirty_log() -> Compacted:
    """Several segments with overwritten keys, a tombstone, an aborted and a committed transaction."""
    log = Compacted()
    for n in range(24):
        log.put((f"k{n % 3}", f"v{n}"))
    log.put(("k0", "aborted"), producer=P1, sequence=0, transactional=True)
    log.end(P1, commit=False)
    log.put(("k1", "committed"), producer=P1, sequence=1, transactional=True)
    log.end(P1, commit=True)
    log.put(("k2", None))
    for n in range(6):
        log.put((f"late{n % 2}", f"v{n}"))
    log.roll()
    log.put(("active", "1"))
    log.log.sync()
    return log


EXPECTED: Final = dirty_log().table()


def count_effects() -> int:
    log = dirty_log()
    before = len(log.fs.effects)
    log.clean()
    return len(log.fs.effects) - before


EFFECTS: Final = count_effects()


def check_whole(log: Compacted, end: int) -> None:
    assert log.log.log_end_offset == end
    assert log.table() == EXPECTED
    offsets = [header.base_offset for header, _ in log.batches()]
    assert offsets == sorted(set(offsets)), "no batch twice, none out of order"
    bases = [segment.base_offset for segment in log.log.segments]
    for segment, following in zip(log.log.segments, bases[1:], strict=False):
        assert find_segment_end(segment) <= following, "segments do not overlap"
    names = log.fs.listdir(DIRECTORY)
    assert not [name for name in names if name.endswith((".cleaned", ".swap", ".deleted"))]
    assert log.log.producer_state_manager.active_producers[1].next_sequence == 2


@pytest.mark.gate(13)
@pytest.mark.parametrize(
    ("effect", "keep"),
    [
        (effect, keep)
        for effect in range(EFFECTS)
        for keep in (KEEPS if LONG else (KEEPS[effect % len(KEEPS)],))
    ],
)
def test_a_crash_leaves_the_old_segments_or_the_new(effect: int, keep: SurvivingChanges) -> None:
    """[CLN-3]"""
    for seed in range(SEEDS if keep == "unordered" else 1):
        crash_and_check(effect, keep, 1000 * effect + seed)


def crash_and_check(effect: int, keep: SurvivingChanges, seed: int) -> None:
    log = dirty_log()
    end = log.log.log_end_offset
    recovery_point = log.log.recovery_point
    fs: MemoryFileSystem = log.fs
    fs.crash_after = len(fs.effects) + effect
    with pytest.raises(PowerLost):
        log.clean()
    fs.crash(keep, seed)
    log.reopen(recovery_point=recovery_point)
    check_whole(log, end)
    # The next round finds nothing in its way, from wherever the lost checkpoint lets it begin.
    log.first_dirty = 0
    log.clean()
    check_whole(log, end)


@pytest.mark.gate(1)
@pytest.mark.parametrize("keep", ["prefix", "unordered"])
@pytest.mark.parametrize("effect", range(0, EFFECTS, 3 if LONG else 9))
def test_a_crash_in_the_recovery_of_a_crash(effect: int, keep: SurvivingChanges) -> None:
    """[CLN-3] Finishing an exchange can itself be interrupted, after any of its effects."""
    second = 0
    while True:
        log = dirty_log()
        end, recovery_point = log.log.log_end_offset, log.log.recovery_point
        log.fs.crash_after = len(log.fs.effects) + effect
        with pytest.raises(PowerLost):
            log.clean()
        log.fs.crash(keep, seed=effect)
        log.fs.crash_after = second
        try:
            log.reopen(recovery_point=recovery_point)
        except PowerLost:
            log.fs.crash(keep, seed=effect + second)
            log.reopen(recovery_point=recovery_point)
            check_whole(log, end)
            second += 1
            continue
        log.fs.crash_after = None
        check_whole(log, end)
        return


def test_a_clean_stop_after_a_compaction_opens_without_a_scan() -> None:
    log = dirty_log()
    log.clean()
    end = log.log.log_end_offset
    log.log.close(clean=True)
    log.reopen(clean_stop=True)
    check_whole(log, end)


@pytest.mark.gate(1)
@pytest.mark.parametrize("keep", ["prefix", "unordered"])
def test_an_exchange_that_was_not_committed_is_undone_as_a_whole(keep: SurvivingChanges) -> None:
    """[CLN-3] Undoing it may itself be interrupted: what is left must not pass for a committed one."""
    log = dirty_log()
    end, recovery_point = log.log.log_end_offset, log.log.recovery_point
    group = next(step for step in clean_log(log.fs, log.request()) if isinstance(step, CleanedGroup))
    base = f"{DIRECTORY}/{make_file_name(group.base_offset, '')}"
    for suffix in (".index", ".timeindex", ".txnindex"):
        log.fs.rename(f"{base}{suffix}.cleaned", f"{base}{suffix}.swap")
    log.fs.sync_dir(DIRECTORY)
    disk = log.fs.files()
    for effect in range(8):
        for seed in range(10):
            log.fs = MemoryFileSystem()
            write_files(log.fs, disk)
            log.fs.crash_after = len(log.fs.effects) + effect
            with suppress(PowerLost):
                log.reopen(recovery_point=recovery_point)
            log.fs.crash(keep, seed)
            log.reopen(recovery_point=recovery_point)
            check_whole(log, end)
            assert log.log.segments[0].size == len(disk[f"{base}.log"])
            assert log.fs.files()[f"{base}.index"] == disk[f"{base}.index"]


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".txnindex", ".log"])
def test_new_files_that_are_in_place_before_the_others_are_kept(suffix: str) -> None:
    """[CLN-3] A disk may apply the renames of `attach` in any order, and lose what was not synced.

    A transaction index that is removed with the old segments' files is not to be had again: the snapshot that
    it would be rebuilt from is synced by nothing.
    """
    log = dirty_log()
    end, recovery_point = log.log.log_end_offset, log.log.recovery_point
    log.clean()
    disk = log.fs.files()
    for name in [name for name in disk if name.endswith(".snapshot")]:
        disk[name] = b""
    bases = {name.rpartition(".")[0] for name in disk if name.endswith(".txnindex") and disk[name]}
    assert bases, "one segment has an aborted transaction"
    for base in bases:
        for other in {".index", ".timeindex", ".txnindex", ".log"} - {suffix}:
            disk[f"{base}{other}.swap"] = disk.pop(f"{base}{other}")
    log.fs = MemoryFileSystem()
    write_files(log.fs, disk)
    log.reopen(recovery_point=recovery_point)
    check_whole(log, end)
    for base in bases:
        former = f"{base}.txnindex" if suffix == ".txnindex" else f"{base}.txnindex.swap"
        assert log.fs.files()[f"{base}.txnindex"] == disk[former]


def write_files(fs: MemoryFileSystem, disk: Mapping[str, bytes]) -> None:
    for name, data in disk.items():
        make_directory(fs, name.rpartition("/")[0])
        file = fs.open_append(name)
        file.write([data])
        file.sync()
    fs.sync_dir(DIRECTORY)
