"""A writer of `tallystick demo --quick`: it pays, one row and one record at a time, until it is killed."""

import logging
import multiprocessing
import os
import signal
import threading
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError

from tallystick.dualwrite import DualWriter, SqlStore
from tallystick.dualwrite.stores.sql import SqlTransaction
from tallystick.errors import InDoubt, TallystickError

TOPIC: Final = "payments"
_LAST: Final = text("SELECT coalesce(max(number), 0) FROM payments WHERE writer = :writer")
_INSERT: Final = text("INSERT INTO payments VALUES (:writer, :number)")
_RETRY_S: Final = 0.05
_log = logging.getLogger(__name__)


def pay(name: str, bootstrap_servers: str, url: str, log: Path, findings: Connection) -> None:
    """Pay until SIGTERM or the end of the demo, and send the name of what each recovery finds."""
    logging.basicConfig(filename=log, format="%(asctime)s " + name + " %(message)s")
    threading.Thread(target=_end_with_demo, daemon=True).start()
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the demo, which ends its writers
    config = {"bootstrap.servers": bootstrap_servers, "transactional.id": name}
    with DualWriter(SqlStore(create_engine(url)), config) as writer:
        while not stopping.is_set():
            try:
                for each in writer.recover().ids:
                    findings.send(each.finding.name)
                _pay_until_stopped(writer, name, stopping)
            except (TallystickError, InDoubt, DBAPIError) as error:  # as after a kill: find out, and go on
                _log.warning("%s: %s", type(error).__name__, error)
                stopping.wait(_RETRY_S)


def _end_with_demo() -> None:
    """End this process when the demo has: one that got SIGKILL stops no writers."""
    if (demo := multiprocessing.parent_process()) is not None:
        demo.join()
        os._exit(1)


def _pay_until_stopped(writer: DualWriter[SqlTransaction], name: str, stopping: threading.Event) -> None:
    while not stopping.is_set():
        with writer.transaction() as txn:
            number = txn.connection.execute(_LAST, {"writer": name}).scalar_one() + 1
            txn.connection.execute(_INSERT, {"writer": name, "number": number})
            txn.send(TOPIC, f"{name}:{number}".encode())
