"""Requests to several brokers with one result: the answers, and the failures.

A broker that is down must neither hide what the others know nor go unmentioned, so a result carries both
[ADM-2].
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, Generic, TypeVar, cast

from tallystick.admin.errors import BrokerDown
from tallystick.client.errors import ClientError, NotSupported, UnknownTopic, Unreachable, build_broker_error
from tallystick.client.net.cluster import Cluster
from tallystick.client.net.coordinators import CoordinatorType
from tallystick.client.net.retry_scope import Deadline
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Remedy
from tallystick.kernel.ids import TopicPartition
from tallystick.kernel.value import Value

K = TypeVar("K")
V = TypeVar("V")
R = TypeVar("R")

# A broker is given up after this many refused connections; with the default backoffs within a second.
CONNECT_ATTEMPTS: Final = 3
UNKNOWN_TOPIC_ATTEMPTS: Final = 3
CONCURRENT_MAX: Final = 64
PARTITIONS_PER_REQUEST: Final = 500  # as in Kafka's tools
IDS_PER_REQUEST: Final = 500


class Answers(Value, Generic[K, V]):
    """Values by key, and the failures of the other keys [ADM-2].

    Every requested key is in exactly one of the two.
    """

    found: Mapping[K, V]
    failures: Mapping[K, ClientError]

    @property
    def complete(self) -> bool:
        return not self.failures

    def one(self, key: K) -> V:
        """Return the value of `key`.

        Raises: the key's failure.
        """
        if key in self.failures:
            raise self.failures[key]
        return self.found[key]

    def all(self) -> Mapping[K, V]:
        """Return every value.

        Raises: the first failure.
        """
        for failure in self.failures.values():
            raise failure
        return self.found


async def gather_answers(keys: Iterable[K], ask: Callable[[K], Awaitable[V]]) -> Answers[K, V]:
    """Ask for every key concurrently; a ClientError becomes the key's failure."""
    places = asyncio.Semaphore(CONCURRENT_MAX)
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


