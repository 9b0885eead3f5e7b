"""Run a test on a loop of its own, and let what is ready there run."""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from functools import wraps
from typing import Any


class Turn:
    """An awaitable that lets everything that is ready run once."""

    def __await__(self) -> Generator[None, None, None]:
        yield


def on_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return run
