"""A `Value` is frozen, equal by content, checked where it is made, and brief in a log line."""

import pickle
from collections.abc import Mapping

import pytest
from msgspec import field

from tallystick.kernel.value import REPR_BYTES_MAX, Value, replace


class Point(Value):
    x: int
    y: int = 0


class Named(Value, kw_only=True):
    """Something with a name."""

    tags: Mapping[str, int] = field(default_factory=dict)
    name: str
    data: bytes = b""

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("name: must not be empty")


class OtherPoint(Value):
    x: int
    y: int = 0


def test_each_value_has_a_default_of_its_own() -> None:
    assert Named(name="a").tags == {}
    assert Named(name="a").tags is not Named(name="a").tags


def test_is_checked_when_it_is_constructed_and_when_it_is_replaced() -> None:
    with pytest.raises(ValueError, match="must not be empty"):
        Named(name="")
    with pytest.raises(ValueError, match="must not be empty"):
        replace(Named(name="a"), name="")
    with pytest.raises(TypeError, match="has no field 'z'"):
        replace(Point(1, 2), z=3)  # type: ignore[call-arg]


def test_nothing_can_be_assigned_or_added() -> None:
    point = Point(1)
    with pytest.raises(AttributeError):
        point.x = 2  # type: ignore[misc]
    with pytest.raises(AttributeError):
        del point.x
    with pytest.raises((TypeError, AttributeError)):  # Python 3.13 says it of the attribute
        object.__setattr__(point, "z", 1)
    assert not hasattr(point, "__dict__")


def test_equality_and_hash_are_of_the_class_and_the_content() -> None:
    assert Point(1, 2) != Point(2, 1)
    assert Point(1) != OtherPoint(1)
    assert Point(1) != (1, 0)
    assert len({Point(1), Point(1, 0), Point(2)}) == 2
    with pytest.raises(TypeError, match="unhashable"):
        hash(Named(name="a"))


def test_match_and_pickle_know_it() -> None:
    match Point(1, 2):
        case Point(x, y):
            assert (x, y) == (1, 2)
    for value in (Point(1, 2), Named(name="a", tags={"b": 1})):
        assert pickle.loads(pickle.dumps(value)) == value


def test_repr_gives_the_size_of_long_bytes() -> None:
    assert repr(Point(1, 2)) == "Point(x=1, y=2)"
    long = Named(name="a", data=bytes(REPR_BYTES_MAX + 1))
    assert repr(long) == f"Named(tags={{}}, name='a', data=<{REPR_BYTES_MAX + 1} bytes>)"
