"""Responses in the transports that the peers have not read yet [SRV-2].

A Fetch is answered with less while there is much of it (`visibility.limit_response_bytes`), and a large
request waits for room. Both rely on peers that read: above `queued.max.response.bytes` the connections that
do not are closed, the one with the most unsent bytes first.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from tallystick.kernel.limits import KIB

# A peer that took less than this in the time of patience does not read.
TAKEN_BYTES_MIN: Final = 64 * KIB


class HandedOver:
    """The bytes that a connection handed to its transport, which keeps those of one call until all are sent.

    uvloop's does, whose `get_write_buffer_size` counts the bytes that are left alone; so an answer of
    six megabytes of which the kernel took four is two megabytes to it, and six in memory.
    """

    __slots__ = ("_ends", "_handed_bytes", "_held_from")

    def __init__(self) -> None:
        self._handed_bytes = 0
        self._held_from = 0
        self._ends: deque[int] = deque()  # of each call, in bytes handed over before and in it

    def add(self, size: int) -> None:
        """Record the bytes of one call."""
        self._handed_bytes += size
        self._ends.append(self._handed_bytes)

    def count_sent(self, unsent_bytes: int) -> int:
        """Return the bytes that the peer's side has taken, given those that are left of all."""
        return self._handed_bytes - unsent_bytes

    def count_held(self, unsent_bytes: int) -> int:
        """Return the bytes of the calls that are not sent whole, given those that are left of all."""
        sent_bytes = self.count_sent(unsent_bytes)
        while self._ends and self._ends[0] <= sent_bytes:
            self._held_from = self._ends.popleft()
        return self._handed_bytes - self._held_from


class UnsentConnection(Protocol):
    """A connection, as far as its unsent bytes are concerned."""

    handed_over: HandedOver

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the transport has not sent to the peer."""
        ...

    def close(self, why: str) -> None:
        """Log and close immediately; unsent answers are lost."""
        ...


class UnsentAnswers:
    """The unsent bytes of all connections. Lives on the loop; owned by the server."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        bytes_max: Callable[[], int],
        patience_s: float,
        on_room: Callable[[], None],
    ) -> None:
        """Create an account of nothing.

        Args:
            patience_s: a peer that takes too little for so long does not read.
            on_room: called soon after bytes were handed over, and for as long as many are unsent.
        """
        self._loop = loop
        self._bytes_max = bytes_max
        self._patience_s = patience_s
        self._on_room = on_room
        # Connections that may have unsent bytes; `total` drops those that have none.
        self._senders: set[UnsentConnection] = set()
        # While many bytes are unsent: how many a connection had taken when it last took enough, and when.
        self._progress: dict[UnsentConnection, tuple[int, float]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, connection: UnsentConnection) -> None:
        """Record that a connection handed bytes to its transport.

        Soon they are counted, even if no peer is so slow that its transport says so: many with a little each
        are as much.
        """
        self._senders.add(connection)
        if self._timer is None:
            self._timer = self._loop.call_later(self._patience_s / 3, self._check_again)

    def discard(self, connection: UnsentConnection) -> None:
        """Forget a connection that is lost, or has nothing unsent."""
        self._senders.discard(connection)
        self._progress.pop(connection, None)

    def stop(self) -> None:
        """Check nothing more."""
        if self._timer is not None:
            self._timer.cancel()

    @property
    def total(self) -> int:
        """Memory of answers that peers have not taken yet.

        Cost: linear in connections that sent since the last call.
        """
        total = 0
        for connection in tuple(self._senders):
            size = _count_held(connection)
            total += size
            if not size:
                self.discard(connection)
        return total

    def check(self) -> None:
        """Close who does not read while there is too much; look again soon while there is much.

        Order: called when a peer begins to be slow, and soon after anything was sent. Cost: as `total`.
        """
        total, bytes_max, now_s = self.total, self._bytes_max(), self._loop.time()
        if 2 * total <= bytes_max:
            self._progress.clear()
            return
        if self._timer is None:
            self._timer = self._loop.call_later(self._patience_s / 3, self._check_again)
        sizes = sorted(((_count_held(c), c) for c in self._senders), key=lambda each: each[0], reverse=True)
        for size, connection in sizes:
            stuck_s = self._measure(connection, now_s)
            if total > bytes_max and stuck_s >= self._patience_s:
                connection.close(
                    f"memory for answers is short, and of {size} bytes its client took too few in"
                    f" {stuck_s:.0f} s"
                )
                total -= size

    def _measure(self, connection: UnsentConnection, now_s: float) -> float:
        """Return for how long a connection has taken too little, however much came meanwhile."""
        sent_bytes = connection.handed_over.count_sent(connection.unsent_bytes)
        since_bytes, since_s = self._progress.setdefault(connection, (sent_bytes, now_s))
        if sent_bytes >= since_bytes + TAKEN_BYTES_MIN:
            self._progress[connection] = sent_bytes, now_s
            return 0.0
        return now_s - since_s

    def _check_again(self) -> None:
        self._timer = None
        self.check()
        self._on_room()


def _count_held(connection: UnsentConnection) -> int:
    return connection.handed_over.count_held(connection.unsent_bytes)


class _ClosedTransport(asyncio.Transport):
    """The transport of a closed connection: it has nothing to send and takes nothing.

    A connection that keeps its own transport is part of a cycle: over TLS the event loop's protocol keeps the
    connection's bound methods, and is kept by its transport. Such cycles wait for the garbage collector,
    which counts objects and not bytes: thousands of closed connections kept their buffers, 256 KiB over TLS.
    """

    def abort(self) -> None: ...

    def close(self) -> None: ...

    def is_closing(self) -> bool:
        return True

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: object) -> None: ...

    def writelines(self, list_of_data: object) -> None: ...


CLOSED_TRANSPORT: Final = _ClosedTransport()
