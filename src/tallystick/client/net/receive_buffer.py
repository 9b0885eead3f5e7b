"""Receive buffer of one connection: cuts what the socket delivers into frames. Pure."""

from collections.abc import Iterator
from typing import Final

from tallystick.kernel.limits import KIB, MIB
from tallystick.protocol.frames import LENGTH_BYTES, Frame, find_frame

READ_BUFFER_BYTES: Final = 64 * KIB
# A frame up to this size gets its buffer at once; the buffer of a larger one grows as bytes arrive.
PREALLOCATED_FRAME_BYTES: Final = 2 * MIB


class _LargeFrame:
    """A frame that does not fit into the read buffer, and so has a buffer of its own."""

    __slots__ = ("_buffer", "_received", "_size")

    def __init__(self, size: int, start: memoryview) -> None:
        """Begin a frame of `size` bytes, of which `start` has arrived."""
        self._size, self._received = size, len(start)
        self._buffer = bytearray(min(size, PREALLOCATED_FRAME_BYTES))
        self._buffer[: self._received] = start

    def get_space(self) -> memoryview:
        return memoryview(self._buffer)[self._received :]

    def receive(self, nbytes: int) -> bytearray | None:
        """Return the frame if it is complete."""
        self._received += nbytes
        if self._received == self._size:
            return self._buffer
        if self._received == len(self._buffer):
            grown = bytearray(min(2 * len(self._buffer), self._size))
            grown[: self._received] = self._buffer
            self._buffer = grown
        return None


class ReceiveBuffer:
    """Received bytes that are not a complete frame yet.

    The owner of the socket reads into `get_space`, then calls `receive`.
    """

    __slots__ = ("_buffer", "_filled", "_frame_bytes_max", "_large_frame", "_view")

    def __init__(self, frame_bytes_max: int) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._buffer = bytearray(READ_BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._filled = 0
        self._large_frame: _LargeFrame | None = None

    @property
    def start(self) -> memoryview:
        """First bytes in the buffer, for error texts."""
        return self._view[: self._filled]

    def get_space(self) -> memoryview:
        """Return the memory for the next bytes."""
        large = self._large_frame
        return self._view[self._filled :] if large is None else large.get_space()

    def receive(self, nbytes: int) -> Iterator[bytes | bytearray]:
        """Take `nbytes` that were written to `get_space`; yield the bodies of the frames they complete.

        Raises: FrameTooLarge, DecodeError; the connection is unusable then.
        """
        large = self._large_frame
        if large is None:
            self._filled += nbytes
            yield from self._split_frames()
        elif (body := large.receive(nbytes)) is not None:
            self._large_frame = None
            yield body

    def _split_frames(self) -> Iterator[bytes]:
        at = 0
        limit = self._frame_bytes_max
        while isinstance(frame := find_frame(self._view, at, self._filled, limit), Frame):
            yield bytes(self._view[frame.start : frame.end])
            at = frame.end
        if frame.size > READ_BUFFER_BYTES:
            start = self._view[at + LENGTH_BYTES : self._filled]
            self._large_frame = _LargeFrame(frame.size - LENGTH_BYTES, start)
            self._filled = 0
        elif at:
            rest = self._filled - at
            self._buffer[:rest] = self._buffer[at : self._filled]
            self._filled = rest
