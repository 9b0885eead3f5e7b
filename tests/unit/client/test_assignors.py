"""Assignors: Kafka's results, and what holds for every group."""

import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.support.assignors import Groups, from_line, rejoined, told, topics_without_racks

from tallystick.client.consumer.assignors.assign import ASSIGNORS, Assignment, GroupSubscription
from tallystick.client.consumer.assignors.subscription import (
    MemberData,
    Subscription,
    decode_assignment,
    decode_member_data,
    decode_subscription,
    encode_assignment,
    encode_member_data,
    encode_subscription,
)
from tallystick.kernel.ids import MemberId, TopicPartition
from tallystick.protocol import DecodeError

VECTORS = Path(__file__).parents[2] / "vectors" / "assignors" / "kafka_4_3_1.jsonl"
NAMES = sorted(ASSIGNORS)


def group(**topics_of: str) -> dict[MemberId, Subscription]:
    return {MemberId(member): Subscription(topics=tuple(topics)) for member, topics in topics_of.items()}


def assign(name: str, counts: dict[str, int], members: GroupSubscription) -> dict[str, str]:
    assignment = ASSIGNORS[name].assign(topics_without_racks(counts), members)
    return {member: " ".join(map(str, got)) for member, got in assignment.items()}


@pytest.mark.parametrize("number", range(8))
def test_assignments_without_memory_are_those_of_kafkas_own_assignors(number: int) -> None:
    for text in VECTORS.read_text().splitlines()[number::8]:
        line = json.loads(text)
        assert told(ASSIGNORS[line["assignor"]].assign(*from_line(line))) == line["answer"]


def test_range_gives_neighbours_topic_by_topic() -> None:
    """RangeAssignor's own example."""
    both = group(c0="tu", c1="tu")
    assert assign("range", {"t": 3, "u": 3}, both) == {"c0": "t-0 t-1 u-0 u-1", "c1": "t-2 u-2"}


def test_round_robin_deals_over_topics() -> None:
    """RoundRobinAssignor's own examples."""
    both = group(c0="tu", c1="tu")
    assert assign("roundrobin", {"t": 3, "u": 3}, both) == {"c0": "t-0 t-2 u-1", "c1": "t-1 u-0 u-2"}
    different = group(c0="t", c1="tu", c2="tuv")
    expected = {"c0": "t-0", "c1": "u-0", "c2": "u-1 v-0 v-1 v-2"}
    assert assign("roundrobin", {"t": 1, "u": 2, "v": 3}, different) == expected


def test_a_static_member_has_its_place_whatever_its_member_id() -> None:
    members = {
        MemberId("z"): Subscription(topics=("t",), instance_id="i0"),
        MemberId("a"): Subscription(topics=("t",), instance_id="i1"),
        MemberId("b"): Subscription(topics=("t",)),
    }
    assert assign("range", {"t": 3}, members) == {"z": "t-0", "a": "t-1", "b": "t-2"}


def test_a_cooperative_member_gets_what_moves_only_after_it_was_given_up() -> None:
    """[CLI-31] KIP-429: first rebalance revokes, the second one assigns."""
    alone = rejoined("cooperative-sticky", group(a="t"), {MemberId("a"): tuple(partitions(t=4))}, 1)
    members = {**alone, MemberId("b"): Subscription(topics=("t",))}
    first = ASSIGNORS["cooperative-sticky"].assign(topics_without_racks({"t": 4}), members)
    assert told(first) == {"a": ["t-0", "t-1"], "b": []}
    second = ASSIGNORS["cooperative-sticky"].assign(
        topics_without_racks({"t": 4}), rejoined("cooperative-sticky", members, first, 2)
    )
    assert told(second) == {"a": ["t-0", "t-1"], "b": ["t-2", "t-3"]}


def test_of_two_members_that_claim_a_partition_the_newer_generation_has_it() -> None:
    claims = {
        MemberId("a"): Subscription(topics=("t",), owned=tuple(partitions(t=2)), generation=4),
        MemberId("b"): Subscription(topics=("t",), owned=tuple(partitions(t=1)), generation=5),
    }
    assert assign("cooperative-sticky", {"t": 2}, claims) == {"a": "t-1", "b": "t-0"}


