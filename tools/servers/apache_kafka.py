"""Runs Apache Kafka to compare with: takes its jars with Maven, and runs its broker and tools from them.

    python -m tools.servers.apache_kafka fetch            # into .cache/apache-kafka/, once
    python -m tools.servers.apache_kafka classpath
    python -m tools.servers.apache_kafka broker DIR       # a fresh single node, until Ctrl-C
    python -m tools.servers.apache_kafka kafka-topics --bootstrap-server … --list

Standard library only. No part of Apache Kafka is shipped with tallystick or imported by it.
"""

import os
import signal
import subprocess
import sys
import tempfile
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tools.servers.broker_process import BrokerProcess, find_free_port
from tools.servers.maven import Jars, Unavailable

VERSION: Final = os.environ.get("TALLYSTICK_APACHE_KAFKA", "4.3.1")
JARS: Final = Jars(
    name="apache-kafka",
    version=VERSION,
    artifacts=(
        ("org.apache.kafka", "kafka_2.13", VERSION),
        ("org.apache.kafka", "kafka-tools", VERSION),
        ("org.apache.kafka", "kafka-clients", VERSION),
        # Without an SLF4J binding, a broker that cannot start prints nothing at all.
        ("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.4"),
    ),
)
LOG4J: Final = JARS.home / "log4j2.xml"

_IS_SINCE_4_4: Final = tuple(map(int, VERSION.split("."))) >= (4, 4)

TOOLS: Final = {
    "kafka-acls": "org.apache.kafka.tools.AclCommand",
    "kafka-broker-api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "kafka-cluster": "org.apache.kafka.tools.ClusterTool",
    "kafka-configs": f"{'org.apache.kafka.tools' if _IS_SINCE_4_4 else 'kafka.admin'}.ConfigCommand",
    "kafka-console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "kafka-console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "kafka-consumer-perf-test": "org.apache.kafka.tools.ConsumerPerformance",
    "kafka-delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "kafka-dump-log": "org.apache.kafka.tools.DumpLogSegments",
    "kafka-features": "org.apache.kafka.tools.FeatureCommand",
    "kafka-get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "kafka-groups": "org.apache.kafka.tools.GroupsCommand",
    "kafka-leader-election": "org.apache.kafka.tools.LeaderElectionCommand",
    "kafka-log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "kafka-producer-perf-test": "org.apache.kafka.tools.ProducerPerformance",
    "kafka-storage": "kafka.tools.StorageTool",
    "kafka-topics": "org.apache.kafka.tools.TopicCommand",
    "kafka-transactions": "org.apache.kafka.tools.TransactionsCommand",
}

# A tool runs for a second: the optimising compiler and parallel collectors only slow it down.
QUICK_JVM: Final = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
# The options kafka-run-class.sh gives a server.
SERVER_JVM: Final = (
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)

_LOG4J: Final = """\
<Configuration status="ERROR"><Appenders><Console name="err" target="SYSTEM_ERR">
<PatternLayout pattern="%d{ISO8601} %p %c{1}: %m%n%ex"/></Console></Appenders>
<Loggers><Root level="WARN"><AppenderRef ref="err"/></Root></Loggers></Configuration>
"""


def find_missing() -> str | None:
    """Return what this machine lacks to run Apache Kafka, or None. Cost: no network."""
    return JARS.find_missing()


def find_class_path() -> str:
    """Return the class path of Kafka's server, tools and client; Maven takes the jars the first time.

    Raises:
        Unavailable: mvn or java is missing, or Maven failed.
    """
    libs = JARS.take()
    if not LOG4J.exists():
        LOG4J.write_text(_LOG4J)
    return f"{libs}/*"


def make_java_command(
    main: str, *arguments: str, heap_mb: int = 256, jvm: Sequence[str] = QUICK_JVM
) -> list[str]:
    """Return the command line that runs a Java class (or a .java source file) with Kafka's class path."""
    options = [*jvm, f"-Xmx{heap_mb}m", f"-Dlog4j2.configurationFile={LOG4J}"]
    return ["java", *options, "-cp", find_class_path(), main, *arguments]


