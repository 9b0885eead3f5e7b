"""Interrupted at every line, cancelled at every wait, closed in every state: usable after it, as documented.

An interrupt is an exception out of nowhere: Ctrl-C, or what a signal handler raises. A trace function raises
it at the n-th line of the synchronous clients, for every n there is.
"""

import asyncio

import pytest
from tests.support.interrupting import POINTS_MAX, cancelled_at, interrupted, points
from tests.support.raw_producer import committed_values

from tallystick import Consumer, Producer, TopicPartition, aio
from tallystick.client.errors import AbortRequired, Closed, IllegalState
from tallystick.testing import EmbeddedBroker, eventually

pytestmark = [
    pytest.mark.server,
    # Interrupted before it was handed to the engine thread: Python says so, and that is all that happens.
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
]


class Alarm(Exception):
    """What a signal handler of a user raises."""


KINDS = [KeyboardInterrupt, Alarm]


def config(broker: EmbeddedBroker, name: str) -> dict[str, object]:
    return {
        "bootstrap.servers": broker.bootstrap_servers,
        "transactional.id": name,
        "transaction.two.phase.commit.enable": True,
    }


@pytest.mark.parametrize("kind", KINDS)
def test_a_commit_interrupted_anywhere_is_asked_for_again(
    broker: EmbeddedBroker, topic: str, kind: type[BaseException]
) -> None:
    """[CLI-67] The second call returns exactly if it is committed; else it says that it must be aborted."""
    committed: list[str] = []
    with Producer(config(broker, topic)) as producer:
        producer.init_transactions()

        def one(at: int) -> bool:
            producer.begin_transaction()
            producer.send(topic, b"%d" % at)
            hit = interrupted(producer.commit_transaction, at, kind)
            try:
                if hit:
                    producer.commit_transaction()
                committed.append(str(at))
            except AbortRequired:
                producer.abort_transaction()
            return hit

        assert points(one) > 10
    assert eventually(lambda: committed_values(broker, topic, 0) == committed)


@pytest.mark.parametrize("kind", KINDS)
def test_an_abort_interrupted_anywhere_is_asked_for_again(
    broker: EmbeddedBroker, topic: str, kind: type[BaseException]
) -> None:
    """[CLI-67]"""
    with Producer(config(broker, topic)) as producer:
        producer.init_transactions()

        def one(at: int) -> bool:
            producer.begin_transaction()
            producer.send(topic, b"%d" % at)
            hit = interrupted(producer.abort_transaction, at, kind)
            if hit:
                producer.abort_transaction()
            return hit

        assert points(one) > 10
        producer.begin_transaction()
        producer.send(topic, b"last")
        producer.commit_transaction()
    assert eventually(lambda: committed_values(broker, topic, 0) == ["last"])


def test_a_preparation_interrupted_anywhere_is_asked_for_again(broker: EmbeddedBroker, topic: str) -> None:
    """[CLI-67] Its token is what the other system stores: the second call returns it."""
    committed: list[str] = []
    with Producer(config(broker, topic)) as producer:
        producer.init_transactions()

        def one(at: int) -> bool:
            producer.begin_transaction()
            producer.send(topic, b"%d" % at)
            tokens = []
            hit = interrupted(lambda: tokens.append(producer.prepare_transaction()), at, KeyboardInterrupt)
            try:
                if hit and not tokens:
                    tokens.append(producer.prepare_transaction())
            except AbortRequired:
                producer.abort_transaction()
                return hit
            assert tokens[0]
            hit_again = interrupted(lambda: producer.complete_transaction(tokens[0]), at, KeyboardInterrupt)
            if hit_again:
                producer.complete_transaction(tokens[0])
            committed.append(str(at))
            return hit or hit_again

        assert points(one) > 10
    assert eventually(lambda: committed_values(broker, topic, 0) == committed)


def test_a_start_interrupted_anywhere_is_asked_for_again(broker: EmbeddedBroker, topic: str) -> None:
    """[CLI-67] init_transactions, and begin_transaction, which can be aborted or made once more."""
    written: list[str] = []

    def one(at: int) -> bool:
        with Producer(config(broker, topic)) as producer:
            hit = interrupted(producer.init_transactions, at, KeyboardInterrupt)
            if hit:
                producer.init_transactions()
            hit_again = interrupted(producer.begin_transaction, at, KeyboardInterrupt)
            if hit_again:
                try:
                    producer.abort_transaction()
                except IllegalState:
                    pass  # it had not begun
                producer.begin_transaction()
            producer.send(topic, b"%d" % at)
            producer.commit_transaction()
            written.append(str(at))
            return hit or hit_again

    assert points(one) > 10
    assert eventually(lambda: committed_values(broker, topic, 0) == written)


