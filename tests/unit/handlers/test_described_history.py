"""DescribeTransactions with the history of an id: only for those who ask, and clients only for operators."""

from typing import Any

from tests.support.memory_broker import MemoryBroker, memory_broker, on_a_loop
from tests.support.txn_requests import add, claimed, init

from tallystick.broker.authorizer.authorizer import CLUSTER_RESOURCE, Operation, transactional_id_resource
from tallystick.broker.txn.history import CLIENT_ID_MAX, HISTORY_MAX
from tallystick.kernel.codes import ErrorCode
from tallystick.protocol import encode
from tallystick.protocol.messages.txn.describe_transactions import DescribeTransactionsRequest
from tallystick.protocol.transaction_history import TransitionKind

DESCRIBE = Operation.DESCRIBE
LONGEST_ENTRY = 64 + 4 * CLIENT_ID_MAX + 64  # numbers, a client id of any letters, host and port


def request(*names: str) -> DescribeTransactionsRequest:
    return DescribeTransactionsRequest(transactional_ids=names, include_history=True)


async def describe(desk: MemoryBroker, name: str = "t") -> Any:
    (state,) = (await desk.ask(request(name), 0)).transaction_states
    return state


def test_the_wish_is_a_private_tag_of_the_request() -> None:
    """docs/formats/private-tags.md; Kafka's brokers skip it."""
    assert encode(request("t"), 0).hex(" ") == "02 02 74 01 90 4e 01 01"


@on_a_loop
async def test_who_does_not_ask_pays_nothing() -> None:
    async with memory_broker() as desk:
        await claimed(desk)
        plain = DescribeTransactionsRequest(transactional_ids=("t",))
        (state,) = (await desk.ask(plain, 0)).transaction_states
        assert state.history is None


@on_a_loop
async def test_the_history_names_client_and_address() -> None:
    async with memory_broker() as desk:
        who = await claimed(desk)
        await desk.ask(add(who, {"orders": (0,)}), 3, client_id="orders", host="10.0.0.9")
        first, second = (await describe(desk)).history
        assert (first.kind, first.state) == (TransitionKind.INITIALIZED, 0)
        assert (second.kind, second.state, second.partition_count) == (TransitionKind.BEGUN, 1, 1)
        assert (second.producer_id, second.producer_epoch) == (who.producer_id, who.producer_epoch)
        assert (second.client_id, second.address) == ("orders", "10.0.0.9:0")
        assert second.timestamp_ms == desk.clock.now_ms()


@on_a_loop
async def test_clients_are_shown_only_to_those_who_may_describe_the_cluster() -> None:
    async with memory_broker() as desk:
        await claimed(desk)
        desk.deny((DESCRIBE, CLUSTER_RESOURCE))
        state = await describe(desk)
        assert [each.kind for each in state.history] == [TransitionKind.INITIALIZED]
        assert {(each.client_id, each.address) for each in state.history} == {(None, None)}
        desk.deny((DESCRIBE, transactional_id_resource("t")))
        refused = await describe(desk)
        assert refused.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        assert refused.history is None


@on_a_loop
async def test_the_size_of_a_history_is_bounded() -> None:
    """[HIS-2] Whatever clients call themselves, and however often an id is named."""
    async with memory_broker() as desk:
        await claimed(desk)
        for _ in range(2 * HISTORY_MAX):
            await desk.ask(init(), 6, client_id="\N{OLD PERSIAN SIGN AURAMAZDAA}" * 8_000)
        answer = await desk.ask(request(*["t"] * 50), 0)
        (state,) = answer.transaction_states
        assert len(state.history) == HISTORY_MAX
        assert len(encode(answer, 0)) < 200 + HISTORY_MAX * LONGEST_ENTRY
