"""Sticky algorithm: a balanced assignment first, then as few partitions moved as possible.

If all members subscribe to the same topics, each ends with the smaller or the larger share, and the number of
members with each is known beforehand: `_Equal` keeps what fits and deals out the rest in turn. Otherwise
`_General` starts from the current assignment and moves partitions from long lists to short ones until no
single move helps; instead of moving two partitions of a topic in opposite directions, it takes the earlier
move back.

Source: KIP-54, KIP-341; AbstractStickyAssignor of Kafka 4.
"""

from bisect import bisect_left, insort
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from tallystick.client.assignors.java_order import (
    capacity_for,
    hash_order,
    partition_hash,
    string_hash,
    string_order,
)
from tallystick.client.assignors.racks import Topics, racks_matter
from tallystick.client.assignors.subscription import Previous, Subscription
from tallystick.kernel.check import check
from tallystick.kernel.ids import MemberId, TopicPartition
from tallystick.kernel.value import frozen

Members = Mapping[MemberId, Subscription]
Shares = dict[MemberId, list[TopicPartition]]

_NO_GENERATION: Final = -1
_NOWHERE: Final = frozenset[str]()


@frozen
class Sticky:
    """An assignment, and its partitions that another member still owns; None where that was not tracked."""

    assignment: Shares
    moving: dict[TopicPartition, MemberId] | None


def assign_sticky(topics: Topics, members: Members, previous: Mapping[MemberId, Previous]) -> Sticky:
    """Balance the group.

    Args:
        members: in the coordinator's order.
        previous: the former assignment of each.
    """
    subscribed = {topic for given in members.values() for topic in given.topics}
    topics = {topic: partitions for topic, partitions in topics.items() if topic in subscribed}
    order = hash_order(members, string_hash)
    owned, disputed = _owned(order, topics, members, previous)
    racks = _Racks(order, topics, members)
    wanted = [frozenset(members[member].topics) for member in order]
    first = next((topics for topics in wanted if topics), _NOWHERE)
    started = wanted.index(first) if first else len(wanted)
    if all(topics == first for topics in wanted[started:]):
        equal = _Equal(topics, racks, owned, disputed)
        equal.build()
        return Sticky(equal.shares, equal.moving)
    general = _General(topics, racks, owned, {member: members[member] for member in order})
    general.build(_older(order, previous))
    return Sticky(general.shares, None)


def _owned(
    order: list[MemberId], topics: Topics, members: Members, previous: Mapping[MemberId, Previous]
) -> tuple[Shares, set[TopicPartition]]:
    """Return the partitions each member validly owns; of two claims the newer generation's is valid.

    Two claims of the same generation are both invalid: second result. Partitions that do not exist are left
    out; Kafka checks only the topic, and would assign a partition that does not exist.
    """
    owned: Shares = {}
    owner: dict[TopicPartition, MemberId] = {}
    disputed: set[TopicPartition] = set()
    for member in order:
        mine = owned[member] = []
        generation = _number(previous[member].generation)
        for partition in previous[member].partitions:
            if not 0 <= partition.partition < len(topics.get(partition.topic, ())):
                continue
            other = owner.get(partition)
            other_generation = _number(None if other is None else members[other].generation)
            if other is not None and generation < other_generation:
                continue
            owner[partition] = member
            if other is not None and partition in owned[other]:
                owned[other].remove(partition)
            if other is not None and generation == other_generation:
                disputed.add(partition)
            else:
                mine.append(partition)
    return owned, disputed


def _older(
    order: list[MemberId], previous: Mapping[MemberId, Previous]
) -> dict[TopicPartition, tuple[MemberId, int]]:
    """Return the latest owner of each partition in generations before the newest."""
    newest = max(_number(had.generation) for had in previous.values())
    older: dict[TopicPartition, tuple[MemberId, int]] = {}
    for member in order:
        generation = _number(previous[member].generation)
        if generation >= newest:
            continue
        for partition in previous[member].partitions:
            if partition not in older or generation > older[partition][1]:
                older[partition] = (member, generation)
    return older


def _number(generation: int | None) -> int:
    return _NO_GENERATION if generation is None else generation


