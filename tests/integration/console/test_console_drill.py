"""A drill: something goes wrong, the page names it and a command, the command is run, and all is well."""

import asyncio
import itertools
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine
from tests.support.console_drill import Json, Watcher, follow_page, run
from tests.support.console_operator import PACES
from tests.support.dual_write_lives import Lives, Strike
from tests.support.dual_write_stores import Place, create, opened
from tests.support.hanging import hang

from tallystick import Consumer, Producer
from tallystick import TopicPartition as PublicTopicPartition
from tallystick.admin.client import Admin
from tallystick.admin.topics import NewTopic
from tallystick.console.collect.config import CollectorConfig
from tallystick.console.model.health import Limits
from tallystick.dualwrite import DualWriter
from tallystick.kernel.ids import TopicPartition
from tallystick.testing import EmbeddedBroker

pytestmark = [
    pytest.mark.server,
    pytest.mark.slow,
    pytest.mark.broker(
        in_process=False, config={"flush.policy": "os", "transaction.partition.verification.enable": "false"}
    ),
]

_serial = itertools.count(1)


class Drill(Watcher):
    """A topic, an SQLite store, and the console that watches them, with limits that are short."""

    def __init__(self, broker: EmbeddedBroker, lives: Lives, folder: Path) -> None:
        self.broker, self.lives, self.folder = broker, lives, folder
        self.name = f"drill-{next(_serial)}"
        self.place = Place("sqlite", f"sqlite:///{folder / 'paid.db'}")
        create(self.place)
        super().__init__(broker.bootstrap_servers, [self.place.where])
        with Admin({"bootstrap.servers": broker.bootstrap_servers}) as admin:
            admin.create_topics([NewTopic(name=self.name, partitions=1)])

    @property
    def config(self) -> Json:
        return {"bootstrap.servers": self.broker.bootstrap_servers, "transactional.id": self.name}

    def live(self, strike: Strike | None = None) -> None:
        """Run a writer's process; it is killed at `strike`."""
        self.lives.live(self.place, {**self.config, "topic": self.name}, pay=next(_serial), strike=strike)

    def find_row(self, health: str, key: str | None = None, **options: Any) -> Json:
        """Return the row of a transaction, by default the drill's own, as soon as it has this health."""
        return super().find_row(health, key or self.name, **options)

    def expect_green(self, **options: Any) -> None:
        """Wait until nothing of this drill is shown."""
        self.expect_gone(self.name, **options)


@pytest.fixture
def drill(broker: EmbeddedBroker, lives: Lives, tmp_path: Path) -> Drill:
    return Drill(broker, lives, tmp_path)


@pytest.mark.gate(1)
@pytest.mark.parametrize(
    ("strike", "stage", "verdict"),
    [
        (Strike("record", after=True), "open", "abort"),
        (Strike("commit database", after=True), "decided", "commit"),
    ],
    ids=["before the decision", "after the decision"],
)
def test_a_writer_that_is_dead(drill: Drill, strike: Strike, stage: str, verdict: str) -> None:
    drill.live()
    drill.live(strike)
    row = drill.find_row("recover")
    assert (row["stage"], row["verdict"], row["store"]) == (stage, verdict, drill.place.where)
    assert row["held_back_count"] > 0
    assert run(row["command"], "--yes") == 0
    drill.expect_green()


def test_a_database_that_is_away(drill: Drill) -> None:
    lost = drill.folder / "elsewhere.db"
    (drill.folder / "paid.db").rename(lost)
    page = drill.show("/", lambda page: page["health"] == "unknown" and page["info"]["outages"] != [])
    assert "paid.db" in page["info"]["outages"][0]["reason"]
    assert not page["stores"][0]["is_reachable"]
    lost.rename(drill.folder / "paid.db")
    assert drill.show("/", lambda page: page["stores"][0]["is_reachable"])["info"]["failures"] == []


def test_a_hanging_transaction_by_a_raw_request(drill: Drill) -> None:
    producer_id = 990_000 + next(_serial)
    hang(drill.broker.bootstrap_servers, TopicPartition(drill.name, 0), producer_id)
    key = f"producer:{producer_id}:0"
    row = drill.find_row("hanging", key)
    assert "nothing will end it" in row["reason"].lower()
    topic = drill.show(f"/topics/{drill.name}", lambda page: page["partitions"][0]["holder"] == key)
    assert topic["partitions"][0]["held_back_count"] == 1
    assert run(row["command"], "--yes") == 0
    drill.show("/transactions", lambda page: key not in str(page["rows"]))


def prepare(drill: Drill, value: bytes = b"v") -> tuple[Producer, str]:
    """Prepare a transaction that no database knows; return its producer and its state."""
    producer = Producer({**drill.config, "transaction.two.phase.commit.enable": True})
    producer.init_transactions()
    producer.begin_transaction()
    producer.send(drill.name, value)
    return producer, str(producer.prepare_transaction())


