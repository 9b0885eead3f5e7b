"""KIP-98, "Exactly Once Delivery and Transactional Messaging": what consumers see of transactions.

The reader here is the KIP's: it takes the list of aborted transactions of each answer, and drops what belongs
to one from its first record to its ABORT marker.
"""

import asyncio
import heapq
from random import Random

import pytest
from tests.support.leading import Leader, batch, leader, request, turns
from tests.support.memory_broker import memory_disk, on_a_loop

from tallystick.broker.partitions.topics import TRANSACTION_STATE_TOPIC
from tallystick.broker.txn.machine.model import TransactionResult
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.ids import ProducerIdAndEpoch, TransactionalId
from tallystick.protocol.messages.data.fetch import PartitionData
from tallystick.protocol.records import iter_headers, iter_records, read_marker
from tallystick.protocol.records.control import ControlType, EndTransactionMarker, encode_marker
from tallystick.storage.state.producer_state import AppendOrigin

COMMITTED, UNCOMMITTED = 1, 0


def read(answer: PartitionData) -> tuple[list[int], int]:
    """Offsets of the records an application gets, and where to go on. Source: Fetcher.nextFetchedRecord."""
    ahead = [(txn.first_offset, txn.producer_id) for txn in answer.aborted_transactions or ()]
    heapq.heapify(ahead)
    dropping: set[int] = set()
    offsets: list[int] = []
    following = -1
    data = bytes(answer.records or b"")
    for at, header in iter_headers(data):
        following = header.next_offset
        while ahead and ahead[0][0] <= header.last_offset:
            dropping.add(heapq.heappop(ahead)[1])
        if header.is_control:
            marker = read_marker(data, at)
            if marker is not None and marker.control_type is ControlType.ABORT:
                dropping.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in dropping):
            one = data[at : at + header.size_bytes]
            offsets += [record.offset for record in iter_records(one)]
    return offsets, following


async def read_all(made: Leader, isolation: int, *, start: int = 0, max_bytes: int = 1 << 20) -> list[int]:
    found: list[int] = []
    while True:
        answer = await made.fetch(start, isolation=isolation, max_bytes=max_bytes)
        assert answer.error_code == 0
        offsets, following = read(answer)
        if following < 0:
            return found
        found += [offset for offset in offsets if offset >= start]
        start = following


# ------------------------------------------------------------------------------ the last stable offset


@on_a_loop
async def test_a_committed_reader_stops_at_the_first_open_transaction() -> None:
    """KIP-98 "Reading Transactional Messages": nothing at or past the last stable offset, whosever it is."""
    async with leader() as made:
        identity = await made.identity()
        await made.produce(request({0: batch(None)}, name=None))
        await made.write(identity)
        await made.produce(request({0: batch(None)}, name=None))
        answer = await made.fetch()
        assert (answer.high_watermark, answer.last_stable_offset) == (3, 1)
        assert await read_all(made, COMMITTED) == [0]
        assert await read_all(made, UNCOMMITTED) == [0, 1, 2]
        assert (await made.latest(isolation=COMMITTED), await made.latest(isolation=UNCOMMITTED)) == (1, 3)
        await made.end(identity, TransactionResult.COMMIT)
        assert await read_all(made, COMMITTED) == [0, 1, 2]
        assert await made.latest(isolation=COMMITTED) == 4


@on_a_loop
async def test_a_time_is_looked_for_among_what_may_be_read() -> None:
    async with leader() as made:
        identity = await made.identity()
        await made.produce(request({0: batch(identity, at_ms=5_000)}))
        assert await made.latest(isolation=COMMITTED, timestamp=4_000) == -1
        assert await made.latest(isolation=UNCOMMITTED, timestamp=4_000) == 0
        await made.end(identity, TransactionResult.COMMIT)
        assert await made.latest(isolation=COMMITTED, timestamp=4_000) == 0


