"""Length-prefixed framing: an int32 length, then that many bytes.

Pure and incremental: the owner of a connection keeps the buffer and asks for complete frames in it. A length
above the limit is refused as soon as its four bytes are there, before anything is read or allocated for it.
"""

from struct import Struct
from typing import Final

from tallystick.kernel.value import frozen
from tallystick.protocol.errors import DecodeError
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
