"""The phases of a batch, and the memory it holds from its sealing to its last answer."""

import asyncio

from tallystick.client.producer.batches.buffer_pool import BufferPool
from tallystick.client.producer.batches.delivery import BatchOutcome
from tallystick.client.producer.batches.producer_batch import (
    CompressedBatch,
    InFlightBatch,
    OpenBatch,
    SealedBatch,
)
from tallystick.client.producer.batches.rows import ListRows
from tallystick.client.producer.sequences.in_flight import BatchSequence
from tallystick.kernel.ids import INT32_MAX, ProducerEpoch, ProducerId, ProducerIdAndEpoch, TopicPartition

TP = TopicPartition("t", 0)
NOW_S, NOW_MS = 1_700_000_000.0, 5_000


def sealed(count: int, size: int) -> SealedBatch:
    rows = ListRows(values=[b"v"] * count, timestamp_runs=[(0, 1)])
    return SealedBatch(TP, BatchOutcome(TP.topic, TP.partition), rows, size=size, opened_ms=NOW_MS)


def test_a_batch_without_records_is_closed_for_senders_and_goes_nowhere() -> None:
    batch = OpenBatch(TP, 1000)
    assert batch.seal(NOW_MS) is None
    assert batch.is_sealed
    assert not batch.has_ticket(batch.ticket())


def test_a_record_stored_while_its_unopened_batch_is_sealed_is_not_late_at_once() -> None:
    """[CLI-27] Its batch has no opening time of its own: delivery.timeout.ms begins when it is sealed."""
    batch = OpenBatch(TP, 1000)
    ticket = batch.ticket()
    batch.note_millisecond(ticket, NOW_S)
    batch.values[ticket] = b"v"
    whole = batch.seal(NOW_MS)
    assert whole is not None
    assert (whole.count, whole.opened_ms) == (1, NOW_MS)
    assert batch.has_ticket(ticket)


def test_halves_of_a_batch_hold_its_memory_and_settle_its_outcome() -> None:
    whole = sealed(5, 101)
    halves = whole.split()
    assert [half.count for half in halves] == [2, 3]
    assert sum(half.size for half in halves) == 101
    for half in halves:
        assert not whole.outcome.is_complete
        half.outcome.complete()
    assert whole.outcome.is_complete


def test_parts_of_a_batch_in_flight_share_its_numbers_and_its_past() -> None:
    identity = ProducerIdAndEpoch(ProducerId(7), ProducerEpoch(1))
    sequence = BatchSequence(10, identity, INT32_MAX - 1)
    whole = InFlightBatch(CompressedBatch(sealed(5, 101), b""), sequence, attempts=2, maybe_sent=True)
    parts = whole.split_into([CompressedBatch(half, b"") for half in whole.content.split()])
    assert [part.sequence for part in parts] == [sequence, BatchSequence(12, identity, 0)]
    assert {(part.attempts, part.maybe_sent) for part in parts} == {(2, True)}


def test_callers_that_wait_for_memory_are_woken_together_or_not_counted_any_more() -> None:
    async def main() -> None:
        pool = BufferPool(100)
        pool.take(120)
        assert pool.is_full
        assert pool.available_bytes == 0
        waiting = [asyncio.ensure_future(pool.wait_for_release(30)) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        await asyncio.gather(waiting[0], return_exceptions=True)
        assert pool.waiting_count == 2
        pool.release(60)
        pool.wake_if_free()
        assert pool.waiting_count == 2, "60 of 100 bytes are in use"
        pool.release(60)
        pool.wake_if_free()
        assert await asyncio.gather(*waiting[1:]) == [True, True]
        assert pool.waiting_count == 0
        assert not await pool.wait_for_release(0)

    asyncio.run(main())
