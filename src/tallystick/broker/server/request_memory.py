"""Accounting of memory for requests that are being received, decoded, or waiting for a coordinator.

The broker has one limit, `queued.max.request.bytes`, and half of it applies to each host, so that a host that
exhausts its half leaves the rest to others. Allocated memory counts, not the length that a frame announces.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class RequestMemory:
    """The account. Lives on the loop; shared by the server and the handlers of one broker."""

    def __init__(self, bytes_max: Callable[[], int]) -> None:
        self._bytes_max = bytes_max
        self.used_bytes = 0
        self._bytes_by_host: Counter[str] = Counter()
        self.release_listeners: list[
            Callable[[], None]
        ] = []  # called when memory of a host that was short is returned

    def acquire(self, host: str, size: int) -> None:
        """Record memory taken for a host."""
        self.used_bytes += size
        self._bytes_by_host[host] += size

    def release(self, host: str, size: int) -> None:
        """Record memory given back."""
        short = self.is_short_for(host)
        self.used_bytes -= size
        self._bytes_by_host[host] -= size
        if not self._bytes_by_host[host]:
            del self._bytes_by_host[host]
        if short and size:
            for tell in self.release_listeners:
                tell()

    @contextmanager
    def acquired(self, host: str, size: int) -> Iterator[None]:
        """Take memory for the duration of the block."""
        self.acquire(host, size)
        try:
            yield
        finally:
            self.release(host, size)

    @property
    def is_short(self) -> bool:
        """Whether the limit of the broker is exceeded."""
        return self.used_bytes > self._bytes_max()

    def is_short_for(self, host: str) -> bool:
        """Return whether this host may take nothing more."""
        return self.is_short or self._bytes_by_host[host] > self._bytes_max() // 2
