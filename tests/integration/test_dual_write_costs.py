"""What one dual write costs its caller: round trips to the database, requests, forced writes of the broker.

Of several dual writes the cheapest counts: forced writes that the broker makes for the one before, which
nobody waits for, may fall into the next.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.pool import StaticPool
from tests.support.cutting_proxy import CuttingProxy
from tests.support.raw_producer import make_topic
from tests.support.recorded_dual_write import Costs, Recorder, record_broker
from tests.support.servers import PostgreSQL

from tallystick.dualwrite import DualWriter, SqlStore
from tallystick.testing import EmbeddedBroker

pytestmark = pytest.mark.server

TRANSACTIONS = 12


@pytest.fixture(scope="module")
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture(scope="module")
def broker(recorder: Recorder) -> Iterator[EmbeddedBroker]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        record_broker(recorder, monkeypatch)
        with EmbeddedBroker(in_process=True, config={"flush.policy": "ack"}) as broker:
            make_topic(broker, "paid")
            yield broker


def find_costs(engine: Engine, broker: EmbeddedBroker, recorder: Recorder) -> Costs:
    """Return the least costs of several dual writes, one after the other."""
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE payments (n INTEGER)"))
    store = SqlStore(engine)
    store.create()
    servers, transactional_id = broker.bootstrap_servers, engine.dialect.name
    config = {"bootstrap.servers": servers, "transactional.id": transactional_id, "linger.ms": 0}
    found = []
    with DualWriter(store, config) as writer:
        writer.recover()
        for n in range(TRANSACTIONS):
            with recorder.block(), writer.transaction() as txn:
                txn.connection.execute(text(f"INSERT INTO payments VALUES ({n})"))
                txn.send("paid", b"%d" % n)
            found.append(recorder.costs())
    engine.dispose()
    return min(found, key=lambda each: (each.round_trips, len(each.requests), each.forced_writes))


def test_of_a_dual_write_on_postgresql(
    postgresql: PostgreSQL, broker: EmbeddedBroker, recorder: Recorder
) -> None:
    """The database: BEGIN, the mark, INSERT, the record, COMMIT, which forces its own log once."""
    with CuttingProxy(postgresql.port) as proxy:
        proxy.watch = recorder.on_database_data
        url = postgresql.url(postgresql.new_database()).replace(f":{postgresql.port}/", f":{proxy.port}/")
        engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
        costs = find_costs(engine, broker, recorder)
    assert costs == Costs(round_trips=5, requests=("PRODUCE", "END_TXN"), forced_writes=(2, 1))


def test_of_a_dual_write_on_sqlite(tmp_path: Path, broker: EmbeddedBroker, recorder: Recorder) -> None:
    """The statements: BEGIN IMMEDIATE, the mark and its release, INSERT, the record, COMMIT."""
    engine = create_engine(f"sqlite:///{tmp_path / 'rows.db'}", poolclass=StaticPool)
    event.listen(engine, "connect", lambda driver, _: driver.set_trace_callback(recorder.on_statement))
    costs = find_costs(engine, broker, recorder)
    assert costs == Costs(round_trips=6, requests=("PRODUCE", "END_TXN"), forced_writes=(2, 1))
