"""Turns: batches of one producer enter a partition in the order they came in."""

import asyncio

from tests.support.leading import Leader, leader
from tests.support.memory_broker import on_a_loop

from tallystick.broker.handlers.verification import Turn

PRODUCER = 7


def three(made: Leader) -> tuple[Turn, Turn, Turn]:
    partition = made.partition()
    return Turn(partition, PRODUCER), Turn(partition, PRODUCER), Turn(partition, PRODUCER)


@on_a_loop
async def test_each_comes_when_the_one_before_has_left() -> None:
    async with leader() as made:
        first, second, third = three(made)
        assert [turn.has_come for turn in (first, second, third)] == [True, False, False]
        coming = asyncio.ensure_future(second.come())
        await asyncio.sleep(0)
        assert not coming.done()
        first.leave()
        await coming
        assert [turn.has_come for turn in (second, third)] == [True, False]
        second.leave()
        third.leave()
        assert made.partition().lines == {}


@on_a_loop
async def test_who_gives_up_does_not_let_others_past_those_ahead() -> None:
    async with leader() as made:
        first, second, third = three(made)
        second.leave()
        second.leave()
        assert not third.has_come
        first.leave()
        await third.come()
        third.leave()
        assert made.partition().lines == {}


@on_a_loop
async def test_giving_up_waiting_takes_nobody_s_place_away() -> None:
    """A cancelled wait must not cancel what the others wait for, too."""
    async with leader() as made:
        first, second, third = three(made)
        coming = asyncio.ensure_future(second.come())
        await asyncio.sleep(0)
        coming.cancel()
        await asyncio.gather(coming, return_exceptions=True)
        second.leave()
        assert not third.has_come
        first.leave()
        await third.come()


@on_a_loop
async def test_producers_and_partitions_do_not_wait_for_each_other() -> None:
    async with leader() as made:
        turns = [
            Turn(made.partition(0), PRODUCER),
            Turn(made.partition(1), PRODUCER),
            Turn(made.partition(0), 8),
        ]
        assert all(turn.has_come for turn in turns)
