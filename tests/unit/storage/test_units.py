"""The units in which storage and frames work, drawn small: data just below, exactly on and far above each."""

from itertools import product
from pathlib import Path

import pytest
from tests.support.compacted import Compacted

from tallystick.protocol import frames
from tallystick.storage.compaction import rules
from tallystick.storage.disk import fs

UNIT = 4
SIZES = [0, 1, UNIT - 1, UNIT, UNIT + 1, 2 * UNIT, 2 * UNIT + 1, 10 * UNIT]


@pytest.mark.parametrize("size", SIZES)
def test_a_write_of_any_number_of_buffers_is_whole(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fs, "_IOV_MAX", UNIT)
    buffers = [b"%d," % number for number in range(size)]
    file = fs.RealFileSystem().open_append(str(tmp_path / "f"))
    file.write(buffers)
    file.close()
    assert (tmp_path / "f").read_bytes() == b"".join(buffers)


def test_joined_parts_have_the_same_bytes_in_the_same_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "JOINED_BYTES_MIN", UNIT)
    for first, second in product(SIZES, SIZES):
        parts = [b"a" * first, b"b" * second, b"c", b"d" * first]
        joined = frames.join_small(parts)
        assert b"".join(joined) == b"".join(parts)
        assert all(any(part is large for part in joined) for large in parts if len(large) >= UNIT)


@pytest.mark.parametrize("count", SIZES)
def test_a_key_map_that_grows_forgets_no_key(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "_SLOTS_FIRST", UNIT)
    keys = rules.KeyMap(24 * 1000)
    for number in range(count):
        assert keys.put(b"%d" % number, number)
        assert [keys.find_newest_offset(b"%d" % known) for known in range(number + 1)] == [*range(number + 1)]
    assert keys.key_count == count


@pytest.mark.parametrize("segments", SIZES[1:])
def test_a_log_of_any_number_of_segments_is_cleaned(segments: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "GROUP_SEGMENTS_MAX", UNIT)
    log = Compacted()
    for number in range(segments):
        log.put(("k", f"v{number}"), (f"k{number % 3}", "v"))
        log.roll()
    table = log.table()
    log.clean()
    assert log.table() == table
    assert len(log.log.segments) == -(-segments // UNIT) + 1
