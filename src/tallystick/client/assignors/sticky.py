"""Sticky algorithm: a balanced assignment first, then as few partitions moved as possible.

If all members subscribe to the same topics, each ends with the smaller or the larger share, and the number of
members with each is known beforehand: `_ConstrainedAssignmentBuilder` keeps what fits and deals out the rest
in turn. Otherwise `_GeneralAssignmentBuilder` starts from the current assignment and moves partitions from
long lists to short ones until no single move helps; instead of moving two partitions of a topic in opposite
directions, it takes the earlier move back.

Source: KIP-54, KIP-341; AbstractStickyAssignor of Kafka 4.
"""

from bisect import bisect_left, insort
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from tallystick.client.assignors.java_order import (
    grow_capacity,
    hash_partition,
    hash_string,
    sort_by_hash,
    string_sort_key,
)
from tallystick.client.assignors.subscription import (
    MemberData,
    PartitionRacks,
    Subscription,
    use_rack_aware_assignment,
)
from tallystick.kernel.check import check
from tallystick.kernel.ids import MemberId, TopicPartition
from tallystick.kernel.value import Value

GroupSubscription = Mapping[MemberId, Subscription]
PartitionsByMember = dict[MemberId, list[TopicPartition]]

_NO_GENERATION: Final = -1
_NO_RACKS_OR_TOPICS: Final = frozenset[str]()


class StickyAssignment(Value):
    """An assignment, and its partitions that another member still owns; None where that was not tracked."""

    assignment: PartitionsByMember
    transferring: dict[TopicPartition, MemberId] | None


def assign_sticky(
    topics: PartitionRacks, members: GroupSubscription, previous: Mapping[MemberId, MemberData]
) -> StickyAssignment:
    """Balance the group.

    Args:
        members: in the coordinator's order.
        previous: the former assignment of each.
    """
    subscribed_topics = {topic for subscription in members.values() for topic in subscription.topics}
    topics = {topic: partitions for topic, partitions in topics.items() if topic in subscribed_topics}
    order = sort_by_hash(members, hash_string)
    owned_partitions, disputed_partitions = _resolve_ownership(order, topics, members, previous)
    racks = _RackInfo(order, topics, members)
    topics_by_member = [frozenset(members[member].topics) for member in order]
    first_topics = next((topics for topics in topics_by_member if topics), _NO_RACKS_OR_TOPICS)
    first_index = topics_by_member.index(first_topics) if first_topics else len(topics_by_member)
    if all(topics == first_topics for topics in topics_by_member[first_index:]):
        equal = _ConstrainedAssignmentBuilder(topics, racks, owned_partitions, disputed_partitions)
        equal.build()
        return StickyAssignment(equal.assignment, equal.transferring)
    general = _GeneralAssignmentBuilder(
        topics, racks, owned_partitions, {member: members[member] for member in order}
    )
    general.build(_find_previous_owners(order, previous))
    return StickyAssignment(general.assignment, None)


def _resolve_ownership(
    order: list[MemberId],
    topics: PartitionRacks,
    members: GroupSubscription,
    previous: Mapping[MemberId, MemberData],
) -> tuple[PartitionsByMember, set[TopicPartition]]:
    """Return the partitions each member validly owns; of two claims the newer generation's is valid.

    Two claims of the same generation are both invalid: second result. Partitions that do not exist are left
    out; Kafka checks only the topic, and would assign a partition that does not exist.
    """
    shares: PartitionsByMember = {}
    owner: dict[TopicPartition, MemberId] = {}
    disputed_partitions: set[TopicPartition] = set()
    for member in order:
        mine = shares[member] = []
        generation = _to_generation(previous[member].generation)
        for partition in previous[member].partitions:
            if not 0 <= partition.partition < len(topics.get(partition.topic, ())):
                continue
            rival = owner.get(partition)
            rival_generation = _to_generation(None if rival is None else members[rival].generation)
            if rival is not None and generation < rival_generation:
                continue
            owner[partition] = member
            if rival is not None and partition in shares[rival]:
                shares[rival].remove(partition)
            if rival is not None and generation == rival_generation:
                disputed_partitions.add(partition)
            else:
                mine.append(partition)
    return shares, disputed_partitions


