"""The order in which Java walks strings and hash maps.

Assignors are deterministic functions, and the members of a group take turns in leading it: two leaders that
think alike keep every partition where it is. Kafka's own break ties by the order of a HashMap, so ours walk
in that order, too.

Source: String.hashCode, String.compareTo, HashMap.
"""

import struct
from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from tallystick.kernel.ids import TopicPartition

T = TypeVar("T")

_CAPACITY_MIN: Final = 16
_MASK: Final = 0xFFFFFFFF


def string_order(text: str) -> bytes:
    """Sorts as Java sorts strings: by UTF-16 code units."""
    return text.encode("utf-16-be", "surrogatepass")


def string_hash(text: str) -> int:
    """String.hashCode, unsigned."""
    value = 0
    for (unit,) in struct.iter_unpack(">H", string_order(text)):
        value = (31 * value + unit) & _MASK
    return value


def partition_hash(partition: TopicPartition) -> int:
    """TopicPartition.hashCode, unsigned."""
    return (31 * (31 + partition.partition) + string_hash(partition.topic)) & _MASK


def hash_order(keys: Iterable[T], hash_of: Callable[[T], int], capacity: int = _CAPACITY_MIN) -> list[T]:
    """The keys, in order of insertion, as a HashMap yields them.

    Args:
        capacity: buckets the map has at least; it never has fewer again than it once needed.
    """
    inserted = list(keys)
    last = capacity_for(len(inserted), capacity) - 1

    def bucket(key: T) -> int:
        value = hash_of(key)
        return (value ^ value >> 16) & last

    return sorted(inserted, key=bucket)


def capacity_for(size: int, capacity: int = _CAPACITY_MIN) -> int:
    """Buckets of a map that holds `size` keys and had `capacity` before: three quarters may be taken."""
    while size > capacity * 3 // 4:
        capacity *= 2
    return capacity
