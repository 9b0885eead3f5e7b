"""What the integration tests ask a broker for: an administrator, a topic, and worlds of dual writes."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import NullPool, create_engine, make_url
from tests.support.dual_world import MakeWorld, World, new_name, worlds
from tests.support.raw_producer import make_topic
from tests.support.servers import MariaDB, PostgreSQL

from tallystick import Admin
from tallystick.testing import EmbeddedBroker


@pytest.fixture
def admin(broker: EmbeddedBroker) -> Iterator[Admin]:
    with Admin({"bootstrap.servers": broker.bootstrap_servers}) as opened:
        yield opened


@pytest.fixture
def topic(broker: EmbeddedBroker) -> str:
    """A topic of one partition that no other test has."""
    name = new_name()
    make_topic(broker, name)
    return name


@pytest.fixture
def sqlite_world(broker: EmbeddedBroker, tmp_path: Path) -> Iterator[MakeWorld]:
    yield from worlds(
        broker, lambda name: create_engine(f"sqlite:///{tmp_path / name}.db", poolclass=NullPool)
    )


@pytest.fixture
def postgresql_world(broker: EmbeddedBroker, postgresql: PostgreSQL) -> Iterator[MakeWorld]:
    url = make_url(postgresql.url(postgresql.new_database())).set(drivername="postgresql+psycopg")
    yield from worlds(broker, lambda _: create_engine(url, poolclass=NullPool))


@pytest.fixture
def mariadb_world(broker: EmbeddedBroker, mariadb: MariaDB) -> Iterator[MakeWorld]:
    url = make_url(mariadb.url(mariadb.new_database())).set(drivername="mysql+pymysql")
    yield from worlds(broker, lambda _: create_engine(url, poolclass=NullPool))


@pytest.fixture
def world(sqlite_world: MakeWorld) -> World:
    return sqlite_world()