def test_the_other_end_of_an_interrupted_commit_is_refused_with_the_reason(
    broker: EmbeddedBroker, topic: str
) -> None:
    """Where the answer came with the interrupt, an abort says that the transaction is committed."""
    refusals: list[str] = []
    with Producer(config(broker, topic)) as producer:
        producer.init_transactions()

        def one(at: int) -> bool:
            producer.begin_transaction()
            producer.send(topic, b"%d" % at)
            hit = interrupted(producer.commit_transaction, at, KeyboardInterrupt)
            try:
                if hit:
                    producer.abort_transaction()
            except IllegalState as exc:
                refusals.append(str(exc))
                producer.commit_transaction()
            return hit

        points(one)
    assert any("had succeeded" in refusal for refusal in refusals)


@pytest.mark.gate(1)
@pytest.mark.parametrize("kind", KINDS)
def test_a_poll_interrupted_anywhere_loses_no_record(
    broker: EmbeddedBroker, topic: str, kind: type[BaseException]
) -> None:
    """[CLI-67] What was read and not returned is read again, and is not committed by close()."""
    bootstrap = {"bootstrap.servers": broker.bootstrap_servers}
    with Producer(bootstrap) as producer:
        for number in range(POINTS_MAX):
            producer.send(topic, b"%d" % number)
    seen: list[int] = []
    group = bootstrap | {"group.id": topic, "auto.offset.reset": "earliest", "max.poll.records": 1}

    def one(at: int) -> bool:
        with Consumer(group) as consumer:
            consumer.assign([TopicPartition(topic, 0)])
            eventually(lambda: seen.extend(r.offset for r in consumer.poll(1)) or seen)
            consumer.position(TopicPartition(topic, 0))
            return interrupted(lambda: seen.extend(r.offset for r in consumer.poll(1)), at, kind)

    assert points(one) > 10
    assert seen == list(range(len(seen)))


@pytest.mark.parametrize("call", ["commit_transaction", "abort_transaction", "prepare_transaction"])
def test_a_transaction_cancelled_at_every_wait_goes_on(broker: EmbeddedBroker, topic: str, call: str) -> None:
    """[CLI-46] asyncio: asked again it goes on, or says that it must be aborted."""
    committed: list[str] = []

    async def main() -> int:
        async with aio.Producer(config(broker, topic)) as producer, asyncio.timeout(60):
            await producer.init_transactions()
            for at in range(1, POINTS_MAX):
                await producer.begin_transaction()
                await producer.send(topic, b"%d" % at)
                if call == "abort_transaction":
                    await producer.flush()
                task = cancelled_at(getattr(producer, call)(), at)
                await asyncio.wait([task])
                hit = task.cancelled()
                try:
                    if hit:
                        await getattr(producer, call)()
                    if call == "prepare_transaction":
                        await producer.commit_transaction()
                    if call != "abort_transaction":
                        committed.append(str(at))
                except AbortRequired:
                    await producer.abort_transaction()
                if not hit:
                    return at
        raise AssertionError("a call without an end")

    assert asyncio.run(main()) > 1
    assert eventually(lambda: committed_values(broker, topic, 0) == committed)


STATES = [
    "new",
    "init_transactions",
    "begin_transaction",
    "send",
    "prepare_transaction",
    "commit_transaction",
]


@pytest.mark.parametrize("state", STATES)
def test_a_producer_is_closed_in_every_state_and_says_so(
    broker: EmbeddedBroker, topic: str, state: str
) -> None:
    """[CLI-62] Closing again is harmless, and every call after it is refused."""
    producer = Producer(config(broker, topic))
    for step in STATES[1 : STATES.index(state) + 1]:
        if step == "send":
            producer.send(topic, b"x")
        else:
            getattr(producer, step)()
    producer.close()
    producer.close()
    for call in ("init_transactions", "begin_transaction", "commit_transaction", "abort_transaction"):
        with pytest.raises(Closed):
            getattr(producer, call)()
    with pytest.raises(Closed):
        producer.send(topic, b"y")
    # What nobody decided on was aborted, and what is prepared is left for recovery.
    with Producer(config(broker, topic)) as successor:
        successor.init_transactions(True)
        if state == "prepare_transaction":
            successor.abort_transaction()
        successor.begin_transaction()
        successor.send(topic, b"z")
        successor.commit_transaction()
    expected = ["x", "z"] if state == "commit_transaction" else ["z"]
    assert eventually(lambda: committed_values(broker, topic, 0) == expected)
