"""Rounds of compaction over real files (in memory): what a reader finds afterwards."""

import io
import json
from itertools import islice

import pytest
from tests.support.compacted import CONFIG, DIRECTORY, Compacted, find_segment_end

from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import INT64_MAX, ProducerEpoch, ProducerId, ProducerIdAndEpoch
from tallystick.kernel.value import replace
from tallystick.protocol.records import (
    HEADER_SIZE,
    BatchMeta,
    Codec,
    Record,
    compression,
    encode_batch,
    iter_headers,
    read_header,
)
from tallystick.storage.compaction.cleaner import (
    CleanedGroup,
    CleaningFailed,
    CleaningRequest,
    clean_log,
    run_request,
)
from tallystick.storage.compaction.swap import SegmentSwap
from tallystick.storage.disk.fs import CorruptLog
from tallystick.storage.log import reader as log_reader
from tallystick.storage.log.log import delete_oldest_segments
from tallystick.storage.state.producer_state import AppendOrigin

P1 = ProducerIdAndEpoch(ProducerId(1), ProducerEpoch(0))
P2 = ProducerIdAndEpoch(ProducerId(2), ProducerEpoch(0))


def test_the_newest_value_of_each_key_survives() -> None:
    log = Compacted()
    for n in range(40):
        log.put((f"k{n % 4}", f"v{n}"))
    log.roll()
    before = log.table()
    size = log.log.size_bytes
    done = log.clean()
    assert log.table() == before == {"k0": "v36", "k1": "v37", "k2": "v38", "k3": "v39"}
    assert [key for _, key, _ in log.records()] == ["k0", "k1", "k2", "k3"]
    assert done.end_offset == 40
    assert log.log.size_bytes < size / 4
    assert log.log.log_end_offset == 40


def test_offsets_stay_and_reads_cross_the_gaps() -> None:
    log = Compacted()
    for n in range(40):
        log.put((f"k{n % 4}", f"v{n}"))
    log.roll()
    log.clean()
    result = log.log.reader.read(3, 1 << 20, upper=40)
    assert not isinstance(result, Reject)
    assert [offset for offset, _, _ in log.records()] == [36, 37, 38, 39]


def test_the_last_segment_is_not_touched() -> None:
    log = Compacted()
    log.put(("a", "1"), ("a", "2"))
    log.roll()
    log.put(("a", "3"), ("a", "4"))
    log.log.sync()
    log.clean()
    assert log.records() == [(1, "a", "2"), (2, "a", "3"), (3, "a", "4")]


def test_a_tombstone_is_kept_for_the_horizon_and_then_removed() -> None:
    """KIP-534: the horizon begins with the round that meets the tombstone."""
    log = Compacted()
    log.put(("a", "1"), ("b", "1"))
    log.put(("a", None))
    log.roll()
    log.now_ms += 10_000  # the age of the tombstone does not count
    log.clean()
    assert log.records() == [(1, "b", "1"), (2, "a", None)]
    assert log.batches()[-1][0].delete_horizon_ms == log.now_ms + 1_000
    log.now_ms += 999
    log.clean_all()
    assert log.records() == [(1, "b", "1"), (2, "a", None)]
    log.now_ms += 1
    log.clean_all()
    assert log.records() == [(1, "b", "1")]


def test_tombstones_are_kept_for_ever_where_the_horizon_is_beyond_all_time() -> None:
    """No horizon is written then, so that a shorter setting counts from the round that first knows it."""
    log = Compacted(config=replace(CONFIG, delete_retention_ms=INT64_MAX))
    log.put(("a", "1"), ("b", "1"))
    log.put(("a", None))
    log.roll()
    log.clean()
    log.now_ms += 10**15
    log.clean_all()
    assert log.records() == [(1, "b", "1"), (2, "a", None)]
    assert log.batches()[-1][0].delete_horizon_ms is None


def test_aborted_records_go_and_do_not_count_as_newest() -> None:
    log = Compacted()
    log.put(("a", "kept"))
    log.put(("a", "aborted"), ("b", "aborted"), producer=P1, sequence=0, transactional=True)
    log.end(P1, commit=False)
    log.put(("c", "1"))
    log.roll()
    log.clean()
    assert log.table() == {"a": "kept", "c": "1"}
    assert [(key, value) for _, key, value in log.records()] == [("a", "kept"), ("c", "1")]


def test_committed_records_compact_across_transactions() -> None:
    log = Compacted()
    log.put(("a", "1"), producer=P1, sequence=0, transactional=True)
    log.end(P1, commit=True)
    log.put(("a", "2"), producer=P1, sequence=1, transactional=True)
    log.end(P1, commit=True)
    log.roll()
    log.clean()
    assert log.records() == [(2, "a", "2")]


