"""Which partition of a coordinator's topic keeps a name: groups and transactional ids alike."""

import struct


def coordinator_partition(name: str, partition_count: int) -> int:
    """|Java's String.hashCode| mod N.

    Java hashes UTF-16 code units; |the smallest int| is taken as 0, as Kafka does.

    Source: GroupMetadataManager.partitionFor, TransactionStateManager.partitionFor, Utils.abs.
    """
    value = 0
    encoded = name.encode("utf-16-be", "surrogatepass")
    for (unit,) in struct.iter_unpack(">H", encoded):
        value = (31 * value + unit) & 0xFFFFFFFF
    signed = value - (1 << 32) if value >> 31 else value
    return 0 if signed == -(1 << 31) else abs(signed) % partition_count
