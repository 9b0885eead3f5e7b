"""Futures of records: one outcome a batch, read by anyone, settled once [CLI-20]."""

import asyncio
import logging
import pickle
import sys
import threading

import pytest

from tallystick.client.errors import ClientError, Closed, TimedOut, TooLarge, build_broker_error
from tallystick.client.producer.batches.delivery import BatchDelivery, BatchOutcome, Delivery
from tallystick.kernel.errors import Effect


def outcome(base_offset: int | None = 100) -> BatchOutcome:
    made = BatchOutcome("t", 3)
    made.base_offset = base_offset
    made.timestamp_runs = [(0, 1000), (5, 1001)]
    return made


def test_a_record_is_its_place_in_the_batch() -> None:
    of = outcome()
    delivery = Delivery(of, 6)
    assert not delivery.done()
    assert not delivery.cancelled()
    of.complete()
    metadata = delivery.result()
    assert (metadata.topic, metadata.partition, metadata.offset, metadata.timestamp_ms) == ("t", 3, 106, 1001)
    assert delivery.exception() is None
    assert pickle.loads(pickle.dumps(metadata)) == metadata


def test_the_brokers_clock_stands_for_every_records_own() -> None:
    of = outcome(None)
    of.log_append_time_ms = 7
    of.complete()
    assert Delivery(of, 2).result() == Delivery(of, 4).result()
    assert Delivery(of, 2).result().offset is None


def test_waiting_ends_with_the_outcome_or_the_timeout() -> None:
    of = outcome()
    with pytest.raises(TimedOut) as caught:
        Delivery(of, 0).result(0.01)
    assert caught.value.limit == "timeout"
    assert caught.value.effect is Effect.UNKNOWN, "it is still on its way"
    timer = threading.Timer(0.01, of.complete, (Closed("closed"),))
    timer.start()
    with pytest.raises(Closed):
        Delivery(of, 1).result(30)
    timer.join()
    assert isinstance(Delivery(of, 0).exception(), Closed)


def test_any_loop_can_await_a_record() -> None:
    of = outcome()

    async def main() -> int | None:
        threading.Timer(0.01, of.complete).start()
        first = await Delivery(of, 0)
        again = await Delivery(of, 1)
        return (first.offset or 0) + (again.offset or 0)

    assert asyncio.run(main()) == 201


def test_a_callback_that_comes_after_the_outcome_is_called_at_once() -> None:
    """[CLI-20]"""
    of = outcome()
    of.complete()
    told: list[int] = []
    for ticket in range(2):
        Delivery(of, ticket).add_done_callback(lambda d: told.append(d.ticket))
    assert told == [0, 1]


@pytest.mark.slow
def test_callbacks_come_once_each_whatever_thread_settles_and_whichever_watches() -> None:
    """[CLI-20] Watching and settling at once: nobody is told twice, nobody is forgotten."""
    for _ in range(200):
        of = outcome()
        told: list[int] = []
        begin = threading.Barrier(3)

        def watch(
            first: int, of: BatchOutcome = of, told: list[int] = told, begin: threading.Barrier = begin
        ) -> None:
            begin.wait()
            for ticket in range(first, first + 20):
                Delivery(of, ticket).add_done_callback(lambda d: told.append(d.ticket))

        threads = [threading.Thread(target=watch, args=(first,)) for first in (0, 20)]
        for thread in threads:
            thread.start()
        begin.wait()
        of.complete()
        for thread in threads:
            thread.join()
        assert sorted(told) == list(range(40))


def test_a_callback_that_ends_the_program_keeps_no_other_from_its_answer() -> None:
    """On a loop of the caller's own, where `sys.exit()` ends the program."""
    of, told = BatchOutcome("t", 0), list[int]()
    of.timestamp_runs = [(0, 0)]
    of.add_callback(lambda _: sys.exit(1), 0)
    of.add_callback(lambda delivery: told.append(delivery.ticket), 1)
    with pytest.raises(SystemExit):
        of.complete()
    assert told == [1]


def test_a_callback_that_fails_is_logged_and_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    of = outcome()
    told: list[Delivery] = []

    def fail(_: Delivery) -> None:
        raise ValueError("mine")

    of.add_callback(fail, 0)
    of.add_callback(told.append, 1)
    with caplog.at_level(logging.ERROR):
        of.complete()
    assert [delivery.ticket for delivery in told] == [1]
    assert "mine" in caplog.text


def test_the_records_of_a_divided_batch_follow_their_pieces() -> None:
    of = outcome()
    first, second = of.split([0, 4])
    first.base_offset, first.timestamp_runs = 50, [(0, 1)]
    first.complete()
    assert not of.is_complete
    too_large = build_broker_error("Produce", "t-3", 10)
    second.complete(too_large)
    assert of.is_complete
    assert Delivery(of, 3).result(0).offset == 53
    assert Delivery(of, 3).exception(0) is None
    with pytest.raises(TooLarge):
        Delivery(of, 4).result(0)


def test_records_that_changed_places_are_found() -> None:
    of = outcome()
    of.place_by_ticket = {0: 0, 2: 1, 5: 2}
    of.complete()
    assert [Delivery(of, ticket).result().offset for ticket in (0, 2, 5)] == [100, 101, 102]


def test_many_at_once_are_done_when_all_are() -> None:
    parts = [outcome(10), outcome(20)]
    delivery = BatchDelivery("t", [(parts[0], range(3)), (parts[1], [5, 7])])
    parts[0].complete()
    assert not delivery.done()
    with pytest.raises(TimedOut):
        delivery.result(0.01)
    parts[1].complete()
    metadata = delivery.result()
    assert metadata.count == 5
    assert [(p.first_offset, list(p.rows)) for p in metadata.parts] == [(10, [0, 1, 2]), (20, [5, 7])]

    async def main() -> int:
        return (await delivery).count

    assert asyncio.run(main()) == 5


def test_many_at_once_fail_with_the_first_that_failed() -> None:
    parts = [outcome(), outcome()]
    delivery = BatchDelivery("t", [(parts[0], [0]), (parts[1], [1])])
    parts[0].complete()
    parts[1].complete(ClientError("why"))
    with pytest.raises(ClientError, match="why"):
        delivery.result()
