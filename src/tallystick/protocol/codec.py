"""The functions that encode and decode messages."""

from typing import Final, TypeVar

from tallystick.protocol.compile import DECODE_MEMORY_BYTES, get_decoder, get_encoder
from tallystick.protocol.errors import DecodeError
from tallystick.protocol.primitives import Buffer

M = TypeVar("M")

# Record data of this size or more is passed on uncopied; below, a copy is cheaper than another buffer.
_JOIN_BELOW_BYTES: Final = 4096
_JOIN_AT_A_TIME: Final = 8192


def encode(message: object, version: int) -> bytes:
    """Encode a message, without header or frame length.

    Raises: UnsupportedField when a field holds a value that `version` cannot carry; UnsupportedVersion;
        EncodeError for a number or a string that does not fit its type.
    """
    return _join(get_encoder(type(message), version)(message))


def encode_parts(message: object, version: int) -> list[bytes | memoryview]:
    """Encode a message as a few buffers with the bytes of `encode`: large record data is not copied."""
    parts: list[bytes | memoryview] = []
    small: list[Buffer] = []
    for part in get_encoder(type(message), version)(message):
        if len(part) < _JOIN_BELOW_BYTES:
            small.append(part)
            continue
        if small:
            parts.append(_join(small))
            small.clear()
        parts.append(memoryview(part) if isinstance(part, bytearray) else part)
    if small:
        parts.append(_join(small))
    return parts


def _join(parts: list[Buffer]) -> bytes:
    """Return the parts as one: CPython's `join` takes 80 bytes for each of those it is given at a time."""
    if len(parts) > _JOIN_AT_A_TIME:
        starts = range(0, len(parts), _JOIN_AT_A_TIME)
        parts = [b"".join(parts[start : start + _JOIN_AT_A_TIME]) for start in starts]
    return b"".join(parts)


def decode(cls: type[M], buf: Buffer, version: int, *, room: int = DECODE_MEMORY_BYTES) -> M:
    """Decode a whole buffer as one message; record data stays a view of `buf`.

    Args:
        room: memory that counted elements may take, besides four times the bytes they are read from.
    Raises: DecodeError, also for bytes left over; UnsupportedVersion.
    """
    view = memoryview(buf)
    message: M
    message, end = get_decoder(cls, version)(view, 0, room)
    if end != len(view):
        raise DecodeError(
            f"{cls.__name__} v{version}: {len(view) - end} of {len(view)} bytes left over after the message"
        )
    return message


def decode_prefix(
    cls: type[M], buf: Buffer, version: int, at: int = 0, *, room: int = DECODE_MEMORY_BYTES
) -> tuple[M, int]:
    """Decode a message that starts at `at`; return it and the position after it.

    Args:
        room: memory that counted elements may take, besides four times the bytes they are read from.
    Raises: as `decode`.
    """
    return get_decoder(cls, version)(memoryview(buf), at, room)
