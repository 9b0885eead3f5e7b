"""Transactions of the client against our broker: the modes, recovery after a crash, and lost answers."""

import asyncio

import pytest
from tests.support.plain_flow import PlainProducer, producer
from tests.support.raw_producer import committed_values, make_topic

from tallystick.client.errors import (
    AbortRequired,
    DecisionExpired,
    Fenced,
    IllegalState,
    InvalidTxnState,
    NotAuthorized,
)
from tallystick.client.offsets import GroupMetadata, OffsetAndMetadata
from tallystick.client.transactions.engine import Completion
from tallystick.client.transactions.modes import Mode
from tallystick.client.transactions.prepared import PreparedTxnState
from tallystick.client.transactions.state import State
from tallystick.kernel.ids import ProducerIdAndEpoch, TopicPartition
from tallystick.protocol.messages.txn.init_producer_id import InitProducerIdRequest
from tallystick.testing import EmbeddedBroker, eventually

pytestmark = pytest.mark.server

TWO_PHASE = {"transaction.two.phase.commit.enable": "true"}
MODES = {
    Mode.TWO_PHASE: TWO_PHASE,
    Mode.KEEP: {"tallystick.modes": "keep"},
    Mode.RESUME: {"tallystick.modes": "resume"},
}
# A small producer id would be, now and then, the one this very test was given.
NEVER_GIVEN = PreparedTxnState("999999999:0")


@pytest.fixture
def name(broker: EmbeddedBroker, request: pytest.FixtureRequest) -> str:
    """A topic and a transactional id of this test's own."""
    made = "".join(c if c.isalnum() else "-" for c in request.node.name)
    make_topic(broker, made)
    return made


def in_mode(mode: Mode) -> dict[str, object]:
    return dict(MODES[mode])


async def write(client: PlainProducer, name: str, value: str) -> None:
    """One transaction of one record."""
    await client.txn.begin()
    await client.send(name, value)
    await client.txn.commit()


async def prepared(client: PlainProducer, name: str) -> PreparedTxnState:
    """A new incarnation's first transaction, with the record "a", up to the other system's decision."""
    await client.txn.init()
    await client.txn.begin()
    await client.send(name, "a")
    return await client.txn.prepare()


@pytest.mark.parametrize("mode", MODES)
def test_prepare_commit_and_the_next_transaction(broker: EmbeddedBroker, name: str, mode: Mode) -> None:
    async def run() -> None:
        async with producer(broker.bootstrap_servers, name, in_mode(mode)) as one:
            await one.txn.init()
            assert one.txn.mode is mode
            tokens = []
            for value in ("a", "b"):
                await one.txn.begin()
                await one.send(name, value)
                token = await one.txn.prepare()
                tokens.append(str(token))
                assert one.flow.gate is not None
                assert isinstance(one.flow.gate(), IllegalState)
                await one.txn.complete(token)
            assert len(set(tokens)) == 2

    asyncio.run(run())
    eventually(lambda: committed_values(broker, name, 0) == ["a", "b"])


@pytest.mark.gate(4)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("stored", ["this", "none", "another"])
def test_a_crash_after_prepare_ends_as_the_other_system_decided(
    broker: EmbeddedBroker, name: str, mode: Mode, stored: str
) -> None:
    async def run() -> None:
        async with producer(broker.bootstrap_servers, name, in_mode(mode)) as one:
            token = await prepared(one, name)
        known = {"this": token, "none": PreparedTxnState(), "another": NEVER_GIVEN}[stored]
        for expected in (State.PREPARED, None):
            async with producer(broker.bootstrap_servers, name, in_mode(mode)) as two:
                await two.txn.init(keep_prepared_txn=True)
                if expected:
                    assert two.txn.machine.token == token
                    with pytest.raises(IllegalState):
                        await two.txn.begin()
                    done = await two.txn.complete(known)
                    assert done is (Completion.COMMITTED if stored == "this" else Completion.ABORTED)
                again = await two.txn.complete(PreparedTxnState() if stored != "this" else token)
                assert again in (Completion.NOTHING_IN_DOUBT, Completion.UNVERIFIED)
        async with producer(broker.bootstrap_servers, name, in_mode(mode)) as three:
            await three.txn.init(keep_prepared_txn=True)
            await three.txn.complete(known)
            await write(three, name, "b")

    asyncio.run(run())
    eventually(lambda: committed_values(broker, name, 0) == (["a", "b"] if stored == "this" else ["b"]))


@pytest.mark.parametrize("mode", MODES)
def test_an_empty_prepared_transaction(broker: EmbeddedBroker, name: str, mode: Mode) -> None:
    async def run() -> None:
        async with producer(broker.bootstrap_servers, name, in_mode(mode)) as one:
            await one.txn.init()
            await one.txn.begin()
            token = await one.txn.prepare()
            assert str(token) == ""
            await one.txn.complete(token)
            await write(one, name, "a")

    asyncio.run(run())
    eventually(lambda: committed_values(broker, name, 0) == ["a"])


def test_init_without_keep_aborts_what_was_prepared(broker: EmbeddedBroker, name: str) -> None:
    async def run() -> None:
        async with producer(broker.bootstrap_servers, name, TWO_PHASE) as one:
            token = await prepared(one, name)
            async with producer(broker.bootstrap_servers, name, TWO_PHASE) as two:
                await two.txn.init()
                with pytest.raises(InvalidTxnState):
                    await two.txn.complete(token)
                await write(two, name, "b")
                with pytest.raises((Fenced, DecisionExpired)):
                    await one.txn.commit()

    asyncio.run(run())
    eventually(lambda: committed_values(broker, name, 0) == ["b"])


