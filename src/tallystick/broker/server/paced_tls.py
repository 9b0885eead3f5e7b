"""TLS that is handed little at a time, so that what it says is unsent is what is unsent [SRV-2].

The TLS transports of asyncio and uvloop do not count what they have encrypted and handed to the socket's
transport: of sixteen megabytes in one call nothing. And the socket's transport is handed all there is
whenever it has sent what it had. So the rest of an answer waits here until the transport wants more.
"""

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Any, Final, cast

from tallystick.broker.server.unsent import CLOSED_TRANSPORT
from tallystick.kernel.limits import KIB
from tallystick.protocol.frames import Buffer

PIECE_BYTES: Final = 64 * KIB


class _PacedTransport(asyncio.Transport):
    """A connection's transport in front of that of TLS.

    Tells the connection to pause whenever anything waits here, and to resume when nothing does.
    """

    def __init__(self, connection: asyncio.BufferedProtocol) -> None:
        self.tls: asyncio.Transport = CLOSED_TRANSPORT
        self.is_tls_full = False
        self._connection = connection
        self._pieces: deque[memoryview] = deque()
        self._pieces_bytes = 0
        self._is_paused = self._is_close_due = False

    def hand_over(self) -> None:
        """Hand over what TLS takes now, and tell the connection what that changes."""
        while self._pieces and not self.is_tls_full and not self.tls.is_closing():
            piece = self._pieces.popleft()
            self._pieces_bytes -= len(piece)
            self.tls.write(piece)  # may set `is_tls_full`
        if self._is_close_due and not self._pieces:
            self.tls.close()
        elif self._is_paused != bool(self._pieces):
            self._is_paused = not self._is_paused
            (self._connection.pause_writing if self._is_paused else self._connection.resume_writing)()

    def lose(self) -> None:
        """Let go of a TLS that is lost, as it keeps what keeps this, and of what it was to be handed."""
        self.tls = CLOSED_TRANSPORT
        self._pieces.clear()
        self._pieces_bytes = 0

    def write(self, data: Buffer) -> None:
        self.writelines((data,))

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        for data in list_of_data:
            view = memoryview(data)
            self._pieces += (view[at : at + PIECE_BYTES] for at in range(0, len(view), PIECE_BYTES))
            self._pieces_bytes += len(view)
        self.hand_over()

    def get_write_buffer_size(self) -> int:
        return self._pieces_bytes + self.tls.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing: the connection pauses when anything waits."""

    def close(self) -> None:
        """Close when all is handed over."""
        self._is_close_due = True
        self.hand_over()

    def abort(self) -> None:
        self.tls.abort()

    def is_closing(self) -> bool:
        return self._is_close_due or self.tls.is_closing()

    def pause_reading(self) -> None:
        self.tls.pause_reading()

    def resume_reading(self) -> None:
        self.tls.resume_reading()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self.tls.get_extra_info(name, default)


class PacedTls(asyncio.BufferedProtocol):
    """The protocol of a TLS transport in place of a connection, to which it passes on what happens."""

    def __init__(self, connection: asyncio.BufferedProtocol) -> None:
        self._connection = connection
        self._paced = _PacedTransport(connection)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transport has the methods of asyncio.Transport and not the type.
        self._paced.tls = cast(asyncio.Transport, transport)
        self._paced.tls.set_write_buffer_limits(high=PIECE_BYTES)
        self._connection.connection_made(self._paced)

    def connection_lost(self, exc: Exception | None) -> None:
        self._paced.lose()
        self._connection.connection_lost(exc)

    def get_buffer(self, sizehint: int) -> memoryview:
        return cast(memoryview, self._connection.get_buffer(sizehint))

    def buffer_updated(self, nbytes: int) -> None:
        self._connection.buffer_updated(nbytes)

    def eof_received(self) -> bool | None:
        return self._connection.eof_received()

    def pause_writing(self) -> None:
        self._paced.is_tls_full = True

    def resume_writing(self) -> None:
        self._paced.is_tls_full = False
        self._paced.hand_over()
