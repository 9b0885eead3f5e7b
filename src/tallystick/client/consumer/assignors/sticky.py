"""Sticky algorithm: a balanced assignment that moves few partitions.

    keep       members keep the partitions they own; where all subscribe to the same topics, up to a fair
               share; where racks matter, only those they read within their rack, unless no member can
    deal       each free partition goes to the candidate with the fewest; those with few candidates first
    even out   partitions move from long lists to short ones until no single move improves the balance
    give back  a partition returns to its owner where that only swaps the two members' sizes

Candidates for a partition are the subscribers in a rack of its replicas; all subscribers if there are none.
Balance comes before racks, and racks before stickiness.

Ties are broken by name, so that all leaders with this algorithm compute the same assignment. Kafka's
AbstractStickyAssignor breaks them by the order of a HashMap: its assignment may differ from this one, but it
is balanced, so that either leader leaves the other's assignment as it is.

Source: KIP-54, KIP-341 (generations), KIP-881 (racks).
"""

from bisect import insort
from collections.abc import Mapping, Set
from heapq import heapify, heapreplace
from math import ceil

from tallystick.client.consumer.assignors.subscription import (
    MemberData,
    PartitionRacks,
    Subscription,
    use_rack_aware_assignment,
)
from tallystick.kernel.ids import MemberId, TopicPartition

GroupSubscription = Mapping[MemberId, Subscription]
Owners = Mapping[TopicPartition, MemberId | None]


def find_owners(previous: Mapping[MemberId, MemberData]) -> Owners:
    """Return the owner of each partition that a member claims: the one with the newest generation.

    Of two claims in the same generation neither is valid: None.

    Source: KIP-341.
    """
    owners: dict[TopicPartition, MemberId | None] = {}
    newest: dict[TopicPartition, int] = {}
    for member, data in previous.items():
        generation = -1 if data.generation is None else data.generation
        for partition in set(data.partitions):
            if generation > newest.get(partition, -2):
                newest[partition], owners[partition] = generation, member
            elif generation == newest[partition]:
                owners[partition] = None
    return owners


def assign_sticky(
    topics: PartitionRacks, members: GroupSubscription, owners: Owners
) -> dict[MemberId, set[TopicPartition]]:
    """Balance the group: each subscribed partition to one member that subscribes to its topic [CLI-30]."""
    builder = _AssignmentBuilder(topics, members, owners)
    builder.keep_and_deal()
    builder.even_out()
    return builder.assignment


def _find_subscribers(topics: PartitionRacks, members: GroupSubscription) -> dict[str, frozenset[MemberId]]:
    """Return the subscribers of each topic that has any, by topic; equal sets are the same object."""
    subscribers: dict[str, list[MemberId]] = {topic: [] for topic in topics}
    for member, subscription in members.items():
        for topic in subscribers.keys() & subscription.topics:
            subscribers[topic].append(member)
    distinct: dict[frozenset[MemberId], frozenset[MemberId]] = {}
    frozen = {topic: frozenset(subscribers[topic]) for topic in sorted(topics) if subscribers[topic]}
    return {topic: distinct.setdefault(readers, readers) for topic, readers in frozen.items()}


