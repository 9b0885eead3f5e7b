"""Kafka's four consumer assignors, as functions of the group's subscriptions.

    range               per topic, neighbouring partitions to members in order; keeps topics aligned
    roundrobin          partition by partition over members
    sticky              balanced, and as before as far as that allows; eager
    cooperative-sticky  the same; partitions that must move are given up first, and move one rebalance
                        later (KIP-429)

Every partition of a subscribed topic is assigned to exactly one member that subscribes to it [CLI-30].
`range` and `roundrobin` have no memory: they assign exactly as in Kafka 4, so that every partition stays
where it is when another client leads the group. The sticky ones leave any leader's balanced assignment as it
is. Where some member and replicas name racks, members get partitions with a replica in their rack as far as
balance allows (KIP-881).

Source: RangeAssignor, RoundRobinAssignor, StickyAssignor, CooperativeStickyAssignor.
"""

from collections.abc import Callable, Mapping
from itertools import cycle
from types import MappingProxyType
from typing import Final

from tallystick.client.consumer.assignors.sticky import assign_sticky, find_owners
from tallystick.client.consumer.assignors.subscription import (
    MemberData,
    PartitionRacks,
    Subscription,
    decode_generation,
    decode_member_data,
    encode_generation,
    encode_member_data,
    use_rack_aware_assignment,
)
from tallystick.kernel.ids import MemberId, TopicPartition
from tallystick.kernel.value import Value

GroupSubscription = Mapping[MemberId, Subscription]
Assignment = Mapping[MemberId, tuple[TopicPartition, ...]]


class Assignor(Value, kw_only=True):
    """One strategy.

    name            in JoinGroup and in `partition.assignment.strategy`
    is_cooperative  members keep their partitions while the group rebalances
    assign          topics with the racks of their partitions, members in the coordinator's order ->
                    assignment
    user_data       data that a member adds to its subscription, from its last assignment
    """

    name: str
    is_cooperative: bool = False
    assign: Callable[[PartitionRacks, GroupSubscription], Assignment]
    user_data: Callable[[MemberData | None], bytes | None] = lambda previous: None


def assign_range(topics: PartitionRacks, members: GroupSubscription) -> Assignment:
    """Assign each topic separately: partitions in numeric order, members in theirs, static ones first."""
    order = _sort_members(members)
    states = []
    for topic, racks in topics.items():
        subscribers = [member for member in order if topic in members[member].topics]
        if racks and subscribers:
            states.append(
                _TopicAssignmentState(topic, racks, {member: members[member].rack for member in subscribers})
            )
    if any(state.needs_rack_awareness for state in states):
        _assign_within_racks(states)
    for state in states:
        state.assign_where(lambda member, partition: True)
    shares: dict[MemberId, list[TopicPartition]] = {member: [] for member in members}
    for state in states:
        for member, numbers in state.assigned.items():
            shares[member] += (TopicPartition(state.topic, number) for number in numbers)
    return {member: tuple(sorted(partitions)) for member, partitions in shares.items()}


def assign_round_robin(topics: PartitionRacks, members: GroupSubscription) -> Assignment:
    """Assign all partitions in order, each to the next member that subscribes to its topic."""
    shares: dict[MemberId, list[TopicPartition]] = {member: [] for member in members}
    subscribed_topics = {topic for subscription in members.values() for topic in subscription.topics}
    turns = cycle(_sort_members(members))
    for topic in sorted(subscribed_topics & topics.keys(), key=_java_sort_key):
        for number in range(len(topics[topic])):
            member = next(member for member in turns if topic in members[member].topics)
            shares[member].append(TopicPartition(topic, number))
    return {member: tuple(partitions) for member, partitions in shares.items()}


def assign_eager_sticky(topics: PartitionRacks, members: GroupSubscription) -> Assignment:
    """Balance the group; every member keeps its former partitions as far as that allows."""
    owners = find_owners(
        {member: decode_member_data(subscription.user_data) for member, subscription in members.items()}
    )
    shares = assign_sticky(topics, members, owners)
    return {member: tuple(sorted(share)) for member, share in shares.items()}


