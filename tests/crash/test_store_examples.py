"""The stores' examples as they are run, with a kill -9 in the middle: database and topic agree afterwards."""

import contextlib
import json
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from rocksdict import Rdict
from tests.support.reading import committed_records
from tests.support.servers import PostgreSQL
from tests.support.services import EXAMPLES, service
from tools.servers.broker_process import find_free_port

from tallystick.testing import EmbeddedBroker, eventually

pytestmark = [pytest.mark.server, pytest.mark.slow]

CLIENTS, PAYMENTS_BEFORE_THE_KILL = 4, 40


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(config={"auto.create.topics.enable": True}) as running:
        yield running


def read_committed(broker: EmbeddedBroker, topic: str) -> list[tuple[str, str]]:
    """All committed records, as key and value."""
    records = committed_records({"bootstrap.servers": broker.bootstrap_servers}, topic)
    return [(each.key.decode(), each.value.decode()) for each in records if each.key and each.value]


def pay_until_killed(process: subprocess.Popen[bytes], pay: Callable[[httpx.Client, str], None]) -> set[str]:
    """Several clients pay; in the middle of it the service is killed. The payments that were acknowledged."""
    acknowledged: set[str] = set()

    def client(number: int) -> None:
        with httpx.Client(timeout=60) as http, contextlib.suppress(httpx.TransportError):
            for each in range(10_000):
                pay(http, f"{number}-{each}")
                acknowledged.add(f"{number}-{each}")

    threads = [threading.Thread(target=client, args=(number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    eventually(lambda: len(acknowledged) >= PAYMENTS_BEFORE_THE_KILL, 60)
    process.kill()
    for thread in threads:
        thread.join(60)
    return acknowledged


def customers(broker: EmbeddedBroker) -> list[str]:
    return [json.loads(value)["customer"] for _, value in read_committed(broker, "payments")]


@pytest.mark.gate(0)
def test_fastapi_and_postgresql(broker: EmbeddedBroker, postgresql: PostgreSQL, tmp_path: Path) -> None:
    """[DW-1] [DW-2] What was acknowledged is in both; what is in one is in the other, once."""
    port, name = find_free_port(), postgresql.new_database()
    command = ["-m", "uvicorn", "--app-dir", str(EXAMPLES), "fastapi_payments:app", "--port", str(port)]
    plain = postgresql.url(name)
    env = {"KAFKA": broker.bootstrap_servers, "DATABASE": plain.replace("://", "+asyncpg://")}
    url = f"http://127.0.0.1:{port}/payments"

    def pay(http: httpx.Client, customer: str) -> None:
        assert http.post(url, json={"customer": customer, "cents": 350}).status_code == 201

    with service(command, port, tmp_path / "log", **env) as process:
        acknowledged = pay_until_killed(process, pay)
    with service(command, port, tmp_path / "log", **env), httpx.Client() as http:
        pay(http, "after")

    with psycopg.connect(plain) as connection:
        rows = [row[0] for row in connection.execute("SELECT customer FROM payments")]
    assert {*acknowledged, "after"} <= set(rows)
    assert sorted(customers(broker)) == sorted(rows)
    assert len(set(rows)) == len(rows)


@pytest.mark.gate(0)
def test_fastapi_and_orders_that_are_sent_again(
    broker: EmbeddedBroker, postgresql: PostgreSQL, tmp_path: Path
) -> None:
    """[DW-16] Clients send every order once more after the service was killed: each is paid once."""
    port, name = find_free_port(), postgresql.new_database()
    command = ["-m", "uvicorn", "--app-dir", str(EXAMPLES), "fastapi_payments:app", "--port", str(port)]
    plain = postgresql.url(name)
    env = {"KAFKA": broker.bootstrap_servers, "DATABASE": plain.replace("://", "+asyncpg://")}
    url = f"http://127.0.0.1:{port}/orders"
    sent: set[str] = set()
    answers: dict[str, int] = {}

    def order(http: httpx.Client, customer: str) -> None:
        sent.add(customer)
        headers = {"Idempotency-Key": f"order-of-{customer}"}
        answer = http.post(url, json={"customer": customer, "cents": 350}, headers=headers)
        assert answer.status_code == 201, answer.text
        assert answers.setdefault(customer, answer.json()) == answer.json()

    with service(command, port, tmp_path / "log", **env) as process:
        acknowledged = pay_until_killed(process, order)
    assert acknowledged < sent, "one was killed on its way"
    with service(command, port, tmp_path / "log", **env), httpx.Client(timeout=60) as http:
        for customer in sorted(sent):
            order(http, customer)

    with psycopg.connect(plain) as connection:
        rows: dict[Any, Any] = dict(connection.execute("SELECT customer, id FROM payments").fetchall())
        (count,) = connection.execute("SELECT count(*) FROM payments").fetchone() or (0,)
    assert rows == answers
    assert count == len(rows) == len(sent)
    assert sorted(customers(broker)) == sorted(rows)


@pytest.mark.gate(0)
def test_a_django_view(broker: EmbeddedBroker, tmp_path: Path) -> None:
    """[DW-1] [DW-2] The same with Django's threads on SQLite."""
    port, database = find_free_port(), tmp_path / "shop.db"
    command = ["-W", "error", str(EXAMPLES / "django_view.py"), f"127.0.0.1:{port}"]
    env = {"KAFKA": broker.bootstrap_servers, "DATABASE": str(database)}
    url = f"http://127.0.0.1:{port}/payments"

    def pay(http: httpx.Client, customer: str) -> None:
        answer = http.post(url, data={"customer": customer, "cents": "350"})
        assert answer.status_code == 201, answer.text

    with service(command, port, tmp_path / "log", **env) as process:
        acknowledged = pay_until_killed(process, pay)
    with service(command, port, tmp_path / "log", **env), httpx.Client() as http:
        pay(http, "after")

    with contextlib.closing(sqlite3.connect(database)) as connection:
        rows = [row[0] for row in connection.execute("SELECT customer FROM shop_payment")]
    assert {*acknowledged, "after"} <= set(rows)
    assert sorted(customers(broker)) == sorted(rows)
    assert len(set(rows)) == len(rows)


@pytest.mark.gate(0)
def test_a_keeper_of_stock_on_rocksdb(broker: EmbeddedBroker, tmp_path: Path) -> None:
    """[DW-1] [DW-2] Killed after its twentieth change; the topic replayed gives the database."""
    path = str(tmp_path / "stock.db")
    command = [
        sys.executable,
        "-W",
        "error",
        str(EXAMPLES / "rocksdb_app.py"),
        broker.bootstrap_servers,
        path,
    ]
    changes = [f"item-{each % 7}={each}" for each in range(2_000)]
    with subprocess.Popen([*command, *changes], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        printed = 0
        while printed < 20:
            line = process.stdout.readline()
            assert line, "it ended early"
            printed += line.startswith("item-")
        process.kill()
    subprocess.run([*command, "after=1"], check=True, stdout=subprocess.DEVNULL, timeout=60)

    records = read_committed(broker, "stock")
    assert [f"{key}={value}" for key, value in records[:-1]] == changes[: len(records) - 1]
    assert len(records) > 20
    database = Rdict(path)
    assert dict(database.items()) == dict(records)
    database.close()


@pytest.mark.gate(0)
def test_a_collector_of_readings_on_a_delta_table(broker: EmbeddedBroker, tmp_path: Path) -> None:
    """[DW-1] [DW-2] Killed in the middle of its batches; every reading is in table and topic, once."""
    table = tmp_path / "readings"
    command = [sys.executable, "-W", "error", str(EXAMPLES / "delta_readings.py"), broker.bootstrap_servers]
    readings = [f"meter-{each % 7}={each}.0" for each in range(3_000)]
    with subprocess.Popen([*command, str(table), *readings], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        printed: list[str] = []
        while len(printed) < 30:
            line = process.stdout.readline()
            assert line, "it ended early"
            printed += line.split() if line.startswith("meter-") else []
        process.kill()
    subprocess.run(
        [*command, str(table), "after=1.0", "after=2.0"], check=True, stdout=subprocess.DEVNULL, timeout=60
    )

    records = [f"{key}={value}" for key, value in read_committed(broker, "readings")]
    rows = pa.table(DeltaTable(table).scan().read_all()).to_pylist()
    assert sorted(f"{row['meter']}={row['value']}" for row in rows) == sorted(records)
    assert records[-2:] == ["after=1.0", "after=2.0"]
    assert records[:-2] == readings[: len(records) - 2]
    assert set(printed) <= set(records)
    assert (len(records) - 2) % 3 == 0
