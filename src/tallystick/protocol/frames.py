"""Length-prefixed framing: an int32 length, then that many bytes.

Pure and incremental: `ReceiveBuffer` takes the bytes of one connection in whatever pieces they arrive, and
returns complete frames. A length above the limit is refused as soon as its four bytes are there, before
anything is read or allocated for it.
"""

from collections.abc import Iterable
from struct import Struct
from typing import Final, Protocol

from tallystick.protocol.errors import DecodeError

LENGTH_BYTES: Final = 4
HEAD_BYTES: Final = 2  # of a large frame, before memory is allocated for it: the API key of a request
_LENGTH: Final = Struct(">i")


Buffer = bytes | bytearray | memoryview
# The most that a record of TLS carries: more does not become one, and costs more to copy than to send alone.
JOINED_BYTES_MIN: Final = 16 * 1024


def join_small(parts: Iterable[Buffer]) -> list[Buffer]:
    """Join neighbours that are small. The bytes stay the same, and in their order.

    Each part that is written costs a record of TLS, encrypted and decrypted on its own, or an element of a
    system call. A part of at least `JOINED_BYTES_MIN` is left as it is, without a copy.
    """
    joined: list[Buffer] = []
    small: list[Buffer] = []
    size = 0
    for part in parts:
        if len(part) < JOINED_BYTES_MIN:
            small.append(part)
            size += len(part)
            if size < JOINED_BYTES_MIN:
                continue
        if small:
            joined.append(small[0] if len(small) == 1 else b"".join(small))
            small, size = [], 0
        if len(part) >= JOINED_BYTES_MIN:
            joined.append(part)
    if small:
        joined.append(small[0] if len(small) == 1 else b"".join(small))
    return joined


class InvalidFrameLength(DecodeError):
    """The peer announced a frame that is empty or above the limit; the connection cannot be used any further.

    Attributes: length, limit (both in bytes, without the prefix).
    """

    def __init__(self, length: int, limit: int) -> None:
        super().__init__(length, limit)
        self.length, self.limit = length, limit

    def __str__(self) -> str:
        return f"a frame of {self.length} bytes; 1 to {self.limit} are allowed"


class LargeFrameMemory(Protocol):
    """Memory for the frames of one connection that do not fit into its receive buffer."""

    def admit(self, size: int, received: memoryview) -> int:
        """Return the number of bytes to allocate at first. Raise an exception to refuse the frame.

        Args:
            size: length of the frame, without its prefix.
            received: the bytes of it that have arrived, at least `HEAD_BYTES`.
        """
        ...

    def resize(self, change: int) -> None:
        """Record that the memory for the frame grew by so many bytes, or was given up if negative."""
        ...


class Preallocation:
    """A LargeFrameMemory that keeps no account: each frame begins with the same number of bytes."""

    def __init__(self, initial_bytes: int) -> None:
        self._initial_bytes = initial_bytes

    def admit(self, size: int, received: memoryview) -> int:
        return self._initial_bytes

    def resize(self, change: int) -> None:
        pass


