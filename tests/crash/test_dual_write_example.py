"""The README's dual write: its process is ended after each call in turn, and both sides agree afterwards."""

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.crash_child import CRASHED, dual_write
from tests.support.reading import committed_records

from tallystick import Completion, Producer
from tallystick.testing import EmbeddedBroker

pytestmark = pytest.mark.server

# begin, send, prepare | BEGIN, INSERT, REPLACE | COMMIT, commit_transaction
BEFORE_COMMIT, CALLS = 6, 8


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(config={"auto.create.topics.enable": True}) as running:
        yield running


def read_committed(broker: EmbeddedBroker) -> list[str]:
    records = committed_records({"bootstrap.servers": broker.bootstrap_servers}, "payments")
    return [record.value.decode() for record in records if record.value is not None]


def test_both_agree_after_a_crash_after_any_call(broker: EmbeddedBroker, tmp_path: Path) -> None:
    """[CLI-62] One life after another on the same id: the next one recovers what the crash left."""
    path = str(tmp_path / "payments.db")
    child = Path(__file__).parents[1] / "support/crash_child.py"
    expected: list[str] = []
    for crash_after in range(1, CALLS + 2):
        what = f"crash after {crash_after}"
        life = [sys.executable, str(child), broker.bootstrap_servers, path, str(crash_after), what]
        done = subprocess.run(life, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == (CRASHED if crash_after <= CALLS else 0), done.stderr
        if crash_after > BEFORE_COMMIT:
            expected.append(what)

        database = sqlite3.connect(path, isolation_level=None)
        config = {
            "bootstrap.servers": broker.bootstrap_servers,
            "transactional.id": "payments-1",
            "transaction.two.phase.commit.enable": True,
        }
        with Producer(config) as producer:
            completion = dual_write.recover(producer, database)
        with Producer(config) as producer:
            again = dual_write.recover(producer, database)
        rows = [row[0] for row in database.execute("SELECT what FROM payments ORDER BY rowid")]
        database.close()

        assert rows == expected, what
        if rows:
            assert read_committed(broker) == expected, what
        if crash_after == BEFORE_COMMIT + 1:
            assert completion is Completion.COMMITTED
        if 3 <= crash_after <= BEFORE_COMMIT:
            assert completion is Completion.ABORTED
        assert again in (Completion.NOTHING_IN_DOUBT, Completion.UNVERIFIED)


def test_the_example_runs_as_it_says(broker: EmbeddedBroker, tmp_path: Path) -> None:
    program = Path(__file__).parents[2] / "examples/dual_write.py"
    path = str(tmp_path / "payments.db")
    run = [sys.executable, "-W", "error", str(program), broker.bootstrap_servers, path, "coffee", "tea"]
    subprocess.run(run, check=True, timeout=60)
    assert read_committed(broker)[-2:] == ["coffee", "tea"]
