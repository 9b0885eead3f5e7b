"""Dual writes of a service with metrics for Prometheus.

    $ python examples/client_metrics.py localhost:9092 sqlite:///payments.db coffee tea

It makes these payments and prints what Prometheus would read. A service calls `start_http_server(9404)` of
prometheus_client instead. Needs `pip install '.[sql,metrics]'`.
"""

import sys

from prometheus_client import CollectorRegistry, generate_latest
from sqlalchemy import create_engine, text

from tallystick.dualwrite import SqlStore, WriterPool
from tallystick.metrics import ClientMetrics


def main(bootstrap_servers: str, database: str, *payments: str) -> None:
    """Make these payments in the database and in Kafka, and print the metrics."""
    metrics = ClientMetrics()
    registry = CollectorRegistry()
    registry.register(metrics)

    engine = create_engine(database)
    store = SqlStore(engine)
    store.create()
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE IF NOT EXISTS payments (what VARCHAR(50))"))
    config = {"bootstrap.servers": bootstrap_servers, "transactional.id": "shop"}
    with WriterPool(store, config, size=2, watch=metrics.watch_writes("shop")) as pool:
        pool.recover()
        for what in payments:
            with pool.transaction() as txn:
                txn.connection.execute(text("INSERT INTO payments VALUES (:what)"), {"what": what})
                txn.send("payments", what.encode())
        print(generate_latest(registry).decode())
    engine.dispose()


if __name__ == "__main__":
    main(*sys.argv[1:])
