"""Asking several brokers for one answer: what they said, and which of them said nothing.

One broker that is down must not hide what the others know, and must not be forgotten either: an answer
carries both [ADM-2].
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from tallystick.admin.errors import BrokerDown
from tallystick.client.cluster import Cluster
from tallystick.client.errors import ClientError, NotSupported, UnknownTopic, Unreachable, refused
from tallystick.client.retry import Deadline
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.ids import TopicPartition

K = TypeVar("K")
V = TypeVar("V")
R = TypeVar("R")

# A broker that refuses connections this often is given up; with the default backoffs within a second.
CONNECT_ATTEMPTS: Final = 3
UNDER_WAY_MAX: Final = 64
PARTITIONS_PER_REQUEST: Final = 500  # as Kafka's tools


@dataclass(frozen=True, slots=True)
class Answers(Generic[K, V]):
    """What was found, by what was asked for, and why the rest was not [ADM-2].

    Every key that was asked for is in exactly one of the two.
    """

    found: Mapping[K, V]
    failures: Mapping[K, ClientError]

    @property
    def complete(self) -> bool:
        return not self.failures

    def one(self, key: K) -> V:
        """What was found for `key`. Raises: why it was not."""
        if key in self.failures:
            raise self.failures[key]
        return self.found[key]

    def all(self) -> Mapping[K, V]:
        """Everything. Raises: the first failure."""
        for failure in self.failures.values():
            raise failure
        return self.found


async def gather(keys: Iterable[K], ask: Callable[[K], Awaitable[V]]) -> Answers[K, V]:
    """Ask for every key at the same time; a client's error is an answer like another."""
    places = asyncio.Semaphore(UNDER_WAY_MAX)
    found: dict[K, V] = {}
    failures: dict[K, ClientError] = {}

    async def one(key: K) -> None:
        async with places:
            try:
                found[key] = await ask(key)
            except ClientError as exc:
                failures[key] = exc

    async with asyncio.TaskGroup() as group:
        for key in dict.fromkeys(keys):
            group.create_task(one(key))
    return Answers(found, failures)


