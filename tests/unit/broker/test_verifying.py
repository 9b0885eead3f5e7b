"""Turns: batches of one producer enter a partition in the order they came in."""

import asyncio

from tests.support.leading import Leader, leader
from tests.support.memory_broker import on_a_loop

from tallystick.broker.handlers.data.verification import AppendTurn

PRODUCER = 7


def three(made: Leader) -> tuple[AppendTurn, AppendTurn, AppendTurn]:
    partition = made.partition()
    return AppendTurn(partition, PRODUCER), AppendTurn(partition, PRODUCER), AppendTurn(partition, PRODUCER)


def has_arrived(turn: AppendTurn) -> bool:
    return turn._predecessor is None or turn._predecessor.done()


@on_a_loop
async def test_each_comes_when_the_one_before_has_left() -> None:
    async with leader() as made:
        first, second, third = three(made)
        assert [has_arrived(turn) for turn in (first, second, third)] == [True, False, False]
        coming = asyncio.ensure_future(second.wait())
        await asyncio.sleep(0)
        assert not coming.done()
        first.release()
        await coming
        assert [has_arrived(turn) for turn in (second, third)] == [True, False]
        second.release()
        third.release()
        assert made.partition().append_turns == {}


@on_a_loop
async def test_who_gives_up_does_not_let_others_past_those_ahead() -> None:
    async with leader() as made:
        first, second, third = three(made)
        second.release()
        second.release()
        assert not has_arrived(third)
        first.release()
        await third.wait()
        third.release()
        assert made.partition().append_turns == {}


@on_a_loop
async def test_giving_up_waiting_takes_no_others_place_away() -> None:
    """A cancelled wait must not cancel what the others wait for, too."""
    async with leader() as made:
        first, second, third = three(made)
        coming = asyncio.ensure_future(second.wait())
        await asyncio.sleep(0)
        coming.cancel()
        await asyncio.gather(coming, return_exceptions=True)
        second.release()
        assert not has_arrived(third)
        first.release()
        await third.wait()


@on_a_loop
async def test_producers_and_partitions_do_not_wait_for_each_other() -> None:
    async with leader() as made:
        turns = [
            AppendTurn(made.partition(0), PRODUCER),
            AppendTurn(made.partition(1), PRODUCER),
            AppendTurn(made.partition(0), 8),
        ]
        assert all(has_arrived(turn) for turn in turns)
