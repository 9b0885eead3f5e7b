"""What one dual write costs its caller: round trips to the database, requests, forced writes of the broker.

Of several dual writes the cheapest counts: forced writes that the broker makes for the one before, which
nobody waits for, may fall into the next on a busy machine.
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
from tallystick.dualwrite.block.steps import Wait
from tallystick.testing import EmbeddedBroker, eventually

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


def find_costs(engine: Engine, broker: EmbeddedBroker, recorder: Recorder, wait: Wait = "committed") -> Costs:
    """Return the least costs of several dual writes, each after the broker is done with the one before."""
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE payments (n INTEGER)"))
    store = SqlStore(engine)
    store.create()
    servers, transactional_id = broker.bootstrap_servers, f"{engine.dialect.name}-{wait}"
    config = {"bootstrap.servers": servers, "transactional.id": transactional_id, "linger.ms": 0}
    found = []
    with DualWriter(store, config, wait=wait) as writer:
        writer.recover()
        for n in range(TRANSACTIONS):
            with recorder.block(), writer.transaction() as txn:
                txn.connection.execute(text(f"INSERT INTO payments VALUES ({n})"))
                txn.send("paid", b"%d" % n)
            found.append(recorder.costs())
            writer.wait_committed()
            eventually(recorder.is_quiet)
    engine.dispose()
    return min(found, key=lambda each: (each.round_trips, len(each.requests), each.forced_writes))


# Of Kafka, the answer to EndTxn is waited for only where both sides are to be committed at the end.
WAITED: dict[Wait, tuple[tuple[str, ...], tuple[int, ...]]] = {
    "committed": (("PRODUCE", "END_TXN"), (2, 1)),
    "decided": (("PRODUCE",), (2,)),
}


@pytest.mark.parametrize("wait", WAITED)
def test_of_a_dual_write_on_postgresql(
    postgresql: PostgreSQL, broker: EmbeddedBroker, recorder: Recorder, wait: Wait
) -> None:
    """The database: BEGIN, the mark, INSERT, the record, and COMMIT, which forces its own log once.

    The two forced writes of Produce are of one round: the records, and the transaction's own first record.
    """
    with CuttingProxy(postgresql.port) as proxy:
        proxy.watch = recorder.on_database_data
        url = postgresql.url(postgresql.new_database()).replace(f":{postgresql.port}/", f":{proxy.port}/")
        engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
        costs = find_costs(engine, broker, recorder, wait)
    assert costs == Costs(5, *WAITED[wait])


@pytest.mark.gate(1)
@pytest.mark.parametrize("wait", WAITED)
def test_of_a_dual_write_on_sqlite(
    tmp_path: Path, broker: EmbeddedBroker, recorder: Recorder, wait: Wait
) -> None:
    """The statements: BEGIN IMMEDIATE, the mark and its release, INSERT, the record, COMMIT."""
    engine = create_engine(f"sqlite:///{tmp_path / 'rows.db'}", poolclass=StaticPool)
    event.listen(engine, "connect", lambda driver, _: driver.set_trace_callback(recorder.on_statement))
    costs = find_costs(engine, broker, recorder, wait)
    assert costs == Costs(6, *WAITED[wait])
