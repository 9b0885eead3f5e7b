"""Stands in for the transport of a connection that is closed."""

import asyncio
from typing import Final


class _ClosedTransport(asyncio.Transport):
    """A transport that has nothing to send and takes nothing.

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