def test_an_open_transaction_holds_cleaning_back() -> None:
    """[CLN-4]"""
    log = Compacted()
    log.put(("a", "1"))
    log.roll()
    log.put(("a", "2"), producer=P1, sequence=0, transactional=True)
    log.roll()
    log.put(("a", "3"))
    log.roll()
    request = log.request()
    assert [base for base, _, _ in request.segments] == [0]


def test_a_marker_goes_after_its_records_and_one_horizon() -> None:
    log = Compacted()
    log.put(("a", "1"), producer=P1, sequence=0, transactional=True)
    log.end(P1, commit=True)
    log.put(("a", "2"))
    log.put(("z", "1"))
    log.roll()
    log.log.producer_state_manager.remove_expired(log.now_ms, 1)
    log.log.producer_state_manager.remove_expired(log.now_ms + 10**9, 1)  # P1 writes no more
    log.clean()  # the record goes; the marker was met with it
    assert [header.is_control for header, _ in log.batches()] == [True, False, False]
    log.clean_all()  # nothing of the transaction is met: the horizon begins
    markers = [header for header, _ in log.batches() if header.is_control]
    assert [header.delete_horizon_ms for header in markers] == [log.now_ms + 1_000]
    log.now_ms += 1_000
    log.clean_all()
    assert not [header for header, _ in log.batches() if header.is_control]


def test_a_live_producer_goes_on_where_it_was() -> None:
    """[CLN-5] KAFKA-4523: the batch with its last sequence stays, emptied."""
    log = Compacted()
    log.put(("a", "1"), ("b", "1"), producer=P1, sequence=7)
    log.put(("a", "2"), ("b", "2"))
    log.roll()
    log.clean()
    empty = read_header(log.log.segments[0].file.pread(HEADER_SIZE, 0))
    assert (empty.record_count, empty.base_sequence, empty.last_sequence) == (0, 7, 8)
    for name in log.fs.listdir(DIRECTORY):
        if name.endswith(".snapshot"):
            log.fs.remove(f"{DIRECTORY}/{name}")
    log.reopen()
    assert log.log.producer_state_manager.active_producers[1].next_sequence == 9


def test_a_producer_known_by_its_marker_alone_keeps_the_marker() -> None:
    """[CLN-5] KAFKA-9144: its epoch fences."""
    log = Compacted()
    fenced = ProducerIdAndEpoch(ProducerId(1), ProducerEpoch(5))
    log.end(fenced, commit=False)
    log.put(("a", "1"))
    log.roll()
    for _ in range(3):
        log.clean_all()
        log.now_ms += 10_000
    log.reopen()
    assert log.log.producer_state_manager.active_producers[1].epoch == 5


def test_every_new_segment_ends_where_the_old_ones_ended() -> None:
    """[CLN-2] From its last offset a recovery knows which segments it replaces."""
    log = Compacted()
    for n in range(60):
        log.put((f"k{n % 2}", f"v{n}"))
    log.roll()
    for step in clean_log(log.fs, log.request()):
        if hasattr(step, "old"):
            ends = {base: end for base, end, _ in log.request().segments}
            log.swap(step)
            new = next(s for s in log.log.segments if s.base_offset == step.base_offset)
            assert find_segment_end(new) == ends[step.old[-1]]


@pytest.mark.parametrize("steps", [1, 3], ids=["old segments in place", "old segments renamed"])
def test_a_damaged_new_segment_is_refused_before_it_replaces_the_old_ones(steps: int) -> None:
    """[LOG-7] Its end tells which ones it replaces; until then they are the only good copy."""
    log = Compacted()
    for n in range(6):
        log.put((f"k{n}", "v"))
    log.roll()
    first_group = next(step for step in clean_log(log.fs, log.request()))
    assert isinstance(first_group, CleanedGroup)
    for step in islice(SegmentSwap(log.log, first_group).iter_steps(), steps):
        step.run()
    log.log.close(clean=False)
    name = f"{DIRECTORY}/{0:020d}.log.swap"
    log.fs.node(name).data[-1] ^= 1
    names = log.fs.listdir(DIRECTORY)
    with pytest.raises(CorruptLog) as caught:
        log.reopen()
    assert caught.value.file == name
    assert log.fs.listdir(DIRECTORY) == names


def make_emptied_log() -> Compacted:
    """Every segment but the last holds superseded records only, and is as full as a segment can be."""
    log = Compacted()
    for n in range(60):
        log.put(("k", f"v{n}"))
    log.roll()
    log.clean()
    return log


def list_batches(log: Compacted, offset: int, upper: int, max_bytes: int = 1 << 20) -> list[tuple[int, int]]:
    """Return offset and number of records of each batch that a read returns."""
    result = log.log.reader.read(offset, max_bytes, upper=upper)
    assert not isinstance(result, Reject)
    return [(header.last_offset, header.record_count) for _, header in iter_headers(result.data)]


