"""The four functions that turn messages into bytes and back."""

from typing import Final, TypeVar

from tallystick.protocol.compile import PURSE_BYTES, decoder, encoder
from tallystick.protocol.errors import DecodeError
from tallystick.protocol.primitives import Buffer

M = TypeVar("M")

# Record data from this size on is handed over as it is; below, copying is cheaper than one more buffer.
_JOIN_BELOW_BYTES: Final = 4096


def encode(message: object, version: int) -> bytes:
    """One message as bytes, without header or frame length.

    Raises: UnsupportedField when a field says more than `version` can carry; UnsupportedVersion;
        EncodeError for a number or a string that does not fit its type.
    """
    return b"".join(encoder(type(message), version)(message))


def encode_parts(message: object, version: int) -> list[bytes | memoryview]:
    """The same bytes as `encode`, as a few buffers: large record data is not copied."""
    parts: list[bytes | memoryview] = []
    small: list[Buffer] = []
    for part in encoder(type(message), version)(message):
        if len(part) < _JOIN_BELOW_BYTES:
            small.append(part)
            continue
        if small:
            parts.append(b"".join(small))
            small.clear()
        parts.append(memoryview(part) if isinstance(part, bytearray) else part)
    if small:
        parts.append(b"".join(small))
    return parts


def decode(cls: type[M], buf: Buffer, version: int, *, room: int = PURSE_BYTES) -> M:
    """A whole buffer as one message; record data stays a view of `buf`.

    Args:
        room: memory that what it counts may take, beside four times the bytes it is read from.
    Raises: DecodeError, also for bytes left over; UnsupportedVersion.
    """
    view = memoryview(buf)
    message: M
    message, end = decoder(cls, version)(view, 0, room)
    if end != len(view):
        raise DecodeError(f"{cls.__name__} v{version}: {len(view) - end} bytes left over of {len(view)}")
    return message


def decode_prefix(
    cls: type[M], buf: Buffer, version: int, at: int = 0, *, room: int = PURSE_BYTES
) -> tuple[M, int]:
    """A message that starts at `at`, and the position behind it.

    Args:
        room: memory that what it counts may take, beside four times the bytes it is read from.
    Raises: as `decode`.
    """
    return decoder(cls, version)(memoryview(buf), at, room)
