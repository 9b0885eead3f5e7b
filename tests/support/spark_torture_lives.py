"""The test's side of the torture: a broker that is killed, drivers in turn, and the final checks.

Everything is drawn from one seed: the query, its surface and mode, the input with its aborted transactions,
and the faults of each driver. The scheduling of Spark's threads is not.
"""

import json
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from sqlalchemy import NullPool, create_engine, text
from tests.support.secure_broker_process import SECRET, SecureBroker
from tests.support.servers import MariaDB, PostgreSQL
from tests.support.spark_cluster import Cluster
from tests.support.spark_torture import FOLDER, Fault, Folder
from tests.support.spark_torture_database import DATABASE_POINTS, STAGING_POINTS, TARGET
from tests.support.spark_torture_queries import END_MS, SHAPES
from tools.servers.broker_process import make_tallystick_process

from tallystick import Admin
from tallystick.spark.decisions.database import get_engine, resolve_database
from tallystick.spark.sink.driver.recovery import resolve

_log = logging.getLogger(__name__)

ROOT: Final = Path(__file__).parents[2]
PARTITIONS: Final = 2
LIFE_S: Final = 600.0
NOT_OF: Final = {
    "sink": (),
    "foreach": (),
    "together": ("topic",),
}
"""Options that a surface does not take."""
BROKER: Final = {
    "transaction.two.phase.commit.enable": "true",
    "flush.policy": "os",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
}
DRIVER_POINTS: Final = (
    *(f"{name}.{when}" for name in ("claim", "read", "describe", "append", "end", "mark_done", "open_ids")
      for when in ("before", "after")),
    "append.between",
    "end.among",
)  # fmt: skip
TASK_POINTS: Final = ("init.after", "send.after", "prepare.before", "prepare.after", "holds.after", "rows")
PRODUCER_POINTS: Final = ("init.after", "send.after", "prepare.before", "prepare.after")
"""The points of an attempt that has a producer."""
# The only errors that may stop a query: the faults, and what follows from them.
EXPECTED: Final = (
    "TimedOut",
    "InDoubt",
    "VoteLost",
    "PrefixTaken",
    "CONCURRENT_STREAM_LOG_UPDATE",
    "Python worker exited unexpectedly",
    "Python worker failed to connect back",  # Spark gives a new one ten seconds, however busy the machine is
    "BrokerRefused",
    "ConnectionLost",
    "Fenced",
    "DecisionExpired",
    "ExecutorLostFailure",
    "OperationalError",
    "CommitUnknown",
)


