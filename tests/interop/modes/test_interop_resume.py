"""Prepared transactions on Apache Kafka, without KIP-939: recovery by looking, no silent weakening."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from tests.support.failing_cluster import Crashed, FaultPlan
from tests.support.other_system import OtherSystem, dual_write, recover
from tests.support.plain_flow import producer
from tests.support.raw_producer import committed_values, make_topic
from tests.support.raw_wire import RawConnection
from tools.servers import apache_kafka

from tallystick.admin import Admin
from tallystick.client.errors import BrokerRefused, DecisionExpired, Fenced, IllegalState, NotSupported
from tallystick.client.transactions.engine import Completion
from tallystick.client.transactions.modes import Mode
from tallystick.client.transactions.prepared import PreparedTxnState
from tallystick.dualwrite import DualWriter, SqlStore
from tallystick.kernel.ids import INT32_MAX
from tallystick.kernel.limits import EPOCH_MAX
from tallystick.protocol.messages.cluster.update_features import (
    FeatureUpdateKey,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from tallystick.protocol.messages.txn.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from tallystick.protocol.messages.txn.end_txn import EndTxnRequest
from tallystick.protocol.messages.txn.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tallystick.testing import eventually

pytestmark = [pytest.mark.gate(0), pytest.mark.kafka, pytest.mark.server]

RESUME = {"tallystick.modes": "resume"}
TWO_PHASE = {"transaction.two.phase.commit.enable": "true"}
REQUESTS_MAX = 30


class Kafka:
    """One node, and names that no other test uses."""

    def __init__(self, node: apache_kafka.ApacheKafka) -> None:
        self.bootstrap_servers = node.bootstrap
        self._made = 0

    def topic(self, stem: str) -> str:
        self._made += 1
        name = f"{stem}-{self._made}"
        make_topic(self, name)  # type: ignore[arg-type]
        return name

    def holds(self, topic: str, values: list[str]) -> bool:
        """Are these what readers of committed records get, once the markers are there?"""
        return eventually(lambda: committed_values(self, topic, 0) == values)  # type: ignore[arg-type]

    def state(self, name: str) -> Any:
        with RawConnection(self.bootstrap_servers) as connection:
            request = DescribeTransactionsRequest(transactional_ids=(name,))
            (state,) = connection.ask(request, DescribeTransactionsResponse, 0).transaction_states
            return state


def started(tmp_path_factory: pytest.TempPathFactory, **settings: str) -> Iterator[Kafka]:
    if (lack := apache_kafka.find_missing()) is not None:
        pytest.skip(lack)
    given = {
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.num.partitions": "1",
        **{name.replace("_", "."): value for name, value in settings.items()},
    }
    directory = tmp_path_factory.mktemp("kafka")
    with apache_kafka.ApacheKafka(directory=directory, settings=given) as node:
        yield Kafka(node)


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    yield from started(tmp_path_factory)


@pytest.fixture(scope="module")
def unstable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """It offers InitProducerId v6, takes Enable2Pc, and answers 35 to KeepPreparedTxn."""
    yield from started(
        tmp_path_factory,
        unstable_api_versions_enable="true",
        transaction_two_phase_commit_enable="true",
    )


# ---- which mode


def test_what_is_not_offered_is_an_error_that_names_it(kafka: Kafka) -> None:
    """[CLI-40] The strongest mode alone is the default, and nothing weaker takes its place."""

    async def run() -> None:
        for config in (TWO_PHASE, {"tallystick.modes": "keep"}):
            async with producer(kafka.bootstrap_servers, "t", config) as one:
                for keep in (False, True):
                    with pytest.raises(NotSupported, match=r"unstable\.api\.versions\.enable"):
                        await one.txn.init(keep_prepared_txn=keep)
        listed = {**TWO_PHASE, "tallystick.modes": "2pc,keep,resume"}
        async with producer(kafka.bootstrap_servers, "t", listed) as two:
            await two.txn.init(keep_prepared_txn=True)
            assert two.txn.mode is Mode.RESUME

    asyncio.run(run())


def test_a_broker_that_offers_v6_and_refuses_keep(unstable: Kafka) -> None:
    """[CLI-40] 35, before anything rests on it; or `resume` where it is listed, before any plain init."""
    topic = unstable.topic("v6")

    async def run() -> None:
        for config in (TWO_PHASE, {"tallystick.modes": "keep"}):
            async with producer(unstable.bootstrap_servers, topic, config) as one:
                with pytest.raises(BrokerRefused, match="KeepPreparedTxn") as caught:
                    await one.txn.init()
                assert caught.value.code == 35
        listed = {"tallystick.modes": "keep,resume"}
        other = OtherSystem()
        async with producer(unstable.bootstrap_servers, topic, listed) as two:
            await two.txn.init()
            await two.txn.begin()
            await two.send(topic, "a")
            other.token, other.values = await two.txn.prepare(), ["a"]
        async with producer(unstable.bootstrap_servers, topic, listed) as three:
            assert await recover(three, other) is Completion.COMMITTED
            assert three.txn.mode is Mode.RESUME
            await dual_write(three, topic, other, "b")

    asyncio.run(run())
    assert unstable.holds(topic, ["a", "b"])


TWO_PHASE_RESUME = {"tallystick.modes": "2pc,resume", "transaction.timeout.ms": "1000"}


def test_two_phase_commit_that_is_recovered_by_description(unstable: Kafka) -> None:
    """[CLI-40] Enable2Pc without KeepPreparedTxn: it outlives every timeout, and both must be listed.

    KIP-939: "an application that uses the 2PC protocol ... would never be timed out".
    """
    topic, plain, other = unstable.topic("both"), unstable.topic("plain"), OtherSystem()

    async def prepare(topic: str, config: dict[str, str]) -> PreparedTxnState:
        async with producer(unstable.bootstrap_servers, topic, config) as one:
            await one.txn.init()
            await one.txn.begin()
            await one.send(topic, "a")
            return await one.txn.prepare()

    other.token, other.values = asyncio.run(prepare(topic, TWO_PHASE_RESUME)), ["a"]
    asyncio.run(prepare(plain, {**RESUME, "transaction.timeout.ms": "1000"}))
    assert eventually(lambda: unstable.state(plain).transaction_state == "CompleteAbort")
    described = unstable.state(topic)
    assert (described.transaction_state, described.transaction_timeout_ms) == ("Ongoing", INT32_MAX)

    async def run() -> None:
        async with producer(unstable.bootstrap_servers, topic, TWO_PHASE_RESUME) as two:
            assert await recover(two, other) is Completion.COMMITTED
            assert two.txn.mode is Mode.TWO_PHASE_RESUME
            await dual_write(two, topic, other, "b")
            assert two.txn.mode is Mode.TWO_PHASE_RESUME

    asyncio.run(run())
    assert unstable.holds(topic, ["a", "b"])


def test_what_a_failed_block_left_open_is_ended_by_the_next(unstable: Kafka, tmp_path: Path) -> None:
    """[DW-13] The database was gone, so that nothing could be noted, and no timeout ends the transaction."""
    topic, file, away = unstable.topic("left"), tmp_path / "rows.db", tmp_path / "away.db"
    engine = create_engine(f"sqlite:///{file}")
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE rows (what TEXT)"))
    store = SqlStore(engine)
    store.create()
    servers = {"bootstrap.servers": unstable.bootstrap_servers, "transactional.id": topic}

    def pay(writer: DualWriter[Any], value: str, fail: bool = False) -> None:
        with writer.transaction() as txn:
            txn.connection.execute(text("INSERT INTO rows VALUES (:value)"), {"value": value})
            txn.send(topic, value.encode()).result(30)
            if fail:
                file.rename(away)
                file.mkdir()
                raise RuntimeError(value)

    with DualWriter(store, {**servers, "tallystick.modes": "2pc,resume"}) as writer:
        writer.recover()
        pay(writer, "a")
        with pytest.raises(RuntimeError):
            pay(writer, "lost", fail=True)
        assert unstable.state(topic).transaction_state == "Ongoing"
        file.rmdir()
        away.rename(file)
        pay(writer, "b")
        assert writer.modes == {"kafka": Mode.TWO_PHASE_RESUME}
    assert unstable.holds(topic, ["a", "b"])


# ---- two clients of one id, of which no InitProducerId has fenced the earlier one


async def prepared_by_a_successor(kafka: Kafka, topic: str, other: OtherSystem) -> None:
    """Recover, and leave a dual write that the other system has decided and Kafka has not."""
    one_commit = FaultPlan(0, False, concerns=lambda request: isinstance(request, EndTxnRequest))
    with suppress(Crashed):
        async with producer(kafka.bootstrap_servers, topic, TWO_PHASE_RESUME, one_commit) as later:
            await recover(later, other)
            await dual_write(later, topic, other, "b")
    assert other.values[-1] == "b"


@pytest.mark.parametrize("at", ["complete", "begin"])
def test_a_client_that_stalled_ends_nothing_of_its_successor(unstable: Kafka, at: str) -> None:
    """[CLI-40] It looks again before what would end the successor's transaction, and is fenced."""
    topic, other = unstable.topic(f"stalled-{at}"), OtherSystem()

    async def run() -> None:
        async with producer(unstable.bootstrap_servers, topic, TWO_PHASE_RESUME) as one:
            await one.txn.init()
            await dual_write(one, topic, other, "a")
        async with producer(unstable.bootstrap_servers, topic, TWO_PHASE_RESUME) as stalled:
            await stalled.txn.init(keep_prepared_txn=True)
            token = other.token
            if at == "complete":
                await prepared_by_a_successor(unstable, topic, other)
                with pytest.raises(Fenced, match="begun"):
                    await stalled.txn.complete(token)
            else:
                await stalled.txn.complete(token)
                await prepared_by_a_successor(unstable, topic, other)
                with pytest.raises(Fenced, match="begun"):
                    await stalled.txn.begin()
        async with producer(unstable.bootstrap_servers, topic, TWO_PHASE_RESUME) as three:
            assert await recover(three, other) is Completion.COMMITTED
            await dual_write(three, topic, other, "c")

    asyncio.run(run())
    assert unstable.holds(topic, ["a", "b", "c"])


