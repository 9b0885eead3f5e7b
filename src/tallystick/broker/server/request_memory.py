"""Accounting of memory for requests, from their first byte until they are answered [SRV-4].

The broker has one limit, `queued.max.request.bytes`, and half of it applies to each host, so that a host that
exhausts its half leaves the rest to others. Allocated memory counts, not the length that a frame announces.

A large request takes many times its size once it is decoded and answered. So few of them are worked on at a
time, one of each host, and the others wait with their bytes alone (`RequestMemory.turn`).
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final

from tallystick.kernel.limits import KIB, MIB

# Initial size of a large request's buffer; larger if its connection has sent as much before.
INITIAL_BUFFER_BYTES: Final = 64 * KIB
TRUSTED_BUFFER_BYTES: Final = 2 * MIB
# While memory is short, a connection must send this much of a large request to count as making progress.
PROGRESS_BYTES: Final = 16 * KIB
# So many large requests are worked on at a time. One more does not wait for the disk of another, and there is
# one interpreter for all of them.
TURNS_MAX: Final = 2
# Up to so many times its size is a request as decoded values.
DECODED_FACTOR: Final = 16


def estimate_decoded_bytes(size: int, room: int) -> int:
    """Return the memory that decoding a request of `size` bytes takes, if at most `room` is allowed."""
    return min(DECODED_FACTOR * size, room)


class RequestMemory:
    """The account. Lives on the loop; shared by the server and the handlers of one broker."""

    def __init__(
        self, bytes_max: Callable[[], int], has_room_for_answers: Callable[[], bool] = lambda: True
    ) -> None:
        """Create an empty account.

        Args:
            has_room_for_answers: whether a large request may be worked on; when that changes, `grant_turns`
                is called.
        """
        self._bytes_max = bytes_max
        self._has_room_for_answers = has_room_for_answers
        self.used_bytes = 0
        self._working_hosts: set[str] = set()
        # By host, the one that had a turn last at the end.
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        self._bytes_by_host: Counter[str] = Counter()
        self.release_listeners: list[
            Callable[[], None]
        ] = []  # called when a host that was short returns memory or ends a turn

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
            self._tell_listeners()

    def _tell_listeners(self) -> None:
        for tell in self.release_listeners:
            tell()

    @contextmanager
    def acquired(self, host: str, size: int) -> Iterator[None]:
        """Acquire memory for the duration of the block."""
        self.acquire(host, size)
        try:
            yield
        finally:
            self.release(host, size)

    # ----------------------------------------------------------- turns of large requests

    @asynccontextmanager
    async def turn(self, host: str, decoded_bytes: int = 0) -> AsyncIterator["LargeRequestTurn"]:
        """Wait for this host's turn to have a large request worked on; the block is the turn.

        Hosts have it one after the other, so that one with very many requests does not hold up the others.

        Args:
            decoded_bytes: memory that counts from the call until the end of the turn.
        """
        self.acquire(host, decoded_bytes)
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(host, deque()).append(granted)
        self.grant_turns()
        try:
            await granted
        except asyncio.CancelledError:
            if granted.cancelled():
                self.grant_turns()
            else:  # it was granted at the same moment
                self._end_turn(host)
            self.release(host, decoded_bytes)
            raise

        def end() -> None:
            self._end_turn(host)
            self.release(host, decoded_bytes)

        turn = LargeRequestTurn(end)
        try:
            yield turn
        finally:
            turn.end()

    def grant_turns(self) -> None:
        """Start the waiters that fit."""
        for host in tuple(self._waiting):
            queue = self._waiting[host]
            while queue and queue[0].done():  # its client is gone
                queue.popleft()
            if queue and host not in self._working_hosts and self._has_turn():
                queue.popleft().set_result(None)
                self._working_hosts.add(host)
                self._waiting[host] = self._waiting.pop(host)  # behind the others
            if not queue:
                del self._waiting[host]

    def _has_turn(self) -> bool:
        return len(self._working_hosts) < TURNS_MAX and self._has_room_for_answers()

    def _end_turn(self, host: str) -> None:
        self._working_hosts.discard(host)
        self.grant_turns()
        if self.is_short_for(host) and not self.has_large_of(host):
            self._tell_listeners()  # its next large request may be received

    def has_large_of(self, host: str) -> bool:
        """Return whether a large request of this host waits or is worked on."""
        return host in self._working_hosts or host in self._waiting

    # -------------------------------------------------------------------------- shortage

    @property
    def is_crowded(self) -> bool:
        """Whether half of the limit of the broker is taken."""
        return 2 * self.used_bytes > self._bytes_max()

    @property
    def is_short(self) -> bool:
        """Whether the limit of the broker is exceeded."""
        return self.used_bytes > self._bytes_max()

    def is_short_for(self, host: str) -> bool:
        """Return whether this host may take nothing more."""
        return self.is_short or self._bytes_by_host[host] > self._bytes_max() // 2


class LargeRequestTurn:
    """One request's turn. `end` may be called early, by what then waits for other clients."""

    __slots__ = ("_give_back",)

    def __init__(self, give_back: Callable[[], None]) -> None:
        self._give_back: Callable[[], None] | None = give_back

    def end(self) -> None:
        """Start the next one. Calling it again does nothing."""
        give_back, self._give_back = self._give_back, None
        if give_back is not None:
            give_back()


class LargeRequestMemory:
    """The share of one connection: its large requests, one at a time. A `LargeFrameMemory`."""

    __slots__ = ("_account", "_check_request", "_get_time_s", "_host", "_initial_bytes", "_progress")

    def __init__(
        self,
        account: RequestMemory,
        host: str,
        check_request: Callable[[int, memoryview], None],
        get_time_s: Callable[[], float],
    ) -> None:
        """Create a share of nothing.

        Args:
            check_request: is given the size of a request and its first bytes; raises to refuse it.
        """
        self._account = account
        self._host = host
        self._check_request = check_request
        self._get_time_s = get_time_s
        self._initial_bytes = INITIAL_BUFFER_BYTES
        self._progress = (0, 0.0)  # bytes of the request received, and when

    def admit(self, size: int, received: memoryview) -> int:
        """Return the initial size of the buffer: what the connection has sent before, if there is room."""
        self._check_request(size, received)
        self._progress = (len(received), self._get_time_s())
        return INITIAL_BUFFER_BYTES if self._account.is_crowded else self._initial_bytes

    def resize(self, change: int) -> None:
        """Record memory taken or given back."""
        if change > 0:
            self._account.acquire(self._host, change)
        else:
            self._initial_bytes = min(-change, TRUSTED_BUFFER_BYTES)
            self._account.release(self._host, -change)

    def record_progress(self, received_bytes: int) -> None:
        """Start measuring again: the peer could not send, or has sent enough."""
        self._progress = (received_bytes, self._get_time_s())

    def is_stuck(self, received_bytes: int, patience_s: float) -> bool:
        """Return whether less than `PROGRESS_BYTES` arrived in `patience_s`."""
        since_bytes, since_s = self._progress
        if received_bytes >= since_bytes + PROGRESS_BYTES:
            self.record_progress(received_bytes)
            return False
        return self._get_time_s() - since_s >= patience_s
