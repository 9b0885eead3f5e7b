"""The dual write of examples/ as a child process that crashes after its n-th call.

    python crash_child.py BOOTSTRAP DATABASE CRASH_AFTER PAYMENT

Prints `survived` if it had fewer calls than that.
"""

import os
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import cast

from tallystick import Producer

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
import dual_write

CRASHED = 77


class Crashing:
    """Forwards calls, and ends the process after a number of them, counted over all instances."""

    left = 0

    def __init__(self, inner: object) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Callable[..., object]:
        method = getattr(self._inner, name)

        def call(*args: object, **kwargs: object) -> object:
            result = method(*args, **kwargs)
            Crashing.left -= 1
            if not Crashing.left:
                os._exit(CRASHED)
            return result

        return call


def main(bootstrap_servers: str, path: str, crash_after: str, payment: str) -> None:
    """Recover, then pay, up to the crash."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "transactional.id": "payments-1",
            "transaction.two.phase.commit.enable": True,
            "linger.ms": 0,  # the last record before a crash may or may not arrive
        }
    )
    database = sqlite3.connect(path, isolation_level=None)
    dual_write.recover(producer, database)
    Crashing.left = int(crash_after)
    crashing = cast(Producer, Crashing(producer)), cast(sqlite3.Connection, Crashing(database))
    dual_write.pay(*crashing, payment)
    print("survived")
    producer.close()
    database.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
