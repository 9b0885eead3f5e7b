"""A single thread for blocking, infrequent work: metadata, creating and removing files."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class BlockingWorker:
    """Thread that runs calls one after another, off the loop."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="tallystick-worker")

    async def run(self, call: Callable[[], T]) -> T:
        """Wait for `call`, which runs in the thread after all earlier calls."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, call)

    def close(self) -> None:
        """Wait for the calls under way."""
        self._executor.shutdown()
