"""The Kafka wire protocol: bytes to values and back, without I/O.

    encode(message, version)           one message as bytes
    encode_parts(message, version)     the same as buffers, record data not copied
    decode(cls, buf, version)          a whole buffer as one message
    decode_prefix(cls, buf, version)   a message at a position, and the position after it

The decoders accept arbitrary input: they return a value or raise DecodeError [WIRE-1].
"""

from tallystick.protocol.codec import decode, decode_prefix, encode, encode_parts
from tallystick.protocol.errors import DecodeError, EncodeError, UnsupportedField, UnsupportedVersion

__all__ = [
    "DecodeError",
    "EncodeError",
    "UnsupportedField",
    "UnsupportedVersion",
    "decode",
    "decode_prefix",
    "encode",
    "encode_parts",
]