@pytest.mark.parametrize("max_bytes", [0, 61, 1 << 20])
def test_a_reader_gets_no_emptied_batch_while_something_follows_it(max_bytes: int) -> None:
    """librdkafka takes an answer of nothing else for a fetch size that is too small, and gives up."""
    log = make_emptied_log()
    ends = [find_segment_end(segment) for segment in log.log.segments[:-1]]
    assert len(ends) > 11
    for offset in range(60):
        assert list_batches(log, offset, 60, max_bytes)[0] == (59, 1)


def test_a_reader_gets_the_last_emptied_batch_if_nothing_follows_it() -> None:
    """Its position reaches the end, as a consumer that waits for it must see."""
    log = make_emptied_log()
    ends = [find_segment_end(segment) for segment in log.log.segments[:-2]]
    for number, end in enumerate(ends):
        for offset in range(end):
            assert list_batches(log, offset, end) == [(end - 1, 0)], number


def test_one_read_passes_over_a_bounded_number_of_emptied_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    log = make_emptied_log()
    ends = [find_segment_end(segment) for segment in log.log.segments[:-2]]
    for most in (1, 2, len(ends) - 1):
        monkeypatch.setattr(log_reader, "_EMPTIED_PASSED_MAX", most)
        assert list_batches(log, 0, 60) == [(ends[most] - 1, 0)]
    monkeypatch.setattr(log_reader, "_EMPTIED_PASSED_MAX", len(ends))
    assert list_batches(log, 0, 60)[0] == (59, 1)


def test_a_full_map_ends_the_round_and_the_next_goes_on() -> None:
    """[CLN-1]"""
    log = Compacted()
    for n in range(100):
        log.put((f"k{n % 50}", f"v{n}"))
    log.roll()
    before = log.table()
    rounds = []
    while log.first_dirty < 100:
        rounds.append(log.clean(key_map_bytes=24 * 25))
        assert log.table() == before
    assert all(each.keys <= 22 for each in rounds)
    assert rounds[0].key_map_full
    assert not rounds[-1].key_map_full
    assert sorted(key for _, key, _ in log.records()) == sorted(before)


def test_one_batch_with_more_keys_than_memory_is_reported() -> None:
    log = Compacted()
    log.put(*((f"k{n}", "v") for n in range(10)))
    log.roll()
    with pytest.raises(CleaningFailed, match=r"log\.cleaner\.dedupe\.buffer\.size=120"):
        log.clean(key_map_bytes=24 * 5)


def test_damage_is_reported_and_nothing_is_left_behind() -> None:
    log = Compacted()
    log.put(("a", "1"))
    log.roll()
    log.fs.node(f"{DIRECTORY}/{0:020d}.log").data[65] ^= 1
    with pytest.raises(CleaningFailed, match="corrupt at byte 0"):
        log.clean()
    assert not [name for name in log.fs.listdir(DIRECTORY) if name.endswith(".cleaned")]


def test_a_round_does_not_take_aborted_records_for_committed_ones() -> None:
    """Where the index that names them is damaged."""
    log = Compacted()
    log.put(("a", "kept"))
    log.put(("a", "aborted"), producer=P1, sequence=0, transactional=True)
    log.end(P1, commit=False)
    log.roll()
    path = f"{DIRECTORY}/{0:020d}.txnindex"
    file = log.fs.open_append(path)
    file.truncate(file.size() - 1)
    file.close()
    before = log.records()
    with pytest.raises(CleaningFailed, match="corrupt at byte 0"):
        log.clean()
    assert log.records() == before


