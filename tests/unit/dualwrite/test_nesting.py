"""A block of a pool inside another one of the same caller; tasks, threads and generators are told apart."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import copy_context

import pytest

from tallystick.client.errors import IllegalState
from tallystick.dualwrite.block.nesting import refuse_nested

POOL, OTHER = object(), object()


def opens(pool: object = POOL) -> bool:
    try:
        with refuse_nested(pool):
            return True
    except IllegalState:
        return False


def test_a_block_inside_another_is_refused_until_that_has_ended() -> None:
    with refuse_nested(POOL):
        with pytest.raises(IllegalState, match="would wait for its locks"), refuse_nested(POOL):
            pass
        assert opens(OTHER)
        assert not opens(), "neither a refusal nor another pool's end has ended the first"
    assert opens()


def test_a_block_that_failed_has_ended() -> None:
    with pytest.raises(ValueError, match="theirs"), refuse_nested(POOL):
        raise ValueError("theirs")
    assert opens()


def test_a_task_is_a_caller_of_its_own() -> None:
    """One that is created inside a block has an id of its own, and may outlive the block."""

    async def main() -> None:
        async def ask() -> bool:
            return opens()

        with refuse_nested(POOL):
            assert not await ask()
            assert await asyncio.create_task(ask())
            assert await asyncio.to_thread(opens)

    asyncio.run(main())


def test_a_thread_is_a_caller_of_its_own() -> None:
    found: list[bool] = []
    with refuse_nested(POOL):
        thread = threading.Thread(target=copy_context().run, args=(lambda: found.append(opens()),))
        thread.start()
        thread.join()
    assert found == [True]


def test_a_generator_may_end_in_another_context_than_it_began() -> None:
    """FastAPI runs the beginning and the end of a dependency in copies of the request's context."""

    @contextmanager
    def dependency() -> Iterator[None]:
        with refuse_nested(POOL):
            yield

    given = dependency()
    copy_context().run(given.__enter__)
    assert opens(), "the thread that began it serves another request"
    copy_context().run(given.__exit__, None, None, None)
    assert opens()
