"""Transactions over the producing engine: the gate, failed batches, version 1, lost answers, kill -9."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import pytest
from tests.support.failing_cluster import FailingCluster, FaultPlan
from tests.support.raw_producer import committed_values, make_topic
from tests.support.raw_wire import RawConnection

from tallystick.client.errors import AbortRequired, ClientError, IllegalState, TimedOut
from tallystick.client.producer.batches.accumulator import BufferFullOrUnknownTopic
from tallystick.client.producer.batches.delivery import Delivery
from tallystick.client.producer.engine import ProducerEngine
from tallystick.client.settings.config import ProducerConfig
from tallystick.client.transactions import engine
from tallystick.client.transactions.engine import Completion, TransactionManager
from tallystick.client.transactions.state import State
from tallystick.kernel.errors import InDoubt
from tallystick.protocol.messages.cluster.update_features import (
    FeatureUpdateKey,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from tallystick.protocol.messages.txn.end_txn import EndTxnRequest
from tallystick.testing import EmbeddedBroker, eventually

pytestmark = pytest.mark.server

TWO_PHASE = {"transaction.two.phase.commit.enable": "true"}
RESUME = {"tallystick.modes": "resume"}
DOWNGRADE, UPGRADE = 2, 1


@pytest.fixture
def name(broker: EmbeddedBroker, request: pytest.FixtureRequest) -> str:
    made = "".join(c if c.isalnum() else "-" for c in request.node.name)
    make_topic(broker, made, 2)
    return made


def finalize(broker: EmbeddedBroker, level: int, kind: int) -> None:
    update = FeatureUpdateKey(feature="transaction.version", max_version_level=level, upgrade_type=kind)
    with RawConnection(broker.bootstrap_servers) as connection:
        request = UpdateFeaturesRequest(feature_updates=(update,))
        assert connection.ask(request, UpdateFeaturesResponse, 1).error_code == 0


@pytest.fixture
def version_1(name: str) -> Iterator[EmbeddedBroker]:
    """A broker of its own: two-phase commit forbids to go back."""
    with EmbeddedBroker(in_process=True) as broker:
        finalize(broker, 1, DOWNGRADE)
        make_topic(broker, name, 2)
        yield broker


@dataclass
class Whole:
    """An engine and its transactions, as a Producer has them."""

    cluster: FailingCluster
    engine: ProducerEngine
    txn: TransactionManager

    async def send(self, topic: str, value: str, partition: int = 0) -> Delivery:
        while True:
            try:
                return self.engine.accumulator.append(topic, value.encode(), None, partition=partition)
            except BufferFullOrUnknownTopic:
                await self.engine.wait_for_space(topic, self.cluster.start_deadline("max.block.ms", 10_000))


@asynccontextmanager
async def producer(
    broker: EmbeddedBroker, name: str, config: Mapping[str, object], plan: FaultPlan | None = None
) -> AsyncIterator[Whole]:
    given = {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": name, **config}
    parsed = ProducerConfig.parse(given)
    cluster = FailingCluster(parsed.client, plan or FaultPlan())
    engine = ProducerEngine(cluster, parsed)
    txn = TransactionManager(cluster, parsed, engine)
    engine.use_transactions(txn.send_context)
    try:
        yield Whole(cluster, engine, txn)
    finally:
        await engine.close(cluster.start_deadline("close", 1_000))
        await cluster.close()


def both(broker: EmbeddedBroker, name: str, *values: str) -> bool:
    """The committed values of both partitions are these."""
    return eventually(
        lambda: sorted(v for p in (0, 1) for v in committed_values(broker, name, p)) == sorted(values)
    )


def test_what_was_accepted_is_in_the_transaction_and_nothing_after(broker: EmbeddedBroker, name: str) -> None:
    """[CLI-48] A thread that sends while another prepares: each record is prepared, or refused."""
    taken: list[str] = []

    async def run() -> None:
        async with producer(broker, name, TWO_PHASE) as one:
            await one.txn.init()
            await one.txn.begin()
            await one.send(name, "first", 1)
            stop = threading.Event()

            def keep_sending() -> None:
                for number in range(1_000_000):
                    try:
                        one.engine.accumulator.append(name, b"%d" % number, None, partition=0)
                    except (BufferFullOrUnknownTopic, IllegalState):
                        if stop.is_set():
                            return
                        continue
                    taken.append(str(number))

            sender = threading.Thread(target=keep_sending)
            sender.start()
            await asyncio.to_thread(eventually, lambda: len(taken) > 200)
            token = await one.txn.prepare()
            count = len(taken)
            assert token
            assert await one.txn.complete(token) is Completion.COMMITTED
            stop.set()
            await asyncio.to_thread(sender.join)
            assert len(taken) == count
            await one.txn.begin()
            await one.send(name, "last", 1)
            await one.txn.commit()

    asyncio.run(run())
    assert both(broker, name, "first", "last", *taken)


@pytest.mark.gate(1)
@pytest.mark.parametrize("version", [1, 2])
def test_a_record_that_fails_fails_its_transaction_alone(
    version_1: EmbeddedBroker, name: str, version: int
) -> None:
    """[CLI-47] KIP-360 under version 1: the epoch moves after the abort, and numbers begin at 0 again."""
    broker = version_1
    if version == 2:
        finalize(broker, 2, UPGRADE)

    async def run() -> None:
        async with producer(broker, name, {"max.request.size": "3000000"}) as one:
            await one.txn.init()
            assert one.txn.transaction_version == version
            epoch = one.txn.identity.epoch
            await one.txn.begin()
            await one.send(name, "a")
            await one.engine.flush()
            large = await one.send(name, "x" * 2_000_000)
            with pytest.raises(AbortRequired, match="MESSAGE_TOO_LARGE"):
                await one.txn.commit()
            assert isinstance(large.exception(), ClientError)
            await one.txn.abort()
            assert one.txn.needs_init == (version == 1)
            await one.txn.begin()
            assert one.txn.identity.epoch == epoch + 1
            await one.send(name, "b")
            await one.send(name, "c", 1)
            await one.txn.commit()

    asyncio.run(run())
    assert both(broker, name, "b", "c")


def test_a_mode_that_promises_less_is_warned_of_once_in_a_process(
    broker: EmbeddedBroker, name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Spark's sink has a producer for each transaction."""
    monkeypatch.setattr(engine, "_TOLD_MODES", set())

    async def run() -> None:
        for _ in range(2):
            async with producer(broker, name, RESUME) as one:
                await one.txn.init()

    with caplog.at_level(logging.WARNING):
        asyncio.run(run())
    assert caplog.text.count("mode resume is in force") == 1