def test_a_partition_that_two_members_claim_is_given_to_neither_before_both_gave_it_up() -> None:
    """[CLI-31] In one generation, neither claim is older (KIP-341)."""
    claims = {
        MemberId(name): Subscription(topics=("t",), owned=tuple(partitions(t=1)), generation=5)
        for name in "ab"
    }
    assert assign("cooperative-sticky", {"t": 2}, claims) == {"a": "", "b": "t-1"}


def partitions(**counts: int) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for topic, count in counts.items() for number in range(count)]


def owners_of(members: GroupSubscription) -> dict[TopicPartition, MemberId]:
    """Return the last owner of each partition, of members that join `sticky`."""
    return {
        partition: member
        for member, subscription in members.items()
        for partition in decode_member_data(subscription.user_data).partitions
    }


def given_out(assignment: Assignment) -> list[TopicPartition]:
    return [partition for got in assignment.values() for partition in got]


# Where members want different topics, one of 150 groups takes a second rebalance after the first.
ROUNDS_MAX = 3


@example(102396385, "cooperative-sticky", False, False)
@given(st.integers(0, 10**9), st.sampled_from(NAMES), st.booleans(), st.booleans())
def test_every_partition_has_one_reader_who_wants_it(seed: int, name: str, racks: bool, alike: bool) -> None:
    """Complete, no partition twice [CLI-30], whatever the group went through."""
    cooperative = ASSIGNORS[name].is_cooperative
    groups = Groups(seed, name, racks=racks and not cooperative, alike=alike)
    for _ in range(4):
        assignment = ASSIGNORS[name].assign(groups.topics, groups.members)
        out = given_out(assignment)
        assert len(out) == len(set(out))
        for member, got in assignment.items():
            assert {partition.topic for partition in got} <= set(groups.members[member].topics)
        wanted = {topic for given in groups.members.values() for topic in given.topics}
        counts = {topic: len(found) for topic, found in groups.topics.items() if topic in wanted}
        free = {*partitions(**counts)} - {*out}
        # What a cooperative group moves is free for one rebalance; the next one may move something else.
        members, given = groups.members, assignment
        for _ in range(ROUNDS_MAX if cooperative else 0):
            members = rejoined(name, members, given, groups.generation)
            given = ASSIGNORS[name].assign(groups.topics, members)
            still_free = {*partitions(**counts)} - {*given_out(given)}
            assert not free & still_free
            free = still_free
        assert not free
        groups.settle(assignment)


@given(st.integers(0, 10**9), st.sampled_from(["sticky", "cooperative-sticky"]), st.booleans())
def test_members_that_want_the_same_differ_by_one_at_most(seed: int, name: str, racks: bool) -> None:
    """Racks make cooperative members swap, which leaves both a partition short until they have rejoined."""
    groups = Groups(seed, name, racks=racks and name == "sticky", alike=True)
    for _ in range(4):
        assignment = ASSIGNORS[name].assign(groups.topics, groups.members)
        members = rejoined(name, groups.members, assignment, groups.generation)
        sizes = [len(got) for got in ASSIGNORS[name].assign(groups.topics, members).values()]
        assert max(sizes) - min(sizes) <= 1
        groups.settle(assignment)


@given(st.integers(0, 10**9), st.sampled_from(["sticky", "cooperative-sticky"]), st.booleans())
def test_nothing_moves_when_nothing_changes(seed: int, name: str, alike: bool) -> None:
    groups = Groups(seed, name, racks=False, alike=alike)
    first = ASSIGNORS[name].assign(groups.topics, groups.members)
    members = rejoined(name, groups.members, first, 7)
    assert told(ASSIGNORS[name].assign(groups.topics, members)) == told(first)


@given(st.integers(0, 10**9), st.booleans(), st.booleans())
def test_no_move_of_one_partition_improves_the_balance(seed: int, racks: bool, alike: bool) -> None:
    groups = Groups(seed, "sticky", racks=racks, alike=alike)
    for _ in range(4):
        assignment = ASSIGNORS["sticky"].assign(groups.topics, groups.members)
        for giver, had in assignment.items():
            for taker, taken in assignment.items():
                shared = {p for p in had if p.topic in groups.members[taker].topics}
                assert not shared or len(had) - len(taken) <= 1, (giver, taker)
        groups.settle(assignment)


