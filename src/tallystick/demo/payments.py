"""`tallystick demo --quick`: payments into SQLite and a topic, while writers and broker are killed.

Each payment is a row and a record. Two writer processes pay as fast as they can; every second one of them, or
the broker, gets a SIGKILL and is started again. In the end rows and records are read back and compared.
"""

import itertools
import multiprocessing
import random
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

from sqlalchemy import create_engine

from tallystick import Admin, Consumer, TopicPartition
from tallystick.admin.topics import NewTopic
from tallystick.broker.embedded import EmbeddedBroker
from tallystick.demo import Audience, ContentCheck, payments_writer
from tallystick.demo.payments_writer import TOPIC
from tallystick.dualwrite import DualWriter, SqlStore
from tallystick.kernel.errors import TallystickError
from tallystick.kernel.value import Value

WRITERS: Final = ("till-1", "till-2")
BROKER: Final = "the broker"
# Writers are forked from a process that has loaded all they need: the next one pays within milliseconds.
_FORKS: Final = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload([payments_writer.__name__, "tallystick.dualwrite.blocking.writer"])
_PARTITIONS: Final = 2
_PAUSE_S: Final = (0.4, 1.4)  # between two kills
_POLL_S: Final = 0.05
_START_S: Final = 30.0
_STOP_S: Final = 20.0
_TABLE: Final = (
    "CREATE TABLE payments (writer TEXT, number INTEGER, PRIMARY KEY (writer, number)) WITHOUT ROWID"
)
_FOUND: Final = {
    "DECIDED": "SQLite had committed a payment and Kafka had not: committed in Kafka",
    "STALE": "Kafka held a payment that SQLite never committed: aborted in Kafka",
    "UNDECIDED": "Kafka held a payment that SQLite never committed: aborted in Kafka",
}
"""What a recovery says of findings that left something to do."""


class WriterFailed(TallystickError):
    """A writer ended, or pays nothing; the text names its log."""


class PaymentsResult(Value, kw_only=True):
    """The result of a quick demo.

    checks     the comparison of the topic with the table, for each writer
    kills      how often each part was killed
    committed  payments in doubt after a kill that the database had committed
    aborted    payments in doubt after a kill that it had not
    """

    checks: Sequence[ContentCheck]
    kills: Counter[str]
    committed: int
    aborted: int
    seconds: float

    @property
    def is_exactly_once(self) -> bool:
        return all(each.is_exact for each in self.checks)


