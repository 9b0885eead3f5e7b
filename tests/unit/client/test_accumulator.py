"""Records gathered by many threads without a lock: none lost, none twice, each where it is said to be."""

import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial

import pytest
from tests.support.interrupting import interrupted, points

from tallystick.client.errors import Closed, IllegalState, TooLarge, UnknownTopic
from tallystick.client.net.waits import build_forked_error
from tallystick.client.producer.batches import accumulator, buffer_pool, producer_batch
from tallystick.client.producer.batches.accumulator import (
    AccumulatorEnv,
    AccumulatorLimits,
    BufferFullOrUnknownTopic,
    RecordAccumulator,
)
from tallystick.client.producer.batches.columns import build_columns
from tallystick.client.producer.batches.delivery import BatchDelivery, Delivery
from tallystick.client.producer.batches.partitioner import hash_key_to_partition
from tallystick.client.producer.batches.producer_batch import SealedBatch
from tallystick.client.producer.batches.rows import ListRows
from tallystick.kernel.errors import Effect


class World:
    """A clock, and a count of wake-ups."""

    def __init__(self, **limits: int) -> None:
        self.now_s = 1_700_000_000.0
        self.woken = 0
        self.lock = threading.Lock()
        wanted = {"batch_bytes": 16_384, "linger_ms": 5, "buffer_bytes": 1 << 25, "record_bytes_max": 1 << 20}
        self.accumulator = RecordAccumulator(
            AccumulatorLimits(**{**wanted, **limits}),
            AccumulatorEnv(
                now=lambda: self.now_s,
                monotonic_ms=lambda: int(self.now_s * 1000),
                uniform=lambda: 0.5,
                lock=self.lock,
                wake=self._wake,
            ),
        )

    def _wake(self) -> None:
        self.woken += 1

    @property
    def now_ms(self) -> int:
        return int(self.now_s * 1000)

    def take_all(self, *, linger: bool = False) -> Iterator[SealedBatch]:
        for queue in list(self.accumulator.active_queues):
            while (batch := self.accumulator.take_batch(queue, self.now_ms, linger=linger)) is not None:
                yield batch
            self.accumulator.deactivate_if_empty(queue)


def values(batch: SealedBatch) -> list[bytes | None]:
    assert isinstance(batch.rows, ListRows)
    return list(batch.rows.values)


def acknowledge(batches: list[SealedBatch]) -> None:
    offsets: dict[int, int] = {}
    for batch in batches:
        batch.outcome.base_offset = offsets.get(batch.tp.partition, 0)
        offsets[batch.tp.partition] = batch.outcome.base_offset + batch.count
        batch.outcome.complete()


def test_a_topic_that_is_not_known_has_to_be_asked_for() -> None:
    with pytest.raises(BufferFullOrUnknownTopic) as caught:
        World().accumulator.append("t", b"v")
    assert not caught.value.is_buffer_full


def test_the_engine_is_woken_once_a_batch() -> None:
    world = World()
    world.accumulator.update_topic("t", 1, [0])
    for _ in range(100):
        world.accumulator.append("t", b"v")
    assert world.woken == 1
    [batch] = world.take_all()
    assert batch.count == 100


def test_a_batch_waits_for_linger_ms_or_until_it_is_full() -> None:
    world = World(batch_bytes=1000, linger_ms=5)
    world.accumulator.update_topic("t", 1, [0])
    world.accumulator.append("t", b"v")
    assert not list(world.take_all(linger=True))
    world.now_s += 0.006
    assert len(list(world.take_all(linger=True))) == 1
    for _ in range(20):
        world.accumulator.append("t", b"v" * 100)
    full = list(world.take_all(linger=True))
    assert [batch.count for batch in full] == [7, 7]
    assert all(batch.size <= 1000 for batch in full)