@given(st.integers(0, 10**9), st.booleans())
def test_a_partition_leaves_its_owner_for_a_member_with_no_more_partitions(seed: int, alike: bool) -> None:
    groups = Groups(seed, "sticky", racks=False, alike=alike)
    for _ in range(4):
        owners = owners_of(groups.members)
        assignment = ASSIGNORS["sticky"].assign(groups.topics, groups.members)
        for member, share in assignment.items():
            for partition in share:
                owner = owners.get(partition, member)
                if owner in groups.members and partition.topic in groups.members[owner].topics:
                    assert len(share) <= len(assignment[owner]) or owner == member
        groups.settle(assignment)


@given(st.integers(0, 10**9))
def test_members_with_the_same_subscription_keep_all_that_balance_allows(seed: int) -> None:
    groups = Groups(seed, "sticky", racks=False, alike=True)
    for _ in range(4):
        owners = owners_of(groups.members)
        assignment = ASSIGNORS["sticky"].assign(groups.topics, groups.members)
        total, count = sum(map(len, assignment.values())), len(assignment)
        quota, larger_shares = divmod(total, count)
        owned = Counter(owner for owner in owners.values() if owner in groups.members)
        kept = sum(min(size, quota) for size in owned.values())
        kept += min(larger_shares, sum(size > quota for size in owned.values()))
        assert kept == sum(owners.get(p) == member for member, share in assignment.items() for p in share)
        groups.settle(assignment)


@pytest.mark.parametrize("name", ["sticky", "cooperative-sticky"])
def test_members_read_in_their_racks_what_balance_allows(name: str) -> None:
    """KIP-881: the partition of rack c has no reader there and goes where there is room."""
    members = {
        MemberId(rack): Subscription(
            topics=("t",), rack=rack, owned=(TopicPartition("t", number),), generation=1
        )
        for rack, number in (("a", 3), ("b", 0))
    }
    topics = {"t": tuple(frozenset(rack) for rack in "aaabcb")}
    first = ASSIGNORS[name].assign(topics, members)
    second = ASSIGNORS[name].assign(topics, rejoined(name, members, first, 2))
    assert told(second) == {"a": ["t-0", "t-1", "t-2"], "b": ["t-3", "t-4", "t-5"]}
    assert told(ASSIGNORS[name].assign(topics, rejoined(name, members, second, 3))) == told(second)


@given(st.integers(0, 10**9), st.booleans())
def test_a_group_with_racks_comes_to_rest(seed: int, alike: bool) -> None:
    groups = Groups(seed, "sticky", racks=True, alike=alike)
    assignment = ASSIGNORS["sticky"].assign(groups.topics, groups.members)
    for generation in range(10):
        former = assignment
        members = rejoined("sticky", groups.members, former, generation)
        assignment = ASSIGNORS["sticky"].assign(groups.topics, members)
        if assignment == former:
            return
    pytest.fail("partitions still move after ten rebalances without a change")


@given(st.binary(max_size=60))
def test_bytes_of_another_client_are_read_or_refused(data: bytes) -> None:
    for read in (decode_subscription, decode_assignment):
        try:
            read(data)
        except DecodeError:
            pass
    decode_member_data(data)


def test_subscriptions_and_assignments_come_back() -> None:
    subscription = Subscription(
        topics=("a", "b"),
        owned=tuple(partitions(a=2, b=1)),
        generation=3,
        rack="r",
        user_data=encode_member_data(MemberData(tuple(partitions(a=2)), 9)),
    )
    assert decode_subscription(encode_subscription(subscription)) == subscription
    assert decode_member_data(subscription.user_data) == MemberData(tuple(partitions(a=2)), 9)
    assert decode_assignment(encode_assignment(partitions(b=1, a=2))) == tuple(partitions(a=2, b=1))


def test_user_data_of_before_kip_341_has_no_generation() -> None:
    assert decode_member_data(encode_member_data(MemberData(tuple(partitions(a=2)), 9))[:-4]) == MemberData(
        tuple(partitions(a=2)), None
    )


def test_a_newer_subscription_is_read_as_far_as_it_is_known() -> None:
    newer = b"\x00\x09" + encode_subscription(Subscription(topics=("a",)))[2:] + b"more"
    assert decode_subscription(newer) == Subscription(topics=("a",))