def _find_previous_owners(
    order: list[MemberId], previous: Mapping[MemberId, MemberData]
) -> dict[TopicPartition, tuple[MemberId, int]]:
    """Return the latest owner of each partition in generations before the newest."""
    newest = max(_to_generation(had.generation) for had in previous.values())
    older: dict[TopicPartition, tuple[MemberId, int]] = {}
    for member in order:
        generation = _to_generation(previous[member].generation)
        if generation >= newest:
            continue
        for partition in previous[member].partitions:
            if partition not in older or generation > older[partition][1]:
                older[partition] = (member, generation)
    return older


def _to_generation(generation: int | None) -> int:
    return _NO_GENERATION if generation is None else generation


class _RackInfo:
    """Members' racks and the partitions they can read there; empty where racks make no difference."""

    def __init__(self, order: list[MemberId], topics: PartitionRacks, members: GroupSubscription) -> None:
        rack_by_member = {member: rack for member in order if (rack := members[member].rack)}
        used_racks = rack_by_member.values()
        matter = use_rack_aware_assignment(
            used_racks, [racks for partitions in topics.values() for racks in partitions]
        )
        self.member_racks = rack_by_member if matter else {}
        self._topics = topics
        self._consumers_per_rack = Counter(used_racks)

    def racks_of(self, partition: TopicPartition) -> frozenset[str]:
        partitions = self._topics.get(partition.topic, ())
        number = partition.partition
        return (
            partitions[number] if self.member_racks and 0 <= number < len(partitions) else _NO_RACKS_OR_TOPICS
        )

    def is_rack_mismatch(self, member: MemberId, partition: TopicPartition) -> bool:
        rack = self.member_racks.get(member)
        return rack is not None and rack not in self.racks_of(partition)

    def sort_by_rack_consumers(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Sort partitions by the number of members that could read them within their rack, fewest first."""
        if not self._consumers_per_rack:
            return partitions

        def readers(partition: TopicPartition) -> int:
            return sum(
                [
                    self._consumers_per_rack[rack]
                    for rack in self._topics[partition.topic][partition.partition]
                ]
            )

        return sorted(partitions, key=readers)

    def find_rack_consumer(self, partition: TopicPartition, among: list[MemberId], start: int) -> int | None:
        """Return the index of the next member, going round from `start`, in a rack of the partition."""
        racks = self.racks_of(partition)
        round_from_first = [*range(start, len(among)), *range(start)]
        return next(
            (index for index in round_from_first if self.member_racks.get(among[index]) in racks), None
        )


class _ConstrainedAssignmentBuilder:
    """Assignment for members with the same subscription. `_expected_over_min` of them get one partition more.

    _unfilled_under_min  members with less than the smaller share
    _unfilled_at_min     members with the smaller share that may get one more
    """

    def __init__(
        self,
        topics: PartitionRacks,
        racks: _RackInfo,
        owned_partitions: PartitionsByMember,
        disputed_partitions: set[TopicPartition],
    ) -> None:
        self.assignment: PartitionsByMember = {member: [] for member in owned_partitions}
        self.transferring: dict[TopicPartition, MemberId] = {}
        self._topics, self._racks, self._owned_partitions, self._multiply_owned = (
            topics,
            racks,
            owned_partitions,
            disputed_partitions,
        )
        total = sum(map(len, topics.values()))
        self._min_quota, self._expected_over_min = divmod(total, len(owned_partitions))
        self._max_quota = self._min_quota + (self._expected_over_min > 0)
        self._over_min_count = 0
        self._maybe_revoked: dict[TopicPartition, MemberId] = {}
        self._unfilled_under_min: list[MemberId] = []
        self._unfilled_at_min: deque[MemberId] = deque()

    def build(self) -> None:
        for member in self._owned_partitions:
            self._assign_owned(member)
        kept_partitions = {partition for share in self.assignment.values() for partition in share}
        in_order = (
            TopicPartition(topic, number)
            for topic in sorted(self._topics, key=string_sort_key)
            for number in range(len(self._topics[topic]))
        )
        remainder = self._racks.sort_by_rack_consumers(
            [partition for partition in in_order if partition not in kept_partitions]
        )
        self._unfilled_under_min.sort(key=string_sort_key)
        self._unfilled_at_min = deque(sorted(self._unfilled_at_min, key=string_sort_key))
        if self._racks.member_racks:
            remainder = self._assign_rack_aware(remainder)
        self._assign_round_robin(remainder)
        check(
            all(len(self.assignment[member]) == self._min_quota for member in self._unfilled_under_min)
            and (not self._unfilled_under_min or self._over_min_count == self._expected_over_min),
            "every member has one of the two shares",
        )

    def _assign_owned(self, member: MemberId) -> None:
        """Leave a member its former partitions, up to its share."""
        mine = []
        for partition in sorted(
            self._owned_partitions[member], key=lambda p: (p.partition, string_sort_key(p.topic))
        ):
            if self._racks.is_rack_mismatch(member, partition):
                self._maybe_revoked[partition] = member
            elif partition not in self._multiply_owned:
                mine.append(partition)
        if len(mine) < self._min_quota:
            self._unfilled_under_min.append(member)
            share = len(mine)
        elif len(mine) >= self._max_quota and self._over_min_count < self._expected_over_min:
            self._count_over_min()
            share = self._max_quota
        else:
            share = self._min_quota
            if self._over_min_count < self._expected_over_min:
                self._unfilled_at_min.append(member)
        self.assignment[member] += mine[:share]
        self._maybe_revoked.update(dict.fromkeys(mine[share:], member))

    def _assign_rack_aware(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Deal partitions to members that can read them within their rack; return the others."""
        remainder, turn = [], 0
        for partition in partitions:
            at = self._racks.find_rack_consumer(partition, self._unfilled_under_min, turn)
            if at is not None:
                member = self._unfilled_under_min[at]
                if self._assign_partition(partition, member) < self._min_quota:
                    at += 1
                else:
                    del self._unfilled_under_min[at]
                    if (
                        len(self.assignment[member]) < self._max_quota
                        and self._over_min_count < self._expected_over_min
                    ):
                        self._unfilled_at_min.append(member)
                turn = at % len(self._unfilled_under_min) if self._unfilled_under_min else 0
                continue
            at = self._racks.find_rack_consumer(partition, list(self._unfilled_at_min), 0)
            if at is None:
                remainder.append(partition)
                continue
            member = self._unfilled_at_min[at]
            if self._assign_partition(partition, member) == self._max_quota:
                del self._unfilled_at_min[at]
                self._count_over_min()
        return remainder

    def _assign_round_robin(self, partitions: list[TopicPartition]) -> None:
        """Deal in turn to members below the smaller share, then one more to as many as may have it."""
        turn = 0
        for partition in partitions:
            if self._unfilled_under_min:
                turn = turn if turn < len(self._unfilled_under_min) else 0
                member = self._unfilled_under_min[turn]
                turn += 1
            else:
                check(self._unfilled_at_min, "there is a member for every partition")
                member = self._unfilled_at_min.popleft()
            size = self._assign_partition(partition, member)
            if size == self._min_quota:
                turn -= 1
                del self._unfilled_under_min[turn]
                self._unfilled_at_min.append(member)
            elif size == self._max_quota:
                self._over_min_count += 1

    def _assign_partition(self, partition: TopicPartition, member: MemberId) -> int:
        share = self.assignment[member]
        share.append(partition)
        if self._maybe_revoked.get(partition, member) != member or partition in self._multiply_owned:
            self.transferring[partition] = member
        return len(share)

    def _count_over_min(self) -> None:
        self._over_min_count += 1
        if self._over_min_count == self._expected_over_min:
            self._unfilled_at_min.clear()


class _GeneralAssignmentBuilder:
    """Assignment for members with different subscriptions."""

    def __init__(
        self,
        topics: PartitionRacks,
        racks: _RackInfo,
        owned_partitions: PartitionsByMember,
        members: GroupSubscription,
    ) -> None:
        self.assignment = owned_partitions
        self._racks, self._members = racks, members
        self._partition_counts = {topic: len(partitions) for topic, partitions in topics.items()}
        self._subscribed_topics = {
            m: [t for t in subscription.topics if t in topics] for m, subscription in members.items()
        }
        self._subscribers: dict[str, list[MemberId]] = {topic: [] for topic in topics}
        for member, member_topics in self._subscribed_topics.items():
            for topic in member_topics:
                self._subscribers[topic].append(member)
        self._owner = {partition: member for member, share in owned_partitions.items() for partition in share}
        self._sorted_members = _SortedMembers(owned_partitions)
        self._movements = _PartitionMovements()
        self._previous: Mapping[TopicPartition, tuple[MemberId, int]] = {}

    def build(self, previous: Mapping[TopicPartition, tuple[MemberId, int]]) -> None:
        self._previous = previous
        must_revoke = self._drop_invalid()
        everything = self._sort_partitions()
        kept_partitions = {partition for share in self.assignment.values() for partition in share}
        remainder = [partition for partition in everything if partition not in kept_partitions]
        for member in self.assignment:
            self._sorted_members.add(member)
        is_new = not kept_partitions
        if self._racks.member_racks:
            mismatches = [
                p
                for p in remainder
                if self._subscribers[p.topic] and not self._assign_partition(p, within_rack=True)
            ]
        else:
            mismatches = remainder
        for partition in mismatches:
            if self._subscribers[partition.topic]:
                self._assign_partition(partition)

        movable = {topic for topic, readers in self._subscribers.items() if len(readers) >= 2}
        fixed_shares = {
            member: self.assignment.pop(member)
            for member in self._subscribed_topics
            if not self._can_participate(member)
        }
        for member, share in fixed_shares.items():
            self._sorted_members.discard(member, len(share))
        before = {member: list(share) for member, share in self.assignment.items()}
        if not must_revoke:
            self._perform_reassignments([partition for partition in remainder if partition.topic in movable])
        has_moves = self._perform_reassignments(
            [partition for partition in everything if partition.topic in movable]
        )
        if (
            not is_new
            and has_moves
            and _compute_balance_score(self.assignment) >= _compute_balance_score(before)
        ):
            self.assignment = before
        self.assignment |= fixed_shares

    def _drop_invalid(self) -> bool:
        """Remove partitions no longer subscribed to or read across racks; return whether there were any."""
        has_drops = False
        for member, share in self.assignment.items():
            subscribed_topics = self._members[member].topics
            for partition in tuple(share):
                if partition.topic not in subscribed_topics or self._racks.is_rack_mismatch(
                    member, partition
                ):
                    share.remove(partition)
                    has_drops = True
        return has_drops

    def _sort_partitions(self) -> list[TopicPartition]:
        """Return all partitions, those with the fewest subscribers first."""
        topics = sorted(
            self._partition_counts, key=lambda topic: (len(self._subscribers[topic]), string_sort_key(topic))
        )
        return [
            TopicPartition(topic, number)
            for topic in topics
            for number in range(self._partition_counts[topic])
        ]

    def _assign_partition(self, partition: TopicPartition, *, within_rack: bool = False) -> bool:
        """Assign a free partition to the member with the fewest that can take it."""
        for member in self._sorted_members:
            if partition.topic in self._subscribed_topics[member] and not (
                within_rack and self._racks.is_rack_mismatch(member, partition)
            ):
                self._sorted_members.discard(member)
                self.assignment[member].append(partition)
                self._owner[partition] = member
                self._sorted_members.add(member)
                return True
        return False

    def _max_assignable(self, member: MemberId) -> int:
        return sum(self._partition_counts[topic] for topic in self._subscribed_topics[member])

    def _can_participate(self, member: MemberId) -> bool:
        share = self.assignment[member]
        return len(share) < self._max_assignable(member) or any(
            len(self._subscribers[p.topic]) >= 2 for p in share
        )

    def _is_balanced(self) -> bool:
        """Tell whether no member could take a partition from one that has at least two more."""
        if self._sorted_members.smallest >= self._sorted_members.largest - 1:
            return True
        owner = {partition: member for member, share in self.assignment.items() for partition in share}
        for member in self._sorted_members:
            share = self.assignment[member]
            if len(share) == self._max_assignable(member):
                continue
            mine = set(share)
            for topic in self._subscribed_topics[member]:
                for number in range(self._partition_counts[topic]):
                    partition = TopicPartition(topic, number)
                    if partition not in mine and len(share) + 1 < len(self.assignment[owner[partition]]):
                        return False
        return True

    def _perform_reassignments(self, partitions: list[TopicPartition]) -> bool:
        """Move partitions to shorter lists until no move helps; return whether there was any."""
        has_moves, is_improving = False, True
        while is_improving:
            is_improving = False
            for partition in partitions:
                if self._is_balanced():
                    break
                target = self._find_better_owner(partition)
                if target is not None:
                    self._reassign_partition(partition, target)
                    is_improving = has_moves = True
        return has_moves

    def _find_better_owner(self, partition: TopicPartition) -> MemberId | None:
        """Return a former owner, or the subscriber with the fewest partitions, if that improves balance."""
        owner = self._owner[partition]
        size = len(self.assignment[owner])
        before, _ = self._previous.get(partition, (owner, 0))
        # Kafka also gives it back to a member that no longer subscribes to the topic.
        is_subscriber = partition.topic in self._subscribed_topics.get(before, ())
        if is_subscriber and before in self.assignment and size > len(self.assignment[before]) + 1:
            return before
        # Kafka looks at readers in the owner's rack first; the choice does not depend on it.
        if not any(size > len(self.assignment[reader]) + 1 for reader in self._subscribers[partition.topic]):
            return None
        return next(
            member for member in self._sorted_members if partition.topic in self._subscribed_topics[member]
        )

    def _reassign_partition(self, partition: TopicPartition, target: MemberId) -> None:
        actual_partition = self._movements.find_actual_move(partition, self._owner[partition], target)
        source = self._owner[actual_partition]
        self._sorted_members.discard(source)
        self._sorted_members.discard(target)
        self._movements.record_move(actual_partition, source, target)
        self.assignment[source].remove(actual_partition)
        self.assignment[target].append(actual_partition)
        self._owner[actual_partition] = target
        self._sorted_members.add(target)
        self._sorted_members.add(source)


class _SortedMembers:
    """Members sorted by their number of partitions, fewest first."""

    def __init__(self, shares: PartitionsByMember) -> None:
        self._shares = shares
        self._entries: list[tuple[int, bytes, MemberId]] = []

    def __iter__(self) -> Iterator[MemberId]:
        return (member for _, _, member in self._entries)

    @property
    def smallest(self) -> int:
        return self._entries[0][0]

    @property
    def largest(self) -> int:
        return self._entries[-1][0]

    def add(self, member: MemberId) -> None:
        insort(self._entries, self._sort_entry(member, len(self._shares[member])))

    def discard(self, member: MemberId, size: int | None = None) -> None:
        """Remove a member; before its share changes, or with its size before the change."""
        entry = self._sort_entry(member, len(self._shares[member]) if size is None else size)
        at = bisect_left(self._entries, entry)
        if at < len(self._entries) and self._entries[at] == entry:
            del self._entries[at]

    def _sort_entry(self, member: MemberId, size: int) -> tuple[int, bytes, MemberId]:
        return size, string_sort_key(member), member


class _PartitionMovements:
    """Moves of partitions between members in this rebalance, by topic."""

    def __init__(self) -> None:
        self._movement_by_partition: dict[TopicPartition, tuple[MemberId, MemberId]] = {}
        self._partitions_by_movement: dict[tuple[str, MemberId, MemberId], _JavaHashSet] = {}

    def find_actual_move(
        self, partition: TopicPartition, source: MemberId, target: MemberId
    ) -> TopicPartition:
        """Return a partition of the topic that moved the opposite way, to take that back; else this one."""
        if partition in self._movement_by_partition:
            source = self._movement_by_partition[partition][0]
        back = self._partitions_by_movement.get((partition.topic, target, source))
        return partition if back is None else back.first()

    def record_move(self, partition: TopicPartition, source: MemberId, target: MemberId) -> None:
        earlier = self._movement_by_partition.pop(partition, None)
        if earlier is not None:
            key = (partition.topic, *earlier)
            self._partitions_by_movement[key].remove(partition)
            if not self._partitions_by_movement[key]:
                del self._partitions_by_movement[key]
            source = earlier[0]
        if source != target:
            self._movement_by_partition[partition] = (source, target)
            self._partitions_by_movement.setdefault((partition.topic, source, target), _JavaHashSet()).add(
                partition
            )


class _JavaHashSet:
    """A set of partitions in Java's order; its capacity does not shrink."""

    def __init__(self) -> None:
        self._partitions: dict[TopicPartition, None] = {}
        self._capacity = 16

    def __bool__(self) -> bool:
        return bool(self._partitions)

    def add(self, partition: TopicPartition) -> None:
        self._partitions[partition] = None
        self._capacity = grow_capacity(len(self._partitions), self._capacity)

    def remove(self, partition: TopicPartition) -> None:
        del self._partitions[partition]

    def first(self) -> TopicPartition:
        return sort_by_hash(self._partitions, hash_partition, self._capacity)[0]


def _compute_balance_score(shares: Mapping[MemberId, Iterable[TopicPartition]]) -> int:
    """Return the sum of all differences between two members' partition counts; 0 for perfect balance."""
    sizes = sorted(len(list(share)) for share in shares.values())
    # In sorted order, every size is added once per smaller one and subtracted once per larger one.
    return sum(size * (2 * index - len(sizes) + 1) for index, size in enumerate(sizes))