def test_every_record_has_the_time_at_which_it_was_sent() -> None:
    world = World(linger_ms=1000)
    world.accumulator.update_topic("t", 1, [0])
    sent: list[tuple[Delivery, int]] = []
    for i in range(50):
        own = 1_600_000_000_000 + i if i % 7 == 3 else None
        delivery = world.accumulator.append("t", b"v", timestamp_ms=own)
        sent.append((delivery, own or world.now_ms))
        world.now_s += 0.0004
    acknowledge(list(world.take_all()))
    for place, (delivery, time_ms) in enumerate(sent):
        metadata = delivery.result(0)
        assert (metadata.offset, metadata.timestamp_ms) == (place, time_ms)


def test_keys_headers_and_partitions_arrive_with_their_records() -> None:
    world = World()
    world.accumulator.update_topic("t", 3, [0, 1, 2])
    world.accumulator.append("t", b"1", key=b"k", headers=[("h", b"x")])
    world.accumulator.append("t", None, partition=2)
    world.accumulator.append("t", bytearray(b"3"), key=memoryview(b"k"))
    by_partition = {batch.tp.partition: batch.rows for batch in world.take_all()}
    keyed = by_partition[hash_key_to_partition(b"k", 3)]
    assert isinstance(keyed, ListRows)
    records = [(r.key, r.value, r.headers) for r in keyed.iter_records()]
    assert (b"k", b"1", (("h", b"x"),)) in records
    assert (b"k", b"3", ()) in records
    assert 2 in by_partition


@pytest.mark.parametrize("given", ["text", 7, object()])
def test_what_is_not_bytes_is_refused_where_it_is_sent(given: object) -> None:
    world = World()
    world.accumulator.update_topic("t", 1, [0])
    with pytest.raises(TypeError, match="encode"):
        world.accumulator.append("t", given)
    with pytest.raises(TypeError, match="encode"):
        world.accumulator.append("t", b"", key=given)


@pytest.mark.parametrize("given", [1.5, "now", datetime(2026, 1, 1, tzinfo=UTC), 1 << 63])
def test_a_time_that_no_record_can_have_is_refused_where_it_is_sent(given: object) -> None:
    world = World()
    world.accumulator.update_topic("t", 1, [0])
    with pytest.raises((TypeError, ValueError), match="timestamp_ms"):
        world.accumulator.append("t", b"", timestamp_ms=given)  # type: ignore[arg-type]
    with pytest.raises((TypeError, ValueError), match="timestamp_ms"):
        build_columns([b""], None, (), given)  # type: ignore[arg-type]
    assert not list(world.take_all())


@pytest.mark.parametrize("given", ["text", 7, [1]])
def test_a_header_that_is_not_bytes_is_refused_where_it_is_sent(given: object) -> None:
    world = World()
    world.accumulator.update_topic("t", 1, [0])
    with pytest.raises(TypeError, match="encode"):
        world.accumulator.append("t", b"", headers=[("h", given)])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="encode"):
        build_columns([b""], None, [("h", given)], None)  # type: ignore[list-item]
    assert not list(world.take_all())


def test_refusals_say_what_is_wrong_and_that_nothing_happened() -> None:
    world = World(record_bytes_max=1000)
    world.accumulator.update_topic("t", 2, [0])
    with pytest.raises(TooLarge, match=r"max\.request\.size = 1000") as too_large:
        world.accumulator.append("t", b"v" * 1000)
    with pytest.raises(UnknownTopic, match="0 to 1"):
        world.accumulator.append("t", b"v", partition=2)
    assert too_large.value.effect is Effect.NONE
    assert not list(world.take_all())


def test_memory_is_bounded_and_comes_back() -> None:
    world = World(batch_bytes=1000, buffer_bytes=5000)
    world.accumulator.update_topic("t", 1, [0])
    sent: list[Delivery] = []

    def fill() -> None:
        while True:
            sent.append(world.accumulator.append("t", b"v" * 100))

    with pytest.raises(BufferFullOrUnknownTopic) as caught:
        fill()
    assert caught.value.is_buffer_full
    assert 35 <= len(sent) <= 49
    batches = list(world.take_all())
    assert sum(batch.count for batch in batches) == len(sent)
    for batch in batches:
        world.accumulator.pool.release(batch.size)
    assert world.accumulator.pool.used_bytes == 0
    world.accumulator.append("t", b"v")


