"""A member that is closed in the middle of a rebalance leaves: the other one has all partitions soon."""

import asyncio
import itertools
from typing import Any

import pytest

from tallystick import Admin, TopicPartition
from tallystick.admin import NewTopic
from tallystick.client.consumer.engine import ConsumerEngine
from tallystick.client.consumer.membership import Phase
from tallystick.client.consumer.rebalance import RebalanceListener
from tallystick.client.settings.config import ConsumerConfig
from tallystick.protocol.messages.groups.membership import JoinGroupRequest, SyncGroupRequest
from tallystick.testing import EmbeddedBroker

SESSION_MS = 1_800_000  # who does not leave stays for longer than any test
pytestmark = [
    pytest.mark.server,
    pytest.mark.broker(group_initial_rebalance_delay_ms=0, group_max_session_timeout_ms=SESSION_MS),
]
_names = (f"closed-{n}" for n in itertools.count())


@pytest.fixture
def topic(broker: EmbeddedBroker) -> str:
    name = next(_names)
    with Admin({"bootstrap.servers": broker.bootstrap_servers}) as admin:
        admin.create_topics([NewTopic(name=name, partitions=2)])
    return name


def member(broker: EmbeddedBroker, topic: str, strategy: str) -> ConsumerEngine:
    settings: dict[str, object] = {
        "bootstrap.servers": broker.bootstrap_servers,
        "group.id": topic,
        "auto.offset.reset": "earliest",
        "session.timeout.ms": SESSION_MS,
        "max.poll.interval.ms": SESSION_MS,
        "heartbeat.interval.ms": 20,
        "fetch.max.wait.ms": 5,
        "partition.assignment.strategy": strategy,
    }
    return ConsumerEngine(ConsumerConfig.parse(settings))


class Held:
    """Holds a member's request of one kind: before it is sent, or its answer."""

    def __init__(self, consumer: ConsumerEngine, kind: type, *, answered: bool) -> None:
        self.reached, self._kind, self._answered = asyncio.Event(), kind, answered
        cluster: Any = consumer._cluster
        self._send, cluster.send = cluster.send, self._held

    async def _held(self, node: int, request: object, *rest: object, **how: object) -> object:
        if type(request) is not self._kind:
            return await self._send(node, request, *rest, **how)
        if self._answered:
            await self._send(node, request, *rest, **how)
        self.reached.set()
        return await asyncio.get_running_loop().create_future()


class Listening(RebalanceListener):
    """Stops in the callback of a revocation, as far as it is told to."""

    def __init__(self) -> None:
        self.reached, self.stops = asyncio.Event(), False

    async def on_partitions_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        if self.stops:
            self.stops = False
            self.reached.set()
            await asyncio.get_running_loop().create_future()


HELD = {
    "join not sent": (JoinGroupRequest, False),
    "join answered": (JoinGroupRequest, True),
    "sync not sent": (SyncGroupRequest, False),
    "sync answered": (SyncGroupRequest, True),
}
STEPS = [*HELD, "join waits for the other", "in the callback", "told to rejoin"]


async def polled_until(consumer: ConsumerEngine, done: Any) -> None:
    while not done():
        await consumer.poll(5)


# Half of it is for the last commit, which one step uses up: its rebalance waits for a poll of the other.
@pytest.mark.gate(2)
@pytest.mark.parametrize("timeout_ms", [10_000, 0])
@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
@pytest.mark.parametrize("step", STEPS)
def test_the_other_member_has_all_partitions_soon(
    broker: EmbeddedBroker, topic: str, step: str, strategy: str, timeout_ms: int
) -> None:
    """Its session, which would end the wait, is half an hour."""

    async def main() -> None:
        listening = Listening()
        closing, staying = member(broker, topic, strategy), member(broker, topic, strategy)
        membership: Any = closing._group
        group = membership._coordinator

        def both_have_some() -> bool:
            return bool(staying.assignment and closing.assignment)

        async with asyncio.timeout(60):
            closing.subscribe([topic], listening)
            await polled_until(closing, lambda: len(closing.assignment) == 2)
            polls: list[asyncio.Task[None]] = []
            if step == "join waits for the other":
                staying.subscribe([topic])
                await asyncio.gather(*(polled_until(each, both_have_some) for each in (closing, staying)))
                closing.subscribe([topic, "another"], listening)
                await polled_until(closing, lambda: group.member.phase is Phase.JOINING)
            else:
                if step in HELD:
                    kind, answered = HELD[step]
                    reached = Held(closing, kind, answered=answered).reached
                    polls.append(asyncio.create_task(polled_until(closing, reached.is_set)))
                elif step == "in the callback":
                    reached, listening.stops = listening.reached, True
                    polls.append(asyncio.create_task(polled_until(closing, reached.is_set)))
                else:
                    reached = asyncio.Event()
                    refuse = group._handle_error_code
                    group._handle_error_code = lambda *args, **named: (reached.set(), refuse(*args, **named))[
                        1
                    ]
                staying.subscribe([topic])
                others = asyncio.create_task(polled_until(staying, lambda: len(staying.assignment) == 2))
                await reached.wait()
                for poll in polls:
                    poll.cancel()
                await asyncio.gather(*polls, return_exceptions=True)
            await closing.close(timeout_ms)
            if step == "join waits for the other":
                others = asyncio.create_task(polled_until(staying, lambda: len(staying.assignment) == 2))
            await others
            await staying.close()

    asyncio.run(main())
