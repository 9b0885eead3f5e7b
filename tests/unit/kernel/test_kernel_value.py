"""`@frozen` classes are to their users what frozen, slotted dataclasses are."""

import pickle
from collections.abc import Mapping
from dataclasses import FrozenInstanceError, asdict, dataclass, field, fields, replace

import pytest

from tallystick.kernel.value import frozen
from tallystick.kernel.value import replace as quick_replace


@frozen
class Point:
    x: int
    y: int = 0


@frozen(kw_only=True)
class Named:
    """Something with a name."""

    tags: Mapping[str, int] = field(default_factory=dict)
    name: str
    data: bytes = b""

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("name: must not be empty")

    @property
    def loud(self) -> str:
        return self.name.upper()


@frozen
class Nothing:
    pass


@dataclass(frozen=True, slots=True)
class Reference:
    x: int
    y: int = 0


def test_is_made_as_declared() -> None:
    assert Point(1) == Point(1, 0) == Point(x=1, y=0)
    assert (Point(1, 2).x, Point(1, 2).y) == (1, 2)
    assert Named(name="a").loud == "A"
    assert Nothing() == Nothing()
    for wrong in ({}, {"x": 1, "z": 1}):
        with pytest.raises(TypeError):
            Point(**wrong)
    with pytest.raises(TypeError):
        Named("a")  # type: ignore[call-arg, arg-type]


def test_each_value_has_a_default_of_its_own() -> None:
    assert Named(name="a").tags == {}
    assert Named(name="a").tags is not Named(name="a").tags


def test_is_checked_after_it_is_made_and_also_when_replaced() -> None:
    with pytest.raises(ValueError, match="must not be empty"):
        Named(name="")
    for with_changes in (replace, quick_replace):
        with pytest.raises(ValueError, match="must not be empty"):
            with_changes(Named(name="a"), name="")


def test_nothing_can_be_assigned_or_added() -> None:
    point = Point(1)
    with pytest.raises(FrozenInstanceError):
        point.x = 2  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        del point.x  # type: ignore[misc]
    with pytest.raises(AttributeError):
        object.__setattr__(point, "z", 1)
    assert not hasattr(point, "__dict__")


def test_equality_and_hash_are_of_the_class_and_the_content() -> None:
    assert Point(1, 2) != Point(2, 1)
    assert Point(1) != Reference(1)
    assert Point(1) != (1, 0)
    assert hash(Point(1, 2)) == hash(Point(1, 2))
    assert len({Point(1), Point(1, 0), Point(2)}) == 2
    with pytest.raises(TypeError, match="unhashable"):
        hash(Named(name="a"))


def test_the_tools_of_dataclasses_and_match_know_it() -> None:
    assert [f.name for f in fields(Named)] == ["tags", "name", "data"]
    assert replace(Point(1, 2), y=3) == Point(1, 3)
    assert quick_replace(Point(1, 2), y=3) == Point(1, 3)
    with pytest.raises(TypeError, match="Point has no z"):
        quick_replace(Point(1, 2), z=3)
    assert asdict(Point(1, 2)) == {"x": 1, "y": 2}
    match Point(1, 2):
        case Point(x, y):
            assert (x, y) == (1, 2)
    assert pickle.loads(pickle.dumps(Point(1, 2))) == Point(1, 2)


def test_prints_like_a_dataclass_but_long_bytes_as_their_size() -> None:
    assert repr(Point(1, 2)) == repr(Reference(1, 2)).replace("Reference", "Point")
    assert repr(Named(name="a", data=bytes(65))) == "Named(tags={}, name='a', data=<65 bytes>)"
