"""Variable-length integers and UUIDs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.protocol import DecodeError
from tallystick.protocol.primitives import (
    NIL,
    encode_uvarint,
    make_uuid,
    read_uvarint,
)


@given(st.integers(0, 2**32 - 1))
def test_unsigned_varints_come_back(value: int) -> None:
    raw = encode_uvarint(value)
    assert read_uvarint(raw, 0) == (value, len(raw))
    for end in range(len(raw)):
        with pytest.raises(DecodeError):
            read_uvarint(raw[:end], 0)


@pytest.mark.parametrize(
    ("value", "raw"), [(0, "00"), (127, "7f"), (128, "8001"), (300, "ac02"), (2**32 - 1, "ffffffff0f")]
)
def test_varints_have_these_bytes(value: int, raw: str) -> None:
    """KIP-482, Protocol Buffers' own example among them."""
    assert encode_uvarint(value).hex() == raw


@pytest.mark.parametrize("raw", ["ffffffff10", "ffffffffff01", "80", ""])
def test_varints_that_are_none(raw: str) -> None:
    with pytest.raises(DecodeError):
        read_uvarint(bytes.fromhex(raw), 0)


def test_the_zero_uuid_is_one_object() -> None:
    assert make_uuid(bytes(16)) is NIL
    assert make_uuid(bytes(range(16))).bytes == bytes(range(16))
