"""Memory for requests: what is being received, what waits to be decoded, what waits for a coordinator.

One sum for the broker, `queued.max.request.bytes`, and half of it for one host, so that a host that uses up
its half leaves others theirs. What counts is memory that was taken, not what four bytes of length promise.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class RequestMemory:
    """The account. Lives on the loop; shared by the server and the handlers of one broker."""

    def __init__(self, bytes_max: Callable[[], int]) -> None:
        self._bytes_max = bytes_max
        self.bytes = 0
        self._of_host: Counter[str] = Counter()
        self.given_back: list[Callable[[], None]] = []  # called when it was short and is so no more

    def take(self, host: str, size: int) -> None:
        """Note memory taken for a host."""
        self.bytes += size
        self._of_host[host] += size

    def give(self, host: str, size: int) -> None:
        """Note memory given back."""
        short = self.is_short_for(host)
        self.bytes -= size
        self._of_host[host] -= size
        if not self._of_host[host]:
            del self._of_host[host]
        if short and size:
            for tell in self.given_back:
                tell()

    @contextmanager
    def taken(self, host: str, size: int) -> Iterator[None]:
        """Memory that is taken for as long as the block lasts."""
        self.take(host, size)
        try:
            yield
        finally:
            self.give(host, size)

    @property
    def is_short(self) -> bool:
        """Whether nothing more may be taken."""
        return self.bytes > self._bytes_max()

    def is_short_for(self, host: str) -> bool:
        """Whether this host may take nothing more."""
        return self.is_short or self._of_host[host] > self._bytes_max() // 2
