"""The FastStream example as it is run, killed in the middle: each order is paid once."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from tests.support.effort import LONG
from tests.support.raw_producer import make_topic
from tests.support.reading import committed_records
from tests.support.servers import PostgreSQL
from tests.support.services import EXAMPLES

from tallystick import Producer
from tallystick.testing import EmbeddedBroker, eventually

pytestmark = [pytest.mark.server, pytest.mark.slow]

ORDERS = 60
# After each, the group waits for the session of the dead member to time out.
KILLS = 3 if LONG else 1


@contextlib.contextmanager
def consumer(broker: EmbeddedBroker, url: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The example until the end of the block, when it is killed."""
    env = {"KAFKA": broker.bootstrap_servers, "DATABASE": url.replace("://", "+asyncpg://")}
    command = [sys.executable, "-m", "faststream", "run", "--app-dir", str(EXAMPLES)]
    with log.open("ab") as output:
        process = subprocess.Popen(
            [*command, "faststream_payments:app"],
            stdout=output,
            stderr=output,
            env={**os.environ, **env},
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.gate(0)
def test_an_order_is_paid_once(postgresql: PostgreSQL, tmp_path: Path) -> None:
    """[DW-16] Its offset is acknowledged after the commit, so some orders are delivered again."""
    url, log = postgresql.url(postgresql.new_database()), tmp_path / "log"

    def paid() -> list[str]:
        with contextlib.suppress(psycopg.errors.UndefinedTable), psycopg.connect(url) as connection:
            return [row[0] for row in connection.execute("SELECT customer FROM payments ORDER BY 1")]
        return []

    expected = sorted(f"customer-{number}" for number in range(ORDERS))
    with EmbeddedBroker(config={"auto.create.topics.enable": True}) as broker:
        make_topic(broker, "orders")
        config = {"bootstrap.servers": broker.bootstrap_servers}
        with Producer(config) as producer:
            for number in range(ORDERS):
                order = {"customer": f"customer-{number}", "cents": 350}
                producer.send("orders", json.dumps(order).encode())
        for kill in range(1, KILLS + 1):
            with consumer(broker, url, log) as process:
                wanted = kill * ORDERS // (KILLS + 2)
                eventually(lambda wanted=wanted: len(paid()) >= wanted, 120)
                assert process.poll() is None, log.read_text()
        with consumer(broker, url, log):
            eventually(lambda: len(paid()) >= ORDERS, 120)
            assert paid() == expected

            def read() -> list[str]:
                return sorted(each.key.decode() for each in committed_records(config, "payments") if each.key)

            eventually(lambda: read() == expected)
