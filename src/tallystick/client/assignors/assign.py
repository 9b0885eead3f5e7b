"""Kafka's four consumer assignors, as functions of the group's subscriptions.

    range               per topic, neighbouring partitions to members in order; keeps topics aligned
    roundrobin          partition by partition over members
    sticky              balanced, and as before as far as that allows; eager
    cooperative-sticky  the same; partitions that must move are given up first, and move one rebalance
                        later (KIP-429)

Every partition of a subscribed topic is assigned to exactly one member that subscribes to it [CLI-30].
The same subscriptions give the same assignment as in Kafka 4: a group may be led by any client. Where some
member and replicas name racks, members get partitions with a replica in their rack as far as balance
allows (KIP-881).

Source: RangeAssignor, RoundRobinAssignor, StickyAssignor, CooperativeStickyAssignor.
"""

from collections.abc import Callable, Mapping
from itertools import cycle
from types import MappingProxyType
from typing import Final

from tallystick.client.assignors.java_order import string_order
from tallystick.client.assignors.racks import Topics, racks_matter
from tallystick.client.assignors.sticky import assign_sticky
from tallystick.client.assignors.subscription import (
    Previous,
    Subscription,
    decode_cooperative,
    decode_sticky,
    encode_cooperative,
    encode_sticky,
)
from tallystick.kernel.ids import MemberId, TopicPartition
from tallystick.kernel.value import frozen

Members = Mapping[MemberId, Subscription]
Assignment = Mapping[MemberId, tuple[TopicPartition, ...]]


@frozen(kw_only=True)
class Assignor:
    """One strategy.

    name         in JoinGroup and in `partition.assignment.strategy`
    cooperative  members keep their partitions while the group rebalances
    assign       topics with the racks of their partitions, members in the coordinator's order -> assignment
    user_data    data that a member adds to its subscription, from its last assignment
    """

    name: str
    cooperative: bool = False
    assign: Callable[[Topics, Members], Assignment]
    user_data: Callable[[Previous | None], bytes | None] = lambda previous: None


def assign_range(topics: Topics, members: Members) -> Assignment:
    """Assign each topic separately: partitions in numeric order, members in theirs, static ones first."""
    order = _in_order(members)
    states = []
    for topic, racks in topics.items():
        subscribed = [member for member in order if topic in members[member].topics]
        if racks and subscribed:
            states.append(_Range(topic, racks, {member: members[member].rack for member in subscribed}))
    if any(state.needs_racks for state in states):
        _match_racks(states)
    for state in states:
        state.fill(lambda member, partition: True)
    assigned: dict[MemberId, list[TopicPartition]] = {member: [] for member in members}
    for state in states:
        for member, numbers in state.assigned.items():
            assigned[member] += (TopicPartition(state.topic, number) for number in numbers)
    return {member: tuple(sorted(partitions)) for member, partitions in assigned.items()}


def assign_round_robin(topics: Topics, members: Members) -> Assignment:
    """Assign all partitions in order, each to the next member that subscribes to its topic."""
    assigned: dict[MemberId, list[TopicPartition]] = {member: [] for member in members}
    wanted = {topic for subscription in members.values() for topic in subscription.topics}
    turns = cycle(_in_order(members))
    for topic in sorted(wanted & topics.keys(), key=string_order):
        for number in range(len(topics[topic])):
            member = next(member for member in turns if topic in members[member].topics)
            assigned[member].append(TopicPartition(topic, number))
    return {member: tuple(partitions) for member, partitions in assigned.items()}


def assign_eager_sticky(topics: Topics, members: Members) -> Assignment:
    """Balance the group; every member keeps its former partitions as far as that allows."""
    previous = {member: decode_sticky(given.user_data) for member, given in members.items()}
    return _settled(assign_sticky(topics, members, previous).assignment)


