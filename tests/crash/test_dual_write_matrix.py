"""kill -9 of a real process at every step of the dual write and of its recovery: both sides agree, always.

A cell is a store and a client mode. In it one transactional id lives on, killed before and after each step in
turn: of a payment, then of the recovery of whatever a killed payment left. After each the next life recovers,
recovers again and finds nothing, and the database's rows are compared with what librdkafka is shown.

The short form has every step on SQLite, and the decisive ones on every other store and in every mode; the
long form has every step everywhere, and Apache Kafka. One cell logs in over TLS, with no right beyond those
that a dual writer needs and with another certificate of the broker in every life.
"""

import itertools
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from deltalake import DeltaTable, write_deltalake
from tests.support import crash_table
from tests.support.dual_write_lives import Life, Lives, Strike
from tests.support.dual_write_stores import KINDS, POOLED, Place, create, leave, opened, rows, write
from tests.support.effort import LONG, long_form
from tests.support.lake_effects import DECISION_WRITTEN, FILE_FINISHED
from tests.support.secure_broker_process import SECRET, SESSION_MS, SecureBroker
from tests.support.servers import quick_place
from tools.servers import apache_kafka

from tallystick import Admin, Producer
from tallystick.dualwrite import DualWriter
from tallystick.lake.names import parse_table_url
from tallystick.lake.opening import LakeLocation, open_table
from tallystick.lake.sweeping import look_for_orphans, remove_orphans
from tallystick.testing import EmbeddedBroker, eventually

KAFKA = "Apache Kafka"
MAX_TIMEOUT_MS: Final = 30_000
OURS = "tallystick"
MODES = {"2pc": {}, **{modes: {"tallystick.modes": modes} for modes in ("2pc,resume", "keep", "resume")}}
# After each of these something else is left to find out.
DECISIVE = (
    "flush",
    "prepare",
    "finish data file",
    "record",
    DECISION_WRITTEN,
    "commit database",
    "commit",
    "start commit",
    "confirm commit",
)
DECISIVE_OF_RECOVERY = ("claim", "init", "complete")
# What a killed payment leaves for the next recovery: undecided, decided, finished.
LEFT_BY = ("record", "commit database", "commit") if LONG else ("commit database",)
_serial = itertools.count()

# Each system once; SQLite without asyncio has a test with every step.
OTHERS: Final = (
    "postgresql+asyncpg",
    "mysql+pymysql",
    "sqlite+aiosqlite",
    "django",
    "rocksdb",
    "zookeeper",
    "delta",
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.server,
    pytest.mark.timeout(1200 if LONG else 300),
    pytest.mark.broker(flush_policy="os"),
]


@pytest.fixture(scope="module", params=[1, 3], ids=["one-node", "three-nodes"])
def kafka(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[apache_kafka.ApacheKafka]:
    if (lack := apache_kafka.find_missing()) is not None:
        pytest.skip(lack)
    settings = {
        "transaction.state.log.num.partitions": "1",
        "offsets.topic.num.partitions": "1",
        "unstable.api.versions.enable": "true",
        "transaction.two.phase.commit.enable": "true",
        "transaction.max.timeout.ms": str(MAX_TIMEOUT_MS),
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
    }
    directory = tmp_path_factory.mktemp("kafka")
    with apache_kafka.ApacheKafka(directory=directory, nodes=request.param, settings=settings) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def secure_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureBroker]:
    settings = {"flush.policy": "os", "transaction.two.phase.commit.enable": "true"}
    with SecureBroker(tmp_path_factory.mktemp("secure"), settings) as running:
        running.grant_dual_writer("paid-", "paid-")
        yield running


@pytest.fixture(scope="module")
def lives() -> Iterator[Lives]:
    with Lives() as lives:
        yield lives


@pytest.fixture
def folder() -> Iterator[Path]:
    """In memory, if it can be: processes are killed here, and computers are not."""
    with tempfile.TemporaryDirectory(dir=quick_place()) as made:
        yield Path(made)


