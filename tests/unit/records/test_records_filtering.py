"""Rewriting batches: what stays, what may change, what is left when nothing is left."""

from typing import Any

import pytest

from tallystick.kernel.check import InvariantBroken
from tallystick.kernel.ids import ProducerEpoch, ProducerId, ProducerIdAndEpoch
from tallystick.protocol.records import (
    BatchMeta,
    Codec,
    ControlType,
    EndTransactionMarker,
    Record,
    ScannedKey,
    check_batch,
    decode_records,
    encode_batch,
    encode_marker,
    filter_batch,
    iter_headers,
    patch_log_append_time,
    read_marker,
)

RECORDS = [Record(20 + i, 1000 + i, b"key%d" % i, None if i % 5 == 4 else b"v" * i) for i in range(40)]
WRITER = ProducerIdAndEpoch(ProducerId(7), ProducerEpoch(1))


def batch(codec: Codec = Codec.NONE, **more: Any) -> bytes:
    meta = BatchMeta(
        base_offset=20, codec=codec, producer_id=7, producer_epoch=1, base_sequence=3, leader_epoch=2, **more
    )
    return encode_batch(RECORDS, meta)


@pytest.mark.parametrize("codec", Codec)
def test_codec_producer_and_offsets_stay(codec: Codec) -> None:
    """[REC-2]"""
    before = batch(codec)
    after = filter_batch(before, 0, lambda found: found.offset % 2 == 1, retain_empty=False)
    assert after is not None
    assert decode_records(after) == [record for record in RECORDS if record.offset % 2]
    old, new = check_batch(before), check_batch(after)
    assert (new.codec, new.base_offset, new.last_offset, new.partition_leader_epoch) == (codec, 20, 59, 2)
    assert (new.producer_id_and_epoch, new.base_sequence, new.last_sequence) == (WRITER, 3, old.last_sequence)
    assert (new.base_timestamp, new.max_timestamp, new.record_count) == (1001, 1039, 20)


def test_the_predicate_sees_what_compaction_decides_by() -> None:
    seen: list[ScannedKey] = []
    filter_batch(batch(), 0, lambda found: bool(seen.append(found)), retain_empty=False)
    assert seen == [(r.offset, r.timestamp_ms, r.key, r.value is None, len(r.value or b"")) for r in RECORDS]


@pytest.mark.parametrize("codec", Codec)
def test_an_untouched_batch_is_the_same_bytes(codec: Codec) -> None:
    before = batch(codec)
    padded = b"junk" + before + b"junk"
    assert filter_batch(padded, 4, lambda _: True, retain_empty=False) == before


def test_nothing_is_left_unless_a_live_producer_needs_its_sequence() -> None:
    before = batch(Codec.ZSTD, delete_horizon_ms=99)
    assert filter_batch(before, 0, set(), retain_empty=False) is None
    empty = filter_batch(before, 0, set(), retain_empty=True)
    assert empty is not None
    header = check_batch(empty)
    assert decode_records(empty) == []
    assert (len(empty), header.codec, header.record_count) == (61, Codec.NONE, 0)
    assert (header.last_offset, header.last_sequence, header.producer_id_and_epoch) == (59, 42, WRITER)
    assert (header.delete_horizon_ms, header.max_timestamp) == (None, 1039)
    # Cleaned again it stays, or goes for good.
    assert filter_batch(empty, 0, set(), retain_empty=True) == empty
    assert filter_batch(empty, 0, set(), retain_empty=False) is None


def test_a_delete_horizon_is_set_once_and_only_for_tombstones() -> None:
    """KIP-534: the first compaction past a tombstone starts its clock, later ones leave it running."""
    before = batch()
    without = filter_batch(before, 0, {20, 21}, retain_empty=False, horizon_ms=50_000)
    assert without is not None
    assert check_batch(without).delete_horizon_ms is None

    everything = {record.offset for record in RECORDS}
    first = filter_batch(before, 0, everything, retain_empty=False, horizon_ms=50_000)
    assert first is not None
    header = check_batch(first)
    assert (header.delete_horizon_ms, header.base_timestamp, header.max_timestamp) == (50_000, 50_000, 1039)
    assert decode_records(first) == RECORDS

    assert filter_batch(first, 0, everything, retain_empty=False, horizon_ms=60_000) == first
    fewer = filter_batch(first, 0, {24, 25}, retain_empty=False, horizon_ms=60_000)
    assert fewer is not None
    assert check_batch(fewer).delete_horizon_ms == 50_000
    assert decode_records(fewer) == [RECORDS[4], RECORDS[5]]


def test_a_marker_gets_a_horizon_when_its_transaction_is_gone() -> None:
    marker = EndTransactionMarker(control_type=ControlType.COMMIT, coordinator_epoch=3)
    before = encode_marker(marker, WRITER, timestamp_ms=1000, offset=60)
    assert filter_batch(before, 0, {60}, retain_empty=False) == before
    after = filter_batch(before, 0, {60}, retain_empty=False, horizon_ms=9000)
    assert after is not None
    assert check_batch(after).delete_horizon_ms == 9000
    assert read_marker(after) == marker
    emptied = filter_batch(after, 0, set(), retain_empty=True)
    assert emptied is not None
    assert check_batch(emptied).is_control
    assert read_marker(emptied) is None


def test_the_brokers_time_stays_for_every_record() -> None:
    before = bytearray(batch(Codec.LZ4))
    patch_log_append_time(before, 0, 77_000)
    after = filter_batch(before, 0, {30, 31}, retain_empty=False)
    assert after is not None
    assert [record.timestamp_ms for record in decode_records(after)] == [77_000, 77_000]
    assert check_batch(after).log_append_time_ms == 77_000


def test_names_that_are_not_text_survive_compaction() -> None:
    """Headers are carried over unread; only a reader replaces what is not UTF-8."""
    odd = encode_batch([Record(0, 1, b"k", b"v", (("??", b"x"),)), Record(1, 1)], BatchMeta())
    odd = odd.replace(b"??", b"\xff\xfe")
    after = filter_batch(odd, 0, {0}, retain_empty=False)
    assert after is not None
    assert b"\xff\xfe" in after
    assert decode_records(after)[0].headers == (("��", b"x"),)
    assert [header.record_count for _, header in iter_headers(after)] == [1]


def test_an_unreadable_batch_is_never_written() -> None:
    for records, meta in (
        ([], BatchMeta()),
        ([Record(5, 0)], BatchMeta(base_offset=6)),
        ([Record(5, 0), Record(5, 0)], BatchMeta(base_offset=5)),
        ([Record(2**31, 0)], BatchMeta()),
        ([Record(0, 0)], BatchMeta(producer_id=1)),
        ([Record(0, 0)], BatchMeta(producer_id=1, producer_epoch=0)),
        ([Record(0, 0)], BatchMeta(is_transactional=True)),
    ):
        with pytest.raises(InvariantBroken):
            encode_batch(records, meta)
