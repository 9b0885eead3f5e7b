"""Variable-length integers and strings: the parts of the wire format that `struct` cannot express.

Readers take `(buf, at)` and return `(value, next)`; values too short or too long raise `DecodeError`,
never IndexError. Fixed-size numbers are read in place by `struct`.

Source: KIP-482 "Unsigned Varints"; Kafka protocol guide "Protocol Primitive Types".
"""

from typing import Final
from uuid import UUID, SafeUUID

from tallystick.kernel.ids import UINT32_MAX
from tallystick.protocol.errors import DecodeError

Buffer = bytes | bytearray | memoryview


_VARINT_BYTES_MAX: Final = 5
_set_attribute: Final = object.__setattr__
_UNKNOWN_SAFETY: Final = SafeUUID.unknown

NIL: Final = UUID(int=0)
SHORT_UVARINTS: Final = tuple(bytes((n,)) for n in range(128))


def read_uvarint(buf: Buffer, at: int) -> tuple[int, int]:
    """Read an unsigned 32-bit varint, low seven bits first. Unrolled: every compact length uses it."""
    try:
        byte = buf[at]
        if byte < 0x80:
            return byte, at + 1
        value = byte & 0x7F
        byte = buf[at + 1]
        if byte < 0x80:
            return value | byte << 7, at + 2
        value |= (byte & 0x7F) << 7
        byte = buf[at + 2]
        if byte < 0x80:
            return value | byte << 14, at + 3
    except IndexError:
        raise DecodeError(
            f"varint at byte {at} does not end within the {len(buf)} bytes of the frame"
        ) from None
    return _read_long_uvarint(buf, at)


def _read_long_uvarint(buf: Buffer, at: int) -> tuple[int, int]:
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
    """Make a UUID from 16 bytes, without the checks of UUID's constructor that `struct` makes needless."""
    value = int.from_bytes(raw, "big")
    if value == 0:
        return NIL
    uuid = UUID.__new__(UUID)
    _set_attribute(uuid, "int", value)
    _set_attribute(uuid, "is_safe", _UNKNOWN_SAFETY)
    return uuid
