"""The broker under test, by name: ours always, and Apache Kafka when TALLYSTICK_INTEROP_KAFKA=1.

The same assertions must hold on both. That is what makes a test here one of fidelity and not of habit.
"""

import base64
import itertools
import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from tools.servers import apache_kafka, maven
from tools.servers.broker_process import make_tallystick_process

from tallystick.testing import eventually

OURS = "tallystick"
KAFKA = "apache-kafka"
NAMES = [OURS, KAFKA] if os.environ.get("TALLYSTICK_INTEROP_KAFKA") == "1" else [OURS]
HERE = Path(__file__).parent

# Without this a group's first rebalance waits three seconds for members that may still come.
SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "auto.create.topics.enable": "false",
    "group.min.session.timeout.ms": "1000",
    # A transaction past its timeout is looked for every ten seconds otherwise.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
}


@dataclass
class Cluster:
    """A running broker and what a test asks of it."""

    name: str
    directory: Path
    broker: Any = field(init=False)
    _serial: Iterator[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        if self.name == OURS:
            self.broker = make_tallystick_process(self.directory, {**SETTINGS, "flush.policy": "os"})
        else:
            self.broker = apache_kafka.ApacheKafka(directory=self.directory, settings=SETTINGS)

    @property
    def bootstrap(self) -> str:
        return str(self.broker.bootstrap)

    def start(self) -> None:
        self.broker.start()

    def stop(self) -> None:
        self.broker.stop()

    def fresh_name(self, stem: str) -> str:
        """A topic or group name no other test uses."""
        return f"{stem}-{next(self._serial)}"

    def topic(self, partitions: int = 1, stem: str = "topic", **config: str) -> str:
        """Create a topic whose partitions all have a leader; config names are Kafka's with _ for the dot."""
        name = self.fresh_name(stem)
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        dotted = {key.replace("_", "."): value for key, value in config.items()}
        admin.create_topics([NewTopic(name, partitions, 1, config=dotted)])[name].result(30)
        eventually(lambda: len(self.leaders(admin, name)) == partitions)
        return name

    @staticmethod
    def leaders(admin: AdminClient, topic: str) -> list[int]:
        """The leaders of those partitions that have one."""
        known = admin.list_topics(timeout=10).topics.get(topic)
        return [p.leader for p in known.partitions.values() if p.leader >= 0] if known else []

    def partition_directory(self, topic: str, partition: int) -> Path:
        """Where the broker keeps the files of one partition."""
        return next(p for p in self.directory.rglob(f"{topic}-{partition}") if p.is_dir())


class Driver:
    """tests/interop/java/Driver.java in a JVM that lives as long as the test session."""

    def __init__(self) -> None:
        source = HERE / "java" / "Driver.java"
        self._process = subprocess.Popen(
            apache_kafka.make_java_command(str(source), heap_mb=384),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def __call__(self, do: str, **arguments: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def tool(self, name: str, *arguments: str, stdin: str = "") -> str:
        """Run a tool that must succeed; what it printed."""
        answer = self("tool", main=apache_kafka.TOOLS[name], args=arguments, stdin=stdin)
        assert answer.get("exit") == 0, (name, arguments, answer)
        return str(answer["out"])

    def tool_output(self, name: str, *arguments: str) -> str:
        """Everything a tool printed, whether or not it calls that a success."""
        answer = self("tool", main=apache_kafka.TOOLS[name], args=arguments, stdin="")
        return f"{answer['out']}{answer['err']}"

    def failing_tool(self, name: str, *arguments: str) -> str:
        """Run a tool that must fail; everything it printed."""
        answer = self("tool", main=apache_kafka.TOOLS[name], args=arguments, stdin="")
        assert answer.get("exit") != 0, (name, arguments, answer)
        return f"{answer['out']}{answer['err']}"

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()


def b64(data: bytes | None) -> str | None:
    """Bytes as the driver takes them."""
    return None if data is None else base64.b64encode(data).decode()


def unb64(text: str | None) -> bytes | None:
    """Bytes from what the driver gives."""
    return None if text is None else base64.b64decode(text)


@pytest.fixture(scope="session")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Cluster]]:
    """Every broker that was started, stopped at the end."""
    started: dict[str, Cluster] = {}
    yield started
    for cluster in started.values():
        cluster.stop()


@pytest.fixture(params=[pytest.param(n, marks=[pytest.mark.server, pytest.mark.slow]) for n in NAMES])
def cluster(
    request: pytest.FixtureRequest, clusters: dict[str, Cluster], tmp_path_factory: pytest.TempPathFactory
) -> Cluster:
    name = request.param
    if name not in clusters:
        if name == KAFKA and (lack := apache_kafka.find_missing()):
            pytest.skip(lack)
        made = Cluster(name, tmp_path_factory.mktemp(name))
        made.start()
        clusters[name] = made
    return clusters[name]


@pytest.fixture(scope="session")
def java() -> Iterator[Driver]:
    """Apache's Java client and tools."""
    if lack := apache_kafka.find_missing():
        pytest.skip(lack)
    try:
        driver = Driver()
    except maven.Unavailable as exc:
        pytest.skip(str(exc))
    yield driver
    driver.close()


@cache
def _is_interop(path: Path) -> bool:
    return HERE in path.parents


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs Java, and expect those failures of ours that allow.txt names, and no others."""
    for item in items:
        if not _is_interop(item.path):
            continue
        if "java" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.kafka)
        allowed = item.path.parent / "allow.txt"
        for line in allowed.read_text().splitlines():
            test, _, why = line.partition("#")
            if test.strip() == item.name:
                item.add_marker(pytest.mark.xfail(reason=why.strip(), strict=True))
