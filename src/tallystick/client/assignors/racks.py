"""Racks of members and of partitions' replicas, and whether they can make a difference (KIP-881)."""

from collections.abc import Collection, Mapping

Topics = Mapping[str, tuple[frozenset[str], ...]]
"""By topic, the racks that have a replica of each partition; empty sets where brokers name none."""


def without_racks(counts: Mapping[str, int]) -> Topics:
    """Topics of which only the number of partitions is known."""
    return {topic: (frozenset[str](),) * count for topic, count in counts.items()}


def racks_matter(members: Collection[str], partitions: Collection[frozenset[str]]) -> bool:
    """Some member is in a rack of the topic's, and not every partition is in all of them.

    Source: AbstractPartitionAssignor.useRackAwareAssignment.
    """
    everywhere = frozenset[str]().union(*partitions)
    return not everywhere.isdisjoint(members) and any(racks != everywhere for racks in partitions)
