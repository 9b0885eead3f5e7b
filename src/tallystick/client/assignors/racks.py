"""Racks of members and of partitions' replicas, and whether they affect an assignment (KIP-881)."""

from collections.abc import Collection, Mapping

PartitionRacks = Mapping[str, tuple[frozenset[str], ...]]
"""Racks with a replica of each partition, by topic; empty sets where brokers name none."""


def use_rack_aware_assignment(members: Collection[str], partitions: Collection[frozenset[str]]) -> bool:
    """Tell whether a member is in a rack of the topic, and not every partition is in all those racks.

    Source: AbstractPartitionAssignor.useRackAwareAssignment.
    """
    everywhere = frozenset[str]().union(*partitions)
    return not everywhere.isdisjoint(members) and any(racks != everywhere for racks in partitions)
