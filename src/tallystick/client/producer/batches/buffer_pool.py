"""Buffer pool: the bounded memory of one producer (`buffer.memory`), counted and not allocated.

A batch takes its memory when it is sealed and keeps it until its final answer. So the limit may be exceeded
by the open batches, at most one for each partition.

Source: Kafka BufferPool.
"""

import asyncio
import threading
from typing import Final

# Callers that wait for memory are woken together, once this share is free: one by one is slower.
_WAKE_FREE_SHARE: Final = 0.5


class BufferPool:
    """Memory of all sealed batches. Any thread may take and release; waiting is for the engine's loop.

    used_bytes  memory that sealed batches hold
    """

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self.used_bytes = 0
        self._lock = threading.Lock()
        self._waiters: list[asyncio.Future[None]] = []

    @property
    def is_full(self) -> bool:
        return self.used_bytes >= self.total_bytes

    @property
    def available_bytes(self) -> int:
        return max(self.total_bytes - self.used_bytes, 0)

    def take(self, size: int) -> None:
        """Count the bytes of a batch that was sealed."""
        with self._lock:
            self.used_bytes += size

    def release(self, size: int) -> None:
        """Free the bytes of a batch that has its final answer."""
        with self._lock:
            self.used_bytes -= size

    @property
    def waiting_count(self) -> int:
        return len(self._waiters)

    async def wait_for_release(self, timeout_s: float) -> bool:
        """Wait until enough is free for all who wait; return False if the time is over first."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await asyncio.wait((waiter,), timeout=timeout_s)
        finally:
            if not waiter.done():
                self._waiters.remove(waiter)
        return waiter.done()

    def wake_if_free(self) -> None:
        """Wake all waiting callers if enough memory is free."""
        if self._waiters and self.used_bytes <= self.total_bytes * _WAKE_FREE_SHARE:
            self.wake_all()

    def wake_all(self) -> None:
        """Wake all waiting callers."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter.set_result(None)