@pytest.fixture
def place(kind: str, request: pytest.FixtureRequest, folder: Path) -> Iterator[Place]:
    if kind == "rocksdb":
        made = Place(kind, str(folder / "rocks"))
    elif kind.startswith("delta"):
        made = Place(kind, str(folder / "table"))
    elif kind.startswith("sqlite"):
        made = Place(kind, f"sqlite:///{folder / 'rows.db'}")
    elif kind == "zookeeper":
        server = request.getfixturevalue("zookeeper")
        made = Place(kind, f"{server.hosts}{server.new_root()}")
    else:
        server = request.getfixturevalue("mariadb" if kind.startswith("mysql") else "postgresql")
        pooler = request.getfixturevalue("pgbouncer") if kind in POOLED else None
        made = Place(kind, server.url(server.new_database(), port=pooler and pooler.port))
    create(made)
    yield made
    leave(made)


class Shown:
    """What a reader of committed records is shown, all along: librdkafka."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.values: list[int] = []
        self._at = TopicPartition(topic, 0, 0)
        self._ended_at = 0
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": topic,
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 10,
                "log_level": 0,
            }
        )
        self._consumer.assign([self._at])

    def read(self) -> list[int]:
        """All so far, up to the last stable offset as it is now."""
        _, stable = self._consumer.get_watermark_offsets(self._at, timeout=30)
        while self._ended_at < stable:
            message = self._consumer.poll(1.0)  # `consume` of several waits for as many, or all of its time
            error = message.error() if message else None
            if message is not None and error is None:
                self.values.append(int(message.value() or b""))
            elif error is not None and error.code() == KafkaError._PARTITION_EOF:
                self._ended_at = message.offset() or 0
        return self.values

    def close(self) -> None:
        self._consumer.close()


@dataclass
class Cell:
    """A store and a mode, and everything that one transactional id lives through in them.

    bootstrap    where the test reads
    client       how a life connects, if otherwise
    before_life  called before every life
    wait         what a block waits for
    """

    place: Place
    cluster: str
    mode: str
    bootstrap: str
    lives: Lives
    client: Mapping[str, str] = field(default_factory=dict)
    before_life: Callable[[], None] = lambda: None
    wait: str = "committed"
    expected: list[int] = field(default_factory=list)
    strikes: list[crash_table.Struck] = field(default_factory=list)
    payments: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def __post_init__(self) -> None:
        self.topic = f"paid-{next(_serial)}"
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        admin.create_topics([NewTopic(self.topic, 1)])[self.topic].result(30)
        self.shown = Shown(self.bootstrap, self.topic)
        self.config = {
            "bootstrap.servers": self.bootstrap,
            "transactional.id": self.topic,
            "linger.ms": 0,
            **MODES[self.mode],
            **self.client,
        }

    def pay(self, strike: Strike) -> Life:
        """A life that recovers and pays, killed at `strike`; what it committed is expected from now on."""
        self.before_life()
        n = next(self.payments)
        life = self.lives.live(self.place, self.config, pay=n, strike=strike, wait=self.wait)
        # The one moment at which both halves are decided [DW-7].
        if "commit database" in life.done or DECISION_WRITTEN in life.done:
            self.expected.append(n)
        return life

    def recover(self, strike: Strike) -> Life:
        self.before_life()
        return self.lives.live(self.place, self.config, strike=strike)

    def settle(self, life: Life, strike: Strike, during: str) -> None:
        """The next life recovers, twice; then both sides are the same, and what was decided."""
        self.before_life()
        last = self.lives.live(self.place, self.config, recoveries=2)
        (finding, did), again = last.found
        assert again[1] == "nothing to do", again
        assert again[0] in ("IDLE", "FINISHED"), again
        have = rows(self.place)
        assert have == self.expected, (life.steps, finding)
        eventually(lambda: self.shown.read() == have)
        if strike.at:
            assert life.killed, strike
            when = "after" if strike.after else "before"
            self.strikes.append(
                crash_table.Struck(
                    during=during,
                    where=f"{when} {strike.at}",
                    found=finding,
                    did=did,
                    store=self.place.kind,
                    mode=self.mode,
                    cluster=self.cluster,
                )
            )


def strikes(decisive: tuple[str, ...] | None, steps: list[str]) -> Iterator[Strike]:
    """Before and after each step; if only some are decisive, after those."""
    for name in steps:
        if decisive is None:
            yield Strike(name, after=False)
        if decisive is None or name in decisive:
            yield Strike(name, after=True)


def payments(cell: Cell, decisive: tuple[str, ...] | None) -> None:
    """Every step of a life that recovers and pays."""
    cell.settle(cell.pay(Strike()), Strike(), "")
    untroubled = cell.pay(Strike())
    for strike in strikes(decisive, untroubled.steps):
        cell.settle(cell.pay(strike), strike, "a payment")


def recoveries(cell: Cell, decisive: tuple[str, ...] | None) -> None:
    """Every step of the recovery of each of the states that a payment leaves."""
    for name in LEFT_BY:
        first = Strike(name, after=True)
        cell.pay(first)
        for strike in strikes(decisive, cell.recover(Strike()).steps):
            cell.pay(first)
            cell.settle(cell.recover(strike), strike, f"the recovery after {name}")


def check(cell: Cell, *, every_step: bool) -> None:
    """[DW-1, DW-2, DW-3, DW-5, DW-6, DW-7]"""
    payments(cell, None if every_step else DECISIVE)
    recoveries(cell, None if every_step else DECISIVE_OF_RECOVERY)
    have = rows(cell.place)
    assert cell.shown.read() == have == cell.expected
    cell.shown.close()
    crash_table.note(cell.strikes)


@pytest.mark.gate(0)
@pytest.mark.parametrize("kind", ["sqlite"])
def test_every_step_on_sqlite(broker: EmbeddedBroker, lives: Lives, place: Place) -> None:
    check(Cell(place, OURS, "2pc", broker.bootstrap_servers, lives), every_step=True)


@pytest.mark.gate(0)
@pytest.mark.parametrize("kind", KINDS if LONG else OTHERS)
def test_every_store(broker: EmbeddedBroker, lives: Lives, place: Place) -> None:
    check(Cell(place, OURS, "2pc", broker.bootstrap_servers, lives), every_step=LONG)


@pytest.mark.gate(0)
@pytest.mark.parametrize("kind", KINDS if LONG else ["sqlite", "sqlite+aiosqlite"])
def test_every_step_beside_the_end(broker: EmbeddedBroker, lives: Lives, place: Place) -> None:
    """[DW-7] Blocks that wait for the decision alone: of the end only closing the writer hears."""
    cell = Cell(place, OURS, "2pc", broker.bootstrap_servers, lives, wait="decided")
    check(cell, every_step=LONG)


@pytest.mark.gate(0)
@pytest.mark.parametrize("kind", ["delta"])
def test_every_effect_among_other_writers(broker: EmbeddedBroker, lives: Lives, place: Place) -> None:
    """[LAK-1, LAK-2, LAK-3, DW-22] Others write, compact and sweep a Delta table before every life."""
    cell = Cell(place, OURS, "2pc", broker.bootstrap_servers, lives, before_life=lambda: disturb(place))
    payments(cell, None if LONG else (FILE_FINISHED, DECISION_WRITTEN))
    assert cell.shown.read() == rows(place) == cell.expected
    disturb(place)
    referenced = {Path(path).name for path in DeltaTable(place.where).file_uris()}
    others = {path.name for path in Path(place.where).glob("tallystick-*.parquet")} - referenced
    assert len(others) <= 1, "of the last owner's, which is alive as far as the table knows"
    cell.shown.close()
    crash_table.note(cell.strikes)


def disturb(place: Place) -> None:
    """Append rows, delete them, compact, write a checkpoint, vacuum, and sweep the orphans."""
    write_deltalake(place.where, pa.table({"n": [-1, -2]}), mode="append")
    table = DeltaTable(place.where)
    table.delete("n < 0")
    table.optimize.compact()
    table.create_checkpoint()
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    swept = open_table(LakeLocation(url=parse_table_url(f"delta:{place.where}")))
    remove_orphans(swept, look_for_orphans(swept))


@pytest.mark.gate(0)
@pytest.mark.parametrize("mode", ["keep", "resume"])
@pytest.mark.parametrize("kind", KINDS if LONG else ["sqlite"])
def test_every_mode(broker: EmbeddedBroker, lives: Lives, place: Place, mode: str) -> None:
    check(Cell(place, OURS, mode, broker.bootstrap_servers, lives), every_step=LONG)


@pytest.mark.gate(0)
@pytest.mark.parametrize("kind", ["sqlite"])
def test_every_step_over_sasl_ssl(secure_broker: SecureBroker, lives: Lives, place: Place) -> None:
    cell = Cell(
        place,
        OURS,
        "2pc",
        secure_broker.bootstrap,
        lives,
        client=secure_broker.client,
        before_life=secure_broker.rotate,
    )
    check(cell, every_step=LONG)
    assert secure_broker.count_reloads() > 0
    assert SECRET not in secure_broker.log.read_text()


@pytest.mark.gate(0)
def test_a_dual_write_outlives_its_login(secure_broker: SecureBroker, folder: Path) -> None:
    """KIP-368: the client logs in again with its transaction open, and the broker ends no connection."""
    topic = f"paid-{next(_serial)}"
    place = Place("sqlite", f"sqlite:///{folder / 'rows.db'}")
    create(place)
    admin = AdminClient({"bootstrap.servers": secure_broker.bootstrap})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
    config = {**secure_broker.client, "transactional.id": topic, "linger.ms": 0}
    sent = 0
    with opened(place) as store, DualWriter(store, config) as writer:
        writer.recover()
        with writer.transaction() as txn:
            write(place.kind, txn.database.handle, 1)
            end = time.monotonic() + 1.5 * SESSION_MS / 1000
            while time.monotonic() < end:
                txn.send(topic, str(sent).encode()).result(30)
                sent += 1
    shown = Shown(secure_broker.bootstrap, topic)
    assert shown.read() == list(range(sent))
    shown.close()
    assert rows(place) == [1]
    assert "session expired" not in secure_broker.log.read_text()


@pytest.mark.kafka
@long_form
@pytest.mark.parametrize("mode", ["2pc,resume", "resume"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_step_on_apache_kafka(
    kafka: apache_kafka.ApacheKafka, lives: Lives, place: Place, mode: str
) -> None:
    check(Cell(place, KAFKA, mode, kafka.bootstrap, lives), every_step=True)


@pytest.mark.kafka
@pytest.mark.gate(0)
@pytest.mark.parametrize("kind", ["sqlite"])
def test_an_outage_may_be_longer_than_any_timeout(
    kafka: apache_kafka.ApacheKafka, lives: Lives, place: Place
) -> None:
    """Apache Kafka grants Enable2Pc without KeepPreparedTxn; `resume` recovers what the database decided.

    KIP-939: "the transaction coordinator would never abort" it. A transaction without Enable2Pc, begun before
    it, is the clock: the cluster has aborted that one by its timeout.
    """
    cell = Cell(place, KAFKA, "2pc,resume", kafka.bootstrap, lives)
    cell.settle(cell.pay(Strike()), Strike(), "")
    clock = f"clock-of-{cell.topic}"
    config = {"bootstrap.servers": kafka.bootstrap, "transactional.id": clock, "tallystick.modes": "resume"}
    with Producer({**config, "transaction.timeout.ms": MAX_TIMEOUT_MS}) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(f"other-than-{cell.topic}", b"")
        producer.prepare_transaction()
        dead = cell.pay(Strike("commit database", after=True))
        for node in kafka.brokers:
            node.kill()
        kafka.start()
        with Admin({"bootstrap.servers": kafka.bootstrap}) as admin:

            def find_state(name: str) -> str:
                return admin.describe_transactions([name]).all()[name].state

            assert eventually(lambda: find_state(clock) == "CompleteAbort", 2 * MAX_TIMEOUT_MS / 1000)
            assert find_state(cell.topic) == "Ongoing"
        producer.close(abort=False)
    cell.settle(dead, Strike(), "")
    assert cell.shown.read() == rows(place) == cell.expected == [1, 2]
    cell.shown.close()
