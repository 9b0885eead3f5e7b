"""Forced writes of a transaction under `flush.policy=ack`, counted: what is synced before which answer.

A round is one forced write of every log that waits for one, as the group commit does it; rounds that follow
one another are what a client waits for.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any

from tests.support.leading import TOPIC, Leader, T, leader, turns
from tests.support.memory_broker import memory_disk, on_a_loop

from harness.memory_fs import MemoryFileSystem
from tallystick.broker.partitions.topics import TRANSACTION_STATE_TOPIC
from tallystick.broker.txn.machine.model import TransactionResult
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.ids import ProducerIdAndEpoch
from tallystick.protocol.messages.end_txn import EndTxnRequest

COMMIT = TransactionResult.COMMIT
STATE = TRANSACTION_STATE_TOPIC


async def count_rounds(broker: Leader, request: Coroutine[Any, Any, Any]) -> tuple[Any, list[set[str]]]:
    """Answer a request; return the answer and the topics of each round that came before it."""
    rounds: list[set[str]] = []
    answer = asyncio.ensure_future(request)
    await turns()
    while not answer.done():
        rounds.append(broker.disk.waiting)
        broker.disk.sync()
        await turns()
    return answer.result(), rounds


async def settle(broker: Leader) -> list[set[str]]:
    """Sync for as long as anything waits; return the topics of each round."""
    rounds: list[set[str]] = []
    while broker.disk.waiting:
        rounds.append(broker.disk.waiting)
        broker.disk.sync()
        await turns()
    return rounds


async def begin(broker: Leader) -> ProducerIdAndEpoch:
    """Commit one transaction, which leaves the id at version 2, and hold the disk."""
    identity = await broker.identity(two_phase=True)
    assert await broker.write(identity) == ErrorCode.NONE
    identity = await broker.end(identity, COMMIT)
    broker.disk.holding = True
    return identity


async def end(broker: Leader, identity: ProducerIdAndEpoch) -> ProducerIdAndEpoch:
    """Commit as a client does; return the pair for the next transaction."""
    request = EndTxnRequest(
        transactional_id=T, producer_id=identity.producer_id, producer_epoch=identity.epoch, committed=True
    )
    answer = await broker.ask(request, 5)
    assert answer.error_code == ErrorCode.NONE
    return ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch)


@on_a_loop
async def test_a_produce_waits_for_one_forced_write_and_its_end_for_one() -> None:
    async with leader(flush_policy="ack") as broker:
        identity = await begin(broker)
        written, before_data = await count_rounds(broker, broker.write(identity))
        assert (written, before_data) == (ErrorCode.NONE, [{STATE, TOPIC}])
        ended, before_end = await count_rounds(broker, end(broker, identity))
        assert isinstance(ended, ProducerIdAndEpoch)
        assert before_end == [{STATE}]
        # The markers follow, off the client's path, and nothing is forced for the completion.
        assert await settle(broker) == [{TOPIC}]


@on_a_loop
async def test_a_transaction_has_one_forced_write_of_a_marker_between_its_end_and_the_next() -> None:
    async with leader(flush_policy="ack") as broker:
        identity = await begin(broker)
        for _ in range(3):
            _, before_data = await count_rounds(broker, broker.write(identity))
            identity, before_end = await count_rounds(broker, end(broker, identity))
            between = await settle(broker)
            assert (before_data, before_end, between) == ([{STATE, TOPIC}], [{STATE}], [{TOPIC}])


@on_a_loop
async def test_a_produce_that_follows_at_once_waits_for_the_markers_and_not_for_the_completion() -> None:
    """[TXN-5]"""
    async with leader(flush_policy="ack") as broker:
        identity = await begin(broker)
        await count_rounds(broker, broker.write(identity))
        identity, _ = await count_rounds(broker, end(broker, identity))
        assert broker.disk.waiting == {TOPIC}
        written, rounds = await count_rounds(broker, broker.write(identity))
        assert written == ErrorCode.NONE
        assert rounds == [{TOPIC}, {STATE, TOPIC}]


@on_a_loop
async def test_a_transaction_has_four_forced_writes_of_files_in_all() -> None:
    """Counted at the calls: two for data and beginning, one for the decision, one for the marker."""
    fs = MemoryFileSystem()
    async with leader(memory_disk(fs), flush_policy="ack") as broker:
        identity = await begin(broker)
        fs.effects.clear()
        for _ in range(5):
            await count_rounds(broker, broker.write(identity))
            identity, _ = await count_rounds(broker, end(broker, identity))
            await settle(broker)
        synced = [path for name, path in fs.effects if name == "sync"]
        written = [path for name, path in fs.effects if name == "write"]
        assert (len(synced), len(written)) == (5 * 4, 5 * 4)
