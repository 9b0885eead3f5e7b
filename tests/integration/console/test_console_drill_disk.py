"""A drill with disks: one that is full, or may only be read, is named with what makes room."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from tests.support.console_drill import Watcher, run
from tests.support.dual_write_lives import Lives, Strike
from tests.support.dual_write_stores import Place, create
from tests.support.small_disks import fill_disk, mount_small_disk

from tallystick import Producer
from tallystick.admin.client import Admin
from tallystick.admin.topics import NewTopic
from tallystick.kernel.errors import TallystickError
from tallystick.testing import EmbeddedBroker, eventually

pytestmark = [pytest.mark.server, pytest.mark.slow]

VALUE = b"x" * 50_000


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    with mount_small_disk(folder, 24) as mounted:
        yield mounted


def see_refusal(watcher: Watcher, subject: str) -> dict[str, Any]:
    """Return the problem of what takes no writes, as soon as the first page shows it above all others."""
    page = watcher.show("/", lambda page: page["health"] == "refusing")
    assert page["problems"][0]["subject"] == subject
    assert f"Writes are refused by {subject}." in page["headline"]
    return page["problems"][0]


def see_green(watcher: Watcher) -> None:
    watcher.show("/", lambda page: page["health"] == "ok")


@pytest.mark.gate(0)
@pytest.mark.mount
def test_a_broker_whose_disk_is_full(disk: Path) -> None:
    """The command of the page keeps less of the largest topic: there is room, and data is taken again."""
    config = {
        "log.reserve.bytes": "2097152",
        "log.retention.check.interval.ms": "200",
        "log.segment.delete.delay.ms": "0",
    }
    with EmbeddedBroker(data_dir=disk / "data", config=config) as broker:
        watcher = Watcher(broker.bootstrap_servers)
        settings = {"bootstrap.servers": broker.bootstrap_servers}
        small_segments = {"segment.bytes": "1048576"}
        with Admin(settings) as admin:
            admin.create_topics([NewTopic(name="big", partitions=1, config=small_segments)]).all()
        see_green(watcher)
        fill_topic({**settings, "delivery.timeout.ms": 3_000, "request.timeout.ms": 1_000, "linger.ms": 0})
        problem = see_refusal(watcher, "broker 1")
        assert "Its disk is full: " in problem["reason"]
        assert f"of 24.0 MiB are left for {disk / 'data'}" in problem["reason"]
        assert "The largest topics there: big (" in problem["reason"]
        assert problem["command"].endswith("--entity-name big --add-config retention.bytes=BYTES")
        assert run(problem["command"].replace("BYTES", "1048576")) == 0
        see_green(watcher)
        eventually(lambda: is_taken({**settings, "retries": 0}), deadline_s=30)


def fill_topic(config: dict[str, Any]) -> None:
    """Produce until the broker takes no more."""
    with Producer(config) as producer:
        for _ in range(1_000):
            try:
                producer.send("big", VALUE).result(30)
            except TallystickError:
                return
    raise AssertionError("the disk took it all")


def is_taken(config: dict[str, Any]) -> bool:
    with Producer(config) as producer:
        try:
            producer.send("big", b"small").result(30)
        except TallystickError:
            return False
    return True


@pytest.mark.gate(0)
@pytest.mark.mount
def test_a_database_whose_disk_is_full(disk: Path, lives: Lives) -> None:
    """Recovery has to write as well: room comes first, and then the command that ends what was left."""
    place = Place("sqlite", f"sqlite:///{disk / 'paid.db'}")
    create(place)
    with EmbeddedBroker(config={"flush.policy": "os"}, in_process=True) as broker:
        with Admin({"bootstrap.servers": broker.bootstrap_servers}) as admin:
            admin.create_topics([NewTopic(name="paid", partitions=1)]).all()
        config = {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "pay", "topic": "paid"}
        lives.live(place, config, pay=1)
        lives.live(place, config, pay=2, strike=Strike("record", after=True))
        ballast = fill_disk(disk)
        watcher = Watcher(broker.bootstrap_servers, [place.where])
        problem = see_refusal(watcher, place.where)
        assert f"Its disk is full: 0 bytes of 24.0 MiB are left for {disk}." in problem["reason"]
        assert "recovery" in problem["reason"]
        stores = watcher.show("/stores", lambda page: page["stores"][0]["refusal"] != "")
        assert stores["stores"][0]["refusal"] == problem["reason"]
        row = watcher.find_row("recover", "pay")
        ballast.unlink()
        assert run(row["command"], "--yes") == 0
        watcher.expect_gone("pay")
        see_green(watcher)


@pytest.mark.mount
def test_a_database_on_a_file_system_that_may_only_be_read(disk: Path) -> None:
    place = Place("sqlite", f"sqlite:///{disk / 'paid.db'}")
    create(place)
    with EmbeddedBroker(config={"flush.policy": "os"}, in_process=True) as broker:
        watcher = Watcher(broker.bootstrap_servers, [place.where])
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        assert (
            f"the file system of {disk} is mounted to be read only"
            in see_refusal(watcher, place.where)["reason"]
        )
        subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
        see_green(watcher)


def test_a_server_that_takes_no_writes(postgresql: Any) -> None:
    """For all users; that this console's own role may only read is no fault."""
    name = postgresql.new_database()
    url = postgresql.url(name).replace("postgresql://", "postgresql+psycopg://")
    create(Place("postgresql", url))
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection, EmbeddedBroker(in_process=True) as broker:
        watcher = Watcher(broker.bootstrap_servers, [url])

        def see_stores(is_refusing: bool) -> dict[str, Any]:
            return watcher.show(
                "/stores",
                lambda page: (
                    page["stores"][0]["is_reachable"] and bool(page["stores"][0]["refusal"]) is is_refusing
                ),
            )

        role = connection.execute(text("SELECT session_user")).scalar_one()
        connection.execute(text(f'ALTER ROLE "{role}" SET default_transaction_read_only = on'))
        see_stores(is_refusing=False)
        connection.execute(text(f'ALTER ROLE "{role}" RESET default_transaction_read_only'))
        connection.execute(text(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on'))
        page = see_stores(is_refusing=True)
        assert "default_transaction_read_only is on" in page["stores"][0]["refusal"]
        connection.execute(text(f'ALTER DATABASE "{name}" RESET default_transaction_read_only'))
        see_green(watcher)
    engine.dispose()