def run_tool(
    tool: str, *arguments: str, stdin: str = "", timeout_s: float = 120.0
) -> subprocess.CompletedProcess[str]:
    """Run one of Kafka's command-line tools by the name of its script, without `.sh`."""
    return subprocess.run(
        make_java_command(TOOLS[tool], *arguments),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


@dataclass(kw_only=True)
class ApacheKafka:
    """A fresh KRaft cluster of one or three nodes on loopback, each node broker and controller at once.

    The first start formats its directories; it can be stopped and started again.
    """

    directory: Path
    nodes: int = 1
    settings: Mapping[str, str] = field(default_factory=dict)
    heap_mb: int = 512
    jvm: Sequence[str] = SERVER_JVM
    brokers: list[BrokerProcess] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        ports = [(find_free_port(), find_free_port()) for _ in range(self.nodes)]
        quorum = ",".join(f"{node}@127.0.0.1:{ports[node - 1][1]}" for node in range(1, self.nodes + 1))
        for node, (client_port, controller_port) in enumerate(ports, start=1):
            home = self.directory / f"node-{node}"
            home.mkdir(exist_ok=True)
            config = home / "server.properties"
            values = {
                **self._list_settings(node, client_port, controller_port),
                "controller.quorum.voters": quorum,
            }
            config.write_text("".join(f"{k}={v}\n" for k, v in {**values, **self.settings}.items()))
            command = make_java_command("kafka.Kafka", str(config), heap_mb=self.heap_mb, jvm=self.jvm)
            self.brokers.append(
                BrokerProcess("apache-kafka", command, port=client_port, log=home / "broker.log")
            )

    def _list_settings(self, node: int, client_port: int, controller_port: int) -> dict[str, str]:
        copies = str(self.nodes)
        quorate = str(min(2, self.nodes))
        return {
            "process.roles": "broker,controller",
            "node.id": str(node),
            "listeners": f"PLAINTEXT://127.0.0.1:{client_port},CONTROLLER://127.0.0.1:{controller_port}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{client_port}",
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "log.dirs": str(self.directory / f"node-{node}" / "data"),
            "default.replication.factor": copies,
            "offsets.topic.replication.factor": copies,
            "transaction.state.log.replication.factor": copies,
            "transaction.state.log.min.isr": quorate,
            "share.coordinator.state.topic.replication.factor": copies,
            "share.coordinator.state.topic.min.isr": quorate,
        }

    @property
    def bootstrap(self) -> str:
        """Addresses of all nodes, as `bootstrap.servers` takes them."""
        return ",".join(broker.bootstrap for broker in self.brokers)

    def format(self) -> None:
        """Create and format the directory of every node that has none."""
        cluster_id = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        for node in range(1, self.nodes + 1):
            home = self.directory / f"node-{node}"
            if not (home / "data" / "meta.properties").exists():
                result = run_tool(
                    "kafka-storage",
                    "format",
                    f"--cluster-id={cluster_id}",
                    "-c",
                    str(home / "server.properties"),
                )
                if result.returncode:
                    raise Unavailable(f"kafka-storage format failed:\n{result.stdout}{result.stderr}")

    def start(self, *, wait_s: float = 120.0) -> float:
        """Format if needed, start every node, wait until all answer; return the seconds of the slowest."""
        self.format()
        try:
            for broker in self.brokers:
                broker.launch()
            return max(broker.wait_ready(wait_s) for broker in self.brokers)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop every running node."""
        for broker in self.brokers:
            broker.stop()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _exc: BaseException | None, _tb: TracebackType | None
    ) -> None:
        self.stop()


def main(arguments: Sequence[str]) -> int:
    """Run the command line of this file."""
    try:
        match arguments:
            case ["fetch"]:
                print(f"Apache Kafka {VERSION} is in {Path(find_class_path()).parent}")
            case ["classpath"]:
                print(find_class_path())
            case ["broker", *rest]:
                _serve(Path(rest[0]) if rest else Path(tempfile.mkdtemp(prefix="apache-kafka-")))
            case [tool, *rest] if tool in TOOLS:
                command = make_java_command(TOOLS[tool], *rest)
                os.execvp(command[0], command)
            case _:
                print(f"{__doc__}\nTools: {', '.join(TOOLS)}")
                return 2
    except Unavailable as exc:
        print(exc, file=sys.stderr)
        return 1
    return 0


def _serve(directory: Path) -> None:
    with ApacheKafka(directory=directory) as kafka:
        print(
            f"Apache Kafka {VERSION} listens at {kafka.bootstrap}, its files are in {directory}", flush=True
        )
        signal.sigwait({signal.SIGINT, signal.SIGTERM})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
