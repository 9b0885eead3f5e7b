"""One writer of the soak: it recovers and pays, again and again, until SIGTERM or SIGKILL."""

import signal
import threading

from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError

from tallystick.dualwrite import DualWriter, SqlStore
from tallystick.errors import InDoubt, TallystickError

TOPIC = "soak"
PARTITIONS = 4
RETRY_S = 0.05

_INSERT = text("INSERT INTO soak VALUES (:w, :n)")
_LAST = text("SELECT coalesce(max(n), 0) FROM soak WHERE writer = :w")


def write(number: int, bootstrap: str, url: str) -> None:
    """Run a writer's process: write, and recover again after any failure."""
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the parent program
    store = SqlStore(create_engine(url, pool_size=2, connect_args={"connect_timeout": 5}))
    config = {
        "bootstrap.servers": bootstrap,
        "transactional.id": f"soak-{number}",
        "linger.ms": 0,
        "retry.backoff.max.ms": 200,
        "reconnect.backoff.max.ms": 200,
    }
    with DualWriter(store, config) as writer:
        while not stopping.is_set():
            try:
                writer.recover()
                _write_until_stopped(number, writer, stopping)
            except (TallystickError, InDoubt, DBAPIError):
                stopping.wait(RETRY_S)


def _write_until_stopped(number: int, writer: "DualWriter[object]", stopping: threading.Event) -> None:
    """Write one row and one record per transaction; the row's number is the next one missing in the table."""
    n = None
    while not stopping.is_set():
        with writer.transaction() as txn:
            connection = txn.database.connection  # type: ignore[attr-defined]
            if n is None:
                n = connection.execute(_LAST, {"w": number}).scalar_one()
            n += 1
            connection.execute(_INSERT, {"w": number, "n": n})
            txn.send(TOPIC, f"{number}:{n}".encode(), partition=number % PARTITIONS)
