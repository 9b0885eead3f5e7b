"""How tests are shared out to the workers of `make test`."""

from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace

import pytest
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