def test_unkeyed_records_change_partition_after_a_batch() -> None:
    """KIP-794. Another one after every full batch, the same after a batch that was sent early."""
    world = World(batch_bytes=1000)
    world.accumulator.update_topic("t", 4, [0, 1, 2, 3])
    for _ in range(200):
        world.accumulator.append("t", b"v" * 100)
    full = list(world.take_all())
    assert len({batch.tp.partition for batch in full}) > 1
    seen = set()
    for _ in range(3):
        world.accumulator.append("t", b"v")
        seen |= {batch.tp.partition for batch in world.take_all()}
    assert len(seen) == 1


def test_a_partition_without_leader_gets_no_unkeyed_records() -> None:
    world = World(batch_bytes=100)
    world.accumulator.update_topic("t", 3, [1])
    for _ in range(50):
        world.accumulator.append("t", b"v" * 50)
    assert {batch.tp.partition for batch in world.take_all()} == {1}
    world.accumulator.update_topic("t", 3, [2])
    for _ in range(50):
        world.accumulator.append("t", b"v" * 50)
    assert {batch.tp.partition for batch in world.take_all()} <= {1, 2}


def test_many_at_once_are_where_they_are_said_to_be() -> None:
    world = World(batch_bytes=1000)
    world.accumulator.update_topic("t", 3, [0, 1, 2])
    keys: list[bytes | None] = [b"%d" % (i % 11) if i % 3 else None for i in range(300)]
    contents: list[bytes | None] = [b"%d" % i for i in range(300)]
    rows = ListRows(values=contents, keys=keys, timestamp_runs=[(0, world.now_ms)])
    delivery = BatchDelivery("t", world.accumulator.extend("t", rows, None))
    batches = list(world.take_all())
    acknowledge(batches)
    log = {
        (batch.tp.partition, batch.outcome.base_offset + place): value
        for batch in batches
        if batch.outcome.base_offset is not None
        for place, value in enumerate(values(batch))
    }
    metadata = delivery.result(0)
    assert metadata.count == 300
    seen = set()
    for part in metadata.parts:
        assert part.first_offset is not None
        for place, row in enumerate(part.rows):
            assert log[part.partition, part.first_offset + place] == contents[row]
            seen.add(row)
            key = keys[row]
            assert key is None or part.partition == hash_key_to_partition(key, 3)
    assert seen == set(range(300))


def test_a_closed_gate_refuses_and_lets_go_what_was_taken() -> None:
    """[CLI-25]"""
    world = World()
    world.accumulator.update_topic("t", 1, [0])
    world.accumulator.append("t", b"before")
    world.accumulator.close_gate(lambda: IllegalState("not now"))
    with pytest.raises(IllegalState):
        world.accumulator.append("t", b"after")
    with pytest.raises(IllegalState):
        world.accumulator.append("t", b"after", key=b"k")
    assert [values(batch) for batch in world.take_all()] == [[b"before"]]
    world.accumulator.open_gate()
    world.accumulator.append("t", b"again")
    assert [values(batch) for batch in world.take_all()] == [[b"again"]]


def test_a_forked_child_appends_nothing_and_waits_for_no_lock() -> None:
    """[CLI-61] The thread that held the lock at the fork does not exist in the child."""
    world = World()
    world.accumulator.update_topic("t", 1, [0])
    world.accumulator.append("t", b"before")
    with world.lock:
        world.accumulator.refuse_forever(partial(build_forked_error, "send"))
        assert world.accumulator.append_value("t", b"after") is None
        for key in (None, b"k"):
            with pytest.raises(IllegalState, match="opened before the fork"):
                world.accumulator.append("t", b"after", key)
        with pytest.raises(IllegalState, match="opened before the fork"):
            world.accumulator.extend("t", build_columns([b"after"], None, (), None), None)


