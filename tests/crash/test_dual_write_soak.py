"""The soak in short, and that its checker finds what it is for; `make soak` is the long form."""

import pytest
from tests.support.servers import Unavailable
from tools import soak

SEED = 7


@pytest.mark.slow
@pytest.mark.server
def test_ten_seconds_of_kills() -> None:
    try:
        wrong = soak.run(seconds=10, transactions=20, writers=3, seed=SEED)
    except Unavailable as exc:
        pytest.skip(str(exc))
    assert wrong == []


@pytest.mark.parametrize(
    ("shown", "said"),
    [
        ([(0, 1), (0, 2), (1, 1)], None),
        ([(1, 1), (0, 1), (0, 2)], None),
        ([(0, 1), (0, 2), (0, 2), (1, 1)], "twice"),
        ([(0, 1), (1, 1)], "no record"),
        ([(0, 1), (0, 2), (0, 3), (1, 1)], "no row"),
        ([(0, 2), (0, 1), (1, 1)], "out of order"),
    ],
)
def test_its_checker(shown: list[tuple[int, int]], said: str | None) -> None:
    found = soak.compare([(0, 1), (0, 2), (1, 1)], shown)
    assert len(found) == (said is not None)
    assert said is None or said in found[0]