class AdminCall:
    """Requests of one administration call, which share its deadline."""

    def __init__(self, cluster: Cluster, deadline: Deadline) -> None:
        self.cluster = cluster
        self.deadline = deadline

    def halve_deadline(self) -> "AdminCall":
        """Return a call for one of several steps, with half of the time that is left.

        A step that cannot be answered then leaves time for the steps after it [ADM-2].
        """
        left_ms = self.deadline.remaining_ms(self.cluster.now_ms())
        limit_name = f"half of what was left of {self.deadline.limit_name}"
        return AdminCall(self.cluster, self.cluster.start_deadline(limit_name, left_ms // 2))

    async def list_brokers(self, node_ids: Sequence[int] | None = None) -> tuple[int, ...]:
        """Return the ids of all brokers, or `node_ids`.

        Raises: NotSupported if the cluster does not list one of them.
        """
        image = await self.cluster.run_with_retries("Metadata", "", self.cluster.refresh, self.deadline)
        for node_id in node_ids or ():
            if node_id not in image.nodes:
                known_nodes = ", ".join(map(str, sorted(image.nodes)))
                raise NotSupported(f"broker {node_id}", f"the cluster lists {known_nodes}")
        return tuple(sorted(image.nodes)) if node_ids is None else tuple(node_ids)

    async def send_to_broker(
        self,
        node_id: int,
        request: object,
        answer: type[R],
        code: Callable[[R], int | tuple[int, str | None]],
        subject: str = "",
    ) -> R:
        """Ask one broker until it answers; give up soon if it refuses connections."""
        api = type(request).__name__.removesuffix("Request")
        subject = subject or f"broker {node_id}"
        refusals = 0

        async def attempt() -> R:
            nonlocal refusals
            try:
                response = await self.cluster.send(node_id, request, answer)
            except Unreachable as exc:
                refusals += 1
                if refusals >= CONNECT_ATTEMPTS:
                    raise BrokerDown(f"broker {node_id}", exc.what()) from exc
                raise
            error = code(response)
            number, text = error if isinstance(error, tuple) else (error, None)
            if number:
                raise build_broker_error(api, subject, number, text)
            return response

        return await self.cluster.run_with_retries(api, subject, attempt, self.deadline)

    async def send_to_coordinator(
        self, kind: str, key: str, request: object, answer: type[R], code: Callable[[R], int]
    ) -> tuple[int, R]:
        """Ask the coordinator of a transactional id or a group.

        Returns: the coordinator's broker id, and its answer.
        """
        api = type(request).__name__.removesuffix("Request")

        async def attempt() -> tuple[int, R]:
            node = await self.cluster.find_coordinator("group" if kind == "group" else "transaction", key)
            response = await self.cluster.send(node, request, answer)
            if number := code(response):
                raise build_broker_error(api, key, number)
            return node, response

        return await self.cluster.run_with_retries(api, key, attempt, self.deadline)

    async def send_with_retries(
        self,
        api: str,
        keys: Iterable[K],
        ask: Callable[[Sequence[K]], Awaitable[Mapping[K, V | ClientError]]],
    ) -> Answers[K, V]:
        """Ask for all keys, then again for the keys that failed for a transient reason.

        Each failure has the worst effect of the attempts at its own key [CLI-1].

        Args:
            ask: one round; returns a value or an error for each key. An error that it raises counts for every
                key.
        """
        found: dict[K, V] = {}
        failures: dict[K, ClientError] = {}
        failures_by_key = dict.fromkeys(keys, 0)

        async def attempt() -> None:
            try:
                answers = await ask(tuple(failures_by_key))
            except ClientError as exc:
                answers = dict.fromkeys(failures_by_key, exc)
            for key, failed_before in tuple(failures_by_key.items()):
                each = answers.get(key) if key in answers else _missing_key_error(api, key)
                if isinstance(each, ClientError):
                    before = failures.get(key)
                    failures[key] = each if before is None else each.after(before.effect)
                    failures_by_key[key] += 1
                    if not _is_retriable(each, failed_before):
                        del failures_by_key[key]
                else:
                    # None is a valid answer here, because `answers` contains the key.
                    found[key] = cast(V, each)
                    failures.pop(key, None)
                    del failures_by_key[key]
            if failures_by_key:
                raise failures[next(iter(failures_by_key))]

        try:
            await self.cluster.run_with_retries(api, "", attempt, self.deadline)
        except ClientError as exc:
            failures |= dict.fromkeys(failures_by_key, exc)
        return Answers(found, failures)

    async def send_to_leaders(
        self,
        partitions: Iterable[TopicPartition],
        ask: Callable[[int, Sequence[TopicPartition]], Awaitable[Mapping[TopicPartition, V | ClientError]]],
        api: str,
        broker_id: int | None = None,
    ) -> Answers[TopicPartition, V]:
        """Ask the leaders of partitions, in as few requests as possible; repeat transient failures.

        Args:
            ask: one request to one broker; returns a value or an error for each partition.
            broker_id: ask this broker for all partitions, leader or not.
        """

        async def one_round(some: Sequence[TopicPartition]) -> Mapping[TopicPartition, V | ClientError]:
            answers: dict[TopicPartition, V | ClientError] = {}
            batches = await self._batch_by_broker(some, broker_id, answers)
            return answers | await _ask_batches(batches, ask)

        return await self.send_with_retries(api, partitions, one_round)

    async def send_to_coordinators(
        self,
        kind: CoordinatorType,
        keys: Iterable[str],
        ask: Callable[[int, Sequence[str]], Awaitable[Mapping[str, V | ClientError]]],
        api: str,
    ) -> Answers[str, V]:
        """Ask the coordinators of ids, in as few requests as possible; repeat transient failures.

        Args:
            ask: one request to one broker; returns a value or an error for each id.
        """

        async def one_round(some: Sequence[str]) -> Mapping[str, V | ClientError]:
            nodes = await self.cluster.find_coordinators(kind, some)
            answers: dict[str, V | ClientError] = {
                key: node for key, node in nodes.items() if isinstance(node, ClientError)
            }
            by_node: dict[int, list[str]] = {}
            for key, node in nodes.items():
                if not isinstance(node, ClientError):
                    by_node.setdefault(node, []).append(key)
            answers |= await _ask_batches(_cut_batches(by_node, IDS_PER_REQUEST), ask)
            for key, answer in answers.items():
                if isinstance(answer, ClientError) and answer.remedy is Remedy.FIND_COORDINATOR:
                    self.cluster.forget_coordinator(kind, key)
            return answers

        return await self.send_with_retries(api, keys, one_round)

    async def find_controller(self) -> int:
        """Return the broker to send topic changes to; with KRaft any broker, which forwards them."""
        image = self.cluster.image
        if image.controller_id is None or image.controller_id not in image.nodes:
            image = await self.cluster.refresh()
        if image.controller_id is None or image.controller_id not in image.nodes:
            raise build_broker_error("Metadata", "controller", ErrorCode.NOT_CONTROLLER)
        return image.controller_id

    async def _batch_by_broker(
        self,
        partitions: Sequence[TopicPartition],
        broker_id: int | None,
        answers: dict[TopicPartition, V | ClientError],
    ) -> list[tuple[int, tuple[TopicPartition, ...]]]:
        """Group partitions by the broker to ask, at most PARTITIONS_PER_REQUEST in one request."""
        by_node: dict[int, list[TopicPartition]] = {}
        for at in partitions:
            try:
                node = await self.cluster.find_leader(at) if broker_id is None else broker_id
            except ClientError as exc:
                answers[at] = exc
            else:
                by_node.setdefault(node, []).append(at)
        return _cut_batches(by_node, PARTITIONS_PER_REQUEST)


async def _ask_batches(
    batches: Iterable[tuple[int, tuple[K, ...]]],
    ask: Callable[[int, Sequence[K]], Awaitable[Mapping[K, V | ClientError]]],
) -> dict[K, V | ClientError]:
    """Send one request for each batch of a broker's keys; a request that fails does so for all its keys."""
    answers: dict[K, V | ClientError] = {}
    by_batch = await gather_answers(batches, lambda batch: ask(batch[0], batch[1]))
    for each in by_batch.found.values():
        answers |= each
    for batch, failure in by_batch.failures.items():
        answers |= dict.fromkeys(batch[1], failure)
    return answers


def _cut_batches(by_node: Mapping[int, Sequence[K]], size: int) -> list[tuple[int, tuple[K, ...]]]:
    return [
        (node, tuple(some[first : first + size]))
        for node, some in by_node.items()
        for first in range(0, len(some), size)
    ]


def _is_retriable(failure: ClientError, failed_before: int) -> bool:
    # A new topic may be unknown to a broker for a moment, a mistyped one is unknown for ever.
    unknown = isinstance(failure, UnknownTopic) and failed_before + 1 >= UNKNOWN_TOPIC_ATTEMPTS
    return failure.remedy.repeats and not unknown


def _missing_key_error(api: str, key: object) -> ClientError:
    return build_broker_error(api, key, ErrorCode.UNKNOWN_SERVER_ERROR, "the answer leaves it out")


def group_by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Group partition indexes by topic, as requests need them."""
    topics: dict[str, list[int]] = {}
    for at in partitions:
        topics.setdefault(at.topic, []).append(at.partition)
    return topics
