"""A holder of a lease stalls at any effect, loses its id to another process, wakes up, and goes on.

While the holder stands still, its lease is made to expire, and another pool of the same name takes the id
over, recovers it and pays. Then the holder goes on where it was. Whatever it was about to do: rows and
records agree, the holder is told, the other pool is not kept from its work, and the holder's pool goes on
with another id.

The holder may stand still with a transaction open in its database. There the other pool waits for the row,
or, on SQLite, cannot begin.
"""

import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import pytest
from sqlalchemy import text
from tests.support.dual_world import MakeWorld, World
from tests.support.effort import LONG
from tests.support.raw_producer import committed_values
from tests.support.servers import MARIADB_LOCK_WAITS

from tallystick.dualwrite import Lease, SqlStore, WriterPool
from tallystick.dualwrite.block.steps import RecipeStep, Wait
from tallystick.dualwrite.stores.sql import SqlTransaction
from tallystick.errors import InDoubt, TallystickError
from tallystick.testing import eventually

pytestmark = [
    pytest.mark.server,
    pytest.mark.timeout(1200 if LONG else 300),
    pytest.mark.broker(flush_policy="os"),
]

# So long that no heartbeat comes by itself: the test renews, and lets leases expire.
LEASE = Lease(duration_ms=86_400_000)
Pool = WriterPool[SqlTransaction]

# What a life does from its first step to its last: recover, pay, renew, recover once more, close.
TAKING = ["read leases", "take lease"]
RECOVERY = ["claim", "describe cluster", "describe", "init", "check owner", "complete"]
PAYMENT = ["begin database", "begin", "send", "prepare", "record", "commit database", "commit"]
RENEWAL = ["renew leases"]
SETTLING = ["begin settling", "settle", "commit settled"]
AGAIN = ["close producer", *RECOVERY[:3], *SETTLING, *RECOVERY[3:]]
END = ["close producer", "close admin", "release lease"]
LIFE = [*TAKING, *RECOVERY, *SETTLING, *PAYMENT, *RENEWAL, *AGAIN, *END]
STARTED = [*PAYMENT[:-1], "start commit", *RENEWAL, "confirm commit"]
LIVES: dict[Wait, list[str]] = {
    "committed": LIFE,
    "decided": [*TAKING, *RECOVERY, *SETTLING, *STARTED, *AGAIN, *END],
}
# The holder has claimed the row and is about to initialise the id: nothing keeps it from that. The other pool
# is fenced in Kafka once, and recovers the id by itself.
INITIALISES = {
    wait: {
        (number, after)
        for first in (life.index("claim"), life.index("claim", life.index("renew leases")))
        for last in (life.index("init", first),)
        for number in range(first, last + 1)
        for after in (False, True)
        if (number, after) not in ((first, False), (last, True))
    }
    for wait, life in LIVES.items()
}
POINTS = [(number, after) for number in range(len(LIFE)) for after in (False, True)]
DECISIVE = [
    (LIFE.index(name), after)
    for name, after in (
        ("take lease", True),
        ("claim", True),
        ("init", True),
        ("prepare", True),
        ("record", True),
        ("commit database", True),
        ("renew leases", False),
    )
]
# Kafka's half under way, or not yet, while another pool takes the id over.
BESIDE = [
    (LIVES["decided"].index(name), after)
    for name in ("start commit", "renew leases", "confirm commit")
    for after in (False, True)
]
MEETINGS = [("committed", at) for at in (POINTS if LONG else DECISIVE)] + [("decided", at) for at in BESIDE]


WAITING = {  # counts the transactions that wait for a lock
    "postgresql": (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
        "AND wait_event_type = 'Lock'"
    ),
    "mysql": MARIADB_LOCK_WAITS,
}


@dataclass
class Stall:
    """Watches the steps of the holder's own thread, and does something at one of them."""

    at: tuple[int, bool] | None
    do: Callable[[], None]
    names: list[str] = field(default_factory=list)
    did: bool = False
    thread: threading.Thread = field(default_factory=threading.current_thread)

    def __call__(self, _: int, step: RecipeStep, done: bool) -> None:
        if threading.current_thread() is not self.thread:
            return
        if not done:
            self.names.append(step.name)
        if not self.did and (len(self.names) - 1, done) == self.at:
            self.did = True
            self.do()