def assign_cooperative_sticky(topics: Topics, members: Members) -> Assignment:
    """Assign like `sticky`, without partitions that another member still owns [CLI-31].

    That member gives them up first and rejoins; the next rebalance finds them free.
    """
    previous = {member: _claimed(given) for member, given in members.items()}
    outcome = assign_sticky(topics, members, previous)
    moving = outcome.moving
    if moving is None:
        assigned = {partition: member for member, got in outcome.assignment.items() for partition in got}
        given_up = {
            partition
            for member, given in members.items()
            for partition in given.owned
            if assigned.get(partition) != member
        }
        had = {member: set(given.owned) for member, given in members.items()}
        moving = {p: m for p, m in assigned.items() if p in given_up and p not in had[m]}
    return _settled(
        {member: [p for p in got if moving.get(p) != member] for member, got in outcome.assignment.items()}
    )


def _claimed(given: Subscription) -> Previous:
    if given.generation is not None:
        return Previous(given.owned, given.generation)
    return Previous(given.owned, decode_cooperative(given.user_data))


def _settled(assignment: Mapping[MemberId, list[TopicPartition]]) -> Assignment:
    return {member: tuple(sorted(partitions)) for member, partitions in assignment.items()}


def _in_order(members: Members) -> list[MemberId]:
    """Sort static members by instance id, so that a returning one has its old place; then by member id."""

    def place(member: MemberId) -> tuple[bool, bytes]:
        instance = members[member].instance_id
        return instance is None, string_order(member if instance is None else instance)

    return sorted(members, key=place)


class _Range:
    """One topic while `range` assigns its partitions."""

    def __init__(
        self, topic: str, racks: tuple[frozenset[str], ...], members: dict[MemberId, str | None]
    ) -> None:
        self.topic, self.members = topic, members
        known = {rack for rack in members.values() if rack}
        self.racks = racks if known else ()
        self.needs_racks = racks_matter(known, racks)
        self.assigned: dict[MemberId, list[int]] = {member: [] for member in members}
        self._left = dict.fromkeys(range(len(racks)))
        self._each, self._extra = divmod(len(racks), len(members))

    def room(self, member: MemberId) -> int:
        return max(0, self._each + (self._extra > 0) - len(self.assigned[member]))

    def matches(self, member: MemberId, number: int) -> bool:
        rack = self.members[member]
        return not rack or (bool(self.racks) and rack in self.racks[number])

    def give(self, member: MemberId, numbers: list[int]) -> None:
        self.assigned[member] += numbers
        self._extra -= len(self.assigned[member]) > self._each
        for number in numbers:
            del self._left[number]

    def fill(self, may: Callable[[MemberId, int], bool]) -> None:
        for member in self.members:
            numbers = [number for number in self._left if may(member, number)][: self.room(member)]
            if numbers:
                self.give(member, numbers)


def _match_racks(states: list[_Range]) -> None:
    """Assign partitions with a replica in the member's rack.

    Topics with the same number of partitions and the same members stay aligned.
    """
    alike: dict[object, list[_Range]] = {}
    for state in states:
        alike.setdefault((frozenset(state.members.items()), len(state.racks)), []).append(state)
    for together in alike.values():
        if len(together) > 1:
            _match_aligned(together)
        elif together[0].needs_racks:
            together[0].fill(together[0].matches)


def _match_aligned(states: list[_Range]) -> None:
    remaining = dict.fromkeys(states[0].members)
    for number in range(len(states[0].racks)):
        for member in remaining:
            if all(state.matches(member, number) and state.room(member) for state in states):
                break
        else:
            continue
        for state in states:
            state.give(member, [number])
        if not any(state.room(member) for state in states):
            del remaining[member]


def _previous_as_user_data(previous: Previous | None) -> bytes | None:
    return None if previous is None else encode_sticky(previous)


def _generation_as_user_data(previous: Previous | None) -> bytes | None:
    return encode_cooperative(None if previous is None else previous.generation)


ASSIGNORS: Final[Mapping[str, Assignor]] = MappingProxyType(
    {
        assignor.name: assignor
        for assignor in (
            Assignor(name="range", assign=assign_range),
            Assignor(name="roundrobin", assign=assign_round_robin),
            Assignor(name="sticky", assign=assign_eager_sticky, user_data=_previous_as_user_data),
            Assignor(
                name="cooperative-sticky",
                cooperative=True,
                assign=assign_cooperative_sticky,
                user_data=_generation_as_user_data,
            ),
        )
    }
)