def test_a_client_that_stalled_at_init_leaves_the_evidence(
    unstable: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[CLI-41] Its InitProducerId aborts its successor's transaction; repeated, it would also hide that."""
    topic, other = unstable.topic("at-init"), OtherSystem()

    async def run() -> None:
        async with producer(unstable.bootstrap_servers, topic, TWO_PHASE_RESUME) as one:
            await one.txn.init()
            await dual_write(one, topic, other, "a")
        async with producer(unstable.bootstrap_servers, topic, TWO_PHASE_RESUME) as stalled:
            assert await recover(stalled, other) is Completion.NOTHING_IN_DOUBT
            send, inits = stalled.cluster.send, []

            async def send_late(node_id: int, request: object, answer: type[Any], **how: Any) -> Any:
                if isinstance(request, InitProducerIdRequest) and not request.keep_prepared_txn:
                    inits.append(request)
                    if len(inits) == 1:
                        await prepared_by_a_successor(unstable, topic, other)
                return await send(node_id, request, answer, **how)

            monkeypatch.setattr(stalled.cluster, "send", send_late)
            with pytest.raises(Fenced, match="aborted"):
                await stalled.txn.begin()
        async with producer(unstable.bootstrap_servers, topic, TWO_PHASE_RESUME) as three:
            with pytest.raises(DecisionExpired):
                await recover(three, other)

    asyncio.run(run())
    assert unstable.holds(topic, ["a"])


def test_what_an_operator_terminates_is_told_by_the_next_recovery(unstable: Kafka) -> None:
    """[CLI-41] One InitProducerId aborts; the next one would erase that."""
    topic, other = unstable.topic("terminated"), OtherSystem()
    asyncio.run(prepared_by_a_successor(unstable, topic, other))
    with Admin({"bootstrap.servers": unstable.bootstrap_servers}) as admin:
        ended = admin.force_terminate_transaction(topic, force=True)
    assert other.token.identity is not None
    assert ended.epoch == other.token.identity.epoch + 1

    async def run() -> None:
        async with producer(unstable.bootstrap_servers, topic, TWO_PHASE_RESUME) as two:
            with pytest.raises(DecisionExpired):
                await recover(two, other)

    asyncio.run(run())


# ---- recovery


async def story(kafka: Kafka, first: FaultPlan, second: FaultPlan, config: dict[str, object]) -> None:
    """Two dual writes, a recovery and one more; each plan strikes in its part."""
    topic, other = kafka.topic("story"), OtherSystem()
    with suppress(Crashed):
        async with producer(kafka.bootstrap_servers, topic, config, first) as one:
            await one.txn.init()
            await dual_write(one, topic, other, "a")
            await dual_write(one, topic, other, "b")
    with suppress(Crashed):
        async with producer(kafka.bootstrap_servers, topic, config, second) as two:
            await recover(two, other)
    async with producer(kafka.bootstrap_servers, topic, config) as three:
        await recover(three, other)
        await dual_write(three, topic, other, "c")
    assert await asyncio.to_thread(kafka.holds, topic, other.values), (first, second)


@pytest.fixture(params=["resume", "2pc,resume"])
def described(request: pytest.FixtureRequest) -> tuple[Kafka, dict[str, object]]:
    """A cluster, and settings with which its transactions are recovered by description."""
    node = "kafka" if request.param == "resume" else "unstable"
    return request.getfixturevalue(node), {"tallystick.modes": request.param}


@pytest.mark.slow
@pytest.mark.parametrize("answered", [False, True])
def test_both_systems_agree_after_a_crash_at_any_request(
    described: tuple[Kafka, dict[str, object]], answered: bool
) -> None:
    kafka, config = described
    for at in range(REQUESTS_MAX):
        first = FaultPlan(at, answered)
        asyncio.run(story(kafka, first, FaultPlan(), config))
        if first.seen <= at:
            break
    assert 6 < at < REQUESTS_MAX - 1


@pytest.mark.slow
@pytest.mark.parametrize("answered", [False, True])
def test_recovery_may_crash_at_any_request_too(
    described: tuple[Kafka, dict[str, object]], answered: bool
) -> None:
    kafka, config = described
    for at in range(REQUESTS_MAX):
        prepared = FaultPlan(1, False, concerns=lambda request: isinstance(request, EndTxnRequest))
        second = FaultPlan(at, answered)
        asyncio.run(story(kafka, prepared, second, config))
        if second.seen <= at:
            break
    assert 1 < at < REQUESTS_MAX - 1


def test_a_token_of_another_transaction_aborts(kafka: Kafka) -> None:
    topic = kafka.topic("other")

    async def run() -> None:
        async with producer(kafka.bootstrap_servers, topic, RESUME) as one:
            await one.txn.init()
            await one.txn.begin()
            await one.send(topic, "a")
            await one.txn.prepare()
        async with producer(kafka.bootstrap_servers, topic, RESUME) as two:
            await two.txn.init(keep_prepared_txn=True)
            with pytest.raises(IllegalState):
                await two.txn.begin()
            assert await two.txn.complete(PreparedTxnState("999999999:0")) is Completion.ABORTED

    asyncio.run(run())
    assert kafka.holds(topic, [])


def test_a_decision_after_expiry_is_its_own_error(kafka: Kafka) -> None:
    """The timeout still applies: the database committed, Kafka aborted. Never a success."""
    topic = kafka.topic("late")
    config = {**RESUME, "transaction.timeout.ms": "1000"}

    async def prepare() -> PreparedTxnState:
        async with producer(kafka.bootstrap_servers, topic, config) as one:
            await one.txn.init()
            await one.txn.begin()
            await one.send(topic, "a")
            return await one.txn.prepare()

    async def decide(token: PreparedTxnState) -> None:
        async with producer(kafka.bootstrap_servers, topic, config) as two:
            await two.txn.init(keep_prepared_txn=True)
            with pytest.raises(DecisionExpired):
                await two.txn.complete(token)

    token = asyncio.run(prepare())
    eventually(lambda: kafka.state(topic).transaction_state == "CompleteAbort")
    asyncio.run(decide(token))
    asyncio.run(decide(token))


def test_a_commit_after_expiry_by_the_same_client(kafka: Kafka) -> None:
    topic = kafka.topic("same")
    config = {**RESUME, "transaction.timeout.ms": "1000"}

    async def run() -> None:
        async with producer(kafka.bootstrap_servers, topic, config) as one:
            await one.txn.init()
            await one.txn.begin()
            await one.send(topic, "a")
            await one.txn.prepare()
            await asyncio.to_thread(
                lambda: eventually(lambda: kafka.state(topic).transaction_state == "CompleteAbort")
            )
            with pytest.raises(DecisionExpired):
                await one.txn.commit()
            await one.txn.abort()  # which it is
            await one.txn.begin()
            await one.send(topic, "b")
            await one.txn.commit()

    asyncio.run(run())
    assert kafka.holds(topic, ["b"])


def drive_epoch_to(kafka: Kafka, name: str, epoch: int) -> None:
    """InitProducerId over and over; one connection answers in order, so many are under way at once."""
    request = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000)
    eventually(lambda: kafka.state(name).transaction_state.startswith("Complete"))
    with RawConnection(kafka.bootstrap_servers) as connection:
        reached = connection.ask(request, InitProducerIdResponse, 4).producer_epoch
        while reached < epoch:
            left = [request] * min(200, epoch - reached)
            for answer in connection.ask_all(left, InitProducerIdResponse, 4):
                assert answer.error_code == 0
                reached = answer.producer_epoch
        assert reached == epoch


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["", "request", "answer"])
def test_the_last_epoch_of_a_producer_id(kafka: Kafka, lost: str) -> None:
    """A commit at 32766 moves to another producer id; its repetition is still recognised."""
    topic = kafka.topic("roll")

    async def run() -> None:
        async with producer(kafka.bootstrap_servers, topic, RESUME) as one:
            await one.txn.init()
            await one.txn.begin()
            await one.send(topic, "a")
            await one.txn.commit()
        await asyncio.to_thread(drive_epoch_to, kafka, topic, EPOCH_MAX - 2)
        other = OtherSystem(values=["a"])
        plan = FaultPlan(0, lost == "answer", concerns=lambda request: isinstance(request, EndTxnRequest))
        with suppress(Crashed):
            async with producer(kafka.bootstrap_servers, topic, RESUME, plan if lost else None) as two:
                await two.txn.init()
                assert two.txn.identity.epoch == EPOCH_MAX - 1
                await dual_write(two, topic, other, "b")
        async with producer(kafka.bootstrap_servers, topic, RESUME) as three:
            done = await recover(three, other)
            assert done is (Completion.COMMITTED if lost == "request" else Completion.NOTHING_IN_DOUBT)
            assert await three.txn.complete(other.token) is Completion.NOTHING_IN_DOUBT
            await dual_write(three, topic, other, "c")
            assert three.txn.identity.epoch < 10

    asyncio.run(run())
    assert kafka.holds(topic, ["a", "b", "c"])