@pytest.fixture
def _switch_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def _together(workers: list[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=worker) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)


BATCHES = frozenset(str(module.__file__) for module in (accumulator, buffer_pool, producer_batch))


def test_a_send_interrupted_while_it_seals_a_batch_loses_none_of_those_before() -> None:
    """[CLI-67] They were taken, and their transaction may be committed."""

    def one(at: int) -> bool:
        world = World(batch_bytes=400)
        world.accumulator.update_topic("t", 1, [0])
        for value in (b"a", b"b", b"c"):
            world.accumulator.append("t", value)
        hit = interrupted(
            lambda: world.accumulator.append("t", b"d" * 350, b"key"), at, KeyboardInterrupt, BATCHES
        )
        world.accumulator.append("t", b"e")
        batches = list(world.take_all())
        written = [value for batch in batches for value in values(batch)]
        assert [value for value in written if value != b"d" * 350] == [b"a", b"b", b"c", b"e"]
        assert written.count(b"d" * 350) in ((0, 1) if hit else (1,))
        for batch in batches:
            world.accumulator.pool.release(batch.size)
        assert world.accumulator.pool.used_bytes <= 0  # none is missing for ever
        return hit

    assert points(one) > 30


def test_a_send_interrupted_while_it_opens_a_batch_leaves_it_to_be_sent() -> None:
    """[CLI-67] Else no flush would find the records that follow."""

    def one(at: int) -> bool:
        world = World()
        world.accumulator.update_topic("t", 1, [0])
        hit = interrupted(lambda: world.accumulator.append("t", b"a"), at, KeyboardInterrupt, BATCHES)
        world.accumulator.append("t", b"b")
        assert world.woken
        written = [value for batch in world.take_all() for value in values(batch)]
        assert written in ([b"a", b"b"], [b"b"])
        return hit

    assert points(one) > 10


def test_an_interrupted_send_of_many_leaves_nothing_for_the_next_transaction() -> None:
    """[CLI-67] What it took of them is found by the flush of the transaction that is open."""

    def one(at: int) -> bool:
        world = World(batch_bytes=400)
        world.accumulator.update_topic("t", 1, [0])
        world.accumulator.append("t", b"a")
        rows = build_columns([b"b" * 300, b"c" * 300], None, (), None)
        hit = interrupted(lambda: world.accumulator.extend("t", rows, None), at, KeyboardInterrupt, BATCHES)
        world.accumulator.seal_open_batches()
        written = [value for batch in world.take_all() for value in values(batch)]
        assert written == [b"a", b"b" * 300, b"c" * 300][: len(written)]
        assert written[:1] == [b"a"]
        world.accumulator.append("t", b"d")
        assert [value for batch in world.take_all() for value in values(batch)] == [b"d"]
        return hit

    assert points(one) > 30


@pytest.mark.usefixtures("_switch_often")
def test_threads_lose_nothing_and_each_keeps_its_order() -> None:
    """[CLI-24] Four senders, keyed and not, and an engine that takes batches all the time."""
    world = World(batch_bytes=700, linger_ms=0, buffer_bytes=1 << 40)
    world.accumulator.update_topic("t", 2, [0, 1])
    batches: list[SealedBatch] = []
    sent: list[dict[bytes, Delivery]] = [{} for _ in range(4)]
    running = threading.Event()

    def engine() -> None:
        while not running.is_set():
            batches.extend(world.take_all())

    def sender(me: int) -> None:
        for i in range(4000):
            value = b"%d-%d" % (me, i)
            if i % 5:
                sent[me][value] = world.accumulator.append("t", value)
            else:
                sent[me][value] = world.accumulator.append("t", value, key=b"k%d" % me, timestamp_ms=i + 1)

    taking = threading.Thread(target=engine)
    taking.start()
    _together([lambda me=me: sender(me) for me in range(4)])  # type: ignore[misc]
    running.set()
    taking.join(60)
    batches.extend(world.take_all())
    acknowledge(batches)
    log: dict[tuple[int, int], bytes | None] = {}
    for batch in batches:
        assert batch.outcome.base_offset is not None
        for place, value in enumerate(values(batch)):
            log[batch.tp.partition, batch.outcome.base_offset + place] = value
    assert sorted(log.values(), key=str) == sorted((v for of in sent for v in of), key=str)
    for of in sent:
        last = {0: -1, 1: -1}
        for i, (value, delivery) in enumerate(of.items()):
            metadata = delivery.result(0)
            assert metadata.offset is not None
            assert log[metadata.partition, metadata.offset] == value
            assert metadata.offset > last[metadata.partition]
            last[metadata.partition] = metadata.offset
            if i % 5 == 0:
                assert metadata.timestamp_ms == i + 1