class Encounter:
    """The holder of an id, and another pool that takes the id over while the holder stands still."""

    def __init__(self, world: World, at: tuple[int, bool] | None) -> None:
        self.world = world
        self.stall = Stall(at, self.take_over)
        self.holder = self.pool(self.stall)
        self.other = self.pool()
        self.ends = at is None or at[0] >= len(LIVES[world.wait]) - len(END)
        self.was_possible = False
        self.taking_over: threading.Thread | None = None
        self.failures: list[BaseException] = []
        self.told: list[BaseException] = []

    def pool(self, watch: Stall | None = None) -> Pool:
        store = SqlStore(self.world.make_engine())
        return WriterPool(
            store, self.world.config, 1, lease=LEASE, wait=self.world.wait, watch=watch, wait_s=0
        )

    def live(self) -> None:
        """The holder's life: what fails is noted, and the rest goes on."""
        self.attempt(self.holder.recover)
        self.attempt(lambda: pay(self.world, self.holder, 1, "mine"))
        assert self.holder._leases is not None
        self.attempt(self.holder._leases.renew)
        self.attempt(self.holder.recover)
        if self.ends:
            self.attempt(self.holder.close)

    def attempt(self, do: Callable[[], object]) -> None:
        try:
            do()
        except (TallystickError, InDoubt) as exc:
            self.told.append(exc)

    # ---- while the holder stands still

    def take_over(self) -> None:
        if self.is_locked():
            return
        self.was_possible = True
        with self.world.engine.begin() as connection:
            connection.execute(text("UPDATE kafka_transactional_id_leases SET expires_at_ms = 1"))
        self.taking_over = threading.Thread(target=self.recover_and_pay)
        self.taking_over.start()
        eventually(self.is_done_or_waits)

    def recover_and_pay(self) -> None:
        try:
            self.other.recover()
            pay(self.world, self.other, 2, "other")
        except BaseException as exc:
            self.failures.append(exc)

    def is_locked(self) -> bool:
        """Return whether the holder stands still with SQLite's one lock."""
        url = self.world.engine.url
        if url.get_backend_name() != "sqlite":
            return False
        connection = sqlite3.connect(url.database or "", timeout=0)
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return True
        finally:
            connection.close()
        return False

    def is_done_or_waits(self) -> bool:
        """Return whether the other pool has paid, or waits for the holder's transaction."""
        assert self.taking_over is not None
        waits = WAITING.get(self.world.engine.url.get_backend_name())
        if waits is None or not self.taking_over.is_alive():
            return not self.taking_over.is_alive()
        with self.world.engine.connect() as connection:
            return bool(connection.execute(text(waits)).scalar_one())

    # ---- afterwards

    def check(self) -> None:
        if self.taking_over is not None:
            self.taking_over.join()
        assert self.failures == []
        rows = self.check_halves()
        if "mine" not in rows:
            assert self.told, "a write that was not committed is an error"
        assert ("other" in rows) == self.was_possible
        if self.was_possible:
            self.check_other_goes_on()
        if not self.ends:
            self.check_holder_goes_on()
        self.check_halves()

    def check_halves(self) -> list[str]:
        """Return the rows, of which each has its record, once."""
        world, rows = self.world, sorted(self.world.rows())
        eventually(lambda: sorted(committed_values(world.broker, world.topic, 0)) == rows)
        assert len(set(rows)) == len(rows)
        return rows

    def check_other_goes_on(self) -> None:
        """The pool that took over is not disturbed; at worst it loses one transaction and recovers."""
        try:
            pay(self.world, self.other, 3, "other again")
        except TallystickError:
            assert self.stall.at in INITIALISES[self.world.wait]
            pay(self.world, self.other, 4, "other at last")

    def check_holder_goes_on(self) -> None:
        """The holder's pool takes another id by itself."""

        def goes_on() -> bool:
            with suppress(TallystickError, InDoubt):
                self.holder.recover()
                pay(self.world, self.holder, 5, "mine again")
                return True
            return False

        eventually(goes_on)
        ids = [set(pool._leases._held) for pool in (self.holder, self.other) if pool._leases is not None]
        assert not ids[0] & ids[1]

    def close(self) -> None:
        self.holder.close()
        self.other.close()


def pay(world: World, pool: Pool, n: int, what: str) -> None:
    with pool.transaction() as txn:
        txn.connection.execute(text(f"INSERT INTO {world.table} VALUES ({n}, '{what}')"))
        txn.send(world.topic, what.encode())


@pytest.mark.parametrize("wait", LIVES)
def test_an_undisturbed_life_takes_the_steps_that_are_listed(sqlite_world: MakeWorld, wait: Wait) -> None:
    meeting = Encounter(sqlite_world(wait), None)
    meeting.live()
    assert meeting.stall.names == LIVES[wait]
    assert meeting.told == []
    assert meeting.world.check() == ["mine"]


@pytest.mark.gate(1)
@pytest.mark.parametrize(("wait", "at"), MEETINGS)
def test_a_holder_that_stalls_on_sqlite(sqlite_world: MakeWorld, wait: Wait, at: tuple[int, bool]) -> None:
    """[DW-1, DW-2, DW-9, DW-15, DW-17]"""
    meet(sqlite_world(wait), at)


@pytest.mark.gate(1)
@pytest.mark.parametrize(("wait", "at"), MEETINGS)
def test_a_holder_that_stalls_on_postgresql(
    postgresql_world: MakeWorld, wait: Wait, at: tuple[int, bool]
) -> None:
    """[DW-1, DW-2, DW-9, DW-15, DW-17]"""
    meet(postgresql_world(wait), at)


@pytest.mark.gate(1)
@pytest.mark.parametrize("at", POINTS if LONG else DECISIVE)
def test_a_holder_that_stalls_on_mariadb(mariadb_world: MakeWorld, at: tuple[int, bool]) -> None:
    """[DW-1, DW-2, DW-9, DW-15]"""
    meet(mariadb_world(), at)


def meet(world: World, at: tuple[int, bool]) -> None:
    meeting = Encounter(world, at)
    try:
        meeting.live()
        assert meeting.stall.did
        meeting.check()
    finally:
        meeting.close()