# ---- version 1


@pytest.fixture
def version_1(kafka: Kafka) -> Iterator[Kafka]:
    def finalize(level: int, kind: int) -> None:
        update = FeatureUpdateKey(feature="transaction.version", max_version_level=level, upgrade_type=kind)
        with RawConnection(kafka.bootstrap_servers) as connection:
            answer = connection.ask(
                UpdateFeaturesRequest(feature_updates=(update,)), UpdateFeaturesResponse, 1
            )
            assert answer.error_code == 0, answer

    finalize(1, 2)
    yield kafka
    finalize(2, 1)


def test_version_1_gives_every_transaction_a_name_of_its_own(version_1: Kafka) -> None:
    """The epoch is moved by InitProducerId between transactions; recovery ends with EndTxn v4."""
    kafka, topic, other = version_1, version_1.topic("old"), OtherSystem()

    async def run() -> None:
        async with producer(kafka.bootstrap_servers, topic, RESUME) as one:
            await one.txn.init()
            assert one.txn.transaction_version == 1
            tokens = set()
            for value in ("a", "b"):
                await dual_write(one, topic, other, value)
                tokens.add(str(other.token))
            assert len(tokens) == 2
            await one.txn.begin()
            await one.send(topic, "c")
            other.token, other.values = await one.txn.prepare(), ["a", "b", "c"]
        for expected in (Completion.COMMITTED, Completion.NOTHING_IN_DOUBT):
            async with producer(kafka.bootstrap_servers, topic, RESUME) as two:
                assert await recover(two, other) is expected
        async with producer(kafka.bootstrap_servers, topic, RESUME) as three:
            await recover(three, other)
            await dual_write(three, topic, other, "d")

    asyncio.run(run())
    assert kafka.holds(topic, ["a", "b", "c", "d"])


@pytest.mark.slow
def test_crashes_under_version_1(version_1: Kafka) -> None:
    for at in range(REQUESTS_MAX):
        for answered in (False, True):
            first = FaultPlan(at, answered)
            asyncio.run(story(version_1, first, FaultPlan(), dict(RESUME)))
        if first.seen <= at:
            break
    assert 6 < at < REQUESTS_MAX - 1