@pytest.mark.usefixtures("_switch_often")
def test_a_gate_that_closes_meanwhile_leaves_nothing_behind() -> None:
    """[CLI-25] A record is refused, or is in a batch that was sealed when the gate closed."""
    for _ in range(30):
        world = World(buffer_bytes=1 << 40)
        world.accumulator.update_topic("t", 1, [0])
        taken = [0, 0]

        def sender(me: int, world: World = world, taken: list[int] = taken) -> None:
            try:
                while True:
                    world.accumulator.append("t", b"v")
                    taken[me] += 1
            except Closed:
                pass

        threads = [threading.Thread(target=sender, args=(me,)) for me in range(2)]
        for thread in threads:
            thread.start()
        while sum(taken) < 50:
            pass
        world.accumulator.close_gate(lambda: Closed("closed"))
        for thread in threads:
            thread.join(60)
        assert sum(batch.count for batch in world.accumulator.drain()) == sum(taken)
        assert not world.accumulator.active_queues


def test_a_topic_made_again_with_fewer_partitions_is_counted_anew() -> None:
    """What waited in the others is given back; a sender with one of their batches in hand chooses again."""
    world = World(linger_ms=1000)
    accumulator = world.accumulator
    accumulator.update_topic("t", 8, range(8))
    kept = accumulator.append("t", b"kept", partition=1)
    lost = accumulator.append("t", b"lost", partition=6)
    assert [values(batch) for batch in accumulator.drop_partitions("t", 2)] == [[b"lost"]]
    accumulator.update_topic("t", 2, range(2))
    keys = [b"k%d" % i for i in range(50)]
    again = [accumulator.append("t", b"v", key=key) for key in keys]
    assert [d.outcome.partition for d in again] == [hash_key_to_partition(key, 2) for key in keys]
    with pytest.raises(UnknownTopic):
        accumulator.append("t", b"v", partition=6)
    acknowledge(list(world.take_all()))
    assert kept.done()
    assert not lost.done()


@pytest.mark.slow
def test_no_record_is_left_in_a_queue_that_was_cut_off_while_threads_send() -> None:
    """[CLI-24] Eight partitions, then two, then eight, under four senders: every record is in one batch."""
    world = World(batch_bytes=2_000)
    accumulator = world.accumulator
    accumulator.update_topic("t", 8, range(8))
    sent: list[list[Delivery]] = [[] for _ in range(4)]
    stop = threading.Event()

    def send(own: list[Delivery]) -> None:
        number = 0
        while not stop.is_set():
            number += 1
            own.append(accumulator.append("t", b"v", key=b"%d" % number))

    threads = [threading.Thread(target=send, args=(own,)) for own in sent]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    batches: list[SealedBatch] = []
    try:
        for thread in threads:
            thread.start()
        for _ in range(100):
            for partitions in (2, 8):
                batches += accumulator.drop_partitions("t", partitions)
                accumulator.update_topic("t", partitions, range(partitions))
                batches += world.take_all()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        sys.setswitchinterval(interval)
    batches += world.take_all()
    acknowledge(batches)
    deliveries = [delivery for own in sent for delivery in own]
    assert all(delivery.done() for delivery in deliveries)
    assert len(deliveries) == sum(batch.count for batch in batches)
