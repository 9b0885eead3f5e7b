"""Do dual writes for ten minutes while broker, database and writers are killed at random: -m tools.soak.

Eight writer processes put one row and one record each into PostgreSQL and the log, again and again; every few
seconds one of the processes is killed (SIGKILL) and restarted. A checker that does not use the library then
compares the table with the committed records that librdkafka reads: they must be equal, in each writer's
order, and without duplicates.
"""

import argparse
import multiprocessing
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Final

import psycopg
from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from sqlalchemy import create_engine
from tests.support.servers import PostgreSQL, Unavailable, quick_place
from tools import soak_writer
from tools.servers.broker_process import BrokerProcess, make_tallystick_process
from tools.soak_writer import PARTITIONS, TOPIC

from tallystick.dualwrite import DualWriter, SqlStore

PAUSE_S = (0.5, 4.0)  # between two kills
PATIENCE = 5  # multiple of the requested seconds to wait until the transactions are done
STOP_S = 90

# Writers are forked from a process with everything loaded: a new one writes within milliseconds.
_FORKING: Final = multiprocessing.get_context("forkserver")
_FORKING.set_forkserver_preload(
    [
        "tools.soak_writer",
        "tallystick.dualwrite.blocking.writer",
        "tallystick.dualwrite.stores.sql",
        "sqlalchemy.dialects.postgresql.psycopg",
        "psycopg",
        "confluent_kafka.admin",
        "tools.servers.broker_process",
    ]
)
SETTINGS = {"transaction.two.phase.commit.enable": "true", "log.segment.bytes": str(16 << 20)}


# ---- the run


@dataclass
class Soak:
    """The processes, and how often each was killed."""

    broker: BrokerProcess
    database: PostgreSQL
    url: str
    writers: list[ForkServerProcess] = field(default_factory=list)
    kills: Counter[str] = field(default_factory=Counter)

    def start_writer(self, number: int) -> ForkServerProcess:
        arguments = (number, self.broker.bootstrap, self.url)
        process = _FORKING.Process(target=soak_writer.write, args=arguments, daemon=True)
        process.start()
        return process

    def start_writers(self, count: int) -> None:
        self.writers = [self.start_writer(number) for number in range(count)]

    def kill_one(self, chance: random.Random) -> None:
        """Kill one process (SIGKILL) and start it again."""
        number = chance.randrange(len(self.writers) + 4)
        if number < len(self.writers):
            self.kills["writers"] += 1
            self.writers[number].kill()
            self.writers[number].join()
            self.writers[number] = self.start_writer(number)
        elif number % 2:
            self.kills["broker"] += 1
            self.broker.kill()
            self.broker.start()
        else:
            self.kills["database"] += 1
            self.database.kill()
            self.database.start()

    def stop_writers(self) -> None:
        """End the writers in an orderly way, then recover each id once more to decide what was in doubt."""
        for process in self.writers:
            process.terminate()
        for process in self.writers:
            process.join(STOP_S)
        for number in range(len(self.writers)):
            config = {"bootstrap.servers": self.broker.bootstrap, "transactional.id": f"soak-{number}"}
            engine = create_engine(self.url)
            with DualWriter(SqlStore(engine), config) as writer:
                writer.recover()
            engine.dispose()

    def count_rows(self) -> int:
        with psycopg.connect(self._dsn, connect_timeout=10) as connection:
            row = connection.execute("SELECT count(*) FROM soak").fetchone()
            return 0 if row is None else int(row[0])

    @property
    def _dsn(self) -> str:
        return self.url.replace("postgresql+psycopg", "postgresql")

    def read_rows(self) -> list[tuple[int, int]]:
        with psycopg.connect(self._dsn) as connection:
            return [(int(w), int(n)) for w, n in connection.execute("SELECT * FROM soak ORDER BY writer, n")]

    def read_records(self) -> list[tuple[int, int]]:
        """Return every committed record, partition after partition, in log order."""
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
        records, ended_partitions = list[tuple[int, int]](), set[int]()
        while len(ended_partitions) < PARTITIONS:
            for message in consumer.consume(10_000, 1.0):
                error = message.error()
                if error is None:
                    writer, _, n = (message.value() or b"").decode().partition(":")
                    records.append((int(writer), int(n)))
                elif error.code() == KafkaError._PARTITION_EOF:
                    ended_partitions.add(message.partition() or 0)
        consumer.close()
        return records


def compare(table: Sequence[tuple[int, int]], records: Sequence[tuple[int, int]]) -> list[str]:
    """Return the violations: a row or record missing, duplicated, or out of its writer's order."""
    wrong = []
    twice = [each for each, times in Counter(records).items() if times > 1]
    if twice:
        wrong.append(f"{len(twice)} records are there twice: {twice[:5]}")
    if missing := sorted(set(table) - set(records)):
        wrong.append(f"{len(missing)} rows have no record: {missing[:5]}")
    if extra := sorted(set(records) - set(table)):
        wrong.append(f"{len(extra)} records have no row: {extra[:5]}")
    for writer in sorted({each for each, _ in records}):
        order = [n for each, n in records if each == writer]
        if order != sorted(order):
            wrong.append(f"the records of writer {writer} are out of order")
    return wrong


def run(*, seconds: float, transactions: int, writers: int, seed: int) -> list[str]:
    """Do a whole run and return the checker's findings."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory(dir=quick_place()) as folder, PostgreSQL() as database:
        name = database.new_database()
        with psycopg.connect(database.url(name)) as connection:
            connection.execute("CREATE TABLE soak (writer int, n int, PRIMARY KEY (writer, n))")
        url = database.url(name).replace("postgresql:", "postgresql+psycopg:")
        engine = create_engine(url)
        SqlStore(engine).create()
        engine.dispose()
        with make_tallystick_process(Path(folder), SETTINGS) as broker:
            admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
            admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(30)
            soak = Soak(broker, database, url)
            soak.start_writers(writers)
            began = time.monotonic()
            try:
                _kill_at_random(soak, chance, began + seconds, began + PATIENCE * seconds, transactions)
                took = time.monotonic() - began
                soak.stop_writers()
            finally:
                for process in soak.writers:
                    process.kill()
                    process.join()
            table, records = soak.read_rows(), soak.read_records()
    wrong = compare(table, records)
    if len(table) < transactions:
        wrong.append(f"only {len(table)} of {transactions} transactions")
    kills = ", ".join(f"{soak.kills[who]} of {who}" for who in ("broker", "database", "writers"))
    print(f"{len(table):,} transactions in {took:.0f} s, {len(records):,} records; kill -9: {kills}")
    return wrong


def _kill_at_random(
    soak: Soak, chance: random.Random, until: float, latest: float, transactions: int
) -> None:
    while True:
        time.sleep(chance.uniform(*PAUSE_S))
        now = time.monotonic()
        if now > latest or (now > until and soak.count_rows() >= transactions):
            return
        soak.kill_one(chance)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--transactions", type=int, default=50_000)
    parser.add_argument("--writers", type=int, default=8)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    try:
        wrong = run(
            seconds=options.seconds,
            transactions=options.transactions,
            writers=options.writers,
            seed=options.seed,
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