@on_a_loop
async def test_the_oldest_of_several_open_transactions_decides() -> None:
    async with leader() as made:
        names = [TransactionalId(f"t{n}") for n in range(3)]
        ids = [await made.identity(name) for name in names]
        for identity, name in zip(ids, names, strict=True):
            await made.write(identity, name=name)
        await made.end(ids[1], TransactionResult.COMMIT, name=names[1])
        assert (await made.fetch()).last_stable_offset == 0
        await made.end(ids[0], TransactionResult.ABORT, name=names[0])
        assert (await made.fetch()).last_stable_offset == 2
        await made.end(ids[2], TransactionResult.COMMIT, name=names[2])
        assert await read_all(made, COMMITTED) == [1, 2]


@pytest.mark.parametrize("outcome", list(TransactionResult))
@on_a_loop
async def test_a_long_poll_ends_when_a_marker_moves_the_last_stable_offset(
    outcome: TransactionResult,
) -> None:
    for policy in ("os", "ack"):
        async with leader(flush_policy=policy) as made:
            identity = await made.identity()
            await made.write(identity)
            waiting = asyncio.ensure_future(made.fetch(wait_ms=60_000))
            await turns()
            assert not waiting.done()
            await made.end(identity, outcome)
            answer = await waiting
            assert answer.last_stable_offset == 2
            assert read(answer)[0] == ([0] if outcome is TransactionResult.COMMIT else [])


@on_a_loop
async def test_a_marker_that_power_loss_could_take_back_decides_nothing_for_readers() -> None:
    """[PRD-4] [FET-1] Under `ack`: the decision is durable, its marker in the log and not on the disk."""
    async with leader(flush_policy="ack") as made:
        identity = await made.identity()
        await made.write(identity)
        made.disk.holding = True
        ending = asyncio.ensure_future(made.end(identity, TransactionResult.COMMIT))
        await turns()
        made.disk.sync(TRANSACTION_STATE_TOPIC)
        await ending
        assert made.partition().log.log_end_offset == 2
        answer = await made.fetch()
        assert (answer.high_watermark, answer.last_stable_offset, answer.records) == (1, 0, b"")
        assert await made.latest(isolation=COMMITTED) == 0
        waiting = asyncio.ensure_future(made.fetch(wait_ms=60_000))
        await turns()
        made.disk.release()
        assert read(await waiting)[0] == [0]
        assert await made.latest(isolation=COMMITTED) == 2


# ------------------------------------------------------------------------------ the aborted list


@on_a_loop
async def test_the_list_is_for_committed_readers_alone() -> None:
    async with leader() as made:
        identity = await made.identity()
        await made.write(identity)
        await made.end(identity, TransactionResult.ABORT)
        assert (await made.fetch(isolation=UNCOMMITTED)).aborted_transactions is None
        assert [t.first_offset for t in (await made.fetch()).aborted_transactions or ()] == [0]
        assert (await made.fetch(2)).aborted_transactions == ()
        assert await read_all(made, UNCOMMITTED) == [0]
        assert await read_all(made, COMMITTED) == []


@on_a_loop
async def test_the_list_ends_with_what_was_returned() -> None:
    """KAFKA-17801: a transaction that began behind the returned records is none of this answer's."""
    async with leader() as made:
        for n in range(3):
            name = TransactionalId(f"t{n}")
            identity = await made.identity(name)
            await made.write(identity, name=name)
            await made.end(identity, TransactionResult.ABORT, name=name)
        for start in range(6):
            answer = await made.fetch(start, max_bytes=1)
            listed = [t.first_offset for t in answer.aborted_transactions or ()]
            assert listed == [start - start % 2]


@on_a_loop
async def test_an_abort_of_nothing_is_on_no_list() -> None:
    """A marker for a producer without an open transaction leaves no entry in the index."""
    async with leader() as made:
        identity = await made.identity()
        marker = encode_marker(
            EndTransactionMarker(control_type=ControlType.ABORT, coordinator_epoch=0),
            identity,
            timestamp_ms=1,
        )
        made.partition().append(marker, AppendOrigin.COORDINATOR)
        answer = await made.fetch()
        assert read(answer) == ([], 1)
        assert answer.aborted_transactions == ()


