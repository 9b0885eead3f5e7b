"""Length-prefixed framing: an int32 length, then that many bytes.

Pure and incremental: the owner of a connection keeps the buffer and asks for complete frames in it. A length
above the limit is refused as soon as its four bytes are there, before anything is read or allocated for it.
"""

from collections.abc import Iterable
from struct import Struct
from typing import Final

from tallystick.kernel.ids import INT32_MAX
from tallystick.kernel.value import frozen
from tallystick.protocol.errors import DecodeError, EncodeError
from tallystick.protocol.primitives import Buffer

LENGTH_BYTES: Final = 4
_LENGTH: Final = Struct(">i")


class FrameTooLarge(DecodeError):
    """The peer announced a frame above the limit; the connection cannot be used any further.

    Attributes: length, limit (both in bytes, without the prefix).
    """

    def __init__(self, length: int, limit: int) -> None:
        super().__init__(length, limit)
        self.length, self.limit = length, limit

    def __str__(self) -> str:
        return f"a frame of {self.length} bytes, above the limit of {self.limit}"


@frozen
class Frame:
    """The position of a complete frame in a buffer: its body is `buf[start:end]`."""

    start: int
    end: int


@frozen
class PartialFrame:
    """No complete frame yet. `size` is the frame's size with its prefix; 4 while that is unknown."""

    size: int


def find_frame(buf: Buffer, at: int, filled: int, limit: int) -> Frame | PartialFrame:
    """Return the frame whose prefix is at `at`, in a buffer that holds data up to `filled`.

    Raises: FrameTooLarge; DecodeError for a negative length.
    """
    start = at + LENGTH_BYTES
    if start > filled:
        return PartialFrame(LENGTH_BYTES)
    (length,) = _LENGTH.unpack_from(buf, at)
    if length < 0:
        raise DecodeError(f"a frame of {length} bytes")
    if length > limit:
        raise FrameTooLarge(length, limit)
    end = start + length
    return Frame(start, end) if end <= filled else PartialFrame(LENGTH_BYTES + length)


class FrameReader:
    """A reader of frames from chunks, for callers without a buffer of their own. One per connection.

    Never holds more than one frame and the chunk that completed it.
    """

    __slots__ = ("_buffer", "_limit")

    def __init__(self, limit: int) -> None:
        self._buffer = bytearray()
        self._limit = limit

    def feed(self, chunk: Buffer) -> list[bytes]:
        """Return the bodies of frames completed by `chunk`, in order.

        Raises: FrameTooLarge, DecodeError; frames completed before the bad one are lost with it.
        """
        self._buffer += chunk
        bodies: list[bytes] = []
        at = 0
        while isinstance(found := find_frame(self._buffer, at, len(self._buffer), self._limit), Frame):
            bodies.append(bytes(self._buffer[found.start : found.end]))
            at = found.end
        del self._buffer[:at]
        return bodies


def add_length_prefix(parts: Iterable[Buffer]) -> list[Buffer]:
    """Return the parts of a body with the length prefix in front, not joined."""
    body = list(parts)
    length = sum(len(part) for part in body)
    if length > INT32_MAX:
        raise EncodeError(f"a frame of {length} bytes, above {INT32_MAX}")
    return [_LENGTH.pack(length), *body]
