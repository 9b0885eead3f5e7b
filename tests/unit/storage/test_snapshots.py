"""Producer snapshots, byte for byte as Kafka writes them."""

import pytest

from tallystick.storage.checkpoints.checkpoint_text import MalformedFile
from tallystick.storage.checkpoints.snapshots import (
    CachedBatch,
    ProducerSnapshotEntry,
    decode_snapshot,
    encode_snapshot,
)

# Written by ProducerStateManager.writeSnapshot of kafka-storage 4.3.1 for ENTRIES.
WRITTEN_BY_KAFKA = bytes.fromhex(
    "00012ba1f79b00000003"
    "0000000000000007000300000004000000000000003c000000090000018bcfe5687b000000050000000000000029"
    "0000000000000008000000000013000000000000005000000000 0000018bcfe569c8ffffffffffffffffffffffff"
    "00000000000000097fffffffffffffffffffffffffff000000000000018bcfe56b1500000002ffffffffffffffff"
)
ENTRIES = (
    ProducerSnapshotEntry(
        producer_id=7,
        epoch=3,
        last_batch=CachedBatch(2_147_483_643, 4, 51, 60, 1_700_000_000_123),  # wraps
        last_timestamp_ms=1_700_000_000_123,
        coordinator_epoch=5,
        current_txn_first_offset=41,
    ),
    ProducerSnapshotEntry(
        producer_id=8,
        epoch=0,
        last_batch=CachedBatch(19, 19, 80, 80, 1_700_000_000_456),
        last_timestamp_ms=1_700_000_000_456,
        coordinator_epoch=None,
        current_txn_first_offset=None,
    ),
    ProducerSnapshotEntry(
        producer_id=9,
        epoch=32_767,
        last_batch=None,
        last_timestamp_ms=1_700_000_000_789,
        coordinator_epoch=2,
        current_txn_first_offset=None,
    ),
)


def test_bytes_are_kafka_s() -> None:
    assert encode_snapshot(ENTRIES) == WRITTEN_BY_KAFKA
    assert decode_snapshot(WRITTEN_BY_KAFKA) == ENTRIES


def test_no_producers() -> None:
    assert decode_snapshot(encode_snapshot(())) == ()


@pytest.mark.parametrize("size", range(len(WRITTEN_BY_KAFKA)))
@pytest.mark.slow
def test_a_cut_snapshot_is_refused(size: int) -> None:
    with pytest.raises(MalformedFile):
        decode_snapshot(WRITTEN_BY_KAFKA[:size])


@pytest.mark.parametrize("at", range(len(WRITTEN_BY_KAFKA)))
@pytest.mark.slow
def test_a_flipped_bit_is_refused(at: int) -> None:
    damaged = bytearray(WRITTEN_BY_KAFKA)
    damaged[at] ^= 1
    with pytest.raises(MalformedFile, match=r"p\.snapshot"):
        decode_snapshot(bytes(damaged), "p.snapshot")