# ------------------------------------------------------------------------- everything at once, and again


class _History:
    """What was asked for, for comparison: offset and transaction of each record."""

    def __init__(self) -> None:
        self.plain: set[int] = set()
        self.open: dict[int, list[int]] = {}
        self.committed: set[int] = set()

    def expected(self, stable: int) -> list[int]:
        return sorted(offset for offset in self.plain | self.committed if offset < stable)


async def _random_life(made: Leader, random: Random, history: _History) -> None:
    producers: dict[int, tuple[TransactionalId, ProducerIdAndEpoch, int]] = {}
    for n in range(4):
        name = TransactionalId(f"t{n}")
        producers[n] = (name, await made.identity(name), 0)
    for _ in range(60):
        n = random.randrange(5)
        count = random.randrange(1, 4)
        if n == 4:
            (answer,) = await made.produce(request({0: batch(None, count=count)}, name=None))
            history.plain |= set(range(answer.base_offset, answer.base_offset + count))
            continue
        name, identity, sequence = producers[n]
        if n in history.open and random.random() < 0.4:
            outcome = random.choice(list(TransactionResult))
            producers[n] = (name, await made.end(identity, outcome, name=name), 0)
            offsets = history.open.pop(n)
            history.committed |= set(offsets) if outcome is TransactionResult.COMMIT else set()
            continue
        (answer,) = await made.produce(request({0: batch(identity, sequence, count=count)}, name=name))
        assert answer.error_code == 0
        history.open.setdefault(n, []).extend(range(answer.base_offset, answer.base_offset + count))
        producers[n] = (name, identity, sequence + count)


@pytest.mark.parametrize("seed", range(25))
@on_a_loop
async def test_readers_get_every_committed_record_below_the_last_stable_offset_and_no_other(
    seed: int,
) -> None:
    """[LOG-2] From any offset, in pieces of any size, before a restart and after it [PRD-1]."""
    random, history, disk = Random(seed), _History(), memory_disk()

    async def check(made: Leader) -> None:
        stable = (await made.fetch()).last_stable_offset
        firsts = [min(offsets) for offsets in history.open.values()]
        assert stable == min(firsts, default=made.partition().log.log_end_offset)
        for _ in range(4):
            start, size = random.randrange(stable + 1), random.choice([1, 200, 1_000, 1 << 20])
            found = await read_all(made, COMMITTED, start=start, max_bytes=size)
            assert found == [offset for offset in history.expected(stable) if offset >= start]

    async with leader(disk) as made:
        await _random_life(made, random, history)
        await check(made)
        log = made.partition().log
        before = (log.reader.last_stable_offset, log.producer_state_manager.take_snapshot())
    async with leader(disk) as made:
        log = made.partition().log
        assert (log.reader.last_stable_offset, log.producer_state_manager.take_snapshot()) == before
        await check(made)


@on_a_loop
async def test_only_markers_keep_a_producer_known() -> None:
    """KAFKA-9144: a marker counts as activity; data with old timestamps does not make its producer old."""
    async with leader() as made:
        identity = await made.identity()
        await made.produce(request({0: batch(identity, at_ms=1)}))
        state = made.partition().log.producer_state_manager
        day_ms = 86_400_000
        assert state.remove_expired(made.clock.now_ms(), day_ms) == 0  # it has a transaction open [PRD-5]
        following = await made.end(identity, TransactionResult.COMMIT)
        made.clock.advance(day_ms - 1)
        assert state.remove_expired(made.clock.now_ms(), day_ms) == 0
        made.clock.advance(1)
        assert state.remove_expired(made.clock.now_ms(), day_ms) == 1
        assert await made.write(following) is ErrorCode.NONE