class _AssignmentBuilder:
    """An assignment in the making."""

    def __init__(self, topics: PartitionRacks, members: GroupSubscription, owners: Owners) -> None:
        self.assignment: dict[MemberId, set[TopicPartition]] = {member: set() for member in members}
        self._owners = owners
        self._subscribers = _find_subscribers(topics, members)
        racks = {member: rack for member in members if (rack := members[member].rack)}
        replicas = [replicas for topic in self._subscribers for replicas in topics[topic]]
        self._member_racks = racks if use_rack_aware_assignment(racks.values(), replicas) else {}
        self._topics = topics
        self._candidates: dict[tuple[str, frozenset[str]], frozenset[MemberId]] = {}
        self._heaps: dict[frozenset[MemberId], list[tuple[int, MemberId]]] = {}

    def keep_and_deal(self) -> None:
        free: list[tuple[int, TopicPartition, frozenset[MemberId]]] = []
        quota = self._find_quota()
        for topic, subscribers in self._subscribers.items():
            for number in range(len(self._topics[topic])):
                partition = TopicPartition(topic, number)
                candidates = self._find_candidates(partition)
                owner = self._owners.get(partition)
                may_keep = owner in candidates or (owner in subscribers and owner not in self._member_racks)
                if owner is not None and may_keep and self._size(owner) < quota:
                    self.assignment[owner].add(partition)
                else:
                    free.append((len(candidates), partition, candidates))
        for _, partition, candidates in sorted(free, key=lambda entry: entry[:2]):
            self.assignment[self._find_smallest(candidates)].add(partition)

    def even_out(self) -> None:
        topics_by_subscribers: dict[frozenset[MemberId], set[str]] = {}
        for topic, subscribers in self._subscribers.items():
            if len(subscribers) > 1:
                topics_by_subscribers.setdefault(subscribers, set()).add(topic)
        while (
            any(self._even_out_among(*entry) for entry in topics_by_subscribers.items()) or self._give_back()
        ):
            pass

    def _find_quota(self) -> int:
        """Return the largest share of a balanced assignment where all subscribe to the same topics."""
        subscriptions = set(self._subscribers.values())
        total = sum(len(self._topics[topic]) for topic in self._subscribers)
        return ceil(total / len(subscriptions.pop())) if len(subscriptions) == 1 else total

    def _find_candidates(self, partition: TopicPartition) -> frozenset[MemberId]:
        subscribers = self._subscribers[partition.topic]
        if not self._member_racks:
            return subscribers
        racks = self._topics[partition.topic][partition.partition]
        key = partition.topic, racks
        if key not in self._candidates:
            near = frozenset(member for member in subscribers if self._member_racks.get(member) in racks)
            self._candidates[key] = near or subscribers
        return self._candidates[key]

    def _find_smallest(self, candidates: frozenset[MemberId]) -> MemberId:
        """Return the candidate with the fewest partitions, while none is taken away from any."""
        heap = self._heaps.get(candidates)
        if heap is None:
            heap = self._heaps[candidates] = [(self._size(member), member) for member in candidates]
            heapify(heap)
        while (size := self._size(heap[0][1])) != heap[0][0]:
            heapreplace(heap, (size, heap[0][1]))
        return heap[0][1]

    def _even_out_among(self, members: frozenset[MemberId], topics: Set[str]) -> bool:
        """Move partitions of these topics from long lists to short ones; return whether any moved."""
        order = sorted((self._size(member), member) for member in members)
        if order[-1][0] - order[0][0] <= 1:
            return False
        movable = {member: {p for p in self.assignment[member] if p.topic in topics} for member in members}
        has_moves = False
        while source := next((entry for entry in reversed(order) if movable[entry[1]]), None):
            target = order[0]
            if source[0] - target[0] <= 1:
                break
            partition = self._choose(movable[source[1]], source[1], target[1])
            for shares in (self.assignment, movable):
                shares[source[1]].remove(partition)
                shares[target[1]].add(partition)
            for entry, change in ((source, -1), (target, 1)):
                order.remove(entry)
                insort(order, (entry[0] + change, entry[1]))
            has_moves = True
        return has_moves

    def _give_back(self) -> bool:
        """Return partitions to their owners where that only swaps two members' sizes."""
        has_moves = False
        for member, share in self.assignment.items():
            for partition in sorted(share):
                owner = self._owners.get(partition)
                if (
                    owner in self._subscribers[partition.topic]
                    and self._size(owner) < len(share)
                    and self._is_near(partition, owner) >= self._is_near(partition, member)
                ):
                    share.remove(partition)
                    self.assignment[owner].add(partition)
                    has_moves = True
        return has_moves

    def _choose(self, share: Set[TopicPartition], source: MemberId, target: MemberId) -> TopicPartition:
        """Return a partition to move: one that gets nearer, returns to its owner or has left it already."""

        def rank(partition: TopicPartition) -> tuple[int, bool, bool, TopicPartition]:
            owner = self._owners.get(partition)
            return (
                self._is_near(partition, target) - self._is_near(partition, source),
                owner == target,
                owner != source,
                partition,
            )

        return max(share, key=rank)

    def _is_near(self, partition: TopicPartition, member: MemberId) -> bool:
        rack = self._member_racks.get(member)
        return rack is None or rack in self._topics[partition.topic][partition.partition]

    def _size(self, member: MemberId) -> int:
        return len(self.assignment[member])
