"""Parts of an answer or a request that are written together."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tallystick.protocol.frames import JOINED_BYTES_MIN, join_small

sizes = st.one_of(
    st.integers(0, 100), st.integers(JOINED_BYTES_MIN - 100, JOINED_BYTES_MIN + 100), st.just(40_000)
)


def test_a_small_answer_is_one_part() -> None:
    assert join_small([b"head", memoryview(b"body"), bytearray(b"tags")]) == [b"headbodytags"]
    assert join_small([]) == []


def test_a_large_part_is_not_copied() -> None:
    first, second = bytes(JOINED_BYTES_MIN), memoryview(bytes(JOINED_BYTES_MIN))
    parts = join_small([b"head", b"meta", first, b"meta", second, b"tags"])
    assert [len(part) for part in parts] == [8, JOINED_BYTES_MIN, 4, JOINED_BYTES_MIN, 4]
    assert parts[1] is first
    assert parts[3] is second


@given(st.lists(sizes, max_size=12))
def test_nothing_is_lost_and_no_two_small_parts_are_neighbours(lengths: list[int]) -> None:
    parts = [bytes([number]) * length for number, length in enumerate(lengths)]
    joined = join_small(parts)
    assert b"".join(joined) == b"".join(parts)
    for one, other in pairwise(joined):
        assert max(len(one), len(other)) >= JOINED_BYTES_MIN
        assert min(len(one), len(other)) > 0 or 0 in lengths
    assert all(len(part) < 2 * JOINED_BYTES_MIN or part in parts for part in joined)