class PaymentsRun:
    """A quick demo in one folder."""

    def __init__(
        self,
        folder: Path,
        say: Callable[[str], None],
        audience: Audience[PaymentsResult] | None = None,
        *,
        seconds: float = 12.0,
        chance: random.Random | None = None,
    ) -> None:
        """Prepare a demo.

        Args:
            folder: an existing, empty folder.
            say: prints one line for the user.
            seconds: for how long to kill; each part is killed at least once.
        """
        self._folder, self._say, self._audience = folder, say, audience
        self._seconds, self._chance = seconds, chance or random.Random()
        self._file, self._log = folder / "payments.db", folder / "writers.log"
        self._broker = EmbeddedBroker(
            folder / "broker", config={"flush.policy": "ack", "num.partitions": _PARTITIONS}
        )
        self._writers: dict[str, _WriterProcess] = {}
        self._kills, self._findings = Counter[str](), Counter[str]()

    def run(self) -> PaymentsResult:
        """Run the demo and return its result. Raises: WriterFailed, client errors, sqlite3.Error."""
        started_at = time.monotonic()
        with closing(sqlite3.connect(self._file)) as connection:
            connection.execute(_TABLE)
        engine = create_engine(self._url)
        SqlStore(engine).create()
        engine.dispose()
        with self._broker:
            bootstrap = self._broker.bootstrap_servers
            self._say(f"a broker listens at {bootstrap}; the database is {self._file}")
            if self._audience is not None:
                self._audience.begin(bootstrap, self._url)
            with Admin({"bootstrap.servers": bootstrap}) as admin:
                admin.create_topics([NewTopic(name=TOPIC)]).all()
            try:
                self._pay()
            finally:
                for writer in self._writers.values():
                    writer.stop()
            self._recover()
            self._say("a reader compares the rows with the committed records")
            result = PaymentsResult(
                checks=compare(self._read_rows(), self._read_records()),
                kills=self._kills,
                committed=self._findings["DECIDED"],
                aborted=self._findings["STALE"] + self._findings["UNDECIDED"],
                seconds=time.monotonic() - started_at,
            )
            if self._audience is not None:
                self._audience.end(result)
        return result

    @property
    def _url(self) -> str:
        return f"sqlite:///{self._file}"

    def _pay(self) -> None:
        """Start the writers and kill one part after the other; both writers are at work in the end."""
        for name in WRITERS:
            self._start(name)
        end = time.monotonic() + self._seconds
        for part in itertools.cycle((*WRITERS, BROKER, *WRITERS)):
            if BROKER in self._kills and time.monotonic() > end:
                break
            self._wait_until_paying()
            self._wait(self._chance.uniform(*_PAUSE_S))
            self._kill(part)
        self._wait_until_paying()

    def _start(self, name: str) -> None:
        self._writers[name] = _WriterProcess(name, self._broker.bootstrap_servers, self._url, self._log)

    def _kill(self, part: str) -> None:
        count = f"{self._count_rows().total():,} payments so far"
        self._kills[part] += 1
        if part == BROKER:
            self._broker.kill()
            self._say(f"KILLED {part}; {count}")
            self._broker.start()
        else:
            self._writers[part].kill()
            self._say(f"KILLED {part}; {count}")
            self._start(part)

    def _wait_until_paying(self) -> None:
        """Wait until each writer has recovered and paid. Raises: WriterFailed."""
        end, before = time.monotonic() + _START_S, self._count_rows()
        while not self._are_paying(before):
            if time.monotonic() > end:
                raise WriterFailed(f"no payment for {_START_S:g} s; see {self._log}")
            self._wait(_POLL_S)

    def _are_paying(self, before: Counter[str]) -> bool:
        counts = self._count_rows()
        return all(each.is_ready and counts[name] > before[name] for name, each in self._writers.items())

    def _wait(self, seconds: float) -> None:
        """Wait, and tell meanwhile what recoveries find."""
        end = time.monotonic() + seconds
        while True:
            for name, writer in self._writers.items():
                for finding in writer.new_findings():
                    self._note(name, finding)
                if writer.has_ended:
                    raise WriterFailed(f"{name} ended; see {self._log}")
            if (left := end - time.monotonic()) <= 0:
                return
            time.sleep(min(left, _POLL_S))

    def _note(self, name: str, finding: str) -> None:
        self._findings[finding] += 1
        if finding in _FOUND:
            self._say(f"{name} recovered: {_FOUND[finding]}")

    def _recover(self) -> None:
        """Decide what a writer could not, because it was stopped while the broker came back."""
        for name in WRITERS:
            for finding in self._writers[name].new_findings():
                self._note(name, finding)
            config = {"bootstrap.servers": self._broker.bootstrap_servers, "transactional.id": name}
            engine = create_engine(self._url)
            with DualWriter(SqlStore(engine), config) as writer:
                for each in writer.recover().ids:
                    self._note(name, each.finding.name)
            engine.dispose()

    def _count_rows(self) -> Counter[str]:
        with closing(sqlite3.connect(self._file)) as connection:
            counts = connection.execute("SELECT writer, count(*) FROM payments GROUP BY writer")
            return Counter(dict(counts.fetchall()))

    def _read_rows(self) -> list[tuple[str, int]]:
        with closing(sqlite3.connect(self._file)) as connection:
            return connection.execute("SELECT writer, number FROM payments").fetchall()

    def _read_records(self) -> list[tuple[str, int]]:
        """Read the committed records of the topic, from its start to its end."""
        at = [TopicPartition(TOPIC, number) for number in range(_PARTITIONS)]
        config = {"bootstrap.servers": self._broker.bootstrap_servers, "isolation.level": "read_committed"}
        values: list[str] = []
        with Consumer(config) as consumer:
            consumer.assign(at)
            consumer.seek_to_beginning()
            ends = consumer.end_offsets(at)
            while any(consumer.position(each) < end for each, end in ends.items()):
                values += [(record.value or b"").decode() for record in consumer.poll(1.0)]
        split = (value.partition(":") for value in values)
        return [(writer, int(number)) for writer, _, number in split]


def compare(rows: Sequence[tuple[str, int]], records: Sequence[tuple[str, int]]) -> tuple[ContentCheck, ...]:
    """Compare the records of each writer with its rows."""
    checks = []
    for name in sorted({writer for writer, _ in (*rows, *records)}):
        paid = {number for writer, number in rows if writer == name}
        seen = Counter(number for writer, number in records if writer == name)
        checks.append(
            ContentCheck(
                target=f"payments of {name}",
                expected=len(paid),
                actual=seen.total(),
                missing=len(paid - seen.keys()),
                duplicated=sum(count - 1 for count in seen.values()),
                wrong=len(seen.keys() - paid),
            )
        )
    return tuple(checks)


class _WriterProcess:
    """One writer, from its start to SIGTERM or SIGKILL."""

    def __init__(self, name: str, bootstrap_servers: str, url: str, log: Path) -> None:
        self._findings, sender = _FORKS.Pipe(duplex=False)
        words = (name, bootstrap_servers, url, log, sender)
        self._process = _FORKS.Process(target=payments_writer.pay, args=words, daemon=True)
        self._process.start()
        sender.close()
        self.is_ready = False

    @property
    def has_ended(self) -> bool:
        return not self._process.is_alive()

    def new_findings(self) -> Iterator[str]:
        """Yield what recoveries have found since the last call."""
        try:
            while self._findings.poll():
                yield self._findings.recv()
                self.is_ready = True
        except EOFError:  # it has ended
            return

    def kill(self) -> None:
        self._process.kill()
        self._process.join()

    def stop(self) -> None:
        """Let it finish the payment that it is at. Idempotent."""
        self._process.terminate()
        self._process.join(_STOP_S)
        self.kill()