class Asker:
    """Requests of one administrator's call, which share its deadline."""

    def __init__(self, cluster: Cluster, deadline: Deadline) -> None:
        self.cluster = cluster
        self.deadline = deadline

    async def brokers(self, wanted: Sequence[int] | None = None) -> tuple[int, ...]:
        """The ids of all brokers, or `wanted`. Raises: NotSupported where the cluster has no such broker."""
        image = await self.cluster.retrying("Metadata", "", self.cluster.refresh, self.deadline)
        for node_id in wanted or ():
            if node_id not in image.nodes:
                known = ", ".join(map(str, sorted(image.nodes)))
                raise NotSupported(f"broker {node_id}", f"the cluster lists {known}")
        return tuple(sorted(image.nodes)) if wanted is None else tuple(wanted)

    async def of_broker(
        self,
        node_id: int,
        request: object,
        answer: type[R],
        code: Callable[[R], int | tuple[int, str | None]],
        subject: str = "",
    ) -> R:
        """Ask one broker until it answers; one that cannot be connected to is given up soon."""
        api = type(request).__name__.removesuffix("Request")
        subject = subject or f"broker {node_id}"
        refusals = 0

        async def attempt() -> R:
            nonlocal refusals
            try:
                found = await self.cluster.send(node_id, request, answer)
            except Unreachable as exc:
                refusals += 1
                if refusals >= CONNECT_ATTEMPTS:
                    raise BrokerDown(f"broker {node_id}", exc.what()) from exc
                raise
            told = code(found)
            number, text = told if isinstance(told, tuple) else (told, None)
            if number:
                raise refused(api, subject, number, text)
            return found

        return await self.cluster.retrying(api, subject, attempt, self.deadline)

    async def of_coordinator(
        self, kind: str, key: str, request: object, answer: type[R], code: Callable[[R], int]
    ) -> tuple[int, R]:
        """Ask who looks after a transactional id or a group; which broker that was, and its answer."""
        api = type(request).__name__.removesuffix("Request")

        async def attempt() -> tuple[int, R]:
            node = await self.cluster.coordinator("group" if kind == "group" else "transaction", key)
            found = await self.cluster.send(node, request, answer)
            if number := code(found):
                raise refused(api, key, number)
            return node, found

        return await self.cluster.retrying(api, key, attempt, self.deadline)

    async def of_any(
        self, request: object, answer: type[R], code: Callable[[R], int], subject: str = ""
    ) -> R:
        """Ask what every broker can answer, or passes on to the controller."""
        api = type(request).__name__.removesuffix("Request")

        async def attempt() -> R:
            found = await self.cluster.send_any(request, answer)
            if number := code(found):
                raise refused(api, subject, number)
            return found

        return await self.cluster.retrying(api, subject, attempt, self.deadline)

    async def of_leaders(
        self,
        partitions: Iterable[TopicPartition],
        ask: Callable[[int, Sequence[TopicPartition]], Awaitable[Mapping[TopicPartition, V | ClientError]]],
        api: str,
        broker_id: int | None = None,
    ) -> Answers[TopicPartition, V]:
        """Ask the leaders of partitions, in as few requests as possible; repeat what is worth repeating.

        Args:
            ask: one request to one broker; what it says of each partition.
            broker_id: ask this broker for all of them, leader or not.
        """
        found: dict[TopicPartition, V] = {}
        failures: dict[TopicPartition, ClientError] = {}
        left = dict.fromkeys(partitions)

        async def attempt() -> None:
            batches = await self._batches(tuple(left), broker_id, failures)
            told = await gather(batches, lambda batch: ask(batch[0], batch[1]))
            answers: dict[TopicPartition, V | ClientError] = {}
            for batch, answer in told.found.items():
                answers |= {at: answer.get(at, _missing(api, at)) for at in batch[1]}
            for batch, failure in told.failures.items():
                answers |= dict.fromkeys(batch[1], failure)
            for at, each in answers.items():
                if isinstance(each, ClientError):
                    failures[at] = each
                else:
                    found[at] = each
                    failures.pop(at, None)
            for at in tuple(left):
                if at in found or not _worth_repeating(failures[at]):
                    del left[at]
            if left:
                raise failures[next(iter(left))]

        try:
            await self.cluster.retrying(api, "partitions", attempt, self.deadline)
        except ClientError as exc:
            for at in left:
                failures.setdefault(at, exc)
        return Answers(found, failures)

    async def _batches(
        self,
        partitions: Sequence[TopicPartition],
        broker_id: int | None,
        failures: dict[TopicPartition, ClientError],
    ) -> list[tuple[int, tuple[TopicPartition, ...]]]:
        """Partitions by the broker to ask, not too many in one request."""
        by_node: dict[int, list[TopicPartition]] = {}
        for at in partitions:
            try:
                node = await self.cluster.node_for(at) if broker_id is None else broker_id
            except ClientError as exc:
                failures[at] = exc
            else:
                by_node.setdefault(node, []).append(at)
        return [
            (node, tuple(some[first : first + PARTITIONS_PER_REQUEST]))
            for node, some in by_node.items()
            for first in range(0, len(some), PARTITIONS_PER_REQUEST)
        ]


def _worth_repeating(failure: ClientError) -> bool:
    # A topic that was just made may be unknown for a moment; a name that was mistyped is so for ever.
    return failure.remedy.repeats and not isinstance(failure, UnknownTopic)


def _missing(api: str, at: TopicPartition) -> ClientError:
    return refused(api, at, ErrorCode.UNKNOWN_SERVER_ERROR, "the answer leaves it out")


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Partition numbers by topic, as requests want them."""
    topics: dict[str, list[int]] = {}
    for at in partitions:
        topics.setdefault(at.topic, []).append(at.partition)
    return topics
