"""[DW-27] Blocks drawn at random, with the real writer: rows and records agree on other databases too."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from sqlalchemy import Connection, Engine, create_engine, make_url, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session
from tests.support.dual_world import new_name
from tests.support.random_blocks import (
    BLOCKS,
    Drawn,
    Effects,
    Failure,
    Objects,
    Step,
    fail_commit,
    fail_in_block,
    prepare,
    read,
)
from tests.support.raw_producer import committed_values, make_topic

from tallystick.dualwrite import DualWriter, SqlStore, Transaction
from tallystick.dualwrite.stores.sql import SqlTransaction
from tallystick.testing import EmbeddedBroker, eventually

pytestmark = pytest.mark.server


@pytest.fixture(
    params=["postgresql+psycopg", pytest.param("mysql+pymysql", marks=pytest.mark.slow)], scope="module"
)
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    server = request.getfixturevalue("postgresql" if "postgresql" in request.param else "mariadb")
    engine = create_engine(make_url(server.url(server.new_database())).set(drivername=request.param))
    SqlStore(engine).create()
    yield engine
    engine.dispose()


@pytest.fixture(scope="module")
def writer(engine: Engine, broker: EmbeddedBroker) -> Iterator[DualWriter[SqlTransaction]]:
    config = {
        "bootstrap.servers": broker.bootstrap_servers,
        "transactional.id": new_name(),
        "linger.ms": 0,
    }
    with DualWriter(SqlStore(engine), config) as writer:
        writer.recover()
        yield writer


@pytest.mark.gate(1)
@settings(
    deadline=None,
    max_examples=15,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(drawn=BLOCKS)
@example(drawn=Drawn((Step("outside"), Step("held"), Step("delete held", 1)), tuple(Failure)))
def test_a_block_is_in_both_halves_whatever_happened_before(
    engine: Engine, writer: DualWriter[SqlTransaction], broker: EmbeddedBroker, drawn: Drawn
) -> None:
    topic = new_name()
    make_topic(broker, topic)
    with engine.begin() as connection:
        prepare(connection)
    with Session(engine) as session:
        objects = Objects(session)
    for failure in (*drawn.failures, None):
        try:
            with writer.transaction(wait_visible=True) as txn:
                fail_commit(txn.connection, failure)
                objects.do_steps(txn, drawn.steps, topic=topic)
                fail_in_block(txn.session, failure)
        except BaseException:
            assert failure is not None
        if not writer.ready:
            writer.recover()
    expected = Effects()
    expected.apply(drawn.steps)
    with engine.connect() as connection:
        assert read(connection) == expected.rows
    assert Counter(committed_values(broker, topic, 0)) == expected.records


def test_work_whose_pooled_connection_was_ended_is_repeated(
    engine: Engine, writer: DualWriter[SqlTransaction], broker: EmbeddedBroker
) -> None:
    """It was certainly not committed: BEGIN itself has failed."""
    topic = new_name()
    make_topic(broker, topic)
    with engine.begin() as connection:
        prepare(connection)
    runs = []

    def pay(txn: Transaction[SqlTransaction]) -> None:
        runs.append(txn)
        txn.connection.execute(text("INSERT INTO paid VALUES ('a', 1)"))
        txn.send(topic, b"a")

    end_idle_connection(engine)
    with pytest.raises(DBAPIError):
        writer.run(pay)
    if not writer.ready:
        writer.recover()
    end_idle_connection(engine)
    writer.run(pay, retries=1)
    assert len(runs) == 1, "each has failed at BEGIN, and the last one was repeated"
    assert eventually(lambda: committed_values(broker, topic, 0)) == ["a"]


def end_idle_connection(engine: Engine) -> None:
    """End the only connection that is in the pool, in its server."""
    engine.dispose()
    with engine.connect() as idle:
        ended = end_statement(idle)
    other = create_engine(engine.url)
    with other.connect() as connection:
        connection.execute(text(ended))
    other.dispose()


def end_statement(connection: Connection) -> str:
    """Return the statement that ends a connection in its server."""
    driver: Any = connection.connection.driver_connection
    if hasattr(driver, "info"):
        return f"SELECT pg_terminate_backend({driver.info.backend_pid})"
    return f"KILL CONNECTION {driver.thread_id()}"