def test_a_batch_that_cannot_be_read_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything else is cleaned, but for tombstones behind it: they may delete what it holds."""
    log = Compacted()
    log.put(("a", "1"), ("b", "1"))
    log.put(("gone early", None))
    record = Record(offset=0, timestamp_ms=log.now_ms, key=b"deleted", value=bytes(400_000), headers=())
    unreadable = encode_batch([record], BatchMeta(codec=Codec.ZSTD))
    log.append(unreadable, AppendOrigin.CLIENT)
    log.put(("deleted", None))
    log.put(("a", "2"), ("b", "2"))
    log.roll()
    monkeypatch.setattr(compression, "DECOMPRESSED_BYTES_FLOOR", 1000)
    for _ in range(3):
        done = log.clean_all()
        log.now_ms += 10_000
    assert (done.end_offset, done.unread_batches) == (7, 1)
    monkeypatch.undo()
    assert [(offset, key) for offset, key, _ in log.records()] == [
        (3, "deleted"),
        (4, "deleted"),
        (5, "a"),
        (6, "b"),
    ]
    assert log.table() == {"a": "2", "b": "2"}
    log.clean_all()
    log.now_ms += 10_000
    log.clean_all()
    assert [key for _, key, _ in log.records()] == ["a", "b"]


def test_a_full_disk_leaves_nothing_behind() -> None:
    log = Compacted()
    for n in range(40):
        log.put((f"k{n}", f"v{n}"))
    log.roll()
    before = log.records()
    log.fs.capacity = sum(map(len, log.fs.files().values())) + 100
    with pytest.raises(OSError, match="no space"):
        log.clean()
    assert not [name for name in log.fs.listdir(DIRECTORY) if name.endswith(".cleaned")]
    assert log.records() == before


def test_indexes_of_a_new_segment_find_every_offset() -> None:
    log = Compacted(config=replace(CONFIG, segment_bytes=20_000))
    for n in range(200):
        log.put((f"k{n % 90}", f"v{n}"))
    log.roll()
    log.clean()
    offsets = [offset for offset, _, _ in log.records()]
    assert len(log.log.segments[0].index) > 0
    for offset in range(200):
        result = log.log.reader.read(offset, 1, upper=200)
        assert not isinstance(result, Reject)
        expected = next(each for each in offsets if each >= offset)
        assert int.from_bytes(result.data[:8], "big") <= expected


def test_deleted_segments_make_a_finished_group_worthless() -> None:
    log = Compacted()
    for n in range(40):
        log.put((f"k{n % 4}", f"v{n}"))
    log.roll()
    group = next(iter(clean_log(log.fs, log.request())))
    delete_oldest_segments(log.log, 1)
    assert hasattr(group, "old")
    swap = SegmentSwap(log.log, group)
    assert not swap.is_current()
    swap.remove_new_files()
    assert not [name for name in log.fs.listdir(DIRECTORY) if name.endswith(".cleaned")]


def test_reads_go_on_between_the_steps_of_an_exchange() -> None:
    log = Compacted()
    for n in range(40):
        log.put((f"k{n % 4}", f"v{n}"))
    log.roll()
    before = log.table()
    for group in clean_log(log.fs, log.request()):
        if hasattr(group, "old"):
            for step in SegmentSwap(log.log, group).iter_steps():
                assert log.table() == before
                step.run()
                assert log.table() == before


def test_the_worker_speaks_lines_of_json() -> None:
    log = Compacted()
    for n in range(40):
        log.put((f"k{n % 4}", f"v{n}"))
    log.roll()
    line = json.dumps(log.request().to_json())
    assert CleaningRequest.from_json(json.loads(line)) == log.request()
    output = io.StringIO()
    assert run_request(log.fs, line, output)
    said = [json.loads(each) for each in output.getvalue().splitlines()]
    assert [each["kind"] for each in said[-2:]] == ["group", "done"]
    assert said[-1]["end_offset"] == 40


def test_the_worker_says_when_it_found_no_room() -> None:
    log = Compacted()
    for n in range(40):
        log.put((f"k{n}", "v"))
    log.roll()
    log.fs.capacity -= log.fs.free_bytes() - 1
    output = io.StringIO()
    assert not run_request(log.fs, json.dumps(log.request().to_json()), output)
    assert json.loads(output.getvalue())["full"] is True
    assert not [name for name in log.fs.listdir(DIRECTORY) if name.endswith(".cleaned")]


def test_the_worker_says_why_it_failed() -> None:
    log = Compacted()
    log.put(*((f"k{n}", "v") for n in range(10)))
    log.roll()
    output = io.StringIO()
    assert not run_request(log.fs, json.dumps(log.request(key_map_bytes=120).to_json()), output)
    assert json.loads(output.getvalue())["kind"] == "failed"


def test_the_worker_says_why_it_failed_whatever_it_was() -> None:
    output = io.StringIO()
    assert not run_request(Compacted().fs, "{}", output)
    said = json.loads(output.getvalue())
    assert said["kind"] == "failed"
    assert said["reason"].startswith("KeyError")


def test_an_abort_in_the_clean_part_hides_no_commit_in_the_dirty_part() -> None:
    """A round begins to note keys in the middle of the log: older entries of the index are not its own."""
    log = Compacted()
    log.put(("a", "x"), producer=P1, sequence=0, transactional=True)
    log.end(P1, commit=False)
    log.put(("b", "1"))
    log.roll()
    log.first_dirty = log.log.log_end_offset
    log.put(("k", "1"))
    log.put(("k", "2"), producer=P1, sequence=1, transactional=True)
    log.end(P1, commit=True)
    log.roll()
    log.clean()
    assert [(key, value) for _, key, value in log.records() if key == "k"] == [("k", "2")]
