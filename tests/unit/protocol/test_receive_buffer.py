"""Frames leave a ReceiveBuffer as they went in, however their bytes arrive, and memory stays bounded."""

import struct
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.protocol import DecodeError
from tallystick.protocol.frames import HEAD_BYTES, InvalidFrameLength, Preallocation, ReceiveBuffer

SIZE = 16
LIMIT = 500

frame_lists = st.lists(st.binary(min_size=1, max_size=200), max_size=12)
pieces = st.lists(st.integers(1, 60), min_size=1, max_size=40)


class Ledger:
    """A LargeFrameMemory that checks what it is told."""

    def __init__(self, initial_bytes: int = 1) -> None:
        self.initial_bytes = initial_bytes
        self.used_bytes = self.admitted = 0

    def admit(self, size: int, received: memoryview) -> int:
        assert size + 4 > SIZE
        assert HEAD_BYTES <= len(received) < size
        assert self.used_bytes == 0, "one large frame at a time"
        self.admitted += 1
        return self.initial_bytes

    def resize(self, change: int) -> None:
        self.used_bytes += change


def with_prefix(frames: Sequence[bytes]) -> bytes:
    return b"".join(struct.pack(">i", len(frame)) + frame for frame in frames)


def feed(buffer: ReceiveBuffer, data: bytes) -> bytes:
    """Add as much as there is room for, and return the rest."""
    room = buffer.get_writable()
    count = min(len(room), len(data))
    room[:count] = data[:count]
    buffer.add(count)
    return data[count:]


@given(frame_lists, pieces)
def test_any_split_of_the_bytes_gives_the_same_frames(frames: list[bytes], sizes: list[int]) -> None:
    ledger = Ledger()
    buffer = ReceiveBuffer(SIZE, LIMIT, ledger)
    data, received, turn = with_prefix(frames), [], 0
    while data:
        size = sizes[turn % len(sizes)]
        data = feed(buffer, data[:size]) + data[size:]
        turn += 1
        while (frame := buffer.next_frame()) is not None:
            received.append(bytes(frame))
            buffer.consume()
    assert received == frames
    assert len(buffer.unconsumed) == 0
    assert ledger.used_bytes == 0
    assert ledger.admitted <= sum(len(frame) + 4 > SIZE for frame in frames)


@given(frame_lists, pieces)
def test_taken_frames_are_the_same_and_stay_so(frames: list[bytes], sizes: list[int]) -> None:
    buffer = ReceiveBuffer(SIZE, LIMIT, Preallocation(64))
    data, taken, turn = with_prefix(frames), [], 0
    while data:
        size = sizes[turn % len(sizes)]
        data = feed(buffer, data[:size]) + data[size:]
        turn += 1
        while (frame := buffer.take_frame()) is not None:
            taken.append(frame)
    assert taken == frames


@given(frame_lists, pieces, pieces)
def test_frames_may_wait_in_the_buffer(frames: list[bytes], sizes: list[int], waits: list[int]) -> None:
    """A connection that may start no request leaves its frame where it is, and stops reading when full."""
    buffer = ReceiveBuffer(SIZE, LIMIT, Ledger())
    data, received, turn = with_prefix(frames), [], 0
    while data or buffer.next_frame() is not None:
        if not buffer.is_full:
            size = sizes[turn % len(sizes)]
            data = feed(buffer, data[:size]) + data[size:]
        first, second = buffer.next_frame(), buffer.next_frame()
        assert first == second
        if first is not None and (buffer.is_full or not data or waits[turn % len(waits)] % 2):
            received.append(bytes(first))
            buffer.consume()
        turn += 1
    assert received == frames


@given(st.integers(SIZE, LIMIT), st.integers(1, 600), st.integers(1, 50))
def test_memory_grows_with_what_arrives_and_not_with_what_is_announced(
    size: int, initial_bytes: int, step: int
) -> None:
    ledger = Ledger(initial_bytes)
    buffer = ReceiveBuffer(SIZE, LIMIT, ledger)
    feed(buffer, struct.pack(">i", size)[:4])
    assert buffer.next_frame() is None
    assert ledger.used_bytes == 0, "nothing is allocated for a length"
    received = 0
    while received < size:
        data = bytes(min(step, size - received))
        received += len(data) - len(feed(buffer, data))
        assert buffer.next_frame() is None or received == size
        assert ledger.used_bytes <= min(size, max(initial_bytes, SIZE, 2 * received))
        assert buffer.announced_bytes in ((0,) if received in (1, size) else (0, size))
        if buffer.has_large:
            assert buffer.large_received_bytes == received <= ledger.used_bytes
    assert buffer.is_full
    frame = buffer.next_frame()
    assert frame is not None
    buffer.consume()
    assert ledger.used_bytes == 0
    assert not buffer.has_large
    assert bytes(frame) == bytes(size), "a large frame stays valid"


def test_a_large_frame_is_read_into_the_buffer_that_is_handed_out() -> None:
    buffer = ReceiveBuffer(SIZE, LIMIT, Preallocation(LIMIT))
    feed(buffer, struct.pack(">i", 100) + b"ab")
    assert buffer.next_frame() is None
    place = buffer.get_writable()
    place[:] = bytes(range(98))
    buffer.add(98)
    frame = buffer.take_frame()
    assert frame == b"ab" + bytes(range(98))
    place[0] = 255
    assert isinstance(frame, bytearray)
    assert frame[2] == 255, "no copy was made"


@pytest.mark.parametrize("length", [-(2**31), -1, 0, LIMIT + 1, 2**31 - 1])
def test_a_length_is_refused_as_soon_as_it_is_there(length: int) -> None:
    ledger = Ledger()
    buffer = ReceiveBuffer(SIZE, LIMIT, ledger)
    prefix = struct.pack(">i", length)
    feed(buffer, prefix[:3])
    assert buffer.next_frame() is None
    feed(buffer, prefix[3:])
    with pytest.raises(InvalidFrameLength, match=f"a frame of {length} bytes; 1 to {LIMIT}") as caught:
        buffer.next_frame()
    assert isinstance(caught.value, DecodeError)
    assert (caught.value.length, caught.value.limit) == (length, LIMIT)
    assert bytes(buffer.unconsumed) == prefix, "for a guess at what the peer speaks"
    assert ledger.admitted == ledger.used_bytes == 0


def test_a_frame_that_is_not_admitted_takes_no_memory() -> None:
    class Refusing(Ledger):
        def admit(self, size: int, received: memoryview) -> int:
            raise PermissionError(size, bytes(received))

    ledger = Refusing()
    buffer = ReceiveBuffer(SIZE, LIMIT, ledger)
    feed(buffer, struct.pack(">i", 100) + b"abc")
    with pytest.raises(PermissionError) as caught:
        buffer.next_frame()
    assert caught.value.args == (100, b"abc")
    assert ledger.used_bytes == 0
    assert not buffer.has_large


def test_an_incomplete_frame_can_be_given_up() -> None:
    ledger = Ledger()
    buffer = ReceiveBuffer(SIZE, LIMIT, ledger)
    feed(buffer, struct.pack(">i", 100) + b"abc")
    assert buffer.next_frame() is None
    assert buffer.is_receiving_large
    assert ledger.used_bytes == SIZE
    buffer.discard_large()
    buffer.discard_large()
    assert ledger.used_bytes == 0
