"""Dual writes for ten minutes while broker, database and writers are killed at random: python -m tools.soak

Eight writer processes put one row and one record each into PostgreSQL and the log, again and again; every few
seconds one of the processes gets kill -9 and is started again. A checker that knows nothing of the library
then compares the table with what librdkafka reads of committed records: equal, in each writer's order, and
nothing twice.
"""

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError
from tools.broker_process import BrokerProcess, tallystick

from tallystick.dualwrite import DualWriter, SqlStore
from tallystick.errors import InDoubt, TallystickError

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
from servers import PostgreSQL, Unavailable

TOPIC = "soak"
PARTITIONS = 4
PAUSE_S = (0.5, 4.0)  # between two kills
RETRY_S = 0.1
PATIENCE = 5  # times the seconds that were asked for, until the transactions are done
SETTINGS = {"transaction.two.phase.commit.enable": "true", "log.segment.bytes": str(16 << 20)}


# ---- one writer, a process of its own


def write(number: int, bootstrap: str, url: str) -> None:
    """Recover and pay until SIGTERM; whatever fails, recover again."""
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    store = SqlStore(create_engine(url, pool_size=2, connect_args={"connect_timeout": 5}))
    config = {"bootstrap.servers": bootstrap, "transactional.id": f"soak-{number}", "linger.ms": 0}
    with DualWriter(store, config) as writer:
        while not stopping.is_set():
            try:
                writer.recover()
                _pay(number, writer, stopping)
            except (TallystickError, InDoubt, DBAPIError):
                stopping.wait(RETRY_S)


def _pay(number: int, writer: "DualWriter[object]", stopping: threading.Event) -> None:
    n = None
    while not stopping.is_set():
        with writer.transaction() as txn:
            connection = txn.database.connection  # type: ignore[attr-defined]
            if n is None:
                last = text("SELECT coalesce(max(n), 0) FROM soak WHERE writer = :w")
                n = connection.execute(last, {"w": number}).scalar_one()
            n += 1
            connection.execute(text("INSERT INTO soak VALUES (:w, :n)"), {"w": number, "n": n})
            txn.send(TOPIC, f"{number}:{n}".encode(), partition=number % PARTITIONS)


# ---- the run


@dataclass
class Soak:
    """The processes, and who was killed how often."""

    broker: BrokerProcess
    database: PostgreSQL
    url: str
    writers: list["subprocess.Popen[bytes]"] = field(default_factory=list)
    kills: Counter[str] = field(default_factory=Counter)

    def start_writer(self, number: int) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "tools.soak", "--writer", str(number)]
        command += ["--bootstrap", self.broker.bootstrap, "--url", self.url]
        return subprocess.Popen(command, cwd=Path(__file__).parents[1])

    def start_writers(self, count: int) -> None:
        self.writers = [self.start_writer(number) for number in range(count)]

    def kill_one(self, chance: random.Random) -> None:
        """kill -9, and a new start."""
        drawn = chance.randrange(len(self.writers) + 4)
        if drawn < len(self.writers):
            self.kills["writers"] += 1
            self.writers[drawn].kill()
            self.writers[drawn].wait()
            self.writers[drawn] = self.start_writer(drawn)
        elif drawn % 2:
            self.kills["broker"] += 1
            self.broker.kill()
            self.broker.start()
        else:
            self.kills["database"] += 1
            self.database.kill()
            self.database.start()

    def stop_writers(self) -> None:
        """An orderly end, then one more life of each id: what was in doubt is decided."""
        for process in self.writers:
            process.terminate()
        for process in self.writers:
            try:
                process.wait(90)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for number in range(len(self.writers)):
            config = {"bootstrap.servers": self.broker.bootstrap, "transactional.id": f"soak-{number}"}
            engine = create_engine(self.url)
            with DualWriter(SqlStore(engine), config) as writer:
                writer.recover()
            engine.dispose()

    def rows(self) -> int:
        with psycopg.connect(self._dsn, connect_timeout=10) as connection:
            found = connection.execute("SELECT count(*) FROM soak").fetchone()
            return 0 if found is None else int(found[0])

    @property
    def _dsn(self) -> str:
        return self.url.replace("postgresql+psycopg", "postgresql")

    def table(self) -> list[tuple[int, int]]:
        with psycopg.connect(self._dsn) as connection:
            return [(int(w), int(n)) for w, n in connection.execute("SELECT * FROM soak ORDER BY writer, n")]

    def shown(self) -> list[tuple[int, int]]:
        """Every committed record, partition after partition, in the log's order."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.broker.bootstrap,
                "group.id": "soak-checker",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "log_level": 0,
            }
        )
        consumer.assign([TopicPartition(TOPIC, p, 0) for p in range(PARTITIONS)])
        found, ended = list[tuple[int, int]](), set[int]()
        while len(ended) < PARTITIONS:
            for message in consumer.consume(10_000, 1.0):
                error = message.error()
                if error is None:
                    writer, _, n = (message.value() or b"").decode().partition(":")
                    found.append((int(writer), int(n)))
                elif error.code() == KafkaError._PARTITION_EOF:
                    ended.add(message.partition() or 0)
        consumer.close()
        return found


def compare(table: Sequence[tuple[int, int]], shown: Sequence[tuple[int, int]]) -> list[str]:
    """What is wrong: nothing may be missing on either side, there twice, or out of its writer's order."""
    wrong = []
    twice = [each for each, times in Counter(shown).items() if times > 1]
    if twice:
        wrong.append(f"{len(twice)} records are there twice: {twice[:5]}")
    if lost := sorted(set(table) - set(shown)):
        wrong.append(f"{len(lost)} rows have no record: {lost[:5]}")
    if extra := sorted(set(shown) - set(table)):
        wrong.append(f"{len(extra)} records have no row: {extra[:5]}")
    for writer in sorted({each for each, _ in shown}):
        order = [n for each, n in shown if each == writer]
        if order != sorted(order):
            wrong.append(f"the records of writer {writer} are out of order")
    return wrong


