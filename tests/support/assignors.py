"""Groups for the assignors: random ones, and the line format that Kafka's own assignors read and write."""

import base64
import random
from collections.abc import Mapping
from typing import Any

from tallystick.client.consumer.assignors.assign import ASSIGNORS, Assignment, GroupSubscription
from tallystick.client.consumer.assignors.subscription import MemberData, PartitionRacks, Subscription
from tallystick.kernel.ids import MemberId, TopicPartition

Line = dict[str, Any]


def topics_without_racks(counts: Mapping[str, int]) -> PartitionRacks:
    """Return topics of which only the number of partitions is known."""
    return {topic: (frozenset[str](),) * count for topic, count in counts.items()}


def as_line(assignor: str, topics: PartitionRacks, members: GroupSubscription) -> Line:
    return {
        "assignor": assignor,
        "topics": {topic: [sorted(racks) for racks in partitions] for topic, partitions in topics.items()},
        "members": [
            {
                "id": member,
                "topics": list(given.topics),
                "owned": [[p.topic, p.partition] for p in given.owned],
                "generation": given.generation,
                "instance": given.instance_id,
                "rack": given.rack,
                "user_data": None if given.user_data is None else base64.b64encode(given.user_data).decode(),
            }
            for member, given in members.items()
        ],
    }


def from_line(line: Line) -> tuple[PartitionRacks, GroupSubscription]:
    topics = {name: tuple(frozenset(racks) for racks in found) for name, found in line["topics"].items()}
    members = {
        MemberId(given["id"]): Subscription(
            topics=tuple(given["topics"]),
            owned=tuple(TopicPartition(*partition) for partition in given["owned"]),
            generation=given["generation"],
            instance_id=given["instance"],
            rack=given["rack"],
            user_data=None if given["user_data"] is None else base64.b64decode(given["user_data"]),
        )
        for given in line["members"]
    }
    return topics, members


def told(assignment: Assignment) -> dict[str, list[str]]:
    """Return the assignment in the oracle's format, in order."""
    return {member: sorted(map(str, partitions)) for member, partitions in assignment.items()}


def rejoined(
    name: str, members: GroupSubscription, assignment: Assignment, generation: int
) -> dict[MemberId, Subscription]:
    """Return the same members in their next JoinGroup, after this assignment."""
    assignor = ASSIGNORS[name]
    return {
        member: Subscription(
            topics=given.topics,
            owned=assignment[member] if assignor.is_cooperative else (),
            generation=generation,
            instance_id=given.instance_id,
            rack=given.rack,
            user_data=assignor.user_data(MemberData(assignment[member], generation)),
        )
        for member, given in members.items()
    }


class Groups:
    """A group that changes at random from one rebalance to the next: members, topics, partitions, racks."""

    def __init__(self, seed: int, assignor: str, *, racks: bool, alike: bool) -> None:
        self.random = random.Random(seed)
        self.assignor, self.racks, self.alike = assignor, racks, alike
        self.topics: dict[str, tuple[frozenset[str], ...]] = {
            f"topic{n}": self._partitions(self.random.randint(1, 9)) for n in range(self.random.randint(1, 6))
        }
        self.members: dict[MemberId, Subscription] = {}
        self.generation = 1
        for _ in range(self.random.randint(1, 20)):
            self._arrive()

    def settle(self, assignment: Mapping[MemberId, tuple[TopicPartition, ...]]) -> None:
        """Let every member take its assignment, then change something at random."""
        self.members = rejoined(self.assignor, self.members, assignment, self.generation)
        self.generation += 1
        choice = self.random.random()
        if choice < 0.4:
            for _ in range(self.random.randint(1, 5)):
                self._arrive()
        elif choice < 0.7 and len(self.members) > 1:
            for member in self.random.sample(sorted(self.members), len(self.members) // 3):
                del self.members[member]
        elif choice < 0.85:
            topic = self.random.choice(sorted(self.topics))
            self.topics[topic] += self._partitions(self.random.randint(1, 4))
        else:
            self.topics[f"topic{len(self.topics)}"] = self._partitions(self.random.randint(1, 9))
            self.members = {
                member: Subscription(
                    topics=tuple(self.topics) if self.alike else given.topics,
                    owned=given.owned,
                    generation=given.generation,
                    instance_id=given.instance_id,
                    rack=given.rack,
                    user_data=given.user_data,
                )
                for member, given in self.members.items()
            }

    def _arrive(self) -> None:
        names = sorted(self.topics)
        chosen = names if self.alike else self.random.sample(names, self.random.randint(1, len(names)))
        member = MemberId(f"consumer-{self.random.randint(0, 2**64):016x}")
        self.members[member] = Subscription(
            topics=tuple(chosen),
            instance_id=f"{self.random.randint(0, 2**64):x}" if self.random.random() < 0.2 else None,
            rack=self.random.choice(["a", "b", "c", None]) if self.racks else None,
            user_data=ASSIGNORS[self.assignor].user_data(None),
        )

    def _partitions(self, count: int) -> tuple[frozenset[str], ...]:
        def racks() -> frozenset[str]:
            return frozenset(self.random.sample("abcd", self.random.randint(1, 3)) if self.racks else ())

        return tuple(racks() for _ in range(count))
