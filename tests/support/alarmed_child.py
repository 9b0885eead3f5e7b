"""A process whose payments real alarms interrupt right after COMMIT; see test_dual_write_alarms.

    python -m tests.support.alarmed_child FOLDER SEED HITS

Prints the outcomes as JSON. It is a separate process because alarms come to the main thread, and because they
interrupt SQLAlchemy as well, whose leftovers are better kept out of the tests' process.
"""

import json
import logging
import signal
import sqlite3
import statistics
import sys
import time
import warnings
from collections import Counter
from contextlib import suppress
from pathlib import Path
from random import Random
from types import FrameType

from sqlalchemy import create_engine, text
from sqlalchemy.exc import StatementError
from sqlalchemy.pool import StaticPool
from tests.support.raw_producer import committed_values, make_topic

from tallystick.dualwrite import DualWriter, SqlStore
from tallystick.dualwrite.block.steps import RecipeStep
from tallystick.dualwrite.stores.sql import SqlTransaction
from tallystick.errors import InDoubt, TallystickError
from tallystick.testing import EmbeddedBroker, eventually

ROUND = 2_000
AIMED = (0.3, 1.7)
"""Times of the alarm, in parts of the time from COMMIT's answer to the end of its step."""

Writer = DualWriter[SqlTransaction]


class SoftTimeLimitExceeded(Exception):
    """An exception like Celery's."""


class Alarms:
    """Counts the alarms that went off; those where a store may swallow any exception are not hits."""

    gone_off = 0

    @staticmethod
    def strike(_: int, __: FrameType | None) -> None:
        Alarms.gone_off += 1
        raise SoftTimeLimitExceeded


class Aiming(sqlite3.Connection):
    """A connection that sets the timer after carrying out its COMMIT."""

    delay_s: float | None = None
    committed_at = 0.0

    def commit(self) -> None:
        super().commit()
        Aiming.committed_at = time.perf_counter()
        if Aiming.delay_s is not None:
            delay_s, Aiming.delay_s = Aiming.delay_s, None
            signal.setitimer(signal.ITIMER_REAL, delay_s)


class Shop:
    """A table and a topic, and a writer that alarms interrupt."""

    def __init__(self, broker: EmbeddedBroker, path: Path, name: str) -> None:
        self.broker, self.topic = broker, name
        make_topic(broker, name)
        self.engine = create_engine(
            f"sqlite:///{path}",
            connect_args={"factory": Aiming, "check_same_thread": False},
            poolclass=StaticPool,
        )
        with self.engine.begin() as connection:
            connection.execute(text("CREATE TABLE paid (what TEXT)"))
        self.store = SqlStore(self.engine)
        self.store.create()
        self.took: list[float] = []
        self.interrupted = 0
        self.writer = self._writer(self._note)

    def _writer(self, watch: object = None) -> Writer:
        config = {"bootstrap.servers": self.broker.bootstrap_servers, "transactional.id": self.topic}
        writer: Writer = DualWriter(self.store, config, watch=watch)  # type: ignore[arg-type]
        writer.recover()
        return writer

    def _note(self, _: int, step: RecipeStep, done: bool) -> None:
        if step.name == "commit database" and done:
            self.took.append(time.perf_counter() - Aiming.committed_at)

    def pay(self, what: str) -> None:
        with self.writer.transaction() as txn:
            txn.connection.execute(text("INSERT INTO paid VALUES (:what)"), {"what": what})
            txn.send(self.topic, what.encode())

    def measure(self) -> float:
        """Return the median seconds from COMMIT's answer to the end of the step."""
        for n in range(30):
            self.pay(f"measured {n}")
        self.writer.close()
        self.writer = self._writer()
        return statistics.median(self.took)

    def is_struck(self, what: str, delay_s: float) -> bool:
        """Pay with an alarm set; return whether the alarm was raised out of the block, in any form."""
        struck = False
        Aiming.delay_s = delay_s
        try:
            self.pay(what)
        except (SoftTimeLimitExceeded, InDoubt, StatementError, TallystickError):
            struck = True
        finally:
            with suppress(SoftTimeLimitExceeded):
                signal.setitimer(signal.ITIMER_REAL, 0)
            Aiming.delay_s = None
        if not self.writer.ready:
            self.interrupted += 1
            # Every other time as at the end of a `with` block: closed in doubt, and another one recovers.
            if self.interrupted % 2:
                with suppress(TallystickError):
                    self.writer.recover()
            if not self.writer.ready:
                self.writer.close()
                self.writer = self._writer()
        return struck

    def torn(self) -> set[str]:
        """Return the payments that only one side has."""
        self.pay("last")
        with self.engine.connect() as connection:
            rows = Counter(connection.execute(text("SELECT what FROM paid")).scalars())

        def values() -> list[str]:
            committed = committed_values(self.broker, self.topic, 0)
            return committed if committed[-1:] == ["last"] else []

        sent = Counter(eventually(values))
        return set((rows - sent) | (sent - rows))


def strike(folder: Path, seed: int, wanted: int) -> dict[str, object]:
    """Pay until that many alarms have hit, or a payment is on one side only."""
    random, hits, rounds = Random(seed), 0, 0
    torn: set[str] = set()
    with EmbeddedBroker(folder / "broker") as broker:
        while hits < wanted and not torn:
            rounds += 1
            shop = Shop(broker, folder / f"{rounds}.db", f"paid-{rounds}")
            median = shop.measure()
            for n in range(ROUND):
                hits += shop.is_struck(f"p{n}", max(1e-6, random.uniform(*AIMED) * median))
                if hits >= wanted:
                    break
            torn = shop.torn()
            shop.writer.close()
            shop.engine.dispose()
    return {"hits": hits, "gone_off": Alarms.gone_off, "rounds": rounds, "torn": sorted(torn)}


def main(folder: str, seed: str, hits: str) -> None:
    # SQLAlchemy's event registry fails when garbage is collected, and a coroutine may be interrupted before
    # it is awaited.
    sys.unraisablehook = lambda _: None
    warnings.simplefilter("ignore", RuntimeWarning)
    logging.disable(logging.CRITICAL)
    signal.signal(signal.SIGALRM, Alarms.strike)
    print(json.dumps(strike(Path(folder), int(seed), int(hits))))


if __name__ == "__main__":
    main(*sys.argv[1:])