def test_an_orphan_is_completed_by_its_state(drill: Drill) -> None:
    producer, state = prepare(drill)
    row = drill.find_row("orphan")
    assert row["command"].endswith(" STATE")
    assert run(row["command"].replace("STATE", state), "--yes") == 0
    drill.expect_green()
    producer.close()


def test_an_orphan_is_none_where_its_store_is_read(drill: Drill) -> None:
    drill.live()
    drill.live(Strike("record", after=True))
    drill.find_row("orphan", stores=())
    drill.find_row("recover")
    drill.live()
    drill.expect_green()


def test_a_zombie_needs_nothing(drill: Drill) -> None:
    """A second writer has fenced the first: what that had open is aborted, and it cannot go on."""
    drill.live()
    zombie, _ = prepare(drill)
    with opened(drill.place) as store, DualWriter(store, drill.config) as writer:
        writer.recover()
    drill.expect_green()
    zombie.close()


def test_sides_that_differ(drill: Drill, capsys: pytest.CaptureFixture[str]) -> None:
    """The cluster was made to abort what the database had committed, behind its writer's back."""
    drill.live()
    drill.live(Strike("commit database", after=True))
    with Admin({"bootstrap.servers": drill.broker.bootstrap_servers}) as admin:
        admin.force_terminate_transaction(drill.name, force=True)
    row = drill.find_row("broken")
    assert row["verdict"] == "tear"
    assert run(row["command"], "--dry-run") == 3
    assert "aborted" in capsys.readouterr().out
    assert run(row["command"], "--confirm", drill.name) == 0
    drill.expect_green()


def test_a_database_that_lost_a_commit(drill: Drill) -> None:
    drill.live()
    backup = drill.folder / "backup.db"
    shutil.copy(drill.folder / "paid.db", backup)
    drill.live()
    shutil.copy(backup, drill.folder / "paid.db")
    row = drill.find_row("broken")
    assert row["verdict"] == "lack"
    with opened(drill.place) as store, DualWriter(store, drill.config) as writer:
        writer.recover(accept_mixed=True)
    drill.expect_green()


def test_a_group_that_waits_behind_an_open_transaction(drill: Drill) -> None:
    producer, state = prepare(drill)
    group = f"{drill.name}-readers"
    with Consumer({"bootstrap.servers": drill.broker.bootstrap_servers, "group.id": group}) as consumer:
        at = PublicTopicPartition(drill.name, 0)
        consumer.assign([at])
        consumer.commit({at: 0})
    page = drill.show(
        "/groups",
        lambda page: any(row["group_id"] == group and row["held_back_count"] for row in page["groups"]),
    )
    row = next(row for row in page["groups"] if row["group_id"] == group)
    assert (row["data_lag"], row["held_back_count"]) == (0, 1)
    topic = drill.show(f"/topics/{drill.name}", lambda page: page["partitions"][0]["holder"] == drill.name)
    assert topic["partitions"][0]["holder_health"] == "orphan"
    command = drill.find_row("orphan")["command"]
    assert run(command.replace("STATE", state), "--yes") == 0
    drill.show(
        "/groups",
        lambda page: any(row["group_id"] == group and row["data_lag"] == 1 for row in page["groups"]),
    )
    producer.close()


@pytest.mark.gate(0)
def test_a_live_writer_is_never_called_anything_but_well(drill: Drill) -> None:
    """[CON-1] While payments go on no reading of the views looks broken, whatever is in flight."""
    seen: set[str] = set()
    count = 0

    def look(page: Json) -> bool:
        nonlocal count
        seen.update(row["health"] for row in page["rows"] if row["key"] == drill.name)
        count += 1
        return count >= 40

    with opened(drill.place) as store, DualWriter(store, drill.config) as writer:
        writer.recover()
        stop = False

        def pay() -> None:
            while not stop:
                with writer.transaction() as txn:
                    txn.send(drill.name, b"v")

        async def watch() -> None:
            nonlocal stop
            paying = asyncio.create_task(asyncio.to_thread(pay))
            try:
                config = CollectorConfig.check(
                    {"bootstrap.servers": drill.broker.bootstrap_servers},
                    [drill.place.where],
                    paces=PACES,
                    publish_ms=20,
                )
                await follow_page(config, Limits(), "/transactions", look)
            finally:
                stop = True
                await paying

        asyncio.run(watch())
    assert seen <= {"ok", "looking again"}
    create_engine(drill.place.url).dispose()


def test_every_drill_has_a_broker_of_its_kind(broker: EmbeddedBroker) -> None:
    """A guard: without verification, as hanging transactions need."""
    with Admin({"bootstrap.servers": broker.bootstrap_servers}) as admin:
        assert isinstance(admin.describe_features(), Mapping)
