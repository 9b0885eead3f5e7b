"""Framing and the variable-length integers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.protocol import DecodeError, EncodeError
from tallystick.protocol.frames import (
    Frame,
    FrameReader,
    FrameTooLarge,
    PartialFrame,
    add_length_prefix,
    find_frame,
)
from tallystick.protocol.primitives import (
    NIL,
    encode_uvarint,
    encode_varint,
    make_uuid,
    read_uvarint,
    read_varint,
    read_varlong,
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


@given(st.lists(st.binary(max_size=20), max_size=6), st.data())
def test_frames_come_out_whole_however_the_bytes_arrive(bodies: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(b"".join(add_length_prefix([body])) for body in bodies)
    reader, out, at = FrameReader(20), [], 0
    while at < len(stream):
        size = data.draw(st.integers(1, 9))
        out += reader.feed(stream[at : at + size])
        at += size
    assert out == bodies


def test_a_frame_above_int32_cannot_be_said() -> None:
    class Huge(bytes):
        def __len__(self) -> int:
            return 2**31

    with pytest.raises(EncodeError):
        add_length_prefix([Huge()])


@given(st.integers(0, 2**32 - 1))
def test_unsigned_varints_come_back(value: int) -> None:
    raw = encode_uvarint(value)
    assert read_uvarint(raw, 0) == (value, len(raw))
    for end in range(len(raw)):
        with pytest.raises(DecodeError):
            read_uvarint(raw[:end], 0)


@given(st.integers(-(2**31), 2**31 - 1))
def test_signed_varints_come_back(value: int) -> None:
    assert read_varint(b"x" + encode_varint(value), 1) == (value, 1 + len(encode_varint(value)))


@given(st.integers(-(2**63), 2**63 - 1))
def test_signed_varlongs_come_back(value: int) -> None:
    assert read_varlong(encode_varint(value), 0) == (value, len(encode_varint(value)))


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
