"""Partitions of keys as every other client computes them, and from one sticky partition to the next."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.client.producer.batches.partitioner import (
    choose_sticky_partition,
    hash_key_to_partition,
    murmur2,
)

# Kafka 4.3 UtilsTest.testMurmur2, and BuiltInPartitioner's hash of a few more (as Java prints them: signed).
KAFKAS = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


def _signed(h: int) -> int:
    return h - 2**32 if h >= 2**31 else h


@pytest.mark.parametrize(("key", "expected"), KAFKAS.items())
def test_hash_is_kafkas(key: bytes, expected: int) -> None:
    assert _signed(murmur2(key)) == expected


@given(st.binary(max_size=600), st.integers(1, 1000))
def test_partition_is_the_positive_hash(key: bytes, partitions: int) -> None:
    assert hash_key_to_partition(key, partitions) == (murmur2(key) & 0x7FFFFFFF) % partitions


def _murmur2_by_the_book(data: bytes) -> int:
    """Line by line from Utils.murmur2."""
    length, mask = len(data), 0xFFFFFFFF
    h = (0x9747B28C ^ length) & mask
    for i in range(length // 4):
        k = int.from_bytes(data[4 * i : 4 * i + 4], "little")
        k = k * 0x5BD1E995 & mask
        k ^= k >> 24
        k = k * 0x5BD1E995 & mask
        h = h * 0x5BD1E995 & mask
        h ^= k
    left = length % 4
    if left == 3:
        h ^= data[(length & ~3) + 2] << 16
    if left >= 2:
        h ^= data[(length & ~3) + 1] << 8
    if left >= 1:
        h ^= data[length & ~3]
        h = h * 0x5BD1E995 & mask
    h ^= h >> 13
    h = h * 0x5BD1E995 & mask
    return h ^ h >> 15


@given(st.binary(max_size=100))
def test_hash_is_the_one_by_the_book(key: bytes) -> None:
    assert murmur2(key) == _murmur2_by_the_book(key)


def test_longer_queues_are_drawn_less_often() -> None:
    """KIP-794: queues 0, 3, 1 weigh 4, 1, 3."""
    drawn = [choose_sticky_partition((10, 11, 12), (0, 3, 1), (i + 0.5) / 8) for i in range(8)]
    assert drawn == [10, 10, 10, 10, 11, 12, 12, 12]


@given(st.lists(st.integers(0, 50), min_size=1, max_size=20), st.floats(0, 1, exclude_max=True))
def test_every_draw_is_a_candidate(queued: list[int], noise: float) -> None:
    candidates = range(100, 100 + len(queued))
    assert choose_sticky_partition(candidates, queued, noise) in candidates
