"""Hypothesis profiles, how tests are shared out, and the place of code that several test files share."""

import gc
import logging
import os
import sys
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.database import DirectoryBasedExampleDatabase
from tools.servers import spark_kafka
from tools.servers.maven import Unavailable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

import tests.support.small_units  # noqa: F401  # before what it changes
from tests.support import servers
from tests.support.broker_forks import BrokerForks
from tests.support.effort import GATE, find_cases_left_out
from tests.support.jvm_options import list_jvm_options
from tests.support.plain_logs import keep_formats_of_handlers
from tests.support.sharing import SlowFilesFirst

from tallystick.broker import embedded

START_PROCESS = embedded.start_process

# HYPOTHESIS_PROFILE chooses: "quick" for `make check` and a bare `pytest`, "gate" for `make test`, "full" for
# `make test-full`. The first two try the same examples in every run, so that a change fails for what it
# changes. The third
# draws new ones and keeps those that failed: they are tried first the next time.
_COMMON: dict[str, Any] = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large],
}
_KEPT = DirectoryBasedExampleDatabase(Path(__file__).parents[1] / ".hypothesis" / "examples")
settings.register_profile("quick", max_examples=10, derandomize=True, database=None, **_COMMON)
settings.register_profile("gate", max_examples=10, derandomize=True, database=None, **_COMMON)
settings.register_profile("full", max_examples=100, database=_KEPT, print_blob=True, **_COMMON)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))

# Of the Javas and the Pythons that Spark starts.
os.environ.setdefault("SPARK_SUBMIT_OPTS", list_jvm_options())
os.environ.setdefault("TALLYSTICK_WORKER_PYTHON", sys.executable)
os.environ.setdefault("PYSPARK_PYTHON", str(Path(__file__).parent / "support" / "worker_python"))
os.environ.setdefault("PYSPARK_DRIVER_PYTHON", os.environ["PYSPARK_PYTHON"])

# What is loaded stays: to look through it for garbage time and again is a tenth of the quick loop.
gc.disable()
# A client of librdkafka that is collected as garbage in a forked child waits there for threads of the parent.
os.register_at_fork(before=gc.collect)


def pytest_runtest_logstart() -> None:
    """Before pytest's handlers are added: keep their format."""
    keep_formats_of_handlers()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the seed of the order and of the draws; pytest-randomly's own header is not shown under `-q`."""
    seed = config.getoption("randomly_seed", None)
    if seed is not None:
        terminalreporter.write_line(f"To run in this order again: --randomly-seed={seed}")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> SlowFilesFirst | None:
    return SlowFilesFirst(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what `make test` has no time for."""
    left_out = find_cases_left_out(items) if GATE else set()
    if left_out:
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Let a test that does not ask for the Spark session not find it: another one of its process has it.

    Which files share a process is not the same in each run. With the session, more checkpoints are in reach.
    """
    if "pyspark.sql" not in sys.modules or "spark" in getattr(item, "fixturenames", ()):
        return (yield)
    from tallystick.spark.files import hadoop

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hadoop, "find_session_files", lambda: None)
        return (yield)


@pytest.fixture(scope="session", autouse=True)
def broker_forks() -> Iterator[BrokerForks]:
    """Let every `EmbeddedBroker` that is a process be a fork; `broker_processes` is the exception."""
    forks = BrokerForks()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(embedded, "start_process", forks.start_process)
        yield forks
    forks.close()


@pytest.fixture(autouse=True)
def root_log() -> Iterator[None]:
    """Take the log back that a command or a broker in this process has begun: others count what is logged."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    yield
    root.setLevel(level)
    for handler in set(root.handlers).difference(handlers):
        root.removeHandler(handler)


@pytest.fixture
def broker_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start brokers in processes that import them, as a program does that embeds one."""
    monkeypatch.setattr(embedded, "start_process", START_PROCESS)


@pytest.fixture(scope="session")
def spark(request: pytest.FixtureRequest) -> Iterator["SparkSession"]:
    """A Spark session that all tests of the run share; with Spark's Kafka jars if one of them compares."""
    from tests.support.spark import running_spark  # PySpark is loaded for those who ask for it

    compares = any("spark_kafka_jars" in getattr(item, "fixturenames", ()) for item in request.session.items)
    found = _spark_kafka_jars() if compares else ""
    with running_spark(found if isinstance(found, str) else "") as session:
        yield session


@pytest.fixture(scope="session")
def spark_kafka_jars() -> str:
    """Spark's own Kafka source and sink, for `format("kafka")`; who asks for it is skipped without."""
    found = _spark_kafka_jars()
    if isinstance(found, Unavailable):
        pytest.skip(str(found))
    return found


@cache
def _spark_kafka_jars() -> str | Unavailable:
    try:
        return spark_kafka.find_spark_jars()
    except Unavailable as exc:
        return exc


@pytest.fixture(scope="module")
def broker(request: pytest.FixtureRequest) -> Iterator[embedded.EmbeddedBroker]:
    """A broker of this file's own, in a thread; the mark `broker` gives other settings."""
    mark = request.node.get_closest_marker("broker")
    with embedded.EmbeddedBroker(**({"in_process": True} | (mark.kwargs if mark else {}))) as running:
        yield running


# A server is started once in a run, by the first test that asks for it; each test has a database of its own.
@pytest.fixture(scope="session")
def postgresql() -> Iterator[servers.PostgreSQL]:
    yield from servers.running(servers.PostgreSQL)


@pytest.fixture(scope="session")
def pgbouncer(postgresql: servers.PostgreSQL) -> Iterator[servers.PgBouncer]:
    yield from servers.running(lambda: servers.PgBouncer(postgresql))


@pytest.fixture(scope="session")
def mariadb() -> Iterator[servers.MariaDB]:
    yield from servers.running(servers.MariaDB)


@pytest.fixture(scope="session")
def zookeeper() -> Iterator[servers.ZooKeeper]:
    yield from servers.running(servers.ZooKeeper)
