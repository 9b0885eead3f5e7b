"""Variable-length integers and strings: the parts of the wire format that `struct` cannot express.

Readers take `(buf, at)` and return `(value, next)`; values too short or too long raise `DecodeError`,
never IndexError. Fixed-size numbers are read in place by `struct`.

Source: KIP-482 "Unsigned Varints"; Kafka protocol guide "Protocol Primitive Types".
"""

from typing import Final
from uuid import UUID

from tallystick.kernel.ids import UINT32_MAX
from tallystick.protocol.errors import DecodeError

Buffer = bytes | bytearray | memoryview

_VARINT_BYTES_MAX: Final = 5

NIL: Final = UUID(int=0)
SHORT_UVARINTS: Final = tuple(bytes((n,)) for n in range(128))


def read_uvarint(buf: Buffer, at: int) -> tuple[int, int]:
    """Read an unsigned 32-bit varint, low seven bits first."""
    value = shift = 0
    for position in range(at, min(at + _VARINT_BYTES_MAX, len(buf))):
        byte = buf[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > UINT32_MAX:
                raise DecodeError(f"varint at byte {at} is {value}; at most {UINT32_MAX} is allowed")
            return value, position + 1
        shift += 7
    raise DecodeError(
        f"varint at byte {at} does not end within {_VARINT_BYTES_MAX} bytes or the frame of {len(buf)}"
    )


def encode_uvarint(value: int) -> bytes:
    """Encode an unsigned varint; the caller guarantees `value >= 0`."""
    if value < 0x80:
        return SHORT_UVARINTS[value]
    out = bytearray()
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def make_uuid(raw: bytes) -> UUID:
    """Return the UUID of 16 bytes; `NIL` itself for zeros, which mean that there is none."""
    return UUID(bytes=raw) if any(raw) else NIL
