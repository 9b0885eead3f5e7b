"""Framing and the variable-length integers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.protocol import DecodeError
from tallystick.protocol.frames import (
    Frame,
    FrameTooLarge,
    PartialFrame,
    find_frame,
)
from tallystick.protocol.primitives import (
    NIL,
    encode_uvarint,
    make_uuid,
    read_uvarint,
)


def test_a_frame_is_found_when_it_is_whole() -> None:
    buf = b"\0\0\0\x03abcd"
    assert find_frame(buf, 0, 3, 9) == PartialFrame(4)
    assert find_frame(buf, 0, 4, 9) == PartialFrame(7)
    assert find_frame(buf, 0, 6, 9) == PartialFrame(7)
    assert find_frame(buf, 0, 7, 9) == Frame(4, 7)
    assert find_frame(buf, 0, 8, 9) == Frame(4, 7)


def test_a_length_is_refused_as_soon_as_it_is_there() -> None:
    with pytest.raises(FrameTooLarge) as caught:
        find_frame(b"\0\0\0\x0a", 0, 4, 9)
    assert (caught.value.length, caught.value.limit) == (10, 9)
    assert str(caught.value) == "a frame of 10 bytes, above the limit of 9"
    with pytest.raises(DecodeError, match="-1"):
        find_frame(b"\xff\xff\xff\xff", 0, 4, 9)


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
