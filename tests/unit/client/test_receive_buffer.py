"""Frames are cut from the bytes of a socket, however these arrive."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.client.net.receive_buffer import PREALLOCATED_FRAME_BYTES, READ_BUFFER_BYTES, ReceiveBuffer
from tallystick.protocol.frames import FrameTooLarge

LIMIT = 3 * PREALLOCATED_FRAME_BYTES


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def received(buffer: ReceiveBuffer, data: bytes, chunk: int) -> Iterator[bytes]:
    """Feed `data` as a socket would: at most `chunk` bytes at a time, and what there is room for."""
    at = 0
    while at < len(data):
        space = buffer.get_space()
        piece = data[at : at + min(chunk, len(space))]
        space[: len(piece)] = piece
        space.release()
        yield from map(bytes, buffer.receive(len(piece)))
        at += len(piece)


SIZES = st.lists(st.one_of(st.integers(0, 40), st.integers(READ_BUFFER_BYTES - 8, READ_BUFFER_BYTES + 8)))


@given(sizes=SIZES, chunk=st.sampled_from([7, 1_000, READ_BUFFER_BYTES]))
def test_frames_are_the_same_however_their_bytes_arrive(sizes: list[int], chunk: int) -> None:
    bodies = [bytes([n % 251]) * size for n, size in enumerate(sizes)]
    buffer = ReceiveBuffer(LIMIT)
    assert list(received(buffer, b"".join(map(framed, bodies)), chunk)) == bodies
    assert not len(buffer.start)


@pytest.mark.parametrize("size", [PREALLOCATED_FRAME_BYTES, PREALLOCATED_FRAME_BYTES + 1, LIMIT])
def test_the_buffer_of_a_large_frame_grows_as_bytes_arrive(size: int) -> None:
    """What is allocated is bounded by what has arrived: the announced length alone costs little."""
    buffer = ReceiveBuffer(LIMIT)
    body = bytes(range(256)) * (size // 256) + bytes(size % 256)
    assert list(received(buffer, framed(body)[:100], 100)) == []
    assert len(buffer.get_space()) <= PREALLOCATED_FRAME_BYTES
    assert list(received(buffer, framed(body)[100:] + framed(b"next"), READ_BUFFER_BYTES)) == [body, b"next"]


def test_a_frame_above_the_limit_is_refused_after_the_frames_before_it() -> None:
    frames = received(ReceiveBuffer(10), framed(b"a") + framed(b"-" * 11), 100)
    assert next(frames) == b"a"
    with pytest.raises(FrameTooLarge):
        next(frames)