class _Racks:
    """Members' racks and the partitions they can read there; empty where racks make no difference."""

    def __init__(self, order: list[MemberId], topics: Topics, members: Members) -> None:
        placed = {member: rack for member in order if (rack := members[member].rack)}
        known = placed.values()
        matter = racks_matter(known, [racks for partitions in topics.values() for racks in partitions])
        self.members = placed if matter else {}
        self._topics = topics
        self._population = Counter(known)

    def of(self, partition: TopicPartition) -> frozenset[str]:
        partitions = self._topics.get(partition.topic, ())
        number = partition.partition
        return partitions[number] if self.members and 0 <= number < len(partitions) else _NOWHERE

    def mismatch(self, member: MemberId, partition: TopicPartition) -> bool:
        rack = self.members.get(member)
        return rack is not None and rack not in self.of(partition)

    def by_readers(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Sort partitions by the number of members that could read them within their rack, fewest first."""
        if not self._population:
            return partitions

        def readers(partition: TopicPartition) -> int:
            return sum(
                [self._population[rack] for rack in self._topics[partition.topic][partition.partition]]
            )

        return sorted(partitions, key=readers)

    def next_reader(self, partition: TopicPartition, among: list[MemberId], first: int) -> int | None:
        """Return the index of the next member, going round from `first`, in a rack of the partition."""
        racks = self.of(partition)
        round_from_first = [*range(first, len(among)), *range(first)]
        return next((index for index in round_from_first if self.members.get(among[index]) in racks), None)


class _Equal:
    """Assignment for members with the same subscription. `_larger` of them get one partition more.

    _under   members with less than the smaller share
    _exact   members with the smaller share that may get one more
    """

    def __init__(self, topics: Topics, racks: _Racks, owned: Shares, disputed: set[TopicPartition]) -> None:
        self.shares: Shares = {member: [] for member in owned}
        self.moving: dict[TopicPartition, MemberId] = {}
        self._topics, self._racks, self._owned, self._disputed = topics, racks, owned, disputed
        total = sum(map(len, topics.values()))
        self._small, self._larger = divmod(total, len(owned))
        self._large = self._small + (self._larger > 0)
        self._filled = 0
        self._given_up: dict[TopicPartition, MemberId] = {}
        self._under: list[MemberId] = []
        self._exact: deque[MemberId] = deque()

    def build(self) -> None:
        for member in self._owned:
            self._keep(member)
        kept = {partition for share in self.shares.values() for partition in share}
        in_order = (
            TopicPartition(topic, number)
            for topic in sorted(self._topics, key=string_order)
            for number in range(len(self._topics[topic]))
        )
        rest = self._racks.by_readers([partition for partition in in_order if partition not in kept])
        self._under.sort(key=string_order)
        self._exact = deque(sorted(self._exact, key=string_order))
        if self._racks.members:
            rest = self._deal_within_racks(rest)
        self._deal(rest)
        check(
            all(len(self.shares[member]) == self._small for member in self._under)
            and (not self._under or self._filled == self._larger),
            "every member has one of the two shares",
        )

    def _keep(self, member: MemberId) -> None:
        """Leave a member its former partitions, up to its share."""
        mine = []
        for partition in sorted(self._owned[member], key=lambda p: (p.partition, string_order(p.topic))):
            if self._racks.mismatch(member, partition):
                self._given_up[partition] = member
            elif partition not in self._disputed:
                mine.append(partition)
        if len(mine) < self._small:
            self._under.append(member)
            share = len(mine)
        elif len(mine) >= self._large and self._filled < self._larger:
            self._count_filled()
            share = self._large
        else:
            share = self._small
            if self._filled < self._larger:
                self._exact.append(member)
        self.shares[member] += mine[:share]
        self._given_up.update(dict.fromkeys(mine[share:], member))

    def _deal_within_racks(self, rest: list[TopicPartition]) -> list[TopicPartition]:
        """Deal partitions to members that can read them within their rack; return the others."""
        left, turn = [], 0
        for partition in rest:
            at = self._racks.next_reader(partition, self._under, turn)
            if at is not None:
                member = self._under[at]
                if self._give(partition, member) < self._small:
                    at += 1
                else:
                    del self._under[at]
                    if len(self.shares[member]) < self._large and self._filled < self._larger:
                        self._exact.append(member)
                turn = at % len(self._under) if self._under else 0
                continue
            at = self._racks.next_reader(partition, list(self._exact), 0)
            if at is None:
                left.append(partition)
                continue
            member = self._exact[at]
            if self._give(partition, member) == self._large:
                del self._exact[at]
                self._count_filled()
        return left

    def _deal(self, rest: list[TopicPartition]) -> None:
        """Deal in turn to members below the smaller share, then one more to as many as may have it."""
        turn = 0
        for partition in rest:
            if self._under:
                turn = turn if turn < len(self._under) else 0
                member = self._under[turn]
                turn += 1
            else:
                check(self._exact, "there is a member for every partition")
                member = self._exact.popleft()
            size = self._give(partition, member)
            if size == self._small:
                turn -= 1
                del self._under[turn]
                self._exact.append(member)
            elif size == self._large:
                self._filled += 1

    def _give(self, partition: TopicPartition, member: MemberId) -> int:
        share = self.shares[member]
        share.append(partition)
        if self._given_up.get(partition, member) != member or partition in self._disputed:
            self.moving[partition] = member
        return len(share)

    def _count_filled(self) -> None:
        self._filled += 1
        if self._filled == self._larger:
            self._exact.clear()


class _General:
    """Assignment for members with different subscriptions."""

    def __init__(self, topics: Topics, racks: _Racks, owned: Shares, members: Members) -> None:
        self.shares = owned
        self._racks, self._members = racks, members
        self._counts = {topic: len(partitions) for topic, partitions in topics.items()}
        self._wanted = {m: [t for t in given.topics if t in topics] for m, given in members.items()}
        self._readers: dict[str, list[MemberId]] = {topic: [] for topic in topics}
        for member, wanted in self._wanted.items():
            for topic in wanted:
                self._readers[topic].append(member)
        self._owner = {partition: member for member, share in owned.items() for partition in share}
        self._by_size = _BySize(owned)
        self._moves = _Moves()
        self._previous: Mapping[TopicPartition, tuple[MemberId, int]] = {}

    def build(self, previous: Mapping[TopicPartition, tuple[MemberId, int]]) -> None:
        self._previous = previous
        must_revoke = self._drop_what_cannot_stay()
        everything = self._all_partitions()
        kept = {partition for share in self.shares.values() for partition in share}
        rest = [partition for partition in everything if partition not in kept]
        for member in self.shares:
            self._by_size.add(member)
        fresh = not kept
        if self._racks.members:
            unmatched = [p for p in rest if self._readers[p.topic] and not self._place(p, within_rack=True)]
        else:
            unmatched = rest
        for partition in unmatched:
            if self._readers[partition.topic]:
                self._place(partition)

        movable = {topic for topic, readers in self._readers.items() if len(readers) >= 2}
        fixed = {member: self.shares.pop(member) for member in self._wanted if not self._can_change(member)}
        for member, share in fixed.items():
            self._by_size.discard(member, len(share))
        before = {member: list(share) for member, share in self.shares.items()}
        if not must_revoke:
            self._improve([partition for partition in rest if partition.topic in movable])
        changed = self._improve([partition for partition in everything if partition.topic in movable])
        if not fresh and changed and _imbalance(self.shares) >= _imbalance(before):
            self.shares = before
        self.shares |= fixed

    def _drop_what_cannot_stay(self) -> bool:
        """Remove partitions no longer subscribed to or read across racks; return whether there were any."""
        dropped = False
        for member, share in self.shares.items():
            wanted = self._members[member].topics
            for partition in tuple(share):
                if partition.topic not in wanted or self._racks.mismatch(member, partition):
                    share.remove(partition)
                    dropped = True
        return dropped

    def _all_partitions(self) -> list[TopicPartition]:
        """Return all partitions, those with the fewest subscribers first."""
        topics = sorted(self._counts, key=lambda topic: (len(self._readers[topic]), string_order(topic)))
        return [TopicPartition(topic, number) for topic in topics for number in range(self._counts[topic])]

    def _place(self, partition: TopicPartition, *, within_rack: bool = False) -> bool:
        """Assign a free partition to the member with the fewest that can take it."""
        for member in self._by_size:
            if partition.topic in self._wanted[member] and not (
                within_rack and self._racks.mismatch(member, partition)
            ):
                self._by_size.discard(member)
                self.shares[member].append(partition)
                self._owner[partition] = member
                self._by_size.add(member)
                return True
        return False

    def _room(self, member: MemberId) -> int:
        return sum(self._counts[topic] for topic in self._wanted[member])

    def _can_change(self, member: MemberId) -> bool:
        share = self.shares[member]
        return len(share) < self._room(member) or any(len(self._readers[p.topic]) >= 2 for p in share)

    def _is_balanced(self) -> bool:
        """Tell whether no member could take a partition from one that has at least two more."""
        if self._by_size.smallest >= self._by_size.largest - 1:
            return True
        owner = {partition: member for member, share in self.shares.items() for partition in share}
        for member in self._by_size:
            share = self.shares[member]
            if len(share) == self._room(member):
                continue
            mine = set(share)
            for topic in self._wanted[member]:
                for number in range(self._counts[topic]):
                    partition = TopicPartition(topic, number)
                    if partition not in mine and len(share) + 1 < len(self.shares[owner[partition]]):
                        return False
        return True

    def _improve(self, partitions: list[TopicPartition]) -> bool:
        """Move partitions to shorter lists until no move helps; return whether there was any."""
        changed, modified = False, True
        while modified:
            modified = False
            for partition in partitions:
                if self._is_balanced():
                    break
                target = self._better_owner(partition)
                if target is not None:
                    self._move(partition, target)
                    modified = changed = True
        return changed

    def _better_owner(self, partition: TopicPartition) -> MemberId | None:
        """Return a former owner, or the subscriber with the fewest partitions, if that improves balance."""
        owner = self._owner[partition]
        size = len(self.shares[owner])
        before, _ = self._previous.get(partition, (owner, 0))
        # Kafka also gives it back to a member that no longer subscribes to the topic.
        wanted = partition.topic in self._wanted.get(before, ())
        if wanted and before in self.shares and size > len(self.shares[before]) + 1:
            return before
        # Kafka looks at readers in the owner's rack first; the choice does not depend on it.
        if not any(size > len(self.shares[reader]) + 1 for reader in self._readers[partition.topic]):
            return None
        return next(member for member in self._by_size if partition.topic in self._wanted[member])

    def _move(self, partition: TopicPartition, target: MemberId) -> None:
        moved = self._moves.instead_of(partition, self._owner[partition], target)
        source = self._owner[moved]
        self._by_size.discard(source)
        self._by_size.discard(target)
        self._moves.record(moved, source, target)
        self.shares[source].remove(moved)
        self.shares[target].append(moved)
        self._owner[moved] = target
        self._by_size.add(target)
        self._by_size.add(source)


class _BySize:
    """Members sorted by their number of partitions, fewest first."""

    def __init__(self, shares: Shares) -> None:
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
        insort(self._entries, self._entry(member, len(self._shares[member])))

    def discard(self, member: MemberId, size: int | None = None) -> None:
        """Remove a member; before its share changes, or with its size before the change."""
        entry = self._entry(member, len(self._shares[member]) if size is None else size)
        at = bisect_left(self._entries, entry)
        if at < len(self._entries) and self._entries[at] == entry:
            del self._entries[at]

    def _entry(self, member: MemberId, size: int) -> tuple[int, bytes, MemberId]:
        return size, string_order(member), member


class _Moves:
    """Moves of partitions between members in this rebalance, by topic."""

    def __init__(self) -> None:
        self._moved: dict[TopicPartition, tuple[MemberId, MemberId]] = {}
        self._between: dict[tuple[str, MemberId, MemberId], _HashSet] = {}

    def instead_of(self, partition: TopicPartition, source: MemberId, target: MemberId) -> TopicPartition:
        """Return a partition of the topic that moved the opposite way, to take that back; else this one."""
        if partition in self._moved:
            source = self._moved[partition][0]
        back = self._between.get((partition.topic, target, source))
        return partition if back is None else back.first()

    def record(self, partition: TopicPartition, source: MemberId, target: MemberId) -> None:
        earlier = self._moved.pop(partition, None)
        if earlier is not None:
            key = (partition.topic, *earlier)
            self._between[key].remove(partition)
            if not self._between[key]:
                del self._between[key]
            source = earlier[0]
        if source != target:
            self._moved[partition] = (source, target)
            self._between.setdefault((partition.topic, source, target), _HashSet()).add(partition)


class _HashSet:
    """A set of partitions in Java's order; its capacity does not shrink."""

    def __init__(self) -> None:
        self._partitions: dict[TopicPartition, None] = {}
        self._capacity = 16

    def __bool__(self) -> bool:
        return bool(self._partitions)

    def add(self, partition: TopicPartition) -> None:
        self._partitions[partition] = None
        self._capacity = capacity_for(len(self._partitions), self._capacity)

    def remove(self, partition: TopicPartition) -> None:
        del self._partitions[partition]

    def first(self) -> TopicPartition:
        return hash_order(self._partitions, partition_hash, self._capacity)[0]


def _imbalance(shares: Mapping[MemberId, Iterable[TopicPartition]]) -> int:
    """Return the sum of all differences between two members' partition counts; 0 for perfect balance."""
    sizes = sorted(len(list(share)) for share in shares.values())
    # In sorted order, every size is added once per smaller one and subtracted once per larger one.
    return sum(size * (2 * index - len(sizes) + 1) for index, size in enumerate(sizes))
