"""Prepared transactions on three brokers of Apache Kafka, one of them killed: nothing lost, nothing twice.

Each case kills -9 the broker that leads a partition, coordinates the transactions, or coordinates the group,
around one request of one phase. The two others go on, and the client with them: one more transaction is
written before the broker comes back. librdkafka says what readers of committed records get.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Final, Literal

import pytest
from tests.support.three_brokers import ThreeBrokers

from tallystick.client.net.cluster import Cluster
from tallystick.client.offsets import GroupMetadata, OffsetAndMetadata
from tallystick.client.producer.engine import ProducerEngine
from tallystick.client.settings.config import ProducerConfig
from tallystick.client.transactions.engine import Completion, TransactionManager
from tallystick.client.transactions.modes import Mode
from tallystick.client.transactions.prepared import PreparedTxnState
from tallystick.kernel.ids import TopicPartition
from tallystick.protocol.messages.data.produce import ProduceRequest
from tallystick.protocol.messages.txn.describe_transactions import DescribeTransactionsRequest
from tallystick.protocol.messages.txn.end_txn import EndTxnRequest
from tallystick.protocol.messages.txn.init_producer_id import InitProducerIdRequest
from tallystick.protocol.messages.txn.txn_offset_commit import TxnOffsetCommitRequest
from tallystick.testing import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.server, pytest.mark.gate(0), pytest.mark.timeout(600)]

LONG = "1" in (os.environ.get("TALLYSTICK_LONG"), os.environ.get("TALLYSTICK_INTEROP_KAFKA"))
PARTITIONS: Final = 2

Role = Literal["leader", "transaction coordinator", "group coordinator"]
ROLES: Final[tuple[Role, ...]] = ("leader", "transaction coordinator", "group coordinator")

# The request around which the broker is killed. Records are held back until `prepare` flushes them, but for
# "send", which flushes by itself.
PHASES: Final[dict[str, type]] = {
    "send": ProduceRequest,
    "send offsets": TxnOffsetCommitRequest,
    "prepare": ProduceRequest,
    "complete": EndTxnRequest,
    "recovery looks": DescribeTransactionsRequest,
    "recovery commits": EndTxnRequest,
    "recovery aborts": EndTxnRequest,
    "recovery claims": InitProducerIdRequest,
}
# Dead before the request leaves; so many milliseconds after it left; dead before the next one.
MOMENTS: Final = ("before", 0, 5, "answered")
CASES = list(product(ROLES, PHASES)) if LONG else [("transaction coordinator", "complete")]
MODES: Final = {"resume": Mode.RESUME, "2pc,resume": Mode.TWO_PHASE_RESUME}


@dataclass
class Strike:
    """Kill once, around the next request of a class."""

    concerns: type
    moment: str | int
    kill: Callable[[], object]
    struck: bool = False

    def submit(self, request: object, sent: Callable[[], asyncio.Future[object]]) -> asyncio.Future[object]:
        if self.struck or not isinstance(request, self.concerns):
            return sent()
        self.struck = True
        if self.moment == "before":
            self.kill()
            return sent()
        answer = sent()
        if isinstance(self.moment, int):
            asyncio.get_running_loop().call_later(self.moment / 1000, self.kill)
        else:
            answer.add_done_callback(lambda _: self.kill())
        return answer


class StruckCluster(Cluster):
    """Every request passes the strike, if there is one."""

    strike: Strike | None = None

    def submit(self, node_id: int, request: object, **how: Any) -> asyncio.Future[object]:
        def sent() -> asyncio.Future[object]:
            return super(StruckCluster, self).submit(node_id, request, **how)

        return sent() if self.strike is None else self.strike.submit(request, sent)


@dataclass
class OneClient:
    """A producer; leaving its block is its crash, as far as the cluster can tell: it ends nothing."""

    cluster: StruckCluster
    engine: ProducerEngine
    txn: TransactionManager


@asynccontextmanager
async def client(three: ThreeBrokers, name: str, modes: str) -> AsyncIterator[OneClient]:
    config = {
        "bootstrap.servers": three.bootstrap,
        "transactional.id": name,
        "tallystick.modes": modes,
        "transaction.timeout.ms": 300_000,
        "linger.ms": 60_000,
    }
    parsed = ProducerConfig.parse(config)
    cluster = StruckCluster(parsed.client)
    engine = ProducerEngine(cluster, parsed)
    txn = TransactionManager(cluster, parsed, engine)
    engine.use_transactions(txn.send_context)
    try:
        yield OneClient(cluster, engine, txn)
    finally:
        await engine.close(cluster.start_deadline("close", 1_000))
        await cluster.close()


@dataclass
class Story:
    """One transactional id, and the database beside it: the token it stored, the values that go with it."""

    three: ThreeBrokers
    topic: str
    modes: str
    token: PreparedTxnState = field(default_factory=PreparedTxnState)
    values: list[str] = field(default_factory=list)

    @property
    def group(self) -> str:
        return f"group-of-{self.topic}"

    async def prepare(self, one: OneClient, value: str, *, flush_first: bool = False) -> PreparedTxnState:
        """KIP-939, "Normal processing recipe", to where the database has to decide."""
        await one.txn.begin()
        for partition in range(PARTITIONS):
            await one.engine.wait_for_space(self.topic, one.cluster.start_deadline("max.block.ms", 60_000))
            one.engine.accumulator.append(self.topic, value.encode(), None, partition=partition)
        if flush_first:
            await one.engine.flush()
        place = {TopicPartition(self.topic, 0): OffsetAndMetadata(len(self.values) + 1)}
        await one.txn.send_offsets(place, GroupMetadata(group_id=self.group))
        return await one.txn.prepare()

    def decide(self, token: PreparedTxnState, value: str) -> None:
        self.token, self.values = token, [*self.values, value]

    async def write(self, one: OneClient, value: str, *, flush_first: bool = False) -> None:
        self.decide(await self.prepare(one, value, flush_first=flush_first), value)
        await one.txn.commit()

    async def victim(self, one: OneClient, role: Role) -> int:
        match role:
            case "leader":
                return self.three.leader(self.topic)
            case "transaction coordinator":
                return await one.cluster.find_coordinator("transaction", self.topic)
            case "group coordinator":
                return await one.cluster.find_coordinator("group", self.group)

    async def arm(self, one: OneClient, role: Role, phase: str, moment: str | int) -> Strike:
        broker = self.three.broker(await self.victim(one, role))
        one.cluster.strike = Strike(PHASES[phase], moment, broker.kill)
        return one.cluster.strike

    def check(self, what: tuple[object, ...]) -> None:
        """Each decided value once in each partition, in order; the group where the last one put it."""
        eventually(lambda: self.three.ended(self.topic), 60)
        found = self.three.committed(self.topic)
        assert found == [self.values] * PARTITIONS, (what, found, self.values)
        assert self.three.group_offset(self.group, self.topic) == len(self.values), what


async def while_writing(story: Story, role: Role, phase: str, moment: str | int) -> Strike:
    async with client(story.three, story.topic, story.modes) as one:
        await one.txn.init()
        await story.write(one, "before")
        strike = await story.arm(one, role, phase, moment)
        await story.write(one, "struck", flush_first=phase == "send")
        await story.write(one, "after")
        assert one.txn.mode is MODES[story.modes]
    return strike


async def while_recovering(story: Story, role: Role, phase: str, moment: str | int) -> Strike:
    async with client(story.three, story.topic, story.modes) as one:
        await one.txn.init()
        await story.write(one, "before")
        token = await story.prepare(one, "in doubt")
        if phase != "recovery aborts":
            story.decide(token, "in doubt")
    async with client(story.three, story.topic, story.modes) as two:
        strike = await story.arm(two, role, phase, moment)
        await two.txn.init(keep_prepared_txn=True)
        done = await two.txn.complete(story.token)
        assert done is (Completion.ABORTED if phase == "recovery aborts" else Completion.COMMITTED)
        await story.write(two, "after")
    return strike


@pytest.mark.parametrize("moment", MOMENTS if LONG else ("answered",))
@pytest.mark.parametrize("modes", MODES)
@pytest.mark.parametrize(("role", "phase"), CASES)
def test_a_broker_is_killed_around_a_request(
    three: ThreeBrokers, role: Role, phase: str, modes: str, moment: str | int
) -> None:
    """[CLI-46] Both systems agree, whoever fell, and no transaction had to be given up for it."""
    story = Story(three, three.topic("failover", PARTITIONS), modes)
    part = while_recovering if phase.startswith("recovery") else while_writing
    strike = asyncio.run(part(story, role, phase, moment))
    assert strike.struck
    assert [broker for broker in three.kafka.brokers if not broker.is_running], "nobody was killed"
    story.check((role, phase, modes, moment, "while it is down"))
    three.bring_back()
    story.check((role, phase, modes, moment, "when it is back"))