def assign_cooperative_sticky(topics: PartitionRacks, members: GroupSubscription) -> Assignment:
    """Assign like `sticky`, without partitions that another member still owns [CLI-31].

    That member gives them up first and rejoins; the next rebalance finds them free.
    """
    owners = find_owners({member: _decode_claim(subscription) for member, subscription in members.items()})
    shares = assign_sticky(topics, members, owners)
    return {
        member: tuple(sorted(partition for partition in share if owners.get(partition, member) == member))
        for member, share in shares.items()
    }


def _decode_claim(subscription: Subscription) -> MemberData:
    if subscription.generation is not None:
        return MemberData(subscription.owned, subscription.generation)
    return MemberData(subscription.owned, decode_generation(subscription.user_data))


def _sort_members(members: GroupSubscription) -> list[MemberId]:
    """Sort static members by instance id, so that a returning one has its old place; then by member id."""

    def place(member: MemberId) -> tuple[bool, bytes]:
        instance = members[member].instance_id
        return instance is None, _java_sort_key(member if instance is None else instance)

    return sorted(members, key=place)


def _java_sort_key(text: str) -> bytes:
    """Return a sort key that sorts as Java sorts strings: by UTF-16 code units."""
    return text.encode("utf-16-be", "surrogatepass")


class _TopicAssignmentState:
    """One topic while `range` assigns its partitions."""

    def __init__(
        self, topic: str, racks: tuple[frozenset[str], ...], members: dict[MemberId, str | None]
    ) -> None:
        self.topic, self.members = topic, members
        member_racks = {rack for rack in members.values() if rack}
        self.racks = racks if member_racks else ()
        self.needs_rack_awareness = use_rack_aware_assignment(member_racks, racks)
        self.assigned: dict[MemberId, list[int]] = {member: [] for member in members}
        self._unassigned = dict.fromkeys(range(len(racks)))
        self._quota, self._members_with_extra = divmod(len(racks), len(members))

    def max_assignable(self, member: MemberId) -> int:
        return max(0, self._quota + (self._members_with_extra > 0) - len(self.assigned[member]))

    def racks_match(self, member: MemberId, number: int) -> bool:
        rack = self.members[member]
        return not rack or (bool(self.racks) and rack in self.racks[number])

    def assign(self, member: MemberId, numbers: list[int]) -> None:
        self.assigned[member] += numbers
        self._members_with_extra -= len(self.assigned[member]) > self._quota
        for number in numbers:
            del self._unassigned[number]

    def assign_where(self, may: Callable[[MemberId, int], bool]) -> None:
        for member in self.members:
            numbers = [number for number in self._unassigned if may(member, number)][
                : self.max_assignable(member)
            ]
            if numbers:
                self.assign(member, numbers)


def _assign_within_racks(states: list[_TopicAssignmentState]) -> None:
    """Assign partitions with a replica in the member's rack.

    Topics with the same number of partitions and the same members stay aligned.
    """
    alike: dict[object, list[_TopicAssignmentState]] = {}
    for state in states:
        alike.setdefault((frozenset(state.members.items()), len(state.racks)), []).append(state)
    for together in alike.values():
        if len(together) > 1:
            _assign_copartitioned(together)
        elif together[0].needs_rack_awareness:
            together[0].assign_where(together[0].racks_match)


def _assign_copartitioned(states: list[_TopicAssignmentState]) -> None:
    remaining = dict.fromkeys(states[0].members)
    for number in range(len(states[0].racks)):
        for member in remaining:
            if all(state.racks_match(member, number) and state.max_assignable(member) for state in states):
                break
        else:
            continue
        for state in states:
            state.assign(member, [number])
        if not any(state.max_assignable(member) for state in states):
            del remaining[member]


def _encode_previous(previous: MemberData | None) -> bytes | None:
    return None if previous is None else encode_member_data(previous)


def _encode_generation(previous: MemberData | None) -> bytes | None:
    return encode_generation(None if previous is None else previous.generation)


ASSIGNORS: Final[Mapping[str, Assignor]] = MappingProxyType(
    {
        assignor.name: assignor
        for assignor in (
            Assignor(name="range", assign=assign_range),
            Assignor(name="roundrobin", assign=assign_round_robin),
            Assignor(name="sticky", assign=assign_eager_sticky, user_data=_encode_previous),
            Assignor(
                name="cooperative-sticky",
                is_cooperative=True,
                assign=assign_cooperative_sticky,
                user_data=_encode_generation,
            ),
        )
    }
)