@dataclass
class Told:
    """The events of one seed."""

    starts: int = 0
    runs: int = 0
    rows: int = 0
    struck: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    surprises: list[str] = field(default_factory=list)
    missing: int = 0
    duplicates: int = 0
    strangers: int = 0
    left_open: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        wrong = self.missing + self.duplicates + self.strangers
        return not wrong and not self.left_open and not self.surprises

    def add(self, other: "Told") -> None:
        for name in ("starts", "runs", "rows", "missing", "duplicates", "strangers"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.struck.update(other.struck)
        self.outcomes.update(other.outcomes)
        self.surprises += other.surprises
        self.left_open += other.left_open

    def shown(self) -> str:
        """Return a report for a person, after many seeds."""
        lines = [
            f"driver starts {self.starts}, query starts {self.runs}, rows {self.rows}",
            f"missing {self.missing}, duplicates {self.duplicates}, of no input {self.strangers}",
            f"transactions left open {len(self.left_open)}",
        ]
        kinds: Counter[str] = Counter()
        for what, count in self.struck.items():
            kinds[what.partition(" at ")[0]] += count
        lines += [f"{count:6} {kind}" for kind, count in kinds.most_common()]
        return "\n".join(lines)


class Torture:
    """One seed, under Spark."""

    child = "tests.support.spark_torture_child"
    earliest = "earliest"
    choices = ("restart", "resume")
    master = "local[2, 4]"
    database_url: str | None = None

    def __init__(self, seed: int, folder: Path, *, starts: int, rows_a_start: int) -> None:
        self.random = random.Random(seed)
        self.folder, self.starts, self.rows_a_start = folder, starts, rows_a_start
        shapes = list(SHAPES)
        self.shape = shapes[seed % len(shapes)]
        self.surface = ("sink", "foreach")[seed // len(shapes) % 2]
        self.mode = self.random.choice(("2pc", "2pc", "keep", "resume"))
        self.told = Told()
        self.broker: Any = make_tallystick_process(folder / "broker", BROKER)
        self.prefix = f"torture/{seed}"
        self.topics = [f"in-{n}" for n in range(SHAPES[self.shape].topics)]
        self.expected: Counter[str] = Counter()
        self.more: dict[str, str] = {}
        self.settings: dict[str, str] = {}
        self.starting = [self.earliest for _ in self.topics]
        self.generation = 0
        self.produced = 0
        self._lives = 0

    def __str__(self) -> str:
        return f"{self.shape} {self.surface} {self.mode}"

    # -------------------------------------------------------------------------------- the course

    def run(self) -> Told:
        with self.broker:
            self.create_topics()
            for _ in range(self.starts - 1):
                self.produce()
                self.one_driver()
                self.between()
            self.produce(last=True)
            self.drive(self.prepare([], runs=1))
            if self.told.surprises or not self.finished:
                self.told.surprises.append(f"the last driver ended with {self.last_outcome!r}")
            self.check()
        return self.told

    def create_topics(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.broker.bootstrap})
        wanted = [NewTopic(name, PARTITIONS, 1) for name in (*self.topics, "out")]
        for made in admin.create_topics(wanted).values():
            made.result(30)

    def one_driver(self) -> None:
        if self.random.random() < 0.15:
            self.two_drivers()
            return
        faults = self.faults()
        kill_after_s = self.random.uniform(0.2, 6) if self.random.random() < 0.2 else None
        self.drive(self.prepare(faults, runs=6), kill_after_s)

    def faults(self) -> list[Fault]:
        draw = self.random
        found = []
        for _ in range(draw.randint(2, 4)):
            if draw.random() < 0.5:
                kind = draw.choice(("raise", "kill-worker", "kill-broker"))
                found.append(Fault(draw.choice(TASK_POINTS), draw.randint(1, 6), kind))
            else:
                kind = draw.choice(("raise", "stop", "stop", "kill-broker"))
                found.append(Fault(draw.choice(DRIVER_POINTS), draw.randint(1, 3), kind))
        deadly = draw.choice((*DRIVER_POINTS, *DRIVER_POINTS, *TASK_POINTS))
        found.append(Fault(deadly, draw.randint(1, 8), "kill-driver"))
        return found

    def two_drivers(self) -> None:
        """Stall a first driver in the middle of its work, let a second one work, then resume the first."""
        point = self.random.choice(DRIVER_POINTS)
        first = self.prepare([Fault(point, self.random.randint(1, 3), "stall")], runs=1)
        process = self.launch(first)
        self.watch(process, first, until="stalled")
        if first.says("stalled"):
            self.drive(self.prepare([], runs=2))
            first.say("go")
        self.watch(process, first)
        self.conclude(first)

    def between(self) -> None:
        draw = self.random
        if draw.random() < 0.3:
            self.lose_commit()
        if self.shape == "stateless" and draw.random() < 0.15:
            self.new_checkpoint(draw.choice(self.choices))

    def lose_commit(self) -> None:
        """Remove the last commit from the checkpoint, as after an ordinary stop() while the sink commits."""
        logs = self.checkpoint / "commits"
        numbers = sorted(int(p.name) for p in logs.iterdir() if p.name.isdigit()) if logs.exists() else []
        if numbers:
            for name in (str(numbers[-1]), f".{numbers[-1]}.crc"):
                (logs / name).unlink(missing_ok=True)
            self.told.struck["lost commits/N"] += 1

    def new_checkpoint(self, choice: str) -> None:
        """Delete the checkpoint, and start anew or after the last decision, as `choice` says."""
        client = {**self.client, "tallystick.modes": self.mode}
        resolve(self.prefix, client)
        decision = resolve(self.prefix, client, dry_run=True).decision
        if decision is None or decision.query_id is None:
            return
        shutil.rmtree(self.checkpoint, ignore_errors=True)
        self.generation += 1
        self.more = {"onNewCheckpoint": choice}
        if choice == "restart":
            self.expected = self.written()
        self.told.struck[f"deleted checkpoint, {choice}"] += 1

    # ----------------------------------------------------------------------------------- drivers

    @property
    def client(self) -> dict[str, str]:
        """Return how the query connects, and those who recover for it."""
        return {"bootstrap.servers": self.broker.bootstrap}

    @property
    def checkpoint(self) -> Path:
        return self.folder / f"checkpoint-{self.generation}"

    def prepare(self, faults: list[Fault], runs: int) -> Folder:
        self._lives += 1
        folder = Folder(self.folder / f"life-{self._lives}")
        folder.plan(faults)
        kafka_options = {f"kafka.{name}": text for name, text in self.client.items()}
        sink = {
            **kafka_options,
            "kafka.max.block.ms": "20000",
            "transactional.id.prefix": self.prefix,
            "tallystick.modes": self.mode,
            "topic": "out",
            "checkpointLocation": str(self.checkpoint),
            **self.more,
        }
        for name in NOT_OF[self.surface]:
            del sink[name]
        spec = {
            "source": kafka_options,
            "topics": self.topics,
            "starting": self.starting,
            "until": self.produced,
            "per_trigger": str(max(100, self.rows_a_start // 3)),
            "disturb_rows": any(fault.point == "rows" for fault in faults),
            "shape": self.shape,
            "surface": self.surface,
            "sink": sink,
            "database": self.database_url,
            "checkpoint": str(self.checkpoint),
            "runs": runs,
            "limit_s": LIFE_S,
            "master": self.master,
            "settings": self.settings,
        }
        (folder.path / "spec").write_text(json.dumps(spec))
        return folder

    def launch(self, folder: Folder) -> "subprocess.Popen[bytes]":
        paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
        env = {**os.environ, FOLDER: str(folder.path), "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        self.told.starts += 1
        with (folder.path / "log").open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-m", self.child],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=env,
            )

    def drive(self, folder: Folder, kill_after_s: float | None = None) -> None:
        process = self.launch(folder)
        self.watch(process, folder, kill_after_s=kill_after_s)
        self.conclude(folder)

    def watch(
        self,
        process: "subprocess.Popen[bytes]",
        folder: Folder,
        until: str = "",
        kill_after_s: float | None = None,
    ) -> None:
        """Watch a driver until it ends, or says so; kill the broker when the driver asks for it."""
        give_up_at = time.monotonic() + LIFE_S
        kill_at = None
        while process.poll() is None and not (until and folder.says(until)):
            for kind, act in self.wishes().items():
                if folder.says(kind):
                    act()
                    (folder.path / kind).unlink()
            if kill_after_s is not None and kill_at is None and folder.says("started"):
                kill_at = time.monotonic() + kill_after_s
            if kill_at is not None and time.monotonic() > kill_at:
                self.strike_from_outside(folder)
                kill_at = kill_after_s = None
            if time.monotonic() > give_up_at:
                self.told.surprises.append(f"{folder.path}: it came to no end")
                self.kill(folder)
                process.kill()
                process.wait()
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.01)
        if process.returncode not in (None, 0, -signal.SIGKILL):
            tail = (folder.path / "log").read_text(errors="replace")[-2000:]
            self.told.surprises.append(f"{folder.path}: exit code {process.returncode}: {tail}")

    def wishes(self) -> dict[str, Callable[[], None]]:
        """Return the kinds of faults that are carried out here."""
        return {"kill-broker": partial(restart, self.broker)}

    def strike_from_outside(self, folder: Folder) -> None:
        """Kill the driver at no point of the plan."""
        self.kill(folder)
        self.told.struck["kill-driver at any time"] += 1

    def kill(self, folder: Folder) -> None:
        with suppress(FileNotFoundError):
            for pid in (folder.path / "pids").read_text().split():
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)

    def conclude(self, folder: Folder) -> None:
        """Note what happened in a life."""
        self.told.struck.update(folder.struck())
        found = self.outcomes_of(folder)
        self.told.runs += max(1, len(found))
        for outcome in found:
            self.told.outcomes[outcome.partition(":")[0]] += 1
            if outcome.startswith("failed") and not any(name in outcome for name in EXPECTED):
                self.told.surprises.append(f"{folder.path}: {outcome}")
        self.last_outcome = found[-1] if found else "killed"
        self.finished = self.last_outcome == "done"
        _log.info("%s: %s; %s", folder.path.name, ", ".join(folder.struck()), "; ".join(found) or "killed")

    def outcomes_of(self, folder: Folder) -> list[str]:
        with suppress(FileNotFoundError):
            return (folder.path / "outcome").read_text().splitlines()
        return []

    # ------------------------------------------------------------------------------ input and output

    def produce(self, *, last: bool = False) -> None:
        """Produce some more rows, in transactions; rows of aborted ones are sent again in the next."""
        shape, size = SHAPES[self.shape], 250
        producer = Producer(
            {
                "bootstrap.servers": self.broker.bootstrap,
                "transactional.id": "input",
                "linger.ms": 1,
                "log_level": 0,
            }
        )
        producer.init_transactions(30)
        until = self.produced + self.rows_a_start
        while self.produced < until:
            ids = range(self.produced, self.produced + size)
            abort = self.random.random() < 0.2
            producer.begin_transaction()
            for topic, rows in zip(self.topics, shape.rows(ids), strict=True):
                for at, (row, ts) in enumerate(rows):
                    producer.produce(topic, f"{row},{ts}", partition=at % PARTITIONS)
                self.told.rows += 0 if abort else len(rows)
            if abort:
                producer.flush(30)
                producer.abort_transaction(30)
            else:
                producer.commit_transaction(30)
                self.produced = ids.stop
        if last and shape.ends:
            producer.begin_transaction()
            for number, topic in enumerate(self.topics):
                for partition in range(PARTITIONS):  # separate ids, which nothing joins
                    row = -1 - partition - PARTITIONS * number
                    producer.produce(topic, f"{row},{END_MS}", partition=partition)
            producer.commit_transaction(30)

    def written(self) -> Counter[str]:
        """Count every committed row of the output, as librdkafka reads it."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.broker.bootstrap,
                "group.id": "checker",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "log_level": 0,
            }
        )
        consumer.assign([TopicPartition("out", p, 0) for p in range(PARTITIONS)])
        found: Counter[str] = Counter()
        ended: set[int] = set()
        give_up_at = time.monotonic() + 60
        while len(ended) < PARTITIONS and time.monotonic() < give_up_at:
            for message in consumer.consume(2000, 0.2):
                if message.error() is None:
                    found[(message.value() or b"").decode()] += 1
                else:
                    ended.add(message.partition() or 0)
        consumer.close()
        assert len(ended) == PARTITIONS, "the checker comes to the end of the output"
        return found

    def check(self) -> None:
        expected = self.expected + SHAPES[self.shape].expected(self.produced)
        self.compare("topic", expected, self.written())
        self.told.left_open += self.open_transactions()

    def compare(self, where: str, expected: Counter[str], found: Counter[str]) -> None:
        missing, more = expected - found, found - expected
        self.told.missing += missing.total()
        self.told.duplicates += sum(n for value, n in more.items() if value in expected)
        self.told.strangers += sum(n for value, n in more.items() if value not in expected)
        if missing or more:
            shown = f"missing {list(missing.items())[:3]}, too many {list(more.items())[:3]}"
            self.told.surprises.append(f"{self.folder}: {where}: {shown}")

    def open_transactions(self) -> list[str]:
        """Return this query's open transactions."""
        with Admin({"bootstrap.servers": self.broker.bootstrap}) as admin:
            listed = admin.list_transactions(states=("Ongoing",)).all()
        opened = [each.transactional_id for found in listed.values() for each in found]
        return [each for each in opened if each.startswith(self.prefix)]


def restart(server: Any) -> None:
    """Kill a server (SIGKILL) and start it again."""
    server.kill()
    server.start()


class BareTorture(Torture):
    """The same without Java, where a driver starts in a second: many more of them, and racing attempts."""

    child = "tests.support.spark_torture_bare"
    earliest = "0"
    choices = ("restart",)  # `resume` is for sources of ours

    def __init__(self, seed: int, folder: Path, *, starts: int, rows_a_start: int) -> None:
        super().__init__(seed, folder, starts=starts, rows_a_start=rows_a_start)
        self.shape, self.surface, self.topics, self.starting = "stateless", "sink", ["in"], [self.earliest]

    def produce(self, *, last: bool = False) -> None:
        self.produced += self.rows_a_start
        self.told.rows += self.rows_a_start

    def conclude(self, folder: Folder) -> None:
        super().conclude(folder)
        log = (folder.path / "log").read_text(errors="replace")
        if "Traceback" in log:
            self.told.surprises.append(f"{folder.path}: a process raised: {log[-3000:]}")


class SecureTorture(Torture):
    """A query that logs in over TLS, with the rights it needs; sessions end and certificates change."""

    def __init__(self, seed: int, folder: Path, *, starts: int, rows_a_start: int) -> None:
        super().__init__(seed, folder, starts=starts, rows_a_start=rows_a_start)
        self.broker: SecureBroker = SecureBroker(folder / "broker", BROKER)
        self.mode = "2pc"
        events = folder / "events"
        events.mkdir()
        self.settings = {
            "spark.eventLog.enabled": "true",
            "spark.eventLog.compress": "false",
            "spark.eventLog.dir": events.as_uri(),
            "spark.log.level": "INFO",
        }

    @property
    def client(self) -> dict[str, str]:
        return self.broker.client

    def create_topics(self) -> None:
        super().create_topics()
        self.broker.grant_query(self.prefix, "in", "out")

    def wishes(self) -> dict[str, Callable[[], None]]:
        return {**super().wishes(), "rotate": self.broker.rotate}

    def faults(self) -> list[Fault]:
        draw = self.random
        points = draw.choice(DRIVER_POINTS), draw.choice(TASK_POINTS)
        return [*super().faults(), *(Fault(point, draw.randint(1, 4), "rotate") for point in points)]

    def check(self) -> None:
        super().check()
        for path in self.folder.rglob("*"):
            # The test wrote these, for the driver and the broker to read.
            if path.name in ("spec", "server.properties") or not path.is_file():
                continue
            if SECRET.encode() in path.read_bytes():
                self.told.surprises.append(f"{path}: it has the password of the query")


class BareSecureTorture(SecureTorture, BareTorture):
    """The same without Java."""


class Together(Torture):
    """Topic and table in one decision, a row of the database, which is killed as well."""

    server: Callable[[], PostgreSQL | MariaDB] = PostgreSQL

    def __init__(self, seed: int, folder: Path, *, starts: int, rows_a_start: int) -> None:
        super().__init__(seed, folder, starts=starts, rows_a_start=rows_a_start)
        self.shape, self.surface = "stateless", "together"
        self.topics, self.starting = self.topics[:1], self.starting[:1]
        self.database, self.lost = self.server(), False

    def run(self) -> Told:
        with self.with_database():
            return super().run()

    @contextmanager
    def with_database(self) -> Iterator[None]:
        with self.database:
            self.database_name = self.database.new_database()
            self.database_url = self.database.url(self.database_name)
            self.execute(f"CREATE TABLE {TARGET} (id VARCHAR(100) NOT NULL)")
            yield

    def execute(self, statement: str) -> list[Any]:
        engine = create_engine(get_engine(resolve_database(self.database_url or "")).url, poolclass=NullPool)
        with engine.begin() as connection:
            found = connection.execute(text(statement))
            return list(found) if found.returns_rows else []

    def wishes(self) -> dict[str, Callable[[], None]]:
        return {
            **super().wishes(),
            "kill-database": partial(restart, self.database),
            "lose-database": self.lose_database,
        }

    def lose_database(self) -> None:
        self.database.kill()
        self.lost = True

    def conclude(self, folder: Folder) -> None:
        if self.lost:
            self.database.start()
            self.lost = False
        super().conclude(folder)

    def strike_from_outside(self, folder: Folder) -> None:
        if self.random.random() < 0.5:
            super().strike_from_outside(folder)
            return
        restart(self.database)
        self.told.struck["kill-database at any time"] += 1

    def faults(self) -> list[Fault]:
        draw = self.random
        found = [each for each in super().faults() if not each.point.startswith("append.between")]
        for _ in range(draw.randint(1, 3)):
            point = draw.choice((*DATABASE_POINTS, *DATABASE_POINTS, *STAGING_POINTS))
            kind = draw.choice(("kill-database", "kill-database", "lose-database", "raise", "kill-driver"))
            found.append(Fault(point, draw.randint(1, 4), kind))
        return found

    def between(self) -> None:
        if self.random.random() < 0.3:
            self.lose_commit()

    def check(self) -> None:
        super().check()
        expected = SHAPES[self.shape].expected(self.produced)
        self.compare("table", expected, Counter(row[0] for row in self.execute(f"SELECT id FROM {TARGET}")))


class BareTogether(Together, BareTorture):
    """The same without Java."""


class BareTogetherInMariaDB(BareTogether):
    """The same in MariaDB."""

    server = MariaDB


class ClusterTorture(Torture):
    """A run on a Spark master and two workers: executors and hosts are lost, slow attempts are raced."""

    def __init__(self, seed: int, folder: Path, cluster: Cluster, *, starts: int, rows_a_start: int) -> None:
        super().__init__(seed, folder, starts=starts, rows_a_start=rows_a_start)
        self.run_on(cluster)

    def run_on(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.master, self.settings = cluster.url, cluster.settings

    def prepare(self, faults: list[Fault], runs: int) -> Folder:
        self.cluster.start()
        return super().prepare(faults, runs)

    def faults(self) -> list[Fault]:
        draw = self.random
        found = super().faults()
        if draw.random() < 0.5:
            found.append(Fault(draw.choice(TASK_POINTS), draw.randint(1, 6), "kill-executor"))
        if draw.random() < 0.2:
            found.append(Fault(draw.choice(TASK_POINTS), draw.randint(1, 8), "kill-host"))
        if draw.random() < 0.5:
            found += self.zombies()
        return found

    def zombies(self) -> list[Fault]:
        """Return zombies: they outlive their batches, or Spark kills them in the middle of an effect."""
        draw = self.random
        kill_after = draw.choice(("600s", "600s", "2s"))
        self.settings = {**self.cluster.settings, "spark.python.task.killTimeout": kill_after}
        wanted = [Fault(draw.choice(PRODUCER_POINTS), draw.randint(1, 6), "zombie") for _ in range(2)]
        return [*wanted, Fault(draw.choice(DRIVER_POINTS), draw.randint(2, 4), "release")]