def test_version_1_in_mode_resume(version_1: EmbeddedBroker, name: str) -> None:
    async def run() -> None:
        async with producer(version_1, name, RESUME) as one:
            await one.txn.init()
            tokens = []
            for value in ("a", "b"):
                await one.txn.begin()
                await one.send(name, value)
                await one.send(name, value, 1)
                tokens.append(await one.txn.prepare())
                await one.txn.complete(tokens[-1])
            assert len(set(tokens)) == 2
            await one.txn.begin()
            await one.send(name, "c")
            token = await one.txn.prepare()
        async with producer(version_1, name, RESUME) as two:
            await two.txn.init(keep_prepared_txn=True)
            assert await two.txn.complete(token) is Completion.COMMITTED
            assert await two.txn.complete(token) is Completion.NOTHING_IN_DOUBT

    asyncio.run(run())
    assert both(version_1, name, "a", "a", "b", "b", "c")


def test_the_version_is_raised_while_a_transaction_is_open(version_1: EmbeddedBroker, name: str) -> None:
    """KAFKA-18227: it ends as it was started, and then the epoch moves."""

    async def run() -> None:
        async with producer(version_1, name, {}) as one:
            await one.txn.init()
            await one.txn.begin()
            await one.send(name, "a")
            await one.engine.flush()
            finalize(version_1, 2, UPGRADE)
            async with producer(version_1, f"{name}-other", {}) as other:
                await other.txn.init()
                # As if it had met the news.
                one.cluster.connections.note_features(other.cluster.connections.finalized_features)
            await one.txn.commit()
            assert one.txn.needs_init
            await one.txn.begin()
            assert one.txn.transaction_version == 2
            await one.send(name, "b")
            await one.txn.commit()
            assert not one.txn.needs_init

    asyncio.run(run())
    assert both(version_1, name, "a", "b")


