"""Mapping from a name, a group or a transactional id, to a partition of its coordinator's topic."""

import struct


def hash_to_partition(name: str, partition_count: int) -> int:
    """Return |Java's String.hashCode| mod N.

    Java hashes UTF-16 code units; |Integer.MIN_VALUE| is taken as 0, as in Kafka.

    Source: GroupMetadataManager.partitionFor, TransactionStateManager.partitionFor, Utils.abs.
    """
    value = 0
    utf16 = name.encode("utf-16-be", "surrogatepass")
    for (unit,) in struct.iter_unpack(">H", utf16):
        value = (31 * value + unit) & 0xFFFFFFFF
    signed_hash = value - (1 << 32) if value >> 31 else value
    return 0 if signed_hash == -(1 << 31) else abs(signed_hash) % partition_count
