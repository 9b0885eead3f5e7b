"""The pytest plugin, used as its users do: a run of pytest inside a test."""

import tomllib
from importlib import import_module
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.server

ROOT = Path(__file__).parents[3]

BOTH = """
import pytest
from tallystick import Consumer, Producer, TopicPartition

SEEN = []

def partitions(broker):
    with Producer({"bootstrap.servers": broker.bootstrap_servers}) as producer:
        producer.send("t", b"one").result(10)
        return int(producer.send_batch("t", [b"x"], partition=2).result(10).parts[0].partition)

@pytest.mark.tallystick_broker({"num.partitions": 3}, in_process=True)
def test_settings(tallystick_broker):
    assert tallystick_broker.pid is None
    assert partitions(tallystick_broker) == 2

@pytest.mark.tallystick_broker(num_partitions=1, in_process=True)
class TestMarkers:
    @pytest.mark.tallystick_broker(num_partitions=3)
    def test_the_function_wins(self, tallystick_broker):
        assert tallystick_broker.pid is None
        assert partitions(tallystick_broker) == 2

def test_it_can_be_killed(tallystick_broker):
    with Producer({"bootstrap.servers": tallystick_broker.bootstrap_servers}) as producer:
        producer.send("t", b"one").result(10)
        tallystick_broker.kill()
        tallystick_broker.restart()
        assert producer.send("t", b"two").result(30).offset == 1

@pytest.mark.parametrize("run", [1, 2])
def test_the_session_has_one(tallystick_session_broker, run):
    SEEN.append(tallystick_session_broker.pid)
    assert SEEN == SEEN[:1] * run
    assert partitions(tallystick_session_broker) == 2
"""


@pytest.fixture
def alone(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A project of a user, and no plugin but ours."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makepyprojecttoml("""
        [tool.pytest.ini_options]
        addopts = ["-p", "tallystick.testing.plugin", "--strict-markers"]
        filterwarnings = ["error"]
        tallystick_settings = ["num.partitions=3"]
    """)
    return pytester


def test_both_fixtures_and_the_marker(alone: pytest.Pytester) -> None:
    alone.makepyfile(BOTH)
    alone.runpytest_subprocess().assert_outcomes(passed=5)


@pytest.mark.gate(0)
def test_a_mistake_in_a_setting_is_an_error_that_names_it(alone: pytest.Pytester) -> None:
    alone.makepyfile("""
        import pytest

        @pytest.mark.tallystick_broker(num_partition=3)
        def test_typing_error(tallystick_broker): ...

        @pytest.mark.tallystick_broker("num.partitions=3")
        def test_no_dict(tallystick_broker): ...
    """)
    done = alone.runpytest_subprocess()
    done.assert_outcomes(errors=2)
    done.stdout.fnmatch_lines_random(["*num.partition:*num.partitions*", "*are a dict or keywords*"])


def test_a_run_that_wants_no_broker_does_not_load_one(alone: pytest.Pytester) -> None:
    alone.makepyfile("""
        import sys

        def test_none():
            heavy = ("tallystick.broker", "tallystick.client", "asyncio")
            assert not [name for name in sys.modules if name.startswith(heavy)]
    """)
    alone.runpytest_subprocess().assert_outcomes(passed=1)


def test_it_is_declared() -> None:
    """Installed, it is found without `-p`."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]
    assert declared == {"tallystick": "tallystick.testing.plugin"}
    assert callable(import_module(declared["tallystick"]).pytest_addoption)
