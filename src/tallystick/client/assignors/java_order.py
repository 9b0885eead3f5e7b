"""Iteration order of Java's strings and hash maps.

Assignors are deterministic functions, and any member of a group may lead it: if all leaders compute the same
assignment, every partition stays where it is. Kafka's assignors break ties by the order of a HashMap, so
these iterate in that order, too.

Source: String.hashCode, String.compareTo, HashMap.
"""

import struct
from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from tallystick.kernel.ids import TopicPartition

T = TypeVar("T")

_CAPACITY_MIN: Final = 16
_MASK: Final = 0xFFFFFFFF


def string_sort_key(text: str) -> bytes:
    """Return a sort key that sorts as Java sorts strings: by UTF-16 code units."""
    return text.encode("utf-16-be", "surrogatepass")


def hash_string(text: str) -> int:
    """Return String.hashCode, unsigned."""
    value = 0
    for (unit,) in struct.iter_unpack(">H", string_sort_key(text)):
        value = (31 * value + unit) & _MASK
    return value


def hash_partition(partition: TopicPartition) -> int:
    """Return TopicPartition.hashCode, unsigned."""
    return (31 * (31 + partition.partition) + hash_string(partition.topic)) & _MASK


def sort_by_hash(keys: Iterable[T], hash_of: Callable[[T], int], capacity: int = _CAPACITY_MIN) -> list[T]:
    """Return the keys, given in insertion order, in the order of a HashMap.

    Args:
        capacity: minimum number of buckets; a map never shrinks below a size it once needed.
    """
    key_list = list(keys)
    mask = grow_capacity(len(key_list), capacity) - 1

    def bucket(key: T) -> int:
        value = hash_of(key)
        return (value ^ value >> 16) & mask

    return sorted(key_list, key=bucket)


def grow_capacity(size: int, capacity: int = _CAPACITY_MIN) -> int:
    """Return the buckets of a map with `size` keys that had `capacity`: the load factor is three quarters."""
    while size > capacity * 3 // 4:
        capacity *= 2
    return capacity
