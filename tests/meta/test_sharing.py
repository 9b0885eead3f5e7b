"""How tests are shared out to the workers of `make test`, and which cases it leaves to `make test-full`."""

from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.support.effort import find_cases_left_out
from tests.support.sharing import SlowFilesFirst
from xdist.scheduler import LoadScopeScheduling

FILES = {
    "small.py": "",
    "large.py": "",
    "slow.py": "@pytest.mark.slow",
    "broker.py": "pytestmark = [pytest.mark.server]",
    "sink.py": "def test(spark: SparkSession) -> None: ...",
    "source.py": 'def test(spark: "SparkSession") -> None: ...',
}


@pytest.fixture
def scheduling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SlowFilesFirst:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    made = SlowFilesFirst.__new__(SlowFilesFirst)
    made.config = SimpleNamespace(rootpath=tmp_path)
    monkeypatch.setattr(
        LoadScopeScheduling,
        "_assign_work_unit",
        lambda self, node: node.append(self.workqueue.popitem(False)[0]),
    )
    return made


def test_files_with_the_spark_session_are_one(scheduling: SlowFilesFirst) -> None:
    assert {scheduling._split_scope(f"{name}.py::test[a::b]") for name in ("sink", "source")} == {"spark"}
    assert scheduling._split_scope("slow.py::Test::test") == "slow.py"


def test_what_is_long_begins_first(scheduling: SlowFilesFirst) -> None:
    counts = {"small.py": 1, "slow.py": 2, "large.py": 9, "spark": 2, "broker.py": 3}
    scheduling.workqueue = OrderedDict(
        (scope, dict.fromkeys(range(count), False)) for scope, count in counts.items()
    )
    order: list[str] = []
    for _ in counts:
        scheduling._assign_work_unit(order)
    assert order == ["spark", "broker.py", "slow.py", "large.py", "small.py"]


@dataclass(frozen=True)
class Case:
    """A test with one set of parameters; `count` is the argument of its mark `gate`, if it has one."""

    nodeid: str
    count: int | None

    def get_closest_marker(self, name: str) -> SimpleNamespace | None:
        assert name == "gate"
        return None if self.count is None else SimpleNamespace(args=(self.count,))


def list_cases(test: str, cases: int, count: int | None) -> list[Case]:
    return [Case(nodeid=f"{test}[{number}]", count=count) for number in range(cases)]


def test_of_a_marked_test_the_gate_runs_that_many_cases_and_always_the_same() -> None:
    marked, other = list_cases("a.py::test_matrix", 20, 3), list_cases("b.py::test_matrix", 20, None)
    nothing, few = list_cases("a.py::test_long", 2, 0), list_cases("a.py::test_few", 2, 5)
    left_out = find_cases_left_out([*marked, *other, *nothing, *few])  # type: ignore[list-item]
    assert len(left_out & set(marked)) == 17
    assert left_out - set(marked) == set(nothing)
    backwards = find_cases_left_out([*reversed(marked)])  # type: ignore[list-item]
    assert backwards == left_out - set(nothing)


def test_cases_are_drawn_from_the_whole_of_a_matrix() -> None:
    """Not the first of them, nor every nth: those may all have one parameter in common."""
    marked = list_cases("a.py::test_matrix", 40, 10)
    left_out = find_cases_left_out(marked)  # type: ignore[arg-type]
    run = [number for number, case in enumerate(marked) if case not in left_out]
    assert {number % 2 for number in run} == {0, 1}
    assert len({number % 5 for number in run}) > 3
