"""The two brokers, each under a name, and the runs against them."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from confluent_kafka.admin import AdminClient, NewTopic
from tools.bench.rows import LATENCY_RATE, LATENCY_SECONDS, LATENCY_WARM_UP_S, Durability, Row
from tools.servers.apache_kafka import ApacheKafka
from tools.servers.broker_process import BrokerProcess, make_tallystick_process

from tallystick.testing import eventually

OURS: Final = "tallystick"
KAFKA: Final = "Apache Kafka"
NAMES: Final = (OURS, KAFKA)
RUN_SECONDS_MAX: Final = 180.0


@dataclass(frozen=True, slots=True)
class Load:
    """One produce or consume run: its duration, and the share of one core the broker used."""

    seconds: float
    broker_cpu: float


@contextmanager
def run_fresh(name: str, durability: Durability) -> Iterator[BrokerProcess]:
    """Run a broker with empty directories, and remove them afterwards."""
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as directory:
        process = prepare(name, durability, Path(directory))
        with process:
            yield process


def prepare(name: str, durability: Durability, directory: Path) -> BrokerProcess:
    """Return a broker ready to be started, with its directories formatted if it needs that."""
    if name == OURS:
        return make_tallystick_process(directory, durability.ours)
    # Kafka's own start script gives a broker 1 GiB.
    kafka = ApacheKafka(directory=directory, settings=durability.kafka, heap_mb=1024)
    kafka.format()
    return kafka.brokers[0]


def create_topic(process: BrokerProcess, topic: str, partitions: int) -> None:
    """Create a topic and wait until its partitions have leaders, since Kafka answers before they do."""
    admin = AdminClient({"bootstrap.servers": process.bootstrap})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(30)

    def has_leaders() -> bool:
        metadata = admin.list_topics(timeout=10).topics.get(topic)
        return (
            metadata is not None
            and [p.leader >= 0 for p in metadata.partitions.values()] == [True] * partitions
        )

    eventually(has_leaders)


def delete_topic(process: BrokerProcess, topic: str) -> None:
    """Delete a topic, so that the next run finds an empty page cache to fill."""
    admin = AdminClient({"bootstrap.servers": process.bootstrap})
    admin.delete_topics([topic])[topic].result(30)


def run_load(process: BrokerProcess, mode: str, topic: str, row: Row, messages: int) -> Load:
    """Produce to or consume from one topic in a separate process."""
    load = {
        "mode": mode,
        "bootstrap": process.bootstrap,
        "topic": topic,
        "partitions": row.partitions,
        "messages": messages,
        "size": row.size,
        "codec": row.codec,
    }
    cpu = process.read_cpu_seconds()
    figures = run_child("loads.librdkafka", json.dumps(load))
    return Load(figures["seconds"], (process.read_cpu_seconds() - cpu) / figures["all_seconds"])


def run_latency(process: BrokerProcess) -> dict[str, float]:
    """Measure end-to-end latency at a steady rate; return it by percentile, in milliseconds."""
    create_topic(process, "latency", 1)
    arguments = map(str, (LATENCY_RATE, LATENCY_SECONDS, LATENCY_WARM_UP_S))
    return run_child("loads.latency", process.bootstrap, "latency", *arguments)


def run_client(load: Mapping[str, object]) -> dict[str, float]:
    """Send with one Python client in a separate process."""
    return run_child("loads.client", json.dumps(load))


def run_consumer(reading: Mapping[str, object]) -> dict[str, float]:
    """Read with one Python client in a separate process."""
    return run_child("loads.consumer", json.dumps(reading))


def run_child(module: str, *arguments: str) -> dict[str, float]:
    """Run a module of this package in a separate process, and return the JSON that it prints."""
    child = subprocess.run(
        [sys.executable, "-m", f"tools.bench.{module}", *arguments],
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS_MAX,
        check=False,
    )
    if child.returncode:
        raise RuntimeError(f"{module} failed:\n{child.stderr[-3000:]}")
    result: dict[str, float] = json.loads(child.stdout)
    return result