def test_the_earlier_client_is_fenced_by_recovery(broker: EmbeddedBroker, name: str) -> None:
    async def run() -> None:
        async with producer(broker.bootstrap_servers, name, TWO_PHASE) as one:
            token = await prepared(one, name)
            async with producer(broker.bootstrap_servers, name, TWO_PHASE) as two:
                await two.txn.init(keep_prepared_txn=True)
                with pytest.raises(Fenced):
                    await one.txn.commit()
                assert one.txn.machine.state is State.FATAL
                assert await two.txn.complete(token) is Completion.COMMITTED

    asyncio.run(run())
    eventually(lambda: committed_values(broker, name, 0) == ["a"])


def test_who_claims_the_id_between_two_requests_of_another_claim_keeps_it(
    broker: EmbeddedBroker, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To abort what is open takes a second InitProducerId, which names the pair of the first (KIP-360)."""

    async def run() -> None:
        async with producer(broker.bootstrap_servers, name, TWO_PHASE) as gone:
            token = await prepared(gone, name)
        async with (
            producer(broker.bootstrap_servers, name, TWO_PHASE) as slow,
            producer(broker.bootstrap_servers, name, TWO_PHASE) as quick,
        ):
            ask = slow.txn._requests.init_producer_id

            async def overtaken(
                request: InitProducerIdRequest,
            ) -> tuple[ProducerIdAndEpoch, ProducerIdAndEpoch | None]:
                if not request.keep_prepared_txn:
                    await quick.txn.init(keep_prepared_txn=True)
                return await ask(request)

            monkeypatch.setattr(slow.txn._requests, "init_producer_id", overtaken)
            with pytest.raises(Fenced):
                await slow.txn.init()
            assert await quick.txn.complete(token) is Completion.COMMITTED

    asyncio.run(run())
    eventually(lambda: committed_values(broker, name, 0) == ["a"])


def test_a_decision_after_the_cluster_ended_it_is_its_own_error(broker: EmbeddedBroker, name: str) -> None:
    """The other system committed, the cluster aborted meanwhile: never a success, in no mode."""

    async def run() -> None:
        async with producer(broker.bootstrap_servers, name, TWO_PHASE) as one:
            token = await prepared(one, name)
        async with producer(broker.bootstrap_servers, name) as plain:  # somebody without a mode
            await plain.txn.init()
        for mode in MODES:
            async with producer(broker.bootstrap_servers, name, in_mode(mode)) as late:
                await late.txn.init(keep_prepared_txn=True)
                with pytest.raises(DecisionExpired, match="aborted for its client"):
                    await late.txn.complete(token)

    asyncio.run(run())
    eventually(lambda: committed_values(broker, name, 0) == [])


def test_offsets_are_prepared_with_the_records(broker: EmbeddedBroker, name: str) -> None:
    async def run() -> None:
        group = GroupMetadata(group_id=f"g-{name}")
        async with producer(broker.bootstrap_servers, name, TWO_PHASE) as one:
            await one.txn.init()
            await one.txn.begin()
            await one.txn.send_offsets({TopicPartition(name, 0): OffsetAndMetadata(7, None, "note")}, group)
            token = await one.txn.prepare()
            assert token
            await one.txn.complete(token)

    asyncio.run(run())


def test_what_failed_is_aborted_and_not_committed(broker: EmbeddedBroker, name: str) -> None:
    async def run() -> None:
        async with producer(broker.bootstrap_servers, name, TWO_PHASE) as one:
            await one.txn.init()
            await one.txn.begin()
            await one.send(name, "a")
            group = GroupMetadata(group_id=f"g-{name}", generation_id=5, member_id="stranger")
            with pytest.raises(Exception, match=r"ILLEGAL_GENERATION|UNKNOWN_MEMBER"):
                await one.txn.send_offsets({TopicPartition(name, 0): OffsetAndMetadata(7)}, group)
            with pytest.raises(AbortRequired):
                await one.txn.prepare()
            with pytest.raises(AbortRequired):
                await one.txn.commit()
            await one.txn.abort()
            await write(one, name, "b")

    asyncio.run(run())
    eventually(lambda: committed_values(broker, name, 0) == ["b"])


def test_without_a_mode_transactions_are_kafkas_own(broker: EmbeddedBroker, name: str) -> None:
    async def run() -> None:
        async with producer(broker.bootstrap_servers, name) as one:
            with pytest.raises(InvalidTxnState):
                await one.txn.init(keep_prepared_txn=True)
            await one.txn.init()
            assert one.txn.mode is None
            await one.txn.begin()
            await one.send(name, "a")
            with pytest.raises(InvalidTxnState, match=r"tallystick\.modes"):
                await one.txn.prepare()
            await one.txn.commit()

    asyncio.run(run())
    eventually(lambda: committed_values(broker, name, 0) == ["a"])


def test_a_missing_setting_is_named_and_nothing_weaker_is_used() -> None:
    """[CLI-40] 53 with both causes; `keep` only where the user listed it."""

    async def run(bootstrap: str) -> None:
        async with producer(bootstrap, "t", TWO_PHASE) as one:
            with pytest.raises(NotAuthorized, match=r"transaction\.two\.phase\.commit\.enable") as caught:
                await one.txn.init()
            assert caught.value.code == 53
            assert "TWO_PHASE_COMMIT" in str(caught.value)
            assert one.txn.machine.state is State.UNINITIALIZED
        async with producer(bootstrap, "t", {**TWO_PHASE, "tallystick.modes": "2pc,keep"}) as two:
            await two.txn.init()
            assert two.txn.mode is Mode.KEEP

    off = {"transaction.two.phase.commit.enable": "false"}
    with EmbeddedBroker(in_process=True, config=off) as broker:
        asyncio.run(run(broker.bootstrap_servers))