def run(*, seconds: float, transactions: int, writers: int, seed: int) -> list[str]:
    """A whole run; what the checker found."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder, PostgreSQL() as database:
        name = database.new_database()
        with psycopg.connect(database.url(name)) as connection:
            connection.execute("CREATE TABLE soak (writer int, n int, PRIMARY KEY (writer, n))")
        url = database.url(name).replace("postgresql:", "postgresql+psycopg:")
        engine = create_engine(url)
        SqlStore(engine).create()
        engine.dispose()
        with tallystick(Path(folder), SETTINGS) as broker:
            admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
            admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(30)
            soak = Soak(broker, database, url)
            soak.start_writers(writers)
            began = time.monotonic()
            try:
                _disturb(soak, chance, began + seconds, began + PATIENCE * seconds, transactions)
                took = time.monotonic() - began
                soak.stop_writers()
            finally:
                for process in soak.writers:
                    process.kill()
                    process.wait()
            table, shown = soak.table(), soak.shown()
    wrong = compare(table, shown)
    if len(table) < transactions:
        wrong.append(f"only {len(table)} of {transactions} transactions")
    kills = ", ".join(f"{soak.kills[who]} of {who}" for who in ("broker", "database", "writers"))
    print(f"{len(table):,} transactions in {took:.0f} s, {len(shown):,} records; kill -9: {kills}")
    return wrong


def _disturb(soak: Soak, chance: random.Random, until: float, latest: float, transactions: int) -> None:
    while True:
        time.sleep(chance.uniform(*PAUSE_S))
        now = time.monotonic()
        if now > latest or (now > until and soak.rows() >= transactions):
            return
        soak.kill_one(chance)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--transactions", type=int, default=50_000)
    parser.add_argument("--writers", type=int, default=8)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--writer", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--bootstrap", help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.writer is not None:
        write(chosen.writer, chosen.bootstrap, chosen.url)
        return 0
    print(f"seed {chosen.seed}", flush=True)
    try:
        wrong = run(
            seconds=chosen.seconds,
            transactions=chosen.transactions,
            writers=chosen.writers,
            seed=chosen.seed,
        )
    except Unavailable as exc:
        print(exc, file=sys.stderr)
        return 2
    for each in wrong:
        print(f"WRONG: {each}")
    print("table and log are not the same" if wrong else "table and log are equal, in order, nothing twice")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