@pytest.mark.gate(1)
@pytest.mark.parametrize("answered", [False, True])
def test_a_commit_that_is_never_answered(broker: EmbeddedBroker, name: str, answered: bool) -> None:
    """[CLI-46] InDoubt; then the same again and nothing else, until it is answered."""
    plan = FaultPlan(
        0, answered, crash=False, times=10**6, concerns=lambda request: isinstance(request, EndTxnRequest)
    )

    async def run() -> None:
        async with producer(broker, f"{name}-first", {}) as first:
            await first.txn.init()  # makes the coordinator's topic, which takes longer
        async with producer(broker, name, {**TWO_PHASE, "max.block.ms": "700"}, plan) as one:
            await one.txn.init()
            await one.txn.begin()
            await one.send(name, "a")
            token = await one.txn.prepare()
            for _ in range(2):
                with pytest.raises(InDoubt, match=str(token)):
                    await one.txn.complete(token)
                assert one.txn.machine.state is State.IN_DOUBT
                with pytest.raises(IllegalState, match="may have happened"):
                    await one.txn.abort()
            plan.times = 0
            await one.txn.commit()
            await one.txn.begin()
            await one.send(name, "b")
            await one.txn.commit()

    asyncio.run(run())
    assert both(broker, name, "a", "b")


def test_a_flush_that_takes_too_long_prepares_nothing(broker: EmbeddedBroker, name: str) -> None:
    async def run() -> None:
        async with producer(broker, name, TWO_PHASE) as one:
            await one.txn.init()
            await one.txn.begin()
            await one.send(name, "a")
            preparing = asyncio.ensure_future(one.txn.prepare())
            await asyncio.sleep(0)
            preparing.cancel()
            with suppress(asyncio.CancelledError):
                await preparing
            with pytest.raises(AbortRequired):
                await one.txn.commit()
            await one.txn.abort()
            await one.txn.begin()
            await one.send(name, "b")
            await one.txn.commit()

    asyncio.run(run())
    assert both(broker, name, "b")


@pytest.mark.gate(1)
@pytest.mark.parametrize("call", ["commit", "abort", "complete"])
def test_a_cancelled_call_leaves_a_way_on(broker: EmbeddedBroker, name: str, call: str) -> None:
    """[CLI-46] Cancelled after any number of turns: undone, done, or in doubt and repeated."""
    kept: list[str] = []

    async def run() -> None:
        async with producer(broker, name, TWO_PHASE) as one:
            await one.txn.init()
            for turns in range(0, 60, 3):
                await one.txn.begin()
                await one.send(name, str(turns))
                if call == "complete":
                    calling = one.txn.complete(await one.txn.prepare())
                else:
                    calling = one.txn.commit() if call == "commit" else one.txn.abort()
                task = asyncio.ensure_future(calling)
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task])
                match one.txn.machine.state:
                    case State.IN_DOUBT if call == "abort":
                        await one.txn.abort()
                    case State.IN_TRANSACTION | State.ABORTABLE_ERROR:
                        await one.txn.abort()
                        continue
                    case State.IN_DOUBT | State.PREPARED:
                        await one.txn.commit()
                    case state:
                        assert state is State.READY
                if call != "abort":
                    kept.append(str(turns))

    asyncio.run(run())
    assert both(broker, name, *kept)


def test_a_prepared_transaction_survives_the_broker(name: str) -> None:
    """kill -9 while it is in doubt; another client decides it after the restart."""

    async def prepare(broker: EmbeddedBroker) -> str:
        async with producer(broker, name, TWO_PHASE) as one:
            await one.txn.init()
            await one.txn.begin()
            await one.send(name, "a")
            token = await one.txn.prepare()
            broker.kill()
            broker.start()
            with suppress(InDoubt, TimedOut):  # it may take either side of the restart
                await one.txn.complete(token)
            return str(token)

    async def recover(broker: EmbeddedBroker, token: str) -> None:
        async with producer(broker, name, TWO_PHASE) as two:
            await two.txn.init(keep_prepared_txn=True)
            await two.txn.complete(type(two.txn.machine.token)(token))

    with EmbeddedBroker() as broker:
        make_topic(broker, name, 2)
        asyncio.run(recover(broker, asyncio.run(prepare(broker))))
        assert both(broker, name, "a")
