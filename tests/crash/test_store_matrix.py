"""Every store but SqlStore, which has a larger matrix: a kill -9 after a step, recovery, and both agree.

The short form kills on both sides of the decision; TALLYSTICK_LONG=1 after every step, recovery's included.
"""

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from kazoo.client import KazooClient
from rocksdict import Rdict
from tests.support.effort import LONG
from tests.support.reading import committed_records
from tests.support.servers import PostgreSQL, ZooKeeper
from tests.support.store_child import TOPIC

from tallystick.testing import EmbeddedBroker

pytestmark = [pytest.mark.server, pytest.mark.slow]

CHILD = Path(__file__).parents[1] / "support/store_child.py"
DECISION = ["record", "commit database"]
STEPS_MAX = 60


@dataclass
class World:
    kind: str
    where: str
    rows: Callable[[], set[str]]


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(config={"auto.create.topics.enable": True}) as running:
        yield running


# `test_dual_write_matrix.py` kills around the decisions of the others in `make test`, too.
@pytest.fixture(params=["rocksdb", "zookeeper", "django", "async", "delta"] if LONG else ["rocksdb", "async"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    kind = request.param
    if kind == "rocksdb":
        path = str(tmp_path / "db")

        def keys() -> set[str]:
            with closing(Rdict(path)) as database:
                return {str(key) for key in database.keys()}  # noqa: SIM118

        return World(kind, path, keys)
    if kind == "delta":
        table = tmp_path / "table"
        DeltaTable.create(table, schema=pa.schema([("v", pa.string())]))

        def values() -> set[str]:
            return set(pa.table(DeltaTable(table).scan().read_all())["v"].to_pylist())

        return World(kind, str(table), values)
    if kind == "zookeeper":
        zookeeper: ZooKeeper = request.getfixturevalue("zookeeper")
        root = zookeeper.new_root()

        def nodes() -> set[str]:
            client = KazooClient(zookeeper.hosts)
            client.start()
            try:
                return set(client.get_children(f"{root}-rows"))
            finally:
                client.stop()
                client.close()

        return World(kind, f"{zookeeper.hosts}|{root}", nodes)

    server: PostgreSQL = request.getfixturevalue("postgresql")
    name = server.new_database()
    with psycopg.connect(server.url(name)) as connection:
        connection.execute("CREATE TABLE mine (v TEXT PRIMARY KEY)")

    def rows() -> set[str]:
        with psycopg.connect(server.url(name)) as connection:
            return {row[0] for row in connection.execute("SELECT v FROM mine")}

    if kind == "async":
        return World(kind, server.url(name).replace("://", "+asyncpg://"), rows)
    database = {"ENGINE": "django.db.backends.postgresql", "NAME": name, "USER": "postgres"}
    return World(kind, json.dumps(database | {"HOST": "127.0.0.1", "PORT": server.port}), rows)


def read_committed(broker: EmbeddedBroker) -> list[str]:
    records = committed_records({"bootstrap.servers": broker.bootstrap_servers}, TOPIC)
    return [record.value.decode() for record in records if record.value is not None]


@pytest.mark.gate(0)
def test_row_and_record_agree_after_a_kill_after_any_step(world: World, broker: EmbeddedBroker) -> None:
    """[DW-6] [DW-7] What was decided before the kill is in both afterwards; what was not is in neither."""

    def live(step: str, value: str) -> int:
        command = [sys.executable, str(CHILD), world.kind, world.where, broker.bootstrap_servers, step, value]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        return done.returncode

    killed = 0
    for step in map(str, range(1, STEPS_MAX)) if LONG else DECISION:
        survived = live(step, f"killed-{step}") == 0
        killed += not survived
        assert live("0", f"after-{step}") == 0
        values = read_committed(broker)
        assert len(set(values)) == len(values), step
        assert set(values) == world.rows(), step
        assert f"after-{step}" in values
        if step in DECISION:
            assert (f"killed-{step}" in values) == (step == "commit database")
        if survived:
            break
    assert killed >= len(DECISION)
