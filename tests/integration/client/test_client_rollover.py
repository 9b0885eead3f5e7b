"""A client's dual writes across the last epoch of a producer id, in the modes that keep: crash and recovery.

No test starts a client 32,765 times: a broker that is down is given the record that this would end with.
"""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.support.failing_cluster import Crashed, FaultPlan
from tests.support.other_system import OtherSystem, dual_write, recover
from tests.support.plain_flow import producer
from tests.support.raw_producer import committed_values, make_topic, rewrite

from tallystick.broker.txn.machine.model import TxnEntry
from tallystick.client.transactions.engine import Completion
from tallystick.kernel.ids import ProducerEpoch, ProducerIdAndEpoch
from tallystick.kernel.limits import EPOCH_MAX
from tallystick.kernel.value import replace
from tallystick.protocol.messages.txn.end_txn import EndTxnRequest
from tallystick.testing import EmbeddedBroker, eventually

pytestmark = pytest.mark.server

MODES = {"2pc": {"transaction.two.phase.commit.enable": "true"}, "keep": {"tallystick.modes": "keep"}}
LAST = EPOCH_MAX - 1  # the last one that a transaction is signed with: its markers have EPOCH_MAX (KIP-890)
NAME = "roll"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(tmp_path, transaction_state_log_num_partitions=2) as running:
        make_topic(running, NAME)
        yield running


@pytest.fixture(params=MODES)
def config(request: pytest.FixtureRequest) -> dict[str, str]:
    return MODES[request.param]


def climb(broker: EmbeddedBroker, epoch: int) -> None:
    """To this epoch of the pair that may speak."""

    def moved(entry: TxnEntry) -> TxnEntry:
        return replace(entry, client=ProducerIdAndEpoch(entry.client.producer_id, ProducerEpoch(epoch)))

    broker.kill()
    rewrite(broker, NAME, moved)
    broker.start()


def end_lost(lost: str) -> FaultPlan | None:
    """The client crashes around its EndTxn."""
    if not lost:
        return None
    return FaultPlan(0, lost == "answer", concerns=lambda request: isinstance(request, EndTxnRequest))


def holds(broker: EmbeddedBroker, *values: str) -> bool:
    return eventually(lambda: committed_values(broker, NAME, 0) == list(values))


def idle_at(broker: EmbeddedBroker, config: dict[str, str], epoch: int) -> OtherSystem:
    """One dual write is done, and the pair is at `epoch`."""
    other = OtherSystem()

    async def run() -> None:
        async with producer(broker.bootstrap_servers, NAME, config) as one:
            await one.txn.init()
            await dual_write(one, NAME, other, "a")

    asyncio.run(run())
    climb(broker, epoch)
    return other


@pytest.mark.gate(1)
@pytest.mark.parametrize("lost", ["", "request", "answer"])
def test_a_transaction_of_the_last_epoch(broker: EmbeddedBroker, config: dict[str, str], lost: str) -> None:
    """[CLI-43, CLI-46] KIP-890 "Overflow": its end moves to another producer id, and is recognised."""
    other = idle_at(broker, config, LAST - 1)

    async def run() -> None:
        with suppress(Crashed):
            async with producer(broker.bootstrap_servers, NAME, config, end_lost(lost)) as two:
                await two.txn.init()
                before = two.txn.identity
                assert before.epoch == LAST
                await dual_write(two, NAME, other, "b")
        async with producer(broker.bootstrap_servers, NAME, config) as three:
            done = await recover(three, other)
            assert done is (Completion.COMMITTED if lost == "request" else Completion.NOTHING_IN_DOUBT)
            assert three.txn.identity.producer_id != before.producer_id
            await dual_write(three, NAME, other, "c")

    asyncio.run(run())
    assert holds(broker, "a", "b", "c")


@pytest.mark.gate(1)
@pytest.mark.parametrize("decided", [True, False])
@pytest.mark.parametrize("lost", ["", "request", "answer"])
def test_recoveries_use_up_a_second_producer_id(
    broker: EmbeddedBroker, config: dict[str, str], lost: str, decided: bool
) -> None:
    """[CLI-44] KIP-939 "2PC transaction case with two epoch overflows": the name of what is prepared stays,
    the pair that may decide it does not.
    """
    other = idle_at(broker, config, LAST - 1)

    async def prepare() -> ProducerIdAndEpoch:
        async with producer(broker.bootstrap_servers, NAME, config) as two:
            await two.txn.init()
            await two.txn.begin()
            await two.send(NAME, "b")
            token = await two.txn.prepare()
            if decided:
                other.token, other.values = token, ["a", "b"]
            writer = two.txn.identity
        async with producer(broker.bootstrap_servers, NAME, config) as three:
            await three.txn.init(keep_prepared_txn=True)
            assert (three.txn.machine.token, three.txn.machine.writer) == (token, writer)
            assert three.txn.identity.epoch == 0
        return writer

    async def end(writer: ProducerIdAndEpoch) -> None:
        expected = Completion.COMMITTED if decided else Completion.ABORTED
        with suppress(Crashed):
            async with producer(broker.bootstrap_servers, NAME, config, end_lost(lost)) as four:
                await four.txn.init(keep_prepared_txn=True)
                assert (four.txn.machine.writer, four.txn.identity.epoch) == (writer, EPOCH_MAX)
                last = four.txn.identity
                assert await four.txn.complete(other.token) is expected
        async with producer(broker.bootstrap_servers, NAME, config) as five:
            done = await recover(five, other)
            if lost == "request":
                assert done is expected
            else:  # undecided, the other system stores an earlier one, and how that ended shows no more
                assert done is (Completion.NOTHING_IN_DOUBT if decided else Completion.UNVERIFIED)
            assert five.txn.identity.producer_id not in (writer.producer_id, last.producer_id)
            await dual_write(five, NAME, other, "c")

    writer = asyncio.run(prepare())
    climb(broker, LAST)
    asyncio.run(end(writer))
    assert holds(broker, *other.values)
