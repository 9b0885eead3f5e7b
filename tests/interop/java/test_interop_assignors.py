"""Our assignors beside Apache Kafka's own, on groups that change at random."""

import json
import os
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import permutations
from pathlib import Path

import pytest
from tests.support.assignors import Groups, as_line, rejoined, told
from tools.servers import apache_kafka

from tallystick.client.consumer.assignors.assign import ASSIGNORS, Assignment, GroupSubscription
from tallystick.client.consumer.assignors.subscription import PartitionRacks
from tallystick.kernel.ids import MemberId, TopicPartition

GROUPS = int(os.environ.get("TALLYSTICK_ASSIGNOR_GROUPS", "60"))
REBALANCES = 6
ROUNDS_MAX = 10

pytestmark = [pytest.mark.gate(0), pytest.mark.kafka]


Assign = Callable[[PartitionRacks, GroupSubscription], Assignment]
Oracle = Callable[[str, PartitionRacks, GroupSubscription], Assignment]


def parse_partition(text: str) -> TopicPartition:
    topic, _, number = text.rpartition("-")
    return TopicPartition(topic, int(number))


@pytest.fixture(scope="module")
def oracle() -> Iterator[Oracle]:
    source = Path(__file__).parent / "AssignorOracle.java"
    process = subprocess.Popen(
        apache_kafka.make_java_command(str(source)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    stdin, stdout = process.stdin, process.stdout

    def ask(name: str, topics: PartitionRacks, members: GroupSubscription) -> Assignment:
        stdin.write(json.dumps(as_line(name, topics, members)) + "\n")
        stdin.flush()
        answer: dict[str, list[str]] = json.loads(stdout.readline())
        return {MemberId(member): tuple(map(parse_partition, share)) for member, share in answer.items()}

    yield ask
    stdin.close()
    process.wait(30)
    stdout.close()


@pytest.mark.parametrize("name", ["range", "roundrobin"])
def test_assignors_without_memory_assign_as_kafkas(name: str, oracle: Oracle) -> None:
    for seed in range(GROUPS):
        groups = Groups(seed, name, racks=seed % 2 == 1, alike=seed % 4 < 2)
        for _ in range(REBALANCES):
            ours = ASSIGNORS[name].assign(groups.topics, groups.members)
            assert told(ours) == told(oracle(name, groups.topics, groups.members)), f"seed {seed}"
            groups.settle(ours)


@pytest.mark.parametrize("name", ["sticky", "cooperative-sticky"])
@pytest.mark.parametrize("is_led_by_kafka", [False, True], ids=["led by ours", "led by Kafka"])
def test_sticky_assignors_balance_as_kafkas_and_move_no_more(
    name: str, is_led_by_kafka: bool, oracle: Oracle
) -> None:
    """Where subscriptions are equal, shares have the same sizes each time; else balance is as good in all."""
    totals: Counter[str] = Counter()
    for seed in range(GROUPS):
        # With racks, cooperative members of Kafka may hand partitions round for ever.
        racks, alike = seed % 2 == 1 and name == "sticky", seed % 4 < 2
        groups = Groups(seed, name, racks=racks, alike=alike)
        owners: dict[TopicPartition, MemberId] = {}
        for _ in range(REBALANCES):
            ours = rebalance(ASSIGNORS[name].assign, name, groups)
            kafkas = rebalance(partial(oracle, name), name, groups)
            moves, kafkas_moves = count_moves(ours, owners), count_moves(kafkas, owners)
            if alike:
                assert sorted(map(len, ours.values())) == sorted(map(len, kafkas.values())), f"seed {seed}"
                assert racks or moves <= kafkas_moves, f"seed {seed}"
            totals["moves"] += moves - kafkas_moves
            totals["balance"] += compute_imbalance(ours) - compute_imbalance(kafkas)
            totals["partitions"] += sum(map(len, ours.values()))
            chosen = kafkas if is_led_by_kafka else ours
            owners = {partition: member for member, share in chosen.items() for partition in share}
            groups.settle(chosen)
    assert totals["moves"] <= 0
    assert totals["balance"] <= totals["partitions"] / 100


@pytest.mark.parametrize("name", ["sticky", "cooperative-sticky"])
def test_nothing_moves_when_the_lead_changes(name: str, oracle: Oracle) -> None:
    for seed in range(GROUPS):
        groups = Groups(seed, name, racks=False, alike=seed % 2 == 0)
        for _ in range(REBALANCES):
            given: Assignment = {}
            leaders: tuple[Assign, Assign] = (ASSIGNORS[name].assign, partial(oracle, name))
            for first, second in permutations(leaders):
                given = rebalance(first, name, groups)
                members = rejoined(name, groups.members, given, groups.generation)
                assert told(second(groups.topics, members)) == told(given), f"seed {seed}"
            groups.settle(given)


def rebalance(assign: Assign, name: str, groups: Groups) -> Assignment:
    """Return the group's assignment once all partitions that move have been given up."""
    given = assign(groups.topics, groups.members)
    wanted = {topic for subscription in groups.members.values() for topic in subscription.topics}
    total = sum(len(partitions) for topic, partitions in groups.topics.items() if topic in wanted)
    for _ in range(ROUNDS_MAX):
        if sum(map(len, given.values())) == total:
            return given
        given = assign(groups.topics, rejoined(name, groups.members, given, groups.generation))
    pytest.fail(f"partitions are still unassigned after {ROUNDS_MAX} rebalances")


def count_moves(assignment: Assignment, owners: Mapping[TopicPartition, MemberId]) -> int:
    return sum(owners.get(p, member) != member for member, share in assignment.items() for p in share)


def compute_imbalance(assignment: Assignment) -> int:
    """Return the sum of the squared sizes, which every move to a shorter list makes smaller."""
    return sum(len(share) ** 2 for share in assignment.values())