class ReceiveBuffer:
    """The bytes received on one connection, as frames. Owned by the connection; does no input or output.

    Each time bytes arrive: read into `get_writable`, report them with `add`, then handle `next_frame` and
    `consume` it until there is none; `take_frame` does both and returns a frame that may be kept.

    Small frames are cut out of one buffer of fixed size in place. A frame that does not fit gets a buffer of
    its own, which is read into directly and doubles as its bytes arrive: announcing many bytes takes no
    memory, and at no time is more than twice what has arrived allocated, or what was admitted at first.
    """

    __slots__ = (
        "_buffer",
        "_end",
        "_frame_bytes_max",
        "_large",
        "_large_filled",
        "_large_size",
        "_memory",
        "_next_start",
        "_start",
        "_view",
    )

    def __init__(self, size: int, frame_bytes_max: int, memory: LargeFrameMemory) -> None:
        """Create an empty buffer.

        Args:
            size: bytes of the buffer for small frames, prefixes included.
            frame_bytes_max: largest length of a frame, without its prefix.
        """
        self._buffer = bytearray(size)
        self._view = memoryview(self._buffer)
        self._frame_bytes_max = frame_bytes_max
        self._memory = memory
        self._start = self._end = 0  # the bytes that are not consumed
        self._next_start = 0  # end of the frame that `next_frame` returned
        self._large: bytearray | None = None
        self._large_filled = self._large_size = 0

    # --------------------------------------------------------------------- receiving

    def get_writable(self) -> memoryview:
        """Return where the next bytes belong; empty if `is_full`. Frames cut before are no longer valid."""
        if self._large is not None:
            return memoryview(self._large)[self._large_filled :]
        if self._start:
            rest = self._end - self._start
            self._view[:rest] = self._view[self._start : self._end]
            self._start, self._end = 0, rest
        return self._view[self._end :]

    def add(self, size: int) -> None:
        """Take over the bytes that were written to the start of `get_writable`."""
        large = self._large
        if large is None:
            self._end += size
            return
        self._large_filled += size
        if self._large_filled == len(large) < self._large_size:
            grown = bytearray(min(2 * len(large), self._large_size))
            grown[: self._large_filled] = large
            self._memory.resize(len(grown) - len(large))
            self._large = grown

    # ------------------------------------------------------------------------ frames

    def next_frame(self) -> memoryview | None:
        """Return the next frame without its prefix, or None if it is not complete.

        A small frame is valid until `get_writable` is called, a large one for as long as it is kept.

        Raises: InvalidFrameLength; what `admit` raises.
        """
        if self._large is not None:
            return memoryview(self._large) if self._large_filled == self._large_size else None
        first = self._start + LENGTH_BYTES
        received = self._end - first
        if received < 0:
            return None
        (size,) = _LENGTH.unpack_from(self._buffer, self._start)
        if not 0 < size <= self._frame_bytes_max:
            raise InvalidFrameLength(size, self._frame_bytes_max)
        if size <= received:
            self._next_start = first + size
            return self._view[first : self._next_start]
        if size + LENGTH_BYTES > len(self._buffer) and received >= HEAD_BYTES:
            self._begin_large(size, self._view[first : self._end])
        return None

    def consume(self) -> None:
        """Remove the frame that `next_frame` returned."""
        if self._large is not None:
            self.discard_large()
        else:
            self._start = self._next_start

    def take_frame(self) -> bytes | bytearray | None:
        """Remove the next frame and return it for good: a copy of a small one, the buffer of a large one."""
        frame = self.next_frame()
        if frame is None:
            return None
        body = bytes(frame) if self._large is None else self._large
        self.consume()
        return body

    def _begin_large(self, size: int, received: memoryview) -> None:
        # At least the small buffer's size: what has arrived must fit.
        capacity = min(size, max(self._memory.admit(size, received), len(self._buffer)))
        self._large = bytearray(capacity)
        self._memory.resize(capacity)
        self._large[: len(received)] = received
        self._large_filled, self._large_size = len(received), size
        self._start = self._end = 0

    def discard_large(self) -> None:
        """Give up the memory of a large frame, complete or not."""
        if self._large is not None:
            size, self._large = len(self._large), None
            self._memory.resize(-size)

    # ------------------------------------------------------------------------- state

    @property
    def is_full(self) -> bool:
        """Whether a frame must be consumed before more bytes can be received."""
        if self._large is not None:
            return self._large_filled == self._large_size
        return self._end - self._start == len(self._buffer)

    @property
    def has_large(self) -> bool:
        """Whether a large frame is being received, or complete and not consumed."""
        return self._large is not None

    @property
    def is_receiving_large(self) -> bool:
        return self._large is not None and self._large_filled < self._large_size

    @property
    def announced_bytes(self) -> int:
        """Length of the large frame that is being received; 0 without one."""
        return self._large_size if self.is_receiving_large else 0

    @property
    def large_received_bytes(self) -> int:
        """Number of bytes of the latest large frame that have arrived."""
        return self._large_filled

    @property
    def unconsumed(self) -> memoryview:
        """The bytes in the buffer for small frames that are not consumed, prefixes included."""
        return self._view[self._start : self._end]
